"""What the screens ask the application for."""

import importlib
import inspect
import pkgutil

from textual.message import Message

import tui.screens
from probes.simulation.host import SimulatedHost
from tests.support.pilot import stepped_app
from tui.app import REQUESTS
from tui.screens.fleet import FleetScreen
from tui.screens.overview.screen import OverviewScreen


def messages() -> set[type[Message]]:
    """The messages of all screens."""
    found: set[type[Message]] = set()
    for module in pkgutil.walk_packages(tui.screens.__path__, "tui.screens."):
        for _, owner in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            inner = [kind for _, kind in inspect.getmembers(owner, inspect.isclass)]
            found |= {kind for kind in inner if issubclass(kind, Message) and kind.__module__ == module.name}
    return found


def test_every_message_of_a_screen_is_answered() -> None:
    # Of screens that are imported with their application.
    by_method = {OverviewScreen.FindingRequested, FleetScreen.OpenRequested, FleetScreen.ReadRequested}
    assert {f"_{kind.handler_name}" for kind in messages() - by_method} == set(REQUESTS)


async def test_a_screen_that_opens_while_the_app_ends_is_no_crash() -> None:
    app = stepped_app(SimulatedHost("hgx-h100"))
    async with app.run_test():
        app.action_help()
        app.hang_up("gdrtop was terminated")  # the screen is removed before its handler of Mount runs
    assert app.crash is None
    assert app.return_code == 0
