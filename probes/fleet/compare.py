"""What many nodes say together: verdicts counted, equal nodes folded, and who differs from the rest in what.

The rest, for each fact and type of node, are the nodes with the value that more than half of them have, and
at least three. Without such a value, all values are named. The rest can be wrong: each node keeps its own
verdict.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from probes.base.frozen import frozen
from probes.base.grouping import grouped
from probes.base.unknown import Reason, Unknown
from probes.facts.rdma.bit_errors import RAW_TIMES
from probes.fleet.cables import faults_of_type
from probes.fleet.rails import CableFault
from probes.fleet.summary import FoundProblem, NodeSummary, Role
from probes.fleet.traits import FAR_ABOVE, Fact, Place, fact_of, rank_of
from probes.snapshot.verdict import State, Verdict

_LEAST_TYPE = 3  # nodes; fewer with other NICs or GPUs are compared with the rest, and differ in that
_ANCHORS = {Place.GPU: "gpu", Place.NIC: "nic"}  # the facts that every device of a kind has


def types_of(nodes: Sequence[NodeSummary]) -> list[tuple[NodeSummary, ...]]:
    """Return the nodes by type, the largest type first: machine, models of GPUs and models of NICs.

    The number of devices is no part of the type, so that a node that has lost one is compared with the rest.
    """
    machines = grouped((node.role.machine or _models(node.role.gpus), node) for node in nodes)
    types: list[tuple[NodeSummary, ...]] = []
    for members in machines.values():
        models = grouped(((_models(node.role.gpus), _models(node.role.nics)), node) for node in members)
        ordered = sorted(models.values(), key=len, reverse=True)
        joined = [*ordered[0], *(node for few in ordered[1:] if len(few) < _LEAST_TYPE for node in few)]
        types.append(tuple(joined))
        types.extend(tuple(many) for many in ordered[1:] if len(many) >= _LEAST_TYPE)
    return sorted(types, key=len, reverse=True)


def _models(devices: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    return tuple(model for model, _ in devices)


def aligned_slots(nodes: Sequence[NodeSummary]) -> list[Mapping[str, str]]:
    """Return, for each node, the slots by which its devices are compared, where they are not its own.

    Most nodes of a type have their devices in the same places. A node that counts its host bridges otherwise
    shares few places with them; if it has as many devices, they are aligned by their order.
    """
    moved: list[dict[str, str]] = [{} for _ in nodes]
    for place, anchor in _ANCHORS.items():
        used = [
            tuple(sorted(trait.slot for trait in node.traits if trait.fact == anchor and trait.slot))
            for node in nodes
        ]
        frequent = Counter(slots for slots in used if slots).most_common(1)
        if not frequent:
            continue
        common = frequent[0][0]
        for number, slots in enumerate(used):
            if slots == common or len(slots) != len(common):
                continue
            if 2 * len(set(slots) & set(common)) >= len(common):
                continue
            renamed = dict(zip(slots, common, strict=True))
            for trait in nodes[number].traits:
                if fact_of(trait.fact).place is place and trait.slot:
                    moved[number][trait.slot] = _renamed(trait.slot, renamed)
    return [dict(pairs) for pairs in moved]


def _renamed(slot: str, renamed: Mapping[str, str]) -> str:
    if slot in renamed:
        return renamed[slot]
    device, slash, port = slot.rpartition("/")
    return f"{renamed.get(device, device)}{slash}{port}"


LAST_OK = "last ok"  # the name of a node when it last worked
_LEAST_REST = 3  # nodes
_LEAST_FIGURES = 5  # nodes
_FLOOR = 0.05  # of the median: a smaller deviation is noise
_DEVIATIONS = 3 * 1.4826  # median absolute deviations: three standard deviations of normal noise
_STATUS_ORDER = (2, 3, 1, 0)  # exit statuses, the worst first
_STATES = (State.BROKEN, State.UNKNOWN, State.DEGRADED, State.READY, State.ACTIVE, State.NOT_APPLICABLE)


@frozen
class Unanswered:
    """A node without a summary."""

    node: str
    reason: str  # a clause: "connection timed out"


@frozen
class Group:
    """Nodes with the same verdict and the same findings."""

    verdict: Verdict  # of the first node
    findings: tuple[FoundProblem, ...]  # with devices if they are the same on all nodes
    nodes: tuple[str, ...]


@frozen
class Kind:
    """The nodes with one value of a fact."""

    value: str
    nodes: tuple[str, ...]


@frozen
class Difference:
    """A fact in which nodes of one type differ."""

    fact: Fact
    slots: tuple[str, ...]  # devices as most nodes call them, or names; (): the node itself
    role: Role
    rest: Kind | None  # None: no value is that of most nodes
    others: tuple[Kind, ...]  # the most frequent first


@frozen
class Uncompared:
    """Facts that are unknown on some nodes, and so neither equal nor different there."""

    facts: tuple[Fact, ...]
    reason: str  # "needs root"
    nodes: tuple[str, ...]


@frozen
class Fleet:
    """The answer about many nodes."""

    summaries: tuple[NodeSummary, ...]
    unanswered: tuple[Unanswered, ...]
    groups: tuple[Group, ...]  # the worst first
    differences: tuple[Difference, ...]  # what decides the path first
    uncompared: tuple[Uncompared, ...]
    roles: tuple[tuple[Role, int], ...]  # types with their number of nodes, the largest first
    cable_faults: tuple[CableFault, ...] = ()

    @property
    def counts(self) -> dict[State, int]:
        """How many nodes have each verdict, from good to bad."""
        counted = Counter(summary.verdict.state for summary in self.summaries)
        return {state: counted[state] for state in State if counted[state]}


def compare(
    summaries: Iterable[NodeSummary], unanswered: Iterable[Unanswered] = (), by_type: bool = True
) -> Fleet:
    """Return what nodes have in common and where they differ; each has its own name.

    `by_type`: compare nodes of one type with each other; else all, which were named to be compared.
    """
    nodes = tuple(summaries)
    types = types_of(nodes) if by_type else [nodes] if nodes else []
    differences: list[Difference] = []
    unread: dict[tuple[str, tuple[str, ...]], list[Fact]] = {}
    for members in types:
        found, unknown = _compare_type(members, _LEAST_FIGURES if by_type else 2)
        differences.extend(found)
        for key, facts in unknown.items():
            unread.setdefault(key, []).extend(fact for fact in facts if fact not in unread.get(key, ()))
    return Fleet(
        summaries=nodes,
        unanswered=tuple(unanswered),
        groups=_groups(nodes),
        differences=tuple(sorted(differences, key=lambda difference: rank_of(difference.fact.id))),
        uncompared=tuple(Uncompared(tuple(facts), *key) for key, facts in unread.items()),
        roles=tuple((members[0].role, len(members)) for members in types),
        cable_faults=tuple(fault for members in types for fault in _cable_faults(members)) if by_type else (),
    )


def _cable_faults(members: Sequence[NodeSummary]) -> tuple[CableFault, ...]:
    if not any(member.cables for member in members):
        return ()
    return faults_of_type({member.name: member.cables for member in members}, aligned_slots(members))


def fleet_status(fleet: Fleet, tolerance: int = 0) -> int:
    """Return the exit status of the worst node, as `gdrtop check` has it; 3 for a node that does not answer.

    `tolerance`: so many of the worst nodes are ignored.
    """
    statuses = [*(summary.status for summary in fleet.summaries), *(3 for _ in fleet.unanswered)]
    ordered = sorted(statuses, key=_STATUS_ORDER.index)
    return ordered[tolerance] if tolerance < len(ordered) else 0


# One node at two moments


@frozen
class Change:
    """A fact that has another value than before, on one device or several."""

    fact: Fact
    slots: tuple[str, ...]  # devices or names; (): the node itself
    before: str
    now: str


@frozen
class Changes:
    """A node when it last worked, and now."""

    before: NodeSummary
    now: NodeSummary
    changes: tuple[Change, ...]  # what decides the path first
    unread: tuple[tuple[str, tuple[Fact, ...]], ...]  # facts that are unknown then or now, by the reason


def compare_moments(before: NodeSummary, now: NodeSummary) -> Fleet:
    """Return the comparison of two moments of a node; the earlier one is named LAST_OK."""
    name = now.name if now.name != LAST_OK else "now"
    return compare((replace(before, name=LAST_OK), replace(now, name=name)), by_type=False)


def changes_between(before: NodeSummary, now: NodeSummary) -> Changes:
    """Return what has changed on a node, the most relevant first."""
    fleet = compare_moments(before, now)
    earlier, later = (summary.name for summary in fleet.summaries)
    changes: list[Change] = []
    for difference in fleet.differences:
        values = {node: kind.value for kind in difference.others for node in kind.nodes}
        changes.append(Change(difference.fact, difference.slots, values[earlier], values[later]))
    unread: dict[str, dict[Fact, None]] = {}
    for uncompared in fleet.uncompared:
        unread.setdefault(uncompared.reason, {}).update(dict.fromkeys(uncompared.facts))
    return Changes(
        before, now, tuple(changes), tuple((reason, tuple(facts)) for reason, facts in unread.items())
    )


# Equal nodes


def _groups(nodes: Sequence[NodeSummary]) -> tuple[Group, ...]:
    found: dict[object, list[NodeSummary]] = {}
    for node in nodes:
        verdict = node.verdict
        counts = verdict.path, verdict.gpus_served, verdict.gpus, verdict.nics, verdict.silenced
        reason = "" if verdict.is_green or node.findings else verdict.reason
        problems = tuple((problem.id, problem.severity, problem.title) for problem in node.findings)
        found.setdefault((verdict.word, counts, reason, problems), []).append(node)
    groups = [
        Group(members[0].verdict, _common(members), tuple(member.name for member in members))
        for members in found.values()
    ]
    return tuple(sorted(groups, key=lambda group: (*badness(group.verdict), len(group.nodes))))


def _common(members: Sequence[NodeSummary]) -> tuple[FoundProblem, ...]:
    first = members[0]
    return tuple(
        problem
        if all(member.findings[place].devices == problem.devices for member in members)
        else FoundProblem(problem.id, problem.severity, problem.title)
        for place, problem in enumerate(first.findings)
    )


def badness(verdict: Verdict) -> tuple[int, int, int]:
    """Return a key that sorts verdicts, the worst first."""
    return _STATES.index(verdict.state), -(verdict.critical or 0), -(verdict.warnings or 0)


# Differences between nodes of one type

_Values = dict["str | float", list[int]]  # a value -> the nodes that have it, by number


class _Entry:
    __slots__ = ("devices", "unread", "values")

    def __init__(self) -> None:
        self.values: _Values = {}
        self.unread: dict[str, list[int]] = {}  # by reason
        self.devices: dict[str, int] = {}  # names of the device, with their numbers of nodes


def _compare_type(
    members: Sequence[NodeSummary], least_figures: int
) -> tuple[list[Difference], dict[tuple[str, tuple[str, ...]], list[Fact]]]:
    """Return the differences, and the facts that are unknown by reason and nodes."""
    entries = _entries(members)
    names = [member.name for member in members]
    folded: dict[object, tuple[Difference, list[str]]] = {}
    unread: dict[tuple[str, tuple[str, ...]], list[Fact]] = {}
    for (fact_id, slot), entry in entries.items():
        fact = fact_of(fact_id)
        is_nowhere = fact_id in FAR_ABOVE and slot and not entry.values  # there is nothing to compare with
        for reason, numbers in () if is_nowhere else entry.unread.items():
            facts = unread.setdefault((reason, tuple(names[number] for number in numbers)), [])
            if fact not in facts:
                facts.append(fact)
        if len(entry.values) < 2:
            continue
        found = _figures(entry.values, fact, least_figures) if fact.unit else _kinds(entry.values)
        if found is None:
            continue
        rest, others = found
        label = max(entry.devices, key=entry.devices.__getitem__) if entry.devices else slot
        key = fact_id, rest, tuple(others)
        if key not in folded:
            named = tuple(Kind(value, tuple(names[number] for number in group)) for value, group in others)
            common = None if rest is None else Kind(rest[0], tuple(names[number] for number in rest[1]))
            folded[key] = Difference(fact, (), members[0].role, common, named), []
        if label:
            folded[key][1].append(label)
    return [
        Difference(found.fact, tuple(labels), found.role, found.rest, found.others)
        for found, labels in folded.values()
    ], unread


def _entries(members: Sequence[NodeSummary]) -> dict[tuple[str, str], _Entry]:
    """Return the values of all facts, by fact and slot, in the order of the first nodes."""
    entries: defaultdict[tuple[str, str], _Entry] = defaultdict(_Entry)
    wholly_unread: defaultdict[str, dict[str, list[int]]] = defaultdict(dict)  # fact -> reason -> nodes
    slots = aligned_slots(members)
    for number, member in enumerate(members):
        moved = slots[number]
        for found in member.traits:
            value, fact = found.value, found.fact
            if isinstance(value, Unknown):
                reason = value.reason.value
                if not found.slot and fact_of(fact).place is not Place.NODE:
                    wholly_unread[fact].setdefault(reason, []).append(number)
                    continue
                entries[fact, found.slot].unread.setdefault(reason, []).append(number)
                continue
            slot = moved.get(found.slot, found.slot) if moved else found.slot
            entry = entries[fact, slot]
            entry.values.setdefault(value, []).append(number)
            if found.device:
                entry.devices[found.device] = entry.devices.get(found.device, 0) + 1
    for (fact, slot), entry in entries.items():
        known_unread = wholly_unread.get(fact, {})
        absent = fact_of(fact).absent
        if absent and slot:
            seen = {number for group in (*entry.values.values(), *entry.unread.values()) for number in group}
            seen.update(number for group in known_unread.values() for number in group)
            missing = [number for number in range(len(members)) if number not in seen]
            if missing:
                entry.values.setdefault(absent, []).extend(missing)
    for fact, reasons in wholly_unread.items():
        entries[fact, ""].unread.update(reasons)
    for fact in FAR_ABOVE:  # summaries of older versions have none
        of_fact = [entry for (each, _), entry in entries.items() if each == fact]
        groups = (group for entry in of_fact for group in (*entry.values.values(), *entry.unread.values()))
        without = set(range(len(members))).difference(*groups)
        if without and any(entry.values for entry in of_fact):
            entries[fact, ""].unread[Reason.NOT_RECORDED.value] = sorted(without)
    return entries


_Named = tuple[str, tuple[int, ...]]


def _kinds(values: _Values) -> tuple[_Named | None, list[_Named]]:
    """Return the value of the rest, if there is one, and the others, the most frequent first."""
    ordered = sorted(values.items(), key=lambda pair: (-len(pair[1]), pair[1][0]))
    named = [(str(value), tuple(numbers)) for value, numbers in ordered]
    most = len(named[0][1])
    total = sum(len(numbers) for _, numbers in named)
    is_rest = most >= _LEAST_REST and most * 2 > total
    return (named[0], named[1:]) if is_rest else (None, named)


def _figures(values: _Values, fact: Fact, least: int) -> tuple[_Named | None, list[_Named]] | None:
    """Return the figures far from the median as `_kinds` does; None if there is none, or too few nodes.

    With fewer nodes than a median needs, which were named to be compared, all figures are returned.
    """
    figures = sorted(
        (float(value), number)
        for value, numbers in values.items()
        if not isinstance(value, str)
        for number in numbers
    )
    if len(figures) < least:
        return None
    far_above, lowest, highest = FAR_ABOVE.get(fact.id), figures[0][0], figures[-1][0]
    if len(figures) < _LEAST_FIGURES:
        noise = _FLOOR * abs(highest) if far_above is None else far_above(lowest) - lowest
        if highest - lowest <= noise:
            return None
        return None, [(f"{value:.3g} {fact.unit}", (number,)) for value, number in figures]
    middle = median(value for value, _ in figures)
    spread = median(abs(value - middle) for value, _ in figures)
    limit = max(_FLOOR * abs(middle), _DEVIATIONS * spread)
    if far_above is None:
        far = [(value, number) for value, number in figures if abs(value - middle) > limit]
    else:
        far = [(value, number) for value, number in figures if value > far_above(middle)]
    if not far:
        return None
    near = tuple(sorted({number for _, number in figures}.difference(number for _, number in far)))
    return (f"{middle:.3g} {fact.unit} (median)", near), [
        (f"{value:.3g} {fact.unit}{_times(value, middle)}", (number,)) for value, number in far
    ]


def _times(value: float, middle: float) -> str:
    """Return ", 400 times as much" of a figure far above the median."""
    return f", {value / middle:,.0f} times as much" if 0 < middle <= value / RAW_TIMES else ""
