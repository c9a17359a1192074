"""Takes the user's step over in their running process: first a control of the harness, then the experiments.

After the steps that are observed, two steps are set aside. In the first micro-step of the one, what the script computes
is written down and computed once more by the harness: only if the same loss comes out, the harness is driven. In the
first micro-step of the other, the experiments take place; then everything is put back and the script goes on.
"""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

from stepprobe.instruments.attach.budget import launched_as
from stepprobe.instruments.attach.observer import Limit, Observer
from stepprobe.instruments.attach.window import STEPS_MOST, Window
from stepprobe.instruments.experiments.captured import CapturedBatches
from stepprobe.instruments.experiments.description import Control, describe, same_loss
from stepprobe.instruments.experiments.exits import refuses
from stepprobe.instruments.experiments.journal import ExperimentJournal
from stepprobe.instruments.experiments.named import NotAHarness, named_harness
from stepprobe.instruments.experiments.owners import owners_of
from stepprobe.instruments.experiments.snapshot import Owners, Randomness, Snapshot

ASIDE = "experiments"


class Settings(NamedTuple):
    """What ``stepprobe profile`` asked for."""

    steps: int
    warmup: int
    harness: str = ""
    keep_training: bool = False
    anyway: bool = False
    seconds: float = 120.0


class FirstControl(NamedTuple):
    """How one micro-step is computed, first by the harness, then by the script."""

    again: Callable[[], Any]
    own: Callable[[], Any]
    loss_of: Callable[[Any], Any]
    """Gives the loss from what ``own`` returned."""


class TakeOver:
    """From observed steps to the end of the experiments, in one process."""

    def __init__(self, observer: Observer, folder: str, settings: Settings, window: "Window | None" = None) -> None:
        self.phase = "observed"
        """``observed``, ``control``, ``controlled``, ``experiments``, ``over``."""
        self.observer = observer
        self.settings = settings
        self.has_framework = False
        """Whether a framework's own step was found, so that the root's calls are not looked at."""
        self.in_parts = False
        """Whether the script calls the parts of its model one by one, and never the model."""
        self.on_over: list[Callable[[], None]] = []
        """Called once when nothing more is done to the script's step."""
        self.root_calls = 0
        """Calls of a root module in this step, where they are what is met."""
        self._folder = folder
        self._window = window
        self._journal: ExperimentJournal | None = None
        self._batches: CapturedBatches | None = None
        self._control = Control()
        self._micro_steps = 1
        self._busy = False
        observer.on.boundary.append(self._between_steps)

    # -- what the sources of a step ask and tell ----------------------------------------------------------------

    def batches(self, torch: ModuleType) -> CapturedBatches:
        """Return the micro-batches that were kept."""
        if self._batches is None:
            self._batches = CapturedBatches(torch)
        return self._batches

    @property
    def observes(self) -> bool:
        """Whether a micro-step of the script's own is under way that is of interest."""
        return self.phase != "over" and not self._busy and self.observer.gate.open

    def is_due(self, phase: str) -> bool:
        """Return whether this is the first micro-step of the step that a phase waits for."""
        if self.phase != phase or not self.observes or self.observer.counters.get("backwards", 0):
            return False
        if launched_as("WORLD_SIZE", 1) > 1:
            self.give_up("the job runs on more than one rank, and the step of one rank waits for the others")
            return False
        return True

    def controlled(self, torch: ModuleType, before: Snapshot, loss: Any, again: Callable[[], Any]) -> None:
        """Compute the micro-step that just ended once more, and compare.

        Args:
            torch: The user's.
            before: The state before the micro-step.
            loss: What the script's own micro-step gave.
            again: Runs the harness on the same batch.
        """
        if not before.weights_hold():
            return self.give_up("the step changes parameters in place; run again and again it would not be the same")
        with self.aside():  # reading it is no wait of the script's own
            captured = float(loss)
        if not self._is_number(captured):
            return None
        with self.aside():
            now = Snapshot(torch, before.owners)
            before.rewind()
            now.gradients.drop()
            try:
                replayed = float(again())
                found = [parameter.grad for parameter in now.parameters]
                gradients = all(map(_close, found, now.gradients.tensors))
            except Exception as error:
                return self.refuse(f"the step could not be run a second time: {type(error).__name__}: {error}")
            finally:
                now.put_back()
        if not gradients:
            return self.refuse("the harness does not give back the gradients of the script's own micro-step")
        return self._compare(captured, replayed)

    def control_first(self, torch: ModuleType, harness: Any, control: "FirstControl") -> Any:
        """Let the harness compute a micro-step before the script does, and compare; return what the script's gave.

        For a source that sees the script's forward and loss, but not its backward.
        """
        replayed = None
        with self.aside():
            before = Snapshot(torch, self._owners(torch, harness))
            before.gradients.drop()
            try:
                replayed = float(control.again())
            except Exception as error:
                self.refuse(f"the step could not be run by the harness: {type(error).__name__}: {error}")
            finally:
                holds = before.put_back()["parameters"]
        result = control.own()
        if not holds:
            self.give_up("the step changes parameters in place; run again and again it would not be the same")
        elif replayed is not None:
            with self.aside():
                captured = float(control.loss_of(result))
            if not self._is_number(captured):
                return result
            self._compare(captured, replayed)
        return result

    def snapshot(self, torch: ModuleType, harness: Any) -> Snapshot:
        """Return the state of all that the micro-step of a harness may change."""
        return Snapshot(torch, self._owners(torch, harness))

    def _owners(self, torch: ModuleType, harness: Any) -> Owners:
        return owners_of(torch, [harness.root(), *harness.trainable_modules()], getattr(harness, "others", ()))

    def _is_number(self, loss: float) -> bool:
        """Return whether the script's loss is finite; where it is not, there is nothing to compare."""
        if not math.isfinite(loss):
            self.give_up(f"the loss of the script's own step is {loss}; look at the data, or lower the rate")
        return math.isfinite(loss)

    def _compare(self, captured: float, replayed: float) -> None:
        self.phase = "controlled"
        self._control = Control(captured, replayed)
        if not same_loss(captured, replayed):
            self.refuse(f"the harness does not give back the script's loss: {replayed!r} instead of {captured!r}")

    def run(self, torch: ModuleType, harness: Any) -> None:
        """Make the experiments, here and now, and put everything back."""
        with self.aside():
            try:
                self._experiments(torch, harness)
            except Exception as error:  # before the first line: what the harness says of itself makes no sense
                self.give_up(f"the step cannot be driven: {type(error).__name__}: {error}")
            finally:
                if self.phase != "over":
                    self._end()

    def run_named(self, torch: ModuleType) -> None:
        """Make the experiments on the harness that the user named."""
        random = Randomness(torch)
        with self.aside():
            try:
                harness = named_harness(self.settings.harness)
            except NotAHarness as error:
                return self.give_up(str(error))
            finally:
                random.put_back()  # the weights of a module of its own may have been drawn
        return self.run(torch, harness)

    def give_up(self, reason: str) -> None:
        """There will be no experiments, and why."""
        if self.phase != "over":
            self.observer.note(f"no experiments: {reason}")
            self._end()

    def refuse(self, reason: str) -> None:
        """The step cannot be driven as it is; the user can name one that can."""
        self.give_up(f"{reason}; name the step that is to be driven: --harness module:factory")

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Take every hook of the observation out while the script's step is driven."""
        observer, was = self.observer, self._busy
        self._busy = True
        is_open, observer.gate.open = observer.gate.open, False
        observer.patches.undo()
        try:
            yield
        finally:
            observer.patches.redo()
            observer.gate.open = is_open
            self._busy = was

    # -- the phases ---------------------------------------------------------------------------------------------

    def _between_steps(self, index: int) -> bool:
        if self.phase == "observed":
            self._micro_steps = self.observer.counters.get("backwards", 1)
            traces = self._window is not None and not self._window.is_over
            if index >= self.settings.steps + self.settings.warmup and not traces:
                # what the user names drives batches of its own: there is no micro-step to compare with
                self.phase = "experiments" if self.settings.harness else "control"
                self.observer.aside = ASIDE
        elif self.phase == "control" and self.in_parts:
            self.refuse(
                "the script calls the parts of its model one by one, as model.loss(batch) does, and never the model; "
                "only a call of the model can be made again at other shapes"
            )
        elif self.phase == "control":
            self.refuse("no micro-step was seen that begins with the root module and ends with backward")
        elif self.phase == "controlled" and 0 < self.root_calls < self.observer.counters.get("backwards", 0):
            self.refuse("backward is called more than once for a call of the root module")
        elif self.phase == "controlled":
            self.phase = "experiments"
            self.observer.aside = ASIDE
        elif self.phase == "experiments":
            self.give_up("the step that they were to take place in did not call the root module")
        self.root_calls = 0
        return False

    def script_ends(self) -> None:
        """The script ends by itself; say so where the experiments were still to come."""
        if self.phase != "over":
            needed = self.settings.steps + self.settings.warmup + 2 + (STEPS_MOST if self._window else 0)
            self.give_up(
                f"the script ended before them; they need {needed} optimizer steps and one more: let it train longer, "
                "or ask for fewer with --steps"
            )

    def forked(self) -> None:
        """This process is a fork: observe nothing, write nothing."""
        self.phase = "over"
        if self._journal is not None:
            self._journal.abandon()

    def _end(self) -> None:
        self.phase = "over"
        self._batches = None
        for act in self.on_over:
            with contextlib.suppress(Exception):
                act()
        if not self.settings.keep_training:
            self.observer.end_after(Limit(self.settings.steps, self.settings.warmup), "--keep-training")

    def _experiments(self, torch: ModuleType, harness: Any) -> None:
        journal = self._journal = ExperimentJournal(self._folder, launched_as("RANK", 0))
        with contextlib.suppress(OSError):
            os.write(2, f"stepprobe: asking the step at other shapes, about {self.settings.seconds:g} s\n".encode())
        begun = time.monotonic()
        before = self.snapshot(torch, harness)
        before.gradients.drop()
        reason = "interrupted"
        try:
            reason = self._drive(
                torch, harness, journal, zeroed=any(one is not None for one in before.gradients.tensors)
            )
        except BaseException as error:
            if not refuses(error):
                raise
            reason = f"{type(error).__name__}: {error}"
            self.observer.note(f"the experiments ended early: {reason}")
        finally:
            unchanged = before.put_back()
            for kind in [kind for kind, same in unchanged.items() if not same]:
                self.observer.note(
                    f"the experiments left the {kind} of the training changed: the user's step does that"
                )
            journal.write("restored", {"unchanged": unchanged, "seconds": time.monotonic() - begun})
            journal.write("done", {"reason": reason})
            journal.close()

    def _drive(self, torch: ModuleType, harness: Any, journal: ExperimentJournal, *, zeroed: bool) -> str:
        from stepprobe.instruments.experiments.driver import run_experiments
        from stepprobe.instruments.experiments.plan import Plan

        real, labelled_share = self.batches(torch).counted()
        if labelled_share is None and hasattr(harness, "captured"):  # labels that only the loss path is given
            alone = CapturedBatches(torch)
            alone.add(harness.captured)
            labelled_share = alone.counted()[1]
        line = {
            **describe(torch, harness, self._control),
            "source": self.settings.harness or harness.source,
            "rank": launched_as("RANK", 0),
            "micro_steps": max(1, self._micro_steps),
            "batches": real,
            "labelled_share": labelled_share,
        }
        journal.write("harness", line)
        plan = Plan.of(
            {
                "seconds": self.settings.seconds,
                "anyway": self.settings.anyway,
                "batches": real,
                "longest": line["longest"],
                "vocabulary": line["vocabulary"],
                "zeroed": zeroed,
            }
        )
        return run_experiments(harness, journal, plan, torch)


def _close(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other or not bool((one if one is not None else other).any())
    scale = float(other.detach().abs().max()) if other.numel() else 0.0
    return float((one - other).detach().abs().max() if other.numel() else 0.0) <= 1e-3 * scale + 1e-12
