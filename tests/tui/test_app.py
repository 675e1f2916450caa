"""What the screens ask the application for."""

import asyncio
import re
from pathlib import Path

import pytest

import tui.screens
from probes.simulation.host import SimulatedHost
from tests.support.pilot import stepped_app
from tui import fleet_app
from tui.app import REQUESTS, GdrtopApp
from tui.runtime.reading_thread import Failed


def requests() -> set[str]:
    """The names of what all screens ask for."""
    files = Path(tui.screens.__path__[0]).rglob("*.py")
    return {name for file in files for name in re.findall(r'\bRequest\(\s*"(\w+)"', file.read_text("utf-8"))}


def test_every_request_of_a_screen_is_answered() -> None:
    assert requests() == {*REQUESTS, *fleet_app.REQUESTS}


async def test_a_screen_that_opens_while_the_app_ends_is_no_crash() -> None:
    app = stepped_app(SimulatedHost("hgx-h100"))
    async with app.run_test():
        app.action_help()
        app.hang_up("gdrtop was terminated")  # the screen is removed before its handler of Mount runs
    assert app.crash is None
    assert app.return_code == 0


async def test_a_reading_that_comes_while_textual_removes_the_screens_is_no_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Textual's `run_test` ends an app that goes on taking messages."""
    app = stepped_app(SimulatedHost("hgx-h100"))
    close_all = app._close_all
    looked = asyncio.Event()

    def look_for_a_panel(report: object) -> None:
        looked.set()
        app.query_one("#findings")

    async def close_and_read() -> None:
        await close_all()
        monkeypatch.setattr(app, "_show_head", look_for_a_panel)
        app.post_message(GdrtopApp.NodeRead(Failed("refused")))
        await asyncio.wait_for(looked.wait(), 10.0)

    async with app.run_test():
        monkeypatch.setattr(app, "_close_all", close_and_read)
    assert looked.is_set()
    assert app.crash is None
