"""Events of error counters that begin to rise: faster than is normal, and not because a job ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from probes.base.unknown import Unknown
from probes.live.events.ports import ACTIVE
from probes.live.model.explanations import ERRORS
from probes.live.model.sample import EventKind, LiveEvent, LiveSample, PortSample
from probes.queries.finding import Evidence, Severity
from probes.snapshot.condition import ERRORS_RISING, Condition

_QUIET_SECONDS = 60.0  # without a rise above the limit, before the next event of a counter
# Peers that end at different times leave timeouts and refused packets behind.
_TEARDOWN_SECONDS = 15.0
_MANY = 3  # ports
_TIMES = 5
_FADING = 0.98  # a window
# Until it is known what is usual, after gdrtop or a job has started.
_START_SECONDS, _JOB_START_SECONDS = 22.0, 60.0
_LONGEST_STEP = 3.0  # a rate is not extrapolated over missed samples


@dataclass(frozen=True, eq=False)
class _Rule:
    """More than `limit` events in `seconds` are an event."""

    counter: str
    limit: float
    seconds: float
    text: str  # after the port's name
    group: str  # of ERRORS
    severity: Severity = Severity.WARNING
    at_teardown: bool = True  # False: normal when a job ends
    is_relative: bool = False  # and several times more than what was seen before


def _retransmits(*counters: str) -> tuple[_Rule, ...]:
    return tuple(_Rule(name, 100, 10, "sends packets again", "loss", at_teardown=False) for name in counters)


def _congested(limit: float, text: str, *counters: str) -> tuple[_Rule, ...]:
    severity = Severity.NOTE
    return tuple(
        _Rule(name, limit, 10, text, "congestion", severity, False, is_relative=True) for name in counters
    )


# Limits per second, minute and hour: NVIDIA NVSentinel, NIC health monitor. It has none for congestion
# notifications and retransmits: those here are far above what adaptive routing and small incasts cause.
_RULES = (
    _Rule("symbol_error", 100, 10, "has signal errors", "signal"),
    _Rule("symbol_error", 120, 3600, "has signal errors", "signal"),
    _Rule("link_error_recovery", 5, 60, "recovers from link errors", "signal"),
    _Rule("port_rcv_errors", 100, 10, "receives damaged packets", "signal"),
    _Rule("local_link_integrity_errors", 0, 60, "has link integrity errors", "signal"),
    _Rule("excessive_buffer_overrun_errors", 0, 60, "has buffer overruns", "loss"),
    _Rule("link_downed", 0, 60, "lost its link", "flap"),
    _Rule("link_down_events_phy", 0, 60, "lost its link", "flap"),
    _Rule("port_xmit_discards", 1000, 10, "discards packets", "loss"),
    _Rule("rx_discards_phy", 1000, 10, "discards received packets", "loss"),
    _Rule("local_ack_timeout_err", 10, 10, "has ACK timeouts", "timeout", at_teardown=False),
    _Rule("retrans_timeout_events", 10, 10, "has ACK timeouts", "timeout", at_teardown=False),
    _Rule("req_transport_retries_exceeded", 0, 60, "has given up on a peer", "retry", at_teardown=False),
    _Rule("retry_exceeded_err", 0, 60, "has given up on a peer", "retry", at_teardown=False),
    _Rule("max_retry_exceeded", 0, 60, "has given up on a peer", "retry", at_teardown=False),
    _Rule("roce_slow_restart", 100, 10, "restarts slowly after losses", "loss", at_teardown=False),
    *_retransmits("packet_seq_err", "implied_nak_seq_err", "roce_adp_retrans", "rcvd_seq_err"),
    *_retransmits("to_retransmits", "seq_err_naks_rcvd", "retrans_pkts"),
    _Rule("rx_icrc_encapsulated", 10, 10, "receives corrupt RoCE packets", "corrupt"),
    _Rule("rnr_nak_retry_err", 10, 10, "waits for receivers", "receiver", Severity.NOTE, False),
    _Rule("rnr_naks_rcvd", 10, 10, "waits for receivers", "receiver", Severity.NOTE, False),
    _Rule("rcvd_rnr_err", 10, 10, "waits for receivers", "receiver", Severity.NOTE, False),
    _Rule("out_of_buffer", 1000, 10, "has no receive buffers", "receiver", Severity.NOTE, False),
    *_congested(5_000, "is slowed down by congestion", "rp_cnp_handled", "rx_cnp_pkts"),
    *_congested(5_000, "receives from a congested network", "np_cnp_sent", "tx_cnp_pkts"),
    *_congested(1_000_000, "waits for credits from the switch", "port_xmit_wait"),
)
# Packets out of order are normal with adaptive routing; together with timeouts or retransmits they are loss.
_REORDERED = ("out_of_sequence", "out_of_seq_request")
_LOST = ("local_ack_timeout_err", "packet_seq_err", "roce_adp_retrans", "rcvd_seq_err")
_REORDERED_RULES = tuple(
    _Rule(name, 100, 10, "loses packets", "loss", at_teardown=False) for name in _REORDERED
)


_OF_A_LINK_DOWN = ("flap", "timeout", "loss")  # groups that follow from it


@dataclass
class _Count:
    """How often a counter rose within the rule's window."""

    steps: deque[tuple[float, float]] = field(default_factory=deque)  # (at, events)
    total: float = 0.0
    began: float = 0.0  # the current window
    most: float = 0.0  # of the totals in the current window
    above_since: float | None = None  # since when the total is above the limit
    last: float = 0.0  # of the window before
    usual: float = 0.0  # of all windows before that one, the older the less

    def renew(self, at: float, seconds: float) -> None:
        """Note the total, and begin a new window if this one is over."""
        self.most = max(self.most, self.total)
        if at - self.began >= seconds:
            self.usual = max(_FADING * self.usual, self.last)
            self.began, self.last, self.most = at, self.most, 0.0


@dataclass
class _Port:
    """What is remembered of one port."""

    counts: dict[_Rule, _Count] = field(default_factory=dict)
    counters: object = None  # the mapping that `rules` were chosen for
    rules: tuple[_Rule, ...] = ()  # whose counters move, or have moved before

    def choose(self, port: PortSample) -> None:
        """Choose the rules to judge: nearly every counter stands still, and there are forty a port."""
        if port.counters is self.counters:
            return
        self.counters = port.counters
        moving = {name for name in port.counters if _rate(port, name) > 0}
        rules = _RULES if moving.isdisjoint(_LOST) else _RULES + _REORDERED_RULES
        self.rules = tuple(
            rule
            for rule in rules
            if rule.counter in moving
            or rule in self.counts
            or (rule.is_relative and rule.counter in port.counters)  # what is usual is counted from the start
        )


class ErrorEvents:
    """Sum up the error counters of each port."""

    def __init__(self) -> None:
        self._ports: dict[str, _Port] = {}
        self._above_at: dict[tuple[str, str], float] = {}  # by port and text: when it last rose above a limit
        self._rising: dict[tuple[str, str], Condition] = {}  # those of them that are warnings
        self._down_at: dict[str, float] = {}  # by port
        self._at: float | None = None
        self._processes: frozenset[int] = frozenset()
        self._ended_at = float("-inf")
        self._usual_from = float("inf")

    def update(self, sample: LiveSample) -> list[LiveEvent]:
        """Return the counters that have begun to rise."""
        self._note_processes(sample)
        before, self._at = self._at, sample.at
        if before is None:
            self._usual_from = sample.at + _START_SECONDS
            return []
        step = min(sample.at - before, _LONGEST_STEP)
        is_teardown = sample.at - self._ended_at < _TEARDOWN_SECONDS
        rising: dict[str, list[LiveEvent]] = {}  # by the text of their rules
        for port in sample.ports:
            known = self._ports.setdefault(port.name, _Port())
            known.choose(port)
            if not isinstance(port.state, Unknown) and port.state != ACTIVE:
                self._down_at[port.name] = sample.at
            was_down = sample.at - self._down_at.get(port.name, float("-inf")) < _TEARDOWN_SECONDS
            for rule in known.rules:
                if (is_teardown and not rule.at_teardown) or (was_down and rule.group in _OF_A_LINK_DOWN):
                    continue
                event = self._judge(port, known.counts, rule, sample, step)
                if event is not None:
                    rising.setdefault(rule.text, []).append(event)
        for key in [key for key, at in self._above_at.items() if sample.at - at >= _QUIET_SECONDS]:
            del self._above_at[key]
            self._rising.pop(key, None)
        return [event for text, events in rising.items() for event in _grouped(text, events)]

    def conditions(self) -> Iterator[Condition]:
        """Yield the errors that still rise."""
        yield from self._rising.values()

    def congested(self) -> Mapping[str, tuple[float, str]]:
        """Return the devices whose counters show congestion now: since when (Host.monotonic()), and which."""
        found: dict[str, tuple[float, str]] = {}
        for port_name, port in self._ports.items():
            name = port_name.partition("/")[0]
            for rule, count in port.counts.items():
                if rule.group == "congestion" and count.above_since is not None:
                    earlier = found.get(name)
                    if earlier is None or count.above_since < earlier[0]:
                        found[name] = count.above_since, rule.counter
        return found

    def _note_processes(self, sample: LiveSample) -> None:
        if isinstance(sample.processes, Unknown):
            return
        now = frozenset(process.pid for process in sample.processes if process.ready_nics)
        if self._processes - now:
            self._ended_at = sample.at
        if now - self._processes and self._at is not None:
            self._usual_from = max(self._usual_from, sample.at + _JOB_START_SECONDS)
        self._processes = now

    def _judge(
        self, port: PortSample, counts: dict[_Rule, _Count], rule: _Rule, sample: LiveSample, step: float
    ) -> LiveEvent | None:
        rate = _rate(port, rule.counter)
        count = counts.get(rule)
        if count is None:
            if rate <= 0 and not rule.is_relative:  # unknown, or set back
                return None
            count = counts[rule] = _Count(began=sample.at)
        if rate > 0:
            count.steps.append((sample.at, rate * step))
            count.total += rate * step
        while count.steps and sample.at - count.steps[0][0] >= rule.seconds:
            count.total -= count.steps.popleft()[1]
        if not count.steps:
            count.total = 0.0
            if not rule.is_relative:
                del counts[rule]
                return None
        if count.total <= rule.limit:
            count.above_since = None
        elif count.above_since is None:
            count.above_since = sample.at
        if rule.is_relative:
            count.renew(sample.at, rule.seconds)
            if count.total <= _TIMES * count.usual or sample.at < self._usual_from:
                return None
        if count.total <= rule.limit or rate <= 0:
            return None
        was_above = (port.name, rule.text) in self._above_at
        self._above_at[port.name, rule.text] = sample.at
        if was_above:
            return None
        event = _event(port, rule, count.total, sample.taken_at)
        if rule.severity is not Severity.NOTE:
            counters = f"/sys/class/infiniband/{port.device}/ports/{port.port}"
            self._rising[port.name, rule.text] = Condition(
                ERRORS_RISING,
                f"{port.name} {rule.text}",
                event.text,
                sample.taken_at,
                rule.severity,
                (Evidence(counters, f"{rule.counter}: {max(1, round(count.total)):,} more"),),
                (port.device,),
            )
        return event


def _grouped(text: str, events: list[LiveEvent]) -> list[LiveEvent]:
    """Return one event where many ports have begun to show the same at the same time."""
    if len(events) < _MANY:
        return events
    first = events[0]
    whole = first.text.replace(text, f"{text}, and so do {len(events) - 1} more ports", 1)
    return [replace(first, text=whole)]


def _rate(port: PortSample, counter: str) -> float:
    """Return events a second; 0 for a counter that is unknown, of which nothing can be said."""
    rate = port.counters.get(counter)
    return 0.0 if rate is None or isinstance(rate, Unknown) else rate


def _event(port: PortSample, rule: _Rule, total: float, at: float) -> LiveEvent:
    over = {60: "minute", 3600: "hour"}.get(int(rule.seconds), f"{rule.seconds:.0f} s")
    text = f"{port.name} {rule.text} ({rule.counter} rose by {max(1, round(total)):,} in the last {over})"
    kind = EventKind.ERRORS_RISING
    return LiveEvent(at, kind, rule.severity, port.name, text, ERRORS[rule.group])
