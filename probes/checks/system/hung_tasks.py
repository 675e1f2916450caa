"""Processes that hang in the kernel, in a driver of GPUs or RDMA."""

from __future__ import annotations

from probes.base.evidence import Evidence, first_distinct
from probes.base.plan import instruction, make_plan
from probes.base.text import join_limited
from probes.base.unknown import Unknown, known
from probes.checks.gpu.devices import GSP_TIMEOUT, LOST_GPU
from probes.facts.jobs.processes import ProcessFacts
from probes.facts.kernel.log import KernelMessage, LogKind
from probes.queries.finding import KERNEL_LOG, Area, Outcome, found, need, passed
from probes.queries.kernel_log import coverage
from probes.snapshot.examination import Examination

AREA = Area("system")
_STATE_NOW = "Run ps -eo pid,stat,wchan:32,comm to see if it still waits (state D)"


@AREA.warning(
    "task-hung-in-driver",
    "A process hung in the GPU or RDMA driver",
    "Linux kernel/hung_task.c; Documentation/admin-guide/sysctl/kernel.rst, hung_task_timeout_secs",
    ok="No process hung in the GPU or RDMA driver",
    impact="The process cannot be killed while it waits. Its job hangs, and its GPUs cannot be reset.",
    part_of=(LOST_GPU, GSP_TIMEOUT),
)
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
