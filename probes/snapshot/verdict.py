"""The one line on top: is GPUDirect RDMA working here, by which path, and if not, the first reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from probes.base.origin import Source
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.gpu.gpus import NOT_LISTED, Gpu, GpuFacts
from probes.facts.gpudirect import GdrPath, GpuDirectFacts, PathState, hardware_of
from probes.facts.kernel.modules import ModuleFacts, ModuleState
from probes.facts.node import Node
from probes.facts.pci.functions import PciFacts, PciKind, is_for_guests
from probes.facts.rdma.devices import RdmaDevice
from probes.facts.system.platform import in_container, is_guest
from probes.nccl.topology_file import TopologyFileFacts
from probes.snapshot.rates import Reading, port_rates
from probes.topology.nccl_words import Nccl
from probes.topology.paths import Topology


class State(Enum):
    """The one word."""

    ACTIVE = "ACTIVE"  # usable, in use now, and nothing on the data path is below what the hardware can do
    READY = "READY"  # the same, not in use now
    DEGRADED = "DEGRADED"  # usable, but not for every GPU, or something on the data path costs bandwidth
    BROKEN = "BROKEN"  # no usable path
    UNKNOWN = "UNKNOWN"  # what decides could not be read
    NOT_APPLICABLE = "NOT APPLICABLE"  # no NVIDIA GPU, no RDMA NIC, or hardware that cannot do it by design


@dataclass(frozen=True)
class Verdict:
    """The word, the path it holds by, for how many GPUs, and the first reason."""

    state: State
    path: GdrPath | None
    gpus_served: int  # GPUs that can use GPUDirect RDMA at NCCL's default level (PXB, or P2C with C2C)
    gpus: int
    reason: str  # one or two sentences without a full stop at the end
    nics: int = 0  # NICs that serve these GPUs
    critical: int | None = None  # findings, those with the same cause counted once; None: not checked yet
    warnings: int | None = None


@dataclass(frozen=True)
class _Use:
    """Which path can be used, and which is used at this moment."""

    dmabuf: Maybe[bool]
    peermem: Maybe[bool]
    by_peers: GdrPath  # nvidia_peermem's path, or EFA's own
    regions: int  # registered by nvidia-peermem now
    attached: bool  # a dma-buf of the GPU driver is attached to a NIC now

    @property
    def path(self) -> GdrPath | None:
        """The path in use, else the one NCCL takes: DMA-BUF before peermem."""
        if self.attached or (not self.regions and not isinstance(self.dmabuf, Unknown) and self.dmabuf):
            return GdrPath.DMABUF
        return self.by_peers if not isinstance(self.peermem, Unknown) and self.peermem else None


@dataclass(frozen=True)
class _Served:
    """What one GPU has: NICs that serve it, or why none does."""

    nics: tuple[str, ...] = ()
    by_pxn: bool = False  # through another GPU's NVLink
    reason: str = ""  # why no NIC serves it
    doubt: str = ""  # what is not known and could serve it
    far: bool = False  # a NIC could serve it, but none is near


# Up to these NCCL uses GPUDirect RDMA unless told otherwise; P2C stands only where a GPU has C2C links
# (src/graph/paths.cc ncclTopoCheckGdr: the level is P2C, before 2.29 PXB).
_NEAR = (Nccl.PIX, Nccl.PXB, Nccl.P2C)
# NICs of clouds and supercomputers that reach GPU memory without verbs, by their drivers.
_UNFINISHED_FABRIC = ("not started", "in progress", "failed")
_WITHOUT_VERBS = {
    "cxi": "Slingshot (cxi) uses libfabric, which gdrtop does not read",
    "gve": "gVNIC (gve) uses GPUDirect-TCPX, which gdrtop does not read",
}


def judge(
    node: Node,
    topology: Topology,
    reading: Reading | None,
    before: Reading | None = None,
    files: Maybe[TopologyFileFacts] | None = None,
) -> Verdict:
    """The verdict of one node at one moment; without a reading, as the node's own facts have it.

    `before`: the reading before, for the traffic between the two; `files`: NCCL's topology files.
    """
    early = _missing_devices(node, topology)
    if early is not None:
        return early
    gpus = _our_gpus(node)
    count = len(gpus) if gpus else len(topology.gpus)
    direct = node.gpudirect
    if isinstance(direct, Unknown):
        return Verdict(State.UNKNOWN, None, 0, count, f"the state of GPUDirect is unknown: {direct}")
    if gpus and all(_never(direct, gpu.bdf) for gpu in gpus):
        reason = direct.gpu_support[gpus[0].bdf].reason
        return Verdict(State.NOT_APPLICABLE, None, 0, count, f"by design: {reason}")
    if not _devices(node):
        return _no_devices(node, topology)
    use = _use(node, direct, reading)
    if direct.cuda_failure and not use.regions and not use.attached:
        return Verdict(State.BROKEN, None, 0, count, direct.cuda_failure)
    if use.path is None:
        return _no_path(node, direct, use, count)
    verdict = _served(node, topology, reading, direct, use, _topology_file(node, files))
    if direct.cuda_failure and verdict.state in (State.ACTIVE, State.READY, State.DEGRADED):
        return replace(verdict, state=State.DEGRADED, reason=direct.cuda_failure)
    hidden = use.path is GdrPath.DMABUF and isinstance(direct.dmabuf_in_use, Unknown)
    if verdict.state is State.READY and hidden:
        return replace(verdict, reason=_joined(_unproved(node, reading, before), verdict.reason))
    return verdict


def _never(direct: GpuDirectFacts, gpu: str) -> bool:
    """Whether a GPU cannot use GPUDirect RDMA by design."""
    return gpu in direct.gpu_support and direct.gpu_support[gpu].by_design


def _joined(*sentences: str) -> str:
    """Sentences as one text; each begins with a small letter where it stands first."""
    said = [sentence for sentence in sentences if sentence]
    return ". ".join(said[:1] + [f"{sentence[:1].upper()}{sentence[1:]}" for sentence in said[1:]])


def _missing_devices(node: Node, topology: Topology) -> Verdict | None:
    """The verdict where GPUs or NICs are missing, or not known."""

    def say(state: State, reason: str) -> Verdict:
        return Verdict(state, None, 0, len(topology.gpus), reason)

    if not topology.gpus and isinstance(node.pci, Unknown):
        return say(State.UNKNOWN, f"the PCI devices could not be read: {node.pci}")
    unplaced = () if isinstance(node.gpus, Unknown) else node.gpus.unplaced
    if not topology.gpus and unplaced:
        plural = "s" if len(unplaced) > 1 else ""
        told = f"the NVIDIA driver lists {len(unplaced)} GPU{plural}, but /sys/bus/pci/devices shows none"
        return say(State.UNKNOWN, told)
    nothing_known = isinstance(node.rdma, Unknown) and node.rdma.reason is not Reason.NOT_THERE
    if not topology.gpus:
        if topology.nics or nothing_known:
            return say(State.NOT_APPLICABLE, "no NVIDIA GPU here")
        try_this = "; see `gdrtop --demo`" if node.origin.source is Source.LIVE else ""
        return say(State.NOT_APPLICABLE, f"no NVIDIA GPU and no RDMA NIC here{try_this}")
    if isinstance(node.gpus, GpuFacts) and not _our_gpus(node):
        drivers = sorted({str(gpu.driver) for gpu in node.gpus.gpus if is_for_guests(gpu.driver)})
        if drivers:
            told = f"all GPUs are bound to {drivers[0]} for virtual machines"
            return say(State.NOT_APPLICABLE, told)
    if not topology.nics:
        if isinstance(node.rdma, Unknown) and nothing_known:
            return say(State.UNKNOWN, f"the RDMA devices could not be read: {node.rdma}")
        if isinstance(node.pci, Unknown):
            return say(State.UNKNOWN, f"the PCI devices could not be read: {node.pci}")
        software = [] if isinstance(node.rdma, Unknown) else [device.name for device in node.rdma.devices]
        besides = f": {_listed(software)} on no PCI device" if software else ""
        other = _without_verbs(node.pci)
        return say(State.NOT_APPLICABLE, other or f"no RDMA NIC here{besides}")
    if isinstance(node.rdma, Unknown) and nothing_known:
        return say(State.UNKNOWN, f"the RDMA devices could not be read: {node.rdma}")
    return None


def _without_verbs(pci: PciFacts) -> str:
    """What to say of NICs that reach GPU memory by something else than verbs."""
    for function in pci.functions.values():
        driver = known(function.driver, "")
        for name, told in _WITHOUT_VERBS.items():
            if function.kind is PciKind.NIC and driver.startswith(name):
                return f"no verbs NIC here: {told}"
    return ""


def _no_devices(node: Node, topology: Topology) -> Verdict:
    """NICs on the bus, but no RDMA device."""

    def say(state: State, reason: str) -> Verdict:
        return Verdict(state, None, 0, len(topology.gpus), reason)

    ours = _our_nics(node, topology)
    if not ours:
        return say(State.NOT_APPLICABLE, "all RDMA NICs are passed through to virtual machines")
    elsewhere = () if isinstance(node.rdma, Unknown) else node.rdma.devices_elsewhere
    if elsewhere:
        plural = "s are" if len(elsewhere) > 1 else " is"
        told = f"{len(elsewhere)} RDMA device{plural} in another network namespace: run gdrtop in that pod"
        return say(State.UNKNOWN, told)
    return say(State.BROKEN, _no_rdma_device(node, ours))


def _our_nics(node: Node, topology: Topology) -> int:
    """How many NICs are not handed to virtual machines."""
    functions = node.pci.functions if isinstance(node.pci, PciFacts) else {}
    drivers = [functions[nic.id].driver for nic in topology.nics if nic.id in functions]
    return len(topology.nics) - sum(is_for_guests(driver) for driver in drivers)


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
    """RDMA devices that are hardware, by name."""
    return {device.name: device for device in hardware_of(node.rdma)}


def _our_gpus(node: Node) -> tuple[Gpu, ...]:
    """GPUs that are here to be used: not handed to a virtual machine, not hidden from this container."""
    if isinstance(node.gpus, Unknown):
        return ()
    contained = in_container(node.platform)
    return tuple(
        gpu
        for gpu in node.gpus.gpus
        if not is_for_guests(gpu.driver) and not (contained and _not_listed(gpu))
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
    if not isinstance(gpu.nvml, Unknown) and known(gpu.nvml.fabric, "") in _UNFINISHED_FABRIC:
        state = known(gpu.nvml.fabric, "")
        return f"GPU{gpu.index}'s NVLink fabric is {state}: CUDA programs may fail with error 802"
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
        direct.peermem.path,
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
            return f"{state.path.value}: {one.name} unknown ({one.met})"
    return f"{state.path.value} is unknown"


def _no_path(node: Node, direct: GpuDirectFacts, use: _Use, gpus: int) -> Verdict:
    unknown = isinstance(use.dmabuf, Unknown) or isinstance(use.peermem, Unknown)
    reasons = [_first_lack(direct.dmabuf), _first_lack(direct.peermem)]
    driver = None
    if isinstance(node.modules, ModuleFacts):
        driver = node.modules.modules.get("nvidia")
    if not unknown and driver is not None and driver.state is ModuleState.NOT_LOADED:
        reasons = reasons[:1]  # nothing else matters before that
    state = State.UNKNOWN if unknown else State.BROKEN
    return Verdict(state, None, 0, gpus, "; ".join(dict.fromkeys(reasons)))


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


def _any(answers: Iterable[Maybe[bool]]) -> Maybe[bool]:
    """True where one is, else the first reason why one is unknown, else False."""
    unsure: Unknown | None = None
    for answer in answers:
        if isinstance(answer, Unknown):
            unsure = answer if unsure is None else unsure
        elif answer:
            return True
    return False if unsure is None else unsure


def _all(*answers: Maybe[bool]) -> Maybe[bool]:
    """False where one is, else the first reason why one is unknown, else True."""
    unsure: Unknown | None = None
    for answer in answers:
        if isinstance(answer, Unknown):
            unsure = answer if unsure is None else unsure
        elif not answer:
            return False
    return True if unsure is None else unsure


@dataclass(frozen=True)
class _Ends:
    """What NICs and GPUs can do, pair by pair."""

    direct: GpuDirectFacts
    use: _Use
    active: dict[str, Maybe[bool]]  # RDMA device -> has an ACTIVE port

    def reaches(self, nic: str, gpu: str) -> Maybe[bool]:
        """Whether a NIC is up and reaches this GPU's memory by either path."""
        direct, use = self.direct, self.use
        support = direct.gpu_support.get(gpu)
        not_asked = Unknown(Reason.NOT_THERE, nic, "not asked")
        takes = direct.nic_dmabuf.get(nic, not_asked)
        if use.attached and isinstance(takes, Unknown):
            takes = True
        registers = direct.nic_peermem.get(nic, use.peermem)
        if use.regions and (isinstance(registers, Unknown) or direct.peermem.usable is not True):
            registers = True
        by_dmabuf = _all(use.dmabuf, takes, True if support is None else support.dmabuf)
        by_peers = _all(use.peermem, registers, True if support is None else support.peermem)
        return _all(self.active[nic], _any((by_dmabuf, by_peers)))


def _served(
    node: Node, topology: Topology, reading: Reading | None, direct: GpuDirectFacts, use: _Use, file: str
) -> Verdict:
    """A path is usable: which GPUs have a NIC near that is up; `file` is NCCL's topology file."""
    devices = _devices(node)
    ends = _Ends(direct, use, {name: _active(device, reading) for name, device in devices.items()})
    facts = {gpu.bdf: gpu for gpu in _our_gpus(node)}
    here = [end for end in topology.gpus if end.id in facts or isinstance(node.gpus, Unknown)]
    # Those that never can are not missed beside others that can.
    here = [end for end in here if not _never(direct, end.id)]
    faulty = {end.id: _gpu_fault(node, facts[end.id]) for end in here if end.id in facts}
    faults = {gpu: fault for gpu, fault in faulty.items() if fault}
    answers = {end.id: _served_gpu(node, topology, end.id, ends, reading) for end in here}
    served = [end for end in here if end.id not in faults and answers[end.id].nics]
    guest_paths = is_guest(node.platform) is True and any(one.far for one in answers.values())
    if guest_paths and (file or use.attached or use.regions):
        # NCCL has other paths than this PCI tree shows, or uses them already.
        served = [end for end in here if end.id not in faults]
        answers = {end.id: replace(answers[end.id], nics=_reaching(end.id, ends)) for end in here}
    nics = {nic for end in served for nic in answers[end.id].nics}

    def say(state: State, *reasons: str) -> Verdict:
        return Verdict(state, use.path, len(served), len(here), _joined(*reasons), len(nics))

    reaching = [ends.reaches(name, end.id) for name in devices for end in here]
    if here and not any(isinstance(answer, Unknown) or answer for answer in reaching):
        return replace(say(State.BROKEN, _no_nic(devices, ends)), path=None)
    if faults:
        others = len(faults) - 1
        more = f", and {others} other GPU{'s' if others > 1 else ''}" if others else ""
        return say(State.DEGRADED, next(iter(faults.values())) + more)
    left = [end for end in here if end not in served]
    doubts = [f"{end.label}: {answers[end.id].doubt}" for end in left if answers[end.id].doubt]
    unserved = [end for end in left if not answers[end.id].doubt]
    if unserved and guest_paths:
        told = (
            "paths between GPUs and NICs are unknown: this virtual machine hides its PCIe switches, and NCCL "
            "has no topology file"
        )
        return replace(say(State.UNKNOWN, told), gpus_served=0, nics=0)
    if unserved:
        names = _listed([end.label for end in unserved])
        return say(State.DEGRADED, _degraded(facts, names, len(unserved), answers[unserved[0].id].reason))
    if doubts:
        return say(State.UNKNOWN, doubts[0])
    notes = [_by_pxn([end.label for end in served if answers[end.id].by_pxn])]
    if guest_paths:
        notes.append(
            f"paths come from NCCL's topology file {file}, and were not checked"
            if file
            else "paths between GPUs and NICs are unknown: this virtual machine hides its PCIe switches"
        )
    if use.attached or use.regions:
        return say(State.ACTIVE, _in_use(use, direct), *notes)
    return say(State.READY, _idle(direct, use), *notes)


def _served_gpu(node: Node, topology: Topology, gpu: str, ends: _Ends, reading: Reading | None) -> _Served:
    """The NICs that serve one GPU: near ones that are up; where none is near at all, those behind NVLink."""
    devices = _devices(node)
    words = {name: topology.paths[gpu, name].nccl for name in devices}
    order = [name for name in topology.best_nics.get(gpu, ()) if name in devices]
    near = [name for name in order if words[name] in _NEAR]
    serving = [name for name in near if ends.reaches(name, gpu) is True]
    if serving:
        best = words[serving[0]]
        return _Served(tuple(name for name in serving if words[name] is best))
    if doubt := _doubt(node, topology, gpu, ends):
        return _Served(doubt=doubt)
    by_nvlink = [name for name in order if words[name] is Nccl.PXN and ends.reaches(name, gpu) is True]
    if by_nvlink and not near:
        return _Served(tuple(by_nvlink), by_pxn=True)
    far = not near and bool(_reaching(gpu, ends))
    return _Served(reason=_why_unserved(topology, gpu, near, devices, ends, reading), far=far)


def _reaching(gpu: str, ends: _Ends) -> tuple[str, ...]:
    return tuple(name for name in ends.active if ends.reaches(name, gpu) is True)


def _no_nic(devices: dict[str, RdmaDevice], ends: _Ends) -> str:
    names = _listed(list(devices))
    if not any(active is True for active in ends.active.values()):
        return f"no port of {names} is ACTIVE"
    return f"no NIC with an ACTIVE port can register GPU memory: {names}"


def _doubt(node: Node, topology: Topology, gpu: str, ends: _Ends) -> str:
    """What is not known that could serve the GPU: a near NIC, or the path to one that is up."""
    for name in ends.active:
        path = topology.paths.get((gpu, name))
        reaches = ends.reaches(name, gpu)
        if path is None or (not isinstance(reaches, Unknown) and not reaches):
            continue
        if isinstance(path.nccl, Unknown):
            return f"the path to {name} is unknown: {path.nccl}"
        if isinstance(reaches, Unknown) and path.nccl in _NEAR:
            return f"the state of {name} is unknown: {reaches}"
    for bdf in () if isinstance(node.rdma, Unknown) else node.rdma.devices_elsewhere:
        path = topology.paths.get((gpu, bdf))
        if path is not None and path.nccl in _NEAR:
            return f"the RDMA device of {bdf} is in another network namespace: run gdrtop in that pod"
    return ""


def _why_unserved(
    topology: Topology,
    gpu: str,
    near: list[str],
    devices: dict[str, RdmaDevice],
    ends: _Ends,
    reading: Reading | None,
) -> str:
    """Why no NIC serves a GPU."""
    support = ends.direct.gpu_support.get(gpu)
    if support is not None and support.reason:
        return support.reason
    if near:
        states = _port_states(devices[near[0]], reading)
        if "ACTIVE" in states:
            return f"{near[0]} cannot register GPU memory"
        return f"{near[0]} is {states[0] if states else 'without ports'}"
    up = [name for name in topology.best_nics.get(gpu, ()) if name in devices and ends.active[name] is True]
    if not up:
        return "no NIC is up"
    nccl = topology.paths[gpu, up[0]].nccl
    return f"the nearest is {up[0]} at {nccl if isinstance(nccl, Unknown) else nccl.value}"


def _degraded(facts: dict[str, Gpu], names: str, count: int, first: str) -> str:
    by_c2c = any(known(gpu.c2c_links, 0) for gpu in facts.values())
    level = "P2C" if by_c2c else "PXB"
    return f"{names} {'has' if count == 1 else 'have'} no usable NIC within {level}: {first}"


def _by_pxn(names: list[str]) -> str:
    if not names:
        return ""
    plural = "s" if len(names) > 1 else ""
    return f"{len(names)} GPU{plural} by PXN: {_listed(names)} reach NICs through another GPU's NVLink"


def _topology_file(node: Node, files: Maybe[TopologyFileFacts] | None) -> str:
    """The file from which NCCL takes the PCI tree of a virtual machine; "" where there is none."""
    if files is None or isinstance(files, Unknown):
        return ""
    for file in files.files:
        # A file of another user's container may not be readable from here; a job names it all the same.
        if not isinstance(file.endpoints, Unknown) or file.endpoints.reason is Reason.NEEDS_ROOT:
            return file.path
    return ""


def _listed(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more"


def _in_use(use: _Use, direct: GpuDirectFacts) -> str:
    if not use.regions:
        return "a NIC is attached to GPU memory by DMA-BUF"
    regions = f"{use.regions} memory region{'s' if use.regions > 1 else ''}"
    if use.attached:
        return f"peermem holds {regions}, and a NIC is attached to GPU memory by DMA-BUF"
    # Jobs keep the path by which they registered: both may be usable.
    why = "; NCCL prefers DMA-BUF for new jobs" if direct.preferred is GdrPath.DMABUF else ""
    return f"peermem holds {regions}{why}"


def _idle(direct: GpuDirectFacts, use: _Use) -> str:
    if use.path is GdrPath.DMABUF and isinstance(direct.dmabuf_in_use, Unknown):
        return ""
    return "no memory region is registered now"


def _unproved(node: Node, reading: Reading | None, before: Reading | None) -> str:
    """What is known of use where only root could see DMA-BUF: programs, open devices, traffic."""
    seen: list[str] = []
    if reading is not None and not isinstance(reading.gpus, Unknown):
        pids = {pid for gpu in reading.gpus.values() for pid in known(gpu.processes, ())}
        if pids:
            seen.append(f"{len(pids)} GPU process{'es' if len(pids) > 1 else ''}")
    opened = _open_contexts(node, reading)
    if opened:
        seen.append(f"{opened} RDMA context{'s' if opened > 1 else ''}")
    if reading is not None and before is not None:
        rates = port_rates(before, reading).values()
        gbps = sum(max(known(rate.sent_gbps, 0.0), known(rate.received_gbps, 0.0)) for rate in rates)
        if gbps >= 1:
            # Rounded: the line should not change with every reading.
            seen.append(f"{f'{gbps / 1000:.1f} T' if gbps >= 1000 else f'{gbps:.0f} G'}b/s on the NICs")
    return _joined(", ".join(seen), "only root can tell whether DMA-BUF is in use")


def _open_contexts(node: Node, reading: Reading | None) -> int:
    """How often programs have opened an RDMA device: references to ib_uverbs that no module holds."""
    if reading is None or isinstance(node.modules, Unknown):
        return 0
    module = node.modules.modules.get("ib_uverbs")
    users = 0 if module is None else len(known(module.used_by, ()))
    return max(0, known(reading.module_refcnts.get("ib_uverbs", 0), 0) - users)
