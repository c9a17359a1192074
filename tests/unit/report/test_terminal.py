import re

import msgspec
import pytest

from stepprobe.report import html, terminal
from stepprobe.report.terminal_tables import bar
from tests.fakes import reports

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
COPIED = ("stepprobe ", "stepprobe-runs/", "/", "transformers/")
"""Beginnings of lines that are to be copied, and so are never wrapped."""


@pytest.mark.parametrize(
    ("part", "cells", "drawn"),
    [
        (0.0, 8, ""),
        (1.0, 4, "████"),
        (2.0, 4, "████"),
        (0.5, 4, "██"),
        (1 / 32, 4, "▏"),
        (1e-9, 4, "▏"),
        (0.55, 5, "██▊"),
        (0.5, 0, ""),
    ],
)
def test_bar(part, cells, drawn):
    assert bar(part, cells) == drawn


def test_longer_is_never_drawn_shorter():
    drawn = [bar(part / 400, 5) for part in range(401)]
    eighths = [8 * text.count("█") + sum(" ▏▎▍▌▋▊▉".index(mark) for mark in text if mark != "█") for text in drawn]
    assert eighths == sorted(eighths)
    assert len(set(eighths)) == 41


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 140, 220])
@pytest.mark.parametrize("name", sorted(reports.REPORTS.keys() - {"hostile"}))
def test_lines_fit(name, width):
    written = terminal.render(reports.REPORTS[name](), width=width)
    wide = [line for line in written.splitlines() if len(line) > max(width, terminal.NARROWEST)]
    assert [line for line in wide if not line.strip().startswith(COPIED)] == []


@pytest.mark.parametrize("width", [80, 140])
def test_decimal_points_of_the_ledger_align(width):
    written = terminal.render(reports.data_bound(), width=width)
    rows = list(re.finditer(r"^  \w.*?  +(\d+\.\d) +(\d+\.\d)\b", written.split("Findings")[0], re.M))
    assert len(rows) == 20
    for column in (1, 2):
        assert len({row.start(column) + row[column].index(".") - row.start() for row in rows}) == 1


def test_the_ms_column_sums_to_the_wall():
    written = terminal.render(reports.data_bound()).split("Findings")[0]
    *rows, wall = (float(ms) for ms in re.findall(r"^  \S.*?  +(\d+\.\d) +\d+\.\d", written, re.M))
    assert wall == 441.0
    assert sum(rows) == pytest.approx(wall, abs=0.05 * len(rows))


def test_color_only_adds_escape_codes(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")  # the caller decides, not the environment of this process
    monkeypatch.setenv("COLUMNS", "31")
    for build in reports.REPORTS.values():
        plain, colored = terminal.render(build()), terminal.render(build(), color=True)
        assert "\x1b" not in plain
        assert "\x1b[" in colored
        bare = "\n".join(line.rstrip() for line in ESCAPE.sub("", colored).splitlines())
        assert bare.strip() == plain.strip()


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_ledger_never_cuts_the_line_of_a_place(width):
    report = reports.data_bound()
    rows = terminal.render(report, width=width).split("Findings")[0]
    assert [line for line in (":88", ":71", ":143", ":412", ":841") if not re.search(rf"{line}\b", rows)] == []
    assert "… …" not in rows


def test_a_place_that_is_no_line_does_not_read_as_a_count():
    """“1 layers”: the number of the finding and the first word of its place."""
    report = reports.data_bound()
    layers = msgspec.structs.replace(report.findings[0], where="layers 0–2 (GPT2Attention)", title="A mask costs.")
    rows = terminal.render(msgspec.structs.replace(report, findings=(layers,)), width=100).split("Findings")[0]
    assert "[1] A mask costs." in rows
    assert "layers" not in rows


def test_a_comparison_says_of_what_its_percentages_are():
    report = msgspec.structs.replace(reports.data_bound(), command="compare")
    said = f"Percentages are of 441.0 ms: {report.figures['step.wall'].method}."
    assert said in terminal.render(report, width=200)
    assert said in html.render(report).replace("\u00a0", " ").replace("&nbsp;", " ")
    assert "Percentages" not in terminal.render(reports.data_bound(), width=200)


def test_a_table_that_cannot_fit_stands_in_blocks():
    narrow = terminal.render(reports.ranks(), width=40)
    assert re.search(r"^  rank  host +wall ms$", narrow, re.M)
    assert re.search(r"^  rank  sync ms +others  off CPU$", narrow, re.M)
    assert narrow.count("node1.cluster.example") == 4
    assert "\n\n\n" not in narrow


def test_a_verdict_that_is_not_ok_is_said():
    assert "verdict: not measured" in terminal.render(reports.not_measured())
    assert "verdict" not in terminal.render(reports.clean())


def test_the_reason_stands_beside_the_verdict():
    slower = msgspec.structs.replace(reports.undecided(), verdict="fail", reason="the whole interval lies above zero")
    assert "verdict: slower: the whole interval lies above zero" in terminal.render(slower)
    warned = msgspec.structs.replace(reports.data_bound(), reason="its steps become longer")
    assert "verdict: warn: its steps become longer" in terminal.render(warned)
