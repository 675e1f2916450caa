"""Checks of kernel messages about NICs."""

from __future__ import annotations

from probes.base.plan import Step, make_plan
from probes.base.unknown import Unknown
from probes.checks.nic.devices import DRIVER_DOCUMENT
from probes.facts.kernel.log import KernelMessage, LogKind
from probes.queries.finding import Area, Outcome, Severity
from probes.queries.kernel_log import Filter, bdfs_in, found_in_log, log_messages
from probes.queries.ports import LINK_CAUSES
from probes.snapshot.examination import Examination

AREA = Area("nic")
_HEALTH = "Linux, Documentation/networking/devlink/devlink-health.rst and mlx5.rst"
_BOOT_SECONDS = 300.0
_REFUSED_REGISTER = "ACCESS_REG"
_REFUSED_REGION = ("reg mr failed", "register mr", "command REG_MR")  # mlx5, EFA


@AREA.check(
    "nic-health-errors",
    Severity.WARNING,
    "A NIC reported health errors",
    _HEALTH,
    ok="No NIC health errors in the kernel log",
    impact="Jobs lost the NIC while its firmware recovered.",
)
def nic_health_errors(examination: Examination) -> Outcome:
    """Find mlx5's health reports: firmware asserts, fatal errors, recoveries."""
    messages = log_messages(examination, LogKind.NIC_HEALTH)
    steps = [
        Step(f"Show the health reports of {bdf}", ("devlink", "health", "show", f"pci/{bdf}"))
        for bdf in bdfs_in(messages)[:2]
    ]
    fix = make_plan(
        "Check health reports and update the firmware",
        *steps,
        "Update the firmware. Replace the NIC if the errors come back.",
    )
    return found_in_log(examination, messages, "the firmware reported a fault.", fix)


@AREA.check(
    "nic-power-or-heat",
    Severity.WARNING,
    "A NIC has too little power or is too hot",
    DRIVER_DOCUMENT,
    ok="No NIC power or temperature alarm in the kernel log",
    impact="The NIC slows down, or its optics shut down.",
)
def nic_power_or_heat(examination: Examination) -> Outcome:
    """Find mlx5's alarms about the slot's power and the card's temperature."""
    messages = log_messages(examination, LogKind.NIC_POWER)
    fix = make_plan(
        "Check power and cooling",
        "Check the slot's power limit (BIOS), auxiliary power, fans and optics temperature",
    )
    cause = "the NIC reported insufficient power or high temperature."
    return found_in_log(examination, messages, cause, fix)


@AREA.check(
    "link-flaps-log",
    Severity.NOTE,
    "The kernel log reports links or optics going down",
    DRIVER_DOCUMENT,
    ok="The kernel log shows no link or optics going down",
    impact="Jobs on the port failed at that moment (NCCL: completion error 12).",
    part_of=(*LINK_CAUSES, "link-flaps", "link-flaps-carrier"),
)
def link_flaps_log(examination: Examination) -> Outcome:
    """Find messages of ports that went down, and mlx5's of failed optics."""
    messages = log_messages(examination, LogKind.NIC_LINK, lambda message: not _is_empty_cage(message))
    fix = make_plan(
        "Check cable and optics",
        "Show optics and errors: mlxlink -d BDF -m -c. Clean, reseat or replace the cable and optics.",
        disturbs="jobs that use this port while the cable is out",
    )
    return found_in_log(examination, messages, "the link or its optics went down since boot.", fix)


def _is_empty_cage(message: KernelMessage) -> bool:
    """Say whether a port without an optical module logged this when its driver started."""
    at = message.seconds
    return "unplugged" in message.text and (isinstance(at, Unknown) or at < _BOOT_SECONDS)


def _is_about(*phrases: str) -> Filter:
    return lambda message: any(words in message.text for words in phrases)


@AREA.check(
    "monitor-causes-log-flood",
    Severity.NOTE,
    "A monitor that reads NIC counters floods the kernel log",
    "https://github.com/prometheus/node_exporter/issues/3434",
    ok="No flood of refused counter reads in the kernel log",
    impact="The log overflows and loses the messages that matter.",
)
def monitor_causes_log_flood(examination: Examination) -> Outcome:
    """Find registers that the firmware denies, as a reader of counters asks for them."""
    messages = log_messages(examination, LogKind.NIC_COMMAND, _is_about(_REFUSED_REGISTER))
    fix = make_plan(
        "Exclude this NIC from monitoring",
        "Exclude the device in the exporter that reads its counters (its PID is in the log line)",
        needs_root=False,
    )
    cause = "the firmware denies this host access to some registers. Nothing else is wrong."
    return found_in_log(examination, messages, cause, fix)


@AREA.check(
    "fw-resources-exhausted",
    Severity.WARNING,
    "A NIC ran out of resources for memory regions",
    "rdma-resource(8) of iproute2",
    ok="No NIC ran out of resources for memory regions",
    impact="Programs fail to register memory with this NIC.",
)
def fw_resources_exhausted(examination: Examination) -> Outcome:
    """Find registrations of memory that the firmware refused."""
    messages = log_messages(examination, LogKind.NIC_COMMAND, _is_about(*_REFUSED_REGION))
    fix = make_plan(
        "Find the process with too many memory regions",
        Step("Count memory regions and queues of each NIC", ("rdma", "resource", "show"), False),
        note="Usually, one program keeps registering memory. Restart that program.",
    )
    return found_in_log(examination, messages, "the firmware refused to register memory.", fix)


@AREA.check(
    "nic-firmware-command-failed",
    Severity.WARNING,
    "A NIC's firmware failed or timed out on a command",
    _HEALTH,
    ok="No failed firmware commands in the kernel log",
    impact="An operation failed, such as a memory registration or a queue pair setup. Timeouts often come "
    "back.",
)
def nic_firmware_command_failed(examination: Examination) -> Outcome:
    """Find all other commands that the firmware failed."""
    reported = _is_about(_REFUSED_REGISTER, *_REFUSED_REGION)
    messages = log_messages(examination, LogKind.NIC_COMMAND, lambda message: not reported(message))
    fix = make_plan(
        "Update the firmware",
        Step("Show the firmware of all NICs", ("mlxfwmanager", "--query")),
        "Update the firmware. Power-cycle the node if commands keep timing out.",
        disturbs="every job that uses the NIC",
    )
    cause = "driver and firmware do not match, or the firmware is hung."
    return found_in_log(examination, messages, cause, fix)
