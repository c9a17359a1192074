"""Pairs of runs of which one change was planted, and what a comparison credits."""

import random

from stepprobe.analysis.ledger.job import read_job
from stepprobe.analysis.outcome.changes import seen
from stepprobe.analysis.outcome.gains import Gains
from stepprobe.model.finding import Finding, Remedy
from tests.fakes.records import CLEAN, METHODS, FakeProcess, evidence
from tests.unit.outcome.test_outcome import MODEL, judged, ms, promises

ROWS, STEPS, FIXED = 8, 80, 512
LENGTHS = [round(min(480, 30 + 60 * random.Random(number).expovariate(1))) for number in range(ROWS * STEPS)]


def batches(order, lengths=LENGTHS):
    """The rows of each step, in an order of chance or grouped by length."""
    mixed = random.Random(7).sample(lengths, len(lengths))
    if order == "grouped":
        mixed = sorted(mixed)
    found = [mixed[start : start + ROWS] for start in range(0, len(mixed), ROWS)]
    return random.Random(8).sample(found, len(found))


def counted(rows, width):
    tokens, squares = sum(rows), sum(one * one for one in rows)
    return {
        "slots": len(rows) * width,
        "real": tokens,
        "labelled": tokens,
        "rows": len(rows),
        "longest_slots": len(rows) * max(rows),
        "row_squares": squares,
        "mixed_squares": squares - tokens * tokens // len(rows),
        "forwards": 1,
        "backwards": 1,
    }


def training(seed, order="chance", padding="longest", *, lengths=True, more=None, counts=None, **facts):
    """Steps whose time follows their slots."""
    noise, fake, shapes = random.Random(seed), FakeProcess(**{**METHODS, **MODEL, **facts}), {}
    for rows in batches(order):
        width = FIXED if padding == "fixed" else max(rows)
        slots = len(rows) * width
        counters = counted(rows, width)
        if not lengths:
            counters = {name: counters[name] for name in ("slots", "real", "labelled", "forwards", "backwards")}
        shape = f"{len(rows)}×{width} masked"
        counters |= {"new_shapes": 1} if shape not in shapes else {}
        shapes[shape] = shapes.get(shape, 0) + 1
        spent = {"forward.mlp": 3 + slots * 0.004, "backward.mlp": 5 + slots * 0.008, "optimizer": 5, **(more or {})}
        factor = noise.gauss(1, 0.01)
        fake.step({name: ms * factor for name, ms in spent.items()}, {**counters, **(counts or {})})
    return fake.sites(shapes=list(shapes.items())).end()


def steps(seed, accounts=None, counts=None, *, n=80, sites=None, **facts):
    """Steps that are all alike, 4 rows of 512 slots in each unless something else is counted."""
    noise, fake = random.Random(seed), FakeProcess(**{**METHODS, **MODEL, **facts})
    usual = {"slots": 2048, "real": 2048, "labelled": 2048, "rows": 4, "forwards": 1, "backwards": 1}
    for _ in range(n):
        factor = noise.gauss(1, 0.01)
        booked = {name: ms * factor for name, ms in {**CLEAN, **(accounts or {})}.items() if ms}
        fake.step(booked, {**usual, **(counts or {})})
    return fake.sites(**(sites or {})).end()


def credited(before, after):
    return sorted(name for name in judged(before, after)[2] if " + " not in name)


def verdicts(before, after):
    """The last column of the table, by what was proposed."""
    return {row[0]: row[5] for row in promises(judged(before, after)[0])}


def gains(before, after):

    return Gains(read_job(evidence(before)).main, read_job(evidence(after)).main, calm=False)


def asked(name, before, after, action=""):

    finding = Finding(kind=name, title="", where="", cost=ms(10, 9, 11), share=0.1)
    return seen(gains(before, after), finding, Remedy(name=name, action=action, predicted=None))
