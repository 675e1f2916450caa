"""Network configurations in which an action can cut the SSH session; no check finds them."""

from __future__ import annotations

from probes.simulation.faults.fault import fault
from probes.simulation.node.devices.network import route_over
from probes.simulation.node.devices.ports import netdev_of
from probes.simulation.node.model.tree import Tree


def _ssh_over_nic(tree: Tree) -> None:
    nic = next((nic for nic in tree.nics if nic.kind.layer == "Ethernet"), tree.nics[0])
    route_over(tree, netdev_of(tree, nic))


FAULTS = (
    fault("ssh-over-nic", "The SSH session and the default route use an RDMA NIC", _ssh_over_nic, finds=()),
)
