"""RAS events of a job as events of the timeline, while the user follows them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from probes.base.text import printable
from probes.base.unknown import Unknown, known
from probes.host.protocol import Host
from probes.live.model.explanations import EXPLANATIONS
from probes.live.model.sample import EventKind, LiveEvent, LiveSample, Role
from probes.live.ras.targets import LocalProcesses, local_processes
from probes.nccl.ras.facts import BAD, MEANINGS, RasEvent, parse_event
from probes.queries.finding import Severity

_MOST_EVENTS = 50  # of one sample
_ROUTINE = ("PEER_CONNECTING", "PEER_CONNECTED")


class RasEvents:
    """The subscriptions; `update` is called in one thread, the others may be called from any."""

    def __init__(self, recorded: Iterable[str] = ()) -> None:
        """Follow nothing yet, or the addresses that a recording has events of."""
        self._addresses: tuple[str, ...] = tuple(recorded)
        self._is_recorded = bool(self._addresses)
        self._first: tuple[str, ...] = ()
        self._news: list[str] = []
        self._on_end: Callable[[], object] = bool
        self._lock = threading.Lock()

    @property
    def is_on(self) -> bool:
        """Return whether events are followed."""
        return bool(self._addresses)

    def follow(self, address: str, first: tuple[str, ...] = (), on_end: Callable[[], object] = bool) -> None:
        """Follow an address to which the host has subscribed; `first`: the events that came with that.

        `on_end` is called when the subscription has ended.
        """
        with self._lock:
            self._addresses, self._first, self._on_end = (address,), first, on_end
            self._news.append("gdrtop now follows RAS events")

    def stop(self, host: Host) -> bool:
        """End the subscription, if there is one; return whether there was."""
        with self._lock:
            addresses, self._addresses = self._addresses, ()
            for address in addresses:
                host.ras_events(address, last=True)
            if addresses:
                self._on_end()
                self._news.append("gdrtop no longer follows RAS events")
        return bool(addresses)

    def update(self, host: Host, sample: LiveSample) -> list[LiveEvent]:
        """Return what is new; a subscription that has ended is one event."""
        with self._lock:
            lines, self._first = list(self._first), ()
            for address in self._addresses:
                events = host.ras_events(address)
                if not isinstance(events, Unknown):
                    lines += events
                elif not self._is_recorded:
                    host.ras_events(address, last=True)
                    self._on_end()
                    self._addresses = ()
                    self._news.append(f"RAS events stopped: {events.detail or events}")
            news, self._news = self._news, []
        found = [_switch(sample, text) for text in news]
        if lines:
            found += _events(lines, host, sample)
        return found


def _switch(sample: LiveSample, text: str) -> LiveEvent:
    kind = EventKind.RAS_EVENTS
    return LiveEvent(sample.taken_at, kind, Severity.NOTE, "RAS", printable(text, 300), EXPLANATIONS[kind])


def _events(lines: list[str], host: Host, sample: LiveSample) -> list[LiveEvent]:
    parsed = [event for event in map(parse_event, lines) if event is not None and event.kind not in _ROUTINE]
    pids = [process.pid for process in known(sample.processes, ()) if process.role is Role.NCCL]
    local = local_processes(host, sample, pids)
    found = [_event(event, local, sample) for event in parsed[:_MOST_EVENTS]]
    if len(parsed) > _MOST_EVENTS:
        found.append(_switch(sample, f"{len(parsed) - _MOST_EVENTS} more RAS events are not listed"))
    return found


def _event(event: RasEvent, local: LocalProcesses, sample: LiveSample) -> LiveEvent:
    live = local.find(event.process)
    subject, who = "RAS", "a process"
    if live is not None:
        subject, who = f"pid {live.pid}", local.text(live)
    elif not isinstance(event.process, Unknown):
        who = f"pid {event.process.pid} on node {event.process.node}"
    meaning = MEANINGS.get(event.kind, f"{event.kind} {event.details}".strip())
    severity = Severity.WARNING if event.kind in BAD else Severity.NOTE
    if event.kind == "PEER_DEAD":
        severity = Severity.CRITICAL
    kind = EventKind.RAS_PEER
    text = printable(f"{who} {meaning}", 300)
    return LiveEvent(sample.taken_at, kind, severity, subject, text, EXPLANATIONS[kind])
