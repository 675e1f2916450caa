"""Ask NCCL's RAS service from the dashboard: only on a key, after a confirmation, in a thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from probes.base.unknown import Maybe, Unknown
from probes.host.ras import MONITOR, STATUS
from probes.live.ras.findings import conditions_of
from probes.live.ras.targets import RasDecision, RasTarget, find_targets
from probes.nccl.ras import RasReport
from tui.runtime.ras_questions import RasAnswer, RasQuestions, use_of
from tui.screens.ask import YES, AskScreen, sentences
from tui.screens.keys import KEYS
from tui.screens.ras import RasPort, RasScreen, RasState
from widgets.nccl.ras import notice

if TYPE_CHECKING:
    from probes.host.protocol import Host
    from probes.live.model.sample import LiveSample
    from tui.controllers.context import AppContext
    from tui.controllers.readings import ReadingsController

_NOT_READ = f"Still reading the node; try again in a moment ({KEYS['refresh'].display})."
_Decided = tuple[RasTarget | None, RasDecision]


class RasController:
    """The RAS screen's state, and the threads that search and ask."""

    def __init__(self, context: AppContext, readings: ReadingsController) -> None:
        self._context, self._readings = context, readings
        self.state = RasState()
        self._questions: RasQuestions | None = None
        self._is_searching = False
        self._is_deciding = False  # on a question that is not sent yet
        self._is_subscribing = False

    def show(self) -> None:
        """Show the screen; ask the first port that was not asked yet, after a confirmation."""
        self._context.show(RasScreen, lambda: RasScreen(self.state))
        self.search(then_ask=True)

    # The node

    def _source(self) -> tuple[RasQuestions, Host, LiveSample] | None:
        """Return who asks, the host that answers (recorded while a recording runs), and the newest sample."""
        host, sample = self._context.host, self._context.live.newest
        if host is None or sample is None:
            return None
        live = self._readings.live
        node = _at(host, sample) if live is None else live.monitor.host
        if self._questions is None:
            self._questions = RasQuestions(host)
            self.state.is_recorded = self._questions.is_recorded
        return self._questions, node, sample

    def search(self, then_ask: bool = False) -> None:
        """Search for the ports of the jobs that run now."""
        source = self._source()
        if source is None:
            self.state.fail(_NOT_READ)
            self._context.draw(RasScreen)
            return
        if self._is_searching:
            return
        self._is_searching = True
        questions, node, sample = source

        def work() -> list[RasPort]:
            targets = find_targets(node, sample)
            return [RasPort(target, questions.decide(target, use_of(STATUS))) for target in targets]

        def take(ports: list[RasPort]) -> None:
            self._is_searching = False
            self.state.set_ports(ports)
            self._context.draw(RasScreen)
            selected = self.state.selected
            if then_ask and selected and not self.state.is_answered(selected):
                self.ask(selected, STATUS)

        def fail(message: str) -> None:
            self._is_searching = False
            self.state.fail(message)
            self._context.draw(RasScreen)

        self._context.run_in_thread(work, take, fail)

    # Questions

    def ask(self, port: str, command: str) -> None:
        """Ask a port: decide in a thread, let the user confirm, then send in a thread."""
        source = self._source()
        if source is None or self.state.asking or self._is_deciding:
            return
        questions, node, sample = source
        self._is_deciding = True

        def take(decided: _Decided) -> None:
            self._is_deciding = False
            target, decision = decided
            if target is None:
                self._refuse(port, ("the job no longer exists",))
            elif not decision.is_allowed:
                self._refuse(port, decision.refusals)
            else:
                send = partial(self._send, questions, target, command, node, sample)
                refuse = partial(self._refuse, port, ("not confirmed; nothing was sent",))
                self._confirm(questions, target, command, decision, send, refuse)

        self._context.run_in_thread(
            lambda: _decide(questions, node, sample, port, command),
            take,
            lambda message: self._refuse(port, (message,)),
        )

    def _refuse(self, port: str, why: tuple[str, ...]) -> None:
        self._is_deciding = False
        self.state.refuse(port, why)
        self._context.draw(RasScreen)

    def _confirm(
        self,
        questions: RasQuestions,
        target: RasTarget,
        command: str,
        decision: RasDecision,
        yes: Callable[[], None],
        no: Callable[[], None],
    ) -> None:
        """Show what is sent and what it may do, unless that was confirmed in this session."""
        if questions.is_confirmed(target, command, decision):
            yes()
            return
        if isinstance(self._context.app.screen, AskScreen):
            no()
            return

        def answered(answer: str | None) -> None:
            if answer != YES:
                no()
                return
            questions.confirm(target, command, decision)
            yes()

        texts = notice(target, command, decision)
        ask = AskScreen(sentences(*texts), f"Send {command}", "Send nothing")
        self._context.app.push_screen(ask, answered)

    def _send(
        self, questions: RasQuestions, target: RasTarget, command: str, node: Host, sample: LiveSample
    ) -> None:
        self.state.begin(target.name)
        self._context.draw(RasScreen)

        def take(answer: RasAnswer) -> None:
            self.state.set_answer(answer)
            self._context.draw(RasScreen)
            live = self._readings.live
            if live is not None and isinstance(answer.report, RasReport):
                jobs = [job for job in sample.jobs if not set(job.pids).isdisjoint(target.pids)]
                conditions = conditions_of(answer.found, answer.taken_at, answer.address, jobs)
                live.monitor.note(target.name, conditions)

        self._context.run_in_thread(
            lambda: questions.ask(target, command, use_of(command), sample, node),
            take,
            lambda message: self._refuse(target.name, (message,)),
        )

    # Events

    def toggle_events(self) -> None:
        """Follow the RAS events of the selected port in the timeline, or stop."""
        live, source = self._readings.live, self._source()
        if live is None or source is None:
            recorded = "A recording shows the RAS events that were followed while it was recorded."
            self._context.notify(_NOT_READ if live is not None else recorded)
            return
        if live.monitor.ras.is_on:
            self._readings.end_ras_events()
            self._context.notify("gdrtop no longer follows RAS events.")
            return
        if self._is_subscribing:
            return
        self._is_subscribing = True
        questions, node, sample = source
        port = self.state.selected

        def take(decided: _Decided) -> None:
            target, decision = decided
            if target is None or not decision.is_allowed:
                why = "; ".join(decision.refusals) or "no NCCL job is visible on this node"
                self._end_subscribing(f"RAS events are not available: {why}.")
                return
            subscribe = partial(self._subscribe, questions, target, node)
            end = partial(self._end_subscribing, "Not confirmed. Nothing was sent.")
            self._confirm(questions, target, MONITOR, decision, subscribe, end)

        self._context.run_in_thread(
            lambda: _decide(questions, node, sample, port, MONITOR), take, self._end_subscribing
        )

    def _subscribe(self, questions: RasQuestions, target: RasTarget, node: Host) -> None:
        def take(found: tuple[str, Maybe[tuple[str, ...]]]) -> None:
            address, first = found
            live = self._readings.live
            if isinstance(first, Unknown) or live is None:
                questions.end_events()
                self._end_subscribing(f"RAS events are not available: {first}.")
                return
            live.monitor.ras.follow(address, first, questions.end_events)
            self._is_subscribing = False
            if self._context.is_leaving:
                self._readings.end_ras_events()
                return
            stop = f"Press {KEYS['ras_events'].display} to stop."
            text = f"gdrtop follows the RAS events of {target.name}. Live lists them. {stop}"
            self._context.notify(text)

        self._context.run_in_thread(lambda: questions.subscribe(target, node), take, self._end_subscribing)

    def _end_subscribing(self, message: str) -> None:
        self._is_subscribing = False
        self._context.notify(message, "warning")


def _decide(questions: RasQuestions, node: Host, sample: LiveSample, port: str, command: str) -> _Decided:
    """Return the port as it is now ("": the first one), and whether it may be asked."""
    targets = find_targets(node, sample)
    target = next((target for target in targets if not port or target.name == port), None)
    return target, RasDecision() if target is None else questions.decide(target, use_of(command))


def _at(host: Host, sample: LiveSample) -> Host:
    """Return a recorded host at the moment that is shown; that thread's own one moves."""
    from probes.recording.replay_host import ReplayHost

    if not isinstance(host, ReplayHost):
        return host
    own = ReplayHost(host.recording)
    moments = host.recording.moments
    own.seek(
        max((number for number, moment in enumerate(moments) if moment.at <= sample.taken_at), default=0)
    )
    return own
