"""Faults of the NVLink fabric and of what manages it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from probes.simulation.faults.fault import ChangeDescription, Fault, fault
from probes.simulation.node.model.tree import Tree
from probes.simulation.node.system.fabric import MANAGER, NVLSM, stop_nvlsm
from probes.simulation.node.system.services import stop

_GPU = 3


def _nvml(**changes: Any) -> ChangeDescription:
    """Change what NVML reports."""
    return lambda node: replace(node, nvml=replace(node.nvml, **changes))


def _without_nvlsm(tree: Tree) -> None:
    stop(tree, MANAGER, "failed")
    tree.remove(NVLSM)


def _without_umad(tree: Tree) -> None:
    if "ib_umad" not in tree.live_modules:
        raise LookupError("ib_umad")  # no Fabric Manager of this node needs it
    stop(tree, MANAGER, "failed")
    if "ib_umad" in tree.live_modules:
        tree.live_modules.remove("ib_umad")
        tree.remove("/sys/module/ib_umad")
    for number in range(len(tree.cards)):
        tree.remove(f"/dev/infiniband/umad{number}")


def _without_channels(tree: Tree) -> None:
    tree.remove("/dev/nvidia-caps-imex-channels")


FAULTS: tuple[Fault, ...] = (
    fault(
        "gpu-fabric-not-registered",
        "GPU3 is not registered with the NVLink fabric",
        change_description=_nvml(outside_fabric=frozenset({_GPU})),
        on="hgx-b200",
    ),
    fault(
        "gpu-fabric-unhealthy",
        "The NVLink fabric reports reduced bandwidth of GPU3",
        change_description=_nvml(with_reduced_nvlink=frozenset({_GPU})),
        on="gb200",
    ),
    fault(
        "gpu-fabric-differs",
        "GPU3 is in another NVLink clique than the other GPUs",
        change_description=_nvml(in_other_clique=frozenset({_GPU})),
        on="gb200",
    ),
    fault("nvlsm-down", "NVLSM has ended", stop_nvlsm, on="hgx-b200"),
    fault("nvlsm-missing", "NVLSM is not installed", _without_nvlsm, on="hgx-b200"),
    fault(
        "ib-umad-missing",
        "ib_umad is not loaded",
        _without_umad,
        on="hgx-b200",
        excludes=("nvlsm-missing",),
    ),
    fault(
        "imex-channels-missing",
        "There is no IMEX channel",
        _without_channels,
        on="gb200",
    ),
)
