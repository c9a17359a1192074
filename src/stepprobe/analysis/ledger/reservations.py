"""What a report has to say against itself: all that was cut, sampled, summed, divided, lost or not seen."""

from collections.abc import Iterator, Sequence

from stepprobe.analysis.ledger.figures import attach_figures
from stepprobe.analysis.ledger.job import Job
from stepprobe.analysis.ledger.process import NS_PER_MS, Process
from stepprobe.analysis.statistics import BLOCKS_FEWEST, drift
from stepprobe.analysis.wording import counted, ends
from stepprobe.model.accounts import BACKWARD, UNDIVIDED

SELF_SHARE = 0.01
"""Own cost, over the wall time, above which the instrument is part of what it measures."""

STARVED = 0.25
"""Part of the samples due below which the sampler was starved; it changes its interval, so the part is rough."""


ASIDE = {
    "profiler": "under the profiler or right behind it",
    "experiments": "in an experiment",
    "parts": "before it was known which parts of the model are called in the place of the whole",
}
"""Why steps are set aside, in words."""


def run_notes(job: Job, status: str) -> tuple[str, ...]:
    """Return every reservation about a run."""
    notes = list(job.notes)
    if status != "finished":
        notes.append(f"the script did not end well ({status}); the report is about the steps it finished")
    world = job.main.records.header.world_size
    if world > len(job.ranks):
        notes.append(f"{len(job.ranks)} of {world} ranks left steps to read; the others are not in the report")
    notes += _exchanging(job.ranks)
    for process in job.ranks:
        prefix = f"rank {process.rank}: " if len(job.ranks) > 1 else ""
        notes += [prefix + note for note in _process_notes(process)]
    return tuple(notes)


def unsteady(process: Process) -> str:
    """Return why the means of a process should not be taken at face value; empty where they may."""
    if process.measured < 2 * BLOCKS_FEWEST:
        return f"only {counted(process.measured, 'steady step')}: too few for an interval"
    trend = drift([step.wall_ns / NS_PER_MS for step in process.steady])
    if trend.matters:
        word = "longer" if trend.change > 0 else "shorter"
        return f"the run is not stationary: its steps become {abs(trend.change):.1%} {word} from beginning to end"
    share = sum(entry.self_ns for entry in process.entries) / sum(entry.wall_ns for entry in process.entries)
    if share > SELF_SHARE:
        return f"observing took {share:.1%} of the step, more than {SELF_SHARE:.0%}"
    return ""


def _process_notes(process: Process) -> Iterator[str]:
    yield _observing(process)
    if process.unmasked:
        yield "padding could not be looked for: neither the model nor the loader's batch has an attention mask"
    yield from _averaged(process)
    yield from _divided(process)
    yield from _sampled(process)
    yield from _ending(process)
    if reason := unsteady(process):
        yield reason
    yield from process.records.notes


def _observing(process: Process) -> str:
    """Say what the instrument cost, and how much a step in detail is distorted against one without."""
    figures, _ = attach_figures(process)
    cost = figures["attach.self_cost"].value
    said = f"observing took {cost:.2f} ms of each step ({cost / process.wall.value:.1%})"
    counted = figures.get("attach.distortion")
    if counted is None:  # what detail costs could not be compared: that has a note of its own
        return said
    said += f"; by its own count, a step observed in detail takes {_more(counted.value)} than one without"
    timed = figures.get("attach.distortion_cpu")
    if timed is None or timed.low is None or timed.high is None or timed.low <= counted.value <= timed.high:
        return said
    return (
        f"{said}; by CPU time it takes {_more(timed.value)} (95 %: {ends(timed.low, timed.high)} ms): the two disagree"
    )


def _more(ms: float) -> str:
    """Return ``1.29 ms more`` or ``0.10 ms less``."""
    return f"{abs(ms):.2f} ms {'less' if round(ms, 2) < 0 else 'more'}"


def _averaged(process: Process) -> Iterator[str]:
    every = sum(one.wall_ns for one in process.everything)
    if process.warmup:
        cut = sum(step.wall_ns for step in process.finished[: process.warmup])
        first = "first step is" if process.warmup == 1 else f"first {process.warmup} steps are"
        yield f"warm-up: the {first} not in the means ({cut / every:.1%} of all wall time)"
        if process.warmup >= len(process.finished) // 2:
            yield "the warm-up reaches half of the run: it may not have become steady at all; observe more steps"
    yield from _set_aside(process)
    if process.open_steps:
        yield f"{process.open_steps} last step was ended by the end of the script: counted, not in the means"
    summed = sum(summary.count for summary in process.summaries)
    if summed:
        yield f"{process.count - _in_sums(process)} steps are kept in full, {_in_sums(process)} only in sums"
    dropped = _in_sums(process) - summed
    if dropped:
        yield f"{dropped} steps are in sums that reach into the warm-up: not in the means"


def _set_aside(process: Process) -> Iterator[str]:
    every = sum(one.wall_ns for one in process.everything)
    for kind, why in ASIDE.items():
        walls = [step.wall_ns for step in process.aside if step.aside == kind]
        if walls:
            ran = "1 step ran" if len(walls) == 1 else f"{len(walls)} steps ran"
            yield f"{ran} {why}, so not in the means: {sum(walls) / every:.1%} of all wall time"


def _in_sums(process: Process) -> int:
    return sum(summary.count for summary in process.records.summaries)


def _divided(process: Process) -> Iterator[str]:
    for whole in UNDIVIDED:
        spent = sum(one.accounts.get(whole, (0, 0))[0] for one in process.observed)
        if not spent:
            continue
        share = spent / sum(entry.wall_ns for entry in process.entries)
        if not process.shares[whole]:
            yield f"no step shows what the {whole} pass is made of: {share:.1%} of the step is booked as {whole}.other"
        elif process.borrowed_detail:
            yield f"{whole}: {share:.1%} of the step is divided by the shares of warm-up steps, the only detailed ones"
        else:
            yield (
                f"{whole}: {share:.1%} of the step is divided by the shares of the {process.detailed} "
                f"of {process.measured} steps observed in detail"
            )


def _exchanging(ranks: Sequence[Process]) -> Iterator[str]:
    """Say that a part's backward may hold more than the part, where gradients are exchanged before backward ends."""
    if ranks[0].records.header.world_size == 1 or not any(rank.account(*BACKWARD).value for rank in ranks):
        return
    said = (
        "under DDP, backward ends with waiting for the other ranks' gradients: "
        "the part that comes last in it (backward · embed, mostly) holds that beside its own work"
    )
    if all(rank.facts.get("device") == "cpu" for rank in ranks):
        off = [rank.mean(lambda entry: sum(entry.off_cpu.get(name, 0) for name in BACKWARD)).value for rank in ranks]
        least, most = (f"{ns / NS_PER_MS:.1f}" for ns in (min(off), max(off)))
        span = f"{least} ms" if least == most else f"{least} to {most} ms, by rank,"
        said += f"; {span} of a step's backward were off the CPU: that waiting, or a core that other work had"
    yield said


def _sampled(process: Process) -> Iterator[str]:
    sites = process.records.sites
    if sites is None:
        yield "no table of call sites was written: no lines, no batch shapes, no synchronising calls"
        return
    if process.sited < process.count:
        yield f"lines, shapes and synchronising calls are those of the first {process.sited} of {process.count} steps"
    untimed = sum(calls - timed for _, _, calls, timed, _ in sites.syncs)
    if untimed:
        calls = sum(calls for _, _, calls, _, _ in sites.syncs)
        yield f"{untimed} of {calls} synchronising calls ({untimed / calls:.0%}) were counted but not timed"
    interval, taken = sites.sampler.get("interval_ns", 0), sites.sampler.get("taken", 0)
    watched = sum(one.wall_ns for one in process.everything) - sum(step.wall_ns for step in process.aside)
    seen = watched * process.sited / process.count
    due = seen / interval if interval else 0
    if taken < STARVED * due:
        yield f"the sampler took {taken} of {due:.0f} samples: something held the interpreter, so lines may be missing"


def _ending(process: Process) -> Iterator[str]:
    if process.records.ended is None:
        yield "the process was killed, or is still running: its last steps may be missing"
    if process.records.cut_bytes:
        yield f"the last line was never finished: {process.records.cut_bytes} bytes dropped"
