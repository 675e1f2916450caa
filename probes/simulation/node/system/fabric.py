"""The NVLink fabric of a simulated node: NVSwitches on its PCI bus, or behind a ConnectX-7 bridge."""

from __future__ import annotations

from probes.simulation.node.model.tree import Tree

MANAGER = "nvidia-fabricmanager"
NVLSM = "/opt/nvidia/nvlsm/sbin/nvlsm"
CLUSTER = "51a01a7e-0000-4000-8000-000000000000"  # recognizable as made up
_NVLSM_PROCESS = "/proc/1190"
_HEALTHY = 0x01AA  # each flag "false", configuration "none" (NVML_GPU_FABRIC_HEALTH_MASK_…)


def has_switches(tree: Tree) -> bool:
    """Return whether this node's own Fabric Manager configures NVSwitches."""
    return bool(tree.nvswitches or tree.bridges)


def start_nvlsm(tree: Tree) -> None:
    """Start NVLSM, as Fabric Manager's start script does on a board with a bridge."""
    if tree.bridges and tree.is_there(NVLSM):
        tree.add(f"{_NVLSM_PROCESS}/comm", "nvlsm\n")


def stop_nvlsm(tree: Tree) -> None:
    """End the process of NVLSM."""
    tree.remove(_NVLSM_PROCESS)


def start_errors(tree: Tree) -> list[str]:
    """Return what Fabric Manager's start script prints if it cannot reach the switches."""
    if not has_switches(tree):
        return ["request to query NVSwitch device information from NVSwitch driver failed"]
    if tree.bridges and "ib_umad" not in tree.live_modules:
        return ['Kernel module "ib_umad" has not been loaded, fabric manager cannot be started']
    if tree.bridges and not tree.is_there(NVLSM):
        return [f"{NVLSM}: No such file or directory"]
    return []


def fabric_state(tree: Tree, number: int = -1) -> str:
    """Return a GPU's state, or that of all.

    Since Hopper, GPUs register with a Fabric Manager, on this node or elsewhere.
    """
    gpu = tree.description.gpu
    if gpu.capability < (9, 0) or not (has_switches(tree) or gpu.c2c):
        return "not supported"
    if has_switches(tree) and tree.units.get(MANAGER) != "active":
        return "in progress"
    if tree.bridges and not tree.is_there(_NVLSM_PROCESS):
        return "in progress"
    return "in progress" if number in tree.description.nvml.outside_fabric else "completed"


def fabric_place(tree: Tree, number: int) -> tuple[int, str, int]:
    """Return clique, cluster and health of a registered GPU; a single board has no cluster."""
    special = tree.description.nvml
    clique = 2 if number in special.in_other_clique else 1
    # The lowest field: 1 is reduced bandwidth, 2 full bandwidth.
    health = _HEALTHY ^ 3 if number in special.with_reduced_nvlink else _HEALTHY
    if has_switches(tree):
        return clique - 1, "00000000-0000-0000-0000-000000000000", health if tree.bridges else 0
    return clique, CLUSTER, health
