"""The distance between GPUs and NICs, their NUMA nodes, and the GPU memory that a NIC can reach."""

from __future__ import annotations

from probes.base.evidence import LIKE_THESE, Evidence, Severity, first_distinct, first_n
from probes.base.grouping import grouped
from probes.base.plan import Plan, instruction
from probes.base.text import join_limited, plural
from probes.base.unknown import Maybe, Reason, Unknown, false_if_absent, first_unread, known, map_known
from probes.facts.pci.functions import DEVICES, PciKind
from probes.plans.common import reboot_plan
from probes.queries.finding import Area, Outcome, end_with, found, need, passed
from probes.queries.modules import impossible_by_design
from probes.queries.pcie_paths import (
    NO_GPU_OR_NIC,
    Tally,
    config_of,
    gpus_and_nics,
    is_grace,
    is_guest,
    near_paths,
    need_guest,
    need_read,
    unknown_devices,
)
from probes.queries.ports import PORT_DOWN
from probes.queries.unproven_paths import guest_pairs
from probes.snapshot.examination import Examination
from probes.topology.endpoints import is_down
from probes.topology.graph import unread_c2c
from probes.topology.nccl_paths import NEAR, ORDER, Nccl
from probes.topology.paths import Path

AREA = Area("pcie", __package__, requires=(unknown_devices,))
PASSTHROUGH = Area("pcie", __package__, requires=(unknown_devices, impossible_by_design))

_SMALL_BAR_BYTES = 256 << 20
GPUS_A_NIC = 2


def _distance_exemption(examination: Examination) -> Outcome | None:
    """Return the outcome where the PCI tree does not show the distance between GPU and NIC; else None."""
    if not examination.topology.gpus or not examination.topology.nics:
        return passed(NO_GPU_OR_NIC)
    if (impossible := impossible_by_design(examination)) is not None:
        return impossible
    if is_grace(examination):
        return passed(Evidence(DEVICES, "on Grace and Vera, NICs reach GPUs through the CPU's C2C links"))
    need(first_unread(unread_c2c(examination.node).values()), "the C2C links of the GPUs")
    if examination.topology.file is None and need_guest(examination):
        text = "in a virtual machine the PCI tree is not the host's, see vm-without-p2p"
        return passed(Evidence("/sys/class/dmi/id", text))
    return None


def _nearest(examination: Examination) -> dict[str, Path]:
    """Return the best PCIe path of each GPU to a NIC that is up, or to any NIC if all are down."""
    topology = examination.topology
    up = [nic.id for nic in topology.nics if not is_down(topology.devices.get(nic.id))]
    nics = up or [nic.id for nic in topology.nics]
    here = gpus_and_nics(examination)
    nearest: dict[str, Path] = {}
    for gpu in topology.gpus:
        if gpu.id not in here:
            continue
        best = list(topology.best_nics.get(gpu.id, ()))
        ordered = sorted(nics, key=lambda nic: best.index(nic) if nic in best else len(best))
        words = {nic: topology.paths.nccl.over_pcie(gpu.id, nic) for nic in ordered}
        ranks = {nic: ORDER[word] for nic, word in words.items() if not isinstance(word, Unknown)}
        if ranks:  # of equal ones that which the matrix marks
            nearest[gpu.id] = topology.paths[gpu.id, min(ranks, key=ranks.__getitem__)]
    return nearest


def _far(examination: Examination, word: Nccl, good: str) -> Outcome:
    """Find the GPUs whose nearest NIC is at this distance."""
    end_with(_distance_exemption(examination))
    topology = examination.topology
    numa = {endpoint.id: endpoint.numa_node for endpoint in (*topology.gpus, *topology.nics)}
    named = {gpu.id: gpu.label for gpu in topology.gpus}
    nearest = _nearest(examination)
    nodes = known(map_known(examination.node.numa, lambda facts: facts.nodes), ())
    source = "nvidia-smi topo -m" if topology.file is None else topology.file.path
    tally = Tally()
    for gpu, path in nearest.items():
        if path.nccl_pcie in NEAR:
            continue
        # Beyond the switches NCCL distinguishes PHB and SYS by NUMA nodes; without them neither is certain.
        # A topology file has its own.
        sides = [node for node in (numa[gpu], numa[path.b]) if isinstance(node, Unknown)]
        if sides and topology.file is None and len(nodes) != 1:
            tally.unknowns.extend(sides[:1])
        elif path.nccl_pcie is word:
            smi = "" if isinstance(path.smi, Unknown) else f", in nvidia-smi's words {path.smi.value}"
            shown = f"{named[gpu]} to {path.b}: {word.value}{smi}"
            if path.nccl is Nccl.PXN:
                shown += "; NCCL uses NVLink to a GPU near it (PXN)"
            tally.fault(Evidence(source, shown), gpu)
    if not tally.faults:
        return tally.outcome("", Evidence(source, good))
    near = {gpu: {gpu} for gpu in tally.devices}
    for each in near_paths(examination):
        near.get(each.a, set()).add(each.b)
    lost = all(len(ends) > 1 for ends in near.values())
    if len(tally.faults) == len(nearest):
        cause = "No GPU on this node has a nearer NIC."
    elif lost:
        cause = "The NICs near these GPUs are down or missing."
    else:
        cause = "These GPUs have no NIC under their PCIe switch; the others do."
    return found(
        cause,
        *first_distinct(tally.faults, LIKE_THESE),
        fix=None if lost else nearer_plan(word),
        severity=Severity.NOTE if len(tally.faults) == len(nearest) else None,
        devices=tuple(tally.devices),
        part_of=_LOSSES if lost else (),
        subjects=tuple(map(frozenset, near.values())),
    )


# Findings that explain why a GPU has no near NIC.
_LOSSES = (
    *("pcie-function-gone", "ib-core-not-loaded", "mlx5-core-not-loaded", "mlx5-ib-not-loaded"),
    *("nic-without-driver", "nic-without-rdma-device", *PORT_DOWN),
)


def nearer_plan(word: Nccl) -> Plan:
    """Return how GPUs get a near NIC, and the setting until then."""
    return reboot_plan(
        "Give these GPUs a NIC of their own",
        "Move or add a NIC to a slot below the same PCIe switch as these GPUs.",
        # A word, because the variable does not use the numbers of NCCL's log.
        instruction(
            f"Until then, set NCCL_NET_GDR_LEVEL={word.value} in the job's environment to enable "
            "GPUDirect RDMA on this path. Measure with and without it.",
            needs_root=False,
        ),
        disturbs="every job on this node while a card is moved",
    )


# Not data_path: a lost near NIC degrades the verdict by itself; otherwise the machine is built like this.
@AREA.warning("gpu-nic-cross-socket")
def gpu_nic_cross_socket(examination: Examination) -> Outcome:
    """Find GPUs whose nearest NIC that is up is at SYS."""
    return _far(examination, Nccl.SYS, "no GPU's nearest NIC is on another socket")


@AREA.warning("gpu-nic-through-cpu")
def gpu_nic_through_cpu(examination: Examination) -> Outcome:
    """Find GPUs whose nearest NIC that is up is at PHB (nvidia-smi: PHB or NODE)."""
    return _far(examination, Nccl.PHB, "no GPU's nearest NIC is behind the host bridge")


@AREA.note("gpu-nic-shared")
def gpu_nic_shared(examination: Examination) -> Outcome:
    """Count GPUs and NICs of each group below the same switches."""
    end_with(_distance_exemption(examination))
    near: dict[str, set[str]] = {}
    for path in near_paths(examination):
        near.setdefault(path.a, set()).add(path.b)
    groups = grouped((frozenset(near[gpu.id]), gpu) for gpu in examination.topology.gpus if gpu.id in near)
    tally = Tally()
    for nics, gpus in groups.items():
        if len(gpus) > GPUS_A_NIC * len(nics):
            gpu_names, nic_names = join_limited(gpu.label for gpu in gpus), join_limited(sorted(nics), 4)
            text = f"{len(gpus)} GPUs, {plural(len(nics), 'NIC')}: {gpu_names} share {nic_names}"
            devices = (*(gpu.id for gpu in gpus), *sorted(nics))
            tally.fault(Evidence("nvidia-smi topo -m", text), *devices)
    return tally.outcome(
        "This switch has fewer than one NIC for every two GPUs.",
        Evidence("nvidia-smi topo -m", "at most two GPUs per NIC below the same switch"),
    )


@AREA.warning("numa-node-unknown")
def numa_node_unknown(examination: Examination) -> Outcome:
    """Check numa_node of GPUs and NICs on a node with more than one NUMA node."""
    here, named = gpus_and_nics(examination), examination.topology.labels
    if not here:
        return passed(Evidence(DEVICES, "no GPU and no RDMA NIC"))
    if len(need_read(examination.node.numa).nodes) < 2:
        return passed(Evidence("/sys/devices/system/node/online", "one NUMA node"))
    tally = Tally()
    for bdf, function in here.items():
        if not isinstance(function.numa_node, Unknown):
            continue
        if function.numa_node.reason is Reason.NOT_THERE:
            tally.fault(Evidence(f"{DEVICES}/{bdf}/numa_node", f"-1: {named.get(bdf, bdf)}"), bdf)
        else:
            tally.unknowns.append(function.numa_node)
    if not tally.faults:
        return tally.outcome("", Evidence(f"{DEVICES}/*/numa_node", f"known for all {len(here)}"))
    all_missing = len(tally.faults) == len(here)
    impact = "All devices seem to be attached to one CPU (PHB), and no process can be bound near its GPU."
    if examination.topology.file is not None:
        impact = "No process can be bound near its GPU. NCCL takes the NUMA nodes from its topology file."
    return found(
        "The BIOS or hypervisor provides no proximity data (numa_node is -1), and NCCL treats -1 as a "
        "separate NUMA node.",
        *first_distinct(tally.faults, LIKE_THESE),
        # Cloud VMs usually report none; the provider supplies a topology file instead.
        severity=Severity.NOTE if all_missing and is_guest(examination) is True else None,
        devices=tuple(tally.devices),
        impact=impact if all_missing else "",
    )


@AREA.warning("bar1-too-small", requires=(unknown_devices, impossible_by_design))
def bar1_too_small(examination: Examination) -> Outcome:
    """Compare BAR1 of each GPU with its memory."""
    here = gpus_and_nics(examination)
    tally = Tally()
    offers: list[Maybe[bool]] = []
    direct = examination.node.gpudirect
    for gpu in need_read(examination.node.gpus).gpus:
        if gpu.bdf not in here or (not isinstance(direct, Unknown) and direct.never_supports(gpu.bdf)):
            continue
        bar, memory = gpu.bar1_total_bytes, gpu.memory_total_bytes
        if isinstance(bar, Unknown):
            tally.unknowns.append(bar)
            continue
        if bar > _SMALL_BAR_BYTES:
            if isinstance(memory, Unknown):
                tally.unknowns.append(memory)
                continue
            if bar >= memory:
                continue
        share = "" if isinstance(memory, Unknown) else f" of {memory >> 20} MiB memory"
        shown = f"BAR1 {bar >> 20} MiB{share}: GPU{gpu.index}"
        tally.fault(Evidence(f"nvidia-smi -q -i {gpu.bdf} -d MEMORY", shown), gpu.bdf)
        offers.append(_offers_more(examination, gpu.bdf, bar))
    resizable = True in offers
    cause = (
        "The BIOS assigned a small BAR1; the GPU supports a larger one (Resizable BAR)."
        if resizable
        else "The BIOS or hypervisor assigned a small BAR1, or the GPU does not support a larger one."
    )
    in_guest = is_guest(examination)
    is_read = not any(isinstance(offer, Unknown) for offer in offers)
    no_larger = "the GPU offers no larger BAR1 now" if is_read else "whether BAR1 can be larger is unknown"
    steps = [
        "In the BIOS, enable Above 4G Decoding and Resizable BAR" if in_guest is not True else "",
        "Give the virtual machine more 64-bit MMIO space (pciPassthru.64bitMMIOSizeGB)"
        if in_guest is not False
        else "",
        "" if resizable else f"Register less memory at a time in the job: {no_larger}",
    ]
    return tally.outcome(
        cause,
        Evidence("nvidia-smi -q -d MEMORY", "BAR1 spans the memory of all GPUs"),
        reboot_plan("Enlarge BAR1", *filter(None, steps)),
    )


def _offers_more(examination: Examination, bdf: str, bar_bytes: int) -> Maybe[bool]:
    """Return whether a GPU has a larger resizable BAR than the one in use."""
    bars = map_known(config_of(examination, bdf), lambda space: space.resizable_bars)
    sizes = map_known(bars, lambda bars: [known(resizable.largest_bytes, 0) for resizable in bars])
    return false_if_absent(map_known(sizes, lambda sizes: max(sizes, default=0) > bar_bytes))


# GPUs and NICs that are passed to a virtual machine, and look adjacent there.


@PASSTHROUGH.warning("vm-pair-unproven", part_of=("vm-without-p2p-ats",))
def vm_pair_unproven(examination: Examination) -> Outcome:
    """Find ConnectX NICs of a guest below a GPU's switch, without ATS and without a topology file."""
    here = gpus_and_nics(examination)
    if {PciKind.GPU, PciKind.NIC} - {function.kind for function in here.values()}:
        return passed(NO_GPU_OR_NIC)
    ends = examination.topology.nic_ends
    if not any(ends.get(path.b) in here for path in near_paths(examination)):
        return passed(Evidence(DEVICES, "no GPU and NIC share a switch"))
    if not need_guest(examination):
        return passed(Evidence("/sys/class/dmi/id", "not a virtual machine"))
    file = examination.topology.file
    if file is not None:
        return passed(Evidence(file.path, "the provider describes the host's PCI tree"))
    named = examination.topology.labels
    unproven = [(gpu, ends[nic]) for gpu, nic in guest_pairs(examination)]
    if not unproven:
        return passed(Evidence("lspci -vvv", "ATS is enabled on these NICs"))
    ats = [map_known(config_of(examination, nic), lambda space: space.ats_enabled) for _, nic in unproven]
    unread = [each for each in ats if isinstance(each, Unknown) and each.reason is not Reason.NOT_THERE]
    if len(unread) == len(unproven):
        need(unread[0], "the configuration space of the NICs")
    return found(
        "The hypervisor shows GPU and NIC below one switch. Only its own settings of IOMMU, ACS and ATS "
        "decide whether a direct transfer reaches the right memory, and a guest cannot see them.",
        *first_n(
            Evidence(DEVICES, f"{named.get(gpu, gpu)} and {named.get(nic, nic)} share a switch, without ATS")
            for gpu, nic in unproven
        ),
        devices=tuple(dict.fromkeys(nic for _, nic in unproven)),
    )
