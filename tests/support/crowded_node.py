"""Descriptions of nodes that are far bigger than usual, from numbers."""

from __future__ import annotations

from dataclasses import replace

from probes.simulation.node.model.description import NodeDescription, RootDescription, describe
from probes.simulation.node.model.tree import Tree

_BELOW_ONE_SWITCH = 8
_FIRST_PID = 100_000


def crowded_node(gpus: int, nics: int, functions: int = 0) -> NodeDescription:
    """Return an HGX H100 node with so many GPUs and NICs, eight a switch, and other PCI functions."""
    node = describe("hgx-h100")
    devices = [["gpu"] * gpus, [f"compute mlx5_{number}" for number in range(nics)]]
    switches = -(-max(gpus, nics) // _BELOW_ONE_SWITCH)
    shares = [[kind[number::switches] for kind in devices] for number in range(switches)]
    roots = tuple(
        RootDescription(
            f"{number + 1:04x}:00", number * len(node.numa) // switches, switch=[*of_gpus, *of_nics]
        )
        for number, (of_gpus, of_nics) in enumerate(shares)
    )
    return replace(
        node,
        name=f"{gpus} × {nics}",
        root=(*roots, RootDescription("0000:80", 0, switch=["nvswitch"] * 4)),
        uncore=functions,
    )


def add_processes(tree: Tree, count: int, files: int = 8) -> None:
    """Add processes that use neither GPUs nor RDMA, each with so many open files."""
    for pid in range(_FIRST_PID, _FIRST_PID + count):
        tree.add(f"/proc/{pid}/comm", "sleep\n")
        for file in range(files):
            tree.link(f"/proc/{pid}/fd/{file}", "/dev/null")
