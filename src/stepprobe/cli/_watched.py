"""What a command that ran the user's script tells afterwards, and how it ends."""

import os
import sys
from typing import TYPE_CHECKING

from stepprobe.cli._console import show, shown_path, tell

if TYPE_CHECKING:
    from stepprobe.session import Result


def end_as(result: "Result", *, as_json: bool) -> int:
    """Print the report and where it is kept; end as the script ended, or return the exit code to leave with."""
    from stepprobe.launch.script import mirror_exit

    try:
        wanted = _tell(result, as_json=as_json)
    except OSError:  # nobody reads the report, or its disk is full; how the script ended still counts
        wanted = 0
    if result.living:  # the job goes on in the background: that nothing could be observed is not known yet
        wanted = 0
    return mirror_exit(result.status) or wanted


def _tell(result: "Result", *, as_json: bool) -> int:
    try:
        wanted = show(result.report, as_json=as_json, stream=sys.stderr)
    except OSError:
        raise
    except Exception as error:  # a defect of a renderer must not cost the script's exit code
        tell(f"the report could not be drawn: {type(error).__name__}: {error}; please report this")
        wanted = 1
    for problem in result.problems:
        tell(problem)
    page = result.folder / "report.html"
    if not result.folder.is_dir():
        return wanted
    tell(f"kept; open {shown_path(page)}" if os.path.isfile(page) else f"kept in {shown_path(result.folder)}")
    return wanted
