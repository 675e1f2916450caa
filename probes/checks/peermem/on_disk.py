"""Why nvidia_peermem is not loaded: its file is missing, or was built without symbols or against others."""

from __future__ import annotations

from probes.base.evidence import Evidence, Severity
from probes.base.plan import Plan, Step, instruction, make_plan
from probes.base.text import SHOWN
from probes.base.unknown import Maybe, Unknown, is_there, known, map_known, parse_known
from probes.facts.gpudirect import parse_driver_version
from probes.facts.gpudirect_probe import IB_EXPORTERS
from probes.facts.kernel.log import LogKind
from probes.facts.kernel.module_files import DRIVER_PACKAGES, PEER_MEMORY_SYMBOL
from probes.facts.kernel.modules import PEERMEM
from probes.facts.kernel.symbol_versions import EXPORTED, NEEDED, SymbolVersions
from probes.plans.boot import initramfs_step
from probes.plans.common import POD_ENDS_JOBS, SWAP_ENDS_JOBS, reboot_plan, reboot_step
from probes.plans.driver import rebuild_plan, rebuild_steps
from probes.plans.load_modules import blocker_of, load_plan, load_step
from probes.plans.packages import in_driver_container, ofed_steps, open_driver_steps
from probes.plans.services import restart_openibd
from probes.queries.finding import KERNEL_LOG, Area, CheckEnded, Outcome, end_with, found, need, passed
from probes.queries.kernel_log import P2P_REFUSALS
from probes.queries.module_need import (
    NOT_NEEDED_HERE,
    PEERMEM_REASONS,
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
    DRIVER_VERSION,
    FILES,
    LINE_LIMIT,
    MODULES,
    OFED,
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
    release_of,
    state_evidence,
    versions_differ,
)
from probes.snapshot.examination import Examination

AREA = Area("modules", __package__)

_FIRST_WITH_PEERMEM = (470, 0, 0)
_FILE, _OTHERS = "the nvidia_peermem file (/lib/modules)", "the modules of other kernels"


def _driver_numbers(examination: Examination) -> Maybe[tuple[int, int, int]]:
    version = map_known(examination.node.gpus, lambda gpus: gpus.driver.version)
    return parse_known(version, parse_driver_version, DRIVER_VERSION)


@AREA.critical("peermem-not-loaded", part_of=P2P_REFUSALS)
def peermem_not_loaded(examination: Examination) -> Outcome:
    """Check that it is loaded; no fault where DMA-BUF is usable and no configuration names the module."""
    module = absent_peermem(examination)
    no_file = Evidence(modules_dep(examination), "no nvidia_peermem: see peermem-not-on-disk")
    path = need(module.on_disk, _FILE, state_evidence(module), absent=no_file)
    blocker = blocker_of(examination, PEERMEM)
    return peermem_fault(
        examination,
        "No device triggers it, so udev never loads nvidia_peermem. Load it explicitly (modules-load.d)."
        if blocker is None
        else f"nvidia_peermem cannot be loaded ({blocker[:LINE_LIMIT]}).",
        state_evidence(module),
        Evidence("modinfo -n nvidia_peermem", path),
        fix=load_plan(examination, PEERMEM) if blocker is None else None,
        part_of=(*PEERMEM_REASONS, "boot-load-race", "peermem-lost-after-driver-update"),
    )


def _require_no_file(examination: Examination) -> None:
    """End the check unless nvidia_peermem is not loaded and has no file for this kernel."""
    module = absent_peermem(examination)
    if is_there(module.on_disk) is False:
        return
    path = need(module.on_disk, _FILE, state_evidence(module))
    raise CheckEnded(passed(Evidence("modinfo -n nvidia_peermem", path)))


def _other_kernels(examination: Examination) -> Maybe[tuple[str, ...]]:
    """Return the other kernels that have the module, from depmod and the driver's DKMS packages."""
    facts, dkms = examination.module_files, examination.dkms
    if isinstance(facts, Unknown):
        return facts
    kernels = dict.fromkeys(facts.elsewhere)
    if not isinstance(dkms, Unknown):
        for package in dkms.modules:
            if package.name in DRIVER_PACKAGES:
                kernels.update(dict.fromkeys((*package.built, *package.installed)))
    kernels.pop(release_of(examination), None)
    return tuple(kernels)


@AREA.critical("peermem-not-on-disk")
def peermem_not_on_disk(examination: Examination) -> Outcome:
    """Check for a driver package of 470 or newer that leaves the module out."""
    _require_no_file(examination)
    evidence = Evidence(modules_dep(examination), "no nvidia-peermem.ko")
    if need(_other_kernels(examination), _OTHERS):
        return passed(evidence, Evidence("/lib/modules", "other kernels have it"))
    if _from_container(examination):
        return passed(evidence, Evidence("modinfo nvidia", "no file: the driver comes from a container"))
    numbers = _driver_numbers(examination)
    if not isinstance(numbers, Unknown) and numbers < _FIRST_WITH_PEERMEM:
        return passed(evidence, Evidence(DRIVER_VERSION, "older than 470, the first with nvidia_peermem"))
    steps = (
        instruction("Install the NVIDIA driver's DKMS package, or another package with nvidia-peermem"),
        load_step(examination, PEERMEM),
    )
    return peermem_fault(
        examination,
        "The driver package in use does not contain nvidia-peermem.ko.",
        evidence,
        fix=Plan("Install nvidia-peermem", steps),
    )


def _from_container(examination: Examination) -> bool:
    """Return whether the driver runs without a file on this node: a driver container loaded it."""
    nvidia = module_of(examination, "nvidia")
    return not isinstance(nvidia, Unknown) and is_present(nvidia) and is_there(nvidia.on_disk) is False


@AREA.critical("peermem-not-on-disk-container")
def peermem_not_on_disk_container(examination: Examination) -> Outcome:
    """Check for a driver that runs without a file on the node: only its container has nvidia_peermem."""
    _require_no_file(examination)
    if not _from_container(examination):
        return passed(Evidence("modinfo nvidia", "the driver is installed on the node, or is not running"))
    return peermem_fault(
        examination,
        "A driver container loaded nvidia (no module file on this node), but not nvidia_peermem.",
        Evidence("modinfo nvidia", "no file for the running kernel"),
        Evidence("/proc/modules", "nvidia: live"),
        fix=make_plan(
            "Let the driver container load nvidia-peermem",
            "GPU Operator: set driver.rdma.enabled=true, and useHostMofed=true if OFED is on the node",
            "Or set driver.kernelModuleType=open and use DMA-BUF instead",
            disturbs=POD_ENDS_JOBS,
        ),
    )


@AREA.critical("peermem-not-on-disk-other-kernel")
def peermem_not_on_disk_other_kernel(examination: Examination) -> Outcome:
    """Check for a kernel update without a rebuild; usually DKMS had no headers to build against."""
    _require_no_file(examination)
    others = need(_other_kernels(examination), _OTHERS)
    evidence = Evidence(modules_dep(examination), "no nvidia-peermem.ko")
    if not others:
        return passed(evidence, Evidence("/lib/modules", "no other kernel has it"))
    steps = (*rebuild_plan(examination, release_of(examination), True).steps, load_step(examination, PEERMEM))
    return peermem_fault(
        examination,
        f"nvidia_peermem was built for {', '.join(others[:4])}, not for the running kernel.",
        evidence,
        Evidence("find /lib/modules -name 'nvidia-peermem.ko*'", ", ".join(others[:SHOWN])),
        fix=Plan("Build the driver's modules for this kernel", steps),
    )


@AREA.critical("peermem-not-on-disk-old-driver")
def peermem_not_on_disk_old_driver(examination: Examination) -> Outcome:
    """Check for drivers before 470, which need Mellanox's nv_peer_mem instead."""
    _require_no_file(examination)
    numbers = need(_driver_numbers(examination), DRIVER_VERSION)
    evidence = Evidence(DRIVER_VERSION, ".".join(map(str, numbers)))
    if numbers >= _FIRST_WITH_PEERMEM:
        return passed(evidence)
    return peermem_fault(
        examination,
        "nvidia_peermem has been part of the driver since 470.",
        evidence,
        Evidence(modules_dep(examination), "no nvidia-peermem.ko"),
        fix=make_plan("Install a newer driver", *open_driver_steps(examination), disturbs=SWAP_ENDS_JOBS),
    )


_OTHER_OFED = "OFED was installed or updated after the driver was built, so the symbol versions differ."
_REBUILD = "Build the driver's modules against the installed OFED"


@AREA.critical("peermem-built-without-symbols")
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


@AREA.critical("peermem-symbol-version-mismatch")
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


@AREA.critical("peermem-symbol-version-mismatch-nvidia")
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


@AREA.critical("peermem-unknown-symbol-inbox-core")
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


@AREA.warning("inbox-core-beside-ofed")
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
