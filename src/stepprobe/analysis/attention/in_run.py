"""The masks of a job that ran: what was foretold of its first batches, held against what its model was seen to do."""

from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

from stepprobe.analysis.attention.answer import Answer, answer
from stepprobe.analysis.attention.assertions import assertions
from stepprobe.analysis.attention.figures import mask_figures
from stepprobe.analysis.attention.findings import BELOW_WINDOW, mask_findings
from stepprobe.analysis.attention.kernels import DEFAULT, card_of
from stepprobe.analysis.findings.view import View, most_of, scaled, up_to
from stepprobe.analysis.ledger.process import Process
from stepprobe.model.attention import Capture, read_capture
from stepprobe.model.estimate import Estimate
from stepprobe.model.finding import Finding
from stepprobe.model.first_calls import FORETOLD, UNTOLD, KeptCall, read_first_calls
from stepprobe.model.report import Column, Table

ATTENTION = ("forward.attention", "backward.attention")
_WRONG = ("mask.future_leak", "mask.document_leak", "mask.wrong")
_OF_THE_MASK = ("mask.lost", "mask.lost_for_nothing")
"""Findings that another mask settles: what is computed of it is the kernel's, and what feeds it."""
_BY_HAND = "stepprobe mask RUN foretells them without a limit of time"


class RunMasks(msgspec.Struct, frozen=True, kw_only=True):
    """What a run's report says of its masks."""

    wrong: tuple[Finding, ...] = ()
    """Findings about wrong answers; they come before every cost."""
    slow: tuple[Finding, ...] = ()
    """Findings about time."""
    figures: Mapping[str, Estimate] = {}
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """Why the run needs a look; empty when no mask is wrong."""
        return f"attention masks are wrong: {self.wrong[0].title}" if self.wrong else ""


class _Untold(msgspec.Struct, frozen=True):
    """Why masks were not foretold."""

    reason: str = "nobody asked, or the job did not end by itself"
    again: bool = True
    """Whether another try could do it."""


class _Told(msgspec.Struct, frozen=True):
    """One kept call, its capture judged, and whether the model was seen to do the same."""

    kept: KeptCall
    answer: Answer
    differs: str
    """How what was seen differs from what was foretold; empty where it agrees."""

    @property
    def compared(self) -> bool:
        """Whether calls were counted that could be compared."""
        return self.kept.call.attended is not None and self.answer.capture.attention == "sdpa"


def run_masks(files: Mapping[str, bytes], process: Process, attended: Estimate | None = None) -> RunMasks:
    """Return what the evidence of a run says of its masks; nothing where its model is not one of transformers.

    Args:
        files: The evidence.
        process: The process whose ledger is shown.
        attended: ms per step that attention takes at most without its projections; None where nothing tells them apart.

    Raises:
        EvidenceError: A file is damaged.
    """
    kept = read_first_calls(files)
    if not kept:
        return RunMasks()
    judged = [told for one in kept if (told := _judge(one, files)) is not None]
    notes = list(_untold(files, kept, judged))
    other = {told.kept.model.number for told in judged if told.differs}
    sure = [told for told in judged if not told.answer.unmeasured and told.kept.model.number not in other]
    if not sure:
        return RunMasks(notes=tuple(notes))
    findings = [priced(finding, process, attended) for finding in _findings(sure)]
    return RunMasks(
        wrong=tuple(one for one in findings if one.kind in _WRONG),
        slow=tuple(one for one in findings if one.kind not in _WRONG and _worth(one, process)),
        figures=mask_figures(_worst(sure)),
        tables=(_table(sure),),
        notes=(*notes, *_reservations(sure)),
    )


def _judge(one: KeptCall, files: Mapping[str, bytes]) -> _Told | None:
    content = files.get(FORETOLD.format(number=one.number))
    if content is None:
        return None
    capture = read_capture(content)
    return _Told(one, answer(capture, card_of(one.model.card) or DEFAULT), _difference(capture, one))


def _difference(capture: Capture, one: KeptCall) -> str:
    """Return how the calls that were counted differ from those foretold; empty where they agree or were not counted."""
    if one.call.attended is None or capture.attention != "sdpa":
        return ""
    foretold = Counter(
        (call.mask is not None, call.is_causal, f"{call.query[2]}x{call.key[2]}")
        for call in capture.calls
        if call.api == "sdpa"
    )
    seen: Counter[tuple[bool, bool, str]] = Counter()
    for key, count in one.call.attended.items():
        _, mask, causal, lengths = key.split()
        seen[mask != "none", causal == "1", lengths] += count
    if seen == foretold:
        return ""
    return f"{_calls(foretold)} foretold, {_calls(seen)} seen"


def _calls(counts: Counter[tuple[bool, bool, str]]) -> str:
    masked = sum(count for (mask, _, _), count in counts.items() if mask)
    causal = sum(count for (_, causal, _), count in counts.items() if causal)
    return f"{sum(counts.values())} calls ({masked} with a mask, {causal} with is_causal)"


def _untold(files: Mapping[str, bytes], kept: tuple[KeptCall, ...], judged: list[_Told]) -> Iterator[str]:
    """Yield why masks of kept batches are not told of."""
    if not judged:
        told = msgspec.json.decode(files[UNTOLD], type=_Untold) if UNTOLD in files else _Untold()
        yield f"attention masks were not foretold ({told.reason})" + (f"; {_BY_HAND}" if told.again else "")
    for one in judged:
        if one.differs:
            yield (
                f"attention masks of batch {one.kept.number} are not told of: {one.differs}; the model does not "
                "attend as transformers' own class does"
            )
        elif one.answer.unmeasured:
            yield f"attention masks of batch {one.kept.number} were not measured: {one.answer.unmeasured}"


def _reservations(sure: list[_Told]) -> Iterator[str]:
    compared = sum(told.compared for told in sure)
    name = sure[0].kept.model.name
    yield (
        f"attention masks were foretold from {len(sure)} of the first batches, by {name} of its config, no weights; "
        + (f"in {compared} of them its calls of attention were counted, and were those" if compared
           else "its own calls of attention were not counted")
    )  # fmt: skip
    if not card_of(sure[0].kept.model.card):
        yield f"kernels are those of {DEFAULT}: the rules know no {sure[0].kept.model.card!r}"


def _worst(sure: list[_Told]) -> Answer:
    """Return the answer with the most layers that are wrong, then slow."""
    answers = [told.answer for told in sure]
    return max(
        answers, key=lambda one: (-sum(map(one.correct, one.views)), sum(view.mask is not None for view in one.views))
    )


def _findings(sure: list[_Told]) -> list[Finding]:
    """Return the findings of all batches, of each kind and title the one that costs most layers."""
    found: dict[tuple[str, str], Finding] = {}
    for told in sorted(sure, key=lambda told: not told.compared):  # as stepprobe check RUN chooses its batch
        for finding in mask_findings(told.answer):
            known = found.setdefault((finding.kind, finding.where), finding)
            if finding.cost.value > known.cost.value:
                found[finding.kind, finding.where] = finding
    return list(found.values())


def priced(finding: Finding, process: Process, attended: Estimate | None) -> Finding:
    """Give a finding about attention's time the ms that it can cost: nothing, or all that those layers attend for.

    Another mask leaves the projections as they are; shorter rows do not.

    Args:
        finding: About some layers.
        process: The process whose ledger is shown.
        attended: ms per step that attention takes at most without its projections; None where nothing tells them apart.
    """
    view = View(process, (process,))
    if finding.kind in _WRONG or not view.on_cpu or "Attention" not in finding.where:
        return finding
    attention = scaled(view.account(*ATTENTION), finding.share, "attention of these layers")
    whole = up_to(attention, "time in attention, projections among it; the part of the mask is not known")
    if attended is None or finding.kind not in _OF_THE_MASK or attended.value >= most_of(attention):
        cost, stays = whole, None
    else:
        cost = up_to(attention, f"time in attention, of which a mask can change {attended.method}", attended.value)
        rest = max(0.0, attention.value - attended.value)
        stays = Estimate(value=rest, unit="ms", n=attention.n, method="the rest of attention, its projections among it")
    remedies = tuple(
        msgspec.structs.replace(one, predicted=whole)
        if one.name == BELOW_WINDOW
        else msgspec.structs.replace(one, predicted=cost, fixed=stays)
        for one in finding.remedies
    )
    return msgspec.structs.replace(finding, cost=cost, share=view.share(cost), accounts=ATTENTION, remedies=remedies)


def _worth(finding: Finding, process: Process) -> bool:
    """Tell whether a finding whose time is known takes enough of it."""
    return finding.cost.unit != "ms" or View(process, (process,)).worth(finding.cost)


def _table(sure: list[_Told]) -> Table:
    rows = []
    for told in sure:
        one, batch = told.answer, told.answer.capture.batch
        layers = len(one.views)
        wrong = [asked.claim for asked in assertions(one) if asked.holds is False and not asked.warns]
        rows.append(
            (
                told.kept.number,
                f"{batch.size} x {batch.length:,}",
                ", ".join(batch.names),
                ", ".join(dict.fromkeys(view.found for view in one.views)) or "no attention layer",
                f"{sum(view.mask is None and view.call.is_causal for view in one.views)} of {layers}",
                f"{sum(map(one.correct, one.views))} of {layers}" + (f" (not so: {wrong[0]})" if wrong else ""),
                "yes" if told.compared else "not counted",
            )
        )
    titles = ("batch", "shape", "arguments", "each layer sees", "is_causal, no mask", "right", "seen so in the job")
    return Table(
        name="masks",
        title="Attention masks of the first batches",
        columns=tuple(Column(title=title, unit="" if place else "count") for place, title in enumerate(titles)),
        rows=tuple(rows),
        caption="Foretold from the model's class and config; stepprobe mask RUN shows layers, kernels and pictures.",
    )
