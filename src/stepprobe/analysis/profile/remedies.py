"""Every change that a profile can speak of, and what it would gain in the step that was observed."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from stepprobe.analysis.lengths import chunks
from stepprobe.analysis.profile import batches
from stepprobe.analysis.profile.batches import Batches
from stepprobe.analysis.profile.forecast import Forecast, Span, saving, saving_up_to
from stepprobe.analysis.profile.repeated import Middle, paired
from stepprobe.analysis.profile.rows import Said, batch_size, bucketing, longest, packing, padding_free
from stepprobe.analysis.profile.scaling import Work
from stepprobe.analysis.profile.situation import WAITING, Situation, sliding_window
from stepprobe.analysis.profile.view import Seen
from stepprobe.analysis.statistics import median
from stepprobe.model.estimate import Estimate

LOADING = ("data.wait", "data.fetch", "data.collate")
WORKERS_FEWEST = 2
"""One worker loads while the other hands over."""
HANDED_OVER = 0.1
"""Part of the loading that stays at most where workers keep up: batches cross from process to process, unevenly.

On a busy machine it is one worker's part: they wait for cores as the training does."""
AROUND = ("forward.other", "backward.other", "unattributed", "gc")
"""Where checkpointing's own work lies: random states, packed tensors, frames that refer to each other."""
CHECKPOINTED = (0.2, 0.34)
"""Part of a checkpointed micro-step that is computed twice: one forward of four, of three where weights are frozen."""


def chunked_loss(now: Situation) -> Said:
    """The loss, some rows at a time."""
    if now.loss is None or not now.loss.chunks:
        return "the loss was not measured in chunks"
    usable = [one for one in now.loss.chunks if not one.differs]
    best = now.loss.best or min(usable, key=lambda one: one.time.value, default=None)
    if best is None:
        return "no chunk gives the loss of the script"
    share, times, whole = now.loss_share, best.time, now.loss.at_once.bytes
    part = Span(
        1 + share.value * (times.value - 1),
        math.hypot(share.known * (times.value - 1), share.value * (times.half or 0.0)),
    )
    held = f", {best.bytes / whole:.1%} of its bytes" if best.bytes is not None and whole else ""
    return Forecast(
        "chunked_loss",
        f"compute the loss in chunks of {best.rows:,} rows",
        saving(
            now.step.shrunk(part),
            now.n,
            f"{now.loss_in_words}; in chunks it takes × {times.value:.2f}{held}",
        ),
    )


def labelled_rows(now: Situation) -> Said:
    """Output layer and loss for rows with a label alone."""
    labelled = now.seen.answers.harness.labelled_share
    if now.loss is None or now.batches is None:
        return "the loss was not measured alone"
    if labelled is None:
        return "labelled tokens were not counted"
    part = labelled * now.batches.tokens / now.batches.work.slots
    if part > 0.98:
        return "almost every slot has a label"
    made = chunks.fit(now.loss.tokens, [(one.rows, one.ms) for one in now.loss.chunks])
    stays = made.fixed / made.time(now.loss.tokens, now.loss.tokens) if made else 0.0
    share = now.loss_share
    left = stays + (1 - stays) * part
    found = Span(1 - share.value * (1 - left), math.hypot(share.known * (1 - left), now.fit.widening * share.value))
    return Forecast(
        "labelled_rows",
        "compute output layer and loss for labelled rows only",
        saving(
            now.step.shrunk(found),
            now.n,
            f"{now.loss_in_words}; {part:.1%} of the slots have a label",
        ),
    )


def fast_path(now: Situation) -> Said:
    """Rows shorter than the window, so that no mask is made and the causal kernel runs."""
    window = sliding_window(now.structure)
    if window is None or now.batches is None:
        return "the model has no sliding window"
    if max(now.batches.slots) < window:
        return f"all rows are shorter than the window of {window:,}: the causal kernel runs already"
    cut = batches.shortened(now.batches, window - 1)
    lost = 1 - cut.tokens / now.batches.tokens
    asked = _below_window(now, cut)
    return Forecast(
        "fast_path",
        f"max_length={window - 1}: rows cut to window − 1 = {window - 1:,} tokens, where no mask is made: "
        f"{f'{lost:.1%} of the tokens are lost' if lost else 'no token is lost, rows are only padded less'}",
        _at_most_the_square(now, cut, lost) if asked is None else _as_measured(now, asked, lost),
        tried=None if asked is None else asked.value,
    )


def _at_most_the_square(now: Situation, cut: Batches, lost: float) -> Estimate:
    """Return the saving where the step was not asked below the window: only its ends are known."""
    assert now.batches is not None
    value, low, _ = now.fit.ratio(cut.work, now.batches.work)
    square = now.fit.part(cut.work, 2) / now.fit.time(now.batches.work)[0]
    least = now.step.shrunk(Span(min(1.0, value), None)).value
    most = now.step.shrunk(Span(max(0.0, min(value, low) - square), None)).value
    why = f"from the shorter rows alone to the whole quadratic part; {lost:.1%} of the tokens are cut off"
    return saving_up_to(max(least, most), now.n, why, least=max(0.0, least))


def _as_measured(now: Situation, asked: Span, lost: float) -> Estimate:
    apart = _apart_ms(now)
    why = (
        f"forward and backward × {asked.value:.3f}, measured one token below the window beside the usual shape, in "
        f"turn; {lost:.1%} of the tokens are cut off; the interval also holds the {apart:.3g} ms by which the "
        "script's step and the driven one differ"
    )
    found = now.step.shrunk(asked)
    return saving(replace(found, half=math.hypot(found.known, apart)), now.n, why)


def _apart_ms(now: Situation) -> float:
    """Return what the script's own step takes more, or less, than the driven one, where a change was tried in turn.

    That may be memory that is taken and given back, of which a change makes more or less.
    """
    plain = [one for one in now.seen.answers.of("remedy") if one.variant == "none"]
    driven = median([now.seen.answers.ms(one) for one in plain])
    return now.step.compute.value * now.unexplained(Work.of([(plain[0].rows, plain[0].length)]), driven)


def _below_window(now: Situation, cut: Batches) -> Span | None:
    """Return the time of all batches, cut below the window, over that of now, as the step itself answered.

    The step was asked at one shape. Batches of other lengths get what came there over what the fit says of it, for the
    part of them that is cut; those that are shorter than the window stay as they are.
    """
    assert now.batches is not None
    lines = now.seen.answers.of("remedy")
    ms = now.seen.answers.ms
    short = {one.block: ms(one) for one in lines if one.variant == "below_window"}
    usual = {one.block: ms(one) for one in lines if one.variant == "none"}
    found = paired(short, usual)
    if found is None:
        return None
    at = {one.variant: (one.rows, one.length) for one in lines}
    by_fit = now.fit.ratio(Work.of([at["below_window"]]), Work.of([at["none"]]))[0]
    total, saved, lower = 0.0, 0.0, 0.0
    for rows, before, after in zip(now.batches.real, now.batches.slots, cut.slots, strict=True):
        own, less = (now.fit.time(Work.of([(len(rows), slots)]))[0] for slots in (before, after))
        total += own
        saved += max(0.0, own - less * found.value / by_fit) if after < before else 0.0
        lower += own if after < before else 0.0
    return Span(1 - saved / total, None if found.half is None else found.half * lower / total)


def workers(now: Situation) -> Said:
    """Rows fetched beside the training."""
    loading = now.account(*LOADING)
    if now.view is None or loading.value < 0.01 * now.step.wall.value:
        return "the step does not wait for its rows"
    there = int(now.view.fact("loader_workers") or 0)
    most = loading.value if loading.high is None else loading.high
    if there:
        limit = min(most, now.step.wall.value / 2)
        return Forecast(
            "workers",
            f"DataLoader(num_workers={2 * there}), now {there}",
            saving_up_to(limit, now.n, "twice the workers deliver at most twice as fast"),
        )
    rest = max(0.0, now.step.wall.value - loading.value)
    count = max(WORKERS_FEWEST, math.ceil(loading.value / rest) + 1 if rest else WORKERS_FEWEST)
    left = max(0.0, loading.value / count - rest)  # so many workers do not fetch as fast as the step trains
    # what the loading only waits for runs beside any training; what it computes needs a core of its own
    waits = min(loading.value, now.off_cpu(*LOADING)) if now.on_cpu else loading.value
    value = max(0.0, waits - left)
    stays = 1 / count if now.seen.answers.anyway else HANDED_OVER
    return Forecast(
        "workers",
        f"DataLoader(num_workers={count}): loading beside the training",
        Estimate(
            value=value,
            unit="ms",
            low=max(0.0, value - stays * loading.value),
            high=max(most, value),
            n=loading.n,
            method=(
                f"{loading.value:.3g} ms of loading, of which {waits:.3g} ms can run beside any training; "
                f"{count} workers need {loading.value / count:.3g} ms for the rows of a step, the rest of it takes "
                f"{rest:.3g} ms; up to {stays:.0%} stays, since what was fetched is handed over"
                f"{' and workers wait for cores, too' if now.seen.answers.anyway else ''}"
            ),
        ),
    )


def fewer_syncs(now: Situation) -> Said:
    """Values kept on the device until they are logged."""
    cost = now.account(*WAITING)
    if cost.value < 0.005 * now.step.wall.value:
        return "the host hardly waits for results"
    most = cost.value if cost.high is None else cost.high
    if now.step.device is not None:
        most = min(most, max(0.0, now.step.wall.value - max(now.step.host, now.step.device)))
        why = f"min(host {now.step.host:.3g} ms, device {now.step.device:.3g} ms): the wait itself is not what is won"
    else:
        why = "on the CPU nothing is waited for; only the calls can be saved"
    return Forecast("fewer_syncs", "read values back only in steps that log", saving_up_to(most, now.n, why))


def checkpointing_off(now: Situation) -> Said:
    """Activations kept, not computed again."""
    cost = now.account("recompute")
    told = now.structure is not None and now.structure.checkpointing
    told = told or (now.view is not None and now.view.fact("gradient_checkpointing") is True)
    if cost.value > 0.005 * now.step.wall.value:
        saved = _computed_twice(cost, now.account(*AROUND).value)
    elif told:
        low, high = (now.step.compute.value * part for part in CHECKPOINTED)
        saved = saving_up_to(high, now.n, "one forward of four, or of three with frozen weights", least=low)
    else:
        return "no activations are computed a second time"
    return Forecast("checkpointing_off", "turn gradient checkpointing off, if memory allows", saved)


def _computed_twice(cost: Estimate, around: float) -> Estimate:
    """Return what is computed twice; and at most all that lies where checkpointing does its own work around it."""
    high = None if cost.high is None else cost.high + around
    method = f"what is computed twice; the upper end holds the {around:.3g} ms in which checkpointing's own work lies"
    return Estimate(value=cost.value, unit="ms", low=cost.low, high=high, n=cost.n, method=method)


REMEDIES: tuple[tuple[str, Callable[[Situation], Said]], ...] = tuple(
    (one.__name__, one)
    for one in (
        longest,
        bucketing,
        packing,
        padding_free,
        chunked_loss,
        labelled_rows,
        fast_path,
        workers,
        fewer_syncs,
        checkpointing_off,
        batch_size,
    )
)
"""Every change, by the name in its figure."""


ABOUT_LENGTHS = ("longest", "bucketing", "packing", "padding_free", "batch_size")


def forecasts(now: Situation) -> tuple[list[Forecast], list[str]]:
    """Return all forecasts, the one that leaves the shortest step first, and why others cannot be given."""
    made, missing = [], []
    tried = dict(_tried(now.seen))
    for name, remedy in REMEDIES:
        said = (name in ABOUT_LENGTHS and now.lengths_hidden) or remedy(now)
        if isinstance(said, str):
            missing.append(f"{name.replace('_', ' ')}: {said}")
        else:
            turned = tried.pop(name, None)
            made.append(_with_trial(now, said, turned) if turned else said)
    missing += [_beyond(name, found) for name, found in tried.items()]
    made.sort(key=lambda one: (-one.saved.value, one.remedy))
    return made, missing


def _with_trial(now: Situation, said: Forecast, turned: Middle) -> Forecast:
    """Let the micro-step that was measured with the change decide; the interval keeps what was forecast without it."""
    apart = _apart_ms(now)
    found = now.step.shrunk(Span(turned.value, turned.half))
    found = replace(found, half=math.hypot(found.known, apart))
    ends = [found.value - found.known, found.value + found.known]
    ends += [one for one in (said.saved.low, said.saved.high) if one is not None]
    saved = Estimate(
        value=found.value,
        unit="ms",
        low=min(ends),
        high=max(ends),
        n=turned.n,
        method=(
            f"micro-step × {turned.value:.3f}, measured with and without it in turn; the interval also holds the "
            f"{apart:.3g} ms by which the script's step and the driven one differ, and the forecast from its "
            f"parts ({said.saved.value:.3g} ms: {said.saved.method})"
        ),
    )
    return replace(said, saved=saved, tried=turned.value)


def _beyond(name: str, found: Middle) -> str:
    """Tell of a trial that is no forecast: it was switched on to see its price."""
    return f"{name.replace('_', ' ')} (tried all the same: the micro-step takes × {found.value:.2f})"


def _tried(seen: Seen) -> Iterator[tuple[str, Middle]]:
    """Return the micro-step with a remedy over the one without, where both were measured in turn."""
    lines = seen.answers.of("remedy")
    without = {one.block: seen.answers.ms(one) for one in lines if one.variant == "none"}
    for variant in sorted({one.variant for one in lines} - {"none", "below_window", ""}):
        own = {one.block: seen.answers.ms(one) for one in lines if one.variant == variant}
        if found := paired(own, without):
            yield variant.replace("-", "_"), found
