"""What gdrtop shows outside its own screen, if configured: the title of the terminal, and its bell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from probes.base.evidence import Severity
from probes.base.origin import Origin
from tui.runtime.printing import source_word
from tui.settings.current import current, is_configured
from tui.terminal.driver import driver_of
from widgets.base.lines import plain

if TYPE_CHECKING:
    from textual.app import App

    from probes.checks.judgment import Judgment
    from probes.fleet.fleet_watch import FleetWatch
    from probes.fleet.summary import FoundProblem
    from probes.queries.finding import Finding


class TerminalNotices:
    """The title follows the verdict; the bell rings at each critical finding that is new."""

    def __init__(self, app: App[Any], origin: Origin) -> None:
        self._app, self._origin = app, origin
        self._has_title = is_configured() and bool(current().configured("terminal.title").value)
        self._has_bell = is_configured() and bool(current().configured("terminal.bell").value)
        self._critical: set[tuple[str, ...]] | None = None  # (node, check, device); None: not checked yet

    def note(self, hostname: str, judgment: Judgment) -> None:
        """Take the newest judgment of the node."""
        if judgment.is_checked:
            self._show_title(f"{hostname} {judgment.verdict.word}")
            self._ring({found for finding in judgment.listed for found in _critical("", finding)})

    def note_fleet(self, watch: FleetWatch) -> None:
        """Take the newest reading of a fleet; a node that is silent keeps what it answered last."""
        if watch.fleet is not None:
            from widgets.fleet.answer import headline

            self._show_title(plain(headline(watch.fleet)))
            summaries = [node.summary for node in watch.nodes if node.summary is not None]
            problems = ((node.name, problem) for node in summaries for problem in node.findings)
            self._ring({found for name, problem in problems for found in _critical(name, problem)})

    def _show_title(self, text: str) -> None:
        if self._has_title and (driver := driver_of(self._app)) is not None:
            program = " ".join(filter(None, ("gdrtop", source_word(self._origin))))
            driver.show_title(f"{text} ({program})")

    def _ring(self, critical: set[tuple[str, ...]]) -> None:
        """Ring if something is critical that was not."""
        if self._has_bell and self._critical is not None and critical - self._critical:
            self._app.bell()
        self._critical = critical


def _critical(node: str, finding: Finding | FoundProblem) -> set[tuple[str, ...]]:
    if finding.severity is not Severity.CRITICAL:
        return set()
    return {(node, finding.id, device) for device in finding.devices or ("",)}
