"""Which NICs serve each GPU, and why none serves it."""

from __future__ import annotations

from collections.abc import Mapping

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, all_of, any_of
from probes.facts.gpudirect import GdrPath, GpuDirectFacts, hardware_of
from probes.facts.node import Node
from probes.facts.rdma.devices import ACTIVE, RdmaDevice
from probes.snapshot.gdr_use import GdrUse
from probes.snapshot.rates import Reading
from probes.topology.nccl_words import NEAR, Nccl
from probes.topology.paths import Topology


@frozen
class ServingNics:
    """The NICs that serve one GPU, or why there are none."""

    nics: tuple[str, ...] = ()
    by_pxn: bool = False  # through another GPU's NVLink
    reason: str = ""  # why no NIC serves the GPU
    doubt: str = ""  # what is unknown and could serve it
    far: bool = False  # a NIC reaches the GPU, but only from afar


@frozen
class Reachability:
    """Which NIC reaches the memory of which GPU."""

    direct: GpuDirectFacts
    use: GdrUse
    active: dict[str, Maybe[bool]]  # RDMA device -> has an ACTIVE port

    def reaches(self, nic: str, gpu: str) -> Maybe[bool]:
        """Return whether a NIC is up and reaches this GPU's memory by either path."""
        paths = (GdrPath.DMABUF, self.use.peermem_path)
        return any_of([self.reaches_by(path, nic, gpu) for path in paths])

    def reaches_by(self, path: GdrPath, nic: str, gpu: str) -> Maybe[bool]:
        """Return whether a NIC is up and reaches this GPU's memory by this path."""
        direct, use = self.direct, self.use
        support = direct.gpu_support.get(gpu)
        if path is GdrPath.DMABUF:
            by_nic = direct.nic_dmabuf.get(nic, Unknown(Reason.NOT_THERE, nic, "not asked"))
            if use.attached and isinstance(by_nic, Unknown):
                by_nic = True
            return all_of((self.active[nic], use.dmabuf, by_nic, True if support is None else support.dmabuf))
        by_nic = direct.nic_peermem.get(nic, use.peermem)
        if use.regions and (isinstance(by_nic, Unknown) or direct.peermem.usable is not True):
            by_nic = True
        return all_of((self.active[nic], use.peermem, by_nic, True if support is None else support.peermem))

    def nics_of(self, gpu: str) -> tuple[str, ...]:
        """Return all NICs that reach a GPU."""
        return tuple(nic for nic in self.active if self.reaches(nic, gpu) is True)


def hardware_devices(node: Node) -> dict[str, RdmaDevice]:
    """Return the RDMA devices that are hardware, by name."""
    return {device.name: device for device in hardware_of(node.rdma)}


def has_active_port(device: RdmaDevice, reading: Reading | None) -> Maybe[bool]:
    """Return whether a port is ACTIVE; NCCL uses no other."""
    states = _port_states(device, reading)
    if ACTIVE in states:
        return True
    return next((state for state in states if isinstance(state, Unknown)), False)


def _port_states(device: RdmaDevice, reading: Reading | None) -> list[Maybe[str]]:
    """Return the states of a device's ports, from the reading if it has them."""
    fresh = {} if reading is None else reading.port_states
    return [fresh.get((device.name, port.number), port.state) for port in device.ports]


def serving_nics(
    node: Node,
    topology: Topology,
    gpu: str,
    devices: Mapping[str, RdmaDevice],
    reach: Reachability,
    reading: Reading | None,
) -> ServingNics:
    """Return the near NICs that are up; if no NIC is near, those that NVLink leads to.

    `devices`: those that are hardware. Of a node's thousands of pairs only the near ones are looked at.
    """
    words = topology.near_nics.get(gpu, {})
    near = [name for name in words if name in devices]
    serving = [name for name in near if reach.reaches(name, gpu) is True]
    if serving:
        best = words[serving[0]]
        return ServingNics(tuple(name for name in serving if words[name] is best))
    if doubt := _doubt(node, topology, gpu, reach):
        return ServingNics(doubt=doubt)
    to_nic, others = topology.paths.nccl.to_nic, () if near else topology.best_nics.get(gpu, ())
    by_nvlink = tuple(
        name
        for name in others
        if name in devices and to_nic(gpu, name) is Nccl.PXN and reach.reaches(name, gpu) is True
    )
    if by_nvlink:
        return ServingNics(by_nvlink, by_pxn=True)
    far = not near and bool(reach.nics_of(gpu))
    return ServingNics(reason=_why_unserved(topology, gpu, near, devices, reach, reading), far=far)


def _doubt(node: Node, topology: Topology, gpu: str, reach: Reachability) -> str:
    """Return what is unknown and could serve the GPU: a near NIC, or the path to one that is up."""
    c2c = _c2c_links(node, gpu)
    for name in reach.active:
        path = topology.paths.get((gpu, name))
        if path is not None and isinstance(c2c, Unknown) and path.nccl is Nccl.PHB:
            return f"the links between CPU and GPU are {c2c}"  # with C2C this NIC is near
        reaches = reach.reaches(name, gpu)
        if path is None or (not isinstance(reaches, Unknown) and not reaches):
            continue
        if isinstance(path.nccl, Unknown):
            return f"the path to {name} is unknown: {path.nccl}"
        if isinstance(reaches, Unknown) and path.nccl in NEAR:
            return f"the state of {name} is unknown: {reaches}"
    for bdf in () if isinstance(node.rdma, Unknown) else node.rdma.devices_elsewhere:
        path = topology.paths.get((gpu, bdf))
        if path is not None and path.nccl in NEAR:
            return f"the RDMA device of {bdf} is in another network namespace; run gdrtop in that pod"
    return ""


def _c2c_links(node: Node, gpu: str) -> Maybe[int]:
    """Return a GPU's C2C links if they are known or will be; a driver that shows none is taken for none."""
    gpus = () if isinstance(node.gpus, Unknown) else node.gpus.gpus
    links = next((row.c2c_links for row in gpus if row.bdf == gpu), 0)
    return links if isinstance(links, Unknown) and links.reason is Reason.NOT_YET else 0


def _why_unserved(
    topology: Topology,
    gpu: str,
    near: list[str],
    devices: Mapping[str, RdmaDevice],
    reach: Reachability,
    reading: Reading | None,
) -> str:
    support = reach.direct.gpu_support.get(gpu)
    if support is not None and support.reason:
        return support.reason
    if near:
        states = _port_states(devices[near[0]], reading)
        if ACTIVE in states:
            return f"{near[0]} cannot register GPU memory"
        return f"{near[0]} {f'is {states[0]}' if states else 'has no ports'}"
    up = [name for name in topology.best_nics.get(gpu, ()) if name in devices and reach.active[name] is True]
    if not up:
        return "no NIC is up"
    nccl = topology.paths[gpu, up[0]].nccl
    return f"the nearest is {up[0]} at {nccl if isinstance(nccl, Unknown) else nccl.value}"
