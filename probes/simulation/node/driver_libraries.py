"""The driver's libraries on a simulated node."""

from __future__ import annotations

from probes.simulation.node.processes import library_directory
from probes.simulation.node.tree import Tree

_OF_DRIVER = ("libnvidia-ml.so.1", "libcuda.so.1")


def grow_driver_libraries(tree: Tree) -> None:
    """NVML and CUDA, of the driver's version, and the link that packages for development have."""
    set_library_version(tree, tree.description.driver.version)
    tree.link(f"{library_directory(tree)}/libcuda.so", "libcuda.so.1")


def set_library_version(tree: Tree, version: str) -> None:
    """Both libraries are of this version."""
    for name in _OF_DRIVER:
        install_library(tree, name, f"{name.removesuffix('.1')}.{version}")


def install_library(tree: Tree, soname: str, file: str) -> None:
    """A library as packages lay it down: the file, and the name that programs load."""
    directory = library_directory(tree)
    tree.add(f"{directory}/{file}", b"\x7fELF")
    tree.link(f"{directory}/{soname}", file)
