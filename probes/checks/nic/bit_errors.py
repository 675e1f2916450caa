"""Checks of bit errors before and after FEC, of links without FEC, and of modules that report faults."""

from __future__ import annotations

from collections.abc import Sequence

from probes.base.evidence import Evidence, Severity, first_n
from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.checks.live.ports import NOT_LONG_ENOUGH
from probes.checks.nic.counters import (
    CABLE,
    ETHTOOL_COUNTERS,
    Counters,
    ethtool_source,
    health_before,
    was_trained,
)
from probes.facts.rdma.bit_errors import (
    CORRECTED,
    LOST,
    RAW,
    RAW_HEALTHY,
    RAW_NOTE,
    RAW_TIMES,
    WINDOW_SECONDS,
    rate_since,
    rate_since_load,
    rate_text,
)
from probes.facts.rdma.port_health import PORT_COUNTERS, Place
from probes.host.fec import OFF, UNCORRECTABLE
from probes.host.fec import SOURCE as FEC_SOURCE
from probes.queries.finding import Area, Outcome, found, passed, unknown, unknown_without
from probes.queries.ports import LINK_CAUSES, NO_PORTS, Port, devices_of, need_ports, port_names
from probes.snapshot.examination import Examination

AREA = Area("nic", __package__)
_NEEDS_READINGS = f"needs two readings {WINDOW_SECONDS:.0f} s apart, without a link down in between"
_LEAST_SISTERS = 2


@frozen
class _Link:
    """A port and the share of bits that it receives wrong."""

    port: Port
    rate: float
    is_recent: bool  # between two checks; else on average since the counters began

    @property
    def severity(self) -> Severity | None:
        """How bad the rate is by itself; errors of another day are a note."""
        if self.rate > RAW.warning and self.is_recent:
            return Severity.WARNING
        return Severity.NOTE if self.rate > RAW_NOTE else None

    @property
    def evidence(self) -> Evidence:
        when = "between the last two checks" if self.is_recent else "since the counters began"
        return Evidence(ethtool_source(self.port, CORRECTED), f"{rate_text(self.rate)} of the bits {when}")


@AREA.warning("bit-errors-before-fec", part_of=(*LINK_CAUSES, "symbols-lost", "module-hot-events"))
def bit_errors_before_fec(examination: Examination) -> Outcome:
    """Judge error rates by gdrtop's limits, and each port by its sisters: the same speed, layer and FEC."""
    links: list[_Link] = []
    missing: Outcome | None = None
    # What the check before has found may still be there, a moment later.
    is_first = examination.earlier_port_health is None
    later = unknown(NOT_LONG_ENOUGH if is_first else _NEEDS_READINGS, Evidence("ethtool -S", _NEEDS_READINGS))
    for port in (port for port in need_ports(examination) if port.is_active):
        rate, is_recent = error_rate(examination, port)
        if isinstance(rate, Unknown):
            is_later = rate.reason is Reason.NOT_YET
            missing = later if is_later else unknown_without(ETHTOOL_COUNTERS, rate)
        else:
            links.append(_Link(port, rate, is_recent))
    middles = {link.port.name: _middle_of_sisters(link, links) for link in links}
    bad = [link for link in links if link.severity is not None or middles[link.port.name] is not None]
    if bad:
        worst = max(bad, key=lambda link: (link.severity is Severity.WARNING, link.rate))
        middle = middles[worst.port.name]
        parts = [f"{rate_text(worst.rate)} of the bits that it receives are wrong before FEC."]
        parts += [] if middle is None else [_compared(worst.rate, middle)]
        parts += [f"gdrtop's own limit is {rate_text(RAW.warning)}."] * (worst.rate > RAW.warning)
        parts += ["The next check shows whether that is still so."] * (not worst.is_recent)
        return found(
            f"{worst.port.name}: {' '.join(parts)}",
            *first_n(link.evidence for link in bad),
            fix=CABLE,
            severity=worst.severity or Severity.NOTE,
            devices=devices_of(link.port for link in bad),
        )
    return missing or passed(*first_n(link.evidence for link in links) or (NO_PORTS,))


def _compared(rate: float, others: float) -> str:
    if not others:
        return "The other ports of its speed have no bit errors."
    return f"That is {rate / others:,.0f} times as many as on the other ports of its speed."


def _middle_of_sisters(link: _Link, links: Sequence[_Link]) -> float | None:
    """Return the median of the sisters' rates if this one is far above it; None: it is not."""
    kind = link_kind(link.port), link.is_recent
    others = [
        each.rate for each in links if each is not link and (link_kind(each.port), each.is_recent) == kind
    ]
    if len(others) < _LEAST_SISTERS or link.rate <= RAW_HEALTHY:
        return None
    from statistics import median  # imports decimal and fractions, which a healthy node does not need

    middle = median(others)
    return middle if link.rate > RAW_TIMES * middle else None


def link_kind(port: Port, with_fec: bool = True) -> tuple[object, ...]:
    """Return what is the same for sisters: the speed, the lanes, the link layer, and the FEC mode."""
    facts = port.facts
    return facts.rate_gbps, facts.rate_text, facts.link_layer, known(_fec_mode(port), "") if with_fec else ""


def _fec_mode(port: Port) -> Maybe[str]:
    return map_known(port.health, lambda health: map_known(health.fec, lambda fec: fec.mode))


def error_rate(examination: Examination, port: Port) -> tuple[Maybe[float], bool]:
    """Return a port's error rate before FEC, and whether it is that between the last two checks.

    Not over a link that went down in between: training makes bursts of errors.
    """
    if isinstance(port.health, Unknown):
        return port.health, False
    now, before = port.health, health_before(examination, port)
    at = examination.earlier_at
    seconds = 0.0 if at is None else examination.reading.at - at
    if before is None or seconds < WINDOW_SECONDS or was_trained(now, before):
        return rate_since_load(now.link_counts), False
    return rate_since(now.link_counts, before.link_counts, seconds, port.facts.rate_gbps), True


_SYMBOLS = {counter.name: counter.rise for counter in PORT_COUNTERS if counter.rise is not None}[LOST]

AREA.warning("symbols-lost", data_path=True, part_of=LINK_CAUSES)(
    Counters(
        (LOST, UNCORRECTABLE),
        place=Place.ETHTOOL,
        rising="FEC cannot repair all bit errors. The cable, connector or optics are marginal.",
        standing="FEC could not repair all bit errors since the driver was loaded. A few come with each "
        "training of the link.",
        fix=CABLE,
        limits=dict.fromkeys((LOST, UNCORRECTABLE), _SYMBOLS),
    ).judge
)


@AREA.note("fec-off")
def fec_off(examination: Examination) -> Outcome:
    """Find ports without FEC whose sisters, of the same speed and link layer, have it."""
    ports = [port for port in need_ports(examination) if port.is_active and port.is_ethernet]
    modes = {port.name: _fec_mode(port) for port in ports}
    unread = next((mode for mode in modes.values() if isinstance(mode, Unknown)), None)
    with_fec = {link_kind(port, with_fec=False) for port in ports if known(modes[port.name], OFF) != OFF}
    bad = [port for port in ports if modes[port.name] == OFF and link_kind(port, with_fec=False) in with_fec]
    shown = first_n(
        Evidence(f"{FEC_SOURCE} {known(port.facts.netdev, '')}", f"FEC {modes[port.name]}")
        for port in bad or ports
    )
    if bad:
        cause = "FEC is off, and other ports of this speed have it. Some short copper cables need none."
        return found(f"{port_names(bad)}: {cause}", *shown, devices=devices_of(bad))
    if unread is not None:
        return unknown_without("the FEC mode of all ports", unread)
    return passed(*shown or (Evidence(FEC_SOURCE, "no Ethernet port is active"),))


AREA.warning("module-hot-events")(
    Counters(
        ("module_high_temp",),
        place=Place.ETHTOOL,
        rising="the module reports right now that it is too hot.",
        standing="the module has reported that it was too hot since the driver was loaded.",
        severity=Severity.CRITICAL,
        standing_severity=Severity.WARNING,
    ).judge
)
AREA.warning("module-faulty", part_of=LINK_CAUSES)(
    Counters(
        ("module_bus_stuck", "module_bad_shorted"),
        place=Place.ETHTOOL,
        rising="the module does not answer (bus stuck), or it is bad or shorted.",
        standing="since the driver was loaded, the module did not answer (bus stuck), or it was bad or "
        "shorted.",
    ).judge
)
