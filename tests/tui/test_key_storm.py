"""Random keys and resizes: the dashboard survives them and listens afterwards."""

import random
from pathlib import Path

import pytest
from textual.command import CommandList
from textual.pilot import Pilot
from textual.widgets import Input

from tests.support.action_screens import QuickHost
from tests.support.pilot import SteppedClock, overview, readings, stepped_app, until
from tests.support.settings_machine import Machine
from tui.screens.ask import AskScreen
from tui.screens.keys import KEYS

KEYS_PRESSED = 1000
SIZES = [(80, 24), (120, 40), (200, 60), (60, 15), (40, 10)]
LEFT_OUT = ("quit", "exit", "yes")
# All keys but those that end the program or take a confirmed step, and what people type by mistake.
PRESSED = [
    *(key for name, key_help in KEYS.items() if name not in LEFT_OUT for key in key_help.keys.split(",")),
    *("ctrl+p", "backspace", "delete", "a", "e", "m", "o", "5", "full_stop", "comma", "f12", "ctrl+a"),
]


async def back_on_the_overview(pilot: Pilot[None]) -> None:
    """Esc from anywhere leads to the overview."""
    for _ in range(20):
        is_typing = any(field.has_focus for field in pilot.app.screen.query(Input))  # a filter
        if pilot.app.screen is overview(pilot) and not is_typing:
            return
        await pilot.press("escape")
    raise AssertionError(f"still on {pilot.app.screen}")


async def leave(pilot: Pilot[None]) -> None:
    """Go back, and then leave: each `q` is a step, and one soon after a step back leaves nothing."""

    async def step() -> bool:
        await pilot.press("q")
        if isinstance(pilot.app.screen, AskScreen):  # a test or an action runs
            await pilot.press("y")
        await pilot.pause(0.2)
        return not pilot.app.is_running or bool(pilot.app._exit)

    for _ in range(50):
        if await step():
            return
    raise AssertionError(f"`q` does not leave {pilot.app.screen}")


async def storm(pilot: Pilot[None], seed: int, count: int) -> None:
    chance = random.Random(seed)
    for number in range(count):
        if number % 50 == 49:
            await pilot.resize_terminal(*chance.choice(SIZES))
        key = chance.choice(PRESSED)
        # A typed name or a plan would be confirmed.
        if key == "enter" and any(field.has_focus for field in pilot.app.screen.query(Input)):
            continue
        pilot.app.simulate_key(key)
        if chance.random() < 0.3:
            await pilot.pause()
    await pilot.pause()


@pytest.fixture(autouse=True)
def files_of_the_keys_go_elsewhere(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recordings and scripts go to the current directory, settings to the configuration of the machine."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
async def test_random_keys_do_not_end_the_dashboard(seed: int) -> None:
    clock = SteppedClock()
    app = stepped_app(QuickHost("hgx-h100+no-gdr-path", clock=clock))
    async with app.run_test(size=(80, 24)) as pilot:
        await readings(pilot, clock, 2)
        await storm(pilot, seed, KEYS_PRESSED)
        assert app.is_running
        await back_on_the_overview(pilot)
        await leave(pilot)


async def test_paging_in_the_palette_before_its_new_list_is_drawn_does_nothing() -> None:
    clock = SteppedClock()
    app = stepped_app(QuickHost("hgx-h100", clock=clock))
    async with app.run_test(size=(80, 24)) as pilot:
        await readings(pilot, clock, 2)
        await pilot.press("ctrl+p")
        await until(pilot, lambda: pilot.app.screen.query("CommandList").first().option_count > 3)
        # What a typed letter does, and the key that comes before the list is drawn again.
        commands = pilot.app.screen.query_one(CommandList)
        commands.clear_options()
        await until(pilot, lambda: not commands.scrollable_content_region)
        commands.add_options(["Doctor", "Bandwidth", "Actions"])
        commands.highlighted = 0
        for action in ("page_down", "page_up"):
            await pilot.app.screen.run_action(f"command_list('{action}')")
        await pilot.press("escape")
        assert pilot.app.screen is overview(pilot)


@pytest.mark.slow
async def test_a_burst_of_keys_is_followed_by_escape_at_once() -> None:
    clock = SteppedClock()
    app = stepped_app(QuickHost("hgx-h100+acs-on", clock=clock))
    async with app.run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 2)
        await storm(pilot, 7, 60)
        await back_on_the_overview(pilot)
