"""HPE Slingshot NICs of a simulated node: HewlettPackard/shs-cxi-driver, drivers/net/ethernet/hpe/ss1.

They have no verbs: programs open /dev/cxiN through libfabric.
"""

from __future__ import annotations

from probes.simulation.node.model.tree import PlacedNic, Tree

# cass_nvidia_gpu.c: only a driver that was built with NVIDIA's headers has this parameter.
GPU_PARAMETER = "/sys/module/cxi_ss1/parameters/nv_p2p_persistent"


def add_cxi(tree: Tree, nic: PlacedNic, number: int) -> None:
    """Add one NIC with its netdev hsnN."""
    base = f"{nic.path}/cxi/{nic.name}"
    tree.link(f"/sys/class/cxi/{nic.name}", f"../../{base.removeprefix('/sys/')}")
    tree.link(f"{base}/device", "../..")
    tree.add(f"{base}/dev", f"510:{number}\n")
    netdev = f"{nic.path}/net/hsn{number}"
    mbps = round(float(nic.kind.rate.partition(" ")[0]) * 1000)
    for name, value in (("dev_port", "0"), ("speed", str(mbps))):
        tree.add(f"{netdev}/{name}", f"{value}\n")


def add_gpu_parameter(tree: Tree) -> None:
    """Add the parameter of a driver that was built with NVIDIA's headers."""
    if "cxi_ss1" in tree.live_modules:
        tree.add(GPU_PARAMETER, "Y\n")
