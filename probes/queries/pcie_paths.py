"""What the PCIe checks share: functions, the paths between GPUs and near NICs, IOMMU, ACS and outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from probes.base.evidence import LIKE_THESE, Evidence, first_distinct
from probes.base.frozen import frozen
from probes.base.plan import Plan
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.gpu.generations import GB10
from probes.facts.gpu.gpus import Gpu
from probes.facts.pci.config_space import Acs, ConfigSpace, PciExpress
from probes.facts.pci.functions import DEVICES, PciFunction, PciKind, is_for_guests
from probes.facts.pci.rdma_topo import ARGV, is_dma_function
from probes.facts.system import platform
from probes.host.protocol import TREE_ONLY
from probes.queries.finding import CheckEnded, Outcome, end_with, found, is_bdf, need, needs, passed, unknown
from probes.snapshot.examination import Examination
from probes.topology.graph import BRIDGES
from probes.topology.paths import Path

T = TypeVar("T")
OUT_OF_SERVICE = "every job on this node, which must be taken out of service"
NO_GPU_OR_NIC = Evidence(DEVICES, "no GPU or no RDMA NIC")
_VGPU_HOST = "nvidia_vgpu_vfio"


def functions_of(examination: Examination) -> dict[str, PciFunction]:
    """Return all PCI functions by BDF; empty where they could not be read."""
    pci = examination.node.pci
    return {} if isinstance(pci, Unknown) else pci.functions


def gpus_here(examination: Examination) -> tuple[Gpu, ...]:
    """Return the node's GPUs; none where they could not be read."""
    return known(map_known(examination.node.gpus, lambda facts: facts.gpus), ())


class DeviceNames:
    """All names of each device of a node: a NIC's PCI function and its RDMA device are the same device."""

    def __init__(self, examination: Examination) -> None:
        self._examination = examination

    @cached_property
    def _nics(self) -> dict[str, frozenset[str]]:
        rdma = self._examination.node.rdma
        names: dict[str, frozenset[str]] = {}
        for device in () if isinstance(rdma, Unknown) else rdma.devices:
            bdf = known(device.bdf, device.name)
            same = names.get(bdf, frozenset()) | {bdf, device.name}
            names |= dict.fromkeys(same, same)
        return names

    def of(self, device: str) -> frozenset[str]:
        """Return the names of a device; none for what is no device, such as a module."""
        return self._nics.get(device) or frozenset((device,) if is_bdf(device) else ())

    def once(self, devices: tuple[str, ...]) -> tuple[str, ...]:
        """Return each device once, by the first of its names."""
        if len(devices) < 2:
            return devices
        firsts: dict[object, str] = {}
        for device in devices:
            firsts.setdefault(self.of(device) or device, device)
        return tuple(firsts.values())

    def on_path(self, device: str) -> frozenset[str]:
        """Return the names of a device, and the addresses of the bridges above it."""
        names, functions = self.of(device), functions_of(self._examination)
        return names.union(*(functions[name].chain for name in names if name in functions))


def unknown_devices(examination: Examination) -> Outcome | None:
    """Return the outcome where the GPUs or NICs of the node are unknown; None: they are known."""
    node = examination.node
    if isinstance(node.pci, Unknown):
        return unknown_because([node.pci])
    if isinstance(node.rdma, Unknown) and node.rdma.reason is not Reason.NOT_THERE:
        return None if examination.topology.nics else unknown_because([node.rdma])
    return None


def gpus_and_nics(examination: Examination) -> dict[str, PciFunction]:
    """Return the GPUs and RDMA NICs by BDF, without those passed to virtual machines."""
    functions = functions_of(examination)
    topology = examination.topology
    endpoints = (*topology.gpus, *topology.nics)
    bdfs = [endpoint.bdf for endpoint in endpoints if not isinstance(endpoint.bdf, Unknown)]
    here = {bdf: functions[bdf] for bdf in bdfs if bdf in functions}
    return {bdf: function for bdf, function in here.items() if not is_for_guests(function.driver)}


def chains_of(examination: Examination) -> set[str]:
    """Return the BDFs of the GPUs and RDMA NICs, and of the bridges above them."""
    return {bdf for function in gpus_and_nics(examination).values() for bdf in function.chain}


def passed_to_guests(examination: Examination) -> tuple[str, ...]:
    """Return the functions that this host passes to virtual machines, which ACS isolates.

    A vGPU host passes shares of its GPUs, as virtual functions or mediated devices of nvidia_vgpu_vfio.
    """
    functions = functions_of(examination)
    modules = examination.node.modules
    nvidia = None if isinstance(modules, Unknown) else modules.modules.get("nvidia")
    shares_gpus = nvidia is not None and _VGPU_HOST in nvidia.used_by
    guests = []
    for function in functions.values():
        owner = functions.get(function.physical_function or "")
        is_share = owner is not None and owner.kind is PciKind.GPU
        if is_for_guests(function.driver) or is_share or (shares_gpus and function.kind is PciKind.GPU):
            guests.append(function.bdf)
    return tuple(guests)


def near_paths(examination: Examination) -> list[Path]:
    """Return the paths from a GPU to a NIC that use PCIe switches only: PIX and PXB."""
    topology, here = examination.topology, gpus_and_nics(examination)
    pairs = (pair for pair in topology.near_pairs if all(topology.bdfs[end] in here for end in pair))
    return [path for path in map(topology.paths.__getitem__, pairs) if bridges_between(path)]


def bridges_between(path: Path) -> list[str]:
    """Return the BDFs of the switch ports on a path."""
    return [hop.id for hop in path.hops if hop.kind in BRIDGES]


def turning_ports(examination: Examination, path: Path) -> list[str]:
    """Return the two switch ports between which a path turns from up to down, where ACS can redirect it.

    A request that must leave its switch goes up with or without ACS (PCI Express Base Specification, ACS
    P2P Request Redirect).
    """
    functions = functions_of(examination)
    gpu, nic = functions.get(path.a), functions.get(examination.topology.nic_ends.get(path.b, ""))
    if gpu is None or nic is None:
        return []
    for gpu_port, nic_port in zip(gpu.chain[:-1], nic.chain[:-1], strict=False):
        if gpu_port != nic_port:
            return [gpu_port, nic_port]
    return []


def is_guest(examination: Examination) -> Maybe[bool]:
    """Return whether this is a virtual machine, or a container in one."""
    return platform.is_guest(examination.node.platform)


def need_guest(examination: Examination, *evidence: Evidence) -> bool:
    """Return whether this is a virtual machine, or end the check as unknown."""
    return need(is_guest(examination), "the platform, bare metal or virtual machine", *evidence)


def is_grace(examination: Examination) -> bool:
    """Return whether GPUs are attached to the CPU by C2C, or the root ports are Grace's or Vera's."""
    if any(known(gpu.c2c_links, 0) for gpu in gpus_here(examination)):
        return True
    pci = examination.node.pci
    return not isinstance(pci, Unknown) and pci.has_grace_root_ports


def is_gb10(examination: Examination) -> bool:
    """Return whether the node is a DGX Spark, or another one whose GPU (GB10) uses the CPU's memory."""
    return any(GB10.search(gpu.name) for gpu in gpus_here(examination))


def is_arm64(examination: Examination) -> bool:
    """Return whether the CPU is arm64, where the kernel options have other names."""
    facts = examination.node.platform
    return not isinstance(facts, Unknown) and known(facts.cpu_architecture, "") in ("aarch64", "arm64")


def config_of(examination: Examination, bdf: str) -> Maybe[ConfigSpace]:
    """Return the configuration space of a function."""
    absent = Unknown(Reason.NOT_THERE, f"{DEVICES}/{bdf}/config", "not read")
    return map_known(examination.config_space, lambda facts: facts.functions.get(bdf, absent))


def express_of(examination: Examination, bdf: str) -> Maybe[PciExpress]:
    """Return the PCI Express capability of a function."""
    return map_known(config_of(examination, bdf), lambda space: space.express)


def aspm_on_paths(examination: Examination) -> dict[str, Maybe[str]]:
    """Return the ASPM of each link of a NIC, and between it and near GPUs, by the function at its lower end.

    Below a root port, every second function of a chain is the lower end of a link.
    """
    functions, lower = functions_of(examination), dict.fromkeys(nic_registers(examination))
    for path in near_paths(examination):
        for end in (path.a, examination.topology.nic_ends.get(path.b, "")):
            chain = functions[end].chain if end in functions else ()
            lower |= dict.fromkeys(bdf for bdf in chain[1::2] if bdf == end or bdf in bridges_between(path))
    seen = known(map_known(examination.config_space, lambda facts: facts.aspm), {})
    return {
        bdf: seen[bdf]
        if bdf in seen
        else map_known(express_of(examination, bdf), lambda express: express.aspm)
        for bdf in lower
    }


def nic_registers(examination: Examination) -> dict[str, Maybe[PciExpress]]:
    """Return the PCI Express capability of each NIC; virtual functions have no settings of their own."""
    return {
        bdf: express_of(examination, bdf)
        for bdf, function in gpus_and_nics(examination).items()
        if function.kind is PciKind.NIC and function.physical_function is None
    }


def acs_of(examination: Examination, bdf: str) -> Maybe[Acs] | None:
    """Return the ACS of a port; None: it has none, and so redirects nothing."""
    space = config_of(examination, bdf)
    if isinstance(space, Unknown):
        return space
    acs = space.acs
    return None if isinstance(acs, Unknown) and acs.reason is Reason.NOT_THERE else acs


def acs_evidence(bdf: str, acs: Acs) -> Evidence:
    """Return the ACS control register as setpci prints it, and its bits as lspci does."""
    return Evidence(f"setpci -s {bdf} ECAP_ACS+6.w", f"{acs.control:04x} ({acs.on})")


@dataclass
class Tally:
    """What a check saw on several devices."""

    faults: list[Evidence] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)  # the devices that the finding marks
    unknowns: list[Unknown] = field(default_factory=list)

    def fault(self, evidence: Evidence, *devices: str) -> None:
        """Add a fault of these devices."""
        self.faults.append(evidence)
        self.devices.extend(devices)

    def outcome(self, cause: str, good: Evidence, fix: Plan | None = None) -> Outcome:
        """Return found if there is a fault, else unknown if a fact could not be read, else passed."""
        if self.faults:
            evidence = first_distinct(self.faults, LIKE_THESE)
            return found(cause, *evidence, fix=fix, devices=tuple(dict.fromkeys(self.devices)))
        self.end_if_unknown()
        return passed(good)

    def end_if_unknown(self) -> None:
        """End the check if a fact could not be read."""
        end_with(unknown_because(self.unknowns) if self.unknowns else None)


def need_read(fact: Maybe[T]) -> T:
    """Return the fact, or end the check with the reason why it could not be read."""
    if isinstance(fact, Unknown):
        raise CheckEnded(unknown_because([fact]))
    return fact


def unknown_because(unknowns: Sequence[Unknown]) -> Outcome:
    """Return the outcome for facts that could not be read: "needs root: PCI config beyond 64 bytes"."""
    distinct = list(dict.fromkeys(unknowns))  # several facts come from one file
    evidence = (Evidence(fact.source or "gdrtop", str(fact)) for fact in distinct)
    first = distinct[0]
    words = needs(first.source, first) if TREE_ONLY in first.detail else reason_of(first)
    return unknown(words, *first_distinct(evidence, LIKE_THESE))


def reason_of(fact: Unknown) -> str:
    """Return why a fact could not be read, with the file where the reason alone says too little."""
    return str(fact) if fact.detail or not fact.source else f"{fact}: {fact.source}"


# Whether the IOMMU translates the DMA of GPUs and NICs, from the types of their groups.

GROUPS = "/sys/kernel/iommu_groups"


def translated_types(examination: Examination) -> dict[str, Maybe[str]]:
    """Return the types of the groups of GPUs and NICs that are translated (DMA or DMA-FQ) or unknown, by BDF.

    Identity (iommu=pt) is left out. In a virtual machine, these are the guest's own groups.
    """
    types = {
        bdf: type_of_group(examination, function) for bdf, function in gpus_and_nics(examination).items()
    }
    return {bdf: kind for bdf, kind in types.items() if isinstance(kind, Unknown) or kind.startswith("DMA")}


def may_lose_writes(examination: Examination) -> bool:
    """Return whether the kernel is one behind whose translating IOMMU writes to GPU memory may be lost.

    The driver (nv-dma.c, nv_dma_use_map_resource, of 535 to 595.45.04) hands out the raw bus address of GPU
    memory, whichever the path, where get_dma_ops() is NULL and there is no dmais_direct(). Linux 6.12
    ("dma-mapping: direct calls for dma-iommu") made it NULL behind an IOMMU. This was read, not tried. The
    one report is open-gpu-kernel-modules issue 1324 (595.84, Linux 7.0). A distribution may have the change
    in an older kernel.
    """
    version = map_known(examination.node.kernel, lambda kernel: kernel.version)
    return known(version, (0, 0)) >= (6, 12)


def type_of_group(examination: Examination, function: PciFunction) -> Maybe[str]:
    """Return the type of a group, from the command line if sysfs has none; "" where there is no group."""
    group, kind = function.iommu_group, function.iommu_type
    if isinstance(group, Unknown):
        return "" if group.reason is Reason.NOT_THERE else group
    if not isinstance(kind, Unknown) or kind.reason is not Reason.NOT_THERE:
        return kind
    kernel = examination.node.kernel
    cmdline = known(map_known(kernel, lambda kernel: kernel.cmdline), "")
    if any(is_direct(word, is_arm64(examination)) for word in cmdline.split()):
        return "identity"
    return Unknown(Reason.NOT_THERE, f"{GROUPS}/{group}/type", "needs Linux 5.11, which shows a group's type")


def is_direct(word: str, arm: bool) -> bool:
    """Return whether a kernel option makes the IOMMU pass DMA through; iommu=pt exists on x86 only."""
    name, _, value = word.partition("=")
    if name == "iommu":
        return not arm and "pt" in value.split(",")
    return name == "iommu.passthrough" and value in ("1", "on", "y", "Y")


# ACS redirects between GPUs and NICs below one switch: which ports redirect, and where that is correct.

# PCI_ACS_RR and PCI_ACS_CR. Upstream forwarding (UF) redirects nothing by itself: it only sends up what would
# leave through the port that it came in by.
REDIRECTS = 0x0C


@frozen
class Redirects:
    """The switch ports where paths between GPUs and near NICs turn."""

    ports: dict[str, Acs]  # the ports that redirect, by BDF
    unknowns: tuple[Unknown, ...]  # why others could not be read
    checked: int  # number of ports


def redirects(acs: Acs) -> bool:
    """Return whether a port sends requests or completions between peers up to the CPU."""
    return bool(acs.control & REDIRECTS)


def redirects_of(examination: Examination) -> Redirects:
    """Return the ports that redirect, except those whose NICs bypass the redirect with ATS."""
    ports: dict[str, Acs] = {}
    unknowns: list[Unknown] = []
    nics = nics_by_bridge(examination)
    for bridge, nics_below in nics.items():
        acs = acs_of(examination, bridge)
        if isinstance(acs, Unknown):
            unknowns.append(acs)
        elif acs is not None and redirects(acs) and not _bypassed_with_ats(examination, acs, nics_below):
            ports[bridge] = acs
    return Redirects(ports, tuple(unknowns), len(nics))


def acs_exemption(examination: Examination) -> Evidence | None:
    """Return why redirects are correct or irrelevant on this node; None: they are to be judged."""
    if any(map(is_dma_function, functions_of(examination).values())):
        return Evidence(" ".join(ARGV), "a Direct NIC platform needs redirects: see acs-direct-nic")
    if not near_paths(examination):
        return Evidence(DEVICES, "no GPU and NIC share a PCIe switch")
    if is_grace(examination):
        return Evidence(DEVICES, "on Grace and Vera, the kernel's ACS settings are correct")
    guest = is_guest(examination)
    if not isinstance(guest, Unknown) and guest:
        return Evidence("/sys/class/dmi/id", "in a virtual machine, the hypervisor controls ACS")
    return None


def nics_by_bridge(examination: Examination) -> dict[str, list[str]]:
    """Return the switch ports where near paths turn, each with the NICs (BDFs) of those paths."""
    nics_below: dict[str, dict[str, None]] = {}
    for path in near_paths(examination):
        for bridge in turning_ports(examination, path):
            nics_below.setdefault(bridge, {})[examination.topology.nic_ends[path.b]] = None
    return {bridge: list(nics) for bridge, nics in nics_below.items()}


def translates(examination: Examination) -> bool:
    """Return whether the IOMMU translates DMA between any GPU and a near NIC."""
    return any(_is_translated(examination, path) for path in near_paths(examination))


def _is_translated(examination: Examination, path: Path) -> bool:
    """Return whether the IOMMU translates the DMA of this path's GPU or NIC."""
    functions = functions_of(examination)
    both = (functions.get(path.a), functions.get(examination.topology.nic_ends[path.b]))
    return any(function and known(function.iommu_type, "").startswith("DMA") for function in both)


def detours(examination: Examination) -> frozenset[tuple[str, str]]:
    """Return (GPU id, NIC id) of the pairs below one switch whose traffic goes up to the root complex.

    ACS redirects send it there, and so does a translating IOMMU: an address that needs translation is in no
    window of the switch. Empty on Grace and Vera, on Direct NIC platforms and in virtual machines.
    """
    if acs_exemption(examination) is not None:
        return frozenset()
    bdfs = examination.topology.nic_ends
    return frozenset(
        (path.a, path.b)
        for path in near_paths(examination)
        if _is_translated(examination, path)
        or any(
            _redirects_nic(examination, bridge, bdfs[path.b]) for bridge in turning_ports(examination, path)
        )
    )


def detour_marks(examination: Examination) -> tuple[str, ...]:
    """Return the ids to mark on these detours: switches (upstream ports), GPUs and NICs."""
    functions, pairs = functions_of(examination), detours(examination)
    marks: list[str] = []
    for path in near_paths(examination):
        if (path.a, path.b) in pairs:
            ports = turning_ports(examination, path)
            chain = functions[path.a].chain
            place = chain.index(ports[0]) if ports else 0
            marks.extend((*chain[max(place - 1, 0) : place], path.a, path.b))
    return tuple(dict.fromkeys(marks))


def _redirects_nic(examination: Examination, bridge: str, nic: str) -> bool:
    acs = acs_of(examination, bridge)
    if acs is None or isinstance(acs, Unknown):
        return False
    return redirects(acs) and not _bypassed_with_ats(examination, acs, [nic])


def _bypassed_with_ats(examination: Examination, acs: Acs, nics: list[str]) -> bool:
    """Return whether these NICs bypass redirects: they use ATS, and DirectTrans passes their requests."""
    if not acs.on.direct_translated:
        return False
    spaces = [config_of(examination, nic) for nic in nics]
    return bool(spaces) and all(
        not isinstance(space, Unknown) and known(space.ats_enabled, False) for space in spaces
    )
