"""Thousands of damaged traces: each gives a report that accounts for every event, or an error, never a silent zero.

``STEPPROBE_MUTATIONS`` sets how many (default 1000).
"""

import os
import random

import pytest

from stepprobe.analysis.trace.known import known_trace
from stepprobe.analysis.trace.report import trace_report
from stepprobe.errors import NotObserved
from stepprobe.instruments.trace.reader import read_bytes
from stepprobe.model.evidence import Evidence
from stepprobe.model.trace import encode_columns
from tests.fakes.traces import training

MUTATIONS = int(os.environ.get("STEPPROBE_MUTATIONS", "1000"))
VALUES = (
    b"-1",
    b"0",
    b"1e308",
    b"1e999",
    b"9223372036854775807",
    b"99999999999999999999",
    b'"x"',
    b"null",
    b"true",
    b"[]",
)
VALUES += (b"{}", b'"\\u0000"', b"0.0001", b"-5e18", b'"7"', b"NaN")


def mutated(text, choose):
    for _ in range(choose.randint(1, 3)):
        place = choose.randrange(len(text))
        other = choose.randrange(len(text))
        match choose.randrange(7):
            case 0:
                text = text[:place] + bytes([choose.randrange(256)]) + text[place + 1 :]
            case 1:
                text = text[:place] + text[place + choose.randint(1, 40) :]
            case 2:
                text = text[:place]
            case 3:
                text = text[:place] + text[other : other + choose.randint(1, 200)] + text[place:]
            case 4 | 5:
                colon = text.find(b": ", place)
                end = min((at for at in (text.find(b",", colon), text.find(b"\n", colon)) if at > 0), default=-1)
                if colon > 0 and end > 0:
                    text = text[: colon + 2] + choose.choice(VALUES) + text[end:]
            case _:
                text = (
                    text[:place]
                    + choose.choice([b"\n  },\n  {", b"]", b"}", b'"', b"\\", b"\x00", b"\xff"])
                    + text[place:]
                )
        if not text:
            return text
    return text


def report(columns):
    files = {"a.columns": b"".join(encode_columns(columns))}
    return trace_report(Evidence(probe="trace", command="trace", subject="a", environment={}, files=files))


@pytest.mark.parametrize("seed", range(4))
def test_damage_is_reported_or_refused(seed):
    choose = random.Random(seed)
    sources = [known_trace(), training(1, 3).text(), training(1).compact(), training(1).packed()]
    whole = report(read_bytes("a.json", sources[seed]))
    refused = 0
    for number in range(MUTATIONS // 4):
        text = mutated(sources[seed], choose)
        try:
            columns = read_bytes("a.json", text, choose.choice([64, 700, 1 << 20]))
        except NotObserved:
            refused += 1
            continue
        header = columns.header
        untimed = sum(loss.count for loss in header.losses if loss.what.startswith("rows without"))
        assert header.events == header.rows + sum(header.skipped.values()) + untimed, number
        found = report(columns)
        said = bool(found.notes) and found.verdict in ("ok", "warn")
        device = found.figures["trace.kernels"].value
        if not device and "trace.busy_share" not in found.figures:
            assert found.verdict == "warn", number
            assert any("no device rows" in note for note in found.notes), number
        if "trace.busy_share" in found.figures:
            busy, idle = (found.figures[f"trace.{name}_share"].value for name in ("busy", "idle"))
            assert busy + idle == pytest.approx(1) or not found.figures["trace.step_wall"].value, number
            assert -1e-12 <= idle <= 1 + 1e-12, number
        if header.events < 14 and header.events < whole.figures["trace.events"].value:
            assert said, number
            assert header.losses or text != sources[seed], number
    assert refused < MUTATIONS // 4
