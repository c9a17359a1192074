"""What costs time on the device, and what would at most be gained."""

from collections.abc import Iterator, Mapping, Sequence

from stepprobe.analysis.trace.figures import NS_PER_MS
from stepprobe.analysis.trace.ranks import Ranks
from stepprobe.analysis.trace.summary import TraceSummary
from stepprobe.model.estimate import Estimate, exact
from stepprobe.model.finding import Finding, Remedy

WORTH = 0.02
"""Part of the step below which nothing is said."""

_IDLE = {
    "idle.data": (
        "device.data",
        "the device stands still while the host waits for the DataLoader",
        "load ahead: more num_workers, pin_memory, persistent_workers, and tokenise before training",
    ),
    "idle.sync": (
        "device.sync",
        "the device stands still while the host waits in a synchronisation",
        "take .item(), .cpu() and print(loss) out of the step, or do them every N steps",
    ),
    "idle.launch": (
        "device.launch",
        "the device has run dry while the host is still launching",
        "launch less: torch.compile, CUDA graphs, fused optimizer, larger batches",
    ),
    "idle.python": (
        "device.python",
        "the device stands still while the host runs Python outside any operation",
        "find it with stepprobe run (it names file and line), and move it out of the step",
    ),
    "idle.queued": (
        "device.queued",
        "work is queued, but the device does not run it: it waits for another stream, another rank, or to start",
        "look at the collectives and events before these gaps; CUDA graphs shorten the pauses between kernels",
    ),
}


def find(
    summaries: Sequence[TraceSummary], figures: Mapping[str, Estimate], ranks: Ranks | None
) -> tuple[Finding, ...]:
    """Return the findings, dearest first."""
    if "trace.busy_share" not in figures:
        return ()
    found = [*_idle(figures), *_communication(figures), *_straggler(summaries, figures, ranks)]
    return tuple(sorted(found, key=lambda one: -one.cost.value))


def _idle(figures: Mapping[str, Estimate]) -> Iterator[Finding]:
    for account, (kind, title, action) in _IDLE.items():
        name = f"trace.device.{account}"
        yield from _finding(kind, f"{title[0].upper()}{title[1:]}", figures, name, (account, action))


def _communication(figures: Mapping[str, Estimate]) -> Iterator[Finding]:
    title = "Communication runs bare: no computation beside it"
    action = "overlap it: larger gradient buckets later, more accumulation, or a faster link; see which rank comes last"
    yield from _finding("device.communication", title, figures, "trace.device.communication", ("communication", action))


def _finding(
    kind: str, title: str, figures: Mapping[str, Estimate], name: str, place: tuple[str, str]
) -> Iterator[Finding]:
    cost, wall = figures[name], figures["trace.step_wall"].value
    if not wall or cost.value / wall < WORTH:
        return
    account, action = place
    limit = cost.value if cost.high is None else max(cost.value, cost.high)
    ceiling = Estimate(
        value=limit / 2, unit="ms", low=0.0, high=limit, n=cost.n, method="between 0 and all of it", bound=True
    )
    yield Finding(
        kind=kind,
        title=title,
        where="",
        cost=cost,
        share=cost.value / wall,
        accounts=(account,),
        remedies=(Remedy(action=action, predicted=ceiling),),
        cites=(name,),
    )


def _straggler(
    summaries: Sequence[TraceSummary], figures: Mapping[str, Estimate], ranks: Ranks | None
) -> Iterator[Finding]:
    if ranks is None or not ranks.meetings or "trace.rank_wait" not in figures:
        return
    wall, waits = figures["trace.step_wall"].value, [ranks.waited(place) for place in range(len(summaries))]
    slow = int(figures["trace.straggler"].value)
    steps = max(1, len(summaries[slow].step_walls_ns))
    others = (sum(waits) - waits[slow]) / max(1, len(waits) - 1) / steps / NS_PER_MS
    cost = exact(
        others - waits[slow] / steps / NS_PER_MS, "ms", len(ranks.meetings), "what the others wait more than it"
    )
    if cost.value / wall < WORTH:
        return
    yield Finding(
        kind="rank.straggler",
        title=f"{ranks.labels[slow][:1].upper()}{ranks.labels[slow][1:]} comes last to {ranks.last(slow)} of "
        f"{len(ranks.meetings)} collectives and waits least; the others wait for it",
        where=summaries[slow].file,
        cost=cost,
        share=cost.value / wall,
        accounts=("communication",),
        cites=("trace.rank_wait", "trace.straggler"),
    )
