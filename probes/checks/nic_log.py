"""Checks of what the kernel log says of NICs."""

from __future__ import annotations

from probes.checks.finding import Area, Outcome, Severity
from probes.checks.log_messages import log_messages, marked, of_log
from probes.examination import Examination
from probes.kernel_log import KernelMessage, LogKind
from probes.plan import Plan, Step, instruction
from probes.unknown import Unknown

AREA = Area("nic")
_DRIVER = "Linux, Documentation/networking/device_drivers/ethernet/mellanox/mlx5"
_HEALTH = "Linux, Documentation/networking/devlink/devlink-health.rst and mlx5.rst"


@AREA.check("nic-health-errors", Severity.WARNING, "the kernel log tells of a NIC that is not well", _HEALTH)
def health_errors(examination: Examination) -> Outcome:
    """mlx5's health reports: firmware asserts, fatal errors, recoveries."""
    messages = log_messages(examination, LogKind.NIC_HEALTH)
    if isinstance(messages, Outcome):
        return messages
    steps = [
        Step(f"shows what the reporters of {bdf} know", ("devlink", "health", "show", f"pci/{bdf}"))
        for bdf in marked(messages)[:2]
    ]
    fix = Plan(
        "Look into it, and bring the firmware up to date",
        (*steps, instruction("update the firmware; replace the NIC where it comes back")),
    )
    return of_log(examination, messages, "its firmware reported a fault, and jobs lost it for a while", fix)


@AREA.check("nic-power-or-heat", Severity.WARNING, "a NIC lacks power or is too hot", _DRIVER)
def power_or_heat(examination: Examination) -> Outcome:
    """mlx5's messages about slot power and temperature."""
    messages = log_messages(examination, LogKind.NIC_POWER)
    if isinstance(messages, Outcome):
        return messages
    fix = Plan(
        "Give it power and air",
        (
            instruction(
                "look at the slot's power limit (BIOS), auxiliary power, fans and the optics' temperature"
            ),
        ),
    )
    return of_log(examination, messages, "it slows down, or its optics switch off", fix)


_BOOT_SECONDS = 300.0


def _is_empty_cage(message: KernelMessage) -> bool:
    """A port without a module says so once, when its driver starts."""
    at = message.seconds
    return "unplugged" in message.text and (isinstance(at, Unknown) or at < _BOOT_SECONDS)


@AREA.check(
    "link-flaps-log", Severity.NOTE, "the kernel log tells of links and modules that went away", _DRIVER
)
def link_messages(examination: Examination) -> Outcome:
    """mlx5's messages "Link down" and of modules that failed."""
    messages = log_messages(examination, LogKind.NIC_LINK, lambda one: not _is_empty_cage(one))
    if isinstance(messages, Outcome):
        return messages
    fix = Plan(
        "Look at cable and optics",
        (instruction("mlxlink -d BDF -m -c shows module and errors; clean, reseat or replace"),),
        disturbs="jobs that use this port, while the cable is out",
    )
    told = "the link or its module went away since boot; jobs on it fail with completion error 12"
    return of_log(examination, messages, told, fix)


_REFUSED_REGISTER = "ACCESS_REG"
_NO_REGION = "reg mr failed"


@AREA.check(
    "monitor-causes-log-flood",
    Severity.NOTE,
    "reading a NIC's counters writes errors into the kernel log",
    "https://github.com/prometheus/node_exporter/issues/3434",
)
def register_refused(examination: Examination) -> Outcome:
    """Refused ACCESS_REG commands: the firmware does not let this function read its counters."""
    messages = log_messages(examination, LogKind.NIC_COMMAND, lambda one: _REFUSED_REGISTER in one.text)
    if isinstance(messages, Outcome):
        return messages
    fix = Plan(
        "Have monitors leave this NIC out",
        (
            instruction(
                "exclude the device in the exporter that reads its counters (its pid is in the line)", False
            ),
        ),
    )
    return of_log(
        examination,
        messages,
        "its firmware refuses some registers to this host; harmless but for the log",
        fix,
    )


@AREA.check(
    "fw-resources-exhausted",
    Severity.WARNING,
    "a NIC had no room for another memory region",
    "rdma-resource(8) of iproute2",
)
def no_room(examination: Examination) -> Outcome:
    """Registrations of memory that the firmware refused."""
    messages = log_messages(examination, LogKind.NIC_COMMAND, lambda one: _NO_REGION in one.text)
    if isinstance(messages, Outcome):
        return messages
    fix = Plan(
        "Find who holds the regions",
        (Step("counts regions and queues of each NIC", ("rdma", "resource", "show"), False),),
        note="a program that registers without end is the usual reason: restart it",
    )
    return of_log(examination, messages, "its firmware refused to register memory", fix)


@AREA.check(
    "nic-firmware-command-failed", Severity.WARNING, "a NIC's firmware failed or ignored a command", _HEALTH
)
def command_failed(examination: Examination) -> Outcome:
    """Commands that timed out or failed, but for those of the two checks above."""

    def other(one: KernelMessage) -> bool:
        return _REFUSED_REGISTER not in one.text and _NO_REGION not in one.text

    messages = log_messages(examination, LogKind.NIC_COMMAND, other)
    if isinstance(messages, Outcome):
        return messages
    fix = Plan(
        "Bring the firmware up to date",
        (
            Step("shows the firmware of all NICs", ("mlxfwmanager", "--query")),
            instruction("update it; power-cycle the node where commands keep timing out"),
        ),
        reversible=False,
        disturbs="every job that uses the NIC",
    )
    return of_log(examination, messages, "driver and firmware do not get along, or the firmware hangs", fix)
