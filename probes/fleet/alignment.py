"""Which nodes and which devices are compared with each other: types of nodes, and places of devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from probes.fleet.facts import Place, fact_of
from probes.fleet.summary import NodeSummary

_LEAST_TYPE = 3  # nodes; fewer with other NICs or GPUs are compared with the rest, and differ in that
_ANCHORS = {Place.GPU: "gpu", Place.NIC: "nic"}  # the facts that every device of a kind has


def types_of(nodes: Sequence[NodeSummary]) -> list[tuple[NodeSummary, ...]]:
    """Return the nodes by type, the largest type first: machine, models of GPUs and models of NICs.

    The number of devices is no part of the type, so that a node that has lost one is compared with the rest.
    """
    machines: dict[object, list[NodeSummary]] = {}
    for node in nodes:
        machines.setdefault(node.role.machine or tuple(model for model, _ in node.role.gpus), []).append(node)
    types: list[tuple[NodeSummary, ...]] = []
    for members in machines.values():
        models: dict[object, list[NodeSummary]] = {}
        for node in members:
            role = node.role
            key = tuple(model for model, _ in role.gpus), tuple(model for model, _ in role.nics)
            models.setdefault(key, []).append(node)
        ordered = sorted(models.values(), key=len, reverse=True)
        joined = [*ordered[0], *(node for few in ordered[1:] if len(few) < _LEAST_TYPE for node in few)]
        types.append(tuple(joined))
        types.extend(tuple(many) for many in ordered[1:] if len(many) >= _LEAST_TYPE)
    return sorted(types, key=len, reverse=True)


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
    """Return the slot of a device, or of a port below it."""
    if slot in renamed:
        return renamed[slot]
    device, slash, port = slot.rpartition("/")
    return f"{renamed.get(device, device)}{slash}{port}"
