"""Error counters of ports, now and at the check before."""

from __future__ import annotations

from collections.abc import Sequence

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.rdma.counters import ERROR_COUNTER_BITS
from probes.facts.rdma.port_health import PortHealth
from probes.queries.evidence_list import first_n
from probes.queries.finding import Evidence, Outcome, passed, unknown_without
from probes.queries.ports import NO_PORTS, Port, need_ports
from probes.snapshot.examination import Examination

_SHORTEST_SECONDS = 60.0  # a single error says nothing about the rate


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
    def rises(self) -> bool:
        """Whether the counter has risen since the check before."""
        return bool(self.rise)

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
        return self.source.rpartition("/")[2]

    @property
    def per_hour(self) -> float:
        """The rise per hour, at the rate since the check before."""
        return 0.0 if not self.rise else self.rise * 3600 / max(self.seconds or 0.0, _SHORTEST_SECONDS)


def rise_of(value: int, before: int | None) -> int | None:
    """Return how much a counter has risen; None if it was reset or not read before."""
    return None if before is None or before > value else value - before


def read_counters(
    examination: Examination, names: Sequence[str], hardware: bool
) -> tuple[list[CounterReading], Outcome | None]:
    """Return these counters of every port, and the outcome if one could not be read.

    `hardware`: the counters are in hw_counters instead of counters.
    """
    at = examination.earlier_at
    seconds = None if at is None else examination.reading.at - at
    directory = "hw_counters" if hardware else "counters"
    readings: list[CounterReading] = []
    missing: Outcome | None = None
    for port in need_ports(examination):
        counters = _counters(port.health, hardware)
        if isinstance(counters, Unknown):
            if counters.reason is not Reason.NOT_THERE:
                missing = unknown_without("the port counters", counters)
            continue  # port-counters-missing reports a port without counters
        before = _counters_before(examination, port, hardware)
        for name in names:
            value = counters.get(name)
            if isinstance(value, Unknown):
                missing = unknown_without("the port counters", value)
            elif value is not None:
                rise = rise_of(value, before.get(name))
                readings.append(CounterReading(port, f"{port.path}/{directory}/{name}", value, rise, seconds))
    return readings, missing


def _counters(health: Maybe[PortHealth], hardware: bool) -> Maybe[dict[str, Maybe[int]]]:
    if hardware:
        return map_known(health, lambda facts: facts.hw_errors)
    errors = map_known(health, lambda facts: facts.errors)
    return map_known(
        errors,
        lambda counters: {
            name: map_known(counter, lambda read: read.value) for name, counter in counters.items()
        },
    )


def health_before(examination: Examination, port: Port) -> PortHealth | None:
    """Return the port's health at the check before."""
    facts = examination.earlier_port_health
    if facts is None or isinstance(facts, Unknown):
        return None
    return facts.ports.get((port.device.name, port.facts.number))


def _counters_before(examination: Examination, port: Port, hardware: bool) -> dict[str, int]:
    health = health_before(examination, port)
    counters = {} if health is None else known(_counters(health, hardware), {})
    return {name: value for name, value in counters.items() if not isinstance(value, Unknown)}


def all_fine(readings: Sequence[CounterReading]) -> Outcome:
    """Pass with the values as evidence."""
    return passed(*first_n(reading.evidence for reading in readings) or (NO_PORTS,))
