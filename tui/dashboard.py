"""Run the apps on the terminal: whether it can show them, and what is left to do when they have ended."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

from tui.settings.current import current, is_configured

if TYPE_CHECKING:
    from tui.app import GdrtopApp
    from tui.fleet_app import FleetApp

_EXIT_NOT_WRITTEN = 3


def _is_terminal(stream: TextIO | None) -> bool:
    """Return whether a standard stream is a terminal; None is one that was closed."""
    return stream is not None and stream.isatty()


def refusal() -> str:
    """Return why no app can run here, such as keys, theme or columns that cannot be used; or ""."""
    if is_configured() and (found := current()).is_about_screens:
        from tui.screens.own_settings import wrong_settings

        if wrong := next(wrong_settings(found), ""):
            return wrong
    is_dumb = os.environ.get("TERM", "dumb") == "dumb"
    if _is_terminal(sys.stdin) and _is_terminal(sys.stdout) and not is_dumb:
        return ""
    return "the dashboard needs a terminal, and TERM must not be dumb"


def prepare(ascii_only: bool, color: str = "auto") -> bool:
    """Limit the memory of this process, before Textual is imported; return whether to write ASCII only.

    The configured keys come into force here, before any screen is imported, and so does `color`, the option:
    Textual reads NO_COLOR.
    """
    from tui.runtime.memory import leave_out_openssl, limit_malloc
    from tui.runtime.printing import is_plain

    limit_malloc()
    leave_out_openssl()
    # Textual writes logs and screenshots where these say, presses keys, and draws otherwise.
    for name in [name for name in os.environ if name.startswith("TEXTUAL_")]:
        del os.environ[name]
    if color == "never":
        os.environ["NO_COLOR"] = "1"
    elif color == "always":
        os.environ.pop("NO_COLOR", None)
    if is_configured() and (keys := current().keys):
        from tui.screens.own_settings import use_keys

        use_keys({name: str(configured.value) for name, configured in keys.items()})
    return is_plain(sys.stdout, ascii_only)


def run(app: GdrtopApp) -> int:
    """Run the dashboard of a node to its end, and return the exit status."""

    def finish(why: str) -> int:
        app.quitting.stop(why)
        app.readings.end_ras_events()
        app.quitting.finish()
        return _end(app)

    app.finish = finish
    try:
        app.run()
    finally:  # the terminal may be gone while a step is running
        app.readings.end_ras_events()  # also after an error
        app.quitting.finish()
    _show_crash(app, app.is_stuck)
    return _end(app)


def run_fleet(app: FleetApp) -> int:
    """Run the table of a fleet to its end, and return the exit status."""
    app.run()
    _show_crash(app, app.is_stuck)
    if app.is_stuck:  # as below
        os._exit(app.return_code or 0)
    return app.return_code or 0


def _show_crash(app: GdrtopApp | FleetApp, is_stuck: bool) -> None:
    """Describe the error that has ended an app, if there was one; not on a terminal that takes nothing."""
    if app.crash is None:
        return
    from tui.files.crash_file import describe_crash

    text = describe_crash(app.crash)
    if not is_stuck:
        print(text, file=sys.stderr)


def _end(app: GdrtopApp) -> int:
    """Finish a recording that is running, and return the exit status."""
    from probes.recording.format import RecordingError

    try:
        recorded = app.readings.end_recording()
    except RecordingError as error:
        print(f"gdrtop: {error}", file=sys.stderr)
        return _EXIT_NOT_WRITTEN
    if recorded is not None:
        print(f"recorded {recorded}\n{recorded.privacy()}", file=sys.stderr)
    if app.is_stuck:  # a normal exit of Python would wait for the terminal forever
        os._exit(app.return_code or 0)
    return app.return_code or 0
