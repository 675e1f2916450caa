"""Checks of error counters that are full or missing."""

from __future__ import annotations

from probes.base.unknown import Maybe, Reason, Unknown, first_unread, known, map_known
from probes.checks.nic.counters import COUNTERS_ABI
from probes.facts.rdma.cxi import has_verbs
from probes.facts.rdma.port_health import ErrorCounter
from probes.plans.ports import zero_counters
from probes.queries.evidence_list import first_n
from probes.queries.finding import Area, Evidence, Outcome, Severity, found, passed, unknown_without
from probes.queries.ports import NO_PORTS, Port, devices_of, need_ports, port_names
from probes.snapshot.examination import Examination

AREA = Area("nic")


def _errors(port: Port) -> Maybe[dict[str, Maybe[ErrorCounter]]]:
    return map_known(port.health, lambda health: health.errors)


@AREA.check(
    "error-counter-full",
    Severity.NOTE,
    "An error counter is full",
    COUNTERS_ABI,
    ok="No error counter is full",
    impact="The counter has stopped, so new errors of this kind do not show up.",
)
def error_counter_full(examination: Examination) -> Outcome:
    """Find counters of 4, 8 or 16 bits that are at their maximum."""
    ports = need_ports(examination)
    full: list[tuple[Port, str, int]] = []
    missing: Outcome | None = None
    for port in ports:
        errors = _errors(port)
        if isinstance(errors, Unknown):
            if errors.reason is not Reason.NOT_THERE:
                missing = unknown_without("the port counters", errors)
            continue
        for name, counter in errors.items():
            if isinstance(counter, Unknown):
                missing = unknown_without("the port counters", counter)
            elif counter.is_full:
                full.append((port, name, counter.value))
    if full:
        chosen = list({port.name: port for port, _, _ in full}.values())
        return found(
            f"{port_names(chosen)}: the counter reached its maximum after the last reset.",
            *first_n(Evidence(f"{port.path}/counters/{name}", str(value)) for port, name, value in full),
            fix=zero_counters(chosen),
            devices=devices_of(chosen),
        )
    none = first_n(Evidence(f"{port.path}/counters", "none is full") for port in ports)
    return missing or passed(*none or (NO_PORTS,))


@AREA.check(
    "port-counters-missing",
    Severity.NOTE,
    "A port has no error counters",
    COUNTERS_ABI,
    ok="Every port has error counters",
    impact="gdrtop cannot see errors on this port.",
)
def port_counters_missing(examination: Examination) -> Outcome:
    """Find ports without counters, or whose firmware refuses them.

    EFA has its own in hw_counters (hw/efa/efa_verbs.c), and Slingshot NICs have no port in sysfs.
    """
    ports = [port for port in need_ports(examination) if has_verbs(port.device)]
    ports = [port for port in ports if port.device.driver != "efa"]
    without: list[tuple[Port, Unknown]] = []
    other: Outcome | None = None
    for port in ports:
        errors = _errors(port)
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
    counts = [(f"{port.path}/counters", len(known(_errors(port), {}))) for port in ports]
    shown = first_n(Evidence(path, f"{count} error counters") for path, count in counts)
    return other or passed(*shown or (NO_PORTS,))
