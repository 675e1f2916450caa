"""Services of a simulated node, under systemd."""

from __future__ import annotations

from probes.simulation.tree import Tree
from probes.unknown import Maybe

_UNITS = "/usr/lib/systemd/system"
_WANTS = "/etc/systemd/system/multi-user.target.wants"
_GROUPS = "/sys/fs/cgroup/system.slice"


def grow_services(tree: Tree) -> None:
    """The services that such a node runs, and Fabric Manager's program where there are NVSwitches."""
    node = tree.description
    tree.directory(_GROUPS)
    tree.directory(_WANTS)
    names = ["nvidia-persistenced"]
    if tree.nvswitches:
        names.append("nvidia-fabricmanager")
        tree.add("/usr/bin/nv-fabricmanager", b"\x7fELF")
        set_fabric_manager_version(tree, node.driver.version)
    if node.gpu.c2c and node.gpu.nvlinks:
        names.append("nvidia-imex")
    for number, name in enumerate(names):
        install(tree, name)
        tree.add(f"{_GROUPS}/{name}.service/cgroup.procs", f"{1200 + number}\n")


def install(tree: Tree, name: str) -> None:
    """The unit of a service, which the boot starts."""
    tree.add(f"{_UNITS}/{name}.service", f"[Unit]\nDescription={name} (simulated)\n")
    tree.link(f"{_WANTS}/{name}.service", f"{_UNITS}/{name}.service")


def stop(tree: Tree, name: str) -> None:
    """The service ends; its unit stays."""
    tree.remove(f"{_GROUPS}/{name}.service")


def uninstall(tree: Tree, name: str) -> None:
    """The service ends, and its unit goes."""
    stop(tree, name)
    tree.remove(f"{_WANTS}/{name}.service")
    tree.remove(f"{_UNITS}/{name}.service")


def set_fabric_manager_version(tree: Tree, version: str) -> None:
    """What nv-fabricmanager says of itself."""

    def answer(argv: tuple[str, ...], seconds: float) -> Maybe[str]:
        del argv, seconds
        return f"Fabric Manager version is : {version}\n"

    tree.commands["nv-fabricmanager"] = answer
