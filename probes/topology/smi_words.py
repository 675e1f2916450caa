"""nvidia-smi's word for what lies between two PCI functions."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

from probes.base.unknown import Maybe, Reason, Unknown
from probes.topology.graph import HOST_BRIDGE

if TYPE_CHECKING:
    import networkx as nx


class Smi(Enum):
    """nvidia-smi's words for a path (`nvidia-smi topo -m` legend), nearest first."""

    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    SYS = "SYS"


def smi_path(graph: nx.Graph[str], route: Sequence[str]) -> Maybe[Smi]:
    """Return the word for a route through the graph (legend of `topo -m`; nvidia-smi's source is closed).

    Unknown if the route crosses from one host bridge to another and a NUMA node is missing.
    """
    functions = graph.nodes
    a, b = route[0], route[-1]
    if _device(a) == _device(b):
        return Smi.PIX
    bridges = sum(functions[part]["kind"] == HOST_BRIDGE for part in route)
    if bridges == 1:
        return Smi.PHB
    if bridges == 0:
        # Below the last common port, a downstream port and the device on either side are one switch.
        top = min(range(len(route)), key=lambda place: int(functions[route[place]]["depth"]))
        return Smi.PIX if top <= 2 and len(route) - 1 - top <= 2 else Smi.PXB
    for bdf in (a, b):
        if isinstance(functions[bdf]["numa_node"], Unknown):
            detail = f"NODE or SYS: the NUMA node of {bdf} is unknown"
            return Unknown(Reason.NOT_THERE, f"{functions[bdf]['sysfs_path']}/numa_node", detail)
    return Smi.NODE if functions[a]["numa_node"] == functions[b]["numa_node"] else Smi.SYS


def _device(bdf: str) -> str:
    """Return the BDF without its function: the functions of one device have it in common."""
    return bdf.rpartition(".")[0]
