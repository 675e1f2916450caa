"""Questions to the RAS services of a node: consent and policy before each one, and earlier answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import TextIO

from probes.base.frozen import frozen
from probes.base.origin import Source
from probes.base.unknown import ABSENT, Maybe, Reason, Unknown
from probes.host.protocol import Host
from probes.host.ras import DIAGNOSTICS, DIAGNOSTICS_SECONDS, MONITOR
from probes.live.model.sample import LiveSample
from probes.live.ras.findings import RasFinding, RasHistory, Stall, findings
from probes.live.ras.targets import RasDecision, RasTarget, RasUse, decide, find_targets, local_processes
from probes.nccl.ras import Diagnostics, RasEvent, RasReport, parse_diagnostics, parse_report
from tui.runtime.lock import RasLock

NOT_ASKED = Unknown(Reason.NOT_RECORDED, "RAS", "not queried")
_SAMPLES = 5  # until start times and libraries of all processes are read
_NOT_CONFIRMED = "not confirmed"
NOT_CONFIRMED = RasDecision((f"{_NOT_CONFIRMED}; use --yes to skip the prompt",))


@frozen
class RasAnswer:
    """What became of one question to one port."""

    target: RasTarget
    command: str = ""
    sent: str = ""  # the command; "": nothing was sent
    address: str = ""
    decision: RasDecision = field(default_factory=RasDecision)
    report: Maybe[RasReport] = NOT_ASKED
    diagnostics: Maybe[Diagnostics] = NOT_ASKED
    found: tuple[RasFinding, ...] = ()
    stalls: tuple[Stall, ...] = ()
    events: tuple[RasEvent, ...] = ()
    taken_at: float = 0.0  # seconds since 1970, of the sample whose processes are named


class RasQuestions:
    """The only code that asks a RAS service.

    Each command needs the user's consent once, DIAGNOSTICS each time. Nothing is sent to a recorded job. Its
    methods may be called from any thread.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self.is_recorded = host.origin.source is Source.RECORDED
        self._lock = threading.Lock()
        # With other gdrtops; a simulated node has its own.
        self._shared = RasLock() if host.origin.source is Source.LIVE else None
        self._is_following = False
        self._asked_at: dict[str, float] = {}  # by the port's name
        self._histories: dict[str, RasHistory] = {}
        self._confirmed: set[tuple[str, ...]] = set()

    @property
    def has_asked(self) -> bool:
        """Return whether anything was sent."""
        return bool(self._asked_at)

    def decide(self, target: RasTarget, use: RasUse) -> RasDecision:
        """Return whether the policy permits a question now."""
        if self.is_recorded:
            return RasDecision()
        if target.problem:
            return RasDecision((target.problem,))
        now = self._host.monotonic()
        everywhere = {} if self._shared is None else self._shared.asked_at()
        asked = [times[target.name] for times in (self._asked_at, everywhere) if target.name in times]
        since = [now - at for at in asked if at <= now]  # later: before the node was booted
        return decide(target.jobs, use, min(since, default=None))

    def _connect(self) -> str:
        """Keep other gdrtops from connecting; return why gdrtop must not connect, or ""."""
        return "" if self._shared is None else self._shared.take()

    def _disconnect(self) -> None:
        if self._shared is not None and not self._is_following:
            self._shared.release()

    def end_events(self) -> None:
        """Let other gdrtops connect, because the events of `subscribe` have ended."""
        with self._lock:
            self._is_following = False
            self._disconnect()

    def _note(self, target: RasTarget) -> None:
        self._asked_at[target.name] = self._host.monotonic()
        if self._shared is not None:
            self._shared.note(target.name, self._asked_at[target.name])

    def is_confirmed(self, target: RasTarget, command: str, decision: RasDecision) -> bool:
        """Return whether the user has consented to this command with these warnings."""
        return self.is_recorded or _key(target, command, decision) in self._confirmed

    def confirm(self, target: RasTarget, command: str, decision: RasDecision) -> None:
        """Note that the user has seen what is sent and what it may do, and consents."""
        self._confirmed.add(_key(target, command, decision))

    def _permission(self, target: RasTarget, command: str, use: RasUse) -> RasDecision:
        """Return the decision on a question that is sent at once; the policy may have changed meanwhile."""
        decision = self.decide(target, use)
        if decision.is_allowed and not self.is_confirmed(target, command, decision):
            return RasDecision((_NOT_CONFIRMED,), decision.warnings)
        if decision.is_allowed and command == DIAGNOSTICS:
            self._confirmed.discard(_key(target, command, decision))
        return decision

    def ask(
        self, target: RasTarget, command: str, use: RasUse, sample: LiveSample, host: Host | None = None
    ) -> RasAnswer:
        """Ask one port, if that is permitted and confirmed; it may take 20 seconds, DIAGNOSTICS longer.

        `host`: the one that answers, if it is not the own one: a recording host.
        """
        node = self._host if host is None else host
        with self._lock:
            why = self._connect()
            if why:
                return RasAnswer(target, command, decision=RasDecision((why,)))
            try:
                return self._ask(target, command, use, sample, node)
            finally:
                self._disconnect()

    def _ask(self, target: RasTarget, command: str, use: RasUse, sample: LiveSample, node: Host) -> RasAnswer:
        decision = self._permission(target, command, use)
        if not decision.is_allowed:
            return RasAnswer(target, command, decision=decision)
        now = self._host.monotonic()
        if not self.is_recorded:
            self._note(target)
        text, address = self._text(node, target, command)
        if not self.is_recorded:
            self._note(target)
        answer = RasAnswer(
            target, command, "" if self.is_recorded else command, address, decision, taken_at=sample.taken_at
        )
        return self._read(answer, text, sample, node, sample.taken_at if self.is_recorded else now)

    @staticmethod
    def _text(host: Host, target: RasTarget, command: str) -> tuple[Maybe[str], str]:
        """Ask the addresses until something listens."""
        text: Maybe[str] = Unknown(Reason.NOT_THERE, "RAS", "no address")
        address = ""
        for address in target.addresses:
            seconds = (DIAGNOSTICS_SECONDS,) if command == DIAGNOSTICS else ()
            text = host.ras_answer(address, command, *seconds)
            if not isinstance(text, Unknown) or text.reason not in ABSENT:
                break
        return text, address

    def _read(
        self, answer: RasAnswer, text: Maybe[str], sample: LiveSample, host: Host, at: float
    ) -> RasAnswer:
        if answer.command == DIAGNOSTICS:
            result = text if isinstance(text, Unknown) else parse_diagnostics(text)
            return replace(answer, diagnostics=result)
        if isinstance(text, Unknown):
            return replace(answer, report=text)
        target, report = answer.target, parse_report(text)
        history = self._histories.setdefault(target.name, RasHistory())
        stalls = history.add(report, at, len(target.jobs) == 1)
        local = local_processes(host, sample, target.pids)
        return replace(answer, report=report, stalls=stalls, found=findings(report, stalls, local))

    def subscribe(self, target: RasTarget, host: Host | None = None) -> tuple[str, Maybe[tuple[str, ...]]]:
        """Subscribe to the events of a port; return its address and the first events, or why not.

        Until `end_events`, no other gdrtop connects.
        """
        node = self._host if host is None else host
        with self._lock:
            why = self._connect()
            if why:
                return "", Unknown(Reason.NOT_RECORDED, "RAS events", why)
            try:
                address, events = self._subscribe(target, node)
                self._is_following = self._is_following or not isinstance(events, Unknown)
                return address, events
            finally:
                self._disconnect()

    def _subscribe(self, target: RasTarget, node: Host) -> tuple[str, Maybe[tuple[str, ...]]]:
        decision = self._permission(target, MONITOR, RasUse.EVENTS)
        if not decision.is_allowed:
            return "", Unknown(Reason.NOT_RECORDED, "RAS events", "; ".join(decision.refusals))
        events: Maybe[tuple[str, ...]] = Unknown(Reason.NOT_THERE, "RAS", "no address")
        for address in target.addresses:
            events = node.ras_events(address)
            if not isinstance(events, Unknown):
                return address, events
            node.ras_events(address, last=True)
            if events.reason is not Reason.NOT_THERE:
                break
        return "", events


def _key(target: RasTarget, command: str, decision: RasDecision) -> tuple[str, ...]:
    return (target.name, command, *decision.warnings)


def use_of(command: str) -> RasUse:
    """Return how a single question uses RAS."""
    return {MONITOR: RasUse.EVENTS, DIAGNOSTICS: RasUse.DIAGNOSTICS}.get(command, RasUse.ONCE)


def read_with_ages(
    host: Host, read: Callable[[], LiveSample], wait: Callable[[float], object], nccl: str = ""
) -> LiveSample:
    """Return a sample in which start times and libraries of the processes are known, if they can be."""
    for _ in range(_SAMPLES):
        sample = read()
        if not ages_are_late(find_targets(host, sample, nccl)):
            break
        wait(1.0)
    return sample


def ages_are_late(targets: Sequence[RasTarget]) -> bool:
    """Return whether start times or libraries of processes are still being read, in the next samples."""
    return any(
        isinstance(what, Unknown) and what.reason is Reason.TIMED_OUT
        for target in targets
        for job in target.jobs
        for what in (job.version, job.youngest_seconds)
    )


def confirmed(
    questions: RasQuestions,
    target: RasTarget,
    command: str,
    decision: RasDecision,
    answers: TextIO,
    errors: TextIO,
    yes: bool,
) -> RasDecision:
    """Show what is sent and what it may do, and ask, unless that was confirmed before.

    Return the decision, or NOT_CONFIRMED. `yes`: the command line has consented.
    """
    if not decision.is_allowed or questions.is_confirmed(target, command, decision):
        return decision
    from widgets.nccl.ras import notice

    for text in notice(target, command, decision):
        print(text, file=errors)
    if not yes:
        if not (answers.isatty() and errors.isatty()):
            return NOT_CONFIRMED
        print("Query the job? [y/N] ", end="", file=errors, flush=True)
        if answers.readline().strip().lower() not in ("y", "yes"):
            return NOT_CONFIRMED
    questions.confirm(target, command, decision)
    return decision
