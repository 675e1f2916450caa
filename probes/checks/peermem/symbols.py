"""nvidia_peermem built without the symbols that it needs, or against another build of them."""

from __future__ import annotations

from probes.base.evidence import Evidence, Severity
from probes.base.plan import Plan, Step, instruction, make_plan
from probes.base.unknown import Unknown, known, map_known
from probes.facts.gpudirect_probe import IB_EXPORTERS
from probes.facts.kernel.log import LogKind
from probes.facts.kernel.module_files import PEER_MEMORY_SYMBOL
from probes.facts.kernel.modules import PEERMEM
from probes.facts.kernel.symbol_versions import EXPORTED, NEEDED, SymbolVersions
from probes.plans.boot import initramfs_step
from probes.plans.common import POD_ENDS_JOBS, reboot_plan, reboot_step
from probes.plans.driver import rebuild_steps
from probes.plans.load_modules import load_step
from probes.plans.packages import in_driver_container, ofed_steps
from probes.plans.services import restart_openibd
from probes.queries.finding import KERNEL_LOG, STAGED, Area, Outcome, end_with, found, need, passed
from probes.queries.module_need import (
    NOT_NEEDED_HERE,
    Need,
    absent_peermem,
    is_spare,
    need_of_peermem,
    not_needed,
    peermem_fault,
    required_need,
    spare_fix,
)
from probes.queries.modules import (
    FILES,
    MODULES,
    OFED,
    PEERMEM_MANUAL,
    PEERMEM_SOURCE,
    file_of,
    is_about_version,
    is_present,
    is_refused_now,
    message_evidence,
    module_messages,
    module_of,
    modules_dep,
    no_peermem_pair,
    ofed_of,
    state_evidence,
    versions_differ,
)
from probes.snapshot.examination import Examination

AREA = Area("modules")

_OTHER_OFED = "OFED was installed or updated after the driver was built, so the symbol versions differ."
_REBUILD = "Build the driver's modules against the installed OFED"


@AREA.critical(
    "peermem-built-without-symbols",
    "nvidia_peermem was built without peer-memory symbols",
    f"{PEERMEM_SOURCE}/nvidia-peermem.c, nv_mem_client_init; "
    "https://github.com/NVIDIA/open-gpu-kernel-modules/pull/630",
    ok="nvidia_peermem was built with peer-memory symbols, or is not needed",
    impact=STAGED,
)
def peermem_built_without_symbols(examination: Examination) -> Outcome:
    """Check its dependencies: a module built with the symbols needs the module that exports them.

    modprobe prints `Invalid argument`, and nothing appears in the kernel log.
    """
    module = absent_peermem(examination)
    names = need(module.depends, FILES, absent=Evidence(modules_dep(examination), "no nvidia_peermem"))
    depends = Evidence("modinfo -F depends nvidia_peermem", ", ".join(names) or "nothing")
    if IB_EXPORTERS.intersection(names):
        return passed(depends)
    facts = examination.module_files
    symbols = () if isinstance(facts, Unknown) else facts.peer_memory
    rebuild = rebuild_steps(examination)
    if symbols:
        exporter = Evidence(symbols[0].path, f"{PEER_MEMORY_SYMBOL} is exported by {symbols[0].module}")
        cause = (
            "The driver was built before OFED was installed, so modprobe fails with `Invalid argument`. "
            "A rebuild finds OFED's symbols."
        )
        plan = Plan("Build nvidia-peermem against OFED", rebuild)
    else:
        exporter = Evidence("Module.symvers of the kernel and OFED", f"no {PEER_MEMORY_SYMBOL}")
        cause = (
            "This RDMA stack has no peer-memory interface, so modprobe fails with `Invalid argument`. OFED "
            "and the kernels of some distributions have it."
        )
        plan = make_plan(
            "Install OFED, then build nvidia-peermem",
            *ofed_steps(examination),
            *rebuild,
            disturbs="every RDMA program",
            note="With the open kernel modules, DMA-BUF works without OFED and nvidia_peermem.",
        )
    return peermem_fault(examination, cause, depends, exporter, fix=plan)


@AREA.critical(
    "peermem-symbol-version-mismatch",
    "nvidia_peermem was built against another OFED version",
    "https://github.com/NVIDIA/gpu-operator/issues/2868; Linux Documentation/kbuild/modules.rst",
    ok="nvidia_peermem was built against the installed OFED, or is not needed",
    impact=STAGED,
)
def peermem_symbol_version_mismatch(examination: Examination) -> Outcome:
    """Compare the symbol's version in the files of nvidia_peermem and ib_core.

    Where one is unknown, the log shows it: `disagrees about version of symbol ib_register_…`.
    """
    end_with(no_peermem_pair(examination))
    module, versions = need(module_of(examination, PEERMEM), MODULES), examination.symbol_versions
    differ = versions_differ(examination)
    evidence = () if isinstance(versions, Unknown) else _both_versions(versions)
    if is_present(module) and differ is True:
        return _refused_at_next_boot(examination, evidence)
    if not is_present(module):
        absent_peermem(examination)
        if is_refused_now(examination) is False:
            return passed(*evidence)
        if differ is True:
            said = known(module_messages(examination, (LogKind.SYMBOL_VERSION,), modules=(PEERMEM,)), ())
            log = message_evidence(examination, tuple(filter(is_about_version, said))) if said else ()
            will = "will refuse the module after the next boot"
            if is_refused_now(examination) is True:
                will = "refuses the module with `Invalid argument`"
            cause = f"{_OTHER_OFED} The kernel {will}."
            return peermem_fault(examination, cause, *evidence, *log, fix=_rebuild(examination))
    return _symbols(examination, LogKind.SYMBOL_VERSION, _OTHER_OFED, _REBUILD)


def _both_versions(versions: SymbolVersions) -> tuple[Evidence, ...]:
    rows = (
        (NEEDED, versions.importer_path, versions.expected),
        (EXPORTED, versions.exporter_path, versions.exported),
    )
    return tuple(
        Evidence(f"modprobe {option} {path}", f"0x{version:08x} {PEER_MEMORY_SYMBOL}")
        for option, path, version in rows
        if not isinstance(version, Unknown)
    )


def _refused_at_next_boot(examination: Examination, evidence: tuple[Evidence, ...]) -> Outcome:
    """Report a module that works now, with an ib_core that will not be there after the next boot."""
    required = required_need(examination)
    if required is Need.NOT_NEEDED:
        return not_needed(*evidence)
    spare = required is Need.WANTED
    return found(
        f"{_OTHER_OFED} nvidia_peermem works until the next boot, and the kernel refuses it then.",
        *evidence,
        fix=spare_fix(examination, _rebuild(examination)),
        severity=Severity.NOTE if spare else Severity.WARNING,
        devices=(PEERMEM,),
        impact=NOT_NEEDED_HERE if spare else "GPUDirect RDMA is gone after the next reboot.",
    )


def _rebuild(examination: Examination) -> Plan:
    """Rebuild the driver's modules; first repair what they would be built against."""
    ends_jobs = POD_ENDS_JOBS if in_driver_container(examination) else ""
    facts, versions = examination.module_files, examination.symbol_versions
    first: list[Step] = []
    exported = versions if isinstance(versions, Unknown) else versions.exported
    if not isinstance(facts, Unknown) and not isinstance(exported, Unknown):
        used = next(iter(facts.peer_memory), None)  # the Module.symvers that a rebuild uses
        if used is not None and used.crc != exported:
            reinstall = f"Reinstall OFED's kernel headers: {used.path} is from another build than the"
            again = f"installed modules (0x{used.crc:08x}), so a rebuild with it does not help"
            first = [instruction(f"{reinstall} {again}")]
    steps = rebuild_steps(examination)
    if is_refused_now(examination) is not True:  # the running kernel has another ib_core than its file
        steps = tuple(step for step in steps if step.argv[:1] != ("modprobe",))
    return Plan(_REBUILD, (*first, *steps), disturbs=ends_jobs)


def _symbols(
    examination: Examination, kind: LogKind, cause: str, title: str, part_of: tuple[str, ...] = ()
) -> Outcome:
    """Check what the kernel logged about symbols that nvidia_peermem needs."""
    absent_peermem(examination)
    messages = module_messages(examination, (kind,), modules=(PEERMEM,))
    if isinstance(messages, Unknown) and need_of_peermem(examination) is Need.NOT_NEEDED:
        return not_needed()
    # -22 follows a symbol of another version, which the kernel names in the line before.
    messages = tuple(
        message
        for message in need(messages, KERNEL_LOG)
        if (message.symbol or "").startswith("ib_") and message.number != -22
    )
    evidence = message_evidence(examination, messages)
    if not messages:
        return passed(*evidence)
    ends_jobs = POD_ENDS_JOBS if in_driver_container(examination) else ""
    fix = Plan(title, rebuild_steps(examination), disturbs=ends_jobs)
    return peermem_fault(examination, cause, *evidence, fix=fix, part_of=part_of)


@AREA.critical(
    "peermem-symbol-version-mismatch-nvidia",
    "nvidia_peermem on disk is from another driver version",
    PEERMEM_MANUAL,
    ok="nvidia_peermem on disk matches the loaded driver, or is not needed",
    impact=STAGED,
)
def peermem_symbol_version_mismatch_nvidia(examination: Examination) -> Outcome:
    """Compare the file's version with that of the loaded driver, whose nvidia_p2p_* symbols it needs."""
    absent_peermem(examination)
    nvidia = need(module_of(examination, "nvidia"), MODULES)
    if not is_present(nvidia):
        return passed(state_evidence(nvidia))
    version = map_known(file_of(examination, PEERMEM), lambda file: file.version)
    on_disk = need(version, FILES, absent=Evidence("modinfo nvidia_peermem", "no file, or no version in it"))
    path = "/sys/module/nvidia/version"
    loaded = need(nvidia.version, path)
    evidence = (Evidence("modinfo -F version nvidia_peermem", on_disk), Evidence(path, loaded))
    if on_disk == loaded:
        return passed(*evidence)
    return peermem_fault(
        examination,
        "nvidia_peermem works only with a driver of the same version.",
        *evidence,
        fix=reboot_plan(
            "Load a driver and modules of the same version",
            "Drain the node; the reboot loads the driver that is on disk",
            reboot_step(),
            load_step(examination, PEERMEM),
        ),
        part_of=("driver-half-updated",),
    )


@AREA.critical(
    "peermem-unknown-symbol-inbox-core",
    "The loaded ib_core is missing the symbols that nvidia_peermem needs",
    "https://github.com/Mellanox/nv_peer_memory/issues/79",
    ok="No symbol that nvidia_peermem needs is missing from ib_core",
    impact=STAGED,
)
def peermem_unknown_symbol_inbox_core(examination: Examination) -> Outcome:
    """Check the log for `Unknown symbol ib_register_peer_memory_client`."""
    return _symbols(
        examination,
        LogKind.UNKNOWN_SYMBOL,
        "The module was built for OFED, but the distribution's ib_core is loaded. Either OFED is not built "
        "for this kernel, the initramfs is old, or openibd did not run.",
        "Build the driver's modules for the running RDMA stack",
        ("inbox-core-beside-ofed",),
    )


@AREA.warning(
    "inbox-core-beside-ofed",
    "OFED is installed, but modprobe uses the distribution's ib_core",
    "https://github.com/Mellanox/nv_peer_memory/issues/84; modprobe.d(5), depmod.d(5)",
    ok="modprobe uses the ib_core of the installed RDMA stack",
    impact="nvidia_peermem cannot work: the distribution's modules have no peer-memory interface.",
)
def inbox_core_beside_ofed(examination: Examination) -> Outcome:
    """Check which ib_core modprobe would load; a note where DMA-BUF is usable.

    OFED without kernel modules (mlnxofedinstall --user-space-only) is then deliberate and works.
    """
    end_with(no_peermem_pair(examination))
    no_ofed = Evidence("ofed_info -s", "no OFED: the kernel's own drivers are in use")
    ofed = need(ofed_of(examination), OFED, absent=no_ofed)
    ib_core = need(module_of(examination, "ib_core"), MODULES)
    no_file = Evidence("modinfo -n ib_core", "no file for this kernel, or built into it")
    path = Evidence("modinfo -n ib_core", need(ib_core.on_disk, "modules.dep", absent=no_file))
    if ib_core.origin != "kernel":
        return passed(Evidence("ofed_info -s", ofed), path)
    load = restart_openibd(examination)
    steps = (
        "Install OFED for this kernel (DOCA-OFED with DKMS, or mlnxofedinstall --add-kernel-support)",
        initramfs_step(examination),
        *(load.steps if isinstance(load, Plan) else (f"Load OFED's modules ({load})",)),
    )
    spare = is_spare(examination)
    return found(
        "OFED has no modules for this kernel, so the distribution's modules are loaded."
        + (" That is correct if you want only OFED's libraries and tools." if spare else ""),
        Evidence("ofed_info -s", ofed),
        path,
        fix=make_plan("Build OFED for this kernel", *steps, disturbs="every RDMA program"),
        devices=("ib_core",),
        severity=Severity.NOTE if spare else None,
        impact="None for jobs that use DMA-BUF. Features of OFED's modules are missing." if spare else "",
        part_of=("dkms-build-failed", "dkms-not-built-for-kernel"),
    )
