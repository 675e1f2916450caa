"""Checks of ports' error counters: what rises matters, what stands there has happened some time ago."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.port_use import NO_PORTS, Port, devices_of, names, ports_of
from probes.checks.wording import at_most
from probes.examination import Examination
from probes.plan import Plan, instruction
from probes.port_health import ERROR_COUNTER_BITS, PortHealth
from probes.unknown import Maybe, Reason, Unknown, known

AREA = Area("nic")
_ABI = "Linux, Documentation/ABI/stable/sysfs-class-infiniband: counters"
_HW_REFERENCE = (
    "NVIDIA, Understanding mlx5 Linux counters, https://enterprise-support.nvidia.com/s/article/"
    "understanding-mlx5-linux-counters-and-status-parameters"
)
_SIGNAL = ("symbol_error", "link_error_recovery", "port_rcv_errors", "local_link_integrity_errors")
_DISCARDS = ("port_xmit_discards", "VL15_dropped", "excessive_buffer_overrun_errors")
_REORDERED = ("out_of_sequence", "packet_seq_err")
_TIMEOUTS = ("local_ack_timeout_err",)


@dataclass(frozen=True)
class _Reading:
    """One counter of one port, now and at the examination before."""

    port: Port
    source: str
    value: int
    rise: int | None  # None: there was no examination before, or the counter began anew

    @property
    def rises(self) -> bool:
        """It has counted since the examination before."""
        return bool(self.rise)

    @property
    def is_full(self) -> bool:
        """It stands at its greatest value, and an equal value later means nothing."""
        bits = ERROR_COUNTER_BITS.get(self.source.rpartition("/")[2])
        return bits is not None and self.value == (1 << bits) - 1

    def evidence(self) -> Evidence:
        """The value, and by how much it has risen."""
        return Evidence(
            self.source, f"{self.value}, {self.rise} more since" if self.rise else str(self.value)
        )


def _readings(
    examination: Examination, of: Iterable[str], hardware: bool
) -> tuple[list[_Reading], Outcome | None]:
    """The counters of these names on every port, and what to say where one could not be read."""
    ports = ports_of(examination)
    if isinstance(ports, Unknown):
        return [], unsure(f"needs the RDMA devices: {ports}")
    out: list[_Reading] = []
    missing: Outcome | None = None
    for port in ports:
        counters = _counters(port.health, hardware)
        if isinstance(counters, Unknown):
            if counters.reason is not Reason.NOT_THERE:
                missing = unsure(f"needs the counters of {port.name}: {counters}")
            continue  # a port without counters: port-counters-missing says so
        before = _before(examination, port, hardware)
        for name in of:
            value = counters.get(name)
            if isinstance(value, Unknown):
                missing = unsure(f"needs the counter {name} of {port.name}: {value}")
            elif value is not None:
                directory = "hw_counters" if hardware else "counters"
                earlier = before.get(name)
                rise = None if earlier is None or earlier > value else value - earlier
                out.append(_Reading(port, f"{port.path}/{directory}/{name}", value, rise))
    return out, missing


def _counters(health: Maybe[PortHealth], hardware: bool) -> Maybe[dict[str, Maybe[int]]]:
    if isinstance(health, Unknown):
        return health
    if hardware:
        return health.hw_errors
    if isinstance(health.errors, Unknown):
        return health.errors
    return {name: one if isinstance(one, Unknown) else one.value for name, one in health.errors.items()}


def _before(examination: Examination, port: Port, hardware: bool) -> dict[str, int]:
    facts = examination.earlier_port_health
    if facts is None or isinstance(facts, Unknown):
        return {}
    health = facts.ports.get((port.device.name, port.facts.number))
    counters = {} if health is None else known(_counters(health, hardware), {})
    return {name: value for name, value in counters.items() if not isinstance(value, Unknown)}


def _judge(
    examination: Examination,
    of: tuple[str, ...],
    hardware: bool,
    rising: str,
    standing: str,
    fix: Plan | None,
    severity: Severity = Severity.WARNING,
) -> Outcome:
    """Found as `severity` where one of the counters rises, as a note where one stands above 0."""
    readings, missing = _readings(examination, of, hardware)
    risen = [one for one in readings if one.rises]
    above = [one for one in readings if one.value]
    if risen:
        return _found(risen, rising, fix, severity)
    if above:
        return _found(above, f"{standing}; {_whether_on(above)}", fix, Severity.NOTE)
    if missing is not None:
        return missing
    return passed(*at_most(one.evidence() for one in readings) or (NO_PORTS,))


def _whether_on(readings: list[_Reading]) -> str:
    if any(one.is_full for one in readings):
        return "a counter is full: whether it goes on is not seen"
    if all(one.rise == 0 for one in readings):
        return "nothing since the examination before"
    return "whether it still goes on takes two readings"


def _found(readings: list[_Reading], told: str, fix: Plan | None, severity: Severity) -> Outcome:
    ports = list(dict.fromkeys(one.port.name for one in readings))
    chosen = [next(one.port for one in readings if one.port.name == name) for name in ports]
    return found(
        f"{names(chosen)}: {told}",
        *at_most(one.evidence() for one in readings),
        fix=fix,
        severity=severity,
        devices=devices_of(chosen),
    )


_CABLE = Plan(
    "Find the bad cable or optic",
    (
        instruction("look at the module and the raw error rate: mlxlink -d BDF -m -c -e", True),
        instruction("clean, reseat or replace cable and optics", False),
    ),
    disturbs="jobs that use this port, while the cable is out",
)
_LOSS = Plan(
    "Find the hop that loses packets",
    (
        instruction("look at drops and pause frames of the switch ports on the way", False),
        instruction("compare ECN, PFC and traffic class of hosts and switches: mlnx_qos -i NETDEV", True),
    ),
)
_FAR_END = Plan(
    "Look at the far end first",
    (
        instruction(
            "look for an Xid, a reboot or a link that went down on the remote nodes at that time", False
        ),
        instruction("NCCL_IB_TIMEOUT=22 rides out short interruptions, no more", False),
    ),
)


@AREA.check("symbol-errors-rising", Severity.WARNING, "a port receives damaged signals", _ABI)
def symbol_errors(examination: Examination) -> Outcome:
    """Symbol errors, recoveries of the link and damaged packets."""
    return _judge(
        examination,
        _SIGNAL,
        False,
        "errors rise: a marginal cable, connector or optic, which slows the port and ends in a flap",
        "errors since the counters began; some are normal on HDR and faster links",
        _CABLE,
    )


@AREA.check("link-flaps", Severity.WARNING, "a port's link has gone down and come back", _ABI)
def link_downed(examination: Examination) -> Outcome:
    """How often the link went down."""
    return _judge(
        examination,
        ("link_downed",),
        False,
        "the link went down since the examination before: a job on it fails with completion error 12",
        "the link went down since the counters began: at a reboot of the switch, or in the middle of a job",
        _CABLE,
    )


_FEW_CARRIER_CHANGES = 10  # bringing a port up takes some


@AREA.check(
    "link-flaps-carrier",
    Severity.WARNING,
    "a NIC's netdev has lost its carrier again and again",
    "Linux, Documentation/ABI/testing/sysfs-class-net: carrier_changes",
)
def carrier_changes(examination: Examination) -> Outcome:
    """Ups and downs of the netdev since it came."""
    ports = ports_of(examination)
    if isinstance(ports, Unknown):
        return unsure(f"needs the RDMA devices: {ports}")
    facts = examination.earlier_port_health
    earlier = {} if facts is None or isinstance(facts, Unknown) else facts.ports
    readings: list[_Reading] = []
    missing: Outcome | None = None
    for port in ports:
        health = port.health
        changes = health if isinstance(health, Unknown) else health.carrier_changes
        if isinstance(changes, Unknown):
            # A port without a netdev has no carrier.
            if changes.reason is not Reason.NOT_THERE:
                missing = unsure(f"needs the carrier changes of {port.name}: {changes}")
            continue
        one = earlier.get((port.device.name, port.facts.number))
        before = None if one is None or isinstance(one.carrier_changes, Unknown) else one.carrier_changes
        rise = None if before is None or before > changes else changes - before
        source = f"/sys/class/net/{known(port.facts.netdev, '?')}/carrier_changes"
        readings.append(_Reading(port, source, changes, rise))
    risen = [one for one in readings if one.rises]
    if risen:
        return _found(risen, "the carrier was lost or came back just now", _CABLE, Severity.WARNING)
    often = [one for one in readings if one.value > _FEW_CARRIER_CHANGES]
    if often:
        told = "the carrier changed often since boot; whether it still does takes two readings"
        return _found(often, told, _CABLE, Severity.NOTE)
    return missing or passed(*at_most(one.evidence() for one in readings) or (NO_PORTS,))


@AREA.check(
    "out-of-sequence-rising", Severity.WARNING, "packets arrive out of order, or not at all", _HW_REFERENCE
)
def out_of_sequence(examination: Examination) -> Outcome:
    """Packets out of order; a warning only together with time-outs, for adaptive routing reorders too."""
    timeouts, _ = _readings(examination, _TIMEOUTS, True)
    lossy = any(one.rises for one in timeouts)
    return _judge(
        examination,
        _REORDERED,
        True,
        "packets out of order and time-outs rise together: packets are lost on the way"
        if lossy
        else "packets out of order rise without time-outs: with adaptive routing that is as it should be",
        "packets came out of order since the counters began",
        _LOSS,
        Severity.WARNING if lossy else Severity.NOTE,
    )


@AREA.check(
    "local-ack-timeout",
    Severity.WARNING,
    "a far end stopped answering: retries ran out of time",
    _HW_REFERENCE,
)
def ack_timeouts(examination: Examination) -> Outcome:
    """Acknowledgements that did not come in time."""
    return _judge(
        examination,
        _TIMEOUTS,
        True,
        "time-outs rise: a peer died, its link flaps, or packets are lost. Seldom is it this node's NIC",
        "acknowledgements were missing at some time since the counters began",
        _FAR_END,
    )


@AREA.check(
    "port-discards-rising", Severity.WARNING, "a port throws packets away instead of sending them", _ABI
)
def discards(examination: Examination) -> Outcome:
    """Packets dropped at the port."""
    return _judge(
        examination,
        _DISCARDS,
        False,
        "packets are dropped: congestion without flow control, or a port that was down while it had to send",
        "packets were dropped at some time since the counters began",
        _LOSS,
    )


@AREA.check(
    "receiver-not-ready-rising",
    Severity.NOTE,
    "a receiver had no buffer ready for what was sent to it",
    _HW_REFERENCE,
)
def receiver_not_ready(examination: Examination) -> Outcome:
    """Refusals because the receiver was not ready (RNR)."""
    return _judge(
        examination,
        ("rnr_nak_retry_err",),
        True,
        "refusals rise: the receiving program is too slow, or its host is overloaded",
        "receivers were not ready at some time since the counters began",
        None,
        Severity.NOTE,
    )
