"""systemd services of a simulated node: installed, enabled, running or not."""

from __future__ import annotations

from probes.base.unknown import Maybe
from probes.simulation.node.model.tree import Tree
from probes.simulation.node.system.fabric import MANAGER, NVLSM, has_switches, start_nvlsm, stop_nvlsm

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
        names.append(MANAGER)
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
    if name == MANAGER:
        start_nvlsm(tree)
    if name not in ONESHOT:
        tree.add(f"{_GROUPS}/{name}.service/cgroup.procs", f"{_FIRST_PID + list(tree.units).index(name)}\n")


def stop(tree: Tree, name: str, state: str = "inactive") -> None:
    """Stop a service; its unit stays."""
    tree.units[name] = state
    if name == MANAGER:
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

    def answer(argv: tuple[str, ...], seconds: float) -> Maybe[str]:
        del argv, seconds
        return f"Fabric Manager version is : {version}\n"

    tree.commands["nv-fabricmanager"] = answer


def show_units(tree: Tree, argv: tuple[str, ...]) -> str:
    """Answer `systemctl show --property=Id,ActiveState`; a missing unit is inactive."""
    names = [word.removesuffix(".service") for word in argv[1:] if word.endswith(".service")]
    return "\n".join(f"Id={name}.service\nActiveState={tree.units.get(name, 'inactive')}\n" for name in names)
