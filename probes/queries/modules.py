"""Facts that several checks of kernel modules need: a module, its file, its loaders, the cards it serves."""

from __future__ import annotations

import re
from collections.abc import Collection

from probes.base.evidence import Evidence
from probes.base.text import SHOWN
from probes.base.unknown import Maybe, Reason, Unknown, first_unread, is_there, known, map_known
from probes.facts.gpu.gpus import Gpu
from probes.facts.gpudirect import hardware_of
from probes.facts.kernel.log import KernelMessage, LogKind
from probes.facts.kernel.module_files import PEER_MEMORY_SYMBOL, ModuleFile
from probes.facts.kernel.modules import PEERMEM, PRESENT, KernelModule, ModuleFacts, has_ofed_peer_memory
from probes.facts.node import Node
from probes.facts.pci.functions import DEVICES, PciFunction, is_for_guests
from probes.facts.pci.nic_families import MELLANOX, PLUGIN_DRIVERS, PLUGIN_ONLY, NicFamily, cards_of
from probes.facts.system.services import ServiceFacts
from probes.host.values import PROC_MODULES
from probes.queries.finding import Outcome, passed
from probes.snapshot.examination import Examination

PEERMEM_REFCNT = f"/sys/module/{PEERMEM}/refcnt"  # its memory regions
DRIVER_VERSION = "/proc/driver/nvidia/version"
LINE_LIMIT = 200  # characters of a line of modprobe.d
# What a check needs, in the same words everywhere.
MODULES, FILES = "the kernel modules", "modinfo of the module files"
PCI, DMABUF, OFED = "the PCI devices", "the DMA-BUF probe", "the OFED release (ofed_info)"
RELEASE = "the release of the running kernel"


def driver_evidence(device: Gpu | PciFunction) -> Evidence:
    """Return which driver is bound to a device."""
    return Evidence(f"/sys/bus/pci/devices/{device.bdf}/driver", known(device.driver, "none"))


def module_of(examination: Examination, name: str) -> Maybe[KernelModule]:
    """Return a kernel module whose state is known; else why it is not."""
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
    """Return what modinfo prints about a module's file; NOT_THERE: there is none for this kernel."""
    facts = examination.module_files
    if isinstance(facts, Unknown):
        return facts
    if isinstance(facts.files, Unknown):
        # That modinfo itself is missing does not mean that the module is.
        return Unknown(Reason.NOT_RECORDED, "modinfo", f"modinfo: {facts.files}")
    return facts.files.get(name) or Unknown(Reason.NOT_THERE, f"modinfo {name}", "no such module")


def module_messages(
    examination: Examination,
    kinds: Collection[LogKind],
    words: Collection[str] = ("",),
    modules: Collection[str] = (),
) -> Maybe[tuple[KernelMessage, ...]]:
    """Return the kernel messages of these kinds, about these modules (or any), with one of these texts."""
    log = examination.kernel_log
    if isinstance(log, Unknown):
        return log
    return tuple(
        message
        for message in log.messages
        if message.kind in kinds
        and any(text in message.text for text in words)
        and (not modules or message.module in modules)
    )


def message_evidence(examination: Examination, messages: tuple[KernelMessage, ...]) -> tuple[Evidence, ...]:
    """Return the latest messages as evidence, or that there is none."""
    log = examination.kernel_log
    source = "dmesg" if isinstance(log, Unknown) else log.source
    if not messages:
        start = Unknown(Reason.NOT_THERE) if isinstance(log, Unknown) else log.since_seconds
        since = "" if isinstance(start, Unknown) else f" since {start:.0f} s after boot"
        return (Evidence(source, f"no such message{since}"),)
    return tuple(Evidence(source, message.text) for message in messages[-SHOWN:])


def nics_of(examination: Examination, *families: NicFamily) -> Maybe[tuple[str, ...]]:
    """Return the BDFs of the NICs of these families, without those given to a virtual machine."""
    return map_known(examination.node.pci, lambda pci: cards_of(pci, *families))


def peer_nics(node: Node) -> Maybe[tuple[str, ...]]:
    """Return the NICs that can use nvidia_peermem: mlx5, mlx4, and bnxt_re with Broadcom's ib_peer_mem.

    Drivers call peer-memory clients through OFED's ib_umem, as Alibaba's erdma does where OFED is installed;
    those of EFA, irdma, ionic and cxi never do.
    """
    cards, modules, rdma = map_known(node.pci, lambda pci: cards_of(pci, *MELLANOX)), node.modules, node.rdma
    if isinstance(cards, Unknown) or isinstance(modules, Unknown) or isinstance(rdma, Unknown):
        return cards
    exporter = modules.peer_memory
    drivers = ("bnxt_en",) if exporter is not None and exporter.provider == "ib_peer_mem" else ()
    if known(has_ofed_peer_memory(modules), False):
        drivers = ("erdma",)
    return (*cards, *(nic.name for nic in rdma.devices if known(nic.driver, "") in drivers))


def has_efa_only(examination: Examination) -> bool:
    """Return whether every NIC is an EFA, which has a peer-memory module of its own, efa_nv_peermem."""
    rdma = examination.node.rdma
    nics = [] if isinstance(rdma, Unknown) else [nic for nic in rdma.devices if isinstance(nic.bdf, str)]
    others = known(nics_of(examination, *MELLANOX), ())
    return bool(nics) and all(nic.driver == "efa" for nic in nics) and not others


def gpu_functions(examination: Examination) -> Maybe[tuple[str, ...]]:
    """Return the BDFs of the GPUs, without those given to a virtual machine."""
    return map_known(
        examination.node.pci,
        lambda pci: tuple(function.bdf for function in pci.gpus if not is_for_guests(function.driver)),
    )


def no_peermem_pair(examination: Examination) -> Outcome | None:
    """Return the outcome for a node where no GPU and NIC can use nvidia_peermem; None: there is a pair."""
    if gpu_functions(examination) == ():
        return passed(Evidence(DEVICES, "no NVIDIA GPU"))
    if peer_nics(examination.node) == ():
        return passed(Evidence(DEVICES, "no NIC that nvidia_peermem could serve"))
    return None


def no_gpu_or_nic(examination: Examination) -> Outcome | None:
    """Return the outcome for a node without a GPU or without an RDMA NIC; None: both are there."""
    if gpu_functions(examination) == ():
        return passed(Evidence(DEVICES, "no NVIDIA GPU"))
    if nics_of(examination, *MELLANOX) == () and not examination.topology.nics:
        return passed(Evidence(DEVICES, "no RDMA NIC"))
    return None


def no_gpu_or_rdma_device(examination: Examination) -> Outcome | None:
    """Return the outcome for a node without a GPU or an RDMA device; None: both are there, or unread."""
    node, topology = examination.node, examination.topology
    if isinstance(node.pci, Unknown):
        return None
    if not topology.gpus:
        return passed(Evidence(DEVICES, "no NVIDIA GPU"))
    if has_no_rdma_device(examination):
        return passed(Evidence("/sys/class/infiniband", "no RDMA device"))
    return None


def impossible_by_design(examination: Examination) -> Outcome | None:
    """Return the outcome for GPUs that cannot use GPUDirect RDMA by design; None: they can, or unread."""
    direct = examination.node.gpudirect
    if isinstance(direct, Unknown) or not direct.by_design:
        return None
    return passed(Evidence("libcuda", f"not applicable by design: {direct.by_design}"))


def has_no_rdma_device(examination: Examination) -> bool:
    """Return whether the node is known to have no RDMA device."""
    return not examination.topology.nics and first_unread((examination.node.rdma,)) is None


def release_of(examination: Examination) -> str:
    """Return the running kernel's release for a text; RELEASE where it is unknown."""
    return known(examination.node.kernel_release, "RELEASE")


def modules_dep(examination: Examination) -> str:
    """Return the path of depmod's list of this kernel's modules."""
    return f"/lib/modules/{release_of(examination)}/modules.dep"


def ofed_of(examination: Examination) -> Maybe[str]:
    """Return OFED's release; NOT_THERE: there is no OFED."""
    return map_known(examination.tools, lambda tools: tools.ofed)


def ofed_numbers(release: str) -> tuple[int, ...] | None:
    """Parse "MLNX_OFED_LINUX-5.2-2.2.0.0" into (5, 2, 2, 2, 0, 0); None for other forms."""
    pattern = r"MLNX_OFED_LINUX-(\d{1,2})\.(\d{1,2})-(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})(?:\.\d+)?"
    match = re.fullmatch(pattern, release)
    return tuple(int(number) for number in match.groups()) if match else None


# NCCL's own code uses ports with the link layers InfiniBand and Ethernet (src/transport/net_ib/init.cc).
# EFA's is unspecified, and Slingshot has no verbs. A network plugin of NCCL serves both, through libfabric.
PLUGIN = "aws-ofi-nccl"


def plugin_only_driver(examination: Examination) -> str:
    """Return the driver of NICs that all need a plugin, "efa" or "cxi_ss1"; "" if NCCL can use one itself."""
    drivers = [known(device.driver, "") for device in hardware_of(examination.node.rdma)]
    return drivers[0] if drivers and all(driver in PLUGIN_DRIVERS for driver in drivers) else ""


def driver_with_plugin(examination: Examination) -> tuple[str, str]:
    """Return the BDF and the driver of a NIC that needs a plugin; two empty texts if none does."""
    pci = examination.node.pci
    if isinstance(pci, Unknown):
        return "", ""
    for bdf, function in pci.functions.items():
        if known(function.driver, "") in PLUGIN_DRIVERS:
            return bdf, known(function.driver, "")
    for family in PLUGIN_ONLY:  # cards whose driver is not loaded
        for bdf in cards_of(pci, family):
            return bdf, family.pci_drivers[0]
    return "", ""


def boot_loaders(examination: Examination, module: KernelModule) -> tuple[Evidence, ...]:
    """Return the files that load a module at boot, each with its line; (): none was found."""
    services = examination.services
    unit = services.modprobe.get(module.name) if isinstance(services, ServiceFacts) else None
    loaders = [Evidence(module.persistent, module.name)] if module.persistent is not None else []
    for line in (module.softdep, unit):
        if line is not None:
            file, _, text = line.partition(": ")
            loaders.append(Evidence(file, text[:LINE_LIMIT]))
    return tuple(loaders)


# Questions about the versions of the peer-memory symbol in the files of nvidia_peermem and ib_core.

VERSIONS_DIFFER = f"it was built against another version of {PEER_MEMORY_SYMBOL} than the RDMA stack has"
_INVALID = -22


def versions_differ(examination: Examination) -> Maybe[bool]:
    """Return whether the files of nvidia_peermem and of the exporter do not fit: the next boot loads both."""
    return map_known(examination.symbol_versions, lambda versions: versions.differ)


def is_refused_now(examination: Examination) -> Maybe[bool]:
    """Return whether the running kernel refuses nvidia_peermem's file because of the symbol's version.

    Unknown if the loaded exporter is not the one on disk: the versions of loaded modules cannot be read.
    """
    versions = examination.symbol_versions
    if isinstance(versions, Unknown) or isinstance(versions.differ, Unknown):
        return versions_differ(examination)
    modules = examination.node.modules
    if isinstance(modules, Unknown):
        return modules
    loaded, file = modules.modules.get(versions.exporter), file_of(examination, versions.exporter)
    if loaded is None:  # such as Broadcom's ib_peer_mem, of which only the file and the interface are read
        if is_there(modules.memory_peers) is False:
            return versions.differ
        return Unknown(Reason.NOT_RECORDED, f"/sys/module/{versions.exporter}")
    if not is_present(loaded):
        return versions.differ  # modprobe loads it from its file first
    on_disk = map_known(file, lambda file: file.srcversion)
    # Some distributions build modules without a srcversion.
    if loaded.srcversion == on_disk or (
        isinstance(loaded.srcversion, Unknown) and isinstance(on_disk, Unknown)
    ):
        return versions.differ
    return Unknown(
        Reason.NOT_THERE, versions.exporter_path, f"{versions.exporter} was replaced after it was loaded"
    )


def is_about_version(message: KernelMessage) -> bool:
    """Return whether a message of the kernel is about the version of the peer-memory symbol."""
    is_version = message.kind is LogKind.SYMBOL_VERSION or message.number == _INVALID
    return message.module == PEERMEM and message.symbol == PEER_MEMORY_SYMBOL and is_version
