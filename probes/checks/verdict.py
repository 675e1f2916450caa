"""The one line on top: is GPUDirect RDMA working here, by which path, and if not, the first reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from probes.gpudirect import GdrPath, GpuDirectFacts, PathState
from probes.gpus import NOT_LISTED, Gpu, GpuFacts
from probes.modules import ModuleFacts, ModuleState
from probes.node import Node
from probes.origin import Source
from probes.pci import PciFacts
from probes.platform import Environment, PlatformFacts, in_container
from probes.rates import Reading
from probes.rdma import RdmaDevice
from probes.topology import Nccl, Topology
from probes.unknown import Maybe, Reason, Unknown, known


class State(Enum):
    """The one word."""

    ACTIVE = "ACTIVE"  # ready, and memory regions are registered (refcnt or dma-buf attachments) now
    READY = "READY"
    DEGRADED = "DEGRADED"  # works, but not for every GPU or not on the best path
    BROKEN = "BROKEN"
    UNKNOWN = "UNKNOWN"  # what decides could not be read
    NOT_APPLICABLE = "NOT APPLICABLE"  # no NVIDIA GPU or no RDMA-capable NIC


@dataclass(frozen=True)
class Verdict:
    """The word, the path it holds by, for how many GPUs, and the first reason."""

    state: State
    path: GdrPath | None
    gpus_served: int  # GPUs with a usable NIC at NCCL's default GDR level (PXB, or P2C with C2C)
    gpus: int
    reason: str  # one sentence
    nics: int = 0  # NICs that serve these GPUs
    critical: int | None = None  # findings, those with the same cause counted once; None: not checked yet
    warnings: int | None = None


@dataclass(frozen=True)
class _Use:
    """Which path can be used, and which is used at this moment."""

    dmabuf: Maybe[bool]
    peermem: Maybe[bool]
    regions: int  # registered by nvidia-peermem now
    attached: bool  # a dma-buf of the GPU driver is attached to a device now

    @property
    def path(self) -> GdrPath | None:
        """The path in use, else the one NCCL takes: DMA-BUF before peermem."""
        if self.attached or (not self.regions and not isinstance(self.dmabuf, Unknown) and self.dmabuf):
            return GdrPath.DMABUF
        return GdrPath.PEERMEM if not isinstance(self.peermem, Unknown) and self.peermem else None


# Up to these NCCL uses GPUDirect RDMA unless told otherwise; P2C stands only where a GPU has C2C links
# (src/graph/paths.cc ncclTopoCheckGdr: the level is P2C, before 2.29 PXB). A NIC behind another GPU's
# NVLink (PXN) serves too, but is not near.
_NEAR = (Nccl.PIX, Nccl.PXB, Nccl.P2C)
_NOT_OURS = ("vfio-pci",)  # the GPU belongs to a virtual machine


def judge(node: Node, topology: Topology, reading: Reading | None) -> Verdict:
    """The verdict of one node at one moment; without a reading, as the node's own facts have it."""
    early = _missing_devices(node, topology)
    if early is not None:
        return early
    gpus = _our_gpus(node)
    count = len(gpus) if gpus else len(topology.gpus)
    if isinstance(node.gpudirect, Unknown):
        return Verdict(State.UNKNOWN, None, 0, count, f"GPUDirect could not be judged: {node.gpudirect}")
    use = _use(node, node.gpudirect, reading)
    if use.path is None:
        return _no_path(node, node.gpudirect, use, count)
    return _served(node, topology, reading, node.gpudirect, use)


def _missing_devices(node: Node, topology: Topology) -> Verdict | None:
    """The verdict where GPUs or NICs are missing, or not known."""

    def say(state: State, reason: str) -> Verdict:
        return Verdict(state, None, 0, len(topology.gpus), reason)

    if not topology.gpus and isinstance(node.pci, Unknown):
        return say(State.UNKNOWN, f"the PCI devices could not be read: {node.pci}")
    nothing_known = isinstance(node.rdma, Unknown) and node.rdma.reason is not Reason.NOT_THERE
    if not topology.gpus:
        if topology.nics or nothing_known:
            return say(State.NOT_APPLICABLE, "no NVIDIA GPU here")
        try_this = "; see `gdrtop --demo`" if node.origin.source is Source.LIVE else ""
        return say(State.NOT_APPLICABLE, f"no NVIDIA GPU and no RDMA NIC here{try_this}")
    if isinstance(node.gpus, GpuFacts) and not _our_gpus(node):
        drivers = sorted({known(gpu.driver, "") for gpu in node.gpus.gpus} & set(_NOT_OURS))
        if drivers:
            told = f"all GPUs are bound to {drivers[0]}, for virtual machines"
            return say(State.NOT_APPLICABLE, told)
    if not topology.nics:
        if isinstance(node.rdma, Unknown) and nothing_known:
            return say(State.UNKNOWN, f"the RDMA devices could not be read: {node.rdma}")
        if isinstance(node.pci, Unknown):
            return say(State.UNKNOWN, f"the PCI devices could not be read: {node.pci}")
        software = [] if isinstance(node.rdma, Unknown) else [device.name for device in node.rdma.devices]
        besides = f": {_listed(software)} on no PCI device" if software else ""
        return say(State.NOT_APPLICABLE, f"no RDMA NIC here{besides}")
    if isinstance(node.rdma, Unknown) and nothing_known:
        return say(State.UNKNOWN, f"the RDMA devices could not be read: {node.rdma}")
    if not _devices(node):
        ours = _our_nics(node, topology)
        if not ours:
            return say(State.NOT_APPLICABLE, "all RDMA NICs are bound to vfio-pci, for virtual machines")
        return say(State.BROKEN, _no_rdma_device(node, ours))
    return None


def _our_nics(node: Node, topology: Topology) -> int:
    """How many NICs are not handed to virtual machines."""
    functions = node.pci.functions if isinstance(node.pci, PciFacts) else {}
    drivers = [functions[nic.id].driver for nic in topology.nics if nic.id in functions]
    return len(topology.nics) - sum(known(driver, "") in _NOT_OURS for driver in drivers)


def _no_rdma_device(node: Node, count: int) -> str:
    """NICs on the bus, but nothing in /sys/class/infiniband: the first module that is missing."""
    nics = f"{count} NIC{'s' if count > 1 else ''}"
    if isinstance(node.modules, ModuleFacts):
        for name in ("ib_core", "mlx5_core", "mlx5_ib"):
            module = node.modules.modules.get(name)
            if module is not None and module.state is ModuleState.NOT_LOADED:
                return f"{name} is not loaded: no RDMA device for {nics}"
    return f"no RDMA device for {nics}"


def _devices(node: Node) -> dict[str, RdmaDevice]:
    """RDMA devices that are hardware, by name; rxe and siw reach no GPU memory."""
    devices = () if isinstance(node.rdma, Unknown) else node.rdma.devices
    return {device.name: device for device in devices if not isinstance(device.bdf, Unknown)}


def _our_gpus(node: Node) -> tuple[Gpu, ...]:
    """GPUs that are here to be used: not handed to a virtual machine, not hidden from this container."""
    if isinstance(node.gpus, Unknown):
        return ()
    contained = in_container(node.platform)
    return tuple(
        gpu
        for gpu in node.gpus.gpus
        if known(gpu.driver, "") not in _NOT_OURS and not (contained and _not_listed(gpu))
    )


def _not_listed(gpu: Gpu) -> bool:
    return isinstance(gpu.nvml, Unknown) and gpu.nvml.detail == NOT_LISTED


def _gpu_fault(node: Node, gpu: Gpu) -> str:
    """Why a GPU takes no part although the driver works; "" where nothing speaks against it."""
    if isinstance(gpu.driver, Unknown):
        # A dump may hold no drivers at all; one GPU without among others with one is a fault.
        bound = isinstance(node.gpus, GpuFacts) and any(known(one.driver, "") for one in node.gpus.gpus)
        return f"GPU{gpu.index} has no driver" if bound and gpu.driver.reason is Reason.NOT_THERE else ""
    if gpu.driver != "nvidia":
        return f"GPU{gpu.index} is bound to {gpu.driver}"
    if isinstance(node.gpus, GpuFacts) and node.gpus.driver.nvml is None and isinstance(gpu.nvml, Unknown):
        return f"GPU{gpu.index} does not answer: {gpu.nvml.detail or gpu.nvml.reason.value}"
    return ""


def _use(node: Node, direct: GpuDirectFacts, reading: Reading | None) -> _Use:
    """What can be used; refcnt counts regions registered now (nvidia-peermem.c), and 0 is no fault."""
    regions = 0
    if reading is not None:
        regions = known(reading.peermem.refcnt, 0)
        if isinstance(reading.peermem.refcnt, Unknown) and not isinstance(reading.peermem.peers, Unknown):
            regions = sum(known(peer.live_mrs, 0) for peer in reading.peermem.peers)
    elif isinstance(node.modules, ModuleFacts) and "nvidia_peermem" in node.modules.modules:
        regions = known(node.modules.modules["nvidia_peermem"].refcnt, 0)
    regions = max(0, regions)
    attached = known(direct.dmabuf_in_use, False)
    # What is in use can be used, whatever could not be read.
    return _Use(
        True if attached else direct.dmabuf.usable,
        True if regions else direct.peermem.usable,
        regions,
        attached,
    )


def _first_lack(state: PathState) -> str:
    """The first requirement that is not met, else the first that is not known, as a clause."""
    for one in state.requirements:
        if not isinstance(one.met, Unknown) and not one.met:
            return one.lack or f"{state.path.value} needs {one.name}"
    for one in state.requirements:
        if isinstance(one.met, Unknown):
            return f"not known for {state.path.value}: {one.name} ({one.met})"
    return f"{state.path.value} is unknown"


def _no_path(node: Node, direct: GpuDirectFacts, use: _Use, gpus: int) -> Verdict:
    unknown = isinstance(use.dmabuf, Unknown) or isinstance(use.peermem, Unknown)
    reasons = [_first_lack(direct.dmabuf), _first_lack(direct.peermem)]
    driver = None
    if isinstance(node.modules, ModuleFacts):
        driver = node.modules.modules.get("nvidia")
    if not unknown and driver is not None and driver.state is ModuleState.NOT_LOADED:
        reasons = reasons[:1]  # nothing else matters before that
    return Verdict(State.UNKNOWN if unknown else State.BROKEN, None, 0, gpus, "; ".join(reasons))


def _port_states(device: RdmaDevice, reading: Reading | None) -> list[Maybe[str]]:
    """The states of a device's ports, the reading's where it has them."""
    fresh = {} if reading is None else reading.port_states
    return [fresh.get((device.name, port.number), port.state) for port in device.ports]


def _active(device: RdmaDevice, reading: Reading | None) -> Maybe[bool]:
    """Whether a port is ACTIVE: NCCL takes no other (src/transport/net_ib/init.cc)."""
    states = _port_states(device, reading)
    if "ACTIVE" in states:
        return True
    return next((state for state in states if isinstance(state, Unknown)), False)


def _takes_part(
    device: RdmaDevice, direct: GpuDirectFacts, use: _Use, reading: Reading | None
) -> Maybe[bool]:
    """Whether a NIC is up and has a path to GPU memory."""
    active = _active(device, reading)
    by_peermem = not isinstance(use.peermem, Unknown) and use.peermem
    if by_peermem or isinstance(active, Unknown) or not active:
        return active
    answer = direct.nic_dmabuf.get(device.name, Unknown(Reason.NOT_THERE, device.name, "not asked"))
    return True if use.attached and isinstance(answer, Unknown) else answer


def _served(
    node: Node, topology: Topology, reading: Reading | None, direct: GpuDirectFacts, use: _Use
) -> Verdict:
    """A path is usable: does every GPU have a NIC near that is up."""
    devices = _devices(node)
    parts = {name: _takes_part(device, direct, use, reading) for name, device in devices.items()}
    facts = {gpu.bdf: gpu for gpu in _our_gpus(node)}
    ends = [end for end in topology.gpus if end.id in facts or isinstance(node.gpus, Unknown)]
    served: list[str] = []
    unserved: list[str] = []
    faults: list[str] = []
    first_reason = first_doubt = ""
    for end in ends:
        near = _near(topology, end.id, devices)
        if end.id in facts and (fault := _gpu_fault(node, facts[end.id])):
            faults.append(fault)
        elif any(parts[name] is True for name in near):
            served.append(end.label)
        elif doubt := _doubt(topology, end.id, parts):
            first_doubt = first_doubt or f"{end.label}: {doubt}"
        else:
            unserved.append(end.label)
            if not first_reason:
                states = _port_states(devices[near[0]], reading) if near else []
                first_reason = _why_unserved(topology, end.id, near, states, parts)

    def say(state: State, reason: str) -> Verdict:
        return Verdict(state, use.path, len(served), len(ends), reason)

    if not any(isinstance(part, Unknown) or part for part in parts.values()):
        if all("ACTIVE" not in _port_states(device, reading) for device in devices.values()):
            return say(State.BROKEN, f"no port of {_listed(list(devices))} is ACTIVE")
        return say(State.BROKEN, f"no NIC that is up takes dma-buf regions: {_listed(list(devices))}")
    if faults:
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        return say(State.DEGRADED, faults[0] + more)
    if unserved:
        return say(State.DEGRADED, _degraded(node, facts, unserved, first_reason))
    if first_doubt:
        return say(State.UNKNOWN, first_doubt)
    if use.attached or use.regions:
        return say(State.ACTIVE, _in_use(use))
    return say(State.READY, _idle(direct, use))


def _near(topology: Topology, gpu: str, devices: dict[str, RdmaDevice]) -> list[str]:
    return [
        name
        for name in topology.best_nics.get(gpu, ())
        if name in devices and topology.paths[gpu, name].nccl in _NEAR
    ]


def _doubt(topology: Topology, gpu: str, parts: dict[str, Maybe[bool]]) -> str:
    """What is not known that could serve the GPU: a near NIC's port, or the way to one that is up."""
    for name, part in parts.items():
        path = topology.paths.get((gpu, name))
        if path is None or (not isinstance(part, Unknown) and not part):
            continue
        if isinstance(path.nccl, Unknown):
            return f"the path to {name} is unknown: {path.nccl}"
        if isinstance(part, Unknown) and path.nccl in _NEAR:
            return f"whether {name} can be used is unknown: {part}"
    return ""


def _why_unserved(
    topology: Topology, gpu: str, near: list[str], states: list[Maybe[str]], parts: dict[str, Maybe[bool]]
) -> str:
    """Why no NIC serves a GPU; `states` are those of the ports of the nearest."""
    if near:
        if "ACTIVE" in states:
            return f"{near[0]} takes no dma-buf regions"
        return f"{near[0]} is {states[0] if states else 'without ports'}"
    up = [name for name in topology.best_nics.get(gpu, ()) if parts.get(name) is True]
    if not up:
        return "no NIC is up"
    nccl = topology.paths[gpu, up[0]].nccl
    return f"the nearest is {up[0]} at {nccl if isinstance(nccl, Unknown) else nccl.value}"


def _degraded(node: Node, facts: dict[str, Gpu], unserved: list[str], first: str) -> str:
    by_c2c = any(known(gpu.c2c_links, 0) for gpu in facts.values())
    level = "P2C" if by_c2c else "PXB"
    verb = "has" if len(unserved) == 1 else "have"
    reason = f"{_listed(unserved)} {verb} no ACTIVE NIC within {level}: {first}"
    guest = isinstance(node.platform, PlatformFacts) and (
        node.platform.environment is Environment.VIRTUAL_MACHINE
    )
    # Clouds give NCCL the real tree in a file (NCCL_TOPO_FILE, /var/run/nvidia-topologyd).
    return f"{reason}, as far as this virtual machine shows its PCI tree" if guest else reason


def _listed(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more"


def _in_use(use: _Use) -> str:
    if use.regions:
        regions = f"{use.regions} memory region{'s' if use.regions > 1 else ''}"
        more = ", and GPU buffers attached by DMA-BUF" if use.attached else ""
        return f"{regions} registered by nvidia-peermem now{more}"
    return "GPU buffers are attached by DMA-BUF now"


def _idle(direct: GpuDirectFacts, use: _Use) -> str:
    if use.path is GdrPath.DMABUF and isinstance(direct.dmabuf_in_use, Unknown):
        return f"whether it is in use now: {direct.dmabuf_in_use.reason.value}"
    return "no memory region is registered now"
