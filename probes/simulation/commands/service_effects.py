"""What the services of a simulated node do when they start and stop."""

from __future__ import annotations

from dataclasses import replace

from probes.base.unknown import Unknown
from probes.simulation.commands.command_result import Invocation
from probes.simulation.commands.modprobe import modprobe, rmmod
from probes.simulation.node.model.tree import Tree
from probes.simulation.node.modules.modules import add_service_references
from probes.simulation.node.system.fabric import start_errors
from probes.simulation.node.system.services import UNITS, run, stop

_OFED = ("mlx5_core", "ib_core", "ib_uverbs", "mlx5_ib", "rdma_cm", "rdma_ucm")  # in load order
_NO_DRIVER = "failed to initialize: the NVIDIA kernel module is not loaded"


def start_service(call: Invocation, name: str) -> bool:
    """Start an installed service; False if it failed, and the journal says why."""
    errors = _start_errors(call, name)
    call.tree.journal.setdefault(name, []).extend(errors or [f"Started {name}.service."])
    if errors:
        stop(call.tree, name, "failed")
        return False
    run(call.tree, name)
    add_service_references(call.tree, name)
    if name == "nvidia-persistenced" and "--no-persistence-mode" not in _unit_text(call.tree, name):
        call.tree.persistent.update(range(len(call.tree.gpus)))
    return True


def stop_service(call: Invocation, name: str) -> bool:
    """Stop a service; False if it failed."""
    tree = call.tree
    if name == "openibd":
        loaded = [module for module in reversed(_OFED) if module in tree.live_modules]
        errors = _errors(call, "rmmod", loaded)
        if errors:
            tree.journal.setdefault(name, []).extend(errors)
            stop(tree, name, "failed")
            return False
    if name == "nv_peer_mem" and "nv_peer_mem" in tree.live_modules:
        _errors(call, "rmmod", ["nv_peer_mem"])
    if name == "nvidia-persistenced" and tree.units.get(name) == "active":
        tree.persistent.clear()
    stop(tree, name)
    return True


def _start_errors(call: Invocation, name: str) -> list[str]:
    tree = call.tree
    if name.startswith("nvidia-") and "nvidia" not in tree.live_modules:
        return [f"{name}: {_NO_DRIVER}"]
    if name == "nvidia-fabricmanager":
        return _fabric_manager(tree)
    if name == "openibd":
        return _errors(call, "modprobe", list(_OFED))
    if name == "nv_peer_mem":
        return _errors(call, "modprobe", ["nv_peer_mem"])
    return []


def _fabric_manager(tree: Tree) -> list[str]:
    answer = tree.commands.get("nv-fabricmanager")
    printed = "" if answer is None else answer(("nv-fabricmanager", "--version"), 0.0)
    if not tree.is_there("/usr/bin/nv-fabricmanager"):
        return ["nv-fabricmanager: No such file or directory"]
    errors = start_errors(tree)
    if errors:
        return errors
    if isinstance(printed, Unknown):  # the files of an image run no command
        return []
    version, loaded = str(printed).rpartition(":")[2].strip(), tree.text("/sys/module/nvidia/version").strip()
    if version != loaded:
        return [
            f"fabric manager NVIDIA GPU driver interface version {version} don't match with driver version "
            f"{loaded}. Please update with matching NVIDIA driver package."
        ]
    return []


def _errors(call: Invocation, command: str, modules: list[str]) -> list[str]:
    """Run modprobe or rmmod for each module; return the messages of the first failure."""
    for module in modules:
        handler = rmmod if command == "rmmod" else modprobe
        result = handler(replace(call, name=command, args=(module,), stdin=""))
        if result.exit_status:
            return list(result.lines)
    return []


def _unit_text(tree: Tree, name: str) -> str:
    return "".join(tree.text(f"{directory}/{name}.service") for directory in (UNITS, "/etc/systemd/system"))
