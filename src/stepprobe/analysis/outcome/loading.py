"""Which changes were made to the way from the dataset to the step.

Fewer tokens, shorter rows and smaller batches make loading cheaper, too: only what a row, a token and a slot cost tells
of a dataset that is faster, and only a setting tells of workers.
"""

from stepprobe.analysis.findings.loading import LOADING
from stepprobe.analysis.findings.view import SAMPLES_FEWEST
from stepprobe.analysis.ledger.process import NS_PER_MS, Process
from stepprobe.analysis.ledger.tokens import observed
from stepprobe.analysis.outcome.batching import amount_changed, longest
from stepprobe.analysis.outcome.gains import LESS, Gains
from stepprobe.analysis.outcome.sign import Sign, Undecided, cheaper, from_to, named, rarer, setting, turned_on
from stepprobe.analysis.statistics import difference
from stepprobe.model.finding import Finding, Remedy

OWN_LOADING = LOADING[1:]
"""What the training process loads itself, told apart from waiting for a worker."""
COUNTED = {"rows": "row", "real": "real token", "slots": "slot"}
HALF = 0.5


def workers(gains: Gains, *_: object) -> str:
    """There are more workers: their number is a setting."""
    before, after = (int(one.facts.get("loader_workers") or 0) for one in (gains.first, gains.second))
    return f"loader_workers {before} → {after}" if after > before else ""


def precomputed(gains: Gains, finding: Finding, remedy: Remedy) -> Sign:
    """As many workers load a row, a token and a slot for less, and the line that was named takes less."""
    if setting(gains, "loader_workers"):
        return ""
    names = OWN_LOADING if any(gains.before(name) for name in OWN_LOADING) else LOADING[:1]
    if not _decidedly(gains, names, ""):
        return ""
    said = f"{named(names)} {from_to(gains, names)}"
    if names == LOADING[:1] and gains.first.facts.get("loader_workers"):
        return Undecided(f"{said}: a step that trains for longer waits less for its workers")
    kinds = [kind for kind in COUNTED if _counts(gains, kind)]
    cheaper_by = [COUNTED[kind] for kind in kinds if _decidedly(gains, names, kind)]
    if not kinds and (amount_changed(gains) or not gains.first.facts.get("loader_batch_size")):
        return Undecided(f"{said}, and how many rows a step loads was not counted")
    if kinds and not cheaper_by:
        return ""  # a step loads less, each part of it at the same price
    if len(cheaper_by) < len(kinds):
        same = " and a ".join(COUNTED[kind] for kind in kinds if COUNTED[kind] not in cheaper_by)
        return Undecided(f"{said}, but a {same} costs what it did: less to load could have done it")
    if longest(gains):
        return Undecided(f"{said}, and rows that are padded less where they are loaded could have done it")
    if finding.where and finding.where in remedy.action and not _line_cheaper(gains, names, finding.where):
        return Undecided(f"{said}, but {finding.where} takes what it did")
    return said


def _counts(gains: Gains, kind: str) -> bool:
    both = (gains.first, gains.second)
    if kind == "rows":
        return all(one.counter("rows").value for one in both)
    return all(observed(one, kind) and not one.unmasked for one in both)


def _decidedly(gains: Gains, names: tuple[str, ...], kind: str) -> bool:
    """Return whether some accounts take decidedly less for one of a kind; for a step where no kind is given."""
    first, second = (
        one.ratio(
            lambda entry: sum(entry.accounts.get(name, 0) for name in names) / NS_PER_MS,
            lambda entry: entry.counters.get(kind, 0) if kind else entry.weight,
        )
        for one in (gains.first, gains.second)
    )
    value, _, high = difference(first, second)
    return high is not None and high < 0 and -value >= LESS * first.value


def _line_cheaper(gains: Gains, names: tuple[str, ...], line: str) -> bool:
    before, after = (_at_most(one, names, line) for one in (gains.first, gains.second))
    return after <= (1 - LESS) * before


def _at_most(process: Process, names: tuple[str, ...], line: str) -> float:
    """Return ms per step of a line; all of its accounts where too few samples fell there to tell."""
    lines = process.sampled(names)
    taken = sum(lines.values())
    share = lines.get(line, 0) / taken if taken >= SAMPLES_FEWEST else 1.0
    return process.account(*names).value * share


def persistent(gains: Gains, finding: Finding, remedy: Remedy) -> Sign:
    """Workers are kept, and starting the loader takes less."""
    return turned_on(gains, "loader_persistent") and cheaper(gains, finding, remedy)


def once(gains: Gains, finding: Finding, remedy: Remedy) -> Sign:
    """The loader is started less often; where that was not counted, it only takes less to start it."""
    said = cheaper(gains, finding, remedy)
    if not said:
        return ""
    if gains.first.counter("loader_starts").value:
        return rarer(gains, "starts of the loader", lambda one: one.counter("loader_starts").value, HALF)
    other = setting(gains, "loader_persistent", "loader_workers")
    return Undecided(f"{said}, and {other} could have done it") if other else said
