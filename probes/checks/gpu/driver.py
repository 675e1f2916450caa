"""Checks of the GPU driver: its libraries, its start, persistence, and its Xids in the kernel log."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from enum import IntEnum
from operator import not_

from probes.base.evidence import Evidence, Severity, first_n
from probes.base.plan import instruction, make_plan, plan_or_none
from probes.base.text import SHOWN, join_limited
from probes.base.unknown import Unknown, is_there, known, map_known
from probes.checks.gpu.devices import GSP_TIMEOUT, LOST_GPU, answer_now, bdfs_of, gpus_with, names_of
from probes.facts.gpu.generations import generation_named
from probes.facts.kernel.log import UNSUPPORTED_GPU, KernelMessage, LogKind
from probes.facts.system.services import ServiceState
from probes.facts.system.tools import OF_DRIVER
from probes.plans.driver import PERSISTENCE_DAEMON, persistence_on
from probes.plans.packages import in_driver_container
from probes.queries.finding import Area, Outcome, found, need, needs, passed, unknown
from probes.queries.kernel_log import (
    GSP,
    LOST,
    MEMORY,
    NVLINK,
    PROGRAM,
    RECOVERY,
    Filter,
    bdfs_in,
    explanation_of,
    found_in_log,
    log_messages,
    meaning_of,
)
from probes.queries.modules import FILES, file_of
from probes.queries.pcie_paths import gpus_here
from probes.snapshot.examination import Examination

AREA = Area("gpu", __package__)
XIDS = Area("gpu", __package__)
_MISMATCH = "driver/library version mismatch"


@AREA.critical("driver-library-mismatch")
def driver_library_mismatch(examination: Examination) -> Outcome:
    """Compare NVML's answer and the versions of the driver's libraries with the kernel driver."""
    driver = need(examination.node.gpus, "the driver's version").driver
    not_loaded = Evidence("/sys/module/nvidia", "the driver is not loaded")
    version = need(driver.version, "the driver's version", absent=not_loaded)
    loaded = Evidence("/sys/module/nvidia/version", version)
    found_files = known(map_known(examination.libraries, lambda libraries: libraries.found), {})
    libraries = found_files.get("libnvidia-ml.so.1", ())
    shown = [Evidence(file.path, file.version) for file in libraries if not isinstance(file.version, Unknown)]
    complains = driver.nvml is not None and driver.nvml.startswith(_MISMATCH)
    # If one of several files matches, the loader's configuration decides, and NVML's answer counts.
    if complains or (shown and all(file.value != version for file in shown)):
        return found(
            "The driver packages were updated while the old driver was loaded.",
            loaded,
            *first_n(shown),
            *((Evidence("NVML", driver.nvml),) if driver.nvml else ()),
            devices=("nvidia",),
            takes=examination.usability.gpus,
        )
    if driver.nvml is None:
        return passed(loaded, Evidence("NVML", "responds"), *first_n(shown))
    if not shown:
        return unknown(needs("NVML", driver.nvml), loaded)
    return passed(loaded, *first_n(shown))


@AREA.critical("driver-library-missing")
def driver_library_missing(examination: Examination) -> Outcome:
    """Look for libcuda and libnvidia-ml where the driver is loaded and NVML does not answer."""
    driver = need(examination.node.gpus, "the driver's version").driver
    not_loaded = Evidence("/sys/module/nvidia", "the driver is not loaded")
    need(driver.version, "the driver's version", absent=not_loaded)
    libraries = need(examination.libraries, "the libraries")
    installed = {name: libraries.installed(name) for name in OF_DRIVER}
    missing = [name for name, files in installed.items() if files == ()]
    # Libraries may be in places that gdrtop does not know, but then both are.
    answers = driver.nvml is None and "libnvidia-ml.so.1" in missing
    if answers or in_driver_container(examination):
        return passed(Evidence("libnvidia-ml.so.1", "found" if driver.nvml else "NVML responds"))
    if not missing:
        for name, files in installed.items():
            need(files, name)
        return passed(*(Evidence(name, "found") for name in installed))
    return found(
        "The kernel modules are installed without the driver's user-space packages.",
        *(
            Evidence(f"/usr/lib/*/{name}", "not found there or in other library directories")
            for name in missing
        ),
        devices=("nvidia",),
        takes=examination.usability.gpus,
    )


@AREA.critical("gsp-firmware-missing")
def gsp_firmware_missing(examination: Examination) -> Outcome:
    """Look for the files below /lib/firmware that nvidia.ko names, which open modules need."""
    file = need(file_of(examination, "nvidia"), FILES, absent=Evidence("modinfo nvidia", "no such module"))
    missing = need(examination.module_files, FILES).without_firmware
    if not file.firmware or len(missing) < len(file.firmware) or "GPL" not in known(file.license, ""):
        return passed(Evidence("modinfo -F firmware nvidia", "found" if file.firmware else "none"))
    gpus = examination.node.gpus
    answers = not isinstance(gpus, Unknown) and gpus.driver.nvml is None
    return found(
        "The firmware package is missing, or its version does not match the modules.",
        *first_n(Evidence(f"/lib/firmware/{path}", "not found") for path in missing),
        severity=Severity.WARNING if answers else None,
        impact="None while the driver is loaded. After the next reload, no GPU works." if answers else "",
        devices=("nvidia",),
        takes=() if answers else examination.usability.gpus,
    )


@AREA.critical("gpu-driver-start-failed", part_of=(LOST_GPU, GSP_TIMEOUT, "gpu-missing-from-nvml"))
def gpu_driver_start_failed(examination: Examination) -> Outcome:
    """Find failures of RmInitAdapter and probe in the kernel log, and GPUs that the driver does not know."""
    messages = log_messages(examination, LogKind.GPU_DRIVER, lambda line: "API mismatch" not in line.text)
    back = answer_now(examination, set(bdfs_in(messages)))
    if any(UNSUPPORTED_GPU in message.text for message in messages) and not back:
        bdfs = bdfs_in(messages)
        names = [gpu.name for gpu in gpus_here(examination) if gpu.bdf in bdfs]
        row = next(filter(None, map(generation_named, names)), None)
        least = "" if row is None else f". {row.name} GPUs are supported from R{row.first_branch} on"
        newer = make_plan(
            "Install a driver that supports the GPU",
            f"Choose a driver release that lists this GPU in Appendix A of its README{least}",
        )
        return found_in_log(examination, messages, "this driver release does not support the GPU.", newer)
    cause = "RmInitAdapter or probe failed"
    if back:
        cause += " once. The GPU responds now."
        return replace(found_in_log(examination, messages, cause, severity=Severity.NOTE), impact="None now.")
    cause += ". The numbers in the message show where."
    return found_in_log(examination, messages, cause)


def _persistence_off(examination: Examination, daemon_runs: bool, cause: str) -> Outcome:
    """Find GPUs without persistence mode where nvidia-persistenced runs, or where it does not."""
    gpus = gpus_with(examination, lambda nvml: map_known(nvml.persistence, not_), "persistence mode disabled")
    state = need(examination.services, "the services").services[PERSISTENCE_DAEMON].state
    is_active = is_there(state) is not False and need(state, "the services") is ServiceState.ACTIVE
    source = f"systemctl is-active {PERSISTENCE_DAEMON}"
    if is_active is not daemon_runs:
        return passed(Evidence(source, "active" if is_active else "inactive (see persistence-off)"))
    return found(
        f"{names_of(gpus)}: {cause}",
        *first_n(Evidence(f"NVML persistence mode of GPU{gpu.index}", "disabled") for gpu in gpus),
        Evidence(source, "active" if is_active else "inactive"),
        fix=plan_or_none(persistence_on(examination)),
        devices=bdfs_of(gpus),
    )


@AREA.note("persistence-off")
def persistence_off(examination: Examination) -> Outcome:
    """Find persistence mode off without nvidia-persistenced; one of the two is enough."""
    cause = "the driver shuts down a GPU when the last program that uses it exits."
    return _persistence_off(examination, False, cause)


@AREA.note("persistence-off-daemon-runs")
def persistence_off_daemon_runs(examination: Examination) -> Outcome:
    """Find persistence mode off although the daemon runs: it was started with --no-persistence-mode."""
    cause = "some packages start the daemon with --no-persistence-mode."
    return _persistence_off(examination, True, cause)


# Checks of kernel messages about GPUs and NVSwitches: Xids and SXids.

_DRAIN = "every job on this GPU, or on the node if it is rebooted"


def _xids(*numbers: int) -> Filter:
    return lambda message: message.number in numbers


_RESET = "nvidia-smi --gpu-reset"


def _reset(bdfs: Sequence[str]) -> str:
    """Return the command that resets these GPUs; by address, because an index is not the same everywhere."""
    return f"{_RESET} -i {','.join(bdfs)}" if bdfs else _RESET


@XIDS.critical(GSP_TIMEOUT)
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


@XIDS.warning("xid-memory-error")
def xid_memory_error(examination: Examination) -> Outcome:
    """Find Xids of ECC errors, remapped rows and retired pages."""
    fix = make_plan(
        "Reset the GPU",
        instruction("Run nvidia-smi -q -d ROW_REMAPPER,ECC to see whether a reset is pending", False),
        "Drain and reset the GPU",
        "Replace the GPU if remapping failed (Xid 64)",
        disturbs=_DRAIN,
    )
    cause = "row remapping takes effect at the next GPU reset."
    return found_in_log(examination, log_messages(examination, LogKind.XID, _xids(*MEMORY)), cause, fix)


@XIDS.warning("xid-nvlink-error")
def xid_nvlink_error(examination: Examination) -> Outcome:
    """Find Xids of NVLinks."""
    messages = log_messages(examination, LogKind.XID, _xids(*NVLINK))
    return found_in_log(examination, messages, "the driver reported errors on an NVLink.")


@XIDS.note("xid-of-a-program")
def xid_of_a_program(examination: Examination) -> Outcome:
    """Find Xids that are mostly a bug of the program."""
    cause = "usually a bug in the program, or its peers died. If it hits many programs, suspect the hardware."
    return found_in_log(examination, log_messages(examination, LogKind.XID, _xids(*PROGRAM)), cause)


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


@XIDS.warning("gpu-recovery-action", part_of=(LOST_GPU, GSP_TIMEOUT))
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
    outcome = found_in_log(
        examination,
        [message for _, _, message in waiting.values()],
        f"the driver requests: {join_limited(text for _, text, _ in waiting.values())}.",
        make_plan("Recover the GPU", *steps, disturbs=_DRAIN),
    )
    lost = tuple(bdf for bdf, (action, _, _) in waiting.items() if action not in _STILL_USABLE)
    return replace(outcome, takes=lost)


@XIDS.warning("xid-other")
def xid_other(examination: Examination) -> Outcome:
    """Find every other Xid."""
    reported = _xids(*LOST, *GSP, *MEMORY, *NVLINK, *PROGRAM, RECOVERY)
    messages = log_messages(examination, LogKind.XID, lambda message: not reported(message))
    lines = {message.number: message.text for message in messages if message.number is not None}
    numbers = sorted(lines)
    shown = ", ".join(str(number) for number in numbers[:SHOWN])
    said = [(number, explanation_of(meaning_of(lines[number]))) for number in numbers[:SHOWN]]
    meanings = [f"Xid {number}: {text}" for number, text in said if text]
    cause = " ".join((f"the kernel log shows Xid {shown}.", *meanings[:2]))
    return found_in_log(examination, messages, cause)


@XIDS.warning("sxid")
def sxid(examination: Examination) -> Outcome:
    """Find SXids of NVSwitches; a note if all of them are non-fatal."""
    messages = log_messages(examination, LogKind.SXID)
    if all("non-fatal" in message.text.casefold() for message in messages):
        outcome = found_in_log(examination, messages, "all of them are non-fatal.", severity=Severity.NOTE)
        return replace(outcome, impact="None now. A link with many non-fatal errors may fail.")
    return found_in_log(examination, messages, "a link or a port of the NVSwitch had an error.")
