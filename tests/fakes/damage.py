"""Files that something happened to."""


def damaged(content: bytes) -> bytes:
    """``content`` with one bit of its last byte turned, so that it differs whatever that byte was."""
    return content[:-1] + bytes([content[-1] ^ 1])
