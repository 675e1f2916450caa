"""Modules that were not built, or that are not those on disk: DKMS, half an update, an old boot image."""

from __future__ import annotations

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.module_facts import PEERMEM, file_of, is_present, module_of, no_pair
from probes.checks.module_need import missing_modules
from probes.checks.references import DRIVER_GUIDE
from probes.checks.wording import SHOWN
from probes.dkms import DRIVER_PACKAGES
from probes.examination import Examination
from probes.plan import Plan, Step, instruction
from probes.plans.driver_exchange import exchange_driver, matching_fabric_manager
from probes.plans.interruptions import REBOOT_ENDS_JOBS, reboot_step
from probes.plans.rebuilding import rebuild_plan
from probes.unknown import Reason, Unknown, known

AREA = Area("modules")

_FILES = ("ib_core", "ib_uverbs", "mlx5_core", "mlx5_ib", "nvidia", "nvidia_uvm", PEERMEM)


@AREA.check(
    "dkms-not-built-for-kernel",
    Severity.WARNING,
    "DKMS has not built a package of modules for the running kernel",
    "dkms(8)",
)
def dkms_not_built_for_kernel(examination: Examination) -> Outcome:
    """Packages that DKMS built for other kernels only; as a rule a kernel update without its headers."""
    dkms, release = examination.dkms, examination.node.kernel_release
    if isinstance(dkms, Unknown):
        if dkms.reason is Reason.NOT_THERE:
            return passed(Evidence("/var/lib/dkms", "not there: no DKMS, or nothing built with it"))
        return unsure(f"/var/lib/dkms: {dkms}")
    if isinstance(release, Unknown):
        return unsure(f"which kernel is running is unknown: {release}")
    ours = {one.name for one in dkms.modules if one.name in _PACKAGES}
    have = {one.name for one in dkms.modules if release in (*one.built, *one.installed)}
    elsewhere = {one.name: (*one.built, *one.installed) for one in dkms.modules if one.built or one.installed}
    late = sorted(
        name for name in ours - have if name in elsewhere and not _comes_otherwise(examination, name)
    )
    if not late:
        return passed(
            Evidence("/var/lib/dkms", f"{', '.join(sorted(ours)) or 'nothing of ours'}: built for {release}")
        )
    missing = missing_modules(examination)
    severity = (
        Severity.CRITICAL if not isinstance(missing, Unknown) and "nvidia" in missing else Severity.WARNING
    )
    return found(
        f"{', '.join(late)} was built for other kernels, and not for {release}: "
        "as a rule the kernel was updated and its headers were not installed",
        *(Evidence(f"/var/lib/dkms/{name}", f"built for {', '.join(elsewhere[name][:4])}") for name in late),
        fix=rebuild_plan(release),
        severity=severity,
    )


def _comes_otherwise(examination: Examination, package: str) -> bool:
    """Whether this kernel has the package's modules ready-made: DKMS is then a remainder of former times."""
    module = module_of(examination, "ib_core" if package == "mlnx-ofed-kernel" else "nvidia")
    if isinstance(module, Unknown) or isinstance(module.origin, Unknown):
        return False
    return package != "mlnx-ofed-kernel" or module.origin != "kernel"


_PACKAGES = (*DRIVER_PACKAGES, "mlnx-ofed-kernel")


@AREA.check(
    "dkms-build-failed",
    Severity.WARNING,
    "a DKMS build did not come to its end",
    "dkms(8)",
)
def dkms_build_failed(examination: Examination) -> Outcome:
    """Logs of builds that failed, of packages that have no modules for the running kernel."""
    dkms, release = examination.dkms, examination.node.kernel_release
    if isinstance(dkms, Unknown):
        if dkms.reason is Reason.NOT_THERE:
            return passed(Evidence("/var/lib/dkms", "not there: no DKMS, or nothing built with it"))
        return unsure(f"/var/lib/dkms: {dkms}")
    if isinstance(release, Unknown):
        return unsure(f"which kernel is running is unknown: {release}")
    done = {one.name for one in dkms.modules if release in (*one.built, *one.installed)}
    failed = [
        one
        for one in dkms.modules
        if one.name in _PACKAGES and one.failed_log is not None and one.name not in done
    ]
    if not failed:
        return passed(Evidence("/var/lib/dkms", "no log of a build that failed"))
    return found(
        "the build of the modules ended with an error; the end of its log says why "
        "(often missing headers, or another compiler than the kernel's)",
        *(
            Evidence(one.failed_log or "", f"{one.name} {one.version}: not finished")
            for one in failed[:SHOWN]
        ),
        fix=rebuild_plan(release),
    )


@AREA.check(
    "driver-half-updated",
    Severity.WARNING,
    "the NVIDIA driver on disk is another one than the driver that is loaded",
    DRIVER_GUIDE,
)
def driver_half_updated(examination: Examination) -> Outcome:
    """/sys/module/nvidia/version beside modinfo's."""
    versions = _driver_versions(examination)
    if isinstance(versions, Outcome):
        return versions
    loaded, on_disk = versions
    evidence = _version_evidence(loaded, on_disk)
    if loaded == on_disk:
        return passed(*evidence)
    steps = (
        *matching_fabric_manager(examination, on_disk),
        instruction("drain the node: the driver can only be exchanged while nothing uses a GPU"),
        reboot_step(),
        instruction("hold the driver's packages, so that no update comes by itself", needs_root=True),
    )
    return found(
        f"driver {on_disk} was installed and {loaded} still runs: new programs meet a driver of another "
        "version, and modules that are loaded now do not fit",
        *evidence,
        fix=Plan("Finish the update of the driver", steps, needs_reboot=True, disturbs=REBOOT_ENDS_JOBS),
        devices=("nvidia",),
    )


def _driver_versions(examination: Examination) -> tuple[str, str] | Outcome:
    """The driver's version as loaded and as on disk; else why that is no question here."""
    aside = no_pair(examination)
    if aside is not None:
        return aside
    nvidia = module_of(examination, "nvidia")
    if isinstance(nvidia, Unknown):
        return unsure(f"whether the driver is loaded is unknown: {nvidia}")
    if not is_present(nvidia):
        return passed(Evidence("/proc/modules", "nvidia is not loaded"))
    if isinstance(nvidia.version, Unknown):
        return unsure(f"/sys/module/nvidia/version: {nvidia.version}")
    file = file_of(examination, "nvidia")
    on_disk = file if isinstance(file, Unknown) else file.version
    if isinstance(on_disk, Unknown):
        if on_disk.reason is Reason.NOT_THERE:
            return passed(Evidence("modinfo nvidia", "no file: a container may have loaded the driver"))
        return unsure(f"which driver is on disk is unknown: {on_disk}")
    return nvidia.version, on_disk


def _version_evidence(loaded: str, on_disk: str) -> tuple[Evidence, Evidence]:
    return Evidence("/sys/module/nvidia/version", loaded), Evidence("modinfo -F version nvidia", on_disk)


@AREA.check(
    "driver-upgrade-blocked",
    Severity.WARNING,
    "a new NVIDIA driver waits on disk, and the old one cannot be unloaded",
    DRIVER_GUIDE,
)
def driver_upgrade_blocked(examination: Examination) -> Outcome:
    """Who holds the old driver; that it is held is no fault while no other one waits."""
    versions = _driver_versions(examination)
    if isinstance(versions, Outcome):
        return versions
    loaded, on_disk = versions
    if loaded == on_disk:
        return passed(*_version_evidence(loaded, on_disk))
    nvidia = module_of(examination, "nvidia")
    if isinstance(nvidia, Unknown) or isinstance(nvidia.refcnt, Unknown):
        return unsure("who holds the driver is unknown: /sys/module/nvidia/refcnt cannot be read")
    if not nvidia.refcnt:
        return passed(Evidence("/sys/module/nvidia/refcnt", "0: nothing holds the driver"))
    others = nvidia.refcnt - len(nvidia.used_by)
    held = [f"modules {', '.join(nvidia.used_by)}"] if nvidia.used_by else []
    held += [f"{others} more references of programs (nvidia-persistenced, Fabric Manager, DCGM, jobs)"] * (
        others > 0
    )
    return found(
        f"driver {loaded} is held by {' and '.join(held)}",
        *_version_evidence(loaded, on_disk),
        Evidence("/sys/module/nvidia/refcnt", str(nvidia.refcnt)),
        fix=exchange_driver(examination, nvidia, on_disk),
        devices=("nvidia", *nvidia.used_by[:SHOWN]),
    )


@AREA.check(
    "initramfs-stale",
    Severity.WARNING,
    "a module that is loaded is another one than the file on disk",
    "update-initramfs(8), dracut(8); Linux Documentation/ABI/testing/sysfs-module (srcversion)",
)
def initramfs_stale(examination: Examination) -> Outcome:
    """Loaded modules beside their files, by srcversion: a stale boot image, or an update since boot."""
    aside = no_pair(examination)
    if aside is not None:
        return aside
    differing = []
    for name in _FILES:
        module = module_of(examination, name)
        if isinstance(module, Unknown):
            return unsure(f"whether {name} is loaded is unknown: {module}")
        if not is_present(module) or isinstance(module.srcversion, Unknown):
            continue
        file = file_of(examination, name)
        source = file if isinstance(file, Unknown) else file.srcversion
        if isinstance(source, Unknown):
            if source.reason is Reason.NOT_THERE:
                continue
            return unsure(f"what is on disk is unknown: {source}")
        version = file if isinstance(file, Unknown) else file.version
        if known(version, "") != known(module.version, ""):
            continue  # a driver that was exchanged as a whole: driver-half-updated says so
        if source != module.srcversion:
            differing.append((name, module.srcversion, source))
    if not differing:
        return passed(Evidence("modinfo -F srcversion", "what is loaded is what is on disk"))
    release = known(examination.node.kernel_release, "")
    steps = (
        Step("rebuilds the boot image (Debian, Ubuntu)", ("update-initramfs", "-u", "-k", release or "all")),
        instruction("on RPM distributions: `dracut -f` in its place"),
        reboot_step(),
    )
    names = tuple(name for name, _, _ in differing)
    return found(
        f"{', '.join(names)} came from the boot image, which is older than the files on disk, "
        "or the files were replaced since the boot; the next boot may load the one or the other",
        *(
            Evidence(
                f"/sys/module/{name}/srcversion", f"{loaded}, and modinfo -F srcversion {name}: {on_disk}"
            )
            for name, loaded, on_disk in differing[:SHOWN]
        ),
        fix=Plan(
            "Rebuild the boot image", steps, reversible=False, needs_reboot=True, disturbs=REBOOT_ENDS_JOBS
        ),
        devices=names,
    )
