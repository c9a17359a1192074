"""The command line. One file, one command: ``SUMMARY``, ``add_arguments(parser)``, ``run(arguments) -> exit code``.

A file whose name begins with an underscore is no command. Everything heavy is imported by a command that runs.
"""

import argparse
import contextlib
import importlib
import pkgutil
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, cast

from stepprobe import __version__
from stepprobe.cli._config import read_config
from stepprobe.cli._console import hold_streams, tell, write
from stepprobe.cli._parser import Parser, nearest
from stepprobe.errors import AssertionFailed, StepprobeError, UsageError

_INTERRUPTED = 130
_PIPE_CLOSED = 141


class Command(Protocol):
    """What a command's module offers; with ``TAKES_COMMAND = True`` also the user's command line after ``--``."""

    SUMMARY: str
    """What it answers, in one line without a full stop."""
    add_arguments: Callable[[argparse.ArgumentParser], None]
    """Adds at most eight options."""
    run: Callable[[argparse.Namespace], int]
    """Does it and returns the exit code. ``arguments.command_line`` holds the words after ``--``,
    ``arguments.runs`` the folder in which run folders lie."""


def names() -> list[str]:
    """Return the names of all commands."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def load(name: str) -> Command:
    """Import one command."""
    return cast(Command, importlib.import_module(f"stepprobe.cli.{name}"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every error is told here, once."""
    words = list(sys.argv[1:] if argv is None else argv)
    hold_streams()
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")  # a terminal that lacks a character must not cost the report
    try:
        return _dispatch(words)
    except StepprobeError as error:
        _tell_error(words, error)
        return error.exit_code
    except KeyboardInterrupt:
        tell("interrupted")
        return _INTERRUPTED
    except BrokenPipeError:
        return _PIPE_CLOSED
    except OSError as error:  # what was to be said could not be written
        with contextlib.suppress(OSError):
            tell(f"{error}; make room, or send the output elsewhere")
        return 1


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        write(_overview(), sys.stdout)
        return 0 if words else UsageError.exit_code
    if words[0] in ("-V", "--version"):
        write(f"stepprobe {__version__}", sys.stdout)
        return 0
    name, *rest = words
    if name not in names():
        raise UsageError(f"no command {name!r}{nearest(name, names())}; there are: {', '.join(names())}")
    arguments = _parse(name, load(name), rest)
    return load(name).run(arguments) if arguments else 0


def _parse(name: str, command: Command, words: list[str]) -> argparse.Namespace | None:
    """Return the arguments of a command, or None when its help was asked for and shown."""
    own, command_line = _split(words)
    parser = Parser(prog=f"stepprobe {name}", description=f"{command.SUMMARY}.", allow_abbrev=False)
    command.add_arguments(parser)
    takes_command = getattr(command, "TAKES_COMMAND", False)
    if takes_command:
        parser.usage = "%(prog)s [options] -- CMD [ARG ...]"
        parser.add_argument("misplaced", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    source, tables = read_config(Path(), names())
    parser.take_defaults(tables.get(name, {}), f"{source} [{name}]")
    try:
        arguments = parser.parse_args(own)
    except SystemExit:  # argparse has printed the help
        return None
    if command_line and not takes_command:
        parser.error(f"{name} runs no command, so nothing can follow --")
    if takes_command and arguments.misplaced:
        parser.error(f"put two dashes before the command: {parser.prog} -- {shlex.join(arguments.misplaced)}")
    arguments.command_line = command_line
    arguments.runs = Path(str(tables.get("run", {}).get("out", "stepprobe-runs")))
    return arguments


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in words:
        return words, []
    place = words.index("--")
    return words[:place], words[place + 1 :]


def _overview() -> str:
    rows = [f"  {name:<10}{load(name).SUMMARY}" for name in names()]
    return "\n".join(
        [
            "Where a training step's time went, what to change, and what it will gain.",
            "",
            "  stepprobe run -- python train.py",
            "",
            *rows,
            "",
            "stepprobe COMMAND --help tells a command's options; --version the version.",
        ]
    )


def _tell_error(words: list[str], error: StepprobeError) -> None:
    """Say on standard error what went wrong; who asked for JSON gets an object too."""
    if "--json" in _split(words)[0]:
        from stepprobe.model.report import Report
        from stepprobe.report import json

        report = Report(
            command=words[0],
            verdict="fail" if isinstance(error, AssertionFailed) else "not measured",
            title=shlex.join(words),
            headline=str(error),
            figures={},
        )
        write(json.render(report), sys.stdout)
    tell(str(error))
