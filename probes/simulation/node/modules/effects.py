"""What appears and disappears with a module on a simulated node: devices, their files, the driver's /proc."""

from __future__ import annotations

from collections.abc import Mapping

from probes.simulation.node.devices.config_space import DEVICES, real_path
from probes.simulation.node.devices.cxi import GPU_PARAMETER
from probes.simulation.node.model.program import PEERMEM
from probes.simulation.node.model.tree import Removed, Tree, uuid_of
from probes.simulation.node.modules.modules import add_memory_peers
from probes.simulation.node.system.software import add_device_files

_DRIVER_PROC = "/proc/driver/nvidia"
_PATHS = {
    "nvidia": (_DRIVER_PROC,),
    PEERMEM: ("/sys/kernel/mm/memory_peers/nv_mem",),
    **dict.fromkeys(("mlx4_ib", "mlx5_ib", "efa"), ("/sys/class/infiniband", "/sys/class/infiniband_verbs")),
    "cxi_ss1": ("/sys/class/cxi", GPU_PARAMETER),
    "rdma_ucm": ("/dev/infiniband/rdma_cm",),
    "rdma_cm": ("/dev/infiniband/rdma_cm",),
    "gdrdrv": ("/dev/gdrdrv",),
}
_PARAMS = f"{_DRIVER_PROC}/params"
_OPTIONS = {"GrdmaPciTopoCheckOverride": "0", "DmaRemapPeerMmio": "1"}  # their values without an option
_VERBS_DRIVERS = ("mlx4_ib", "mlx5_ib", "efa")
_NIC_DRIVERS = ("mlx4_core", "mlx5_core", "efa", "cxi_ss1")
_PCI_DRIVERS = ("nvidia", *_NIC_DRIVERS)


def add_effects(tree: Tree, module: str, parameters: Mapping[str, str]) -> None:
    """Add what a module that was loaded with these parameters creates: what its removal took away, or new."""
    removed = tree.removed_with.pop(module, None)
    for part in removed or ():
        tree.restore(part)
    if module == "nvidia":
        add_driver_proc(tree, tree.text("/sys/module/nvidia/version").strip())
        _set_options(tree, parameters)
    if module == PEERMEM and tree.description.gpudirect.memory_peers:
        add_memory_peers(tree, 0)
    if removed is None or module.startswith("nvidia"):
        add_device_files(tree, (module,))


def remove_effects(tree: Tree, module: str) -> None:
    """Remove what goes with a module, and keep it, with its faults, for when the module comes back.

    The NVIDIA driver's device files are created by programs and stay.
    """
    tree.removed_with[module] = [
        tree.remove(path)
        for path in (*_PATHS.get(module, ()), *_device_paths(tree, module))
        if tree.is_there(path)
    ]
    if module in _PCI_DRIVERS:
        tree.removed_with[module] += _unbind(tree, module)


def _device_paths(tree: Tree, module: str) -> list[str]:
    if module == "ib_umad":
        listed = sorted(tree.directories.get("/dev/infiniband", set()))
        return [f"/dev/infiniband/{file}" for file in listed if file.startswith("umad")]
    paths: list[str] = []
    if module in _VERBS_DRIVERS:
        verbs = tree.directories.get("/dev/infiniband", set())
        paths = [f"/dev/infiniband/{file}" for file in sorted(verbs) if file.startswith("uverbs")]
        paths += [f"{nic.path}/infiniband" for nic in tree.cards]
    if module not in _NIC_DRIVERS:
        return paths
    netdevs = [
        f"/sys/class/net/{netdev}"
        for nic in tree.cards
        for netdev in sorted(tree.directories.get(f"{nic.path}/net", set()))
    ]
    return [
        *paths,
        *netdevs,
        *(f"{nic.path}/net" for nic in tree.cards),
        *(f"{nic.path}/driver" for nic in tree.cards),
    ]


def _unbind(tree: Tree, driver: str) -> list[Removed]:
    """Unbind a driver from its devices; return their uevent files from before."""
    line = f"DRIVER={driver}\n"
    before: list[Removed] = []
    for bdf in (*(gpu.bdf for gpu in tree.gpus), *(nic.bdf for nic in tree.cards)):
        if f"{DEVICES}/{bdf}" not in tree.links:
            continue
        path = f"{real_path(tree, bdf)}/uevent"
        text = tree.text(path)
        if line in text:
            before.append(Removed(files={path: text}))
            tree.add(path, text.replace(line, ""))
    return before


def _set_options(tree: Tree, parameters: Mapping[str, str]) -> None:
    """Show the options that the driver was loaded with: NVreg_NAME=VALUE as "NAME: VALUE"."""
    options = {name.removeprefix("NVreg_"): value for name, value in parameters.items()}
    shown = dict(line.split(": ", 1) for line in tree.text(_PARAMS).splitlines() if ": " in line)
    usual = {name: value for name, value in _OPTIONS.items() if name in shown}
    for name, value in options.items():
        options[name] = f'"{value}"' if shown.get(name, "").startswith('"') else value
    lines = {**shown, **usual, **options}.items()
    tree.add(_PARAMS, "".join(f"{name}: {value}\n" for name, value in lines))


def add_driver_proc(tree: Tree, version: str) -> None:
    """Add the driver's version, parameters and GPUs to /proc; parameters and GPUs only if not there yet."""
    driver = tree.description.driver
    architecture = tree.description.architecture
    banner = (
        f"NVIDIA UNIX Open Kernel Module for {architecture}"
        if driver.flavor == "open"
        else f"NVIDIA UNIX {architecture} Kernel Module"
    )
    tree.add(f"{_DRIVER_PROC}/version", f"NVRM version: {banner}  {version}  Release Build  (simulated)\n")
    if tree.is_there(_PARAMS):
        return
    mode = tree.description.gpu_memory_mode
    tree.add(
        _PARAMS,
        f'RegistryDwords: ""\nGrdmaPciTopoCheckOverride: 0\nCoherentGPUMemoryMode: "{mode}"\n',
    )
    for number, gpu in enumerate(tree.gpus):
        tree.add(
            f"{_DRIVER_PROC}/gpus/{gpu.bdf}/information",
            f"Model: \t\t {tree.description.gpu.name}\nGPU UUID: \t {uuid_of(number)}\n"
            f"Bus Location: \t {gpu.bdf}\nDevice Minor: \t {number}\n",
        )
