"""Ranks side by side: who comes late to each collective, and how long the others wait for it.

All ranks leave a collective at about the same moment, whatever their clocks say. So the rank whose row is the shortest
came last, and what another row is longer by is that rank's wait; no clock is needed for that. The ends also anchor the
clocks: the median difference of matched ends is a rank's offset.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from stepprobe.analysis.statistics import median
from stepprobe.analysis.trace.summary import Collective, TraceSummary


class Meeting(msgspec.Struct, frozen=True, kw_only=True):
    """One collective that every rank took part in."""

    name: str
    number: int
    """0 for the first of this name."""
    straggler: int
    """Place of the rank that came last."""
    waits_ns: tuple[int, ...]
    """What each rank waited for it."""
    spread_ns: int
    """Latest minus earliest end after the clocks are aligned: how well the alignment holds."""


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """Several ranks of one job."""

    labels: tuple[str, ...]
    offsets_ns: tuple[int, ...]
    """Clock of each rank minus the first one's."""
    meetings: tuple[Meeting, ...]
    unmatched: int
    """Communication rows without a partner on every other rank."""
    rows: int
    """Communication rows."""

    def waited(self, rank: int) -> int:
        """Return what one rank waited in all collectives, ns."""
        return sum(meeting.waits_ns[rank] for meeting in self.meetings)

    def last(self, rank: int) -> int:
        """Return how often one rank came last."""
        return sum(meeting.straggler == rank for meeting in self.meetings)


def label(summary: TraceSummary, place: int) -> str:
    """Return what a rank is called: its number, or its file (and process) where it has none."""
    if summary.rank is not None:
        return f"rank {summary.rank}"
    return f"{summary.file} #{place + 1}"


def ordered(summaries: Sequence[TraceSummary]) -> list[TraceSummary]:
    """Return summaries by rank, those without one last, by file and process."""
    return sorted(summaries, key=lambda one: (one.rank is None, one.rank or 0, one.file, one.process))


def compare(summaries: Sequence[TraceSummary]) -> Ranks:
    """Match the collectives of ranks: the n-th of a name on one rank is the n-th of that name on all."""
    found = [_numbered(one.collectives) for one in summaries]
    rows = sum(len(one.collectives) for one in summaries)
    shared = set.intersection(*map(set, found)) if found else set()
    keys = sorted(shared, key=lambda key: (found[0][key].start_ns, key))
    ends = [[rank[key].start_ns + rank[key].duration_ns for key in keys] for rank in found]
    offsets = [
        round(median([end - base for end, base in zip(rank, ends[0], strict=True)])) if keys else 0 for rank in ends
    ]
    meetings = []
    for place, key in enumerate(keys):
        durations = [rank[key].duration_ns for rank in found]
        shortest = min(durations)
        aligned = [rank[place] - offset for rank, offset in zip(ends, offsets, strict=True)]
        meetings.append(
            Meeting(
                name=key[0],
                number=key[1],
                straggler=durations.index(shortest),
                waits_ns=tuple(duration - shortest for duration in durations),
                spread_ns=max(aligned) - min(aligned),
            )
        )
    return Ranks(
        labels=tuple(label(one, place) for place, one in enumerate(summaries)),
        offsets_ns=tuple(offsets),
        meetings=tuple(meetings),
        unmatched=rows - len(keys) * len(found),
        rows=rows,
    )


def _numbered(collectives: Sequence[Collective]) -> dict[tuple[str, int], Collective]:
    seen: Counter[str] = Counter()
    found = {}
    for one in sorted(collectives, key=lambda row: (row.start_ns, row.name)):
        found[one.name, seen[one.name]] = one
        seen[one.name] += 1
    return found


def repeated(summaries: Sequence[TraceSummary]) -> list[int]:
    """Return ranks that more than one trace claims."""
    claims: Counter[int] = Counter()
    for one in summaries:
        if one.rank is not None:
            claims[one.rank] += 1
    return sorted(rank for rank, count in claims.items() if count > 1)
