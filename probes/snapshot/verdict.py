"""What the requirements of the paths say of a node: which path is usable, by whom, and if none, why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from probes.base.frozen import frozen
from probes.base.latest import Latest
from probes.base.origin import Source
from probes.base.unknown import Maybe, Reason, Unknown, first_unread, known
from probes.facts.gpu.gpus import Gpu, GpuFacts
from probes.facts.gpudirect import GdrPath, GpuDirectFacts
from probes.facts.kernel.modules import ModuleFacts, ModuleState
from probes.facts.node import Node
from probes.facts.pci.functions import PciFacts, PciKind, is_for_guests
from probes.facts.pci.nic_families import LADDER_FAMILIES
from probes.nccl.topology_file import VIRTUAL, TopologyFileFacts, file_of_new_jobs
from probes.snapshot.gdr_use import GdrUse, first_unmet, joined_sentences, read_use, signs_of_use
from probes.snapshot.path_verdict import (
    ServedGpus,
    State,
    Usability,
    hardware_devices,
    path_usability,
    required_paths,
    short_list,
    usable_gpus,
)
from probes.snapshot.rates import Reading
from probes.topology.paths import Topology

__all__ = ["State", "Usability", "Verdict", "assess"]

# NICs of clouds and supercomputers that reach GPU memory without verbs, by driver.
_WITHOUT_VERBS = {
    "cxi": "Slingshot (cxi) uses libfabric, and /sys/class/cxi shows no device",
    "gve": "gVNIC (gve) uses GPUDirect-TCPX, which gdrtop does not read",
}
_NIC_MODULES = ("ib_core", *(name for family in LADDER_FAMILIES for name in family.modules))


@frozen
class Verdict:
    """The word, the path, the counts of GPUs and NICs that no finding takes away, and the first reason."""

    state: State
    path: GdrPath | None
    gpus_served: int  # GPUs that can use GPUDirect RDMA at NCCL's default level (PXB, or P2C with C2C)
    gpus: int
    reason: str  # one or two sentences without a full stop at the end; first the title of the first finding
    nics: int = 0  # NICs that serve these GPUs
    critical: int | None = None  # findings, those with the same cause counted once; None: not checked yet
    warnings: int | None = None
    silenced: int = 0  # findings that an admin has silenced, those with the same cause counted once
    likely_in_use: bool = False  # READY: running jobs likely use the path, which only root can tell
    notes: int | None = None  # findings that neither cost bandwidth nor take anything away
    all_nics: int = 0  # RDMA NICs of this node; 0: not known to whoever made the verdict

    @property
    def word(self) -> str:
        """The state as every output shows it to a reader: "READY, likely in use"."""
        return f"{self.state.value}, likely in use" if self.likely_in_use else self.state.value

    @property
    def is_green(self) -> bool:
        """Whether the node works: READY or ACTIVE."""
        return self.state.is_green


def assess(
    node: Node,
    topology: Topology,
    reading: Reading | None,
    before: Reading | None = None,
    files: Maybe[TopologyFileFacts] | None = None,
    cache: Latest[ServedGpus] | None = None,
) -> Usability:
    """Return what the requirements say at one moment; without a reading, by the node's own facts.

    `before`: the reading before, for the traffic between the two; `files`: NCCL's topology files;
    `cache`: the caller's own, if it judges each second.
    """
    usability = _assess(node, topology, reading, before, files, cache or Latest())
    direct = node.gpudirect
    if usability.paths or isinstance(direct, Unknown):
        return usability
    return replace(usability, paths=required_paths(direct))


def _assess(
    node: Node,
    topology: Topology,
    reading: Reading | None,
    before: Reading | None,
    files: Maybe[TopologyFileFacts] | None,
    cache: Latest[ServedGpus],
) -> Usability:
    gpus = usable_gpus(node)
    missing = _missing_devices(node, topology, gpus)
    if missing is not None:
        return missing
    names = tuple(gpu.bdf for gpu in gpus) or tuple(gpu.id for gpu in topology.gpus)
    direct = node.gpudirect
    if isinstance(direct, Unknown):
        return Usability(State.UNKNOWN, None, f"the state of GPUDirect is unknown: {direct}", names)
    if gpus and all(direct.never_supports(gpu.bdf) for gpu in gpus):
        reason = direct.gpu_support[gpus[0].bdf].reason
        return Usability(State.NOT_APPLICABLE, None, f"by design: {reason}", names)
    if not hardware_devices(node):
        return _no_rdma_devices(node, topology)
    use = read_use(node, direct, reading)
    if use.path is None:
        return _no_path(node, direct, use, names)
    usability = path_usability(node, topology, reading, use, _topology_file(files), cache)
    hidden = use.path is GdrPath.DMABUF and isinstance(direct.dmabuf_in_use, Unknown)
    if usability.state is State.READY and hidden:
        reason = joined_sentences(signs_of_use(node, reading, before), usability.reason)
        return replace(usability, reason=reason, hides_use=True)
    return usability


# GPUs or NICs are missing


def _without_path(topology: Topology, state: State, reason: str) -> Usability:
    return Usability(state, None, reason, tuple(gpu.id for gpu in topology.gpus))


def _missing_devices(node: Node, topology: Topology, usable: tuple[Gpu, ...]) -> Usability | None:
    verdict = partial(_without_path, topology)
    unread = first_unread((node.rdma,))
    if not topology.gpus:
        return _missing_gpus(node, verdict_for=verdict, has_nics=bool(topology.nics) or unread is not None)
    if isinstance(node.gpus, GpuFacts) and not usable:
        drivers = sorted({str(gpu.driver) for gpu in node.gpus.gpus if is_for_guests(gpu.driver)})
        if drivers:
            return verdict(State.NOT_APPLICABLE, f"all GPUs are bound to {drivers[0]} for virtual machines")
    if unread is not None:
        return verdict(State.UNKNOWN, _unread("RDMA devices", unread))
    if topology.nics:
        return None
    if isinstance(node.pci, Unknown):
        return verdict(State.UNKNOWN, _unread("PCI devices", node.pci))
    software = [device.name for device in node.rdma_devices]
    besides = f": {short_list(software)} not on a PCI device" if software else ""
    return verdict(State.NOT_APPLICABLE, _nics_without_verbs(node.pci) or f"no RDMA NIC{besides}")


def _unread(what: str, why: Unknown) -> str:
    """Return why devices are unknown, with one colon or none."""
    if why.reason is Reason.NOT_YET and why.detail:
        return f"the {what} are not known yet ({why.detail})"
    return f"the {what} could not be read ({why})"


def _missing_gpus(node: Node, verdict_for: Callable[[State, str], Usability], has_nics: bool) -> Usability:
    if isinstance(node.pci, Unknown):
        return verdict_for(State.UNKNOWN, _unread("PCI devices", node.pci))
    unplaced = () if isinstance(node.gpus, Unknown) else node.gpus.unplaced
    if unplaced:
        gpus = f"{len(unplaced)} GPU{'s' if len(unplaced) > 1 else ''}"
        reason = f"the NVIDIA driver lists {gpus}, but /sys/bus/pci/devices shows none"
        return verdict_for(State.UNKNOWN, reason)
    lack = "no NVIDIA GPU" if has_nics else "no NVIDIA GPU and no RDMA NIC"
    if node.pci.other_gpus:
        return verdict_for(State.NOT_APPLICABLE, f"{lack}; this node has {node.pci.other_gpus}")
    hint = "; see `gdrtop --demo`" if node.origin.source is Source.LIVE and not has_nics else ""
    return verdict_for(State.NOT_APPLICABLE, f"{lack}{hint}")


def _nics_without_verbs(pci: PciFacts) -> str:
    """Return the reason for NICs that reach GPU memory without verbs; "" if there are none."""
    for function in pci.functions.values():
        driver = known(function.driver, "")
        for name, text in _WITHOUT_VERBS.items():
            if function.kind is PciKind.NIC and driver.startswith(name):
                return f"no verbs NIC: {text}"
    return ""


def _no_rdma_devices(node: Node, topology: Topology) -> Usability:
    verdict = partial(_without_path, topology)
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
                return verdict(State.BROKEN, f"{rung.module} is not loaded; {nics}")
    return verdict(State.BROKEN, nics)


# No path


def _no_path(node: Node, direct: GpuDirectFacts, use: GdrUse, gpus: tuple[str, ...]) -> Usability:
    unknown = isinstance(use.dmabuf, Unknown) or isinstance(use.peermem, Unknown)
    reasons = [first_unmet(direct.dmabuf), first_unmet(direct.peermem)]
    if direct.peermem.path is GdrPath.CXI:  # libfabric hands DMA-BUFs to the driver itself
        reasons = reasons[1:]
    driver = None if isinstance(node.modules, Unknown) else node.modules.modules.get("nvidia")
    if not unknown and driver is not None and driver.state is ModuleState.NOT_LOADED:
        reasons = reasons[:1]  # nothing else matters before that
    state = State.UNKNOWN if unknown else State.BROKEN
    return Usability(state, None, "; ".join(dict.fromkeys(reasons)), gpus)


def _topology_file(files: Maybe[TopologyFileFacts] | None) -> Maybe[str]:
    """Return the file that gives NCCL the PCI tree of a virtual machine; "" if there is none."""
    if files is None:
        return ""
    if isinstance(files, Unknown):
        return files
    default = file_of_new_jobs(files)
    candidates = [default, *(file for file in files.files if file.path != VIRTUAL)]
    for file in (candidate for candidate in candidates if candidate is not None):
        if not isinstance(file.endpoints, Unknown):
            return file.path
        # A file in another user's container may not be readable for gdrtop, but the job reads it. Of the
        # default file, nothing says that it is there.
        if file.endpoints.reason is Reason.NEEDS_ROOT and file.path != VIRTUAL:
            return file.path
    return "" if default is None or not isinstance(default.endpoints, Unknown) else default.endpoints
