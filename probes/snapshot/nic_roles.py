"""The role of each NIC: compute, storage or management, by its rate, place, routes and mounts."""

from __future__ import annotations

from enum import Enum

from probes.base.frozen import frozen
from probes.base.unknown import Unknown, known
from probes.facts.network.network_dependencies import NOT_ASKED, NetworkUse
from probes.facts.node import Node
from probes.facts.rdma.devices import RdmaDevice
from probes.topology.endpoints import Endpoint, is_down, port_gbps
from probes.topology.hops import BELOW_SWITCH
from probes.topology.paths import Topology


class Role(Enum):
    """The role of a NIC; the value is the word shown on screen."""

    COMPUTE = "compute"
    STORAGE = "storage"
    MANAGEMENT = "management"
    OTHER = "other"  # slower than the compute NICs, or another link layer, with unknown use


@frozen
class NicRole:
    """A NIC's role and the reasons for it, the strongest first."""

    role: Role
    reasons: tuple[str, ...]


def roles_of(node: Node, topology: Topology) -> dict[str, NicRole]:
    """Assign each NIC its role; a NIC without an RDMA device has none."""
    devices = topology.devices
    nics = [nic for nic in topology.nics if nic.id in devices]
    near = {nic.id: _gpus_near(topology, nic) for nic in nics}
    chosen = [nic for nic in nics if near[nic.id]] or nics
    fastest = max((port_gbps(devices[nic.id]) for nic in chosen), default=0.0)
    fast = (devices[nic.id] for nic in chosen if port_gbps(devices[nic.id]) == fastest)
    layers = {layer for device in fast if (layer := _layer(device))}
    use = NOT_ASKED if isinstance(node.network, Unknown) else node.network
    return {nic.id: _role(devices[nic.id], near[nic.id], fastest, layers, use) for nic in nics}


def _role(device: RdmaDevice, near: list[str], fastest: float, layers: set[str], use: NetworkUse) -> NicRole:
    netdevs = {port.netdev for port in device.ports if not isinstance(port.netdev, Unknown)}
    has_default = any(netdev in known(use.default_routes, frozenset()) for netdev in netdevs)
    mounts = [mount for netdev in netdevs for mount in known(use.mounts, {}).get(netdev, ())]
    rate = port_gbps(device)
    like_compute = rate == fastest and _layer(device) in layers
    reasons: list[str] = []
    if near:
        reasons.append(f"near {', '.join(near)}")
    if mounts:
        more = f" and {len(mounts) - 3} more" if mounts[3:] else ""
        reasons.append(f"mounts {', '.join(mounts[:3])}{more}")
    if has_default:
        reasons.append("default route")
    down = " (port down)" if is_down(device) else ""
    reasons.append(f"{f'{rate:g}' if rate else '?'} Gb/s {_layer(device)}".rstrip() + down)
    if like_compute and (near or not (mounts or has_default)):
        return NicRole(Role.COMPUTE, tuple(reasons))
    role = Role.STORAGE if mounts else Role.MANAGEMENT if has_default else Role.OTHER
    return NicRole(role, tuple(reasons))


def _gpus_near(topology: Topology, nic: Endpoint) -> list[str]:
    """Return the GPUs below the NIC's switch, or on the CPU to which it is attached: "GPU0 (PIX)"."""
    near: list[str] = []
    for gpu in topology.gpus:
        smi = topology.paths.smi(gpu.id, nic.id)
        if not isinstance(smi, Unknown) and smi in BELOW_SWITCH:
            near.append(f"{gpu.label} ({smi.value})")
        elif nic.id in topology.paths.nccl.by_cpu_link(gpu.id):
            near.append(f"{gpu.label} (NCCL P2C)")
    return near


def _layer(device: RdmaDevice) -> str:
    return next((port.link_layer for port in device.ports if not isinstance(port.link_layer, Unknown)), "")
