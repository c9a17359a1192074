"""Untrusted text made safe to look at: paths, class names and messages come from other people's code."""

import re
import unicodedata

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that draw nothing themselves but can move, hide or break what stands around them."""

_PLACE = re.compile(r"(?P<folder>(?:[^ ]*/)?)(?P<file>[^/ :]+)(?P<line>:\d+)(?P<function> [^/]*)?")
_WORTH_READING = 6
"""Characters of a function's name, its blank and the mark of the cut included, below which nothing of it is shown."""
_PLAIN = re.compile(r"[ -~]*")


def visible(text: str) -> str:
    """Return ``text`` with every unseen character drawn: U+202E becomes ``‹U+202E›``, a line break ``↵``.

    The result is one line, has no terminal escape, no bidirectional override and no lone surrogate, so that it can be
    encoded as UTF-8 and cannot reorder the text beside it.
    """
    if _PLAIN.fullmatch(text):
        return text
    return "".join(map(_drawn, text.replace("\r\n", "\n")))


def _drawn(character: str) -> str:
    if character == "\n":
        return "↵"
    if character == "\t":
        return " "
    if unicodedata.category(character) in _UNSEEN:
        return f"‹U+{ord(character):04X}›"
    return character


def shortened(text: str, width: int) -> str:
    """Return ``text`` cut at its end to at most ``width`` characters, at a word where one is near."""
    if len(text) <= width:
        return text
    kept = text[: max(0, width - 1)]
    word, space, _ = kept.rpartition(" ")
    return (word if space and len(word) > 2 * width // 3 else kept).rstrip(" ,;:·") + "…"


def pinched(text: str, width: int) -> str:
    """Return ``text`` cut in its middle to at most ``width`` characters.

    Of a place, ``folder/file.py:88 function``, the folder goes first, then the function, then the middle of the file's
    name: the line stays wherever it fits.
    """
    if len(text) <= width:
        return text
    if place := _PLACE.fullmatch(text):
        return _place(place["folder"], place["file"], place["line"], place["function"] or "", width)
    return _middle_out(text, width)


def is_place(text: str) -> bool:
    """Tell whether a text is a place, ``folder/file.py:88 function``."""
    return _PLACE.fullmatch(text) is not None


def _place(folder: str, file: str, line: str, function: str, width: int) -> str:
    spare = width - len(file + line + function)
    if spare > 0:
        return f"{folder[: spare - 1]}…{file}{line}{function}"
    spare = width - len(file + line)
    if spare >= 0:
        return file + line + (function[: spare - 1] + "…" if spare >= _WORTH_READING and function else "")
    return _middle_out(file, width - len(line)) + line if width > len(line) else line[:width]


def _middle_out(text: str, width: int) -> str:
    head = max(0, (width - 1) // 3)
    return text[:head] + "…" + text[len(text) - max(0, width - 1 - head) :]
