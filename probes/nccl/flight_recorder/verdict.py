"""Which rank the others wait for, from the dumps of many ranks; no rank is taken to be innocent.

In a group, a collective that one rank has completed was called by all of them. The next one is the collective
in question: ranks that have not called it did not arrive. If all have called it, they are compared by
majority; if they agree, the network or a GPU is the cause. A rank that waits in one group explains why it did
not arrive in another, so the culprit is one that others wait for and that waits for no rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from probes.base.frozen import frozen
from probes.base.text import plural, spans
from probes.nccl.flight_recorder.dump import Dump, GroupProgress, Operation

_MOST_GROUPS = 64
_NAMED = 8


class Cause(Enum):
    """Why a group waits; the value is stable and stands in JSON."""

    NOT_ARRIVED = "not-arrived"  # some ranks have not called the collective
    MISMATCH = "mismatch"  # they have called different operations
    ALL_ARRIVED = "all-arrived"  # all have called the same: the network or a GPU
    NO_DUMP = "no-dump"  # all ranks with a dump have called it; others have no dump


@frozen
class WaitingGroup:
    """A process group in which ranks wait."""

    name: str
    description: str
    cause: Cause
    sequence: int  # of the collective that has not completed
    operation: str  # "nccl:all_reduce [[1024]] -> [[1024]] …"
    waiting: tuple[int, ...]  # ranks that have called it
    absent: tuple[int, ...]  # ranks that have not, or that have called something else
    behind: int  # calls that the last of them is behind
    without_dump: tuple[int, ...]  # ranks of the group whose dump was not read

    @property
    def title(self) -> str:
        """The group as shown: "group 0 (default_pg)"."""
        return f"group {self.name} ({self.description})" if self.description else f"group {self.name}"

    @property
    def sentence(self) -> str:
        """What happens in it, without a period."""
        what = f"{self.operation.partition(' ')[0] or 'collective'} {self.sequence} in {self.title}"
        others = ranks_text(self.waiting)
        if self.cause is Cause.NOT_ARRIVED:
            has = "has" if len(self.absent) == 1 else "have"
            wait = "waits" if len(self.waiting) == 1 else "wait"
            return f"{ranks_text(self.absent)} {has} not called {what}, and {others} {wait}"
        if self.cause is Cause.MISMATCH and not self.absent:
            return f"{others} call different operations as {what}"
        if self.cause is Cause.MISMATCH:
            calls = "calls" if len(self.absent) == 1 else "call"
            return f"{ranks_text(self.absent)} {calls} something else than {others} as {what}"
        if self.cause is Cause.NO_DUMP:
            return f"all ranks with a dump have called {what}; no dump of {ranks_text(self.without_dump)}"
        return f"all ranks have called {what}, and it has not been seen to complete"


@frozen
class DumpVerdict:
    """What the dumps say together."""

    ranks: tuple[int, ...]  # with a dump
    groups: tuple[WaitingGroup, ...]  # that wait
    culprits: tuple[int, ...]  # ranks that others wait for and that wait for no rank
    is_cycle: bool = False  # ranks wait for each other: they call groups in a different order
    suspected: tuple[int, ...] = ()  # few, without a dump, in every group that waits


def ranks_text(ranks: Iterable[int]) -> str:
    """Return "rank 5" or "ranks 0-3, 7"."""
    shown = spans(ranks)
    word = "rank" if len(shown) == 1 and shown[0].isdecimal() else "ranks"
    more = f" and {plural(len(shown) - _NAMED, 'more range')}" if len(shown) > _NAMED else ""
    return f"{word} {', '.join(shown[:_NAMED])}{more}"


def verdict_of(dumps: Sequence[Dump]) -> DumpVerdict:
    """Compare the dumps, one a rank."""
    groups: dict[tuple[str, tuple[int, ...]], dict[int, GroupProgress]] = {}
    for dump in dumps:
        for group in dump.groups:
            groups.setdefault((group.name, group.ranks), {})[dump.rank] = group
    known = {dump.rank for dump in dumps}
    waiting = [_judged(ranks, members, known) for (_, ranks), members in groups.items()]
    found = sorted(
        (group for group in waiting if group is not None),
        key=lambda group: (list(Cause).index(group.cause), -len(group.waiting), group.name),
    )
    edges: dict[int, set[int]] = {}  # a rank -> those that it waits for
    for waits in found:
        if waits.cause is Cause.NOT_ARRIVED:
            for rank in waits.waiting:
                edges.setdefault(rank, set()).update(waits.absent)
    awaited = {rank for others in edges.values() for rank in others}
    culprits = awaited - set(edges)
    mismatched = {rank for group in found if group.cause is Cause.MISMATCH for rank in group.absent}
    missing = [set(group.without_dump) for group in found]
    suspected = set.intersection(*missing) if missing else set()
    return DumpVerdict(
        ranks=tuple(sorted(known)),
        groups=tuple(found[:_MOST_GROUPS]),
        culprits=tuple(sorted(culprits or mismatched)),
        is_cycle=bool(awaited) and not culprits,
        suspected=tuple(sorted(suspected)) if len(suspected) < len(known) else (),
    )


def _judged(
    ranks: tuple[int, ...], members: Mapping[int, GroupProgress], known: set[int]
) -> WaitingGroup | None:
    """Return what happens in a group; None: no rank is known to wait there."""
    sequence = _sequence_in_question(members.values())
    arrived = {rank for rank, group in members.items() if group.called >= sequence}
    if not arrived:
        return None
    # A rank whose dump does not know the group has called nothing in it.
    expected = (set(ranks) & known) | set(members)
    absent = expected - arrived
    without_dump = tuple(sorted(set(ranks) - known))
    operations = {
        rank: members[rank].operations[sequence] for rank in arrived if sequence in members[rank].operations
    }
    usual = _majority(operations)
    cause, behind = Cause.ALL_ARRIVED, 0
    if absent:
        cause = Cause.NOT_ARRIVED
        most = max(members[rank].called for rank in arrived)
        behind = most - min(members[rank].called if rank in members else 0 for rank in absent)
    elif len(set(operations.values())) > 1:
        cause = Cause.MISMATCH
        absent = set() if usual is None else {rank for rank, call in operations.items() if call != usual}
    elif without_dump:
        cause = Cause.NO_DUMP
    first = next(iter(members.values()))
    return WaitingGroup(
        name=first.name,
        description=first.description,
        cause=cause,
        sequence=sequence,
        operation="" if usual is None else usual.text,
        waiting=tuple(sorted(arrived - absent)),
        absent=tuple(sorted(absent)),
        behind=behind,
        without_dump=without_dump,
    )


def _sequence_in_question(members: Iterable[GroupProgress]) -> int:
    """Return the number of the first collective that no rank is known to have completed.

    Rings differ in age: before the oldest entry that all have, nothing can be compared.
    """
    groups = list(members)
    completed = [group.completed for group in groups if group.completed is not None]
    if completed:
        return max(completed) + 1
    return min(max(group.oldest for group in groups), max(group.called for group in groups))


def _majority(operations: Mapping[int, Operation]) -> Operation | None:
    if not operations:
        return None
    (usual, count), *_ = Counter(operations.values()).most_common(1)
    return usual if 2 * count > len(operations) else None
