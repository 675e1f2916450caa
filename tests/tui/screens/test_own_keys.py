"""Keys that a user has configured: on all screens, in the footer and in the help; q and ? are never lost."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tui.manual import page
from tui.screens.keys import KEYS
from tui.screens.own_settings import FIXED, KeyProblem, rebound

ROOT = Path(__file__).parents[3]
SCREENS = """
import asyncio, sys
from tui.settings.configuration import Configuration, Configured
from tui.settings.current import use
keys = {"doctor": Configured("f6,ctrl+t"), "record": Configured("")}
use(Configuration({"theme": Configured("textual-light")}, keys))
from tui import dashboard
dashboard.prepare(False)
from probes.base.origin import (Origin, Source)
from probes.simulation.host import SimulatedHost
from tui.app import GdrtopApp
from tui.screens.key_footer import KeyFooter

async def main():
    app = GdrtopApp(lambda: SimulatedHost("hgx-h100"), Origin(Source.SIMULATED, "hgx-h100"), None)
    async with app.run_test(size=(200, 40)) as pilot:
        await pilot.pause()
        print("THEME", app.theme)
        print("FOOTER", app.screen.query_one(KeyFooter).render().plain)
        await pilot.press("d")
        await pilot.pause()
        print("D", type(app.screen).__name__)
        await pilot.press("ctrl+t")
        await pilot.pause()
        print("CTRL+T", type(app.screen).__name__)
        await pilot.press("q")
        await pilot.pause()
        print("Q", type(app.screen).__name__)

asyncio.run(main())
"""


@pytest.mark.slow
def test_the_screens_follow_the_keys() -> None:
    """In a process of its own, because screens bind their keys when they are imported."""
    arguments = [sys.executable, "-c", SCREENS]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    assert done.returncode == 0, done.stderr
    assert lines["THEME"] == "textual-light"
    assert "f6 ctrl+t Doctor" in lines["FOOTER"]
    assert "Record" not in lines["FOOTER"]
    assert (lines["D"], lines["CTRL+T"], lines["Q"]) == ("OverviewScreen", "DoctorScreen", "OverviewScreen")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fixx": "f"}, "keys.fixx is not the name of a key; did you mean fix? The names are yes, ras,"),
        ({"zzz": "f"}, "keys.zzz is not the name of a key. The names are"),
        ({"fix": "q"}, "keys.fix cannot be q, which is the key of quit"),
        ({"fix": "?"}, "keys.fix cannot be ?, which is the key of help"),
        ({"fix": "escape"}, "keys.fix cannot be esc, which is the key of back"),
        ({"fix": "t"}, "keys.fix cannot be t, which is the key of live"),
        ({"fix": "X", "undo": "X"}, "keys.undo cannot be X, which is the key of fix"),
        ({"quit": "Q"}, "keys.quit cannot be changed"),
        ({"help": ""}, "keys.help cannot be changed"),
        ({"pane": "f9"}, "keys.pane cannot be changed"),
        ({"fix": "nokey"}, "keys.fix has an unknown key 'nokey'"),
        ({"fix": "f,"}, "keys.fix has an unknown key ''"),
        ({"fix": "meta+f"}, "keys.fix has an unknown key 'meta+f'"),
        ({"fix": "+"}, "keys.fix cannot be +, which is the key of pace"),
        ({"fix": "ctrl+i"}, "keys.fix cannot be ctrl+i, which terminals do not send as a key of its own"),
        ({"fix": "ctrl+shift+a"}, "keys.fix cannot be ctrl+shift+a, which terminals do not send"),
        ({"fix": "2"}, "keys.fix cannot be 2, which is the key of views"),
        ({"fix": "5"}, "keys.fix cannot be 5, which the overview uses for its panels"),
        ({"fix": "."}, "keys.fix cannot be ., which the overview uses for its panels"),
    ],
)
def test_what_cannot_be_a_key_is_said(changes: dict[str, str], message: str) -> None:
    with pytest.raises(KeyProblem) as caught:
        rebound(changes)
    assert str(caught.value).startswith(message)


def test_keys_can_be_exchanged() -> None:
    table = rebound({"doctor": "t", "live": "d", "fix": "f, f6 ,!", "record": ""})
    assert (table["doctor"].keys, table["live"].keys) == ("t", "d")
    assert (table["fix"].keys, table["record"].keys) == ("f,f6,exclamation_mark", "")
    assert table["view"].keys == "o"  # F6 is only its second name
    assert (table["doctor"].display, table["record"].display) == ("t", "–")
    assert rebound({}) == KEYS


@pytest.mark.slow
def test_keys_that_screens_bind_one_by_one_cannot_be_changed() -> None:
    """Such a binding names its keys itself, and would not follow the table."""
    split = set()
    for path in (ROOT / "tui").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name("bind"), args=[ast.Constant(name), _, _, *_]):
                    split.add(name)
    assert "select" in split
    assert split <= FIXED


def test_the_manual_lists_every_name_that_can_be_used() -> None:
    section = page("config").partition("\n## Keys\n")[2].partition("\n## ")[0]
    listed = section.partition("These names can be used:")[2].partition(". The other keys")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == set(KEYS) - FIXED
