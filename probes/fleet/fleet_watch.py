"""A fleet that is read again and again: what changed on each node, and which nodes no longer answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from probes.base.frozen import frozen
from probes.base.unknown import Unknown
from probes.fleet.compare import Fleet
from probes.fleet.summary import NodeSummary
from probes.fleet.traits import fact_of

_MOST_FACTS = 8  # of one change


@frozen
class Change:
    """What changed on a node between two readings."""

    at: float  # seconds since 1970, of the later reading
    what: tuple[str, ...]  # clauses, the most relevant first: "was READY", "new: MTU is 1500"


@frozen
class WatchedNode:
    """A node with its newest answer."""

    name: str
    summary: NodeSummary | None  # None: it has not answered yet; with silent_since, it did not
    silent_since: float | None = None  # seconds since 1970, of the first reading without an answer
    reason: str = ""  # why it does not answer
    change: Change | None = None  # the newest


class FleetWatch:
    """The nodes of a fleet, over all readings; `names`: of its nodes, where they are known before."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.fleet: Fleet | None = None  # the newest reading that has ended
        self.read_at = 0.0  # seconds since 1970, of its end
        self._before = {name: WatchedNode(name, None) for name in names}  # as that reading left them
        self._nodes = dict(self._before)

    @property
    def nodes(self) -> tuple[WatchedNode, ...]:
        """The nodes, in the order of the newest reading; those that do not answer last."""
        return tuple(self._nodes.values())

    @property
    def has_answers(self) -> bool:
        """Return whether a node has answered, or a reading has ended."""
        return self.fleet is not None or any(node.summary is not None for node in self._nodes.values())

    def node(self, name: str) -> WatchedNode | None:
        """Return a node by its name."""
        return self._nodes.get(name)

    def is_changed(self, node: WatchedNode) -> bool:
        """Return whether the newest reading has changed a node."""
        return node.change is not None and node.change.at >= self.read_at

    @property
    def changed(self) -> int:
        """How many nodes the newest reading has changed."""
        return sum(map(self.is_changed, self._nodes.values()))

    def add_answer(self, summary: NodeSummary, at: float) -> None:
        """Take the answer of a node in a reading that still runs."""
        old = self._before.get(summary.name)
        what: tuple[str, ...] = () if self.fleet is None else ("new node",)
        if old is not None:
            what = changes(old.summary, summary) if old.summary is not None else ()
            if old.silent_since is not None:
                what = ("answers again" if old.summary is not None else "answers now", *what)
        change = Change(at, what) if what else old.change if old is not None else None
        self._nodes[summary.name] = WatchedNode(summary.name, summary, change=change)

    def add(self, fleet: Fleet, at: float) -> None:
        """Take a reading, which ended at this time."""
        before, is_first = self._before, self.fleet is None
        self._nodes = {}
        for summary in fleet.summaries:
            self.add_answer(summary, at)
        for missing in fleet.unanswered:
            old = before.get(missing.node) or WatchedNode(missing.node, None)
            if old.silent_since is None:
                change = old.change if is_first else Change(at, ("no longer answers",))
                old = replace(old, silent_since=at, change=change)
            self._nodes[missing.node] = replace(old, reason=missing.reason)
        self.fleet, self.read_at, self._before = fleet, at, dict(self._nodes)


def changes(old: NodeSummary, new: NodeSummary) -> tuple[str, ...]:
    """Return what changed between two answers of a node, as clauses.

    A fact that is unknown in one of them, or that is a measured figure, is not compared.
    """
    what: list[str] = []
    if old.verdict.state is not new.verdict.state:
        what.append(f"was {old.verdict.state.value}")
    elif old.verdict.gpus_served != new.verdict.gpus_served:
        what.append(f"was {old.verdict.gpus_served} of {old.verdict.gpus} GPUs")
    found_before = {problem.id: problem for problem in old.findings}
    found_now = {problem.id: problem for problem in new.findings}
    what.extend(f"new: {problem.title}" for name, problem in found_now.items() if name not in found_before)
    what.extend(f"gone: {problem.title}" for name, problem in found_before.items() if name not in found_now)
    what.extend(
        f"other devices: {problem.title}"
        for name, problem in found_now.items()
        if name in found_before and set(found_before[name].devices) != set(problem.devices)
    )
    facts = _changed_facts(old, new)
    return (*what, *facts[:_MOST_FACTS], *([f"{len(facts) - _MOST_FACTS} more"] * (len(facts) > _MOST_FACTS)))


def _changed_facts(old: NodeSummary, new: NodeSummary) -> list[str]:
    before = {(found.fact, found.slot): found.value for found in old.traits}
    changed: list[str] = []
    for found in new.traits:
        was, fact = before.get((found.fact, found.slot)), fact_of(found.fact)
        if was is None or isinstance(was, Unknown) or isinstance(found.value, Unknown):
            continue
        if not fact.unit and was != found.value:
            device = found.device or found.slot
            changed.append(f"{fact.label}{f' of {device}' if device else ''}: {was} → {found.value}")
    return changed
