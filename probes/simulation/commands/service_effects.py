"""What the services of a simulated node do when they start and when they stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from probes.simulation.commands.command_result import Order, Performed
from probes.simulation.node.modules import hold_by_service
from probes.simulation.node.services import UNITS, run, stop
from probes.simulation.node.tree import Tree

_OFED = ("mlx5_core", "ib_core", "ib_uverbs", "mlx5_ib", "rdma_cm", "rdma_ucm")  # in the order of loading
_NO_DRIVER = "failed to initialize: the NVIDIA kernel module is not loaded"
Performing = Callable[[Order], Performed]


def start(order: Order, name: str, modprobe: Performing) -> bool:
    """Starts a service that is installed; False: it failed, and the journal says why."""
    said = _why_not(order, name, modprobe)
    order.tree.journal.setdefault(name, []).extend(said or [f"Started {name}.service."])
    if said:
        stop(order.tree, name, "failed")
        return False
    run(order.tree, name)
    hold_by_service(order.tree, name)
    if name == "nvidia-persistenced" and "--no-persistence-mode" not in _unit_text(order.tree, name):
        order.tree.persistent.update(range(len(order.tree.gpus)))
    return True


def end(order: Order, name: str, modprobe: Performing) -> bool:
    """Stops a service; False: it failed."""
    tree = order.tree
    if name == "openibd":
        loaded = [module for module in reversed(_OFED) if module in tree.live_modules]
        said = _errors(order, "rmmod", loaded, modprobe)
        if said:
            tree.journal.setdefault(name, []).extend(said)
            stop(tree, name, "failed")
            return False
    if name == "nv_peer_mem" and "nv_peer_mem" in tree.live_modules:
        _errors(order, "rmmod", ["nv_peer_mem"], modprobe)
    if name == "nvidia-persistenced" and tree.units.get(name) == "active":
        tree.persistent.clear()
    stop(tree, name)
    return True


def _why_not(order: Order, name: str, modprobe: Performing) -> list[str]:
    tree = order.tree
    if name.startswith("nvidia-") and "nvidia" not in tree.live_modules:
        return [f"{name}: {_NO_DRIVER}"]
    if name == "nvidia-fabricmanager":
        return _fabric_manager(tree)
    if name == "openibd":
        return _errors(order, "modprobe", list(_OFED), modprobe)
    if name == "nv_peer_mem":
        return _errors(order, "modprobe", ["nv_peer_mem"], modprobe)
    return []


def _fabric_manager(tree: Tree) -> list[str]:
    answer = tree.commands.get("nv-fabricmanager")
    told = "" if answer is None else str(answer(("nv-fabricmanager", "--version"), 0.0))
    if not tree.is_there("/usr/bin/nv-fabricmanager"):
        return ["nv-fabricmanager: No such file or directory"]
    if not tree.nvswitches:
        return ["request to query NVSwitch device information from NVSwitch driver failed"]
    version, loaded = told.rpartition(":")[2].strip(), tree.text("/sys/module/nvidia/version").strip()
    if version != loaded:
        return [
            f"fabric manager NVIDIA GPU driver interface version {version} don't match with driver version "
            f"{loaded}. Please update with matching NVIDIA driver package."
        ]
    return []


def _errors(order: Order, command: str, modules: list[str], modprobe: Performing) -> list[str]:
    """What modprobe or rmmod says against it, one module after another, up to the first that fails."""
    for module in modules:
        result = modprobe(replace(order, name=command, words=(module,), given=""))
        if result.exit_status:
            return list(result.lines)
    return []


def _unit_text(tree: Tree, name: str) -> str:
    return "".join(tree.text(f"{directory}/{name}.service") for directory in (UNITS, "/etc/systemd/system"))
