"""Checks of what the kernel log says of GPUs and NVSwitches: Xids and SXids."""

from __future__ import annotations

from probes.checks.finding import Area, Outcome, Severity
from probes.checks.gpu import answer_now
from probes.checks.log_messages import log_messages, of_log
from probes.checks.wording import SHOWN
from probes.examination import Examination
from probes.kernel_log import KernelMessage, LogKind
from probes.plan import Plan, instruction

AREA = Area("gpu")
_XIDS = "NVIDIA Xid errors, https://docs.nvidia.com/deploy/xid-errors/index.html"
_FABRIC = (
    "NVIDIA Fabric Manager user guide, SXid errors, "
    "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html"
)
# By NVIDIA's Xid catalogue.
_LOST = (79,)  # xid-79-fell-off-bus
_GSP = (119, 120)
_MEMORY = (48, 63, 64, 92, 94, 95)
_NVLINK = (74, 144, 145, 146, 147, 148, 149, 150)
_PROGRAM = (13, 31, 43, 45, 68)

_DRAIN = "every job on this GPU, or on the node where it is rebooted"


def _xids(examination: Examination, numbers: tuple[int, ...]) -> Outcome | list[KernelMessage]:
    return log_messages(examination, LogKind.XID, lambda one: one.number in numbers)


@AREA.check(
    "xid-119-gsp-timeout", Severity.CRITICAL, "a GPU's system processor (GSP) stopped answering", _XIDS
)
def gsp_timeout(examination: Examination) -> Outcome:
    """Xid 119 and 120."""
    messages = _xids(examination, _GSP)
    if isinstance(messages, Outcome):
        return messages
    fix = Plan(
        "Reset the GPU",
        (
            instruction("drain the node; nvidia-smi --gpu-reset -i N, or reboot"),
            instruction(
                "update the driver where it comes back; NVreg_EnableGpuFirmware=0 is for the closed one only"
            ),
        ),
        disturbs=_DRAIN,
    )
    if answer_now(examination, {one.bdf for one in messages}):
        told = "it answers now, but its jobs have died or stood still; it comes back"
        return of_log(examination, messages, told, fix, Severity.WARNING)
    told = "nvidia-smi hangs or is very slow, and jobs stand still; it looks like a fault of the network"
    return of_log(examination, messages, told, fix)


@AREA.check("xid-memory-error", Severity.WARNING, "a GPU's memory had errors", _XIDS)
def memory_errors(examination: Examination) -> Outcome:
    """Xids of ECC errors and of rows or pages put aside: 48, 63, 64, 92, 94, 95."""
    messages = _xids(examination, _MEMORY)
    if isinstance(messages, Outcome):
        return messages
    fix = Plan(
        "Look at the rows that were replaced, and reset",
        (
            instruction(
                "nvidia-smi -q -d ROW_REMAPPER,ECC tells whether a reset is pending or rows have run out"
            ),
            instruction("drain and reset the GPU; replace it where remapping failed (Xid 64)"),
        ),
        disturbs=_DRAIN,
    )
    return of_log(
        examination, messages, "jobs may have died of it; a replaced row needs a reset of the GPU", fix
    )


@AREA.check("xid-nvlink-error", Severity.WARNING, "an NVLink had errors", _XIDS)
def nvlink_errors(examination: Examination) -> Outcome:
    """Xids of NVLink: 74, and 144 to 150 on later GPUs."""
    messages = _xids(examination, _NVLINK)
    if isinstance(messages, Outcome):
        return messages
    fix = Plan(
        "Look at the link's errors, and reset",
        (
            instruction("nvidia-smi nvlink -e shows the counters of every link", False),
            instruction("drain, and reset all GPUs of the NVLink domain; replace what comes back"),
        ),
        disturbs="every job on this node",
    )
    return of_log(examination, messages, "jobs over several GPUs die or slow down", fix)


@AREA.check("xid-of-a-program", Severity.NOTE, "a program's error ended its work on a GPU", _XIDS)
def program_errors(examination: Examination) -> Outcome:
    """Xids that are mostly a program's own: 13, 31, 43, 45, 68."""
    messages = _xids(examination, _PROGRAM)
    if isinstance(messages, Outcome):
        return messages
    told = "mostly a bug of the program, or its peers died; hardware only where many programs meet it"
    return of_log(examination, messages, told, None)


@AREA.check("xid-other", Severity.WARNING, "the driver reported an error of a GPU", _XIDS)
def other_xids(examination: Examination) -> Outcome:
    """Every other Xid."""
    elsewhere = (*_LOST, *_GSP, *_MEMORY, *_NVLINK, *_PROGRAM)
    messages = log_messages(examination, LogKind.XID, lambda one: one.number not in elsewhere)
    if isinstance(messages, Outcome):
        return messages
    numbers = sorted({one.number for one in messages if one.number is not None})
    fix = Plan(
        "Look the number up",
        (instruction("NVIDIA's Xid manual says for each number what to do", False),),
    )
    shown = ", ".join(str(number) for number in numbers[:SHOWN])
    return of_log(examination, messages, f"Xid {shown}: see NVIDIA's Xid manual", fix)


@AREA.check("sxid", Severity.WARNING, "an NVSwitch reported errors", _FABRIC)
def sxids(examination: Examination) -> Outcome:
    """SXids of NVSwitches."""
    messages = log_messages(examination, LogKind.SXID)
    if isinstance(messages, Outcome):
        return messages
    fix = Plan(
        "Look the number up, and reset",
        (
            instruction("the Fabric Manager user guide says which SXids are fatal and what to do", False),
            instruction("after a fatal one: drain, stop Fabric Manager, reset all GPUs, start it again"),
        ),
        disturbs="every job on this node",
    )
    if all("non-fatal" in one.text.casefold() for one in messages):
        told = "none of them was fatal; links that have many of them wear out"
        return of_log(examination, messages, told, fix, Severity.NOTE)
    return of_log(examination, messages, "after a fatal one CUDA answers error 802 until a reset", fix)
