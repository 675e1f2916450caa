"""Module files that modprobe cannot use, modules that differ from the disk, and settings that boots miss."""

from __future__ import annotations

from probes.base.evidence import Evidence, Severity
from probes.base.plan import Step, make_plan
from probes.base.text import SHOWN, join_limited
from probes.base.unknown import Reason, Unknown, known, map_known
from probes.facts.kernel.boot import NextBootFacts, words_that_matter
from probes.facts.kernel.boot_loader import GRUB_SETTINGS
from probes.facts.kernel.module_files import DRIVER_PACKAGES, DkmsFacts, DkmsModule
from probes.facts.kernel.modules import PEERMEM
from probes.facts.pci.nic_families import CONNECTX
from probes.facts.system.platform import in_container
from probes.plans.boot import initramfs_step, settings_steps
from probes.plans.common import reboot_plan, reboot_step
from probes.plans.driver import exchange_driver, matching_fabric_manager, rebuild_plan
from probes.queries.finding import Area, Outcome, end_with, found, need, passed, unknown
from probes.queries.module_need import (
    GPU_MODULES,
    architecture_differs,
    is_spare,
    missing_modules,
    severity_of_missing,
    unusable_file,
)
from probes.queries.modules import FILES, MODULES, RELEASE, file_of, is_present, module_of, no_gpu_or_nic
from probes.snapshot.examination import Examination

AREA = Area("modules", __package__)


@AREA.critical("module-file-unusable")
def module_file_unusable(examination: Examination) -> Outcome:
    """Find files that modules.dep names and modinfo cannot read: gone, cut off, or no ELF file."""
    need(examination.module_files, FILES)
    missing = need(missing_modules(examination), MODULES)
    bad = {name: path for name in missing if (path := unusable_file(examination, name))}
    if not bad:
        return passed(Evidence("modinfo", "reads the file of every module that is not loaded"))
    release = known(examination.node.kernel_release, "")
    is_built = release and not bad.keys().isdisjoint(GPU_MODULES)
    return found(
        "The file was deleted or is damaged, and modules.dep still lists it: the module cannot be loaded.",
        *(Evidence(path, "listed in modules.dep, not readable by modinfo") for path in bad.values()),
        fix=rebuild_plan(examination, release, has_bad_files=True) if is_built else None,
        severity=severity_of_missing(examination, tuple(bad)),
        devices=tuple(bad),
    )


@AREA.critical("module-wrong-architecture")
def module_wrong_architecture(examination: Examination) -> Outcome:
    """Compare the architecture in each file's vermagic with the CPU's."""
    architecture = map_known(examination.node.platform, lambda platform: platform.cpu_architecture)
    cpu = need(architecture, "the CPU architecture")
    files = need(need(examination.module_files, FILES).files, FILES)
    other = {name: file for name, file in files.items() if architecture_differs(examination, file) is True}
    if not other:
        return passed(Evidence("modinfo -F vermagic", f"{cpu}, like the CPU"))
    return found(
        f"The kernel refuses them with “Exec format error”: this CPU is {cpu}.",
        *(Evidence(file.path, str(file.architecture)) for file in list(other.values())[:4]),
        fix=make_plan("Install the system for this architecture", f"Build or download the image for {cpu}"),
        devices=tuple(other),
    )


@AREA.critical("modules-index-missing")
def modules_index_missing(examination: Examination) -> Outcome:
    """Find a node whose modules are not loaded and cannot be, because depmod never ran for its kernel."""
    release = need(examination.node.kernel_release, "the kernel release")
    path = f"/lib/modules/{release}/modules.dep"
    if in_container(examination.node.platform):
        return passed(Evidence(path, "a container does not load modules"))
    gone = [name for name in need(missing_modules(examination), MODULES) if _has_no_index(examination, name)]
    if not gone:
        return passed(Evidence(path, "found, or every module is loaded"))
    return found(
        f"depmod has not run for {release}, so modprobe cannot find {', '.join(gone[:4])}.",
        Evidence(path, "not found"),
        fix=make_plan("Index the modules", Step("Write modules.dep", ("depmod", "-a", release))),
        devices=tuple(gone),
    )


def _has_no_index(examination: Examination, name: str) -> bool:
    module = module_of(examination, name)
    if isinstance(module, Unknown) or not isinstance(module.on_disk, Unknown):
        return False
    return module.on_disk.reason is Reason.FILE_MISSING


_FILES = ("ib_core", "ib_uverbs", *CONNECTX.modules, "nvidia", "nvidia_uvm", PEERMEM)
_PACKAGES = (*DRIVER_PACKAGES, "mlnx-ofed-kernel")
_DKMS, _LOADED_VERSION = "/var/lib/dkms", "/sys/module/nvidia/version"


def _dkms(examination: Examination) -> tuple[DkmsFacts, str]:
    """Return what DKMS built and the running kernel's release; end the check where DKMS is not used."""
    absent = Evidence(_DKMS, "not found: DKMS is not in use")
    return need(examination.dkms, _DKMS, absent=absent), need(examination.node.kernel_release, RELEASE)


@AREA.warning("dkms-not-built-for-kernel")
def dkms_not_built_for_kernel(examination: Examination) -> Outcome:
    """Check for packages that DKMS built only for other kernels."""
    dkms, release = _dkms(examination)
    ours = {package.name for package in dkms.modules if package.name in _PACKAGES}
    built = {package.name for package in dkms.modules if _is_built_for(package, release)}
    elsewhere = {
        package.name: (*package.built, *package.installed)
        for package in dkms.modules
        if package.built or package.installed
    }
    stale = (ours - built) & elsewhere.keys()
    late = sorted(name for name in stale if not _has_other_source(examination, name))
    if not late:
        names = ", ".join(sorted(ours)) or "no driver package"
        return passed(Evidence(_DKMS, f"{names}: built for {release}"))
    missing = missing_modules(examination)
    has_no_driver = not isinstance(missing, Unknown) and "nvidia" in missing
    return found(
        f"{', '.join(late)} was built for other kernels, not for {release}. This usually means that the "
        "kernel was updated without its headers.",
        *(Evidence(f"{_DKMS}/{name}", f"built for {join_limited(elsewhere[name], 4)}") for name in late),
        fix=rebuild_plan(examination, release),
        severity=Severity.CRITICAL if has_no_driver else Severity.WARNING,
        part_of=("dkms-build-failed",),
    )


def _is_built_for(package: DkmsModule, release: str) -> bool:
    return release in (*package.built, *package.installed)


def _has_other_source(examination: Examination, package: str) -> bool:
    """Return whether this kernel has the package's modules from elsewhere, so that DKMS does not matter."""
    module = module_of(examination, "ib_core" if package == "mlnx-ofed-kernel" else "nvidia")
    if isinstance(module, Unknown) or isinstance(module.origin, Unknown):
        return False
    return package != "mlnx-ofed-kernel" or module.origin != "kernel"


@AREA.warning("dkms-build-failed")
def dkms_build_failed(examination: Examination) -> Outcome:
    """Check for logs of failed builds, of packages without modules for the running kernel."""
    dkms, release = _dkms(examination)
    built = {package.name for package in dkms.modules if _is_built_for(package, release)}
    failed = [
        package
        for package in dkms.modules
        if package.name in _PACKAGES and package.failed_log is not None and package.name not in built
    ]
    if not failed:
        return passed(Evidence(_DKMS, "no log of a failed build"))
    return found(
        "The last lines of the build log show why. The usual reasons are missing kernel headers and a "
        "compiler that differs from the kernel's.",
        *(
            Evidence(package.failed_log or "", f"{package.name} {package.version}: not finished")
            for package in failed[:SHOWN]
        ),
        fix=rebuild_plan(examination, release),
    )


@AREA.warning("driver-half-updated")
def driver_half_updated(examination: Examination) -> Outcome:
    """Compare /sys/module/nvidia/version with modinfo."""
    loaded, on_disk = _driver_versions(examination)
    evidence = _version_evidence(loaded, on_disk)
    if loaded == on_disk:
        return passed(*evidence)
    return found(
        f"Driver {on_disk} was installed while {loaded} was in use. It takes effect after a reboot.",
        *evidence,
        fix=reboot_plan(
            "Finish the driver update",
            *matching_fabric_manager(examination, on_disk),
            "Drain the node. The driver can be replaced only while nothing uses a GPU.",
            reboot_step(),
            "Hold the driver packages so that they are not updated automatically",
        ),
        devices=("nvidia",),
    )


def _driver_versions(examination: Examination) -> tuple[str, str]:
    """Return the driver's version as loaded and as on disk, or end the check."""
    end_with(no_gpu_or_nic(examination))
    nvidia = need(module_of(examination, "nvidia"), MODULES)
    if not is_present(nvidia):
        end_with(passed(Evidence("/proc/modules", "nvidia is not loaded")))
    loaded = need(nvidia.version, _LOADED_VERSION)
    no_file = Evidence("modinfo nvidia", "no file: a container may have loaded the driver")
    on_disk = map_known(file_of(examination, "nvidia"), lambda file: file.version)
    return loaded, need(on_disk, FILES, absent=no_file)


def _version_evidence(loaded: str, on_disk: str) -> tuple[Evidence, Evidence]:
    return Evidence(_LOADED_VERSION, loaded), Evidence("modinfo -F version nvidia", on_disk)


@AREA.warning("driver-upgrade-blocked")
def driver_upgrade_blocked(examination: Examination) -> Outcome:
    """Check what uses the old driver; that is no fault while no other driver is installed."""
    loaded, on_disk = _driver_versions(examination)
    if loaded == on_disk:
        return passed(*_version_evidence(loaded, on_disk))
    nvidia = module_of(examination, "nvidia")
    if isinstance(nvidia, Unknown) or isinstance(nvidia.refcnt, Unknown):
        return unknown("needs /sys/module/nvidia/refcnt")
    if not nvidia.refcnt:
        return passed(Evidence("/sys/module/nvidia/refcnt", "0: nothing uses the driver"))
    others = nvidia.refcnt - len(nvidia.used_by)
    users = [f"the modules {', '.join(nvidia.used_by)}"] if nvidia.used_by else []
    if others > 0:
        users.append(f"{others} references from programs (nvidia-persistenced, Fabric Manager, DCGM, jobs)")
    return found(
        f"Driver {loaded} is in use by {' and '.join(users)}.",
        *_version_evidence(loaded, on_disk),
        Evidence("/sys/module/nvidia/refcnt", str(nvidia.refcnt)),
        fix=exchange_driver(examination, nvidia, on_disk),
        devices=("nvidia",),
        part_of=("driver-half-updated",),
    )


@AREA.warning("initramfs-stale")
def initramfs_stale(examination: Examination) -> Outcome:
    """Compare loaded modules with their files by srcversion: a stale initramfs, or an update since boot."""
    end_with(no_gpu_or_nic(examination))
    differing = []
    for name in _FILES:
        module = need(module_of(examination, name), MODULES)
        if not is_present(module) or isinstance(module.srcversion, Unknown):
            continue
        file = file_of(examination, name)
        source = map_known(file, lambda file: file.srcversion)
        if isinstance(source, Unknown) and source.reason is Reason.NOT_THERE:
            continue
        on_disk = need(source, FILES)
        if known(map_known(file, lambda file: file.version), "") != known(module.version, ""):
            continue  # the whole driver was replaced: driver-half-updated reports it
        if on_disk != module.srcversion:
            differing.append((name, module.srcversion, on_disk))
    if not differing:
        return passed(Evidence("modinfo -F srcversion", "the loaded modules match their files on disk"))
    names = tuple(name for name, _, _ in differing)
    is_ofed = not {"ib_core", "ib_uverbs"}.isdisjoint(names)
    versions = [
        Evidence(f"/sys/module/{name}/srcversion", f"{loaded}, and modinfo -F srcversion {name}: {on_disk}")
        for name, loaded, on_disk in differing
    ]
    return found(
        f"{', '.join(names)} came from an initramfs that is older than the files on disk, or the files "
        "were replaced since boot.",
        *versions[:SHOWN],
        fix=reboot_plan("Rebuild the initramfs", initramfs_step(examination), reboot_step()),
        devices=names,
        # With another OFED on disk, a reboot before nvidia_peermem is rebuilt would end the path.
        part_of=("peermem-symbol-version-mismatch",) if is_ofed and not is_spare(examination) else (),
    )


# What keeps a boot from using its configuration: only a forecast looks at it.

NEXT_BOOT = Area("system", __package__)
_NOT_ASKED = Evidence("gdrtop forecast", "predicts the next boot")


def _facts(examination: Examination) -> NextBootFacts:
    """Return the facts of the boot that is forecast; end the check on a node that runs."""
    if examination.next_boot is None:
        end_with(passed(_NOT_ASKED))
    assert examination.next_boot is not None
    return examination.next_boot


@NEXT_BOOT.warning("boot-settings-not-written")
def boot_settings_not_written(examination: Examination) -> Outcome:
    """Compare the options of /etc/default/grub with the entry of the kernel."""
    facts = _facts(examination)
    source = Evidence(GRUB_SETTINGS, "not used by this boot loader")
    options = need(facts.configured, GRUB_SETTINGS, absent=source)
    line = need(facts.line, "the boot entry", absent=Evidence("grub.cfg", "no entry for this kernel"))
    later = words_that_matter(line.line)
    forgotten = [word for word in words_that_matter(options) if word not in later]
    if not forgotten:
        return passed(Evidence(line.source, " ".join(later) or "no IOMMU, PCI or module options"))
    return found(
        "The settings were edited after the configuration was written.",
        Evidence(GRUB_SETTINGS, " ".join(forgotten)),
        Evidence(line.source, " ".join(later) or "no IOMMU, PCI or module options"),
        fix=make_plan("Regenerate GRUB's configuration", *settings_steps(examination, forgotten)),
    )


@NEXT_BOOT.warning("boot-image-older-than-settings")
def boot_image_older_than_settings(examination: Examination) -> Outcome:
    """Compare the age of the initial RAM disk with the files of modprobe.d that it contains."""
    facts = _facts(examination)
    none = Evidence("/boot", "no initial RAM disk under the usual names, or its age is not shown")
    newer = need(facts.newer, "the age of the boot image", absent=none)
    image = need(facts.image, "the boot image", absent=none)
    if not newer:
        return passed(Evidence(f"stat {image}", "newer than every setting"))
    return found(
        "It was built before the settings changed, and contains a copy of the old ones.",
        *(Evidence(f"stat {path}", f"newer than {image}") for path in newer[:4]),
        fix=make_plan("Rebuild the boot image", initramfs_step(examination)),
    )
