"""What several checks of kernel modules ask: a module, its file, the log, and what loads or rebuilds it."""

from __future__ import annotations

import re
from collections.abc import Collection

from probes.checks.finding import Evidence, Outcome, passed, unsure
from probes.checks.wording import SHOWN
from probes.examination import Examination
from probes.kernel_log import KernelMessage, LogKind
from probes.module_files import ModuleFile
from probes.modules import PROC_MODULES, KernelModule, ModuleFacts, ModuleState
from probes.pci import PciFacts, PciKind
from probes.unknown import Maybe, Reason, Unknown, known

PRESENT = (ModuleState.LIVE, ModuleState.BUILTIN)
PEERMEM = "nvidia_peermem"
LINE_LIMIT = 200  # of a line that somebody wrote into modprobe.d
_MELLANOX, _FIRST_MLX5 = 0x15B3, 0x1011  # Connect-IB; what is older is mlx4's


def module_of(examination: Examination, name: str) -> Maybe[KernelModule]:
    """A module of the ladder whose state is known; else why it is not."""
    modules = examination.node.modules
    if isinstance(modules, Unknown):
        return modules
    module = modules.modules[name]
    return module.state if isinstance(module.state, Unknown) else module


def is_present(module: KernelModule) -> bool:
    """Loaded, or part of the kernel."""
    return module.state in PRESENT


def unread_rules(modules: ModuleFacts) -> str:
    """The files of modprobe.d and modules-load.d that could not be read."""
    return ", ".join(path[:LINE_LIMIT] for path in modules.rules_unread[:4])


def state_seen(module: KernelModule) -> Evidence:
    """Where the state of a module was seen."""
    state = module.state
    return Evidence(PROC_MODULES, f"{module.name}: {state if isinstance(state, Unknown) else state.value}")


def file_of(examination: Examination, name: str) -> Maybe[ModuleFile]:
    """What modinfo says of a module's file; NOT_THERE: there is none for this kernel."""
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


def log_of(
    examination: Examination, kinds: Collection[LogKind], words: str = "", modules: Collection[str] = ()
) -> Maybe[tuple[KernelMessage, ...]]:
    """The kernel's messages of these kinds, about these modules (any, if none is named), with these words."""
    log = examination.kernel_log
    if isinstance(log, Unknown):
        return log
    return tuple(
        one
        for one in log.messages
        if one.kind in kinds and words in one.text and (not modules or one.module in modules)
    )


def log_seen(examination: Examination, messages: tuple[KernelMessage, ...]) -> tuple[Evidence, ...]:
    """The messages as evidence, the latest of them; where there are none, that the log is silent."""
    log = examination.kernel_log
    source = "dmesg" if isinstance(log, Unknown) else log.source
    if not messages:
        since = Unknown(Reason.NOT_THERE) if isinstance(log, Unknown) else log.since_seconds
        back = "" if isinstance(since, Unknown) else f" since {since:.0f} s after boot"
        return (Evidence(source, f"no such message{back}"),)
    return tuple(Evidence(source, one.text) for one in messages[-SHOWN:])


def log_needed(log: Unknown, what: str) -> Outcome:
    """The check that only the kernel log could decide."""
    return unsure(f"{log}" if log.reason is Reason.NEEDS_ROOT else f"needs the kernel log ({what}): {log}")


def mlx5_functions(examination: Examination) -> Maybe[tuple[str, ...]]:
    """BDFs of the NICs that mlx5_core is for, but for those given to a virtual machine."""
    pci = examination.node.pci
    if isinstance(pci, Unknown):
        return pci
    return tuple(
        bdf
        for bdf, one in pci.functions.items()
        if one.kind is PciKind.NIC
        and known(one.vendor_id, 0) == _MELLANOX
        and known(one.device_id, 0) >= _FIRST_MLX5
        and known(one.driver, "") != "vfio-pci"
    )


def gpu_functions(examination: Examination) -> Maybe[tuple[str, ...]]:
    """BDFs of the GPUs, but for those given to a virtual machine."""
    pci = examination.node.pci
    return pci if isinstance(pci, Unknown) else _gpus(pci)


def _gpus(pci: PciFacts) -> tuple[str, ...]:
    return tuple(
        bdf
        for bdf, one in pci.functions.items()
        if one.kind is PciKind.GPU and known(one.driver, "") != "vfio-pci"
    )


def no_pair(examination: Examination) -> Outcome | None:
    """Nothing to be said of modules where there is no GPU, or no NIC that could reach one."""
    gpus, nics = gpu_functions(examination), mlx5_functions(examination)
    if not isinstance(gpus, Unknown) and not gpus:
        return passed(Evidence("/sys/bus/pci/devices", "no NVIDIA GPU here"))
    if not isinstance(nics, Unknown) and not nics and not examination.topology.nics:
        return passed(Evidence("/sys/bus/pci/devices", "no RDMA NIC here"))
    return None


def no_ends(examination: Examination) -> Outcome | None:
    """Nothing to be said of paths where there is no GPU or no RDMA device; what was not read is neither."""
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
    """The running kernel's release, to be shown; RELEASE where it is unknown."""
    return known(examination.node.kernel_release, "RELEASE")


def modules_dep(examination: Examination) -> str:
    """The file in which depmod wrote down this kernel's modules."""
    return f"/lib/modules/{release_of(examination)}/modules.dep"


def ofed_of(examination: Examination) -> Maybe[str]:
    """OFED's release; NOT_THERE: there is no OFED."""
    tools = examination.tools
    return tools if isinstance(tools, Unknown) else tools.ofed


def ofed_numbers(release: str) -> tuple[int, ...] | None:
    """The numbers of "MLNX_OFED_LINUX-5.2-2.2.0.0": (5, 2, 2, 2, 0, 0); None for other forms."""
    pattern = r"MLNX_OFED_LINUX-(\d{1,2})\.(\d{1,2})-(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})(?:\.\d+)?"
    match = re.fullmatch(pattern, release)
    return tuple(int(number) for number in match.groups()) if match else None
