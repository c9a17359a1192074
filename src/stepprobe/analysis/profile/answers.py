"""The experiments of one process, read from its evidence, and the clock that their times are taken from."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeVar

from stepprobe.analysis.lengths.oom import told
from stepprobe.analysis.profile.scaling import Sample
from stepprobe.model.evidence import Evidence
from stepprobe.model.experiments import (
    Done,
    Dropped,
    Experiment,
    ExperimentRecord,
    Harness,
    Measured,
    Quiet,
    Restored,
    decode_experiments,
)

EXPERIMENTS_FILE = re.compile(r"experiments-rank\d+-pid\d+(-\d+)?\.jsonl")
NS_PER_MS = 1_000_000

Record = TypeVar("Record", bound=ExperimentRecord)
Clock = Literal["device", "thread", "wall"]

CLOCKS: dict[Clock, str] = {
    "device": "time between events on the card",
    "thread": "CPU time of the one thread that computes",
    "wall": "wall time",
}
"""The clocks in words."""


@dataclass(frozen=True)
class Answers:
    """Lines of one process."""

    name: str
    records: Sequence[ExperimentRecord]
    cut_bytes: int = 0

    @property
    def harness(self) -> Harness:
        """Whose step was driven."""
        return self._all(Harness)[0]

    @cached_property
    def measured(self) -> tuple[Measured, ...]:
        """All repetitions, in the order in which they were measured."""
        return self._all(Measured)

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """What could not be measured."""
        return self._all(Dropped)

    @property
    def quiet(self) -> Quiet | None:
        """How idle the machine was; None where that was not looked at."""
        return next(iter(self._all(Quiet)), None)

    @property
    def restored(self) -> Restored | None:
        """What was put back; None where the process ended before that."""
        return next(iter(self._all(Restored)), None)

    @property
    def done(self) -> Done | None:
        """The last line; None where the process was killed."""
        return next(iter(self._all(Done)), None)

    @property
    def anyway(self) -> bool:
        """Whether a busy machine was measured because the user asked for it."""
        return self.quiet is not None and self.quiet.anyway and self.quiet.busy != ""

    @cached_property
    def clock(self) -> Clock:
        """The clock of every figure: one for all, so that their ratios mean something."""
        if self.measured and all(one.device_ns is not None for one in self.measured):
            return "device"
        return "thread" if self.harness.device == "cpu" and self.harness.threads == 1 else "wall"

    @property
    def method(self) -> str:
        """How times were taken, for the method of a figure."""
        return CLOCKS[self.clock]

    def of(self, *experiments: Experiment, variant: str | None = None) -> tuple[Measured, ...]:
        """Return the repetitions of some experiments, in order; of one variant where it is named."""
        return tuple(one for one in self.measured if one.experiment in experiments and variant in (None, one.variant))

    def ms(self, one: Measured) -> float:
        """Return what one repetition took on the chosen clock."""
        spent = {"device": one.device_ns, "thread": one.thread_ns, "wall": one.wall_ns}[self.clock]
        return (one.wall_ns if spent is None else spent) / NS_PER_MS

    @cached_property
    def samples(self) -> tuple[Sample, ...]:
        """The repetitions that the fit is made of, and those that it may not see."""
        return tuple(
            Sample(one.rows, one.length, one.block, self.ms(one), one.experiment == "heldout")
            for one in self.of("scaling", "heldout")
            if self.ms(one) > 0
        )

    @cached_property
    def witnesses(self) -> tuple[Sample, ...]:
        """Repetitions of the plain micro-step, without padding, in experiments that are not about the fit."""
        return tuple(
            Sample(one.rows, one.length, one.block, self.ms(one), heldout=True)
            for one in self.of("fixed_tokens", "unpadded", "remedy")
            if one.variant in ("", "none") and self.ms(one) > 0
        )

    def _all(self, kind: type[Record]) -> tuple[Record, ...]:
        return tuple(one for one in self.records if isinstance(one, kind))


def read_answers(evidence: Evidence) -> tuple[Answers | None, list[str]]:
    """Return the experiments of the lowest rank that answered anything, and what was set aside.

    Raises:
        EvidenceError: A finished line is damaged or of a newer schema.
    """
    held: list[Answers] = []
    notes: list[str] = []
    for name, content in sorted(evidence.files.items()):
        if EXPERIMENTS_FILE.fullmatch(name):
            if b"\n" not in content:
                notes.append(f"{name}: the process ended before its first line was finished ({len(content)} bytes)")
                continue
            held.append(Answers(name, *decode_experiments(name, content)))
    held.sort(key=lambda one: (not one.measured, one.harness.rank, -len(one.measured), one.name))
    notes += [f"{one.name}: experiments of another process, not in this report" for one in held[1:]]
    return (held[0] if held else None), notes


def answer_notes(answers: Answers) -> Iterator[str]:
    """Say what was dropped, what was not put back, and how the experiments ended."""
    for one in dict.fromkeys(
        (one.experiment, one.variant, one.rows, one.length, one.reason, one.text) for one in answers.dropped
    ):
        experiment, variant, rows, length, reason, text = one
        what = f"{experiment.replace('_', ' ')}{f' {variant}' if variant else ''} at {rows}×{length}"
        yield f"{what} was dropped ({DROPPED[reason]}){f': {text}' if text else ''}"
        vocabulary = answers.harness.vocabulary
        if reason == "memory" and vocabulary and "allocate" in text and (said := told(text, vocabulary, rows, length)):
            yield said
    if answers.anyway and answers.quiet:
        seen = busy(answers.quiet)
        yield f"a busy machine ({seen}) was measured all the same, as asked: the method of every figure says so"
    restored = answers.restored
    if restored is None:
        yield "what the experiments changed was not seen to be put back: the process ended before that"
    else:
        changed = [name for name, same in restored.unchanged.items() if not same]
        if changed:
            yield f"not what it was before the experiments: {', '.join(changed)}; the training went on from there"
        yield f"the experiments took {restored.seconds:,.1f} s; no step of the training is timed in that"
    if answers.done is None:
        yield "the experiments did not end in order: the process was killed, or is still running"
    elif answers.done.reason != "finished":
        yield f"the experiments were stopped: {answers.done.reason}"
    if answers.cut_bytes:
        yield f"{answers.name}: the last line was never finished: {answers.cut_bytes} bytes dropped"


DROPPED = {
    "memory": "not enough memory",
    "refused": "the user's code refused it",
    "loss": "its loss is not finite",
    "time": "the time was up",
}
"""Why a shape was dropped, in words."""


def busy(quiet: Quiet) -> str:
    """Return how busy a machine was, in words."""
    said = [f"{quiet.load:.1f} runnable tasks on {quiet.cpus} cores"]
    if quiet.others_share is not None:
        said.append(f"others took {quiet.others_share:.0%} of the CPU time")
    if quiet.device_busy_share is not None:
        said.append(f"the card was busy {quiet.device_busy_share:.0%} of the time")
    return ", ".join(said)
