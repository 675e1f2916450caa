"""nvidia_peermem at work: leaked references, a known deadlock, a flood of messages, its parameters."""

from __future__ import annotations

from probes.base.evidence import Evidence
from probes.base.plan import Plan, Step, instruction, make_plan
from probes.base.unknown import Unknown, is_there
from probes.facts.jobs.processes import names_of
from probes.facts.kernel.log import LogKind
from probes.facts.kernel.modules import PEERMEM
from probes.plans.boot import initramfs_step
from probes.plans.common import REBOOT_ENDS_JOBS, SWAP_ENDS_JOBS
from probes.plans.load_modules import load_step
from probes.plans.peermem import unload_step
from probes.queries.finding import KERNEL_LOG, Area, Outcome, end_with, found, need, passed, unknown
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
    MODULES,
    OFED,
    PEERMEM_REFCNT,
    is_present,
    message_evidence,
    module_messages,
    module_of,
    no_peermem_pair,
    ofed_numbers,
    ofed_of,
    state_evidence,
)
from probes.snapshot.examination import Examination

AREA = Area("modules", __package__)
PARAMETERS = Area("modules", __package__)

_FIRST_WITH_LOCKS, _FIRST_FIXED = (5, 1, 0, 0, 0, 0), (5, 3, 1, 0, 0, 1)
_FLOOD = "detected invalid context"
_OPEN_FILES = "the open files of other users' processes"


@AREA.warning("peermem-reference-leak")
def peermem_reference_leak(examination: Examination) -> Outcome:
    """Compare the refcnt with the processes that have /dev/infiniband/uverbsN open; 0 is right when idle."""
    loaded_peermem(examination)
    unloadable = Evidence(PEERMEM_REFCNT, "not found: this kernel cannot unload modules")
    refcnt = need(examination.reading.peermem.refcnt, PEERMEM_REFCNT, absent=unloadable)
    uses = Evidence(PEERMEM_REFCNT, str(refcnt))
    if refcnt <= 0:
        return passed(uses)
    processes = need(examination.processes, _OPEN_FILES, uses)
    files = [process.uverbs_files for process in processes.processes]
    users = sum(bool(open_files) for open_files in files if not isinstance(open_files, Unknown))
    if users:
        return passed(uses, Evidence("/proc/PID/fd", f"{users} processes have uverbs devices open"))
    hidden = need(processes.hidden, _OPEN_FILES, uses)
    if hidden or processes.left_out or any(isinstance(open_files, Unknown) for open_files in files):
        return unknown(f"needs root: {_OPEN_FILES}", uses)
    left = [process for process in processes.processes if process.state in ("D", "Z")]
    steps = (
        Step("Show which process has memory regions, if any", ("rdma", "resource", "show", "mr"), False),
        instruction(
            f"Stop what is left of the job: {names_of(left)}"
            if left
            else "No process of the job is left: drain the node and reboot it. Never use rmmod -f."
        ),
    )
    return found(
        "Memory regions of a killed job are still registered.",
        uses,
        Evidence("/proc/*/fd", "no process has /dev/infiniband/uverbsN open"),
        fix=Plan("Free the regions", steps, disturbs=REBOOT_ENDS_JOBS),
        devices=(PEERMEM,),
        severity=spare_severity(examination),
    )


@AREA.warning("peermem-lock-inversion")
def peermem_lock_inversion(examination: Examination) -> Outcome:
    """Check for an OFED from 5.1 to before 5.3-1.0.0.1."""
    end_with(no_peermem_pair(examination))
    module = need(module_of(examination, PEERMEM), MODULES)
    older = need(module_of(examination, "nv_peer_mem"), MODULES)
    if not is_present(module) and not is_present(older):
        return passed(state_evidence(module))
    ofed = need(ofed_of(examination), OFED, absent=Evidence("ofed_info -s", "no OFED"))
    numbers, release = ofed_numbers(ofed), Evidence("ofed_info -s", ofed)
    if numbers is None or not _FIRST_WITH_LOCKS <= numbers < _FIRST_FIXED:
        return passed(release)
    return found(
        "The IB core of MLNX_OFED 5.1 to 5.3 takes two locks in the opposite order from the GPU driver.",
        release,
        state_evidence(module if is_present(module) else older),
        devices=(PEERMEM if is_present(module) else "nv_peer_mem",),
        severity=spare_severity(examination),
    )


@AREA.note("peermem-invalid-context-flood")
def peermem_invalid_context_flood(examination: Examination) -> Outcome:
    """Check for a harmless message that looks alarming; drivers from 560 on do not print it."""
    log = module_messages(examination, (LogKind.PEERMEM,), words=(_FLOOD,))
    module = module_of(examination, PEERMEM)
    if isinstance(log, Unknown) and not isinstance(module, Unknown) and not is_present(module):
        return passed(state_evidence(module))
    messages = need(log, KERNEL_LOG)
    if not messages:
        return passed(*message_evidence(examination, messages))
    update = "Update the NVIDIA driver to 560 or newer at the next opportunity"
    steps = (update, load_step(examination, PEERMEM))
    return found(
        "The module logs every memory region that a program did not free before it exited. This is harmless.",
        *message_evidence(examination, messages)[:3],
        fix=make_plan("Update the driver", *steps, disturbs=SWAP_ENDS_JOBS),
        devices=(PEERMEM,),
    )


# Parameters of nvidia_peermem and the OFED releases they are for.

_FIRST_MODERN_OFED = (5, 1)  # 5.0 and older need peerdirect_support=1


def _parameter(examination: Examination, name: str) -> tuple[str, Evidence]:
    """Return the value of a parameter of the loaded nvidia_peermem, and its evidence; else end the check."""
    parameters = loaded_peermem(examination).parameters
    path = f"/sys/module/nvidia_peermem/parameters/{name}"
    if name not in parameters:
        end_with(passed(Evidence(path, "not found: this driver has no such parameter")))
    value = need(parameters[name], path)
    return value, Evidence(path, value)


def _reload(examination: Examination, title: str, first: str) -> Plan | None:
    initramfs = initramfs_step(examination, "may contain modprobe.d")
    steps = (first, initramfs, unload_step(examination), load_step(examination, PEERMEM))
    plan = make_plan(title, *steps, disturbs="jobs that use nvidia_peermem (they must end first)")
    return spare_fix(examination, plan)


@PARAMETERS.warning("peermem-parameter-wrong")
def peermem_parameter_wrong(examination: Examination) -> Outcome:
    """Check the parameter peerdirect_support of the loaded module against OFED's release."""
    value, evidence = _parameter(examination, "peerdirect_support")
    if value != "1":
        return passed(evidence)
    ofed = ofed_of(examination)
    release = "no OFED" if is_there(ofed) is False else need(ofed, OFED, evidence)
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


@PARAMETERS.warning("peermem-parameter-legacy-ofed")
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


@PARAMETERS.note("peermem-parameter-persistent-off")
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


@PARAMETERS.critical("peermem-parameter-invalid")
def peermem_parameter_invalid(examination: Examination) -> Outcome:
    """Check the kernel log for a parameter that the module rejected."""
    absent_peermem(examination)
    messages = module_messages(examination, (LogKind.PEERMEM,), words=("invalid",))
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
