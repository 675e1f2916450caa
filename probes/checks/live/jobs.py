"""Running jobs: ranks without GPUDirect RDMA, what holds the other ranks up, and processes that hang."""

from __future__ import annotations

from dataclasses import replace

from probes.base.evidence import Evidence, first_distinct
from probes.base.plan import Plan, instruction, make_plan, user_plan
from probes.base.text import join_limited
from probes.base.unknown import Unknown, known
from probes.checks.gpu.devices import GSP_TIMEOUT, LOST_GPU
from probes.checks.live.ports import conditions_of, report_conditions
from probes.facts.jobs.processes import ProcessFacts
from probes.facts.kernel.log import KernelMessage, LogKind
from probes.live.model.sample import COLLISION
from probes.live.processes.fall_backs import causes
from probes.queries.finding import KERNEL_LOG, Area, Outcome, Scope, found, need, passed
from probes.queries.jobs import ONE_PATH, RESTARTS, STAGING_SETTINGS, TCP_SETTINGS, job_plan, more_paths
from probes.queries.kernel_log import P2P_REFUSALS, coverage
from probes.queries.ports import LINK_CAUSES
from probes.snapshot.condition import (
    CONTRADICTED,
    KV_OVER_TCP,
    KV_STAGED,
    ODD_RANK,
    OVER_TCP,
    PLANE_UNUSED,
    RANK_ENDED,
    RAS_PROBLEM,
    SILENT,
    SLOW_NIC,
    STAGED,
    STOPPED,
    TRAFFIC_FELL,
    UNEVEN,
)
from probes.snapshot.examination import Examination
from probes.snapshot.verdict import State

AREA = Area("jobs", __package__, is_moving=True)
_NCCL_LOG = (
    "Read the job's log with gdrtop nccl-log FILE: it shows distances, disabled NICs and settings. If it "
    "gives no reason, set NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH,ENV for the next run"
)
_KEEPS = "Running jobs keep their path until they restart."
_SLOW_LINKS = (
    *("pcie-link-degraded-width", "pcie-link-degraded-speed"),
    *("pcie-link-below-port-rate", "pcie-link-limited-by-slot"),
    *("single-rail-or-half-rate", "single-rail-or-half-rate-one-lane", "mtu-mismatch", "mtu-mismatch-small"),
)
_PORT_FAULTS = (*LINK_CAUSES, *_SLOW_LINKS)
_LOST_GPUS = ("xid-79-fell-off-bus", "gpu-missing-from-nvml", "xid-119-gsp-timeout", "gpu-recovery-action")
CAUSES_OF_STAGING = (
    *("no-gdr-path", "cuda-fails-to-start", *STAGING_SETTINGS, "memory-peers-missing-old-nccl"),
    *("gpu-nic-cross-socket", "gpu-nic-through-cpu", "gpu-without-near-nic", "peermem-not-loaded"),
    *P2P_REFUSALS,
)
CAUSES_OF_TCP = (*TCP_SETTINGS, "dev-infiniband-missing", "dev-infiniband-refused", "no-gdr-path")


def _passes_by_design(examination: Examination) -> Outcome | None:
    """Pass where the hardware cannot use GPUDirect RDMA: that is no fault of a job."""
    if examination.usability.state is State.NOT_APPLICABLE:
        return passed(Evidence("verdict", examination.usability.reason))
    return None


_STAGED_FIX = job_plan("Find out why NCCL does not use GPUDirect RDMA", _NCCL_LOG, note=_KEEPS)
_OVER_TCP_FIX = job_plan(
    "Let NCCL use RDMA",
    "Remove NCCL_IB_DISABLE and NCCL_NET=Socket from the job, if they are set",
    "Make /dev/infiniband visible in the job's container",
    _NCCL_LOG,
    note=_KEEPS,
)
_KV_CAUSES = ("nixl-ucx-without-cuda", "no-gdr-path")
_NO_DEVICES = ("dev-infiniband-missing", "dev-infiniband-not-in-container")


def _kv_plan(examination: Examination) -> Plan:
    """Remove the causes whose signs are there; of none, show where the engine says what it uses."""
    ids = {name for condition in conditions_of(examination, KV_OVER_TCP) for name in condition.causes}
    return job_plan("Let the engine use RDMA", *(row.cure for name, row in causes().items() if name in ids))


# NCCL ranks with RDMA but without GPUDirect RDMA; critical if it is certain of a whole job.
AREA.warning(STAGED, data_path=True, part_of=CAUSES_OF_STAGING, requires=(_passes_by_design,))(
    report_conditions(STAGED, needs_paths=True, fix=_STAGED_FIX)
)
# NCCL ranks that use TCP on a node with RDMA NICs; critical if it is certain of a whole job.
AREA.warning(OVER_TCP, data_path=True, part_of=CAUSES_OF_TCP, requires=(_passes_by_design,))(
    report_conditions(OVER_TCP, needs_paths=True, fix=_OVER_TCP_FIX)
)
# Engines whose bytes are on TCP connections, though no setting asks for it.
AREA.warning(KV_OVER_TCP, data_path=True, part_of=(*_KV_CAUSES, *_NO_DEVICES))(
    report_conditions(KV_OVER_TCP, fix=_kv_plan)
)
# Engines that use RDMA and have registered host memory only, though no setting asks for it.
AREA.warning(KV_STAGED, data_path=True, part_of=_KV_CAUSES, requires=(_passes_by_design,))(
    report_conditions(KV_STAGED)
)
# Processes whose registered memory contradicts what DMA-BUF or nvidia_peermem requires.
AREA.warning(CONTRADICTED)(report_conditions(CONTRADICTED, needs_paths=True))


def _resume(examination: Examination) -> Plan:
    """Resume what a signal has stopped, and name the processes that a debugger has (proc_pid_stat(5))."""
    shown = [line for condition in conditions_of(examination, STOPPED) for line in condition.evidence]
    pids = {line.source.split("/")[2]: line.value.rpartition(" ")[2] for line in shown}
    by_signal = [pid for pid, state in pids.items() if state == "T"]
    traced = [f"/proc/{pid}/status" for pid, state in pids.items() if state == "t"]
    steps = [instruction(f"Run kill -CONT {' '.join(by_signal)}")] if by_signal else []
    if traced:
        steps.append(instruction(f"Detach the debugger: TracerPid in {join_limited(traced)}", False))
    return make_plan("Resume the process", *steps)


# Processes of jobs in the state T: stopped by a signal or a debugger.
AREA.warning(STOPPED, data_path=True)(report_conditions(STOPPED, fix=_resume))
_RANK_ENDED_FIX = user_plan(
    "Restart the job",
    "Read the end of the rank's log, which shows the error that ended the rank",
    "End the job and start it again",
    disturbs=RESTARTS,
)
# Ranks that ended while the other ranks of their job stay for more than some seconds.
AREA.warning(RANK_ENDED, data_path=True, part_of=_LOST_GPUS)(
    report_conditions(RANK_ENDED, 10.0, fix=_RANK_ENDED_FIX)
)
# What the last answer of RAS says; gdrtop asks RAS only when the user wants it.
AREA.warning(RAS_PROBLEM, data_path=True, part_of=(*_LOST_GPUS, RANK_ENDED, STOPPED))(
    report_conditions(RAS_PROBLEM)
)
_SLOW_NIC_FIX = make_plan(
    "Find out what slows the NIC",
    instruction("Measure the NIC alone when it is idle: gdrtop bench --nic NIC", needs_root=False),
    instruction("Compare PCIe link, errors and PCIe stalls of the NICs in Live", needs_root=False),
    "Check the NIC's cable and switch port, and the settings of its rail",
)
_COLLISION_FIX = more_paths(
    "A restart alone gives its connections other ports: the collision is then gone, or on another NIC."
)


def _slow_nic_fix(examination: Examination) -> Plan:
    """Cure a collision where all that is slow shows one; else find out what slows the NIC."""
    conditions = conditions_of(examination, SLOW_NIC)
    return _COLLISION_FIX if all(COLLISION in each.causes for each in conditions) else _SLOW_NIC_FIX


@AREA.warning(
    SLOW_NIC,
    data_path=True,
    scope=Scope.DEVICES,
    part_of=(*_PORT_FAULTS, STAGED, "network-congested", ODD_RANK),
)
def nic_slow_in_job(examination: Examination) -> Outcome:
    """Find NICs below half the median of their job's NICs while the job sends."""
    outcome = report_conditions(SLOW_NIC, 13.0, fix=_slow_nic_fix)(examination)
    return replace(outcome, part_of=(ONE_PATH,)) if outcome.fix is _COLLISION_FIX else outcome


# NICs above 1.2 times the average of their job for 5 min, with as many queue pairs on each.
AREA.note(UNEVEN, scope=Scope.DEVICES, part_of=(*_PORT_FAULTS, SLOW_NIC, ODD_RANK))(
    report_conditions(UNEVEN, 90.0)
)
# Planes without traffic for a minute, while the other planes of the same NICs carry a job's.
AREA.warning(PLANE_UNUSED, data_path=True, scope=Scope.DEVICES, part_of=_PORT_FAULTS)(
    report_conditions(PLANE_UNUSED, 90.0)
)
_SILENT_CAUSES = (*_LOST_GPUS, "task-hung-in-driver", RANK_ENDED, STOPPED, RAS_PROBLEM, *LINK_CAUSES)
# Jobs without traffic for a minute, whose GPUs were busy or whose ranks were blocked meanwhile.
AREA.warning(SILENT, data_path=True, part_of=_SILENT_CAUSES)(report_conditions(SILENT, 90.0))
_FELL_CAUSES = (*_LOST_GPUS, RANK_ENDED, STOPPED, RAS_PROBLEM, SILENT)
# Jobs and NICs whose traffic fell below half of the minute before and has not come back.
AREA.warning(
    TRAFFIC_FELL, data_path=True, part_of=(*_FELL_CAUSES, *_PORT_FAULTS, "network-congested", SLOW_NIC)
)(report_conditions(TRAFFIC_FELL, 30.0))
_ODD_RANK_FIX = user_plan(
    "Make the ranks alike",
    "Compare the rank's NICs, CPUs and environment with another rank's in Live",
    "Give every rank the GPU, NIC and CPUs of one NUMA node, then restart the job",
    disturbs=RESTARTS,
)
_FAR = ("gpu-nic-cross-socket", "gpu-nic-through-cpu", "gpu-without-near-nic")
# Ranks whose NICs, distance, CPUs or PCIe link differ from an otherwise uniform job.
AREA.warning(ODD_RANK, data_path=True, part_of=(*_PORT_FAULTS, *_FAR, "nccl-net-plugin-mixed"))(
    report_conditions(ODD_RANK, fix=_ODD_RANK_FIX)
)

# Processes that hang in the kernel, in a driver of GPUs or RDMA.

HUNG_TASKS = Area("system", __package__)
_STATE_NOW = "Run ps -eo pid,stat,wchan:32,comm to see if it still waits (state D)"


@HUNG_TASKS.warning("task-hung-in-driver", part_of=(LOST_GPU, GSP_TIMEOUT))
def task_hung_in_driver(examination: Examination) -> Outcome:
    """Find blocked tasks whose stack is in a driver of GPUs or RDMA, or that have their devices open."""
    need(examination.node.pci, "the PCI devices")
    if not examination.topology.gpus and not examination.topology.nics:
        return passed(Evidence("/sys/bus/pci/devices", "no GPU and no RDMA NIC"))
    log = need(examination.kernel_log, KERNEL_LOG)
    users = _device_users(examination)  # states by pid
    hung = [
        message
        for message in log.messages
        if message.kind is LogKind.HUNG_TASK and (message.module or message.number in users)
    ]
    if not hung:
        return passed(Evidence(log.source, f"no such message{coverage(log)}"))
    modules = tuple(dict.fromkeys(message.module for message in hung if message.module))
    where = f" in {join_limited(modules)}" if modules else " with a GPU or an RDMA device open"
    waiting = [message for message in hung if users.get(message.number or 0) == "D"]
    still = (
        f" {join_limited(_task(message) for message in waiting)} still waits (state D)." if waiting else ""
    )
    return found(
        f"{join_limited(_task(message) for message in hung)} waited for minutes{where}.{still}",
        *first_distinct(Evidence(log.source, message.text) for message in reversed(hung)),
        *(Evidence(f"/proc/{message.number}/stat", "state D") for message in waiting[:1]),
        fix=make_plan(
            "Find what the process waits for",
            instruction("Look for earlier GPU, NIC and storage errors in the kernel log", False),
            *([] if waiting else [instruction(_STATE_NOW, False)]),
            "Drain the node and reboot it" if waiting else "If it does, drain the node and reboot it",
        ),
        devices=modules,
        data_path=bool(waiting),
    )


def _device_users(examination: Examination) -> dict[int, str]:
    facts = examination.processes
    if not isinstance(facts, ProcessFacts):
        return {}
    return {
        process.pid: known(process.state, "")
        for process in facts.processes
        if any(files for files in (process.gpu_files, process.uverbs_files) if not isinstance(files, Unknown))
    }


def _task(message: KernelMessage) -> str:
    name, _, _ = message.text.removeprefix("INFO: task ").partition(f":{message.number} ")
    return f"{name} (pid {message.number})"
