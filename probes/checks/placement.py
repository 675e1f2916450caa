"""Where GPUs and NICs sit to each other, what NUMA says of it, and how much of a GPU a NIC can reach."""

from __future__ import annotations

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.pcie_paths import (
    DEVICES,
    config_of,
    ends,
    is_grace,
    is_guest,
    judged,
    labels,
    near_paths,
    unread,
)
from probes.checks.wording import LIKE_THESE, few, several
from probes.examination import Examination
from probes.nccl_paths import ORDER, Nccl
from probes.plan import Plan, instruction
from probes.plans.interruptions import REBOOT_ENDS_JOBS
from probes.rdma import RdmaFacts
from probes.topology import Endpoint, Path, is_down
from probes.unknown import Reason, Unknown, known

AREA = Area("pcie")

_LEVELS = (
    "NVIDIA System Management Interface, nvidia-smi topo -m; NCCL user guide, NCCL_NET_GDR_LEVEL, "
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
)
_NEAR = (Nccl.PIX, Nccl.PXB, Nccl.P2C)
_SMALL_BAR_BYTES = 256 << 20
_GPUS_A_NIC = 2


def _judged_elsewhere(examination: Examination) -> Outcome | None:
    """Where the tree does not say what lies between GPU and NIC, or it does not matter."""
    if not examination.topology.gpus or not examination.topology.nics:
        return passed(Evidence(DEVICES, "no GPU or no RDMA NIC here"))
    if is_grace(examination):
        return passed(Evidence(DEVICES, "on Grace NICs reach GPUs through the CPU's C2C links"))
    guest = is_guest(examination)
    if isinstance(guest, Unknown):
        return unsure(f"needs to know whether this is a virtual machine: {guest}")
    if guest:
        return passed(
            Evidence("/sys/class/dmi/id", "a virtual machine: its PCI tree is made up, see vm-without-p2p")
        )
    return None


def _nearest(examination: Examination) -> dict[str, Path]:
    """The best way of each GPU to a NIC that is up, by PCIe alone; where all are down, to any."""
    topology = examination.topology
    rdma = examination.node.rdma
    devices = {one.name: one for one in rdma.devices} if isinstance(rdma, RdmaFacts) else {}
    up = [nic.id for nic in topology.nics if not is_down(devices.get(nic.id))]
    nics = up or [nic.id for nic in topology.nics]
    here = ends(examination)
    nearest: dict[str, Path] = {}
    for gpu in topology.gpus:
        if gpu.id not in here:
            continue
        paths = [topology.paths[gpu.id, nic] for nic in nics]
        known_paths = [path for path in paths if not isinstance(path.nccl_pcie, Unknown)]
        if known_paths:
            nearest[gpu.id] = min(
                known_paths,
                key=lambda path: (ORDER[known(path.nccl_pcie, Nccl.SYS)], nics.index(path.b)),
            )
    return nearest


def _far(examination: Examination, word: Nccl, cause: str, good: str) -> Outcome:
    """The GPUs whose nearest NIC is that far."""
    elsewhere = _judged_elsewhere(examination)
    if elsewhere is not None:
        return elsewhere
    topology = examination.topology
    numa = {end.id: end.numa_node for end in (*topology.gpus, *topology.nics)}
    named = {gpu.id: gpu.label for gpu in topology.gpus}
    nearest = _nearest(examination)
    bad: list[Evidence] = []
    devices: list[str] = []
    unknown: list[Unknown] = []
    for gpu, path in nearest.items():
        if path.nccl_pcie in _NEAR:
            continue
        # Past the switches NCCL tells PHB from SYS by NUMA nodes: without them neither is known.
        sides = [node for node in (numa[gpu], numa[path.b]) if isinstance(node, Unknown)]
        if sides and not _one_numa_node(examination):
            unknown.extend(sides[:1])
        elif path.nccl_pcie is word:
            smi = "" if isinstance(path.smi, Unknown) else f", nvidia-smi says {path.smi.value}"
            told = f"{named[gpu]} to {path.b}: {word.value}{smi}"
            if path.nccl is Nccl.PXN:
                told += "; NCCL goes by NVLink to a GPU that is near it"
            bad.append(Evidence("nvidia-smi topo -m", told))
            devices.append(gpu)
    if len(bad) == len(nearest) and bad:
        return found(
            f"{cause}; no GPU of this node has a nearer one",
            *few(bad, LIKE_THESE),
            fix=_nearer(word),
            severity=Severity.NOTE,
            devices=tuple(devices),
        )
    return judged(cause, bad, unknown, Evidence("nvidia-smi topo -m", good), _nearer(word), devices)


def _nearer(word: Nccl) -> Plan:
    return Plan(
        "Give these GPUs a NIC of their own",
        (
            instruction("move or add a NIC to a slot below the same PCIe switch as these GPUs"),
            # The word, not a number: the numbers in NCCL's log are not those that the variable takes.
            instruction(
                f"until then: in the job's environment, NCCL_NET_GDR_LEVEL={word.value} turns GPUDirect RDMA "
                "on over this way; measure with and without it",
                needs_root=False,
            ),
        ),
        needs_reboot=True,
        disturbs="moving a card takes the node out of service; a variable is read at a job's start",
    )


def _one_numa_node(examination: Examination) -> bool:
    numa = examination.node.numa
    return not isinstance(numa, Unknown) and len(numa.nodes) == 1


@AREA.check(
    "gpu-nic-cross-socket", Severity.WARNING, "the nearest NIC of a GPU is on another socket (SYS)", _LEVELS
)
def gpu_nic_cross_socket(examination: Examination) -> Outcome:
    """The nearest NIC that is up, for each GPU: SYS."""
    return _far(
        examination,
        Nccl.SYS,
        "NCCL leaves GPUDirect RDMA off over this distance, and transfers between sockets are slow",
        "no GPU has its nearest NIC on another socket",
    )


@AREA.check(
    "gpu-nic-through-cpu",
    Severity.WARNING,
    "the nearest NIC of a GPU is behind the CPU's host bridge (PHB)",
    _LEVELS,
)
def gpu_nic_through_cpu(examination: Examination) -> Outcome:
    """The nearest NIC that is up, for each GPU: PHB (nvidia-smi: PHB or NODE)."""
    return _far(
        examination,
        Nccl.PHB,
        "NCCL leaves GPUDirect RDMA off over this distance: CPUs pass traffic between their "
        "root ports slowly",
        "no GPU has its nearest NIC behind the host bridge",
    )


@AREA.check(
    "gpu-nic-shared", Severity.NOTE, "more than two GPUs share a NIC below their PCIe switch", _LEVELS
)
def gpu_nic_shared(examination: Examination) -> Outcome:
    """GPUs against NICs of each group that hangs together below switches."""
    elsewhere = _judged_elsewhere(examination)
    if elsewhere is not None:
        return elsewhere
    topology = examination.topology
    near: dict[str, set[str]] = {}
    for path in near_paths(examination):
        near.setdefault(path.a, set()).add(path.b)
    groups: dict[frozenset[str], list[Endpoint]] = {}
    for gpu in topology.gpus:
        if gpu.id in near:
            groups.setdefault(frozenset(near[gpu.id]), []).append(gpu)
    bad: list[Evidence] = []
    devices: list[str] = []
    for nics, gpus in groups.items():
        if len(gpus) > _GPUS_A_NIC * len(nics):
            gpu_names, nic_names = several(gpu.label for gpu in gpus), several(sorted(nics), 4)
            bad.append(
                Evidence(
                    "nvidia-smi topo -m", f"{len(gpus)} GPUs, {len(nics)} NIC: {gpu_names} by {nic_names}"
                )
            )
            devices.extend((*(gpu.id for gpu in gpus), *sorted(nics)))
    return judged(
        "these GPUs share one NIC's rate: each gets a part of it when all send",
        bad,
        [],
        Evidence("nvidia-smi topo -m", "at most two GPUs to a NIC below the same switch"),
        None,
        devices,
    )


@AREA.check(
    "numa-node-unknown",
    Severity.WARNING,
    "the firmware does not say which NUMA node a GPU or NIC belongs to",
    "Linux Documentation/ABI/testing/sysfs-bus-pci, numa_node; NVIDIA/nccl issues 1843 and 1519",
)
def numa_node_unknown(examination: Examination) -> Outcome:
    """numa_node of GPUs and NICs, on a node with more than one NUMA node."""
    numa = examination.node.numa
    here, named = ends(examination), labels(examination)
    if not here:
        return passed(Evidence(DEVICES, "no GPU and no RDMA NIC here"))
    if isinstance(numa, Unknown):
        return unread([numa])
    if len(numa.nodes) < 2:
        return passed(Evidence("/sys/devices/system/node/online", "one NUMA node"))
    bad: list[Evidence] = []
    devices: list[str] = []
    unknown: list[Unknown] = []
    for bdf, one in here.items():
        if not isinstance(one.numa_node, Unknown):
            continue
        if one.numa_node.reason is Reason.NOT_THERE:
            bad.append(Evidence(f"{DEVICES}/{bdf}/numa_node", f"-1: {named.get(bdf, bdf)}"))
            devices.append(bdf)
        else:
            unknown.append(one.numa_node)
    if not bad:
        if unknown:
            return unread(unknown)
        return passed(Evidence(f"{DEVICES}/*/numa_node", f"known for all {len(here)}"))
    guest = is_guest(examination)
    every = len(bad) == len(here)
    return found(
        "NCCL takes -1 for a node of its own: "
        + (
            "all seem to hang on one CPU (PHB), and no process can be bound near its GPU"
            if every
            else "to the others these seem to be on another socket (SYS), and GPUDirect RDMA "
            "stays off between them"
        ),
        *few(bad, LIKE_THESE),
        fix=Plan(
            "Let the firmware name NUMA nodes",
            (
                instruction("look for a newer BIOS; in it, turn NUMA (ACPI SRAT, _PXM) on"),
                instruction("in a virtual machine: have the hypervisor show NUMA, or set NCCL_TOPO_FILE"),
            ),
            needs_reboot=True,
            disturbs=REBOOT_ENDS_JOBS,
        ),
        # A guest without any is the rule in clouds, whose providers hand out a topology file instead.
        severity=Severity.NOTE if every and not isinstance(guest, Unknown) and guest else None,
        devices=tuple(devices),
    )


@AREA.check(
    "bar1-too-small",
    Severity.WARNING,
    "a GPU shows NICs only a part of its memory (BAR1)",
    "NVIDIA GPUDirect RDMA, BAR sizes, https://docs.nvidia.com/cuda/gpudirect-rdma/; Mellanox/nv_peer_memory "
    "issue 27",
)
def bar1_too_small(examination: Examination) -> Outcome:
    """BAR1 of each GPU against its memory."""
    gpus = examination.node.gpus
    if isinstance(gpus, Unknown):
        return unread([gpus])
    here = ends(examination)
    bad: list[Evidence] = []
    devices: list[str] = []
    unknown: list[Unknown] = []
    grows = False
    for gpu in gpus.gpus:
        if gpu.bdf not in here:
            continue
        bar, memory = gpu.bar1_total_bytes, gpu.memory_total_bytes
        if isinstance(bar, Unknown):
            unknown.append(bar)
            continue
        if bar > _SMALL_BAR_BYTES:
            if isinstance(memory, Unknown):
                unknown.append(memory)
                continue
            if bar >= memory:
                continue
        of = "" if isinstance(memory, Unknown) else f" of {memory >> 20} MiB memory"
        bad.append(
            Evidence(f"nvidia-smi -q -i {gpu.bdf} -d MEMORY", f"BAR1 {bar >> 20} MiB{of}: GPU{gpu.index}")
        )
        devices.append(gpu.bdf)
        grows = grows or _offers_more(examination, gpu.bdf, bar)
    cause = "memory beyond BAR1 cannot be registered with a NIC: small buffers work, large ones fail"
    if grows:
        cause += "; the card offers a larger one (Resizable BAR)"
    return judged(
        cause,
        bad,
        unknown,
        Evidence("nvidia-smi -q -d MEMORY", "BAR1 spans the memory of all GPUs"),
        Plan(
            "Widen BAR1",
            (
                instruction("in the BIOS, turn Above 4G Decoding and Resizable BAR on"),
                instruction(
                    "in a virtual machine, give it more 64-bit MMIO space (pciPassthru.64bitMMIOSizeGB)"
                ),
                instruction("where the card has no larger one: register less at a time, in the job"),
            ),
            needs_reboot=True,
            disturbs=REBOOT_ENDS_JOBS,
        ),
        devices,
    )


def _offers_more(examination: Examination, bdf: str, bar_bytes: int) -> bool:
    space = config_of(examination, bdf)
    if isinstance(space, Unknown) or isinstance(space.resizable_bars, Unknown):
        return False
    return any(known(one.largest_bytes, 0) > bar_bytes for one in space.resizable_bars)
