"""Events of ports: up, down, flapping, line rate, pauses, and the PCIe links of NICs."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from probes.base.evidence import Evidence, Severity
from probes.base.latest import Latest
from probes.base.text import minutes
from probes.base.unknown import Maybe, Unknown, known
from probes.facts.pci.functions import words
from probes.facts.rdma.devices import ACTIVE
from probes.live.model.explanations import detail, explained
from probes.live.model.sample import EventKind, LiveEvent, LiveProcess, LiveSample, PortSample
from probes.live.model.settled import Lasting, Settled
from probes.snapshot.condition import FLAPPING, PAUSED, Condition

PAUSE_PERCENT = 5.0
_PAUSE_SAMPLES = 3
_QUIET_SAMPLES = 30  # without pauses, before the next event
_RATE_SAMPLES = 2
_MISSED = 2  # samples without the port
# A link that goes down this often in ten minutes is reported once, until it is quiet for a minute.
_FLAPS, _FLAP_SECONDS, _QUIET_SECONDS = 3, 600.0, 60.0


@dataclass
class _Port:
    is_up: bool
    state: str
    changed_at: float
    missed: int = 0
    downs: deque[float] = field(default_factory=deque)
    is_flapping: bool = False
    flapping: Condition | None = None
    paused: Condition | None = None
    rate: Settled[float] = field(default_factory=lambda: Settled(_RATE_SAMPLES))
    pause: Lasting = field(default_factory=lambda: Lasting(_PAUSE_SAMPLES, _QUIET_SAMPLES))


class PortEvents:
    """Compare the ports of each sample with those before."""

    def __init__(self) -> None:
        self._known: dict[str, _Port] = {}
        self._is_first = True
        self._used: Latest[frozenset[str]] = Latest()
        self.downs: tuple[str, ...] = ()  # ports that have gone down in the newest sample, flapping or not

    def update(self, sample: LiveSample) -> list[LiveEvent]:
        """Return what has changed. A port that was down from the start is no event."""
        events: list[LiveEvent] = []
        self.downs = ()
        processes = sample.processes
        used = self._used.get(lambda: _used(processes), objects=(processes,))
        names = set()
        for port in sample.ports:
            name = port.name
            names.add(name)
            if not isinstance(port.state, Unknown):
                events += self._state(port, port.state, sample, port.device in used)
            if (known := self._known.get(name)) is not None:
                events += _rate_and_pause(known, port, sample.taken_at)
        events += self._gone(names, sample, used)
        self._is_first = False
        return events

    def conditions(self) -> Iterator[Condition]:
        """Yield the ports that flap or are paused, until they are quiet for a while or pauses are unknown."""
        for port in self._known.values():
            if port.is_flapping and port.flapping is not None:
                yield port.flapping
            if port.pause.is_on and port.paused is not None:
                yield port.paused

    def _state(self, port: PortSample, state: str, sample: LiveSample, is_used: bool) -> list[LiveEvent]:
        is_up = state == ACTIVE
        known = self._known.get(port.name)
        if known is None:
            self._known[port.name] = _Port(is_up, state, sample.at)
            if self._is_first:
                return []
            return [_event(port, sample, Severity.NOTE, f"{port.name} appeared (state {state})", "")]
        known.missed = 0
        if known.is_flapping and sample.at - known.changed_at > _QUIET_SECONDS:
            known.is_flapping = False
            known.downs.clear()
            if not is_up and not known.is_up:
                text = f"{port.name} is still down"
                return [_event(port, sample, _down(is_used), text, detail("port-down"))]
            if is_up and known.is_up:
                text = f"{port.name} has stopped flapping"
                return [_event(port, sample, Severity.NOTE, text, detail("port-up"))]
        if is_up == known.is_up:
            known.state = state
            return []
        since, known.changed_at = sample.at - known.changed_at, sample.at
        known.is_up, known.state = is_up, state
        if is_up:
            if known.is_flapping:
                return []
            text = f"{port.name} is up again after {minutes(since)}"
            return [_event(port, sample, Severity.NOTE, text, detail("port-up"))]
        while known.downs and sample.at - known.downs[0] > _FLAP_SECONDS:
            known.downs.popleft()
        known.downs.append(sample.at)
        self.downs += (port.name,)
        if known.is_flapping:
            return []
        if len(known.downs) >= _FLAPS:
            known.is_flapping = True
            over = minutes(sample.at - known.downs[0])
            text = f"{port.name} is flapping: down {len(known.downs)} times in {over}"
            state_file = f"/sys/class/infiniband/{port.device}/ports/{port.port}/state"
            shown = (Evidence(state_file, f"down {len(known.downs)} times in {over}"),)
            known.flapping = Condition(
                FLAPPING, port.name, text, sample.taken_at, evidence=shown, devices=(port.device,)
            )
            return [_event(port, sample, _down(is_used), text, detail("port-flapping"))]
        if state in ("INIT", "ARMED"):
            text, why = f"{port.name} is in state {state}", detail("port-waits")
        else:
            text, why = f"{port.name} went down", detail("port-down")
        return [_event(port, sample, _down(is_used), text, why)]

    def _gone(self, names: set[str], sample: LiveSample, used: frozenset[str]) -> list[LiveEvent]:
        gone = []
        for name in [name for name in self._known if name not in names]:
            known = self._known[name]
            known.missed += 1
            if known.missed >= _MISSED:
                gone.append(name)
                del self._known[name]
        kind, why = EventKind.PORT_STATE, detail("port-gone")
        if len(gone) > 1 and not self._known:
            text = f"all {len(gone)} RDMA ports are gone"
            return [LiveEvent(sample.taken_at, kind, Severity.CRITICAL, gone[0], text, why)]
        at, downs = sample.taken_at, {name: _down(name.partition("/")[0] in used) for name in gone}
        return [LiveEvent(at, kind, down, name, f"{name} is gone", why) for name, down in downs.items()]


def _used(processes: Maybe[tuple[LiveProcess, ...]]) -> frozenset[str]:
    seen = () if isinstance(processes, Unknown) else processes
    return frozenset(device for process in seen for device in process.ready_nics)


def _down(is_used: bool) -> Severity:
    return Severity.CRITICAL if is_used else Severity.WARNING


def _event(port: PortSample, sample: LiveSample, severity: Severity, text: str, why: str) -> LiveEvent:
    return LiveEvent(sample.taken_at, EventKind.PORT_STATE, severity, port.name, text, why)


def _rate_and_pause(seen: _Port, port: PortSample, at: float) -> list[LiveEvent]:
    events = []
    # A port that is down shows the rate of its last link, or the lowest one.
    if seen.is_up and not isinstance(port.line_rate_gbps, Unknown):
        changed = seen.rate.update(port.line_rate_gbps)
        if changed is not None:
            before, now = changed
            severity = Severity.WARNING if now < before else Severity.NOTE
            text = f"the line rate of {port.name} changed from {before:g} to {now:g} Gb/s"
            events.append(explained(at, EventKind.PORT_RATE, severity, port.name, text))
    pause = port.pause_percent
    if isinstance(pause, Unknown):
        seen.pause.reset()
    elif seen.pause.update(pause > PAUSE_PERCENT):
        text = f"{port.name} is paused {pause:.0f} % of the time"
        counter = f"ethtool -S {known(port.netdev, port.name)}"
        shown = (Evidence(counter, f"pause frames for {pause:.0f} % of the time"),)
        seen.paused = Condition(PAUSED, port.name, text, at, evidence=shown, devices=(port.device,))
        events.append(explained(at, EventKind.PAUSE, Severity.WARNING, port.name, text))
    return events


_LINK_SAMPLES = 2  # a link that trains shows other values for a moment
Link = tuple[float, int]  # GT/s of a lane, lanes


class NicLinkEvents:
    """Compare the PCIe link of each NIC with the samples before; unlike a GPU's, it is fast while idle."""

    def __init__(self) -> None:
        self._links: defaultdict[str, Settled[Link]] = defaultdict(lambda: Settled(_LINK_SAMPLES))

    def update(self, sample: LiveSample) -> list[LiveEvent]:
        """Return the links that changed, once for all ports of a device; nothing while a link is unknown."""
        events: list[LiveEvent] = []
        for device, port in {port.device: port for port in sample.ports}.items():
            speed, width = known(port.pcie_gtps, 0.0), known(port.pcie_width, 0)
            changed = self._links[device].update((speed, width)) if speed and width else None
            if changed is None:
                continue
            before, now = changed
            is_slower = now[0] < before[0] or now[1] < before[1]
            severity = Severity.WARNING if is_slower else Severity.NOTE
            text = f"the PCIe link of {device} changed from {words(*before)} to {words(*now)}"
            kind, why = EventKind.LINK_RETRAINED, detail("nic-pcie-link")
            events.append(LiveEvent(sample.taken_at, kind, severity, device, text, why))
        return events
