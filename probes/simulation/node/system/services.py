"""systemd services of a simulated node, and the NVLink fabric that Fabric Manager and NVLSM configure.

NVSwitches are on its PCI bus, or behind a ConnectX-7 bridge.
"""

from __future__ import annotations

from probes.facts.gpu.generations import HOPPER, is_before
from probes.facts.gpu.gpus import NVLSM
from probes.plans.packages import FABRIC_MANAGER
from probes.simulation.node.model.tree import Tree

CLUSTER = "51a01a7e-0000-4000-8000-000000000000"  # recognizable as made up
_NVLSM_PROCESS = "/proc/1190"
_HEALTHY = 0x01AA  # each flag "false", configuration "none" (NVML_GPU_FABRIC_HEALTH_MASK_…)
UNITS = "/usr/lib/systemd/system"
WANTS = "/etc/systemd/system/multi-user.target.wants"
_GROUPS = "/sys/fs/cgroup/system.slice"
_FIRST_PID = 1200
# Services that do their work and exit: active without a process.
ONESHOT = frozenset({"openibd", "nv_peer_mem", "systemd-modules-load"})


def add_services(tree: Tree) -> None:
    """Add the services of such a node, and the Fabric Manager's program if it has NVSwitches."""
    node = tree.description
    tree.directory(_GROUPS)
    tree.directory(WANTS)
    tree.commands["systemctl"] = lambda argv, seconds: show_units(tree, argv)
    names = ["nvidia-persistenced"]
    if has_switches(tree):
        names.append(FABRIC_MANAGER)
        tree.add("/usr/bin/nv-fabricmanager", b"\x7fELF")
        set_fabric_manager_version(tree, node.driver.version)
    if tree.bridges:
        tree.add(NVLSM, b"\x7fELF")
    if node.gpu.c2c and node.gpu.nvlinks:
        names.append("nvidia-imex")
        tree.add("/dev/nvidia-caps-imex-channels/channel0", "")
    if node.modules.ofed:
        names.append("openibd")
    for name in names:
        install(tree, name)
        run(tree, name)


def install(tree: Tree, name: str) -> None:
    """Install and enable a service."""
    tree.add(f"{UNITS}/{name}.service", f"[Unit]\nDescription={name} (simulated)\n")
    tree.link(f"{WANTS}/{name}.service", f"{UNITS}/{name}.service")


def run(tree: Tree, name: str) -> None:
    """Make a service active, with a process unless it is a oneshot."""
    tree.units[name] = "active"
    # Fabric Manager's start script starts NVLSM on a board with a bridge.
    if name == FABRIC_MANAGER and tree.bridges and tree.is_there(NVLSM):
        tree.add(f"{_NVLSM_PROCESS}/comm", "nvlsm\n")
    if name not in ONESHOT:
        tree.add(f"{_GROUPS}/{name}.service/cgroup.procs", f"{_FIRST_PID + list(tree.units).index(name)}\n")


def stop(tree: Tree, name: str, state: str = "inactive") -> None:
    """Stop a service; its unit stays."""
    tree.units[name] = state
    if name == FABRIC_MANAGER:
        stop_nvlsm(tree)
    tree.drop_references(name)
    tree.remove(f"{_GROUPS}/{name}.service")


def uninstall(tree: Tree, name: str) -> None:
    """Stop a service and remove its unit."""
    stop(tree, name)
    del tree.units[name]
    tree.remove(f"{WANTS}/{name}.service")
    tree.remove(f"{UNITS}/{name}.service")


def set_fabric_manager_version(tree: Tree, version: str) -> None:
    """Set the version that nv-fabricmanager prints."""
    tree.commands["nv-fabricmanager"] = lambda argv, seconds: f"Fabric Manager version is : {version}\n"


def show_units(tree: Tree, argv: tuple[str, ...]) -> str:
    """Answer `systemctl show --property=Id,ActiveState`; a missing unit is inactive."""
    names = [word.removesuffix(".service") for word in argv[1:] if word.endswith(".service")]
    return "\n".join(f"Id={name}.service\nActiveState={tree.units.get(name, 'inactive')}\n" for name in names)


def has_switches(tree: Tree) -> bool:
    """Return whether this node's own Fabric Manager configures NVSwitches."""
    return bool(tree.nvswitches or tree.bridges)


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
    if is_before(gpu.capability, HOPPER) or not (has_switches(tree) or gpu.c2c):
        return "not supported"
    if has_switches(tree) and tree.units.get(FABRIC_MANAGER) != "active":
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
