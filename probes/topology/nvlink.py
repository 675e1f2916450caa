"""What NVLink and chip-to-chip links connect, read off the graph."""

from __future__ import annotations

from collections.abc import Iterator

from probes.base.unknown import Unknown, first_unread
from probes.facts.node import Node
from probes.topology.graph import C2C, GPU, NVLINK
from probes.topology.parts import Parts


def nvlinks_between(parts: Parts, a: str, b: str) -> int:
    """Return the NVLinks that join two GPUs, directly or through NVSwitches; 0 where NVML names none.

    An NVSwitch is also a peer that this virtual machine does not see (NCCL src/graph/xml.cc). A GPU that both
    are connected to switches nothing: see `has_relay`.
    """
    direct = parts.link(a, b)
    if direct.get("type") == NVLINK:
        return int(direct["links"])
    switches = [peer for peer in _common_peers(parts, a, b) if parts.nodes[peer]["kind"] != GPU]
    return min(sum(int(parts.link(gpu, switch)["links"]) for switch in switches) for gpu in (a, b))


def has_relay(parts: Parts, a: str, b: str) -> bool:
    """Return whether a third GPU has NVLinks directly to both: NCCL's NVB (src/graph/paths.cc)."""
    return any(parts.nodes[peer]["kind"] == GPU for peer in _common_peers(parts, a, b))


def _common_peers(parts: Parts, a: str, b: str) -> Iterator[str]:
    """Yield what both GPUs have NVLinks to."""
    for peer, edge in parts.adj[a].items():
        if edge["type"] == NVLINK and parts.link(peer, b).get("type") == NVLINK:
            yield peer


def nvlink_peers(parts: Parts, gpu: str) -> frozenset[str]:
    """Return the GPUs that a GPU has NVLinks to, directly or through NVSwitches (`nvlinks_between`)."""
    found: set[str] = set()
    for peer, edge in parts.adj[gpu].items():
        if edge["type"] != NVLINK or not edge["links"]:
            continue
        if parts.nodes[peer]["kind"] == GPU:
            found.add(peer)
        else:
            others = parts.adj[peer].items()
            found.update(other for other, far in others if far["type"] == NVLINK and far["links"])
    return frozenset(found - {gpu})


def unread_c2c(node: Node) -> dict[str, Unknown]:
    """Return the GPUs that may have chip-to-chip links, which could not be read; x86 CPUs have none."""
    platform = node.platform
    architecture = platform if isinstance(platform, Unknown) else platform.cpu_architecture
    if isinstance(node.gpus, Unknown) or architecture == "x86_64":
        return {}
    unread = {gpu.bdf: first_unread((gpu.c2c_links,)) for gpu in node.gpus.gpus}
    return {bdf: why for bdf, why in unread.items() if why is not None}


def has_c2c(parts: Parts, gpu: str) -> bool:
    """Return whether a GPU is attached to its CPU by chip-to-chip links."""
    return any(edge["type"] == C2C for edge in parts.adj[gpu].values())
