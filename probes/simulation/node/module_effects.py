"""What comes and goes on a simulated node with a module: devices, their files, what the driver shows."""

from __future__ import annotations

from probes.simulation.node.config_space import DEVICES, real_path
from probes.simulation.node.device_files import grow_device_files
from probes.simulation.node.driver_proc import show_driver
from probes.simulation.node.modules import PEERMEM, show_memory_peers
from probes.simulation.node.tree import Removed, Tree

_OF_NODE = {
    "nvidia": ("/proc/driver/nvidia",),
    PEERMEM: ("/sys/kernel/mm/memory_peers/nv_mem",),
    **dict.fromkeys(("mlx4_ib", "mlx5_ib"), ("/sys/class/infiniband", "/sys/class/infiniband_verbs")),
    "rdma_ucm": ("/dev/infiniband/rdma_cm",),
    "rdma_cm": ("/dev/infiniband/rdma_cm",),
    "gdrdrv": ("/dev/gdrdrv",),
}
_BINDING = ("nvidia", "mlx4_core", "mlx5_core")  # drivers of PCI functions


def appear(tree: Tree, name: str) -> None:
    """What a module brings when it has been loaded: what went with it, or what is new."""
    aside = tree.aside.pop(name, None)
    for removed in aside or ():
        tree.restore(removed)
    if name == "nvidia":
        show_driver(tree, tree.text("/sys/module/nvidia/version").strip())
    if name == PEERMEM and tree.description.gpudirect.memory_peers:
        show_memory_peers(tree, 0)
    if aside is None or name.startswith("nvidia"):
        grow_device_files(tree, (name,))


def disappear(tree: Tree, name: str) -> None:
    """What goes with a module; it comes back as it was, with its faults, when the module does.

    The NVIDIA driver's device files are made by programs and stay.
    """
    tree.aside[name] = [
        tree.remove(path)
        for path in (*_OF_NODE.get(name, ()), *_of_devices(tree, name))
        if tree.is_there(path)
    ]
    if name in _BINDING:
        tree.aside[name] += _unbind(tree, name)


def _of_devices(tree: Tree, name: str) -> list[str]:
    if name in ("mlx4_ib", "mlx5_ib"):
        verbs = tree.directories.get("/dev/infiniband", set())
        files = [f"/dev/infiniband/{file}" for file in sorted(verbs) if file.startswith("uverbs")]
        return [*files, *(f"{nic.path}/infiniband" for nic in tree.nics)]
    if name in ("mlx4_core", "mlx5_core"):
        netdevs = [
            f"/sys/class/net/{netdev}"
            for nic in tree.nics
            for netdev in sorted(tree.directories.get(f"{nic.path}/net", set()))
        ]
        return [
            *netdevs,
            *(f"{nic.path}/net" for nic in tree.nics),
            *(f"{nic.path}/driver" for nic in tree.nics),
        ]
    return []


def _unbind(tree: Tree, name: str) -> list[Removed]:
    """The devices of a driver have none any more; their uevent files as they were."""
    line = f"DRIVER={name}\n"
    before: list[Removed] = []
    for bdf in (*(gpu.bdf for gpu in tree.gpus), *(nic.bdf for nic in tree.nics)):
        if f"{DEVICES}/{bdf}" not in tree.links:
            continue
        path = f"{real_path(tree, bdf)}/uevent"
        text = tree.text(path)
        if line in text:
            before.append(Removed(files={path: text}))
            tree.add(path, text.replace(line, ""))
    return before
