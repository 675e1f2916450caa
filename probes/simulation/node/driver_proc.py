"""What the loaded NVIDIA driver of a simulated node shows in /proc."""

from __future__ import annotations

from probes.simulation.node.tree import Tree, uuid_of

_PROC = "/proc/driver/nvidia"


def show_driver(tree: Tree, version: str) -> None:
    """Version, parameters and GPUs; what is there of GPUs and parameters already stays as it is."""
    driver = tree.description.driver
    architecture = tree.description.architecture
    banner = (
        f"NVIDIA UNIX Open Kernel Module for {architecture}"
        if driver.flavour == "open"
        else f"NVIDIA UNIX {architecture} Kernel Module"
    )
    tree.add(f"{_PROC}/version", f"NVRM version: {banner}  {version}  Release Build  (simulated)\n")
    if tree.is_there(f"{_PROC}/params"):
        return
    tree.add(f"{_PROC}/params", 'RegistryDwords: ""\nGrdmaPciTopoCheckOverride: 0\n')
    for number, gpu in enumerate(tree.gpus):
        tree.add(
            f"{_PROC}/gpus/{gpu.bdf}/information",
            f"Model: \t\t {tree.description.gpu.name}\nGPU UUID: \t {uuid_of(number)}\n"
            f"Bus Location: \t {gpu.bdf}\nDevice Minor: \t {number}\n",
        )
