"""nvidia_peermem at work: references that nobody holds, a known deadlock, a flood of messages."""

from __future__ import annotations

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.module_facts import (
    PEERMEM,
    is_present,
    log_needed,
    log_of,
    log_seen,
    module_of,
    no_pair,
    ofed_numbers,
    ofed_of,
    state_seen,
)
from probes.checks.module_need import loaded_peermem
from probes.examination import Examination
from probes.kernel_log import LogKind
from probes.plan import Plan, Step, instruction
from probes.plans.interruptions import REBOOT_ENDS_JOBS, SWAP_ENDS_JOBS
from probes.plans.loading import load_step
from probes.unknown import Reason, Unknown

AREA = Area("modules")

_REFCNT = "/sys/module/nvidia_peermem/refcnt"
_FIRST_WITH_LOCKS, _FIRST_CURED = (5, 1, 0, 0, 0, 0), (5, 3, 1, 0, 0, 1)
_FLOOD = "detected invalid context"


@AREA.check(
    "peermem-reference-leak",
    Severity.WARNING,
    "nvidia_peermem is held by registered regions, and no process has an RDMA device open",
    "https://github.com/NVIDIA/open-gpu-kernel-modules, kernel-open/nvidia-peermem/nvidia-peermem.c",
)
def peermem_reference_leak(examination: Examination) -> Outcome:
    """The refcnt, and who has /dev/infiniband/uverbsN open; an idle refcnt of 0 is as it should be."""
    module = loaded_peermem(examination)
    if isinstance(module, Outcome):
        return module
    refcnt = examination.reading.peermem.refcnt
    if isinstance(refcnt, Unknown):
        if refcnt.reason is Reason.NOT_THERE:
            return passed(Evidence(_REFCNT, "not there: a kernel that cannot unload modules"))
        return unsure(f"{_REFCNT}: {refcnt}")
    seen = Evidence(_REFCNT, str(refcnt))
    if refcnt <= 0:
        return passed(seen)
    processes = examination.processes
    if isinstance(processes, Unknown):
        return unsure(f"who holds them is unknown: {processes}", seen)
    files = [one.uverbs_files for one in processes.processes]
    holding = [
        one for one in processes.processes if not isinstance(one.uverbs_files, Unknown) and one.uverbs_files
    ]
    if holding:
        return passed(seen, Evidence("/proc/PID/fd", f"{len(holding)} processes have uverbs devices open"))
    if isinstance(processes.hidden, Unknown):
        return unsure(f"who holds them is unknown: {processes.hidden}", seen)
    if processes.hidden or processes.left_out or any(isinstance(one, Unknown) for one in files):
        return unsure("needs root: the open files of other users' processes", seen)
    steps = (
        Step("shows which process holds memory regions, if any", ("rdma", "resource", "show", "mr"), False),
        instruction(
            "end what is left of the job: processes in state D or Z, containers that are being removed"
        ),
        instruction("if no process is left, drain the node and reboot it; never use rmmod -f"),
    )
    return found(
        "regions of GPU memory are registered that no process can use any more: what is left of a killed job "
        "holds them, and nvidia_peermem and the driver cannot be unloaded",
        seen,
        Evidence("/proc/*/fd", "no process has /dev/infiniband/uverbsN open"),
        fix=Plan("Free the regions", steps, reversible=False, disturbs=REBOOT_ENDS_JOBS),
        devices=(PEERMEM,),
    )


@AREA.check(
    "peermem-lock-inversion",
    Severity.WARNING,
    "this MLNX_OFED can deadlock with nvidia_peermem: the node hangs when a job frees GPU memory",
    "https://github.com/Mellanox/nv_peer_memory, README (NVIDIA issue 2696789)",
)
def peermem_lock_inversion(examination: Examination) -> Outcome:
    """OFED from 5.1 to before 5.3-1.0.0.1."""
    aside = no_pair(examination)
    if aside is not None:
        return aside
    module = module_of(examination, PEERMEM)
    older = module_of(examination, "nv_peer_mem")
    if isinstance(module, Unknown):
        return unsure(f"whether nvidia_peermem is loaded is unknown: {module}")
    if isinstance(older, Unknown):
        return unsure(f"whether nv_peer_mem is loaded is unknown: {older}")
    if not is_present(module) and not is_present(older):
        return passed(state_seen(module))
    ofed = ofed_of(examination)
    if isinstance(ofed, Unknown):
        if ofed.reason is Reason.NOT_THERE:
            return passed(Evidence("ofed_info -s", "no OFED here"))
        return unsure(f"which OFED runs is unknown: {ofed}")
    numbers = ofed_numbers(ofed)
    seen = Evidence("ofed_info -s", ofed)
    if numbers is None or not _FIRST_WITH_LOCKS <= numbers < _FIRST_CURED:
        return passed(seen)
    steps = (
        instruction("install OFED 5.3-1.0.0.1.43 or newer (any current DOCA-OFED)"),
        instruction("build the NVIDIA driver's modules anew afterwards, then reboot"),
    )
    return found(
        "its IB core takes two locks in the opposite order of the GPU driver, and both wait for each other "
        "when memory is freed while regions are registered",
        seen,
        state_seen(module if is_present(module) else older),
        fix=Plan("Update OFED", steps, reversible=False, needs_reboot=True, disturbs=REBOOT_ENDS_JOBS),
        devices=(PEERMEM if is_present(module) else "nv_peer_mem",),
    )


@AREA.check(
    "peermem-invalid-context-flood",
    Severity.NOTE,
    "nvidia_peermem fills the kernel log with `detected invalid context`",
    "https://github.com/NVIDIA/nccl/issues/1474",
)
def peermem_invalid_context_flood(examination: Examination) -> Outcome:
    """A message that alarms and means no harm; newer drivers do not print it."""
    messages = log_of(examination, (LogKind.PEERMEM,), words=_FLOOD)
    if isinstance(messages, Unknown):
        module = module_of(examination, PEERMEM)
        if not isinstance(module, Unknown) and not is_present(module):
            return passed(state_seen(module))
        return log_needed(messages, _FLOOD)
    if not messages:
        return passed(*log_seen(examination, messages))
    steps = (
        instruction("update the NVIDIA driver to 560 or newer at the next opportunity"),
        load_step(examination, PEERMEM),
    )
    return found(
        "the module meets regions of programs that ended without freeing them, and says so each time; "
        "by itself this does no harm",
        *log_seen(examination, messages)[:3],
        fix=Plan("Update the driver", steps, reversible=False, disturbs=SWAP_ENDS_JOBS),
        devices=(PEERMEM,),
    )
