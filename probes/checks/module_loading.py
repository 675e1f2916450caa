"""Why the kernel does not take a module, or has another one than lies on disk."""

from __future__ import annotations

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.module_facts import (
    PEERMEM,
    SHOWN,
    Need,
    file_of,
    gpu_functions,
    is_present,
    log_needed,
    log_of,
    log_seen,
    mlx5_functions,
    module_of,
    need_of_peermem,
)
from probes.examination import Examination
from probes.kernel_log import LogKind
from probes.module_files import ModuleFile
from probes.plan import Plan, Step, instruction
from probes.services import ServiceState
from probes.unknown import Maybe, Reason, Unknown, known

AREA = Area("modules")

_SIGNING = "Linux Documentation/admin-guide/module-signing.rst"
_GPU_MODULES = ("nvidia", "nvidia_uvm")
_RDMA_MODULES = ("ib_core", "ib_uverbs", "mlx5_core", "mlx5_ib")
_FILES = (*_RDMA_MODULES, *_GPU_MODULES, PEERMEM)
_REBOOT = Step("starts the kernel anew", ("systemctl", "reboot"))
_ENDS_JOBS = "a reboot ends every job"


def _missing(examination: Examination) -> Maybe[tuple[str, ...]]:
    """The modules that are not loaded though this node needs them; nvidia_peermem as far as it is needed."""
    absent = []
    concerned = ((_GPU_MODULES, gpu_functions(examination)), (_RDMA_MODULES, mlx5_functions(examination)))
    for names, devices in concerned:
        if isinstance(devices, Unknown):
            return devices
        absent += list(names) if devices else []
    need = need_of_peermem(examination)
    if need is not Need.NOT_NEEDED:
        absent.append(PEERMEM)
    left = []
    for name in absent:
        module = module_of(examination, name)
        if isinstance(module, Unknown):
            return module
        if not is_present(module):
            left.append(name)
    return tuple(left)


def _cost(examination: Examination, names: tuple[str, ...]) -> Severity:
    """What it costs that these are not loaded."""
    if any(name != PEERMEM for name in names):
        return Severity.CRITICAL
    need = need_of_peermem(examination)
    if isinstance(need, Unknown):
        return Severity.WARNING
    return Severity.CRITICAL if need is Need.NEEDED else Severity.NOTE


@AREA.check(
    "kernel-forbids-modules-disabled",
    Severity.CRITICAL,
    "kernel.modules_disabled is on: no module can be loaded or unloaded until a reboot",
    "Linux Documentation/admin-guide/sysctl/kernel.rst, modules_disabled",
)
def kernel_forbids_modules_disabled(examination: Examination) -> Outcome:
    """The sysctl that hardening scripts set; a note while everything that is needed is loaded."""
    path = "/proc/sys/kernel/modules_disabled"
    kernel = examination.node.kernel
    disabled = kernel if isinstance(kernel, Unknown) else kernel.modules_disabled
    if isinstance(disabled, Unknown):
        if disabled.reason is Reason.NOT_THERE:
            return passed(Evidence(path, "not there: a kernel without this switch"))
        return unsure(f"{path}: {disabled}")
    if not disabled:
        return passed(Evidence(path, "0"))
    missing = _missing(examination)
    if isinstance(missing, Unknown):
        return unsure(f"which modules are missing is unknown: {missing}", Evidence(path, "1"))
    steps = (
        instruction(
            "remove kernel.modules_disabled from /etc/sysctl.d, or set it after the modules are loaded"
        ),
        _REBOOT,
    )
    without = f"{', '.join(missing)} cannot be loaded any more" if missing else "what is needed is loaded"
    return found(
        f"kernel.modules_disabled was set to 1, and only a reboot takes it back: {without}",
        Evidence(path, "1"),
        fix=Plan("Allow modules again", steps, needs_reboot=True, disturbs=_ENDS_JOBS),
        severity=_cost(examination, missing) if missing else Severity.NOTE,
        devices=missing,
    )


def _unsigned(examination: Examination) -> Maybe[tuple[ModuleFile, ...]]:
    """The files without a signature of modules that are missing."""
    missing = _missing(examination)
    if isinstance(missing, Unknown):
        return missing
    files = []
    for name in missing:
        file = file_of(examination, name)
        if isinstance(file, Unknown):
            if file.reason is Reason.NOT_THERE:
                continue
            return file
        if isinstance(file.signer, Unknown) and file.signer.reason is Reason.NOT_THERE:
            files.append(file)
    return tuple(files)


def _sign_plan() -> Plan:
    steps = (
        instruction("sign the modules: rebuild them with DKMS, which signs with its own key"),
        Step(
            "asks the firmware to trust DKMS's key (/var/lib/shim-signed/mok/MOK.der on Debian and Ubuntu)",
            ("mokutil", "--import", "/var/lib/dkms/mok.pub"),
            undo=("mokutil", "--revoke-import"),
        ),
        _REBOOT,
        instruction("enrol the key at the console when the machine starts; or switch Secure Boot off"),
    )
    return Plan(
        "Sign the modules and enrol the key",
        steps,
        needs_reboot=True,
        disturbs=_ENDS_JOBS,
        note="somebody has to be at the console while it boots",
    )


def _refused_unsigned(examination: Examination, refuses: Evidence, cause: str) -> Outcome:
    files = _unsigned(examination)
    if isinstance(files, Unknown):
        return unsure(f"which modules are unsigned is unknown: {files}", refuses)
    if not files:
        return passed(refuses, Evidence("modinfo", "no module that is missing is unsigned"))
    names = tuple(file.name for file in files)
    return found(
        f"{cause}: {', '.join(names)} cannot be loaded",
        refuses,
        *(Evidence(f"modinfo -F signer {file.name}", "nothing: unsigned") for file in files[:SHOWN]),
        fix=_sign_plan(),
        severity=_cost(examination, names),
        devices=names,
    )


@AREA.check(
    "kernel-forbids-modules-lockdown",
    Severity.CRITICAL,
    "kernel lockdown refuses a module that is not signed",
    "kernel_lockdown(7)",
)
def kernel_forbids_modules_lockdown(examination: Examination) -> Outcome:
    """Lockdown, and modules that are missing and unsigned."""
    path = "/sys/kernel/security/lockdown"
    kernel = examination.node.kernel
    mode = kernel if isinstance(kernel, Unknown) else kernel.lockdown
    if isinstance(mode, Unknown):
        if mode.reason is Reason.NOT_THERE and not isinstance(kernel, Unknown):
            return passed(
                Evidence(path, "not there: a kernel without lockdown, or securityfs is not mounted")
            )
        return unsure(f"{path}: {mode}")
    if mode == "none":
        return passed(Evidence(path, "none"))
    return _refused_unsigned(
        examination,
        Evidence(path, f"[{mode}]"),
        f"the kernel is locked down ({mode}) and takes signed modules only",
    )


@AREA.check(
    "secure-boot-unsigned",
    Severity.CRITICAL,
    "the kernel enforces signatures, and a module that is needed has none",
    _SIGNING,
)
def secure_boot_unsigned(examination: Examination) -> Outcome:
    """sig_enforce, and modules that are missing and unsigned."""
    path = "/sys/module/module/parameters/sig_enforce"
    kernel = examination.node.kernel
    enforced = kernel if isinstance(kernel, Unknown) else kernel.signatures_enforced
    if isinstance(enforced, Unknown):
        if enforced.reason is Reason.NOT_THERE:
            return passed(Evidence(path, "not there: a kernel without module signatures"))
        return unsure(f"{path}: {enforced}")
    if not enforced:
        return passed(Evidence(path, "N"))
    return _refused_unsigned(
        examination, Evidence(path, "Y"), "only modules with a trusted signature are loaded"
    )


@AREA.check(
    "secure-boot-key-rejected",
    Severity.CRITICAL,
    "the kernel rejected a module's signature (`Key was rejected by service`)",
    _SIGNING,
)
def secure_boot_key_rejected(examination: Examination) -> Outcome:
    """What the kernel said about signatures; it does not say of which module."""
    missing = _missing(examination)
    if isinstance(missing, Unknown):
        return unsure(f"which modules are missing is unknown: {missing}")
    if not missing:
        return passed(Evidence("/proc/modules", "every module that is needed is loaded"))
    messages = log_of(examination, (LogKind.SIGNATURE_REJECTED,))
    if isinstance(messages, Unknown):
        return log_needed(messages, "Loading of module … is rejected")
    if not messages:
        return passed(*log_seen(examination, messages))
    return found(
        f"a module was refused for its signature, and {', '.join(missing)} is not loaded: "
        "it is unsigned, or its key is not enrolled",
        *log_seen(examination, messages),
        fix=_sign_plan(),
        severity=_cost(examination, missing),
        devices=missing,
    )


def _rebuild_plan(release: str) -> Plan:
    steps = (
        instruction("install the headers of the running kernel (linux-headers-…, kernel-devel-…)"),
        Step("builds every DKMS module for this kernel", ("dkms", "autoinstall", "-k", release)),
        Step("writes down what there is", ("depmod", "-a", release)),
    )
    return Plan(
        "Build the modules for this kernel",
        steps,
        reversible=False,
        note="load the modules afterwards; a driver that is loaded already stays until a reboot",
    )


@AREA.check(
    "module-wrong-vermagic",
    Severity.CRITICAL,
    "a module file was built for another kernel (`Exec format error`)",
    "modinfo(8); Linux Documentation/kbuild/modules.rst",
)
def module_wrong_vermagic(examination: Examination) -> Outcome:
    """The vermagic of the files whose modules are missing, and what the kernel said."""
    kernel = examination.node.kernel
    release = kernel if isinstance(kernel, Unknown) else kernel.release
    if isinstance(release, Unknown):
        return unsure(f"which kernel is running is unknown: {release}")
    missing = _missing(examination)
    if isinstance(missing, Unknown):
        return unsure(f"which modules are missing is unknown: {missing}")
    evidence = []
    for name in missing:
        file = file_of(examination, name)
        if isinstance(file, Unknown):
            if file.reason is not Reason.NOT_THERE:
                return unsure(f"for which kernel the modules were built is unknown: {file}")
            continue
        # Red Hat's weak-updates are modules of an older kernel that fit this one by their symbols.
        other = not isinstance(file.kernel, Unknown) and file.kernel != release
        if other and "/weak-updates/" not in file.path:
            evidence.append(
                (name, Evidence(f"modinfo -F vermagic {name}", f"{file.kernel}, and this is {release}"))
            )
    if not evidence:
        return passed(
            Evidence("modinfo -F vermagic", f"no missing module was built for another kernel than {release}")
        )
    names = tuple(name for name, _ in evidence)
    return found(
        f"the file of {', '.join(names)} below /lib/modules/{release} was built for another kernel: "
        "a copied file, or a ready-made package for another one",
        *(seen for _, seen in evidence[:SHOWN]),
        fix=_rebuild_plan(release),
        severity=_cost(examination, names),
        devices=names,
    )


@AREA.check(
    "dkms-not-built-for-kernel",
    Severity.WARNING,
    "DKMS has not built a package of modules for the running kernel",
    "dkms(8)",
)
def dkms_not_built_for_kernel(examination: Examination) -> Outcome:
    """Packages that DKMS built for other kernels only; as a rule a kernel update without its headers."""
    dkms, kernel = examination.dkms, examination.node.kernel
    release = kernel if isinstance(kernel, Unknown) else kernel.release
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
    missing = _missing(examination)
    severity = (
        Severity.CRITICAL if not isinstance(missing, Unknown) and "nvidia" in missing else Severity.WARNING
    )
    return found(
        f"{', '.join(late)} was built for other kernels, and not for {release}: "
        "as a rule the kernel was updated and its headers were not installed",
        *(Evidence(f"/var/lib/dkms/{name}", f"built for {', '.join(elsewhere[name][:4])}") for name in late),
        fix=_rebuild_plan(release),
        severity=severity,
    )


def _comes_otherwise(examination: Examination, package: str) -> bool:
    """Whether this kernel has the package's modules ready-made: DKMS is then a remainder of former times."""
    module = module_of(examination, "ib_core" if package == "mlnx-ofed-kernel" else "nvidia")
    if isinstance(module, Unknown) or isinstance(module.origin, Unknown):
        return False
    return package != "mlnx-ofed-kernel" or module.origin != "kernel"


_PACKAGES = ("nvidia", "nvidia-open", "nvidia-srv", "nvidia-current", "mlnx-ofed-kernel")


@AREA.check(
    "dkms-build-failed",
    Severity.WARNING,
    "a DKMS build did not come to its end",
    "dkms(8)",
)
def dkms_build_failed(examination: Examination) -> Outcome:
    """Logs of builds that failed, of packages that have no modules for the running kernel."""
    dkms, kernel = examination.dkms, examination.node.kernel
    if isinstance(dkms, Unknown):
        if dkms.reason is Reason.NOT_THERE:
            return passed(Evidence("/var/lib/dkms", "not there: no DKMS, or nothing built with it"))
        return unsure(f"/var/lib/dkms: {dkms}")
    release = kernel if isinstance(kernel, Unknown) else kernel.release
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
        fix=_rebuild_plan(release),
    )


@AREA.check(
    "driver-half-updated",
    Severity.WARNING,
    "the NVIDIA driver on disk is another one than the driver that is loaded",
    "NVIDIA driver installation guide, https://docs.nvidia.com/datacenter/tesla/",
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
        instruction("drain the node: the driver can only be exchanged while nothing uses a GPU"),
        _REBOOT,
        instruction("hold the driver's packages, so that no update comes by itself", needs_root=True),
    )
    return found(
        f"driver {on_disk} was installed and {loaded} still runs: new programs meet a driver of another "
        "version, and modules that are loaded now do not fit",
        *evidence,
        fix=Plan("Finish the update of the driver", steps, needs_reboot=True, disturbs=_ENDS_JOBS),
        devices=("nvidia",),
    )


def _driver_versions(examination: Examination) -> tuple[str, str] | Outcome:
    """The driver's version as loaded and as on disk; else why that is no question here."""
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
    "NVIDIA driver installation guide, https://docs.nvidia.com/datacenter/tesla/",
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
    services = examination.services
    running = [
        name
        for name in _HOLDERS
        if not isinstance(services, Unknown) and services.services[name].state is ServiceState.ACTIVE
    ]
    order = [name for name in _UNLOAD_ORDER if name in nvidia.used_by]
    steps = (
        instruction("drain the node: every job on its GPUs has to end"),
        *(Step(f"stops {name}, which holds the driver", ("systemctl", "stop", name)) for name in running),
        Step("unloads the driver and what uses it", ("modprobe", "-r", *order, "nvidia")),
        Step("loads the new driver", ("modprobe", "nvidia")),
        *(Step(f"loads {name} again", ("modprobe", name)) for name in reversed(order)),
        *(Step(f"starts {name} again", ("systemctl", "start", name)) for name in reversed(running)),
    )
    return found(
        f"driver {loaded} is held by {' and '.join(held)}",
        *_version_evidence(loaded, on_disk),
        Evidence("/sys/module/nvidia/refcnt", str(nvidia.refcnt)),
        fix=Plan(
            "Exchange the driver without a reboot",
            steps,
            reversible=False,
            disturbs="ends every job on the GPUs",
        ),
        devices=("nvidia", *nvidia.used_by[:SHOWN]),
    )


_UNLOAD_ORDER = ("gdrdrv", "nvidia_fs", "nv_peer_mem", PEERMEM, "nvidia_drm", "nvidia_modeset", "nvidia_uvm")
_HOLDERS = ("nvidia-dcgm", "nvidia-fabricmanager", "nvidia-persistenced")


@AREA.check(
    "initramfs-stale",
    Severity.WARNING,
    "a module that is loaded is another one than the file on disk",
    "update-initramfs(8), dracut(8); Linux Documentation/ABI/testing/sysfs-module (srcversion)",
)
def initramfs_stale(examination: Examination) -> Outcome:
    """Loaded modules beside their files, by srcversion: a stale boot image, or an update since boot."""
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
    kernel = examination.node.kernel
    release = "" if isinstance(kernel, Unknown) or isinstance(kernel.release, Unknown) else kernel.release
    steps = (
        Step("rebuilds the boot image (Debian, Ubuntu)", ("update-initramfs", "-u", "-k", release or "all")),
        instruction("on RPM distributions: `dracut -f` in its place"),
        _REBOOT,
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
        fix=Plan("Rebuild the boot image", steps, reversible=False, needs_reboot=True, disturbs=_ENDS_JOBS),
        devices=names,
    )
