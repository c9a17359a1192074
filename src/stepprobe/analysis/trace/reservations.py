"""What of the traces could not be used, and what that means for the report. Never silent."""

from collections import Counter
from collections.abc import Iterator, Sequence

from stepprobe.analysis.trace.figures import NS_PER_MS
from stepprobe.analysis.trace.ledgers import together
from stepprobe.analysis.trace.ranks import Ranks, repeated
from stepprobe.analysis.trace.summary import TraceSummary


def notes(summaries: Sequence[TraceSummary], ranks: Ranks | None, *, foreign: bool = True) -> tuple[str, ...]:
    """Return the notes of a report; what several traces share is said once.

    Args:
        summaries: The traces.
        ranks: Their comparison, where there are several.
        foreign: Somebody else recorded them, so what they could have held beside is worth a note.
    """
    said = Counter(note for one in summaries for note in _trace_notes(one, foreign=foreign))
    found = [note if len(summaries) == 1 or count == 1 else f"{count} traces: {note}" for note, count in said.items()]
    return (*found, *_rank_notes(summaries, ranks))


def _trace_notes(one: TraceSummary, *, foreign: bool) -> Iterator[str]:
    for loss in one.losses:
        yield f"{loss.count:,} {loss.what}, {_percent(loss.count, loss.of)} of {loss.of:,}: left out"
    yield from one.notes
    if one.layout == "whole":
        yield "the file is not laid out as Kineto writes it, so it was decoded whole: memory grows with the file"
    if one.rank is None and foreign:
        yield "the trace states no rank"
    if one.kernels + one.copies == 0:
        yield from _no_device(one) if foreign else ()
        return
    yield from _join_notes(one)
    yield from _step_notes(one)
    if one.by_module is None and foreign:
        yield "no module rows (with_stack and with_modules were off): no table by module"


def _no_device(one: TraceSummary) -> Iterator[str]:
    yield (
        "no device rows: either nothing ran on a device, or the profiler could not see it (was ProfilerActivity.CUDA "
        "on, and may this user read CUPTI counters?). No share of device time can be given"
    )
    if one.marked and any(not wall for wall in one.step_walls_ns):
        yield "some steps have no length"


def _join_notes(one: TraceSummary) -> Iterator[str]:
    summed = one.naive.device_ns
    for outcome in ("carried over", "launched outside any operation", "no launch row, unexplained"):
        count, spent = one.outcomes[outcome]
        if count:
            yield f"{count:,} device rows {outcome}: {_percent(spent, summed)} of device time"
    if one.before_launch:
        yield f"{one.before_launch:,} device rows start before the call that launched them: the clocks disagree"
    launched = sum(one.outcomes[name][0] for name in ("linked to an operation", "launched outside any operation"))
    if not launched:
        yield "no launch rows: idle time cannot be given a cause and stands under “work queued”"
    if not one.naive.operations:
        yield "no operation rows: kernels cannot be linked to operations, and nothing can be counted twice"
    if one.naive.differ:
        yield f"External id names another operation than the launch for {one.naive.differ:,} device rows: not used"


def _step_notes(one: TraceSummary) -> Iterator[str]:
    count, spent = one.outside_steps
    if count and one.marked:
        share = _percent(spent, one.naive.device_ns)
        yield f"{count:,} device rows launched outside any step: {share} of device time"
    ledger = together(one.devices)
    steps, tails = len(ledger), ledger.column("tail")
    late = int((tails < 0).sum())
    if late:
        most = -int(tails.min()) / NS_PER_MS
        yield f"in {late} of {steps} steps the device runs past the host's end, up to {most:,.1f} ms"
    empty = int((ledger.column("launched") == 0).sum())
    if empty:
        yield f"{empty} of {steps} steps launched no device work"
    gap = one.window_ns - sum(one.step_walls_ns)
    if one.marked and gap > 0.01 * one.window_ns:
        yield f"{_percent(gap, one.window_ns)} of the time from the first to the last step lies in no step"


def _rank_notes(summaries: Sequence[TraceSummary], ranks: Ranks | None) -> Iterator[str]:
    if doubled := repeated(summaries):
        yield f"rank {', '.join(map(str, doubled))} appears in more than one trace: are they of one job?"
    stated = {one.world_size for one in summaries if one.world_size}
    if stated and max(stated) > len(summaries):
        yield f"the job had {max(stated)} ranks, {len(summaries)} are here: a straggler among the others is not seen"
    if ranks is not None and ranks.rows and ranks.unmatched:
        yield (
            f"{ranks.unmatched:,} of {ranks.rows:,} communication rows have no partner on every other rank: not in the "
            "comparison of ranks"
        )
    if ranks is not None and ranks.meetings:
        yield "collectives are matched by name and order, as if every rank took part in each"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.2g} %" if whole else "0 %"
