"""What the PCIe checks have in common: functions, the paths between GPUs and near NICs, and outcomes."""

from __future__ import annotations

from collections.abc import Sequence

from probes.base.plan import Plan
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.pci.capabilities import Acs, ConfigSpace, PciExpress
from probes.facts.pci.functions import PciFunction, PciKind, is_for_guests
from probes.facts.system import platform
from probes.host.local import TREE_ONLY
from probes.queries.evidence_list import LIKE_THESE, first_distinct
from probes.queries.finding import Evidence, Outcome, found, needs, passed, unknown
from probes.snapshot.examination import Examination
from probes.topology.nccl_words import Nccl
from probes.topology.paths import Path

DEVICES = "/sys/bus/pci/devices"
OUT_OF_SERVICE = "the node has to be taken out of service"
BRIDGES = ("root port", "upstream port", "downstream port")
_NVIDIA = 0x10DE
# Grace's and Vera's: rdma-core kernel-boot/rdma_topo
_GRACE_ROOT_PORTS = (0x22B1, 0x22B2, 0x22B8, 0x2F95, 0x2F96)
_VGPU_HOST = "nvidia_vgpu_vfio"


def functions_of(examination: Examination) -> dict[str, PciFunction]:
    """All PCI functions; none where they could not be read."""
    pci = examination.node.pci
    return {} if isinstance(pci, Unknown) else pci.functions


def unknown_devices(examination: Examination) -> Outcome | None:
    """Return the outcome where the GPUs or NICs of the node are unknown; None: they are known."""
    node = examination.node
    if isinstance(node.pci, Unknown):
        return unknown_because([node.pci])
    if isinstance(node.rdma, Unknown) and node.rdma.reason is not Reason.NOT_THERE:
        return None if examination.topology.nics else unknown_because([node.rdma])
    return None


def gpus_and_nics(examination: Examination) -> dict[str, PciFunction]:
    """GPUs and RDMA NICs, without those handed to virtual machines."""
    functions = functions_of(examination)
    topology = examination.topology
    bdfs = [end.bdf for end in (*topology.gpus, *topology.nics) if not isinstance(end.bdf, Unknown)]
    return {
        bdf: functions[bdf]
        for bdf in dict.fromkeys(bdfs)
        if bdf in functions and not is_for_guests(functions[bdf].driver)
    }


def passed_to_guests(examination: Examination) -> tuple[str, ...]:
    """Return the functions that this host passes to virtual machines: ACS isolates those.

    A vGPU host passes shares of its GPUs: virtual functions, or mediated devices of nvidia_vgpu_vfio.
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


def labels(examination: Examination) -> dict[str, str]:
    """BDF -> "GPU0" or "mlx5_0"."""
    topology = examination.topology
    return {
        end.bdf: end.label for end in (*topology.gpus, *topology.nics) if not isinstance(end.bdf, Unknown)
    }


def near_paths(examination: Examination) -> list[Path]:
    """The paths from a GPU to a NIC that go through PCIe switches alone: PIX and PXB."""
    topology, here = examination.topology, gpus_and_nics(examination)
    bdfs = {nic.id: nic.bdf for nic in topology.nics}
    return [
        topology.paths[gpu.id, nic.id]
        for gpu in topology.gpus
        for nic in topology.nics
        if gpu.bdf in here
        and bdfs[nic.id] in here
        and topology.paths[gpu.id, nic.id].nccl_pcie in (Nccl.PIX, Nccl.PXB)
        and bridges_between(topology.paths[gpu.id, nic.id])
    ]


def bridges_between(path: Path) -> list[str]:
    """The switch ports on a path, by BDF."""
    return [hop.id for hop in path.hops if hop.kind in BRIDGES]


def turning_ports(examination: Examination, path: Path) -> list[str]:
    """The two switch ports between which a path turns from up to down: there alone ACS redirects it.

    A request that has to leave its switch anyway goes up whatever ACS says (PCI Express Base
    Specification, ACS P2P Request Redirect).
    """
    functions = functions_of(examination)
    bdfs = {nic.id: known(nic.bdf, "") for nic in examination.topology.nics}
    gpu, nic = functions.get(path.a), functions.get(bdfs.get(path.b, ""))
    if gpu is None or nic is None:
        return []
    for mine, its in zip(gpu.chain[:-1], nic.chain[:-1], strict=False):
        if mine != its:
            return [mine, its]
    return []


def is_guest(examination: Examination) -> Maybe[bool]:
    """Whether this runs in a virtual machine, be it in a container there."""
    return platform.is_guest(examination.node.platform)


def plural(count: int, noun: str) -> str:
    """As "1 NIC", "2 NICs"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def needs_platform(guest: Unknown) -> str:
    """What a check needs that judges bare metal and virtual machines differently."""
    return f"needs the platform, bare metal or virtual machine: {guest}"


def is_grace(examination: Examination) -> bool:
    """Whether GPUs are attached to the CPU by C2C, or the root ports are Grace's or Vera's."""
    gpus = examination.node.gpus
    if not isinstance(gpus, Unknown) and any(known(gpu.c2c_links, 0) for gpu in gpus.gpus):
        return True
    return any(
        one.kind is PciKind.BRIDGE and one.vendor_id == _NVIDIA and one.device_id in _GRACE_ROOT_PORTS
        for one in functions_of(examination).values()
    )


def config_of(examination: Examination, bdf: str) -> Maybe[ConfigSpace]:
    """The configuration space of a function."""
    facts = examination.config_space
    if isinstance(facts, Unknown):
        return facts
    return facts.functions.get(bdf, Unknown(Reason.NOT_THERE, f"{DEVICES}/{bdf}/config", "not read"))


def express_of(examination: Examination, bdf: str) -> Maybe[PciExpress]:
    """The PCI Express capability of a function."""
    space = config_of(examination, bdf)
    return space if isinstance(space, Unknown) else space.express


def nic_registers(examination: Examination) -> dict[str, Maybe[PciExpress]]:
    """The PCI Express capability of each NIC; a virtual function's settings are its physical function's."""
    return {
        bdf: express_of(examination, bdf)
        for bdf, one in gpus_and_nics(examination).items()
        if one.kind is PciKind.NIC and one.physical_function is None
    }


def acs_of(examination: Examination, bdf: str) -> Maybe[Acs] | None:
    """The ACS of a port; None: it has none, and so redirects nothing."""
    space = config_of(examination, bdf)
    if isinstance(space, Unknown):
        return space
    acs = space.acs
    return None if isinstance(acs, Unknown) and acs.reason is Reason.NOT_THERE else acs


def acs_evidence(bdf: str, acs: Acs) -> Evidence:
    """The ACS control register as setpci shows it, and its bits as lspci does."""
    return Evidence(f"setpci -s {bdf} ECAP_ACS+6.w", f"{acs.control:04x} ({acs.on})")


def outcome_of(
    cause: str,
    bad: Sequence[Evidence],
    unknowns: Sequence[Unknown],
    good: Evidence,
    fix: Plan | None = None,
    devices: Sequence[str] = (),
) -> Outcome:
    """Found where anything is bad, unknown where something could not be read, else passed."""
    if bad:
        return found(cause, *first_distinct(bad, LIKE_THESE), fix=fix, devices=tuple(dict.fromkeys(devices)))
    if unknowns:
        return unknown_because(unknowns)
    return passed(good)


def unknown_because(unknowns: Sequence[Unknown]) -> Outcome:
    """What could not be read, with its reason: "needs root: PCI config beyond 64 bytes"."""
    # Each once: a file stands behind several facts.
    distinct = list(dict.fromkeys(unknowns))
    seen = (Evidence(one.source or "gdrtop", str(one)) for one in distinct)
    first = distinct[0]
    words = needs(first.source, first) if TREE_ONLY in first.detail else reason_of(first)
    return unknown(words, *first_distinct(seen, LIKE_THESE))


def reason_of(fact: Unknown) -> str:
    """Why it could not be read, with the file where the reason alone says too little."""
    return str(fact) if fact.detail or not fact.source else f"{fact}: {fact.source}"
