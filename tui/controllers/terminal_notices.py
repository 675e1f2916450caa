"""What gdrtop shows outside its own screen, if configured: the title of the terminal, and its bell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probes.base.origin import Origin
from probes.queries.finding import Severity
from tui.runtime.printing import source_word
from tui.settings.current import current, is_configured
from tui.terminal.driver import driver_of

if TYPE_CHECKING:
    from textual.app import App

    from probes.checks.judgment import Judgment


class TerminalNotices:
    """The title follows the verdict; the bell rings at each critical finding that is new."""

    def __init__(self, app: App[None], origin: Origin) -> None:
        self._app, self._origin = app, origin
        self._has_title = is_configured() and bool(current().configured("terminal.title").value)
        self._has_bell = is_configured() and bool(current().configured("terminal.bell").value)
        self._critical: set[tuple[str, str]] | None = None  # (check, device); None: not checked yet

    def note(self, hostname: str, judgment: Judgment) -> None:
        """Take the newest judgment of the node."""
        if not judgment.is_checked:
            return
        if self._has_title and (driver := driver_of(self._app)) is not None:
            program = " ".join(filter(None, ("gdrtop", source_word(self._origin))))
            driver.show_title(f"{hostname} {judgment.verdict.state.value} ({program})")
        if self._has_bell:
            critical = {
                (finding.id, device)
                for finding in judgment.listed
                if finding.severity is Severity.CRITICAL
                for device in (finding.devices or ("",))
            }
            if self._critical is not None and critical - self._critical:
                self._app.bell()
            self._critical = critical
