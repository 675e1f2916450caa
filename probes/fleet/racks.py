"""Racks with one NVLink domain, such as NVL72: their nodes, and in what these differ that one job needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from probes.base.frozen import frozen
from probes.base.grouping import grouped
from probes.fleet.compare import Difference, Fleet, compare
from probes.fleet.summary import NodeSummary

_TRAYS = 18  # with four GPUs each, in an NVL72 (its data sheet: 72 GPUs, 36 CPUs with two GPUs each)


@frozen
class Rack:
    """The nodes of one NVLink domain."""

    domain: str  # the cluster UUID of NVML; "": that of these nodes is not known, as without registered GPUs
    nodes: tuple[str, ...]
    expected_nodes: int | None  # by the nodes' IMEX list, or by the machine's name; None: not known
    gpus: int
    cliques: Mapping[str, int]  # with their numbers of nodes
    imex: Mapping[str, int]  # states of the service that starts at boot: Kubernetes and prologs start others
    differences: tuple[Difference, ...]  # a domain that is split on purpose has several cliques

    def meaning_of(self, difference: Difference) -> str:
        """Return what it means that nodes of a rack differ in this; "": nothing is broken by it.

        Several nodes with a clique of their own are a partition that was configured.
        """
        is_split = difference.fact.id == "clique" and all(len(kind.nodes) > 1 for kind in difference.others)
        return "" if is_split else difference.fact.rack or ""


def domains_of(node: NodeSummary) -> list[str]:
    """Return the NVLink domain of a node's GPUs; [] where NVLink ends at the node, or that is not known."""
    return [found.slot.removeprefix("domain ") for found in node.traits if found.fact == "clique"]


def racks_of(fleet: Fleet) -> tuple[Rack, ...]:
    """Return the racks, the largest first, and then equal nodes whose rack is not known."""
    domains = grouped((domain, node) for node in fleet.summaries for domain in domains_of(node))
    racks = [_rack(domain, members) for domain, members in domains.items()]
    machines = {_machine(node) for members in domains.values() for node in members}
    others = [node for node in fleet.summaries if _machine(node) in machines and not domains_of(node)]
    racks += [_rack("", others)] if others else []
    return tuple(sorted(racks, key=lambda rack: (not rack.domain, -len(rack.nodes))))


def _machine(node: NodeSummary) -> tuple[str, tuple[str, ...]]:
    return node.role.machine, tuple(model for model, _ in node.role.gpus)


def _rack(domain: str, members: list[NodeSummary]) -> Rack:
    sizes = {value.partition(" ")[0] for value in _counts(members, "imex-nodes")}
    size = sizes.pop() if len(sizes) == 1 else ""
    is_nvl72 = any("NVL72" in member.role.machine for member in members)
    differences = compare(members, by_type=False).differences
    return Rack(
        domain=domain,
        nodes=tuple(member.name for member in members),
        expected_nodes=int(size) if size.isdecimal() and len(size) < 5 else _TRAYS if is_nvl72 else None,
        gpus=sum(count for member in members for _, count in member.role.gpus),
        cliques=_counts(members, "clique", f"domain {domain}"),
        imex=_counts(members, "service", "nvidia-imex"),
        differences=tuple(found for found in differences if found.fact.rack is not None),
    )


def _counts(members: list[NodeSummary], fact: str, slot: str = "") -> dict[str, int]:
    """Return the known values of a fact, the most frequent first."""
    traits = (found for member in members for found in member.traits if found.fact == fact)
    values = Counter(found.value for found in traits if slot in ("", found.slot))
    return {value: count for value, count in values.most_common() if isinstance(value, str)}
