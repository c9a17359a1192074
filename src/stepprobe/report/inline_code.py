"""Which parts of a sentence are surely code: options, places, calls, settings and names with an underscore.

The report's sentences carry no markup of their own; a part that may be a word stays one.
"""

import re
from collections.abc import Iterator

_NAME = r"[A-Za-z_]\w*(?:\.\w+)*"
_WITHIN = r"\((?:[^()]|\([^()]*\))*\)"
_CODE = re.compile(
    rf"""(?<![\w./:+-])(?:
        stepprobe\ [a-z]+(?:\ (?:--[a-z][a-z-]*|[A-Z]{{3,}}|--))+(?![\w.-])       # a command with what it takes
      | --[a-z][a-z0-9]*(?:-[a-z0-9]+)*(?![\w-])                                # an option
      | [\w.+/-]*[\w+-]\.py:\d+                                                 # a place
      | (?=[\w.]*(?:_|\.|\(\)|\(\w+=)){_NAME}{_WITHIN}                          # a call, not a word and a bracket
      | {_NAME}=(?:True|False|None|\d+|"[^"]*"|'[^']*'|[A-Za-z_]\w*)(?!\.?\w)   # a setting
      | (?=[\w.]*[A-Za-z0-9]_[A-Za-z0-9]){_NAME}(?![\w(])                       # a name with an underscore
    )""",
    re.VERBOSE,
)


def pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a text in order, each with whether it is code; together they are the text."""
    end = 0
    for found in _CODE.finditer(text):
        if found.start() > end:
            yield text[end : found.start()], False
        yield found[0], True
        end = found.end()
    if end < len(text):
        yield text[end:], False
