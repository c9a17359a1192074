"""``stepprobe trace FILE…``: profiler traces from anywhere."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepprobe.cli._console import show, shown_path, tell
from stepprobe.cli._packages import need_numpy
from stepprobe.cli._parser import positive
from stepprobe.errors import UsageError

if TYPE_CHECKING:
    from stepprobe.instruments.trace.files import TraceFiles
    from stepprobe.model.report import Report, Table

SUMMARY = "read profiler traces and say where the device's time in each step went"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = "Several files (or a folder) are the ranks of one job: stragglers and waits are compared."
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="Kineto trace: .json, .json.gz, .json.zst")
    parser.add_argument("--top", type=positive, default=15, metavar="N", help="rows of each table (default: 15)")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the kernel table: .json as JSON, else CSV")
    parser.add_argument("--perfetto", type=Path, metavar="OUT", help="write the trace with our accounts as a track")
    parser.add_argument("--out", type=Path, default=Path("stepprobe-runs"), metavar="DIR", help="where run folders go")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Read, report, and write what was asked for.

    Raises:
        UsageError: A file cannot be read or written.
        NotObserved: No file holds a trace.
    """
    from stepprobe import session
    from stepprobe.instruments.trace.export import require_writable, write_table

    if arguments.perfetto is not None and (len(arguments.files) > 1 or arguments.files[0].is_dir()):
        raise UsageError("--perfetto writes one trace: name one file")
    for path in (arguments.table, arguments.perfetto):
        if path is not None:
            require_writable(path)
    subject = _subject(arguments.files, arguments.top)
    argv = ("stepprobe", "trace", *map(str, arguments.files))
    result = session.ask(subject, "trace", out=arguments.out, name=subject.paths[0].name, argv=argv)
    wanted = show(result.report, as_json=arguments.json, stream=sys.stdout)
    for problem in result.problems:
        tell(problem)
    if arguments.table is not None:
        write_table(_by_name(result.report), arguments.table)
        tell(f"table written to {shown_path(arguments.table)}")
    if arguments.perfetto is not None:
        session.trace_track(result.folder, arguments.files, arguments.perfetto)
        tell(f"trace with our accounts written to {shown_path(arguments.perfetto)}; open it in ui.perfetto.dev")
    tell(f"kept, with report.html, in {shown_path(result.folder)}")
    return wanted


def _subject(paths: Sequence[Path], top: int) -> "TraceFiles":
    """Return the traces that are named, unread.

    Raises:
        UsageError: One of them does not exist, or numpy is missing.
    """
    from stepprobe.analysis.trace.summary import encode_summaries
    from stepprobe.instruments.environment import environment
    from stepprobe.instruments.trace.files import TraceFiles, find
    from stepprobe.model.evidence import Evidence

    found = find(paths)
    need_numpy("stepprobe trace")
    planned = Evidence(
        probe="trace",
        command="trace",
        subject=found[0].name if len(found) == 1 else f"{found[0].name} and {len(found) - 1} more",
        environment=environment(),
        files={},
        options={"top": str(top)},
    )
    return TraceFiles(paths=tuple(found), planned=planned, summarise=encode_summaries)


def _by_name(report: "Report") -> "Table":
    for table in report.tables:
        if table.name in ("kernels", "host"):
            return table
    raise UsageError("the trace has no rows for a table, so none was written")
