"""Checks of ports' error counters: rising, above 0, full or missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from probes.base.evidence import Evidence, Severity, first_n
from probes.base.frozen import frozen
from probes.base.plan import Plan, instruction, make_plan
from probes.base.unknown import Maybe, Reason, Unknown, first_unread, known, map_known
from probes.facts.pci.nic_families import DRIVERS_WITH_OCTETS
from probes.facts.rdma.cxi import has_verbs
from probes.facts.rdma.port_health import ERROR_COUNTER_BITS, PORT_COUNTERS, Harm, Place, PortHealth, Rise
from probes.host.fec import COUNTS
from probes.host.fec import SOURCE as FEC_SOURCE
from probes.plans.ports import zero_counters
from probes.queries.finding import Area, Outcome, end_with, found, passed, unknown, unknown_without
from probes.queries.jobs import AT_WORK, jobs_of, not_counted
from probes.queries.ports import LINK_CAUSES, NO_PORTS, Port, devices_of, need_ports, port_names
from probes.snapshot.examination import Examination
from probes.snapshot.rates import WITHOUT_FILES, statistic

# Error counters of ports, now and at the check before.

_SHORTEST_SECONDS = 60.0  # a single error says nothing about the rate
ETHTOOL_COUNTERS = "the ethtool counters of all ports"
NEXT_CHECK = "The next check shows whether the count still rises."


@frozen
class CounterReading:
    """One counter of one port."""

    port: Port
    source: str
    value: int
    rise: int | None  # None: there was no check before, or the counter was reset
    seconds: float | None = None  # since the check before

    @property
    def is_full(self) -> bool:
        """Whether the counter is at its maximum, and so cannot rise any more."""
        bits = ERROR_COUNTER_BITS.get(self.name)
        return bits is not None and self.value == (1 << bits) - 1

    @property
    def evidence(self) -> Evidence:
        """The value and its rise."""
        since = "since the last check" if self.seconds is None else f"in {self.seconds:.0f} s"
        return Evidence(self.source, f"{self.value} (+{self.rise} {since})" if self.rise else str(self.value))

    @property
    def name(self) -> str:
        """The counter's name."""
        return self.source.rpartition("/")[2].rpartition(": ")[2]

    @property
    def per_hour(self) -> float:
        """The rise per hour, at the rate since the check before."""
        return 0.0 if not self.rise else self.rise * 3600 / max(self.seconds or 0.0, _SHORTEST_SECONDS)


def rise_of(value: int, before: Maybe[int] | None) -> int | None:
    """Return how much a counter has risen; None if it was reset or not read before."""
    return None if before is None or isinstance(before, Unknown) or before > value else value - before


def read_counters(
    examination: Examination, names: Sequence[str], place: Place
) -> tuple[list[CounterReading], Outcome | None]:
    """Return these counters of every port, and the outcome if one could not be read."""
    at = examination.earlier_at
    seconds = None if at is None else examination.reading.at - at
    is_hardware = place is Place.HARDWARE
    readings: list[CounterReading] = []
    missing = None if place is Place.ETHTOOL else _hidden(examination, is_hardware)
    for port in need_ports(examination):
        counters = _counters(port.health, place)
        if isinstance(counters, Unknown):
            if place is Place.ETHTOOL:
                missing = unknown_without(ETHTOOL_COUNTERS, counters)
            elif counters.reason not in WITHOUT_FILES:
                missing = unknown_without("the port counters", counters)
            continue  # port-counters-missing reports a port without counters
        directory = f"{port.path}/{place.value}/"
        if is_hardware and port.facts.is_hidden:
            directory = f"{statistic(port.device.name, port.facts)}/"
        elif place is Place.ETHTOOL:
            directory = ""
            if counters.keys().isdisjoint(names):
                missing = unknown_without(ETHTOOL_COUNTERS, _uncounted(port, names[0]))
        earlier = health_before(examination, port)
        before = {} if earlier is None else known(_counters(earlier, place), {})
        for name in names:
            value = counters.get(name)
            if isinstance(value, Unknown):
                missing = unknown_without("the port counters", value)
            elif value is not None:
                rise = rise_of(value, before.get(name))
                source = f"{directory}{name}" if directory else ethtool_source(port, name)
                readings.append(CounterReading(port, source, value, rise, seconds))
    return readings, missing


def _hidden(examination: Examination, hardware: bool = False) -> Outcome | None:
    """Return why ports have no counters: only the namespace that owns a device has them.

    `hardware`: those of the driver, which RDMA netlink has in every namespace.
    """
    has_netlink = any(port.facts.is_hidden for port in need_ports(examination))
    container = examination.own_container
    has_none = not isinstance(container, Unknown) and container.has_counters is False
    if hardware and has_netlink:
        return None
    return unknown(_NEEDS_OWNER) if has_netlink or has_none else None


def _counters(health: Maybe[PortHealth], place: Place) -> Maybe[Mapping[str, Maybe[int]]]:
    if place is Place.HARDWARE:
        return map_known(health, lambda facts: facts.hw_errors)
    if place is Place.ETHTOOL:
        return map_known(health, lambda facts: facts.link_counts)
    errors = map_known(health, lambda facts: facts.errors)
    if isinstance(errors, Unknown):
        return errors
    return {name: map_known(counter, lambda read: read.value) for name, counter in errors.items()}


def _uncounted(port: Port, name: str) -> Unknown:
    return Unknown(Reason.NOT_THERE, ethtool_source(port, name), "this NIC does not count them")


def ethtool_source(port: Port, name: str) -> str:
    """Return the command that shows a counter of the port's netdev."""
    command = FEC_SOURCE if name in COUNTS.values() else Place.ETHTOOL.value
    return f"{command} {known(port.facts.netdev, '')}: {name}"


def health_before(examination: Examination, port: Port) -> PortHealth | None:
    """Return the port's health at the check before."""
    facts = examination.earlier_port_health
    if facts is None or isinstance(facts, Unknown):
        return None
    return facts.ports.get((port.device.name, port.facts.number))


def was_trained(now: PortHealth, before: PortHealth) -> bool:
    """Return whether the link went down between two readings: its training makes bursts of errors."""

    def downs(health: PortHealth) -> tuple[object, ...]:
        events = map_known(health.ethtool, lambda counters: counters.get("link_down_events_phy", 0))
        return known(health.carrier_changes, None), known(events, None)

    return downs(now) != downs(before)


def all_fine(readings: Sequence[CounterReading]) -> Outcome:
    """Pass with the values as evidence."""
    return passed(*first_n(reading.evidence for reading in readings) or (NO_PORTS,))


AREA = Area("nic", __package__)
# drivers/infiniband/core/sysfs.c, setup_port: with shared devices, other namespaces get no counters.
_NEEDS_OWNER = "needs the host's network namespace, which alone has the port counters"
# Above their limits, a signal is bad; fewer errors are normal on HDR and faster links (PAM4).
_SIGNAL = {
    counter.name: counter.rise
    for counter in PORT_COUNTERS
    if counter.place is Place.STANDARD and counter.rise is not None and counter.rise.harm is Harm.SIGNAL
}
_REORDERED = ("out_of_sequence", "packet_seq_err")
_TIMEOUTS = ("local_ack_timeout_err",)
FEW_CARRIER_CHANGES = 10  # bringing a port up causes a few

CABLE = make_plan(
    "Find the bad cable or optic",
    "Show optics and raw error rate: mlxlink -d BDF -m -c -e",
    instruction("Clean, reseat or replace the cable and optics", False),
    disturbs="jobs that use this port while the cable is out",
)
_LOSS = make_plan(
    "Find the hop that loses packets",
    instruction("Check drops and pause frames at each switch port on the path", False),
    "Compare ECN, PFC and traffic class on hosts and switches: mlnx_qos -i NETDEV",
)


@frozen
class Counters:
    """Counters that mean the same, and what to report about them."""

    names: tuple[str, ...]
    place: Place
    rising: str  # the cause if one rises
    standing: str  # the cause if one is above 0
    fix: Plan | None = None  # None: that of the check's texts
    severity: Severity = Severity.WARNING  # if one rises
    limits: Mapping[str, Rise] = field(default_factory=dict)  # above which that holds; without: any rise
    standing_severity: Severity = Severity.NOTE  # if one is above 0

    def judge(self, examination: Examination) -> Outcome:
        """Report rising counters, or with a note counters that are above 0."""
        readings, missing = read_counters(examination, self.names, self.place)
        risen = [reading for reading in readings if reading.rise]
        above = [reading for reading in readings if reading.value]
        fast = [reading for reading in risen if self._is_fast(examination, reading)]
        if fast:
            return _found(fast, self.rising, self.fix, self.severity)
        if risen:
            cause = f"{self.standing} They rise more slowly than on a bad link, or rose while it was trained."
            return _found(risen, cause, self.fix, Severity.NOTE)
        if above:
            cause = f"{self.standing} {_since_when(above)}"
            return _found(above, cause, self.fix, self.standing_severity)
        if self.place is Place.HARDWARE and (outside := not_counted(jobs_of(examination))):
            return unknown(outside[0], *(reading.evidence for reading in readings[:1]))
        return missing or all_fine(readings)

    def _is_fast(self, examination: Examination, reading: CounterReading) -> bool:
        """Say whether it rises faster than is normal; a single error says nothing about the rate."""
        port = reading.port
        if (limit := self.limits.get(reading.name)) is None:
            return True
        before, most = health_before(examination, port), limit.per_hour(port.facts.rate_gbps)
        if before is not None and not isinstance(port.health, Unknown) and was_trained(port.health, before):
            return False
        return reading.per_hour > most and (reading.rise != 1 or most <= 0)


def _since_when(readings: list[CounterReading]) -> str:
    if any(reading.is_full for reading in readings):
        return "A counter is full, so new events do not show up."
    if all(reading.rise == 0 for reading in readings):
        return "None since the last check."
    return NEXT_CHECK


def _found(readings: list[CounterReading], cause: str, fix: Plan | None, severity: Severity) -> Outcome:
    ports = list({reading.port.name: reading.port for reading in readings}.values())
    return found(
        f"{port_names(ports)}: {cause}",
        *first_n(reading.evidence for reading in readings),
        fix=fix,
        severity=severity,
        devices=devices_of(ports),
    )


AREA.warning("symbol-errors-rising", data_path=True, part_of=(*LINK_CAUSES, "symbols-lost"))(
    Counters(
        tuple(_SIGNAL),
        place=Place.STANDARD,
        rising="errors are rising faster than on a good link. The cable, connector or optics are marginal.",
        standing="signal errors since the last counter reset. A few are normal on HDR and faster links.",
        fix=CABLE,
        limits=_SIGNAL,
    ).judge
)
AREA.warning("link-flaps", data_path=True, part_of=LINK_CAUSES)(
    Counters(
        ("link_downed",),
        place=Place.STANDARD,
        rising="the link went down since the last check.",
        standing="the link has gone down since the last counter reset, during a switch reboot or in the "
        "middle of a job.",
        fix=CABLE,
    ).judge
)


@AREA.warning("link-flaps-carrier", data_path=True, part_of=(*LINK_CAUSES, "link-flaps"))
def link_flaps_carrier(examination: Examination) -> Outcome:
    """Judge how often each netdev has gone up or down since it was created."""
    readings: list[CounterReading] = []
    missing: Outcome | None = None
    for port in need_ports(examination):
        changes = map_known(port.health, lambda health: health.carrier_changes)
        if isinstance(changes, Unknown):
            # A port without a netdev has no carrier.
            if changes.reason is not Reason.NOT_THERE:
                missing = unknown_without("the carrier changes of the netdevs", changes)
            continue
        earlier = health_before(examination, port)
        before = None if earlier is None else earlier.carrier_changes
        source = f"/sys/class/net/{known(port.facts.netdev, '?')}/carrier_changes"
        readings.append(CounterReading(port, source, changes, rise_of(changes, before)))
    risen = [reading for reading in readings if reading.rise]
    if risen:
        outcome = _found(risen, "the carrier changed since the last check.", CABLE, Severity.WARNING)
        return replace(outcome, title="A NIC's network interface lost its link since the last check")
    often = [reading for reading in readings if reading.value > FEW_CARRIER_CHANGES]
    if often:
        most = max(reading.value for reading in often) // 2  # the link also came up each time
        times = f"{'up to ' * (len(often) > 1)}{most} times"
        cause = f"its network interface lost its link {times} since boot. {_since_when(often)}"
        return _found(often, cause, CABLE, Severity.NOTE)
    return missing or all_fine(readings)


@AREA.warning("out-of-sequence-rising", data_path=True, part_of=LINK_CAUSES)
def out_of_sequence_rising(examination: Examination) -> Outcome:
    """Judge packets out of order; warn only together with timeouts, because adaptive routing reorders too.

    Adaptive routing does so on most ports alike, and without losses.
    """
    readings, _ = read_counters(examination, _REORDERED, Place.HARDWARE)
    ports = {reading.port.name: reading.port for reading in readings if reading.value}.values()
    active = [port for port in need_ports(examination) if port.is_active]
    if all(port.is_reordered for port in ports) and len(ports) >= max(2, len(active) / 2):
        return passed(Evidence("out_of_sequence", f"{port_names(list(ports))}: {AT_WORK}"))
    timeouts, _ = read_counters(examination, _TIMEOUTS, Place.HARDWARE)
    lossy = any(reading.rise for reading in timeouts)
    counters = Counters(
        _REORDERED,
        place=Place.HARDWARE,
        rising="out-of-order packets and timeouts are rising together, so the network is losing packets."
        if lossy
        else "out-of-order packets are rising without timeouts. With adaptive routing, this is normal.",
        standing="packets arrived out of order since the last counter reset.",
        fix=_LOSS,
        severity=Severity.WARNING if lossy else Severity.NOTE,
    )
    return counters.judge(examination)


AREA.warning("local-ack-timeout", data_path=True, part_of=(*LINK_CAUSES, "link-flaps"))(
    Counters(
        _TIMEOUTS,
        place=Place.HARDWARE,
        rising="timeouts are rising. A peer died, its link is flapping, or packets are being lost. This "
        "node's NIC is rarely the cause.",
        standing="some acknowledgments were lost since the last counter reset.",
    ).judge
)


@frozen
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
        "Dropped packets are sent again, so jobs slow down and vary in speed.",
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
        "management packets (VL15) were dropped. VL15 has no flow control, so a burst is enough.",
        "No data is lost. The subnet manager retries.",
        Severity.NOTE,
    ),
)


@AREA.warning("port-discards-rising", data_path=True, part_of=LINK_CAUSES)
def port_discards_rising(examination: Examination) -> Outcome:
    """Judge packets discarded at the port: when sending, when receiving, or management packets."""
    readings, missing = read_counters(examination, [kind.counter for kind in _DISCARDS], Place.STANDARD)
    for is_rising in (True, False):
        for kind in _DISCARDS:
            of_kind = [reading for reading in readings if reading.name == kind.counter]
            bad = [reading for reading in of_kind if (reading.rise if is_rising else reading.value)]
            if bad:
                cause = kind.cause if is_rising else f"{kind.cause} {_since_when(bad)}"
                fix = _LOSS if kind.counter == "port_xmit_discards" else None
                outcome = _found(bad, cause, fix, kind.severity if is_rising else Severity.NOTE)
                return replace(outcome, impact=kind.impact)
    return missing or all_fine(readings)


AREA.note("receiver-not-ready-rising")(
    Counters(
        ("rnr_nak_retry_err",),
        place=Place.HARDWARE,
        rising="refusals are rising. The receiving program is too slow, or its host is overloaded.",
        standing="some receivers were not ready since the last counter reset.",
        severity=Severity.NOTE,
    ).judge
)


# Checks of error counters that are full or missing.


@AREA.note("error-counter-full")
def error_counter_full(examination: Examination) -> Outcome:
    """Find counters of 4, 8 or 16 bits that are at their maximum."""
    readings, missing = read_counters(examination, tuple(ERROR_COUNTER_BITS), Place.STANDARD)
    full = [reading for reading in readings if reading.is_full]
    if full:
        chosen = list({reading.port.name: reading.port for reading in full}.values())
        return found(
            f"{port_names(chosen)}: the counter reached its maximum after the last reset.",
            *first_n(Evidence(reading.source, str(reading.value)) for reading in full),
            fix=zero_counters(chosen),
            devices=devices_of(chosen),
        )
    none = first_n(Evidence(f"{port.path}/counters", "none is full") for port in need_ports(examination))
    return missing or passed(*none or (NO_PORTS,))


@AREA.note("port-counters-missing")
def port_counters_missing(examination: Examination) -> Outcome:
    """Find ports without counters, whose firmware refuses them, or that are in another network namespace.

    Some drivers have their own in hw_counters, and Slingshot NICs have no port in sysfs.
    """
    ports = [port for port in need_ports(examination) if has_verbs(port.device)]
    ports = [port for port in ports if port.device.driver not in DRIVERS_WITH_OCTETS]
    end_with(_hidden(examination))
    without: list[tuple[Port, Unknown]] = []
    other: Outcome | None = None
    for port in ports:
        errors = _counters(port.health, Place.STANDARD)
        if not isinstance(errors, Unknown):
            refused = [counter for counter in errors.values() if isinstance(counter, Unknown)]
            if not errors:
                without.append((port, Unknown(Reason.NOT_THERE, f"{port.path}/counters", "empty")))
            if len(refused) < len(errors) or not errors:
                continue
            errors = refused[0]
        unread = first_unread((port.device.driver,))  # an EFA's counters are elsewhere
        if errors.reason in (Reason.NOT_THERE, Reason.IO_ERROR) and unread is not None:
            other = unknown_without("the NIC's driver", unread)
        elif errors.reason in (Reason.NOT_THERE, Reason.IO_ERROR):
            without.append((port, errors))
        else:
            other = unknown_without("the port counters", errors)
    if without:
        return found(
            f"{port_names(port for port, _ in without)}: virtual functions and some drivers have no "
            "counters. If the firmware refuses to read them, every attempt logs a kernel message.",
            *first_n(Evidence(f"{port.path}/counters", str(why)) for port, why in without),
            devices=devices_of(port for port, _ in without),
        )
    counts = [
        (f"{port.path}/counters", len(known(_counters(port.health, Place.STANDARD), {}))) for port in ports
    ]
    shown = first_n(Evidence(path, f"{count} error counters") for path, count in counts)
    return other or passed(*shown or (NO_PORTS,))
