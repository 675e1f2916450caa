"""Faults of jobs' settings for NCCL, UCX and NVSHMEM: each is one more process on the node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from probes.simulation.description import NodeDescription
from probes.simulation.faults.fault import Fault
from probes.simulation.processes import add_rank
from probes.simulation.tree import Tree

_pids = count(43000)


def _job(
    name: str,
    variables: dict[str, str],
    on: str = "hgx-h100",
    finds: Sequence[str] = (),
    libraries: tuple[str, ...] | None = None,
    gpu: int = 0,
) -> Fault:
    """A job of one process with these variables; its pid is the fault's own, so that faults combine."""
    pid = next(_pids)

    def spoil(tree: Tree) -> None:
        add_rank(tree, pid, gpu, variables, libraries)

    return Fault(name, frozenset(finds or (name,)), spoil=spoil, on=on)


def _turing(description: NodeDescription) -> NodeDescription:
    return replace(description, gpu=replace(description.gpu, capability=(7, 5)))


FAULTS: tuple[Fault, ...] = (
    _job("nccl-gdr-level-ignored", {"NCCL_NET_GDR_LEVEL": "NODE"}),
    _job("nccl-gdr-level-off", {"NCCL_NET_GDR_LEVEL": "LOC"}),
    _job("nccl-gdr-level-too-low", {"NCCL_NET_GDR_LEVEL": "PXB"}, on="pcie-l40s", gpu=2),
    _job("nccl-gdr-level-number", {"NCCL_NET_GDR_LEVEL": "3"}),
    _job("nccl-gdr-read-off", {"NCCL_NET_GDR_READ": "0"}),
    _job("nccl-gdr-c2c-off", {"NCCL_NET_GDR_C2C": "0"}, on="gb200"),
    Fault(
        "gdr-read-off-on-old-gpus", frozenset({"gdr-read-off-on-old-gpus"}), describe=_turing, on="pcie-l40s"
    ),
)
