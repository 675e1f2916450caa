"""Events of error counters that begin to rise: faster than is normal, and not because a job ends."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from probes.base.evidence import Evidence, Severity
from probes.base.unknown import Unknown
from probes.facts.rdma.bit_errors import WINDOW_SECONDS
from probes.facts.rdma.devices import ACTIVE
from probes.facts.rdma.port_health import LOSSES, PORT_COUNTERS, Harm, Rise
from probes.live.model.explanations import explanation_of
from probes.live.model.sample import EventKind, LiveEvent, LiveProcess, LiveSample, PortSample
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


# What is normal when a job ends: its processes do not end at the same time.
_OF_TEARDOWN = (Harm.TIMEOUT, Harm.RETRY, Harm.LOSS, Harm.REORDERED, Harm.RECEIVER, Harm.CONGESTION)
_NOTES = (Harm.RECEIVER, Harm.CONGESTION)


@dataclass(frozen=True, eq=False)
class _Rule:
    """More events in `seconds` than its limit are an event."""

    counter: str
    seconds: float
    rise: Rise
    number: int  # of the limit among those of the rise

    @cached_property
    def text(self) -> str:
        """What follows the port's name."""
        return self.rise.sentence

    @cached_property
    def harm(self) -> Harm:
        return self.rise.harm

    def limit(self, port: PortSample) -> float:
        """Return how many events are normal at the port's line rate."""
        return self.rise.limits_at(port.line_rate_gbps)[self.number][0]

    @cached_property
    def severity(self) -> Severity:
        return Severity.NOTE if self.harm in _NOTES else Severity.WARNING

    @cached_property
    def is_relative(self) -> bool:
        """Whether it needs several times more than what was seen before."""
        return self.harm is Harm.CONGESTION


_ALL_RULES = tuple(
    _Rule(counter.name, seconds, counter.rise, number)
    for counter in {counter.name: counter for counter in PORT_COUNTERS}.values()
    if counter.rise is not None
    for number, (_, seconds) in enumerate(counter.rise.limits)
)
_RULES = tuple(rule for rule in _ALL_RULES if rule.harm is not Harm.REORDERED)


# What follows from a link that is down.
_OF_A_LINK_DOWN = (Harm.FLAP, Harm.TIMEOUT, Harm.LOSS, Harm.DISCARDS, Harm.REORDERED)


@dataclass
class _Count:
    steps: deque[tuple[float, float]] = field(default_factory=deque)  # (at, events)
    total: float = 0.0
    began: float = 0.0  # the current window
    most: float = 0.0  # of the totals in the current window
    above_since: float | None = None  # since when the total is above the limit
    last: float = 0.0  # of the window before
    usual: float = 0.0  # of all windows before that one, the older the less

    def renew(self, at: float, seconds: float) -> None:
        self.most = max(self.most, self.total)
        if at - self.began >= seconds:
            self.usual = max(_FADING * self.usual, self.last)
            self.began, self.last, self.most = at, self.most, 0.0


@dataclass
class _Port:
    counts: dict[_Rule, _Count] = field(default_factory=dict)
    counters: object = None  # the mapping that `rules` were chosen for
    rules: tuple[_Rule, ...] = ()  # whose counters move, or have moved before

    def choose(self, port: PortSample) -> None:
        """Choose the rules to judge: nearly every counter stands still, and there are forty a port."""
        if port.counters is self.counters:
            return
        self.counters = port.counters
        moving = {name for name in port.counters if _rate(port, name) > 0}
        rules = _RULES if moving.isdisjoint(LOSSES) else _ALL_RULES
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
        self._ports: defaultdict[str, _Port] = defaultdict(_Port)
        self._above_at: dict[tuple[str, str], float] = {}  # by port and text: when it last rose above a limit
        self._rising: dict[tuple[str, str], Condition] = {}  # those of them that are warnings
        self._down_at: dict[str, float] = {}  # by port
        self._trained_at: dict[str, float] = {}  # the same, also where no sample has seen it down
        self._at: float | None = None
        self._seen: tuple[LiveProcess, ...] = ()  # of the sample before
        self._processes: frozenset[int] = frozenset()  # those of them with connected queue pairs
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
            known = self._ports[port.name]
            known.choose(port)
            if not isinstance(port.state, Unknown) and port.state != ACTIVE:
                self._down_at[port.name] = sample.at
                self._trained_at[port.name] = sample.at
            if any(rule.harm is Harm.FLAP and _rate(port, rule.counter) > 0 for rule in known.rules):
                self._trained_at[port.name] = sample.at  # down for less than a second
            was_down = sample.at - self._down_at.get(port.name, float("-inf")) < _TEARDOWN_SECONDS
            is_training = sample.at - self._trained_at.get(port.name, float("-inf")) < WINDOW_SECONDS
            for rule in known.rules:
                if (is_teardown and rule.harm in _OF_TEARDOWN) or (was_down and rule.harm in _OF_A_LINK_DOWN):
                    continue
                if is_training and rule.harm is Harm.SIGNAL:
                    continue
                if (event := self._judge(port, known.counts, rule, sample, step)) is not None:
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
                if count.above_since is not None and rule.harm is Harm.CONGESTION:
                    earlier = found.get(name)
                    if earlier is None or count.above_since < earlier[0]:
                        found[name] = count.above_since, rule.counter
        return found

    def _note_processes(self, sample: LiveSample) -> None:
        if isinstance(sample.processes, Unknown) or sample.processes is self._seen:
            return
        self._seen = sample.processes
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
            count.total, count.above_since = 0.0, None
            if rule.is_relative:
                count.renew(sample.at, rule.seconds)
            else:
                del counts[rule]
            return None
        limit = rule.limit(port)
        if count.total <= limit:
            count.above_since = None
        elif count.above_since is None:
            count.above_since = sample.at
        if rule.is_relative:
            count.renew(sample.at, rule.seconds)
            if count.total <= _TIMES * count.usual or sample.at < self._usual_from:
                return None
        if count.total <= limit or rate <= 0:
            return None
        was_above = (port.name, rule.text) in self._above_at
        self._above_at[port.name, rule.text] = sample.at
        if was_above:
            return None
        more, at = f"{max(1, round(count.total)):,}", sample.taken_at
        over = {60: "minute", 3600: "hour"}.get(int(rule.seconds), f"{rule.seconds:.0f} s")
        subject = f"{port.name} {rule.text}"
        text = f"{subject} ({rule.counter} rose by {more} in the last {over})"
        if rule.severity is not Severity.NOTE:
            counters = f"/sys/class/infiniband/{port.device}/ports/{port.port}"
            shown = (Evidence(counters, f"{rule.counter}: {more} more"),)
            self._rising[port.name, rule.text] = Condition(
                ERRORS_RISING, subject, text, at, rule.severity, shown, (port.device,)
            )
        explanation = explanation_of(rule.harm)
        return LiveEvent(at, EventKind.ERRORS_RISING, rule.severity, port.name, text, explanation)


def _grouped(text: str, events: list[LiveEvent]) -> list[LiveEvent]:
    """Return one event where many ports have begun to show the same at the same time."""
    if len(events) < _MANY:
        return events
    first = events[0]
    whole = first.text.replace(text, f"{text}, and so do {len(events) - 1} more ports", 1)
    return [replace(first, text=whole, others=tuple(event.subject for event in events[1:]))]


def _rate(port: PortSample, counter: str) -> float:
    """Return events a second; 0 for a counter that is unknown, of which nothing can be said."""
    rate = port.counters.get(counter)
    return 0.0 if rate is None or isinstance(rate, Unknown) else rate
