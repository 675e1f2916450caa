"""Services of a simulated node, under systemd: installed, wanted by the boot, running or not."""

from __future__ import annotations

from probes.base.unknown import Maybe
from probes.simulation.node.tree import Tree

UNITS = "/usr/lib/systemd/system"
WANTS = "/etc/systemd/system/multi-user.target.wants"
_GROUPS = "/sys/fs/cgroup/system.slice"
_FIRST_PID = 1200
# Services that do their work and end: active without a process.
ONESHOT = frozenset({"openibd", "nv_peer_mem", "systemd-modules-load"})


def grow_services(tree: Tree) -> None:
    """The services that such a node runs, and Fabric Manager's program where there are NVSwitches."""
    node = tree.description
    tree.directory(_GROUPS)
    tree.directory(WANTS)
    tree.commands["systemctl"] = lambda argv, seconds: _show(tree, argv)
    names = ["nvidia-persistenced"]
    if tree.nvswitches:
        names.append("nvidia-fabricmanager")
        tree.add("/usr/bin/nv-fabricmanager", b"\x7fELF")
        set_fabric_manager_version(tree, node.driver.version)
    if node.gpu.c2c and node.gpu.nvlinks:
        names.append("nvidia-imex")
    if node.modules.ofed:
        names.append("openibd")
    for name in names:
        install(tree, name)
        run(tree, name)


def install(tree: Tree, name: str) -> None:
    """The unit of a service, which the boot starts."""
    tree.add(f"{UNITS}/{name}.service", f"[Unit]\nDescription={name} (simulated)\n")
    tree.link(f"{WANTS}/{name}.service", f"{UNITS}/{name}.service")


def run(tree: Tree, name: str) -> None:
    """The service is active, with a process unless it is one that ends."""
    tree.units[name] = "active"
    if name not in ONESHOT:
        tree.add(f"{_GROUPS}/{name}.service/cgroup.procs", f"{_FIRST_PID + list(tree.units).index(name)}\n")


def stop(tree: Tree, name: str, state: str = "inactive") -> None:
    """The service ends; its unit stays."""
    tree.units[name] = state
    tree.let_go(name)
    tree.remove(f"{_GROUPS}/{name}.service")


def uninstall(tree: Tree, name: str) -> None:
    """The service ends, and its unit goes."""
    stop(tree, name)
    del tree.units[name]
    tree.remove(f"{WANTS}/{name}.service")
    tree.remove(f"{UNITS}/{name}.service")


def set_fabric_manager_version(tree: Tree, version: str) -> None:
    """What nv-fabricmanager says of itself."""

    def answer(argv: tuple[str, ...], seconds: float) -> Maybe[str]:
        del argv, seconds
        return f"Fabric Manager version is : {version}\n"

    tree.commands["nv-fabricmanager"] = answer


def _show(tree: Tree, argv: tuple[str, ...]) -> str:
    """`systemctl show --property=Id,ActiveState`; of a unit that is not there it says inactive."""
    names = [word.removesuffix(".service") for word in argv[1:] if word.endswith(".service")]
    return "\n".join(f"Id={name}.service\nActiveState={tree.units.get(name, 'inactive')}\n" for name in names)
