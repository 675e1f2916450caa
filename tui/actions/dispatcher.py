"""List and run actions for the screens, the command palette and the command line."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from probes.base.frozen import frozen
from probes.base.origin import Source
from probes.base.plan import NothingToDo, Plan
from probes.base.unknown import Maybe, Unknown, known
from probes.facts.jobs import processes
from probes.facts.network import network_dependencies
from probes.facts.network.network_dependencies import NetworkDependencyFacts
from probes.facts.node import derivation
from probes.host.probe_thread import start_probe
from probes.host.protocol import Host
from probes.host.values import BOOT_ID
from probes.plans.catalogue import Offer, offers
from probes.queries.finding import Finding
from probes.snapshot.examination import Examination
from tui.actions.audit_log import (
    ROOTS_LOG,
    Actor,
    Audit,
    AuditFile,
    AuditLogFile,
    BestEffortLog,
    MemoryLog,
    PastRun,
    is_undone,
    measured_line,
    own_log,
    past_runs,
    undo_plan,
)
from tui.actions.events import RunEnded, RunEvent, RunOutcome
from tui.actions.guards import (
    Clearance,
    affected_by,
    clearance,
    cut_by,
    no_actions_here,
    node_name,
    takes_down_netdevs,
)
from tui.actions.local_commands import Commands, LocalCommands, RemoteCommands, why_no_root
from tui.actions.manual_steps import runnable
from tui.actions.runner import Runner
from tui.actions.supervisor import DetachedRun, Order
from tui.runtime.lock import ActionLock, LockTaken, runtime_directory, user_name

if TYPE_CHECKING:
    from probes.host.remote.remote_host import RemoteHost

_ACS_OFF = ("acs-redirect-off", "fix:acs-redirect-enabled")
_NETWORK_SECONDS = 5.0
_MOST_UNDOS = 5  # runs that the list offers to undo


@frozen
class UndoOffer(Offer):
    """The undo of a past run."""

    run: str = ""  # its id in the log


@frozen
class Prepared:
    """An action with its plan, ready to be confirmed."""

    action: str
    title: str
    plan: Plan
    clearance: Clearance
    node: str
    source: str  # of a script: derivation(node)


class Dispatcher:
    """List actions and run one at a time; only `run` blocks."""

    def __init__(self, host: Host, read_only: bool = False, log: AuditFile | None = None) -> None:
        self._host, self._read_only = host, read_only
        if log is None:
            is_running, node = host.origin.is_running, host.origin.label  # this machine has no label
            log = AuditLogFile(own_log(node)) if is_running else MemoryLog()
        self._log = log
        self._runner: Runner | DetachedRun | None = None
        self._commands: Commands | None = None

    @property
    def refusal(self) -> str:
        """Return why nothing runs on this host, or ""."""
        return no_actions_here(self._host.origin, self._read_only)

    # The list

    def offers(self, examination: Examination, findings: Sequence[Finding]) -> tuple[Offer, ...]:
        """Return every action on the examined node, and the undo of past runs."""
        return (*offers(examination, findings), *self.undo_offers())

    def undo_offers(self) -> tuple[Offer, ...]:
        """Return the undo of cleared ACS redirects, and of the newest runs that can be undone."""
        runs = self.own_history()
        acs = next((run for run in runs if run.action in _ACS_OFF and not is_undone(run, runs)), None)
        title = "Restore ACS redirects"
        if acs is None:
            why_not = NothingToDo("gdrtop has not cleared them on this node")
            restore = Offer("acs-redirect-back", title, None, why_not)
        else:
            restore = self._undo_offer(acs, "acs-redirect-back", title)
        undos = (self._undo_offer(run, f"undo:{run.id}", f"Undo: {run.title}") for run in runs)
        possible = [
            undo
            for run, undo in zip(runs, undos, strict=True)
            if not run.action.startswith("undo:") and not is_undone(run, runs) and undo.plan is not None
        ]
        return (restore, *possible[:_MOST_UNDOS])

    def _undo_offer(self, run: PastRun, name: str, title: str) -> Offer:
        plan = undo_plan(run, self._boot_id())
        if isinstance(plan, str):
            return Offer(name, title, None, plan)
        return UndoOffer(name, title, plan, run=run.id)

    def undo_of(self, run: PastRun) -> Offer:
        """Return the action that undoes a past run."""
        runs = self.own_history()
        name, title = f"undo:{run.id}", f"Undo: {run.title}"
        if run.id not in {own.id for own in runs}:
            return Offer(name, title, None, "this run is in another user's log")
        if is_undone(run, runs):
            return Offer(name, title, None, "this run has already been undone")
        return self._undo_offer(run, name, title)

    def prepared(self, offer: Offer, examination: Examination) -> Prepared | str:
        """Return an action ready to be confirmed, or why it has no plan."""
        if offer.plan is None:
            return offer.why_not or "there is nothing to do"
        asks = not self.refusal and takes_down_netdevs(offer.plan)
        network = self._network() if asks else None
        cleared = clearance(offer.plan, examination, self._read_only, network)
        if not cleared.refused and self._host.origin.source is Source.LIVE and offer.plan.needs_root:
            cleared = replace(cleared, refused=why_no_root())
        if cleared.cuts and self._host.origin.source is Source.REMOTE:
            cleared = replace(
                cleared, refused="it may cut off this connection; run gdrtop on the node itself"
            )
        action = f"undo:{offer.run}" if isinstance(offer, UndoOffer) else offer.id
        return Prepared(
            action, offer.title, offer.plan, cleared, node_name(examination), derivation(examination.node)
        )

    def _network(self) -> Maybe[NetworkDependencyFacts]:
        host = self._host
        return start_probe(host, "network dependencies", lambda: network_dependencies.probe(host)).answer(
            _NETWORK_SECONDS
        )

    # History

    def note_measured(self, action: str, text: str) -> None:
        """Add what bandwidth tests say to the newest run of an action; AuditError if that fails."""
        run = next((run for run in self.own_history() if run.action == action), None)
        if run is not None:
            self._log.append(measured_line(run.id, text, self._host.wall_clock()))

    def own_history(self) -> tuple[PastRun, ...]:
        """Return the runs in this user's log, newest first."""
        return past_runs(self._log.lines())

    def history(self) -> tuple[tuple[PastRun, ...], tuple[str, ...]]:
        """Return this user's and root's runs, newest first, and why a log could not be read."""
        logs = [self._log]
        if self._host.origin.source is Source.LIVE and own_log() != ROOTS_LOG:
            logs.append(AuditLogFile(ROOTS_LOG, owner=0))
        runs = [run for log in logs for run in past_runs(log.lines())]
        unread = tuple(filter(None, (log.why_unread() for log in logs)))
        runs = [self._with_running(run) for run in runs]
        return tuple(sorted(runs, key=lambda run: run.at, reverse=True)), unread

    def _with_running(self, run: PastRun) -> PastRun:
        """Mark a run without an end as still running if its process exists."""
        if self._host.origin.source is Source.REMOTE:  # that process was on this machine
            return run
        if run.outcome is not RunOutcome.UNKNOWN or run.actor.boot_id != self._boot_id() or not run.actor.pid:
            return run
        if run.actor.pid == os.getpid() and not self.is_running:
            return run
        is_alive = not isinstance(self._host.names(f"/proc/{run.actor.pid}"), Unknown)
        return replace(run, outcome=RunOutcome.STILL_RUNNING) if is_alive else run

    # Running

    def run(
        self,
        prepared: Prepared,
        typed: str,
        on_event: Callable[[RunEvent], None],
        get_password: Callable[[], bool] = lambda: False,
    ) -> RunEnded:
        """Run what was confirmed; `typed` is what the user typed as the host name, if it was asked for."""
        if self._host.origin.source is Source.REMOTE:
            self._remote().forget()  # the guards judge the node as it is now
        refused = self._refused(prepared, typed)
        if refused:
            ended = RunEnded(RunOutcome.REFUSED, refused, prepared.plan.steps)
            on_event(ended)
            return ended
        try:
            if self._host.origin.source is Source.SIMULATED:
                return self._run(prepared, self._simulated(), on_event, get_password)
            if prepared.clearance.is_detached:
                return self._run_detached(prepared, on_event)
            if prepared.plan.is_for_scheduler:  # no other action and no test gets in its way
                return self._run(prepared, self._real(()), on_event, get_password)
            with ActionLock() as lock:
                return self._run(prepared, self._real((lock.descriptor,)), on_event, get_password)
        except LockTaken as taken:
            ended = RunEnded(RunOutcome.REFUSED, str(taken), prepared.plan.steps)
            on_event(ended)
            return ended

    def _refused(self, prepared: Prepared, typed: str) -> str:
        if self.refusal or prepared.clearance.refused:
            return self.refusal or prepared.clearance.refused
        word = prepared.clearance.word
        if word and typed.strip() != word:
            return f"type the host name to confirm ({word})"
        # Jobs and the network may have changed since the plan was shown.
        changed = () if word else affected_by(prepared.plan, processes.probe(self._host))
        if not changed and not prepared.clearance.cuts and takes_down_netdevs(prepared.plan):
            changed = cut_by(runnable(prepared.plan), self._network())
        return f"the node has changed since the plan was shown ({changed[0]})" if changed else ""

    def _real(self, keep: tuple[int, ...]) -> Commands:
        if self._host.origin.source is not Source.REMOTE:
            return LocalCommands(keep)
        return RemoteCommands(self._remote(), keep)

    def _remote(self) -> RemoteHost:
        from probes.host.remote.remote_host import RemoteHost

        assert isinstance(self._host, RemoteHost)
        return self._host

    def _simulated(self) -> Commands:
        from probes.simulation.host import SimulatedHost
        from tui.actions.rehearsal import SimulatedCommands

        assert isinstance(self._host, SimulatedHost)
        return SimulatedCommands(self._host)

    def _run(
        self,
        prepared: Prepared,
        commands: Commands,
        on_event: Callable[[RunEvent], None],
        get_password: Callable[[], bool],
    ) -> RunEnded:
        log = BestEffortLog(self._log) if prepared.plan.is_for_scheduler else self._log
        audit = Audit(log, self._actor(prepared.node), self._host.wall_clock)
        self._commands = commands
        self._runner = Runner(self._host, commands, audit, on_event, get_password)
        try:
            ended = self._runner.run(prepared.action, prepared.plan)
        finally:
            self._runner = self._commands = None
        failure = log.failure if isinstance(log, BestEffortLog) else ""
        return replace(ended, why="; ".join(filter(None, (ended.why, failure))))

    def _run_detached(self, prepared: Prepared, on_event: Callable[[RunEvent], None]) -> RunEnded:
        actor = self._actor(prepared.node)
        order = Order(prepared.action, prepared.plan, actor, own_log(), runtime_directory())
        self._runner = DetachedRun(order, on_event)
        try:
            return self._runner.run()
        finally:
            self._runner = None

    @property
    def is_running(self) -> bool:
        """Return whether an action is running."""
        return self._runner is not None

    def stop(self, why: str) -> None:
        """Begin no further step; a detached run goes on, but is no longer followed."""
        if self._runner is not None:
            self._runner.stop(why)

    def abandon_step(self) -> None:
        """Stop waiting for the running step, which is reported as still running."""
        if isinstance(self._commands, LocalCommands):
            self._commands.abandoned.set()

    def _boot_id(self) -> str:
        return known(self._host.read(BOOT_ID), "")

    def _actor(self, node: str) -> Actor:
        return Actor(node, self._boot_id(), user_name(), os.getpid())
