"""Where the script's micro-step is met: HF Trainer's and Lightning's own ``training_step``, else the root's call."""

import functools
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stepprobe.instruments.attach.callers import unseen
from stepprobe.instruments.experiments.captured import replaced, shape_of
from stepprobe.instruments.experiments.lightning import LightningHarness
from stepprobe.instruments.experiments.owners import owners_of
from stepprobe.instruments.experiments.recording import Recording
from stepprobe.instruments.experiments.replay import ReplayHarness, RootCall
from stepprobe.instruments.experiments.snapshot import Snapshot
from stepprobe.instruments.experiments.takeover import FirstControl, TakeOver
from stepprobe.instruments.experiments.tape import Tape
from stepprobe.instruments.experiments.trainer import TrainerHarness

NO_TENSOR = "the step is given no tensor of rows × tokens"


def _guarded(take_over: TakeOver, action: Callable[[], Any]) -> Any:
    """Do it; a fault of ours ends the taking over, never the user's job."""
    try:
        return action()
    except Exception as error:
        take_over.give_up(f"{type(error).__name__}: {error}")
        return None


class TrainerSource:
    """Meets the micro-step of HF Trainer, TRL, and whatever is derived from them."""

    def __init__(self, take_over: TakeOver, torch: ModuleType, trainer: Any) -> None:
        self._take_over = take_over
        self._torch = torch
        self._trainer = trainer
        self._own = vars(trainer).get("training_step")
        take_over.has_framework = True
        trainer.training_step = self._met
        take_over.on_over.append(self._leave)

    def _leave(self) -> None:
        if self._own is not None:
            self._trainer.training_step = self._own
        else:
            vars(self._trainer).pop("training_step", None)

    def _step(self, *call: Any, **named: Any) -> Any:
        """Run the trainer's training_step as its class has it now."""
        if self._own is not None:
            return self._own(*call, **named)
        return type(self._trainer).training_step(self._trainer, *call, **named)

    def _met(self, *call: Any, **named: Any) -> Any:
        take_over = self._take_over
        if take_over.observes and not named and len(call) >= 2:
            _guarded(take_over, lambda: take_over.batches(self._torch).add(call[1]))
            if take_over.settings.harness:
                pass  # met at the root's call
            elif take_over.is_due("control"):
                return self._control(call)
            elif take_over.is_due("experiments"):
                _guarded(take_over, lambda: take_over.run(self._torch, self._harness(call)))
        return self._step(*call, **named)

    def _harness(self, call: tuple[Any, ...]) -> TrainerHarness:
        return TrainerHarness(self._torch, self._trainer, self._step, call, self._take_over.batches(self._torch))

    def _control(self, call: tuple[Any, ...]) -> Any:
        take_over, torch = self._take_over, self._torch
        if shape_of(torch, call[1]) is None:
            take_over.refuse(NO_TENSOR)
            return self._step(*call)
        harness, batch = self._harness(call), replaced(call[1], {})
        before = _guarded(take_over, lambda: take_over.snapshot(torch, harness))
        loss = self._step(*call)
        if before is not None:
            _guarded(take_over, lambda: take_over.controlled(torch, before, loss, lambda: harness.again(batch)))
        return loss


class LightningSource:
    """Meets the micro-step of a Lightning strategy."""

    def __init__(self, take_over: TakeOver, torch: ModuleType) -> None:
        self._take_over = take_over
        self._torch = torch

    def wrap(self, training_step: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``Strategy.training_step`` that lets the script's step be taken over."""

        @unseen(training_step)
        def met(strategy: Any, *call: Any, **named: Any) -> Any:
            take_over = self._take_over
            take_over.has_framework = True
            own = functools.partial(training_step, strategy, *call, **named)
            if not take_over.observes or named or not call or take_over.settings.harness:
                return own()
            batches = take_over.batches(self._torch)
            _guarded(take_over, lambda: batches.add(call[0]))
            step = functools.partial(training_step, strategy)
            harness = LightningHarness(self._torch, strategy, step, batches, call[1:])
            if take_over.is_due("control"):
                return self._control(harness, call[0], own)
            if take_over.is_due("experiments"):
                _guarded(take_over, lambda: take_over.run(self._torch, harness))
            return own()

        return met

    def _control(self, harness: LightningHarness, batch: Any, own: Callable[[], Any]) -> Any:
        take_over = self._take_over
        if shape_of(self._torch, batch) is None:
            take_over.refuse(NO_TENSOR)
            return own()
        if not getattr(harness.root(), "automatic_optimization", True):
            take_over.refuse("the module optimizes by hand")
            return own()
        kept = replaced(batch, {})
        return take_over.control_first(
            self._torch, harness, FirstControl(lambda: harness.step(kept), own, harness.loss_of)
        )


class RootSource:
    """Meets the call of the root module in a loop of the user's own, and the path from there to backward."""

    def __init__(self, take_over: TakeOver, torch: ModuleType) -> None:
        self._take_over = take_over
        self._torch = torch
        self._call: RootCall | None = None
        self._before: Snapshot | None = None
        self._recording: Recording | None = None
        self._tape: Tape | None = None
        self._loss: Any = None
        self._harness: ReplayHarness | None = None
        self._roots: list[weakref.ref[Any]] = []
        take_over.observer.on.root.append(self._found)
        take_over.observer.on.counting.append(self._found_in_parts)
        take_over.on_over.append(self._leave)

    def _found(self, root: Any) -> None:
        """A root was found; its own hooks, registered behind these, run before them."""
        if any(known() is root for known in self._roots):
            return
        self._roots.append(weakref.ref(root))
        handles = [
            root.register_forward_pre_hook(lambda *call: self._begins(*call), prepend=True, with_kwargs=True),
            root.register_forward_hook(lambda *call: self._returned(*call)),
        ]
        self._take_over.on_over.extend(handle.remove for handle in handles)

    def _found_in_parts(self, counting: Any) -> None:
        """No root is called; a harness that the user named is driven where the part is called that gets the batch."""
        self._take_over.in_parts = True
        if self._take_over.settings.harness:
            self._found(counting)

    def _leave(self) -> None:
        if self._recording is not None:
            self._recording.stop()
        self._call = self._recording = self._before = self._harness = self._tape = self._loss = None

    def _begins(self, root: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        take_over, observer = self._take_over, self._take_over.observer
        if not take_over.observes or self._torch.compiler.is_compiling() or not self._trains(root):
            return
        if observer.backward_depth or observer.forward_depth != 1:
            return
        _guarded(take_over, lambda: self._micro_step(root, args, kwargs))

    def _trains(self, root: Any) -> bool:
        return bool(root.training and self._torch.is_grad_enabled())

    def _micro_step(self, root: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        take_over, torch = self._take_over, self._torch
        if self._recording is not None:
            take_over.refuse("the root module is called more than once before backward, or a second model is")
            return
        if take_over.settings.harness:
            take_over.batches(torch).add(RootCall(torch, root, args, kwargs).given)
            if take_over.is_due("experiments"):
                take_over.run_named(torch)
        elif not take_over.has_framework:
            take_over.root_calls += 1
            call = RootCall(torch, root, args, kwargs)
            take_over.batches(torch).add(call.given)
            if take_over.is_due("control"):
                self._prepare(root, call)
            elif self._harness is not None and take_over.is_due("experiments"):
                take_over.run(torch, self._harness)

    def _prepare(self, root: Any, call: RootCall) -> None:
        refused = Recording.refused(self._torch)
        if refused:
            self._take_over.give_up(refused)
            return
        self._before = Snapshot(self._torch, owners_of(self._torch, [root]))
        self._call = call

    def _returned(self, root: Any, args: tuple[Any, ...], output: Any) -> None:
        if self._call is not None and self._recording is None and self._take_over.observes:
            _guarded(self._take_over, lambda: self._record(output))

    def _record(self, output: Any) -> None:
        assert self._call is not None
        shape = shape_of(self._torch, self._call.given)
        if shape is None:
            self._take_over.refuse("the root module is given no tensor of rows × tokens")
            return
        self._tape = Tape(self._torch, shape, output)
        self._recording = Recording(
            self._torch,
            self._tape,
            self._backward_comes,
            self._ended,
        )
        self._recording.start()

    def _ended(self) -> None:
        _guarded(self._take_over, self._control)

    def _backward_comes(self, loss: Any) -> None:
        assert self._tape is not None
        self._tape.end(loss)
        first = loss[0] if isinstance(loss, (tuple, list)) and loss else loss
        self._loss = first.detach() if isinstance(first, self._torch.Tensor) else None

    def _control(self) -> None:
        call, tape, before, loss = self._call, self._tape, self._before, self._loss
        self._call = self._recording = self._before = self._tape = self._loss = None
        assert call is not None
        assert tape is not None
        assert before is not None
        harness = ReplayHarness(self._torch, call.root, call, tape)
        refusal = harness.refusal()
        if refusal or loss is None or loss.numel() != 1:
            self._take_over.refuse(refusal or "backward is not called on one loss")
            return
        self._harness = harness
        self._take_over.controlled(self._torch, before, loss, lambda: harness.step(harness.captured))
