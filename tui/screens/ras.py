"""The RAS screen: ask NCCL which ranks answer and which one is behind, one question a key."""

from __future__ import annotations

from collections.abc import Sequence

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Unknown
from probes.host.ras import DIAGNOSTICS, STATUS, VERBOSE_STATUS
from probes.live.ras.targets import RasDecision, RasTarget
from tui.runtime.ras_questions import RasAnswer
from tui.screens import save_and_copy
from tui.screens.keys import KEYS, bind, leave_keys
from tui.screens.list_screen import REFRESH_KEY, ListScreen
from tui.screens.list_state import ListState
from tui.screens.request import Request
from widgets.base.figures import local_time
from widgets.base.lines import Line, Run, Tone, as_text, fit, paragraphs, wrapped
from widgets.nccl.ras import diagnostics_lines, report_lines

_TEXT_WIDTH = 160  # of a written file
_AGAIN = "Query again after at least 10 s to see whether they move."
_NO_PORT = (
    "No process of an NCCL job is visible on this node, so there is nothing to query. "
    f"{KEYS['refresh'].display} searches again."
)
_COMMANDS = {"status": STATUS, "verbose": VERBOSE_STATUS, "diagnostics": DIAGNOSTICS}


@frozen
class RasPort:
    """A port, and whether it may be asked now."""

    target: RasTarget
    decision: RasDecision


class RasState(ListState):
    """Ports, selection, and the newest answer of each port."""

    def __init__(self) -> None:
        super().__init__()
        self._ports: tuple[RasPort, ...] | None = None
        self._answers: dict[str, RasAnswer] = {}
        self._refusals: dict[str, tuple[str, ...]] = {}  # of the newest question, by port
        self.asking = ""  # the port that is asked now
        self.is_recorded = False

    # What was found and answered

    def set_ports(self, ports: Sequence[RasPort]) -> None:
        """Show the ports of the jobs that run now."""
        self._ports, self._failure = tuple(ports), ""
        self._keep_selection()

    def port(self, name: str) -> RasPort | None:
        """Return a port by its name."""
        return next((port for port in self._ports or () if port.target.name == name), None)

    def begin(self, name: str) -> None:
        """Note that a port is asked."""
        self.asking = name
        self._refusals.pop(name, None)

    def refuse(self, name: str, refusals: tuple[str, ...]) -> None:
        """Show why a port was not asked; its last answer stays."""
        self.asking = ""
        self._refusals[name] = refusals

    def set_answer(self, answer: RasAnswer) -> None:
        """Show an answer."""
        self.asking = ""
        if answer.decision.is_allowed:
            self._answers[answer.target.name] = answer
            self._refusals.pop(answer.target.name, None)
        else:
            self._refusals[answer.target.name] = answer.decision.refusals

    def is_answered(self, name: str) -> bool:
        """Return whether a port was asked."""
        return name in self._answers

    def _order(self) -> list[str]:
        return [port.target.name for port in self._ports or ()]

    # Drawing

    def list_lines(self, width: int) -> list[Line]:
        """Draw a line per port: who uses it, and what became of the last question."""
        if self._ports is None:
            return self._draw_absent("Searching for NCCL jobs …", width)
        if not self._ports:
            return wrapped(_NO_PORT, width, Tone.DIM)
        lines = []
        for port in self._ports:
            name = port.target.name
            tone = Tone.CURSOR if name == self.selected else Tone.PLAIN
            jobs = ", ".join(job.name for job in port.target.jobs)
            lines.append(fit((Run(name, tone, name), Run(f"  {self._word(name)}  {jobs}")), width))
        return lines

    def _word(self, name: str) -> str:
        if name == self.asking:
            return "querying …"
        answer = self._answers.get(name)
        if answer is None:
            return "not queried" if name not in self._refusals else "refused"
        return "responded" if not isinstance(_result(answer), Unknown) else "no response"

    def detail_lines(self, width: int) -> list[Line]:
        """Draw the last answer of the selected port, or what a question would send."""
        port = self.port(self.selected)
        if port is None:
            return []
        name = port.target.name
        lines: list[Line] = []
        if name == self.asking:
            lines += [*wrapped("Waiting for the job; up to 20 s …", width, Tone.DIM), ()]
        if name in self._refusals:
            refusals = (f"Not queried: {why}." for why in self._refusals[name])
            lines += [*paragraphs(refusals, width, Tone.WARNING), ()]
        answer = self._answers.get(name)
        return [*lines, *(self._advice(port, width) if answer is None else self._answer(answer, width))]

    def _advice(self, port: RasPort, width: int) -> list[Line]:
        if self.is_recorded:
            return wrapped("Enter shows the response, if it was recorded.", width)
        refusals = (f"Cannot query: {why}." for why in port.decision.refusals)
        text = "Nothing has been sent to this port. Press Enter to see what is sent, and to confirm it."
        return paragraphs(refusals, width, Tone.WARNING) or wrapped(text, width)

    def _answer(self, answer: RasAnswer, width: int) -> list[Line]:
        result = _result(answer)
        taken = "Recorded" if self.is_recorded else "Queried"
        head = f"{taken} at {local_time(answer.taken_at)} with {answer.command}."
        lines = [*wrapped(head, width, Tone.DIM), ()]
        if isinstance(result, Unknown):
            return [*lines, *wrapped(f"✗ No response: {result}", width, Tone.WARNING)]
        if not isinstance(answer.diagnostics, Unknown):
            return [*lines, *diagnostics_lines(answer.diagnostics, width)]
        assert not isinstance(answer.report, Unknown)
        jobs = len(answer.target.jobs)
        lines += report_lines(answer.report, answer.found, answer.stalls, jobs, width, _AGAIN)
        if not answer.found and answer.report.is_complete:
            lines.append((Run("✓ All ranks respond, and none is known to be behind.", Tone.GOOD),))
        return lines

    def text(self) -> str:
        """Return the answer of the selected port as text."""
        lines = [*self.list_lines(_TEXT_WIDTH), (), *self.detail_lines(_TEXT_WIDTH)]
        return as_text(lines)


def _result(answer: RasAnswer) -> Maybe[object]:
    return answer.diagnostics if answer.command == DIAGNOSTICS else answer.report


class RasScreen(ListScreen[RasState]):
    """The ports of the jobs, and what the selected one answered."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        bind("open", "ask('status')", label="Query"),
        bind("verbose", "ask('verbose')"),
        bind("ras_events", "app.ras_events"),
        bind("diagnostics", "ask('diagnostics')"),
        bind("write", "write"),
        REFRESH_KEY,
        *leave_keys("ras"),
    ]
    LIST = "ports"
    DETAILS = "answer"
    TITLES = ("RAS", "Ports", "Response")

    def why_not(self, action: str) -> str | None:
        if self._state.is_recorded and action in ("app.ras_events", "ask('diagnostics')"):
            return "this is a recording."
        if action.startswith("ask") and self._state.asking:
            return "wait for the answer."
        if action.startswith("ask") and not self._state.selected:
            return "no job with a RAS service is selected."
        return super().why_not(action)

    def action_ask(self, what: str) -> None:
        if self._state.selected:
            self.post_message(Request("ask_ras", self._state.selected, _COMMANDS[what]))

    def action_refresh(self) -> None:
        self.post_message(Request("find_ras"))

    def action_write(self) -> None:
        save_and_copy.save(self, "gdrtop-ras", txt=self._state.text())
