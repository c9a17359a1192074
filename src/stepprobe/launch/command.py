"""The user's command line, read before it runs: what it will be called, and what would keep us from seeing it."""

import difflib
import itertools
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from stepprobe.errors import UsageError

_PYTHON = re.compile(r"(python|pypy)[0-9.]*t?")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_AS_MODULE = {
    ("torchrun",): "torch.distributed.run",
    ("accelerate", "launch"): "accelerate.commands.launch",
    ("deepspeed",): "deepspeed.launcher.runner",
}
"""Launchers whose command is only on PATH when the environment's ``bin`` is, and the module that is the same."""


def check(argv: Sequence[str], asked: str = "run") -> str:
    """Return the path of the program that ``argv`` starts.

    Args:
        argv: The user's command.
        asked: The command of stepprobe that it was given to, for the next step in an error.

    Raises:
        UsageError: It cannot be started, or it starts a Python that nothing can be injected into.
    """
    if not argv:
        raise UsageError(f"no command to run; put it after two dashes: stepprobe {asked} -- python train.py")
    program = shutil.which(argv[0])
    if program is None:
        raise UsageError(_explain_missing(argv, f"stepprobe {asked} --"))
    _check_python(argv)
    _check_python([*_shebang(program), program, *argv[1:]])
    return program


def name(argv: Sequence[str]) -> str:
    """Return what a run of this command is called: its script, else its module, else its program."""
    for word in argv:
        if word.endswith(".py"):
            return Path(word).stem
    for flag, module in itertools.pairwise(argv):
        if flag == "-m":
            return module
    return Path(argv[0]).name


def _explain_missing(argv: Sequence[str], before: str) -> str:
    program = argv[0]
    for words, module in _AS_MODULE.items():
        if words == tuple(argv[: len(words)]):
            same = shlex.join(["python", "-m", module, *argv[len(words) :]])
            return f"{program} is not on PATH; the same without it: {before} {same}"
    if os.path.isfile(program):
        reason = "cannot be executed" if os.path.dirname(program) else "is a file here, not a command on PATH"
        start = ["python"] if program.endswith(".py") else ["sh"]
        return f"{program} {reason}; run it as: {before} {shlex.join([*start, *argv])}"
    if os.path.isdir(program):
        return f"{program} is a folder, not a command; name the script in it: {before} python {program}/…"
    return (
        f"{program}: no such command{_nearest(program)}; stepprobe runs what a shell would: python train.py, torchrun …"
    )


def _nearest(path: str) -> str:
    """Say which file of the same folder may have been meant."""
    folder = os.path.dirname(path)
    try:
        found = difflib.get_close_matches(os.path.basename(path), os.listdir(folder or "."), n=1)
    except OSError:
        return ""
    return f" (did you mean {os.path.join(folder, found[0])}?)" if found else ""


def _check_python(argv: Sequence[str]) -> None:
    words = list(_without_env(argv))
    if not words or not _PYTHON.fullmatch(os.path.basename(words[0])):
        return
    letters, script = _read_flags(words[1:])
    if closed := [letter for letter in "IES" if letter in letters]:
        flag = f"-{closed[0]}"
        raise UsageError(
            f"python {flag} ignores PYTHONPATH and site hooks, through which stepprobe attaches; "
            f"run it without {flag} (in the script's first line too, if it stands there)"
        )
    if script is not None and not os.path.exists(script):
        raise UsageError(f"{script} does not exist{_nearest(script)}; it was looked for in {_here()}")


def _here() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "a folder that was removed"


def _without_env(argv: Sequence[str]) -> Iterator[str]:
    """Leave out a leading ``env`` with its assignments."""
    words = iter(argv)
    first = next(words, "")
    if os.path.basename(first) != "env":
        yield first
    else:
        yield next((word for word in words if word != "-S" and not _ASSIGNMENT.fullmatch(word)), "")
    yield from words


def _read_flags(words: Sequence[str]) -> tuple[str, str | None]:
    """Return the interpreter's own one-letter flags, and its script unless it runs a module, code or stdin."""
    letters = ""
    remaining = iter(words)
    for word in remaining:
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                next(remaining, None)
        elif not word.startswith("-"):
            return letters, word
        elif word == "-":
            return letters, None
        else:
            own, ends_flags, takes_value = _split_flags(word[1:])
            letters += own
            if ends_flags:
                return letters, None
            if takes_value:
                next(remaining, None)
    return letters, None


def _split_flags(group: str) -> tuple[str, bool, bool]:
    """Read one word of flags, like ``uI`` or ``Wignore``: (letters, no more flags follow, the next word is a value)."""
    for place, letter in enumerate(group):
        if letter in "cm":
            return group[:place], True, False
        if letter in "XW":
            return group[:place], False, place == len(group) - 1
    return group, False, False


def _shebang(program: str) -> list[str]:
    try:
        with open(program, "rb") as file:
            line = file.readline(256)
    except OSError:
        return []
    return os.fsdecode(line[2:]).split() if line.startswith(b"#!") else []
