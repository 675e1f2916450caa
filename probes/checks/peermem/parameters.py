"""Parameters of nvidia_peermem and the OFED releases they are for."""

from __future__ import annotations

from probes.base.plan import Plan, make_plan
from probes.base.unknown import Reason, Unknown
from probes.facts.kernel.log import LogKind
from probes.facts.kernel.modules import PEERMEM
from probes.plans.boot import initramfs_step
from probes.plans.load_modules import load_step
from probes.plans.peermem import unload_step
from probes.queries.evidence_list import KERNEL_LOG, STAGED
from probes.queries.finding import Area, CheckEnded, Evidence, Outcome, Severity, found, need, passed
from probes.queries.module_need import (
    Need,
    absent_peermem,
    loaded_peermem,
    need_of_peermem,
    not_needed,
    peermem_fault,
    spare_fix,
    spare_severity,
)
from probes.queries.modules import (
    OFED,
    PEERMEM_MANUAL,
    PEERMEM_SOURCE,
    message_evidence,
    module_messages,
    ofed_numbers,
    ofed_of,
)
from probes.snapshot.examination import Examination

AREA = Area("modules")

_FIRST_MODERN_OFED = (5, 1)  # 5.0 and older need peerdirect_support=1


def _parameter(examination: Examination, name: str) -> tuple[str, Evidence]:
    """Return the value of a parameter of the loaded nvidia_peermem, and its evidence; else end the check."""
    parameters = loaded_peermem(examination).parameters
    path = f"/sys/module/nvidia_peermem/parameters/{name}"
    if name not in parameters:
        raise CheckEnded(passed(Evidence(path, "not found: this driver has no such parameter")))
    value = need(parameters[name], path)
    return value, Evidence(path, value)


def _reload(examination: Examination, title: str, first: str) -> Plan | None:
    initramfs = initramfs_step(examination, "may contain modprobe.d")
    steps = (first, initramfs, unload_step(examination), load_step(examination, PEERMEM))
    plan = make_plan(title, *steps, disturbs="jobs that use nvidia_peermem (they must end first)")
    return spare_fix(examination, plan)


@AREA.check(
    "peermem-parameter-wrong",
    Severity.WARNING,
    "nvidia_peermem runs with peerdirect_support=1, meant for MLNX_OFED 5.0 and older",
    PEERMEM_MANUAL,
    ok="nvidia_peermem's peerdirect_support is right for this OFED",
    impact="A job that frees GPU memory can deadlock the node.",
)
def peermem_parameter_wrong(examination: Examination) -> Outcome:
    """Check the parameter peerdirect_support of the loaded module against OFED's release."""
    value, evidence = _parameter(examination, "peerdirect_support")
    if value != "1":
        return passed(evidence)
    ofed = ofed_of(examination)
    has_none = isinstance(ofed, Unknown) and ofed.reason is Reason.NOT_THERE
    release = "no OFED" if has_none else need(ofed, OFED, evidence)
    numbers = ofed_numbers(release)
    if numbers is not None and numbers < _FIRST_MODERN_OFED:
        return passed(evidence, Evidence("ofed_info -s", release))
    first = "Delete peerdirect_support=1 from `options nvidia-peermem` in modprobe.d"
    return found(
        "The option is left over from an old MLNX_OFED. With 5.1 and newer it disables the protection "
        "against a deadlock.",
        evidence,
        Evidence("ofed_info -s", release),
        fix=_reload(examination, "Remove the option", first),
        devices=(PEERMEM,),
        severity=spare_severity(examination),
    )


@AREA.check(
    "peermem-parameter-legacy-ofed",
    Severity.WARNING,
    "nvidia_peermem needs peerdirect_support=1 with this old MLNX_OFED",
    PEERMEM_MANUAL,
    ok="nvidia_peermem's peerdirect_support is right for this OFED, or there is no OFED",
    impact="With this OFED, GPU memory may fail to register or to be released.",
)
def peermem_parameter_legacy_ofed(examination: Examination) -> Outcome:
    """Check for an OFED of 5.0 or older, whose PeerDirect needs the legacy setting."""
    value, evidence = _parameter(examination, "peerdirect_support")
    ofed = need(ofed_of(examination), OFED, evidence, absent=Evidence("ofed_info -s", "no OFED"))
    numbers = ofed_numbers(ofed)
    if numbers is None or numbers >= _FIRST_MODERN_OFED or value == "1":
        return passed(evidence, Evidence("ofed_info -s", ofed))
    first = "Write `options nvidia-peermem peerdirect_support=1` to /etc/modprobe.d/nvidia-peermem.conf"
    return found(
        "MLNX_OFED 5.0 and older have an older PeerDirect interface than the module expects by default.",
        evidence,
        Evidence("ofed_info -s", ofed),
        fix=_reload(examination, "Enable nvidia_peermem's legacy mode", first),
        devices=(PEERMEM,),
        severity=spare_severity(examination),
    )


@AREA.check(
    "peermem-parameter-persistent-off",
    Severity.NOTE,
    "nvidia_peermem runs with persistent_api_support=0, the older interface",
    f"{PEERMEM_SOURCE}/nvidia-peermem.c, persistent_api_support",
    ok="nvidia_peermem uses the persistent interface",
    impact="Memory regions can become invalid while a job still uses them.",
)
def peermem_parameter_persistent_off(examination: Examination) -> Outcome:
    """Check persistent_api_support of the loaded module; 1 is the default since 560.28.03."""
    value, evidence = _parameter(examination, "persistent_api_support")
    if value != "0":
        return passed(evidence)
    first = "Delete persistent_api_support=0 from `options nvidia-peermem` in modprobe.d"
    return found(
        "With the older interface the driver can revoke GPU memory that is still registered.",
        evidence,
        fix=_reload(examination, "Use the default value", first),
        devices=(PEERMEM,),
    )


@AREA.check(
    "peermem-parameter-invalid",
    Severity.CRITICAL,
    "nvidia_peermem rejected a parameter value",
    f"{PEERMEM_SOURCE}/nvidia-peermem.c, nv_mem_param_conf_check",
    ok="nvidia_peermem did not reject any parameter",
    impact=STAGED,
)
def peermem_parameter_invalid(examination: Examination) -> Outcome:
    """Check the kernel log for a parameter that the module rejected."""
    absent_peermem(examination)
    messages = module_messages(examination, (LogKind.PEERMEM,), words="invalid")
    if isinstance(messages, Unknown) and need_of_peermem(examination) is Need.NOT_NEEDED:
        return not_needed()
    messages = tuple(message for message in need(messages, KERNEL_LOG) if "param value" in message.text)
    evidence = message_evidence(examination, messages)
    if not messages:
        return passed(*evidence)
    correct = "Correct or delete the line `options nvidia-peermem …` in /etc/modprobe.d (values: 0 or 1)"
    return peermem_fault(
        examination,
        "An `options` line in modprobe.d sets an invalid value, so modprobe fails with `Invalid argument`.",
        *evidence,
        fix=make_plan("Correct the option", correct, load_step(examination, PEERMEM)),
    )
