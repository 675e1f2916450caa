"""The verdict: does GPUDirect RDMA work on this node, by which path, and if not, the first reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from probes.base.origin import Source
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.gpu.fabric import UNFINISHED
from probes.facts.gpu.gpus import NOT_LISTED, Gpu, GpuFacts
from probes.facts.gpudirect import GdrPath, GpuDirectFacts
from probes.facts.kernel.modules import ModuleFacts, ModuleState
from probes.facts.node import Node
from probes.facts.pci.functions import PciFacts, PciKind, is_for_guests
from probes.facts.rdma.devices import RdmaDevice
from probes.facts.system.platform import in_container, is_guest
from probes.nccl.topology_file import TopologyFileFacts, file_of_new_jobs
from probes.snapshot.gdr_use import (
    GdrUse,
    active_text,
    first_unmet,
    idle_text,
    joined_sentences,
    read_use,
    signs_of_use,
)
from probes.snapshot.rates import Reading
from probes.snapshot.served_gpus import Reachability, hardware_devices, has_active_port, serving_nics
from probes.topology.paths import Topology


class State(Enum):
    """The word of the verdict."""

    ACTIVE = "ACTIVE"  # usable, in use now, and nothing on the data path is below what the hardware can do
    READY = "READY"  # the same, not in use now
    DEGRADED = "DEGRADED"  # usable, but not for every GPU, or something on the data path costs bandwidth
    BROKEN = "BROKEN"  # no usable path
    UNKNOWN = "UNKNOWN"  # what decides could not be read
    NOT_APPLICABLE = "NOT APPLICABLE"  # no NVIDIA GPU, no RDMA NIC, or hardware that cannot do it by design


@dataclass(frozen=True)
class Verdict:
    """The word, the path, the number of GPUs, and the first reason."""

    state: State
    path: GdrPath | None
    gpus_served: int  # GPUs that can use GPUDirect RDMA at NCCL's default level (PXB, or P2C with C2C)
    gpus: int
    reason: str  # one or two sentences without a full stop at the end
    nics: int = 0  # NICs that serve these GPUs
    critical: int | None = None  # findings, those with the same cause counted once; None: not checked yet
    warnings: int | None = None


# NICs of clouds and supercomputers that reach GPU memory without verbs, by driver.
_WITHOUT_VERBS = {
    "cxi": "Slingshot (cxi) uses libfabric, and /sys/class/cxi shows no device",
    "gve": "gVNIC (gve) uses GPUDirect-TCPX, which gdrtop does not read",
}
_NIC_MODULES = ("ib_core", "mlx5_core", "mlx5_ib", "efa", "cxi_ss1", "cxi_user")
_HIDDEN_SWITCHES = "paths between GPUs and NICs are unknown: this virtual machine hides its PCIe switches"


def judge(
    node: Node,
    topology: Topology,
    reading: Reading | None,
    before: Reading | None = None,
    files: Maybe[TopologyFileFacts] | None = None,
) -> Verdict:
    """Return the verdict at one moment; without a reading, by the node's own facts.

    `before`: the reading before, for the traffic between the two; `files`: NCCL's topology files.
    """
    missing = _missing_devices(node, topology)
    if missing is not None:
        return missing
    gpus = _usable_gpus(node)
    count = len(gpus) if gpus else len(topology.gpus)
    direct = node.gpudirect
    if isinstance(direct, Unknown):
        return Verdict(State.UNKNOWN, None, 0, count, f"the state of GPUDirect is unknown: {direct}")
    if gpus and all(direct.never_supports(gpu.bdf) for gpu in gpus):
        reason = direct.gpu_support[gpus[0].bdf].reason
        return Verdict(State.NOT_APPLICABLE, None, 0, count, f"by design: {reason}")
    if not hardware_devices(node):
        return _no_rdma_devices(node, topology)
    use = read_use(node, direct, reading)
    if direct.cuda_failure and not use.regions and not use.attached:
        return Verdict(State.BROKEN, None, 0, count, direct.cuda_failure)
    if use.path is None:
        return _no_path(node, direct, use, count)
    verdict = _usable_path(node, topology, reading, direct, use, _topology_file(files))
    if direct.cuda_failure and verdict.state in (State.ACTIVE, State.READY, State.DEGRADED):
        return replace(verdict, state=State.DEGRADED, reason=direct.cuda_failure)
    hidden = use.path is GdrPath.DMABUF and isinstance(direct.dmabuf_in_use, Unknown)
    if verdict.state is State.READY and hidden:
        return replace(verdict, reason=joined_sentences(signs_of_use(node, reading, before), verdict.reason))
    return verdict


# GPUs or NICs are missing


def _missing_devices(node: Node, topology: Topology) -> Verdict | None:
    """Return the verdict if GPUs or NICs are missing or unknown."""

    def verdict(state: State, reason: str) -> Verdict:
        return Verdict(state, None, 0, len(topology.gpus), reason)

    rdma_unread = isinstance(node.rdma, Unknown) and node.rdma.reason is not Reason.NOT_THERE
    if not topology.gpus:
        return _missing_gpus(node, verdict_for=verdict, has_nics=bool(topology.nics) or rdma_unread)
    if isinstance(node.gpus, GpuFacts) and not _usable_gpus(node):
        drivers = sorted({str(gpu.driver) for gpu in node.gpus.gpus if is_for_guests(gpu.driver)})
        if drivers:
            return verdict(State.NOT_APPLICABLE, f"all GPUs are bound to {drivers[0]} for virtual machines")
    if rdma_unread:
        return verdict(State.UNKNOWN, f"the RDMA devices could not be read: {node.rdma}")
    if topology.nics:
        return None
    if isinstance(node.pci, Unknown):
        return verdict(State.UNKNOWN, f"the PCI devices could not be read: {node.pci}")
    software = [] if isinstance(node.rdma, Unknown) else [device.name for device in node.rdma.devices]
    besides = f": {_short_list(software)} on no PCI device" if software else ""
    return verdict(State.NOT_APPLICABLE, _nics_without_verbs(node.pci) or f"no RDMA NIC here{besides}")


def _missing_gpus(node: Node, verdict_for: Callable[[State, str], Verdict], has_nics: bool) -> Verdict:
    if isinstance(node.pci, Unknown):
        return verdict_for(State.UNKNOWN, f"the PCI devices could not be read: {node.pci}")
    unplaced = () if isinstance(node.gpus, Unknown) else node.gpus.unplaced
    if unplaced:
        gpus = f"{len(unplaced)} GPU{'s' if len(unplaced) > 1 else ''}"
        reason = f"the NVIDIA driver lists {gpus}, but /sys/bus/pci/devices shows none"
        return verdict_for(State.UNKNOWN, reason)
    if has_nics:
        return verdict_for(State.NOT_APPLICABLE, "no NVIDIA GPU here")
    hint = "; see `gdrtop --demo`" if node.origin.source is Source.LIVE else ""
    return verdict_for(State.NOT_APPLICABLE, f"no NVIDIA GPU and no RDMA NIC here{hint}")


def _nics_without_verbs(pci: PciFacts) -> str:
    """Return the reason for NICs that reach GPU memory without verbs; "" if there are none."""
    for function in pci.functions.values():
        driver = known(function.driver, "")
        for name, text in _WITHOUT_VERBS.items():
            if function.kind is PciKind.NIC and driver.startswith(name):
                return f"no verbs NIC here: {text}"
    return ""


def _no_rdma_devices(node: Node, topology: Topology) -> Verdict:
    """Return the verdict for NICs on the bus without an RDMA device."""

    def verdict(state: State, reason: str) -> Verdict:
        return Verdict(state, None, 0, len(topology.gpus), reason)

    functions = node.pci.functions if isinstance(node.pci, PciFacts) else {}
    drivers = [functions[nic.id].driver for nic in topology.nics if nic.id in functions]
    count = len(topology.nics) - sum(is_for_guests(driver) for driver in drivers)
    if not count:
        return verdict(State.NOT_APPLICABLE, "all RDMA NICs are passed through to virtual machines")
    elsewhere = () if isinstance(node.rdma, Unknown) else node.rdma.devices_elsewhere
    if elsewhere:
        devices = f"{len(elsewhere)} RDMA device{'s are' if len(elsewhere) > 1 else ' is'}"
        return verdict(State.UNKNOWN, f"{devices} in another network namespace; run gdrtop in that pod")
    nics = f"no RDMA device for {count} NIC{'s' if count > 1 else ''}"
    if isinstance(node.modules, ModuleFacts):
        for rung in node.modules.ladder:
            module = node.modules.modules.get(rung.module)
            if rung.module not in _NIC_MODULES or not rung.core:
                continue
            if module is not None and module.state is ModuleState.NOT_LOADED:
                return verdict(State.BROKEN, f"{rung.module} is not loaded ({nics})")
    return verdict(State.BROKEN, nics)


def _usable_gpus(node: Node) -> tuple[Gpu, ...]:
    """Return the GPUs of this node: not passed to a virtual machine, visible in this container."""
    if isinstance(node.gpus, Unknown):
        return ()
    contained = in_container(node.platform)
    return tuple(
        gpu
        for gpu in node.gpus.gpus
        if not is_for_guests(gpu.driver) and not (contained and _is_not_listed(gpu))
    )


def _is_not_listed(gpu: Gpu) -> bool:
    return isinstance(gpu.nvml, Unknown) and gpu.nvml.detail == NOT_LISTED


# No path, or a path that some GPUs cannot use


def _no_path(node: Node, direct: GpuDirectFacts, use: GdrUse, gpus: int) -> Verdict:
    unknown = isinstance(use.dmabuf, Unknown) or isinstance(use.peermem, Unknown)
    reasons = [first_unmet(direct.dmabuf), first_unmet(direct.peermem)]
    if direct.peermem.path is GdrPath.CXI:  # libfabric hands DMA-BUFs to the driver itself
        reasons = reasons[1:]
    driver = None
    if isinstance(node.modules, ModuleFacts):
        driver = node.modules.modules.get("nvidia")
    if not unknown and driver is not None and driver.state is ModuleState.NOT_LOADED:
        reasons = reasons[:1]  # nothing else matters before that
    state = State.UNKNOWN if unknown else State.BROKEN
    return Verdict(state, None, 0, gpus, "; ".join(dict.fromkeys(reasons)))


def _usable_path(
    node: Node, topology: Topology, reading: Reading | None, direct: GpuDirectFacts, use: GdrUse, file: str
) -> Verdict:
    """Return the verdict for a usable path, by the GPUs with a NIC near; `file`: NCCL's topology file."""
    devices = hardware_devices(node)
    active = {name: has_active_port(device, reading) for name, device in devices.items()}
    reach = Reachability(direct, use, active)
    facts = {gpu.bdf: gpu for gpu in _usable_gpus(node)}
    gpus = [gpu for gpu in topology.gpus if gpu.id in facts or isinstance(node.gpus, Unknown)]
    # A GPU that can never use it does not count next to others that can.
    gpus = [gpu for gpu in gpus if not direct.never_supports(gpu.id)]
    faults = {gpu.id: fault for gpu in gpus if gpu.id in facts and (fault := _gpu_fault(node, facts[gpu.id]))}
    answers = {gpu.id: serving_nics(node, topology, gpu.id, devices, reach, reading) for gpu in gpus}
    served = [gpu for gpu in gpus if gpu.id not in faults and answers[gpu.id].nics]
    # A file that gdrtop has read shows NCCL's own paths, on a virtual machine too.
    guest_paths = (
        topology.file is None
        and is_guest(node.platform) is True
        and any(answer.far for answer in answers.values())
    )
    if guest_paths and (file or use.attached or use.regions):
        # NCCL has other paths than this PCI tree shows, or uses them already.
        served = [gpu for gpu in gpus if gpu.id not in faults]
        answers = {gpu.id: replace(answers[gpu.id], nics=reach.nics_of(gpu.id)) for gpu in gpus}
    nics = {nic for gpu in served for nic in answers[gpu.id].nics}

    def verdict(state: State, *reasons: str) -> Verdict:
        return Verdict(state, use.path, len(served), len(gpus), joined_sentences(*reasons), len(nics))

    reaching = (reach.reaches(name, gpu.id) for name in devices for gpu in gpus)
    if gpus and not any(isinstance(answer, Unknown) or answer for answer in reaching):
        return replace(verdict(State.BROKEN, _no_nic(devices, active)), path=None)
    if faults:
        others = len(faults) - 1
        more = f", and {others} other GPU{'s' if others > 1 else ''}" if others else ""
        return verdict(State.DEGRADED, next(iter(faults.values())) + more)
    left = [gpu for gpu in gpus if gpu not in served]
    doubts = [f"{gpu.label}: {answers[gpu.id].doubt}" for gpu in left if answers[gpu.id].doubt]
    unserved = [gpu for gpu in left if not answers[gpu.id].doubt]
    if unserved and guest_paths:
        reason = f"{_HIDDEN_SWITCHES}, and NCCL has no topology file"
        return replace(verdict(State.UNKNOWN, reason), gpus_served=0, nics=0)
    if unserved:
        labels = [gpu.label for gpu in unserved]
        return verdict(State.DEGRADED, _unserved_text(facts, labels, answers[unserved[0].id].reason))
    if doubts:
        return verdict(State.UNKNOWN, doubts[0])
    notes = [_pxn_text([gpu.label for gpu in served if answers[gpu.id].by_pxn])]
    if guest_paths:
        from_file = f"paths come from NCCL's topology file {file}, and were not checked"
        notes.append(from_file if file else _HIDDEN_SWITCHES)
    if topology.file is not None:
        notes.append(f"paths come from NCCL's topology file {topology.file.path}")
    if use.attached or use.regions:
        return verdict(State.ACTIVE, active_text(use, direct), *notes)
    return verdict(State.READY, idle_text(use, direct), *notes)


def _gpu_fault(node: Node, gpu: Gpu) -> str:
    """Return why a GPU does not work although the driver does; "" if nothing is known."""
    if isinstance(gpu.driver, Unknown):
        # A dump may contain no drivers at all; a GPU without one is a fault only next to others with one.
        bound = isinstance(node.gpus, GpuFacts) and any(known(other.driver, "") for other in node.gpus.gpus)
        return f"GPU{gpu.index} has no driver" if bound and gpu.driver.reason is Reason.NOT_THERE else ""
    if gpu.driver != "nvidia":
        return f"GPU{gpu.index} is bound to {gpu.driver}"
    if isinstance(node.gpus, GpuFacts) and node.gpus.driver.nvml is None and isinstance(gpu.nvml, Unknown):
        return f"GPU{gpu.index} does not respond: {gpu.nvml.detail or gpu.nvml.reason.value}"
    state = known(gpu.fabric.state, "")
    if state in UNFINISHED:
        return f"GPU{gpu.index}'s NVLink fabric is {state}: CUDA programs may fail with error 802"
    return ""


def _no_nic(devices: dict[str, RdmaDevice], active: dict[str, Maybe[bool]]) -> str:
    names = _short_list(list(devices))
    if not any(answer is True for answer in active.values()):
        return f"no port of {names} is ACTIVE"
    return f"no NIC with an ACTIVE port can register GPU memory: {names}"


def _unserved_text(facts: dict[str, Gpu], gpus: list[str], reason: str) -> str:
    level = "P2C" if any(known(gpu.c2c_links, 0) for gpu in facts.values()) else "PXB"
    verb = "has" if len(gpus) == 1 else "have"
    return f"{_short_list(gpus)} {verb} no usable NIC within {level}: {reason}"


def _pxn_text(gpus: list[str]) -> str:
    if not gpus:
        return ""
    verb = "reaches" if len(gpus) == 1 else "reach"
    return f"{_short_list(gpus)} {verb} a NIC over NVLink through another GPU (PXN)"


def _topology_file(files: Maybe[TopologyFileFacts] | None) -> str:
    """Return the file that gives NCCL the PCI tree of a virtual machine; "" if there is none."""
    if files is None or isinstance(files, Unknown):
        return ""
    candidates = [file_of_new_jobs(files), *files.files]
    for file in (candidate for candidate in candidates if candidate is not None):
        # A file in another user's container may not be readable for gdrtop, but the job reads it.
        if not isinstance(file.endpoints, Unknown) or file.endpoints.reason is Reason.NEEDS_ROOT:
            return file.path
    return ""


def _short_list(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more"
