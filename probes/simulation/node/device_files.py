"""The device files of a simulated node."""

from __future__ import annotations

from collections.abc import Iterable

from probes.simulation.node.tree import Tree


def grow_device_files(tree: Tree, modules: Iterable[str]) -> None:
    """What these modules put into /dev: devtmpfs for those of RDMA, udev's rules for the NVIDIA driver's."""
    tree.add("/dev/null", "")
    for name in modules:
        for path in _files_of(tree, name):
            tree.add(path, "")


def _files_of(tree: Tree, name: str) -> list[str]:
    if name in ("mlx4_ib", "mlx5_ib"):
        return [f"/dev/infiniband/uverbs{number}" for number in range(len(tree.nics))]
    if name == "nvidia":
        return ["/dev/nvidiactl", *(f"/dev/nvidia{number}" for number in range(len(tree.gpus)))]
    return {
        "rdma_cm": ["/dev/infiniband/rdma_cm"],
        "rdma_ucm": ["/dev/infiniband/rdma_cm"],
        "nvidia_uvm": ["/dev/nvidia-uvm"],
        "gdrdrv": ["/dev/gdrdrv"],
    }.get(name, [])
