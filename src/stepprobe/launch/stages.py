"""How far the attachment got in a command that was seen to take no step, and what to do about it."""

from collections.abc import Collection

import msgspec

from stepprobe.model.evidence import Evidence

EVENTS = "attach-events.jsonl"
"""One line for each stage that a process reached."""

_MISSING = {
    "python": (
        "no Python process of this command loaded stepprobe: the command starts none, or something between cleared the "
        "environment or started Python with -I, -E or -S. Run the training itself under stepprobe (inside the "
        "container, after sudo or env -i)"
    ),
    "torch": (
        "Python ran, but never imported torch: the training runs elsewhere (a container, another host, a queue), or "
        "the script ended before. Run stepprobe where the training process starts"
    ),
    "optimizer": (
        "torch was imported, but no optimizer was made: the script ended before its training, or trains without "
        "torch.optim. Check its output above, and that its arguments start a training"
    ),
    "step": (
        "an optimizer was made, but no training step was begun: the script ended before its training loop drew a "
        "batch. Check its output above, and that its arguments start a training"
    ),
}
"""Stages in their order, each with what it means that it was not reached."""

_UNFINISHED = (
    "a step was begun, but none was finished: the script never called optimizer.step(), or ended in its first step. "
    "Let it take at least two optimizer steps"
)

_OBSERVED = (
    "the command has ended, but its Python goes on in the background, where it is observed. When it has ended, "
    "stepprobe report shows its steps"
)
_FORKED = (
    "the command has ended and left processes in the background that were forked (a daemon is), and a forked process "
    "is not observed. Run the training in the foreground"
)


class _Event(msgspec.Struct):
    pid: int
    event: str


def explain(evidence: Evidence, living: Collection[int] = ()) -> str:
    """Return one sentence that says which stage was not reached, and the next step.

    Args:
        evidence: Of a run without a step.
        living: Processes of the command that go on in the background.
    """
    events = _events(evidence.files.get(EVENTS, b""))
    if living and evidence.status == "finished":  # else what went on is not why there is no step
        own = {event.pid for event in events if event.event == "python"}
        return f"no training step was observed yet: {_OBSERVED if own.intersection(living) else _FORKED}."
    reached = {event.event for event in events}
    missing = next((stage for stage in _MISSING if stage not in reached), None)
    told = _MISSING[missing] if missing else _UNFINISHED
    ended = "" if evidence.status == "finished" else f" ({_ending(evidence.status)})"
    return f"no training step was observed{ended}: {told}."


def _ending(status: str) -> str:
    how, _, number = status.partition(" ")
    match how:
        case "exit":
            return f"the command ended with exit code {number}"
        case "signal":
            return f"the command was ended by signal {number}"
        case _:
            return "the run was interrupted"


def _events(data: bytes) -> list[_Event]:
    events = []
    for line in data.splitlines():
        try:
            events.append(msgspec.json.decode(line, type=_Event))
        except msgspec.DecodeError:  # a line cut by a kill says nothing
            continue
    return events
