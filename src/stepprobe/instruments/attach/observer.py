"""Knows when a step begins and when it ends, and what was counted in it."""

import contextlib
import os
import time
from collections.abc import Callable
from threading import get_ident
from typing import Any, NamedTuple

from stepprobe.instruments.attach.budget import Budget, launched_as
from stepprobe.instruments.attach.clock import INDEX, UNATTRIBUTED, Books, StackClock
from stepprobe.instruments.attach.journal import Journal
from stepprobe.instruments.attach.patches import Gate, Patches
from stepprobe.instruments.attach.sites import Sites
from stepprobe.model.accounts import BOOKED

EVAL = INDEX["eval"]
OPTIMIZER = INDEX["optimizer"]
FORWARD = INDEX["forward"]
FORWARD_OTHER = INDEX["forward.other"]
HOOKS_OF_A_PART = 2
PUT_ASIDE_NS = 500_000
"""A hook that seems to take longer was interrupted: on a busy machine the kernel takes the processor away where the
thread enters it next, which is often a hook's reading of the CPU time."""


class Limit(NamedTuple):
    """After how many steps to end the job."""

    steps: int
    """Steps that were asked for."""
    warmup: int
    """Steps before them that a warm-up may take."""


def nothing() -> None:
    """Do nothing."""


class Occasions:
    """Who is told of what; each list holds functions, called in their order."""

    def __init__(self) -> None:
        self.detail: list[Callable[[bool], None]] = []
        """Called with True before a step in detail, with False before one without."""
        self.begin: list[Callable[[], None]] = []
        """Called once, when the first step begins."""
        self.boundary: list[Callable[[int], bool]] = []
        """Called between two steps with the index of the one to come; True: what that took belongs to no step."""
        self.finish: list[Callable[[str], None]] = []
        """Called when the training ends (``train_end``), or the script (``exit``)."""
        self.root: list[Callable[[Any], None]] = []
        """Called with each root module before it gets its hooks."""
        self.counting: list[Callable[[Any], None]] = []
        """Called, where no step calls a root, with the part that is given the batch, before it gets its hooks."""


class Observer:
    """The state of the observation of one training process.

    A step ends when the first data is asked for after an optimizer step (or, in a loop without a DataLoader, at the
    next forward), so scheduler, zero_grad, logging, callbacks, checkpoints and evaluation belong to the step that
    caused them.
    """

    def __init__(self, folder: str, limit: Limit | None, clock: StackClock | None = None) -> None:
        self.clock = clock or StackClock()
        self.gate = Gate()
        self.patches = Patches()
        self.sites = Sites()
        self.budget = Budget()
        self.journal = Journal(folder, self.sites)
        self.facts = self.journal.facts
        self.counters: dict[str, int] = {}
        self.parts = self.inside_ns = self.put_aside = 0
        """Calls of hooked parts of the model in this step, what their hooks saw of their own cost, and how many hooks
        were put aside in between."""
        self.passes = self.reads = 0
        """Calls in this step that wrappers let through without an event (``Budget.cost_of``)."""
        self.on = Occasions()
        self.take_over: Any = None  # takes the script's step over for experiments; None where there are none
        self.aside = ""
        """Why the step under way stays out of every mean (``model.records.Step.aside``); cleared when it ends."""
        self.running = False
        """Whether a step is under way (also while the gate is shut for an evaluation)."""
        self.detail = False
        self.forward_part = FORWARD
        """What a piece of the forward pass without a name of its own is booked to, in this step."""
        self.part: Callable[[str], Callable[[Any], Any]] = lambda _: lambda function: function
        """Decorator that books a function as a part of the forward pass; PyTorch's adapter puts the real one here."""
        self.unwind: Callable[[], None] = lambda: None
        """Called where no forward can be under way: an interrupt that the script caught ran no hook behind it."""
        self.batch_loaded: Callable[[Any], None] = lambda _: None
        """Called with each batch that a loader gave."""
        self.optimizer_stepped: Callable[[], None] = nothing
        """Called behind each optimizer step for as long as no root is known."""
        self.tell: Callable[[str], None] = lambda _: None
        """Called with the name of each stage that this process reaches for the first time."""
        self.backward_depth = self.forward_depth = 0
        self.optimizers = self.optimizer_steps = 0
        self._limit, self._stays = limit, ""
        self._index = self._asides = self._own_ns = self._optimizer_depth = 0
        self._stepped = self._fetched = self._evaluating = self._trains_in_eval = self._suspended = False

    # -- what the hooks tell ------------------------------------------------------------------------------------

    def data_asked(self) -> None:
        """A DataLoader is about to give a batch, or to start: the moment between two steps."""
        if self.gate.open:
            if get_ident() != self.clock.owner or self._evaluating:
                return
            if self._stepped:
                self._safely(self._end_step, "boundary")
            self._fetched = True
        elif self._idle() and self.optimizers:
            self._safely(self._begin)
            self._fetched = True

    def root_called(self) -> None:
        """The root module is about to run forward in training."""
        if self._idle():
            self._safely(self._begin)
        elif self._stepped and not self._fetched and self.gate.open:
            self._safely(self._end_step, "boundary")

    def optimizer_begins(self) -> None:
        """An optimizer step begins."""
        if self._evaluating:  # a model that is trained in eval mode: eval() says nothing about evaluation here
            self._trains_in_eval = True
            self.training_resumed()
        if self.gate.open and get_ident() == self.clock.owner:
            if not self.backward_depth:
                self.unwind()
            self._optimizer_depth = self.clock.push(OPTIMIZER)

    def optimizer_ended(self) -> None:
        """An optimizer step has ended."""
        self.optimizer_steps += 1
        if self._optimizer_depth and get_ident() == self.clock.owner:
            self.clock.pop_to(self._optimizer_depth)
            self._optimizer_depth = 0
        if self.gate.open:
            self._stepped = True
        if not self._suspended:
            self.optimizer_stepped()

    def optimizer_skipped(self) -> None:
        """A gradient scaler left an optimizer step out: still a step, counted apart."""
        self._stepped = True
        self.count("amp_skipped")

    def evaluation_began(self) -> None:
        """The root went into eval mode: what follows, up to train(), is evaluation."""
        if self.gate.open and not self._trains_in_eval and get_ident() == self.clock.owner:
            self._evaluating = True
            self.clock.rebase(EVAL)
            self.gate.open = False

    def training_resumed(self) -> None:
        """The root is back in train mode."""
        if self._evaluating:
            self._evaluating = False
            self.clock.rebase(UNATTRIBUTED)
            self.gate.open = True

    def training_ended(self) -> None:
        """The framework says that its loop is over."""
        self._safely(self._finish, "train_end")

    def count(self, name: str, more: int = 1) -> None:
        """Add to a counter of this step."""
        self.counters[name] = self.counters.get(name, 0) + more

    def note(self, text: str) -> None:
        """Keep a line about something that was skipped or went wrong in the instrument; each line once."""
        self.journal.note(text)

    def hook_took(self, ns: int) -> None:
        """Add what a hook of a part saw of its own cost, unless the thread was put aside while it ran."""
        if ns < PUT_ASIDE_NS:
            self.inside_ns += ns
        else:
            self.put_aside += 1

    def add_cost(self, ns: int) -> None:
        """Add to our own cost in this step."""
        self._own_ns += ns

    # -- the life of the process --------------------------------------------------------------------------------

    def close(self) -> None:
        """The script ends."""
        if self.journal.is_open:
            self._finish("exit")
            if self.clock.backwards:
                self.note(f"the clock went backwards {self.clock.backwards} times; it was held still")
            self.journal.close()

    def end_after(self, limit: Limit, stays: str) -> None:
        """End the job at the end of the step in which so many steps have been observed, for another reason than these.

        Args:
            limit: After how many.
            stays: The option with which the job goes on.
        """
        self._limit, self._stays = limit, stays

    def go_inert(self) -> None:
        """This process is a fork: observe nothing, write nothing."""
        self.running = self.gate.open = False
        self._suspended = True
        self.journal.abandon()

    def suspend(self) -> None:
        """Take every hook out (used to measure what they cost)."""
        self._set_detail(False)
        self.running = self.gate.open = False
        self._suspended = True
        self.patches.undo()

    def resume(self) -> None:
        """Put the hooks back; observation goes on with a new step."""
        self.patches.redo()
        self._suspended = False

    # -- steps --------------------------------------------------------------------------------------------------

    def _safely(self, action: Callable[..., None], *arguments: str) -> None:
        """Do it; a fault of ours ends the observation, never the user's job."""
        try:
            action(*arguments)
        except Exception as error:
            self.running = self.gate.open = False
            self._suspended = True
            self.note(f"the observation ended after {self._index} steps: {type(error).__name__}: {error}")

    def _idle(self) -> bool:
        return not (self.running or self._suspended)

    def _open(self) -> None:
        self.tell("step")
        for begin in self.on.begin:
            try:
                begin()
            except Exception as error:  # no thread is to be had, or the costs cannot be measured: steps still can
                self.note(f"the observation began without a part of it: {type(error).__name__}: {error}")
        rank, world_size = launched_as("RANK", 0), max(1, launched_as("WORLD_SIZE", 1))
        self.journal.begin(rank, world_size, self.budget.header(rank, world_size))

    def _begin(self) -> None:
        if not self.journal.has_begun:
            self._open()
        self._optimizer_depth = 0
        self._clean()
        self.clock.restart()
        self._own_ns = 0
        self.running = self.gate.open = True

    def _clean(self) -> None:
        """Nothing is counted yet in the step to come, and whether it is observed in detail is drawn."""
        self.counters = {}
        self.parts = self.inside_ns = self.put_aside = self.passes = self.reads = 0
        self._stepped = self._fetched = False
        self._set_detail(self.budget.detail_next(self._index) and not self.aside)

    def _end_step(self, end: str) -> None:
        clock = self.clock
        if self._optimizer_depth:  # its step raised: the post hook never came
            clock.pop_to(self._optimizer_depth)
            self._optimizer_depth = 0
        books = clock.cut() if end == "boundary" else clock.take()
        if self.aside:
            self.sites.drop_samples()
        elif end != "exit":
            self.sites.keep_samples()
        self._write_step(books, end)
        if end == "boundary":
            self._between_steps()
        self._clean()
        self._own_ns = time.perf_counter_ns() - clock.begin_wall
        if end == "boundary" and not self.aside:
            self._stop_at_limit()

    def _between_steps(self) -> None:
        """Do what is due where no step is under way; a fault of ours in it ends that, and nothing else."""
        took = False
        self.gate.open = False
        for act in list(self.on.boundary):
            try:
                took = act(self._index) or took
            except Exception as error:
                took = True
                self.on.boundary.remove(act)
                self.note(f"left out between two steps: {type(error).__name__}: {error}")
        self.gate.open = True
        if took:
            self.sites.drop_samples()
            self.clock.skip()

    def _write_step(self, books: Books, end: str) -> None:
        accounts = {}
        for account, spent, busy in zip(BOOKED, books.wall, books.cpu, strict=True):
            if spent:
                accounts[account] = (spent, max(0, spent - busy))
        if not self.aside:
            self.budget.feel(self.parts - self.put_aside / HOOKS_OF_A_PART, self.inside_ns)
        syncs = self.counters.get("syncs", 0)
        cost = self._own_ns + self.budget.cost_of(books.events, self.parts, syncs, self.passes, self.reads)
        cpu_ns = books.end_cpu - books.begin_cpu
        if not self.aside:
            self.budget.learn(self.detail, cost, cpu_ns)
        record = {
            "index": self._index,
            "wall_ns": books.end_wall - books.begin_wall,
            "cpu_ns": cpu_ns,
            "self_ns": cost,
            "detail": self.detail,
            "accounts": accounts,
            "counters": self.counters,
            "end": end,
            "aside": self.aside,
        }
        self.journal.step(record, books.begin_wall, books.end_wall)
        self._index += 1
        self._asides += bool(self.aside)
        self.aside = ""

    def _finish(self, end: str) -> None:
        self.training_resumed()
        if self.gate.open and self._stepped:
            self._end_step(end)
        self._set_detail(False)
        self.running = self.gate.open = False
        for act in self.on.finish:
            try:
                act(end)
            except Exception as error:
                self.note(f"left out at the end: {type(error).__name__}: {error}")

    def _set_detail(self, detail: bool) -> None:
        if detail != self.detail:
            self.detail = detail
            self.forward_part = FORWARD_OTHER if detail else FORWARD
            for tell in self.on.detail:
                tell(detail)

    def _stop_at_limit(self) -> None:
        """End the job after the steps that were asked for; those that stay out of the means are none of them."""
        limit = self._limit
        if limit is None or self._index - self._asides < sum(limit):
            return
        self.close()
        self.running = self.gate.open = False
        self._suspended = True
        asked, why = (" ", "for trace and experiments") if self._stays else (", as asked, ", "set aside")
        said = f"stepprobe: ended the script after {limit.steps} steps{asked}and {limit.warmup} to warm up"
        said += f", and {self._asides} {why}" if self._asides else ""
        said += f"; {self._stays} lets it go on\n" if self._stays else "\n"
        with contextlib.suppress(OSError):
            os.write(2, said.encode())
        raise SystemExit(0)
