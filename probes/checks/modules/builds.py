"""Modules that were not built or differ from the disk: DKMS, an unfinished update, a stale initramfs."""

from __future__ import annotations

from probes.base.plan import Plan, Step, instruction
from probes.base.unknown import Reason, Unknown, known
from probes.facts.kernel.dkms import DRIVER_PACKAGES
from probes.plans.common import REBOOT_ENDS_JOBS, reboot_step
from probes.plans.driver import exchange_driver, matching_fabric_manager, rebuild_plan
from probes.queries.evidence_list import SHOWN, join_limited
from probes.queries.finding import Area, Evidence, Outcome, Severity, found, passed, unknown, unknown_without
from probes.queries.module_need import missing_modules
from probes.queries.modules import FILES, MODULES, PEERMEM, file_of, is_present, module_of, no_gpu_or_nic
from probes.queries.references import DRIVER_GUIDE
from probes.snapshot.examination import Examination

AREA = Area("modules")

_FILES = ("ib_core", "ib_uverbs", "mlx5_core", "mlx5_ib", "nvidia", "nvidia_uvm", PEERMEM)
_PACKAGES = (*DRIVER_PACKAGES, "mlnx-ofed-kernel")
_RELEASE, _DKMS = "the release of the running kernel", "/var/lib/dkms"


@AREA.check(
    "dkms-not-built-for-kernel",
    Severity.WARNING,
    "DKMS has not built a driver package for the running kernel",
    "dkms(8)",
    ok="DKMS has built its packages for the running kernel",
    impact="The modules of the package cannot be loaded on this kernel.",
)
def dkms_not_built_for_kernel(examination: Examination) -> Outcome:
    """Check for packages that DKMS built for other kernels only."""
    dkms, release = examination.dkms, examination.node.kernel_release
    if isinstance(dkms, Unknown):
        if dkms.reason is Reason.NOT_THERE:
            return passed(Evidence("/var/lib/dkms", "not there: DKMS is not used here"))
        return unknown_without(_DKMS, dkms)
    if isinstance(release, Unknown):
        return unknown_without(_RELEASE, release)
    ours = {one.name for one in dkms.modules if one.name in _PACKAGES}
    have = {one.name for one in dkms.modules if release in (*one.built, *one.installed)}
    elsewhere = {one.name: (*one.built, *one.installed) for one in dkms.modules if one.built or one.installed}
    late = sorted(
        name for name in ours - have if name in elsewhere and not _comes_otherwise(examination, name)
    )
    if not late:
        return passed(
            Evidence(_DKMS, f"{', '.join(sorted(ours)) or 'no driver package'}: built for {release}")
        )
    missing = missing_modules(examination)
    severity = (
        Severity.CRITICAL if not isinstance(missing, Unknown) and "nvidia" in missing else Severity.WARNING
    )
    return found(
        f"{', '.join(late)} was built for other kernels, not for {release}. Usually the kernel was updated "
        "and its headers were not installed.",
        *(
            Evidence(f"/var/lib/dkms/{name}", f"built for {join_limited(elsewhere[name], 4)}")
            for name in late
        ),
        fix=rebuild_plan(release),
        severity=severity,
        part_of=("dkms-build-failed",),
    )


def _comes_otherwise(examination: Examination, package: str) -> bool:
    """Return whether this kernel has the package's modules from elsewhere, so that DKMS does not matter."""
    module = module_of(examination, "ib_core" if package == "mlnx-ofed-kernel" else "nvidia")
    if isinstance(module, Unknown) or isinstance(module.origin, Unknown):
        return False
    return package != "mlnx-ofed-kernel" or module.origin != "kernel"


@AREA.check(
    "dkms-build-failed",
    Severity.WARNING,
    "A DKMS build failed",
    "dkms(8)",
    ok="No DKMS build failed",
    impact="The modules of the package are missing or old on this kernel.",
)
def dkms_build_failed(examination: Examination) -> Outcome:
    """Check for logs of failed builds, of packages without modules for the running kernel."""
    dkms, release = examination.dkms, examination.node.kernel_release
    if isinstance(dkms, Unknown):
        if dkms.reason is Reason.NOT_THERE:
            return passed(Evidence("/var/lib/dkms", "not there: DKMS is not used here"))
        return unknown_without(_DKMS, dkms)
    if isinstance(release, Unknown):
        return unknown_without(_RELEASE, release)
    done = {one.name for one in dkms.modules if release in (*one.built, *one.installed)}
    failed = [
        one
        for one in dkms.modules
        if one.name in _PACKAGES and one.failed_log is not None and one.name not in done
    ]
    if not failed:
        return passed(Evidence("/var/lib/dkms", "no log of a failed build"))
    return found(
        "The last lines of the build log say why. Missing kernel headers and another compiler than the "
        "kernel's are the usual reasons.",
        *(
            Evidence(one.failed_log or "", f"{one.name} {one.version}: not finished")
            for one in failed[:SHOWN]
        ),
        fix=rebuild_plan(release),
    )


@AREA.check(
    "driver-half-updated",
    Severity.WARNING,
    "The NVIDIA driver on disk is not the loaded version",
    DRIVER_GUIDE,
    ok="The loaded NVIDIA driver is the version on disk",
    impact="New CUDA programs can fail (driver/library version mismatch); no driver module can be loaded.",
)
def driver_half_updated(examination: Examination) -> Outcome:
    """Compare /sys/module/nvidia/version with modinfo."""
    versions = _driver_versions(examination)
    if isinstance(versions, Outcome):
        return versions
    loaded, on_disk = versions
    evidence = _version_evidence(loaded, on_disk)
    if loaded == on_disk:
        return passed(*evidence)
    steps = (
        *matching_fabric_manager(examination, on_disk),
        instruction("Drain the node: the driver can only be exchanged while nothing uses a GPU"),
        reboot_step(),
        instruction("Hold the driver packages so that they are not updated automatically"),
    )
    return found(
        f"Driver {on_disk} was installed while {loaded} was in use. It takes effect after a reboot.",
        *evidence,
        fix=Plan("Finish the driver update", steps, needs_reboot=True, disturbs=REBOOT_ENDS_JOBS),
        devices=("nvidia",),
    )


def _driver_versions(examination: Examination) -> tuple[str, str] | Outcome:
    """Return the driver's version as loaded and as on disk; else the outcome that says why not."""
    aside = no_gpu_or_nic(examination)
    if aside is not None:
        return aside
    nvidia = module_of(examination, "nvidia")
    if isinstance(nvidia, Unknown):
        return unknown_without(MODULES, nvidia)
    if not is_present(nvidia):
        return passed(Evidence("/proc/modules", "nvidia is not loaded"))
    if isinstance(nvidia.version, Unknown):
        return unknown_without("/sys/module/nvidia/version", nvidia.version)
    file = file_of(examination, "nvidia")
    on_disk = file if isinstance(file, Unknown) else file.version
    if isinstance(on_disk, Unknown):
        if on_disk.reason is Reason.NOT_THERE:
            return passed(Evidence("modinfo nvidia", "no file: a container may have loaded the driver"))
        return unknown_without(FILES, on_disk)
    return nvidia.version, on_disk


def _version_evidence(loaded: str, on_disk: str) -> tuple[Evidence, Evidence]:
    return Evidence("/sys/module/nvidia/version", loaded), Evidence("modinfo -F version nvidia", on_disk)


@AREA.check(
    "driver-upgrade-blocked",
    Severity.WARNING,
    "The loaded NVIDIA driver is in use and blocks the new one",
    DRIVER_GUIDE,
    ok="No driver update is waiting",
    impact="The new driver takes effect only after a reboot, or after everything that uses a GPU has ended.",
)
def driver_upgrade_blocked(examination: Examination) -> Outcome:
    """Check what uses the old driver; that is no fault while no other driver waits."""
    versions = _driver_versions(examination)
    if isinstance(versions, Outcome):
        return versions
    loaded, on_disk = versions
    if loaded == on_disk:
        return passed(*_version_evidence(loaded, on_disk))
    nvidia = module_of(examination, "nvidia")
    if isinstance(nvidia, Unknown) or isinstance(nvidia.refcnt, Unknown):
        return unknown("needs /sys/module/nvidia/refcnt")
    if not nvidia.refcnt:
        return passed(Evidence("/sys/module/nvidia/refcnt", "0: nothing uses the driver"))
    others = nvidia.refcnt - len(nvidia.used_by)
    users = [f"the modules {', '.join(nvidia.used_by)}"] if nvidia.used_by else []
    users += [f"{others} references of programs (nvidia-persistenced, Fabric Manager, DCGM, jobs)"] * (
        others > 0
    )
    return found(
        f"Driver {loaded} is in use by {' and '.join(users)}.",
        *_version_evidence(loaded, on_disk),
        Evidence("/sys/module/nvidia/refcnt", str(nvidia.refcnt)),
        fix=exchange_driver(examination, nvidia, on_disk),
        devices=("nvidia",),
        part_of=("driver-half-updated",),
    )


@AREA.check(
    "initramfs-stale",
    Severity.WARNING,
    "A loaded module differs from its file on disk",
    "update-initramfs(8), dracut(8); Linux Documentation/ABI/testing/sysfs-module (srcversion)",
    ok="The loaded modules are those on disk",
    impact="The next boot can load a different version of the module.",
)
def initramfs_stale(examination: Examination) -> Outcome:
    """Compare loaded modules with their files by srcversion: a stale initramfs, or an update since boot."""
    aside = no_gpu_or_nic(examination)
    if aside is not None:
        return aside
    differing = []
    for name in _FILES:
        module = module_of(examination, name)
        if isinstance(module, Unknown):
            return unknown_without(MODULES, module)
        if not is_present(module) or isinstance(module.srcversion, Unknown):
            continue
        file = file_of(examination, name)
        source = file if isinstance(file, Unknown) else file.srcversion
        if isinstance(source, Unknown):
            if source.reason is Reason.NOT_THERE:
                continue
            return unknown_without(FILES, source)
        version = file if isinstance(file, Unknown) else file.version
        if known(version, "") != known(module.version, ""):
            continue  # the whole driver was replaced: driver-half-updated reports it
        if source != module.srcversion:
            differing.append((name, module.srcversion, source))
    if not differing:
        return passed(Evidence("modinfo -F srcversion", "the loaded modules are those on disk"))
    release = known(examination.node.kernel_release, "")
    steps = (
        Step("Rebuild the initramfs (Debian, Ubuntu)", ("update-initramfs", "-u", "-k", release or "all")),
        instruction("On RPM distributions run `dracut -f` instead"),
        reboot_step(),
    )
    names = tuple(name for name, _, _ in differing)
    return found(
        f"{', '.join(names)} came from an initramfs that is older than the files on disk, or the files "
        "were replaced since the boot.",
        *(
            Evidence(
                f"/sys/module/{name}/srcversion", f"{loaded}, and modinfo -F srcversion {name}: {on_disk}"
            )
            for name, loaded, on_disk in differing[:SHOWN]
        ),
        fix=Plan(
            "Rebuild the initramfs", steps, reversible=False, needs_reboot=True, disturbs=REBOOT_ENDS_JOBS
        ),
        devices=names,
    )
