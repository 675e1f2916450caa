"""Checks of ports' error counters: a warning where one rises fast enough, else a note."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from probes.base.plan import Plan, instruction
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.rdma.port_health import ERROR_COUNTER_BITS, PortHealth
from probes.queries.evidence_list import RDMA_DEVICES, first_n
from probes.queries.finding import Area, Evidence, Outcome, Severity, found, passed, unknown_without
from probes.queries.ports import NO_PORTS, Port, devices_of, names, ports_of
from probes.snapshot.examination import Examination

AREA = Area("nic")
_ABI = "Linux, Documentation/ABI/stable/sysfs-class-infiniband: counters"
_HW_REFERENCE = (
    "NVIDIA, Understanding mlx5 Linux counters, https://enterprise-support.nvidia.com/s/article/"
    "understanding-mlx5-linux-counters-and-status-parameters"
)
# Errors per hour above which a signal is bad; fewer are normal on HDR and faster links (PAM4). NVIDIA
# NVSentinel, NIC health monitor: 120 symbol errors per hour, 5 recoveries per minute, 10 receive errors per
# second, any link integrity error.
_SIGNAL_PER_HOUR = {
    "symbol_error": 120,
    "link_error_recovery": 5 * 60,
    "port_rcv_errors": 10 * 3600,
    "local_link_integrity_errors": 0,
}
_SHORTEST_SECONDS = 60.0  # one error in a moment is no rate
_REORDERED = ("out_of_sequence", "packet_seq_err")
_TIMEOUTS = ("local_ack_timeout_err",)


@dataclass(frozen=True)
class _Reading:
    """One counter of one port, now and at the examination before."""

    port: Port
    source: str
    value: int
    rise: int | None  # None: there was no check before, or the counter was reset
    seconds: float | None = None  # since the check before

    @property
    def rises(self) -> bool:
        """Whether it has risen since the check before."""
        return bool(self.rise)

    @property
    def is_full(self) -> bool:
        """Whether it stands at its greatest value, where an equal value later means nothing."""
        bits = ERROR_COUNTER_BITS.get(self.name)
        return bits is not None and self.value == (1 << bits) - 1

    def evidence(self) -> Evidence:
        """The value, and by how much it has risen."""
        since = "since the last check" if self.seconds is None else f"in {self.seconds:.0f} s"
        return Evidence(self.source, f"{self.value} (+{self.rise} {since})" if self.rise else str(self.value))

    @property
    def name(self) -> str:
        """The counter's name."""
        return self.source.rpartition("/")[2]

    @property
    def per_hour(self) -> float:
        """How much it rises in an hour, at the rate since the check before."""
        return 0.0 if not self.rise else self.rise * 3600 / max(self.seconds or 0.0, _SHORTEST_SECONDS)


def _readings(
    examination: Examination, of: tuple[str, ...], hardware: bool
) -> tuple[list[_Reading], Outcome | None]:
    """The counters of these names on every port, and the outcome where one could not be read."""
    ports = ports_of(examination)
    if isinstance(ports, Unknown):
        return [], unknown_without(RDMA_DEVICES, ports)
    at = examination.earlier_at
    seconds = None if at is None else examination.reading.at - at
    out: list[_Reading] = []
    missing: Outcome | None = None
    for port in ports:
        counters = _counters(port.health, hardware)
        if isinstance(counters, Unknown):
            if counters.reason is not Reason.NOT_THERE:
                missing = unknown_without("the port counters", counters)
            continue  # a port without counters: port-counters-missing reports it
        before = _before(examination, port, hardware)
        for name in of:
            value = counters.get(name)
            if isinstance(value, Unknown):
                missing = unknown_without("the port counters", value)
            elif value is not None:
                directory = "hw_counters" if hardware else "counters"
                earlier = before.get(name)
                rise = None if earlier is None or earlier > value else value - earlier
                out.append(_Reading(port, f"{port.path}/{directory}/{name}", value, rise, seconds))
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
    per_hour: Mapping[str, float] | None = None,
) -> Outcome:
    """Found as `severity` where a counter rises, by more than `per_hour`; as a note where one is above 0."""
    readings, missing = _readings(examination, of, hardware)
    risen = [one for one in readings if one.rises]
    above = [one for one in readings if one.value]
    fast = [one for one in risen if per_hour is None or one.per_hour > per_hour[one.name]]
    if fast:
        return _found(fast, rising, fix, severity)
    if risen:
        cause = f"{standing} They rise, but slower than a bad link's."
        return _found(risen, cause, fix, Severity.NOTE)
    if above:
        return _found(above, f"{standing} {_whether_on(above)}", fix, Severity.NOTE)
    if missing is not None:
        return missing
    return passed(*first_n(one.evidence() for one in readings) or (NO_PORTS,))


def _whether_on(readings: list[_Reading]) -> str:
    if any(one.is_full for one in readings):
        return "A counter is full, so that new events do not show."
    if all(one.rise == 0 for one in readings):
        return "None since the last check."
    return "A second check shows whether they still rise."


def _found(
    readings: list[_Reading],
    cause: str,
    fix: Plan | None,
    severity: Severity,
    part_of: tuple[str, ...] = (),
    impact: str = "",
) -> Outcome:
    ports = list(dict.fromkeys(one.port.name for one in readings))
    chosen = [next(one.port for one in readings if one.port.name == name) for name in ports]
    return found(
        f"{names(chosen)}: {cause}",
        *first_n(one.evidence() for one in readings),
        fix=fix,
        severity=severity,
        devices=devices_of(chosen),
        part_of=part_of,
        impact=impact,
    )


_CABLE = Plan(
    "Find the bad cable or optic",
    (
        instruction("Show optics and raw error rate: mlxlink -d BDF -m -c -e."),
        instruction("Clean, reseat or replace cable and optics.", False),
    ),
    disturbs="jobs that use this port while the cable is out",
)
_LOSS = Plan(
    "Find the hop that loses packets",
    (
        instruction("Check drops and pause frames of the switch ports on the path.", False),
        instruction("Compare ECN, PFC and traffic class of hosts and switches: mlnx_qos -i NETDEV."),
    ),
)
_FAR_END = Plan(
    "Check the peer first",
    (
        instruction("Look for an Xid, a reboot or a link down on the remote nodes at that time.", False),
        instruction("NCCL_IB_TIMEOUT=22 bridges short interruptions, but repairs nothing.", False),
    ),
)


@AREA.check(
    "symbol-errors-rising",
    Severity.WARNING,
    "A port receives a damaged signal",
    _ABI,
    ok="No signal errors on the ports",
    impact="Retransmissions slow the port down, and the link often goes down later.",
    data_path=True,
)
def symbol_errors(examination: Examination) -> Outcome:
    """Judge the rate of symbol errors, link recoveries and damaged packets."""
    return _judge(
        examination,
        tuple(_SIGNAL_PER_HOUR),
        False,
        "errors rise faster than a good link's. Cable, connector or optics are marginal.",
        "signal errors since the counters began. Some are normal on HDR and faster links.",
        _CABLE,
        per_hour=_SIGNAL_PER_HOUR,
    )


@AREA.check(
    "link-flaps",
    Severity.WARNING,
    "A port's link goes down and comes back",
    _ABI,
    ok="No link has gone down since the counters began",
    impact="A job on the port fails with completion error 12.",
    data_path=True,
)
def link_downed(examination: Examination) -> Outcome:
    """Judge how often the link went down."""
    return _judge(
        examination,
        ("link_downed",),
        False,
        "the link went down since the last check.",
        "the link went down since the counters began, at a reboot of the switch or in the middle of a job.",
        _CABLE,
    )


FEW_CARRIER_CHANGES = 10  # bringing a port up takes some


@AREA.check(
    "link-flaps-carrier",
    Severity.WARNING,
    "A NIC's netdev loses its carrier often",
    "Linux, Documentation/ABI/testing/sysfs-class-net: carrier_changes",
    ok="No netdev of a NIC loses its carrier often",
    impact="A job on the port fails with completion error 12.",
    data_path=True,
)
def carrier_changes(examination: Examination) -> Outcome:
    """Judge ups and downs of the netdev since it was created."""
    ports = ports_of(examination)
    if isinstance(ports, Unknown):
        return unknown_without(RDMA_DEVICES, ports)
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
                missing = unknown_without("the carrier changes of the netdevs", changes)
            continue
        one = earlier.get((port.device.name, port.facts.number))
        before = None if one is None or isinstance(one.carrier_changes, Unknown) else one.carrier_changes
        rise = None if before is None or before > changes else changes - before
        source = f"/sys/class/net/{known(port.facts.netdev, '?')}/carrier_changes"
        readings.append(_Reading(port, source, changes, rise))
    downs, _ = _readings(examination, ("link_downed",), False)
    risen = [one for one in readings if one.rises]
    if risen:
        same = _same_ports(risen, [one for one in downs if one.rises])
        return _found(risen, "the carrier changed since the last check.", _CABLE, Severity.WARNING, same)
    often = [one for one in readings if one.value > FEW_CARRIER_CHANGES]
    if often:
        same = _same_ports(often, [one for one in downs if one.value])
        cause = f"the carrier changed often since boot. {_whether_on(often)}"
        return _found(often, cause, _CABLE, Severity.NOTE, same)
    return missing or passed(*first_n(one.evidence() for one in readings) or (NO_PORTS,))


def _same_ports(carriers: list[_Reading], downs: list[_Reading]) -> tuple[str, ...]:
    """The finding that these are part of: the links of all these ports went down."""
    down = {one.port.name for one in downs}
    return ("link-flaps",) if all(one.port.name in down for one in carriers) else ()


@AREA.check(
    "out-of-sequence-rising",
    Severity.WARNING,
    "Packets arrive out of order",
    _HW_REFERENCE,
    ok="No packets arrive out of order",
    impact="Lost packets are sent again: jobs are slower and jitter.",
    data_path=True,
)
def out_of_sequence(examination: Examination) -> Outcome:
    """Judge packets out of order; warn only together with timeouts, because adaptive routing reorders too."""
    timeouts, _ = _readings(examination, _TIMEOUTS, True)
    lossy = any(one.rises for one in timeouts)
    return _judge(
        examination,
        _REORDERED,
        True,
        "packets out of order and timeouts rise together, so packets are lost in the network."
        if lossy
        else "packets out of order rise without timeouts. With adaptive routing that is normal.",
        "packets arrived out of order since the counters began.",
        _LOSS,
        Severity.WARNING if lossy else Severity.NOTE,
    )


@AREA.check(
    "local-ack-timeout",
    Severity.WARNING,
    "A peer stopped responding (ACK timeouts)",
    _HW_REFERENCE,
    ok="No ACK timeouts",
    impact="Transfers stall for seconds. When the retries are used up, the job fails with completion error "
    "12.",
    data_path=True,
)
def ack_timeouts(examination: Examination) -> Outcome:
    """Judge acknowledgements that did not arrive in time."""
    return _judge(
        examination,
        _TIMEOUTS,
        True,
        "timeouts rise. A peer died, its link flaps, or packets are lost; it is seldom this node's NIC.",
        "acknowledgements were missing at some time since the counters began.",
        _FAR_END,
    )


@dataclass(frozen=True)
class _Discards:
    """What one counter of discarded packets means (InfiniBand Architecture, PortCounters)."""

    counter: str
    cause: str
    impact: str
    severity: Severity


_DISCARDS = (
    _Discards(
        "port_xmit_discards",
        "packets are dropped instead of sent. The fabric is congested without flow control, or the port was "
        "down while it had packets to send.",
        "Dropped packets are sent again: jobs are slower and jitter.",
        Severity.WARNING,
    ),
    _Discards(
        "excessive_buffer_overrun_errors",
        "the receive buffer overran: the other end sent more than flow control allows. Its port, its "
        "firmware or the cable is faulty.",
        "Received packets are lost and sent again, and the link can go down.",
        Severity.WARNING,
    ),
    _Discards(
        "VL15_dropped",
        "management packets (VL15) were dropped. They have no flow control, so a burst of them is enough.",
        "No data is lost. The subnet manager asks again.",
        Severity.NOTE,
    ),
)


@AREA.check(
    "port-discards-rising",
    Severity.WARNING,
    "A port discards packets",
    _ABI,
    ok="No port discards packets",
    impact="Discarded packets are sent again: jobs are slower and jitter.",
    data_path=True,
)
def discards(examination: Examination) -> Outcome:
    """Judge packets discarded at the port: dropped on sending, overrun on receiving, or of management."""
    readings, missing = _readings(examination, tuple(one.counter for one in _DISCARDS), False)
    for is_rising in (True, False):
        for kind in _DISCARDS:
            of = [one for one in readings if one.name == kind.counter]
            bad = [one for one in of if (one.rises if is_rising else one.value)]
            if bad:
                return _found(
                    bad,
                    kind.cause if is_rising else f"{kind.cause} {_whether_on(bad)}",
                    _LOSS if kind.counter == "port_xmit_discards" else None,
                    kind.severity if is_rising else Severity.NOTE,
                    impact=kind.impact,
                )
    return missing or passed(*first_n(one.evidence() for one in readings) or (NO_PORTS,))


@AREA.check(
    "receiver-not-ready-rising",
    Severity.NOTE,
    "A receiver had no buffer ready (RNR)",
    _HW_REFERENCE,
    ok="Every receiver had buffers ready",
    impact="The sender waits and tries again, which slows the transfer down.",
)
def receiver_not_ready(examination: Examination) -> Outcome:
    """Judge refusals because the receiver was not ready (RNR)."""
    return _judge(
        examination,
        ("rnr_nak_retry_err",),
        True,
        "refusals rise. The receiving program is too slow, or its host is overloaded.",
        "receivers were not ready at some time since the counters began.",
        None,
        Severity.NOTE,
    )
