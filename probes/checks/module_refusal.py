"""Why the kernel does not take a module: forbidden, without a trusted signature, of another kernel."""

from __future__ import annotations

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.module_facts import file_of, log_needed, log_of, log_seen
from probes.checks.module_need import cost_of_missing, missing_modules
from probes.checks.wording import SHOWN
from probes.examination import Examination
from probes.kernel_log import LogKind
from probes.module_files import ModuleFile
from probes.plan import Plan, Step, instruction
from probes.plans.interruptions import REBOOT_ENDS_JOBS, reboot_step
from probes.plans.rebuilding import rebuild_plan
from probes.unknown import Maybe, Reason, Unknown

AREA = Area("modules")

_SIGNING = "Linux Documentation/admin-guide/module-signing.rst"


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
    missing = missing_modules(examination)
    if isinstance(missing, Unknown):
        return unsure(f"which modules are missing is unknown: {missing}", Evidence(path, "1"))
    steps = (
        instruction(
            "remove kernel.modules_disabled from /etc/sysctl.d, or set it after the modules are loaded"
        ),
        reboot_step(),
    )
    without = f"{', '.join(missing)} cannot be loaded any more" if missing else "what is needed is loaded"
    return found(
        f"kernel.modules_disabled was set to 1, and only a reboot takes it back: {without}",
        Evidence(path, "1"),
        fix=Plan("Allow modules again", steps, needs_reboot=True, disturbs=REBOOT_ENDS_JOBS),
        severity=cost_of_missing(examination, missing) if missing else Severity.NOTE,
        devices=missing,
    )


def _unsigned(examination: Examination) -> Maybe[tuple[ModuleFile, ...]]:
    """The files without a signature of modules that are missing."""
    missing = missing_modules(examination)
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
        reboot_step(),
        instruction("enrol the key at the console when the machine starts; or switch Secure Boot off"),
    )
    return Plan(
        "Sign the modules and enrol the key",
        steps,
        needs_reboot=True,
        disturbs=REBOOT_ENDS_JOBS,
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
        severity=cost_of_missing(examination, names),
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
    missing = missing_modules(examination)
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
        severity=cost_of_missing(examination, missing),
        devices=missing,
    )


@AREA.check(
    "module-wrong-vermagic",
    Severity.CRITICAL,
    "a module file was built for another kernel (`Exec format error`)",
    "modinfo(8); Linux Documentation/kbuild/modules.rst",
)
def module_wrong_vermagic(examination: Examination) -> Outcome:
    """The vermagic of the files whose modules are missing, and what the kernel said."""
    release = examination.node.kernel_release
    if isinstance(release, Unknown):
        return unsure(f"which kernel is running is unknown: {release}")
    missing = missing_modules(examination)
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
        fix=rebuild_plan(release),
        severity=cost_of_missing(examination, names),
        devices=names,
    )
