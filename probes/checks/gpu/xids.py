"""Checks of kernel messages about GPUs and NVSwitches: Xids and SXids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from enum import IntEnum

from probes.base.plan import Plan, instruction, make_plan
from probes.checks.gpu.devices import GSP_TIMEOUT, LOST_GPU, XID_DOCUMENT, answer_now
from probes.facts.kernel.log import KernelMessage, LogKind
from probes.queries.evidence_list import SHOWN, join_limited
from probes.queries.finding import Area, Evidence, Outcome, Severity, passed
from probes.queries.kernel_log import Filter, bdfs_in, found_in_log, log_messages
from probes.queries.xid_groups import GSP, LOST, MEMORY, NVLINK, OTHERS, PROGRAM, RECOVERY
from probes.snapshot.examination import Examination

AREA = Area("gpu")
_FABRIC = (
    "NVIDIA Fabric Manager user guide, SXid errors, "
    "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html"
)
_EXPLAINED = 2
_DRAIN = "every job on this GPU, or on the node if it is rebooted"


def _xids(*numbers: int) -> Filter:
    return lambda message: message.number in numbers


_RESET = "nvidia-smi --gpu-reset"


def _reset(bdfs: Sequence[str]) -> str:
    """Return the command that resets these GPUs; by address, because an index is not the same everywhere."""
    return f"{_RESET} -i {','.join(bdfs)}" if bdfs else _RESET


@AREA.check(
    GSP_TIMEOUT,
    Severity.CRITICAL,
    "A GPU's system processor (GSP) timed out",
    XID_DOCUMENT,
    ok="No GSP timeout in the kernel log",
    impact="Jobs hang and nvidia-smi hangs or is very slow. This looks like a network problem.",
)
def xid_119_gsp_timeout(examination: Examination) -> Outcome:
    """Find Xid 119 and 120; a warning if the GPU answers again."""
    messages = log_messages(examination, LogKind.XID, _xids(*GSP))
    fix = make_plan(
        "Reset the GPU",
        f"Drain the node, then run {_reset(bdfs_in(messages))} or reboot",
        "Update the driver if it happens again",
        "With the proprietary kernel modules, NVreg_EnableGpuFirmware=0 disables the GSP",
        disturbs=_DRAIN,
    )
    cause = "the GSP did not respond to the driver in time."
    if answer_now(examination, {message.bdf for message in messages}):
        outcome = found_in_log(examination, messages, f"{cause} The GPU responds now.", fix, Severity.WARNING)
        impact = "Jobs that ran at that time died or hung. The timeout often happens again."
        return replace(outcome, impact=impact)
    outcome = found_in_log(examination, messages, cause, fix)
    return replace(outcome, takes=outcome.devices)


@AREA.check(
    "xid-memory-error",
    Severity.WARNING,
    "A GPU has memory errors",
    XID_DOCUMENT,
    ok="No GPU memory error in the kernel log",
    impact="Jobs may have died because of the error.",
)
def xid_memory_error(examination: Examination) -> Outcome:
    """Find Xids of ECC errors, remapped rows and retired pages."""
    messages = log_messages(examination, LogKind.XID, _xids(*MEMORY))
    fix = make_plan(
        "Reset the GPU",
        instruction("Run nvidia-smi -q -d ROW_REMAPPER,ECC to see whether a reset is pending", False),
        "Drain and reset the GPU",
        "Replace the GPU if remapping failed (Xid 64)",
        disturbs=_DRAIN,
    )
    cause = "row remapping takes effect at the next GPU reset."
    return found_in_log(examination, messages, cause, fix)


@AREA.check(
    "xid-nvlink-error",
    Severity.WARNING,
    "An NVLink has errors",
    XID_DOCUMENT,
    ok="No NVLink error in the kernel log",
    impact="Multi-GPU jobs die or slow down.",
)
def xid_nvlink_error(examination: Examination) -> Outcome:
    """Find Xids of NVLinks."""
    messages = log_messages(examination, LogKind.XID, _xids(*NVLINK))
    fix = make_plan(
        "Reset the GPUs of the NVLink domain",
        instruction("Run nvidia-smi nvlink -e to see the error counters of every link", False),
        "Drain the node, then reset all GPUs of the NVLink domain",
        "Replace the part if errors return",
        disturbs="every job on this node",
    )
    return found_in_log(examination, messages, "the driver reported errors on an NVLink.", fix)


@AREA.check(
    "xid-of-a-program",
    Severity.NOTE,
    "A program failed on a GPU",
    XID_DOCUMENT,
    ok="No program error in the kernel log",
    impact="That program exited. Other jobs are not affected.",
)
def xid_of_a_program(examination: Examination) -> Outcome:
    """Find Xids that are mostly a bug of the program."""
    messages = log_messages(examination, LogKind.XID, _xids(*PROGRAM))
    cause = "usually a bug in the program, or its peers died. If it hits many programs, suspect the hardware."
    return found_in_log(examination, messages, cause)


class _Action(IntEnum):
    """What a GPU needs: nvmlDeviceGpuRecoveryAction_t, which Xid 154 prints with a text of the driver."""

    NONE = 0
    RESET = 1
    REBOOT = 2
    DRAIN_P2P = 3
    DRAIN_AND_RESET = 4
    RECOVER_IMEX = 5
    BUS_RESET = 6
    SYSTEM_REBOOT = 7


# The GPU itself goes on: other GPUs' jobs must let go of it, or another service is to be recovered.
_STILL_USABLE = (_Action.DRAIN_P2P, _Action.RECOVER_IMEX)
_RECOVERY_ACTION = re.compile(r"recovery action changed from .{1,60} to 0x([0-9a-f]{1,4}) \(([^)]{1,60})\)")
_STEPS = {
    _Action.DRAIN_P2P: "Stop jobs on other GPUs that access this GPU; all other jobs can continue",
    _Action.RECOVER_IMEX: "Recover the IMEX domain: restart nvidia-imex on its nodes when no job is running",
    **dict.fromkeys(
        (_Action.RESET, _Action.DRAIN_AND_RESET, _Action.BUS_RESET),
        f"Stop every job on this GPU and its NVLink peers, then run {_RESET}",
    ),
    **dict.fromkeys((_Action.REBOOT, _Action.SYSTEM_REBOOT), "Drain the node and reboot it"),
}


@AREA.check(
    "gpu-recovery-action",
    Severity.WARNING,
    "A GPU needs a reset or a reboot before it can be used again",
    f"NVML, nvmlDeviceGpuRecoveryAction_t; Xid 154 in {XID_DOCUMENT}",
    ok="No GPU needs a reset or a reboot",
    impact="New jobs on this GPU fail to start, or die. NCCL then reports an error on all their nodes.",
    part_of=(LOST_GPU, GSP_TIMEOUT),
)
def gpu_recovery_action(examination: Examination) -> Outcome:
    """Read the latest Xid 154 of each GPU, which says what it needs; 0x0 means that it has recovered."""
    waiting: dict[str, tuple[int, str, KernelMessage]] = {}
    for message in log_messages(examination, LogKind.XID, _xids(RECOVERY)):
        match = _RECOVERY_ACTION.search(message.text)
        if match is None or message.bdf is None:
            continue
        number = int(match[1], 16)
        if number == _Action.NONE:
            waiting.pop(message.bdf, None)
        else:
            waiting[message.bdf] = number, match[2], message
    if not waiting:
        return passed(Evidence("Xid 154", "no GPU requests a recovery action"))
    actions = {number for number, _, _ in waiting.values()}
    steps = list(dict.fromkeys(text for action, text in _STEPS.items() if action in actions))
    steps = [step.replace(_RESET, _reset(tuple(waiting))) for step in steps]
    if not actions <= set(_STEPS):
        steps.append("Follow NVIDIA's Xid catalog, Xid 154, for the action in the log line")
    names = dict.fromkeys(text for _, text, _ in waiting.values())
    outcome = found_in_log(
        examination,
        [message for _, _, message in waiting.values()],
        f"the driver requests: {join_limited(names)}.",
        Plan("Recover the GPU", tuple(instruction(step) for step in steps), disturbs=_DRAIN),
    )
    lost = tuple(bdf for bdf, (action, _, _) in waiting.items() if action not in _STILL_USABLE)
    return replace(outcome, takes=lost)


@AREA.check(
    "xid-other",
    Severity.WARNING,
    "The driver reported a GPU error",
    XID_DOCUMENT,
    ok="No other GPU error in the kernel log",
    impact="Depends on the Xid number. Jobs on this GPU may have died.",
)
def xid_other(examination: Examination) -> Outcome:
    """Find every other Xid."""
    reported = _xids(*LOST, *GSP, *MEMORY, *NVLINK, *PROGRAM, RECOVERY)
    messages = log_messages(examination, LogKind.XID, lambda message: not reported(message))
    numbers = sorted({message.number for message in messages if message.number is not None})
    fix = make_plan("Look up the Xid", "Follow NVIDIA's Xid manual for this number", needs_root=False)
    shown = ", ".join(str(number) for number in numbers[:SHOWN])
    meanings = [f"Xid {number}: {OTHERS[number]}" for number in numbers[:SHOWN] if number in OTHERS]
    cause = " ".join((f"the kernel log shows Xid {shown}.", *meanings[:_EXPLAINED]))
    return found_in_log(examination, messages, cause, fix)


@AREA.check(
    "sxid",
    Severity.WARNING,
    "An NVSwitch reported errors",
    _FABRIC,
    ok="No NVSwitch error in the kernel log",
    impact="After a fatal SXid, CUDA returns error 802 until a reset.",
)
def sxid(examination: Examination) -> Outcome:
    """Find SXids of NVSwitches; a note if all of them are non-fatal."""
    messages = log_messages(examination, LogKind.SXID)
    fix = make_plan(
        "Reset the GPUs after a fatal SXid",
        instruction("Check in the Fabric Manager user guide whether this SXid is fatal", False),
        "After a fatal SXid, drain the node, stop Fabric Manager, reset all GPUs, then start Fabric "
        "Manager again",
        disturbs="every job on this node",
    )
    if all("non-fatal" in message.text.casefold() for message in messages):
        outcome = found_in_log(examination, messages, "all of them are non-fatal.", fix, Severity.NOTE)
        return replace(outcome, impact="None now. A link with many non-fatal errors may fail.")
    return found_in_log(examination, messages, "a link or a port of the NVSwitch had an error.", fix)
