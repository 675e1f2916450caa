"""Routes and mounts of a simulated node: file systems over the storage NICs."""

from __future__ import annotations

from probes.simulation.ports import netdev_of
from probes.simulation.tree import Tree

_HEADING = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"


def grow_networks(tree: Tree) -> None:
    """Add one NFS mount over each NIC that is for storage, and its route."""
    routes = [_HEADING]
    mounts = ["/dev/md0 / ext4 rw,relatime 0 0\n"]
    storage = [nic for nic in tree.nics if nic.kind is tree.description.nic.get("storage")]
    for number, nic in enumerate(storage):
        # 10.90.N.0/24, in the byte order of the CPU
        routes.append(
            f"{netdev_of(tree, nic)}\t00{number:02X}5A0A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n"
        )
        mounts.append(
            f"10.90.{number}.1:/export{number} /data{number} nfs4 rw,proto=rdma,addr=10.90.{number}.1 0 0\n"
        )
    tree.add("/proc/net/route", "".join(routes))
    tree.add("/proc/mounts", "".join(mounts))
