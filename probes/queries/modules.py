"""Facts that several checks of kernel modules need: a module, its file, the log, the cards it serves."""

from __future__ import annotations

import re
from collections.abc import Collection

from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.gpudirect import parse_driver_version
from probes.facts.kernel.log import KernelMessage, LogKind
from probes.facts.kernel.module_files import ModuleFile
from probes.facts.kernel.modules import (
    PEER_MEMORY_SYMBOL,
    PROC_MODULES,
    KernelModule,
    ModuleFacts,
    ModuleState,
    cards_of,
)
from probes.facts.pci.functions import PciFacts, PciKind, is_for_guests
from probes.queries.evidence_list import KERNEL_LOG, SHOWN
from probes.queries.finding import CheckEnded, Evidence, Outcome, need, passed, unknown, unknown_without
from probes.snapshot.examination import Examination

PRESENT = (ModuleState.LIVE, ModuleState.BUILTIN)
PEERMEM = "nvidia_peermem"
DRIVER_VERSION = "/proc/driver/nvidia/version"
LINE_LIMIT = 200  # characters of a line of modprobe.d
# What a check is missing, in the same words everywhere.
MODULES, FILES = "the kernel modules", "modinfo of the module files"
PCI, DMABUF, OFED = "the PCI devices", "the DMA-BUF probe", "the OFED release (ofed_info)"


def module_of(examination: Examination, name: str) -> Maybe[KernelModule]:
    """Return a module of the ladder whose state is known; else why it is not."""
    modules = examination.node.modules
    if isinstance(modules, Unknown):
        return modules
    module = modules.modules[name]
    return module.state if isinstance(module.state, Unknown) else module


def is_present(module: KernelModule) -> bool:
    """Return whether a module is loaded or part of the kernel."""
    return module.state in PRESENT


def unread_rules(modules: ModuleFacts) -> str:
    """Name the files of modprobe.d and modules-load.d that could not be read."""
    return ", ".join(path[:LINE_LIMIT] for path in modules.rules_unread[:4])


def state_evidence(module: KernelModule) -> Evidence:
    """Return the state of a module and its source."""
    state = module.state
    return Evidence(PROC_MODULES, f"{module.name}: {state if isinstance(state, Unknown) else state.value}")


def file_of(examination: Examination, name: str) -> Maybe[ModuleFile]:
    """Return what modinfo says of a module's file; NOT_THERE: there is none for this kernel."""
    facts = examination.module_files
    if isinstance(facts, Unknown):
        return facts
    if isinstance(facts.files, Unknown):
        # modinfo itself that is missing says nothing about the module.
        return Unknown(Reason.NOT_RECORDED, "modinfo", f"modinfo: {facts.files}")
    found_file = facts.files.get(name)
    return (
        Unknown(Reason.NOT_THERE, f"modinfo {name}", "no such module") if found_file is None else found_file
    )


def module_messages(
    examination: Examination, kinds: Collection[LogKind], words: str = "", modules: Collection[str] = ()
) -> Maybe[tuple[KernelMessage, ...]]:
    """Return the kernel messages of these kinds, about these modules (or any), with these words."""
    log = examination.kernel_log
    if isinstance(log, Unknown):
        return log
    return tuple(
        one
        for one in log.messages
        if one.kind in kinds and words in one.text and (not modules or one.module in modules)
    )


def message_evidence(examination: Examination, messages: tuple[KernelMessage, ...]) -> tuple[Evidence, ...]:
    """Return the latest messages as evidence, or that there is none."""
    log = examination.kernel_log
    source = "dmesg" if isinstance(log, Unknown) else log.source
    if not messages:
        since = Unknown(Reason.NOT_THERE) if isinstance(log, Unknown) else log.since_seconds
        back = "" if isinstance(since, Unknown) else f" since {since:.0f} s after boot"
        return (Evidence(source, f"no such message{back}"),)
    return tuple(Evidence(source, one.text) for one in messages[-SHOWN:])


def log_needed(log: Unknown) -> Outcome:
    """Report that only the kernel log could decide the check."""
    return unknown_without(KERNEL_LOG, log)


def mlx5_functions(examination: Examination) -> Maybe[tuple[str, ...]]:
    """Return the BDFs of the NICs that mlx5_core serves, without those given to a virtual machine."""
    pci = examination.node.pci
    return pci if isinstance(pci, Unknown) else cards_of(pci, "mlx5")


def mlx4_functions(examination: Examination) -> Maybe[tuple[str, ...]]:
    """Return the BDFs of ConnectX-3 and older NICs, without those given to a virtual machine."""
    pci = examination.node.pci
    return pci if isinstance(pci, Unknown) else cards_of(pci, "mlx4")


def mlx_functions(examination: Examination) -> Maybe[tuple[str, ...]]:
    """Return the BDFs of all NVIDIA RDMA cards, without those given to a virtual machine."""
    pci = examination.node.pci
    return pci if isinstance(pci, Unknown) else (*cards_of(pci, "mlx5"), *cards_of(pci, "mlx4"))


def peer_nics(examination: Examination) -> Maybe[tuple[str, ...]]:
    """Return the NICs that can use nvidia_peermem: mlx5, mlx4, and bnxt_re with Broadcom's ib_peer_mem.

    Drivers ask peer-memory clients through OFED's ib_umem; those of EFA, irdma and cxi never do.
    """
    cards, modules, rdma = mlx_functions(examination), examination.node.modules, examination.node.rdma
    if isinstance(cards, Unknown) or isinstance(modules, Unknown) or isinstance(rdma, Unknown):
        return cards
    symbol = next((one.provider for one in modules.symbols if one.symbol == PEER_MEMORY_SYMBOL), None)
    if symbol != "ib_peer_mem":
        return cards
    return (*cards, *(nic.name for nic in rdma.devices if known(nic.driver, "").startswith("bnxt")))


def has_efa_only(examination: Examination) -> bool:
    """Say whether every NIC is an EFA: they have a peer-memory module of their own, efa_nv_peermem."""
    rdma = examination.node.rdma
    hardware = [] if isinstance(rdma, Unknown) else [one for one in rdma.devices if isinstance(one.bdf, str)]
    return bool(hardware) and all(one.driver == "efa" for one in hardware) and not mlx_functions(examination)


def no_peermem_pair(examination: Examination) -> Outcome | None:
    """Return the outcome for a node where no GPU and NIC can use nvidia_peermem; None: there is a pair."""
    gpus, nics = gpu_functions(examination), peer_nics(examination)
    if not isinstance(gpus, Unknown) and not gpus:
        return passed(Evidence("/sys/bus/pci/devices", "no NVIDIA GPU here"))
    if not isinstance(nics, Unknown) and not nics:
        return passed(Evidence("/sys/bus/pci/devices", "no NIC here that nvidia_peermem could serve"))
    return None


def gpu_functions(examination: Examination) -> Maybe[tuple[str, ...]]:
    """Return the BDFs of the GPUs, without those given to a virtual machine."""
    pci = examination.node.pci
    return pci if isinstance(pci, Unknown) else _gpus(pci)


def _gpus(pci: PciFacts) -> tuple[str, ...]:
    return tuple(
        bdf for bdf, one in pci.functions.items() if one.kind is PciKind.GPU and not is_for_guests(one.driver)
    )


def no_gpu_or_nic(examination: Examination) -> Outcome | None:
    """Return the outcome for a node without a GPU or without an RDMA NIC; None: both are there."""
    gpus, nics = gpu_functions(examination), mlx_functions(examination)
    if not isinstance(gpus, Unknown) and not gpus:
        return passed(Evidence("/sys/bus/pci/devices", "no NVIDIA GPU here"))
    if not isinstance(nics, Unknown) and not nics and not examination.topology.nics:
        return passed(Evidence("/sys/bus/pci/devices", "no RDMA NIC here"))
    return None


def no_gpu_or_rdma_device(examination: Examination) -> Outcome | None:
    """Return the outcome for a node without a GPU or an RDMA device; None: both are there, or unread."""
    node, topology = examination.node, examination.topology
    if isinstance(node.pci, Unknown):
        return None
    if not topology.gpus:
        return passed(Evidence("/sys/bus/pci/devices", "no NVIDIA GPU here"))
    unread = isinstance(node.rdma, Unknown) and node.rdma.reason is not Reason.NOT_THERE
    if topology.nics or unread:
        return None
    return passed(Evidence("/sys/class/infiniband", "no RDMA device here"))


def release_of(examination: Examination) -> str:
    """Return the running kernel's release for a text; RELEASE where it is unknown."""
    return known(examination.node.kernel_release, "RELEASE")


def modules_dep(examination: Examination) -> str:
    """Return the path of depmod's list of this kernel's modules."""
    return f"/lib/modules/{release_of(examination)}/modules.dep"


def ofed_of(examination: Examination) -> Maybe[str]:
    """Return OFED's release; NOT_THERE: there is no OFED."""
    tools = examination.tools
    return tools if isinstance(tools, Unknown) else tools.ofed


def ofed_numbers(release: str) -> tuple[int, ...] | None:
    """Parse "MLNX_OFED_LINUX-5.2-2.2.0.0" into (5, 2, 2, 2, 0, 0); None for other forms."""
    pattern = r"MLNX_OFED_LINUX-(\d{1,2})\.(\d{1,2})-(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})(?:\.\d+)?"
    match = re.fullmatch(pattern, release)
    return tuple(int(number) for number in match.groups()) if match else None


def driver_version(examination: Examination) -> tuple[str, tuple[int, int, int]]:
    """Return the version of the loaded NVIDIA driver, as written and as numbers; a check ends without it."""
    gpus = examination.node.gpus
    version = gpus if isinstance(gpus, Unknown) else gpus.driver.version
    if isinstance(version, Unknown) and version.reason is Reason.NOT_THERE:
        raise CheckEnded(passed(Evidence(DRIVER_VERSION, "not there: the driver is not loaded")))
    written = need(version, "the driver's version")
    numbers = parse_driver_version(written)
    if numbers is None:
        raise CheckEnded(unknown(f"needs the driver's version (malformed: {written})"))
    return written, numbers
