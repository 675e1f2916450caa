"""The device files of a simulated node."""

from __future__ import annotations

from probes.simulation.tree import Tree


def grow_device_files(tree: Tree) -> None:
    """/dev/infiniband, and what the NVIDIA driver and gdrdrv put into /dev."""
    live = tree.live_modules
    tree.directory("/dev")
    if "ib_uverbs" in live and "mlx5_ib" in live:
        for number in range(len(tree.nics)):
            tree.add(f"/dev/infiniband/uverbs{number}", "")
    if "rdma_cm" in live:
        tree.add("/dev/infiniband/rdma_cm", "")
    if "nvidia" in live:
        tree.add("/dev/nvidiactl", "")
        for number in range(len(tree.gpus)):
            tree.add(f"/dev/nvidia{number}", "")
    if "nvidia_uvm" in live:
        tree.add("/dev/nvidia-uvm", "")
    if "gdrdrv" in live:
        tree.add("/dev/gdrdrv", "")
