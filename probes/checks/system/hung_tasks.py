"""Processes that hang in the kernel, in a driver of GPUs or RDMA."""

from __future__ import annotations

from collections.abc import Set

from probes.base.plan import Step, instruction, make_plan
from probes.base.unknown import Unknown
from probes.checks.gpu.devices import GSP_TIMEOUT, LOST_GPU
from probes.facts.jobs.processes import ProcessFacts
from probes.facts.kernel.log import KernelMessage, LogKind
from probes.queries.evidence_list import KERNEL_LOG, first_distinct, join_limited
from probes.queries.finding import Area, Evidence, Outcome, Severity, found, need, passed
from probes.queries.kernel_log import coverage
from probes.snapshot.examination import Examination

AREA = Area("system")


@AREA.check(
    "task-hung-in-driver",
    Severity.WARNING,
    "A process hung in the GPU or RDMA driver",
    "Linux kernel/hung_task.c; Documentation/admin-guide/sysctl/kernel.rst, hung_task_timeout_secs",
    ok="No process hung in the GPU or RDMA driver",
    impact="The process cannot be killed while it waits. Its job hangs, and its GPUs cannot be reset.",
    part_of=(LOST_GPU, GSP_TIMEOUT),
)
def task_hung_in_driver(examination: Examination) -> Outcome:
    """Find blocked tasks whose stack is in a driver of GPUs or RDMA, or that have their devices open."""
    if not examination.topology.gpus and not examination.topology.nics:
        return passed(Evidence("/sys/bus/pci/devices", "no GPU and no RDMA NIC"))
    log = need(examination.kernel_log, KERNEL_LOG)
    users = _device_users(examination)
    hung = [
        message
        for message in log.messages
        if message.kind is LogKind.HUNG_TASK and (message.module or message.number in users)
    ]
    if not hung:
        return passed(Evidence(log.source, f"no such message{coverage(log)}"))
    modules = tuple(dict.fromkeys(message.module for message in hung if message.module))
    where = f" in {join_limited(modules)}" if modules else " with a GPU or an RDMA device open"
    return found(
        f"{join_limited(_task(message) for message in hung)} waited for minutes{where}.",
        *first_distinct(Evidence(log.source, message.text) for message in reversed(hung)),
        fix=make_plan(
            "Find what the process waits for",
            instruction("Look for earlier GPU, NIC and storage errors in the kernel log", False),
            *_after_wait(examination, {message.number for message in hung}),
        ),
        devices=modules,
    )


def _after_wait(examination: Examination, pids: Set[int | None]) -> tuple[Step, ...]:
    """Return what to do now: a process that still waits can only be ended by a reboot."""
    facts = examination.processes
    states = {each.pid: each.state for each in facts.processes} if isinstance(facts, ProcessFacts) else {}
    waiting = sorted(pid for pid in states if pid in pids and states[pid] == "D")
    if waiting:
        named = join_limited(map(str, waiting))
        return (instruction(f"Drain the node and reboot it: pid {named} still waits (state D)"),)
    return (
        instruction("Run ps -eo pid,stat,wchan:32,comm to see if it still waits (state D)", False),
        instruction("If it does, drain the node and reboot it"),
    )


def _device_users(examination: Examination) -> frozenset[int]:
    facts = examination.processes
    if not isinstance(facts, ProcessFacts):
        return frozenset()
    return frozenset(
        process.pid
        for process in facts.processes
        if any(files for files in (process.gpu_files, process.uverbs_files) if not isinstance(files, Unknown))
    )


def _task(message: KernelMessage) -> str:
    name, _, _ = message.text.removeprefix("INFO: task ").partition(f":{message.number} ")
    return f"{name} (pid {message.number})"
