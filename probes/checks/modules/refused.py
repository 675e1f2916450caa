"""Why the kernel refuses a module: it is forbidden, not signed, or built for another kernel."""

from __future__ import annotations

from probes.base.evidence import Evidence, Severity
from probes.base.plan import Plan
from probes.base.text import SHOWN
from probes.base.unknown import Unknown, is_there, known, map_known
from probes.facts.kernel.log import LogKind
from probes.facts.kernel.module_files import ModuleFile
from probes.plans.boot import enroll_key_step
from probes.plans.common import reboot_plan, reboot_step
from probes.plans.driver import rebuild_plan
from probes.queries.finding import KERNEL_LOG, Area, Outcome, found, need, passed
from probes.queries.module_need import impact_of_missing, missing_modules, severity_of_missing
from probes.queries.modules import FILES, MODULES, RELEASE, file_of, message_evidence, module_messages
from probes.snapshot.examination import Examination

AREA = Area("modules", __package__)


@AREA.critical("kernel-forbids-modules-disabled")
def kernel_forbids_modules_disabled(examination: Examination) -> Outcome:
    """Check the sysctl that hardening scripts set; a note while every needed module is loaded."""
    path = "/proc/sys/kernel/modules_disabled"
    disabled = map_known(examination.node.kernel, lambda kernel: kernel.modules_disabled)
    if not need(disabled, path, absent=Evidence(path, "not found: this kernel has no such setting")):
        return passed(Evidence(path, "0"))
    missing = need(missing_modules(examination), MODULES, Evidence(path, "1"))
    result = f"{', '.join(missing)} cannot be loaded" if missing else "every needed module is loaded"
    return found(
        f"kernel.modules_disabled is 1, and {result}. Only a reboot resets the setting.",
        Evidence(path, "1"),
        fix=reboot_plan(
            "Allow module loading again",
            "Remove kernel.modules_disabled from /etc/sysctl.d, or set it after the modules are loaded",
            reboot_step(),
        ),
        severity=severity_of_missing(examination, missing) if missing else Severity.NOTE,
        devices=missing,
        impact=impact_of_missing(examination, missing) if missing else "",
    )


def _files(examination: Examination, names: tuple[str, ...], *evidence: Evidence) -> list[ModuleFile]:
    """Return the files of modules, without those that have none."""
    files = (file_of(examination, name) for name in names)
    return [need(file, FILES, *evidence) for file in files if is_there(file) is not False]


def _messages(
    examination: Examination, kinds: tuple[LogKind, ...], modules: tuple[str, ...] = ()
) -> tuple[Evidence, ...]:
    """Return the kernel's own messages about a refusal, if the log has them."""
    messages = known(module_messages(examination, kinds, modules=modules), ())
    return message_evidence(examination, messages) if messages else ()


def _sign_plan(examination: Examination) -> Plan:
    return reboot_plan(
        "Sign the modules and enroll the key",
        "Sign the modules: rebuild them with DKMS, which signs with its own key",
        enroll_key_step(examination),
        reboot_step(),
        "Enroll the key at the console when the machine starts, or disable Secure Boot",
        note="Enrollment needs someone at the console (or BMC) during boot; SSH is not enough",
    )


def _refused_unsigned(
    examination: Examination, refuses: Evidence, cause: str, part_of: tuple[str, ...] = ()
) -> Outcome:
    """Check for missing, unsigned modules on a kernel that refuses those."""
    missing = need(missing_modules(examination), FILES, refuses)
    here = _files(examination, missing, refuses)
    files = [file for file in here if is_there(file.signer) is False]
    if not files:
        return passed(refuses, Evidence("modinfo", "no missing module is unsigned"))
    names = tuple(file.name for file in files)
    return found(
        f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} unsigned, and {cause}.",
        refuses,
        *(Evidence(f"modinfo -F signer {file.name}", "nothing: unsigned") for file in files[:SHOWN]),
        *_messages(examination, (LogKind.LOCKDOWN,)),
        *_messages(examination, (LogKind.UNSIGNED,), names),
        fix=_sign_plan(examination),
        severity=severity_of_missing(examination, names),
        devices=names,
        impact=impact_of_missing(examination, names),
        part_of=part_of,
    )


@AREA.critical("kernel-forbids-modules-lockdown")
def kernel_forbids_modules_lockdown(examination: Examination) -> Outcome:
    """Check for missing, unsigned modules under kernel lockdown."""
    path = "/sys/kernel/security/lockdown"
    absent = Evidence(path, "not found: this kernel has no lockdown, or securityfs is not mounted")
    mode = need(need(examination.node.kernel, path).lockdown, path, absent=absent)
    if mode == "none":
        return passed(Evidence(path, "none"))
    cause = f"the kernel is locked down ({mode}), so it accepts only signed modules"
    return _refused_unsigned(examination, Evidence(path, f"[{mode}]"), cause)


@AREA.critical("secure-boot-unsigned")
def secure_boot_unsigned(examination: Examination) -> Outcome:
    """Check for missing, unsigned modules where sig_enforce is set."""
    path = "/sys/module/module/parameters/sig_enforce"
    enforced = map_known(examination.node.kernel, lambda kernel: kernel.signatures_enforced)
    if not need(enforced, path, absent=Evidence(path, "not found: this kernel has no module signing")):
        return passed(Evidence(path, "N"))
    cause = "the kernel loads only modules with a trusted signature"
    return _refused_unsigned(examination, Evidence(path, "Y"), cause, ("kernel-forbids-modules-lockdown",))


@AREA.critical("secure-boot-key-rejected")
def secure_boot_key_rejected(examination: Examination) -> Outcome:
    """Check the kernel log for rejected signatures; it does not name the module."""
    missing = need(missing_modules(examination), MODULES)
    if not missing:
        return passed(Evidence("/proc/modules", "every needed module is loaded"))
    messages = need(module_messages(examination, (LogKind.SIGNATURE_REJECTED,)), KERNEL_LOG)
    if not messages:
        return passed(*message_evidence(examination, messages))
    return found(
        f"The kernel refused a module because it is unsigned or its key is not enrolled. "
        f"Not loaded: {', '.join(missing)}.",
        *message_evidence(examination, messages),
        fix=_sign_plan(examination),
        severity=severity_of_missing(examination, missing),
        devices=missing,
        impact=impact_of_missing(examination, missing),
        part_of=("kernel-forbids-modules-lockdown", "secure-boot-unsigned"),
    )


@AREA.critical("module-wrong-vermagic")
def module_wrong_vermagic(examination: Examination) -> Outcome:
    """Check the vermagic of the files whose modules are missing."""
    release = need(examination.node.kernel_release, RELEASE)
    files = _files(examination, need(missing_modules(examination), MODULES))
    # Red Hat's weak-updates are modules of an older kernel that fit this one by their symbols.
    others = [
        file
        for file in files
        if not isinstance(file.kernel, Unknown)
        and file.kernel != release
        and "/weak-updates/" not in file.path
    ]
    if not others:
        none = f"no missing module was built for a kernel other than {release}"
        return passed(Evidence("modinfo -F vermagic", none))
    names = tuple(file.name for file in others)
    return found(
        f"The file of {', '.join(names)} below /lib/modules/{release} was copied there, or comes from a "
        "package that was built for another kernel.",
        *(
            Evidence(f"modinfo -F vermagic {file.name}", f"built for {file.kernel}; {release} is running")
            for file in others[:SHOWN]
        ),
        *_messages(examination, (LogKind.OTHER_KERNEL,), names),
        fix=rebuild_plan(examination, release, has_bad_files=True),
        severity=severity_of_missing(examination, names),
        devices=names,
        impact=impact_of_missing(examination, names),
    )
