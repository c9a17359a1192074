"""The RUN argument: a run folder, or the newest one."""

import argparse
from pathlib import Path

from stepprobe.errors import UsageError


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Add an optional RUN."""
    parser.add_argument("folder", nargs="?", type=Path, metavar="RUN", help="run folder (default: the newest)")


def chosen(arguments: argparse.Namespace) -> Path:
    """Return the run folder that was named, or the newest of the default place.

    Raises:
        UsageError: It does not exist, or there is none.
    """
    from stepprobe import store

    return store.newest(arguments.runs) if arguments.folder is None else existing(arguments.folder)


def existing(folder: Path) -> Path:
    """Return a folder that exists.

    Raises:
        UsageError: It does not, or is a file.
    """
    try:
        what = "" if folder.is_dir() else "is not a folder" if folder.exists() else "does not exist"
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
    if what:
        raise UsageError(f"{str(folder)!r} {what}; name a run folder, such as one under stepprobe-runs/")
    return folder
