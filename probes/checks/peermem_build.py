"""nvidia_peermem that was built without the symbols it needs, or with those of another build."""

from __future__ import annotations

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.module_facts import (
    PEERMEM,
    file_of,
    is_present,
    log_needed,
    log_of,
    log_seen,
    module_of,
    modules_dep,
    no_pair,
    ofed_of,
    state_seen,
)
from probes.checks.module_need import Need, absent_peermem, need_of_peermem, peermem_fault
from probes.checks.references import PEERMEM_MANUAL, PEERMEM_SOURCE
from probes.examination import Examination
from probes.kernel_log import LogKind
from probes.module_files import PEER_MEMORY_SYMBOL
from probes.plan import Plan, instruction
from probes.plans.interruptions import REBOOT_ENDS_JOBS, reboot_step
from probes.plans.loading import load_step
from probes.plans.rebuilding import rebuild_steps
from probes.plans.services import restart_openibd
from probes.unknown import Reason, Unknown

AREA = Area("modules")

_IB_EXPORTERS = frozenset({"ib_core", "ib_uverbs", "ib_peer_mem"})


@AREA.check(
    "peermem-built-without-symbols",
    Severity.CRITICAL,
    "nvidia_peermem was built without peer-memory symbols (`Invalid argument`, and no line in dmesg)",
    f"{PEERMEM_SOURCE}/nvidia-peermem.c, nv_mem_client_init; "
    "https://github.com/NVIDIA/open-gpu-kernel-modules/pull/630",
)
def peermem_built_without_symbols(examination: Examination) -> Outcome:
    """What it depends on: a module that was built with the symbols needs the one that exports them."""
    module = absent_peermem(examination)
    if isinstance(module, Outcome):
        return module
    if isinstance(module.depends, Unknown):
        if module.depends.reason is Reason.NOT_THERE:
            return passed(Evidence(modules_dep(examination), "no nvidia_peermem: see peermem-not-on-disk"))
        return unsure(f"what nvidia_peermem was built with is unknown: {module.depends}")
    depends = Evidence("modinfo -F depends nvidia_peermem", ", ".join(module.depends) or "nothing")
    if _IB_EXPORTERS.intersection(module.depends):
        return passed(depends)
    facts = examination.module_files
    symbols = () if isinstance(facts, Unknown) else facts.peer_memory
    rebuild = rebuild_steps(examination)
    if symbols:
        seen = Evidence(symbols[0].path, f"{PEER_MEMORY_SYMBOL} is exported by {symbols[0].module}")
        cause = (
            "the driver was built before OFED was there: its RDMA stack has the symbols, the module has not"
        )
        plan = Plan("Build nvidia-peermem against OFED", rebuild, reversible=False)
    else:
        seen = Evidence("Module.symvers of kernel and OFED", f"no {PEER_MEMORY_SYMBOL}")
        cause = (
            "this RDMA stack has no peer-memory interface: OFED brings it, and kernels of some distributions"
        )
        steps = (
            instruction("install DOCA-OFED, or take the open kernel modules and DMA-BUF instead"),
            *rebuild,
        )
        plan = Plan(
            "Install OFED, then build nvidia-peermem", steps, reversible=False, disturbs="every RDMA program"
        )
    return peermem_fault(examination, cause, depends, seen, fix=plan)


@AREA.check(
    "peermem-symbol-version-mismatch",
    Severity.CRITICAL,
    "nvidia_peermem was built against another OFED than the one that runs",
    "https://github.com/NVIDIA/gpu-operator/issues/2868; Linux Documentation/kbuild/modules.rst",
)
def peermem_symbol_version_mismatch(examination: Examination) -> Outcome:
    """`disagrees about version of symbol ib_register_peer_memory_client` in the kernel log."""
    return _symbols(
        examination,
        LogKind.SYMBOL_VERSION,
        "OFED was installed or updated after the driver was built: the module wants symbols of another build",
        "Build the driver's modules against the OFED that runs",
    )


def _symbols(examination: Examination, kind: LogKind, cause: str, title: str) -> Outcome:
    """What the kernel said about symbols that nvidia_peermem wants."""
    module = absent_peermem(examination)
    if isinstance(module, Outcome):
        return module
    messages = log_of(examination, (kind,), modules=(PEERMEM,))
    if isinstance(messages, Unknown):
        if need_of_peermem(examination) is Need.NOT_NEEDED:
            return passed(Evidence("gdrtop check --only no-gdr-path", f"not needed: {Need.NOT_NEEDED.value}"))
        return log_needed(messages, "symbols that nvidia_peermem wants")
    # -22 is what a symbol of another version ends with: the kernel says so in a line before.
    messages = tuple(one for one in messages if (one.symbol or "").startswith("ib_") and one.number != -22)
    if not messages:
        return passed(*log_seen(examination, messages))
    steps = rebuild_steps(examination)
    return peermem_fault(
        examination, cause, *log_seen(examination, messages), fix=Plan(title, steps, reversible=False)
    )


@AREA.check(
    "peermem-symbol-version-mismatch-nvidia",
    Severity.CRITICAL,
    "nvidia_peermem on disk belongs to another driver version than the one that is loaded",
    PEERMEM_MANUAL,
)
def peermem_symbol_version_mismatch_nvidia(examination: Examination) -> Outcome:
    """The file's version beside that of the loaded driver, whose nvidia_p2p_* symbols it wants."""
    module, nvidia = absent_peermem(examination), module_of(examination, "nvidia")
    if isinstance(module, Outcome):
        return module
    if isinstance(nvidia, Unknown):
        return unsure(f"whether nvidia is loaded is unknown: {nvidia}")
    if not is_present(nvidia):
        return passed(state_seen(nvidia))
    file = file_of(examination, PEERMEM)
    version = file if isinstance(file, Unknown) else file.version
    if isinstance(version, Unknown):
        if version.reason is Reason.NOT_THERE:
            return passed(Evidence("modinfo nvidia_peermem", "no file, or no version in it"))
        return unsure(f"the version of nvidia_peermem's file is unknown: {version}")
    if isinstance(nvidia.version, Unknown):
        return unsure(f"/sys/module/nvidia/version: {nvidia.version}")
    evidence = (
        Evidence("modinfo -F version nvidia_peermem", version),
        Evidence("/sys/module/nvidia/version", nvidia.version),
    )
    if version == nvidia.version:
        return passed(*evidence)
    steps = (
        instruction("drain the node, and reboot it so that the driver on disk is the one that is loaded"),
        reboot_step(),
        load_step(examination, PEERMEM),
    )
    return peermem_fault(
        examination,
        "nvidia_peermem fits only the driver of its own version",
        *evidence,
        fix=Plan(
            "Load a driver and modules of one version", steps, needs_reboot=True, disturbs=REBOOT_ENDS_JOBS
        ),
    )


@AREA.check(
    "peermem-unknown-symbol-inbox-core",
    Severity.CRITICAL,
    "nvidia_peermem wants OFED's peer-memory symbols, and the loaded ib_core has none",
    "https://github.com/Mellanox/nv_peer_memory/issues/79",
)
def peermem_unknown_symbol_inbox_core(examination: Examination) -> Outcome:
    """`Unknown symbol ib_register_peer_memory_client` in the kernel log."""
    return _symbols(
        examination,
        LogKind.UNKNOWN_SYMBOL,
        "the module was built for OFED, and the distribution's own ib_core is the one that is loaded "
        "(OFED not built for this kernel, an old initramfs, or openibd did not run)",
        "Build the driver's modules for the RDMA stack that runs",
    )


@AREA.check(
    "inbox-core-beside-ofed",
    Severity.WARNING,
    "OFED is installed, and modprobe takes the distribution's own ib_core",
    "https://github.com/Mellanox/nv_peer_memory/issues/84; modprobe.d(5), depmod.d(5)",
)
def inbox_core_beside_ofed(examination: Examination) -> Outcome:
    """Where the ib_core lies that modprobe would load."""
    aside = no_pair(examination)
    if aside is not None:
        return aside
    ofed, modules = ofed_of(examination), module_of(examination, "ib_core")
    if isinstance(ofed, Unknown):
        if ofed.reason is Reason.NOT_THERE:
            return passed(Evidence("ofed_info -s", "no OFED here: the kernel's own drivers are meant"))
        return unsure(f"whether OFED is installed is unknown: {ofed}")
    if isinstance(modules, Unknown):
        return unsure(f"whether ib_core is loaded is unknown: {modules}")
    if isinstance(modules.on_disk, Unknown) or isinstance(modules.origin, Unknown):
        if isinstance(modules.on_disk, Unknown) and modules.on_disk.reason is Reason.NOT_THERE:
            return passed(Evidence("modinfo -n ib_core", "no file for this kernel, or built into it"))
        return unsure(f"which ib_core would be loaded is unknown: {modules.on_disk}")
    where = Evidence("modinfo -n ib_core", modules.on_disk)
    if modules.origin != "kernel":
        return passed(Evidence("ofed_info -s", ofed), where)
    load = restart_openibd(examination)
    steps = (
        instruction(
            "install OFED for this kernel (DOCA-OFED by DKMS, or mlnxofedinstall --add-kernel-support)"
        ),
        instruction("rebuild the initramfs: `update-initramfs -u` (Debian) or `dracut -f` (RPM)"),
        *(load.steps if isinstance(load, Plan) else (instruction(f"load OFED's modules; {load}"),)),
    )
    return found(
        "OFED has no modules for this kernel, so the distribution's own are loaded: they lack "
        "what OFED's have, peer-memory symbols among it",
        Evidence("ofed_info -s", ofed),
        where,
        fix=Plan("Build OFED for this kernel", steps, reversible=False, disturbs="every RDMA program"),
        devices=("ib_core",),
    )
