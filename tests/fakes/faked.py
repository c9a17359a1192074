"""stepprobe with a probe that counts lines and renderers of one line each: fast, and right by inspection.

A test calls ``installed(monkeypatch)``; a test of processes runs it as a file in place of ``python -m stepprobe``.
"""

import os
import sys
import time
from types import ModuleType

import msgspec
import pytest

import stepprobe.analysis
import stepprobe.report  # noqa: F401 - the packages in which modules are replaced
from stepprobe import probes
from stepprobe.analysis.outcome.outcome import Outcome
from stepprobe.errors import EvidenceError, NotObserved
from stepprobe.model.estimate import exact
from stepprobe.model.report import Report


class CountingProbe:
    """Every line of a ``steps-*.jsonl`` is one step and holds its wall time in ms."""

    SUMMARY = "how many lines"

    def measure(self, subject):
        return subject.observe()

    def derive(self, evidence):
        lines = [line for name, data in evidence.files.items() if name.startswith("steps-") for line in data.split()]
        if not lines:
            raise NotObserved("no line")
        if b"damaged" in lines:
            raise EvidenceError("steps: damaged line")
        return Report(
            command="run",
            verdict="ok",
            title=evidence.subject,
            headline=f"{len(lines)} steps, {evidence.status}",
            figures={
                "step.count": exact(len(lines), "count", len(lines)),
                "step.wall": exact(sum(map(float, lines)) / len(lines), "ms", len(lines)),
            },
            environment=dict(evidence.environment),
        )


RENDERERS = {
    "json": lambda report: msgspec.json.encode(report).decode() + "\n",
    "html": lambda report: f"<p>{report.verdict}</p>\n",
    "markdown": lambda report: f"# {report.headline}\n",
    "terminal": lambda report, *, width=80, color=False: f"{report.headline} width={width} color={color}\n",
}


def examine(before, after, again):
    headline = f"{before.status} {after.status}"
    report = Report(command="compare", verdict="undecided", title="two", headline=headline, figures={})
    return report, Outcome()


def installed(patch):
    """Put the stand-ins where the session and the command line look for the real ones, through pytest's monkeypatch."""
    patch.setattr(probes, "load", lambda name: CountingProbe())
    stand_ins = {f"stepprobe.report.{name}": {"render": render} for name, render in RENDERERS.items()}
    stand_ins["stepprobe.report.json"]["schema"] = lambda: "{}\n"
    stand_ins["stepprobe.analysis.outcome.comparison"] = {"examine": examine}
    for name, contents in stand_ins.items():
        module = ModuleType(name)
        vars(module).update(contents)
        package, _, short = name.rpartition(".")
        patch.setitem(sys.modules, name, module)
        patch.setattr(sys.modules[package], short, module, raising=False)


def kill_late(pid, number, kill=os.kill):
    """Send a signal so late that it cannot merge with one that the terminal has sent already."""
    time.sleep(0.1)
    kill(pid, number)


if __name__ == "__main__":
    os.kill = kill_late
    installed(pytest.MonkeyPatch())
    from stepprobe.cli import main

    raise SystemExit(main())
