"""The keys: one meaning each on all screens, the footer that shows them, the help that explains them."""

import ast
import asyncio
import importlib
import inspect
import pkgutil
import re
from functools import cache
from pathlib import Path

import pytest
from textual.binding import Binding
from textual.pilot import Pilot
from textual.screen import Screen

import tui.screens
from probes.simulation.host import SimulatedHost
from tests.support.action_screens import NODE, QuickHost, asked, ended, is_on, listed, on, seen
from tests.support.opened_screens import opened
from tests.support.pilot import SteppedClock, overview, readings, stepped_app, until
from tests.support.sources import constants
from tests.support.tiers import usual
from tui.app import GdrtopApp
from tui.controllers.palette import ON_SCREENS, Palette
from tui.screens import help as help_screen
from tui.screens.actions.screen import ActionsScreen
from tui.screens.ask import AskScreen, sentences
from tui.screens.bandwidth_setup import BandwidthSetupScreen
from tui.screens.confirm import ConfirmScreen
from tui.screens.doctor.screen import DoctorScreen
from tui.screens.help import HelpScreen
from tui.screens.history import HistoryScreen
from tui.screens.key_footer import MOST_ITEMS, KeyFooter, items_that_fit
from tui.screens.keys import KEYS, leave_keys, why_dead
from tui.screens.overview.screen import OverviewScreen
from tui.screens.own_settings import FIXED
from widgets.base.lines_view import LinesView

# The overview's own digits, until it zooms with z.
PANEL_DIGITS = {"1", "2", "3", "4", "5", "6"}


def all_screens() -> list[type[Screen[object]]]:
    """Every screen of the program."""
    found = set()
    for module in pkgutil.walk_packages(tui.screens.__path__, "tui.screens."):
        members = inspect.getmembers(importlib.import_module(module.name), inspect.isclass)
        found |= {
            member
            for _, member in members
            if issubclass(member, Screen) and member.__module__.startswith("tui.")
        }
    return sorted(found, key=lambda member: member.__name__)


def own_bindings(kind: type) -> list[Binding]:
    """The keys that a class of ours and its parents of ours bind, one by one."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("tui.")]
    return [each for our in ours for each in Binding.make_bindings(our.__dict__.get("BINDINGS", ()))]


MEANING_OF = {key: name for name, member in KEYS.items() for key in member.keys.split(",")}
# Keys of the overview that are other names of a key of the table.
ALIASES = {"comma": "change", "full_stop": "change"}


def test_no_key_is_in_the_table_twice() -> None:
    keys = [key for binding in KEYS.values() for key in binding.keys.split(",")]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("kind", [*all_screens(), GdrtopApp], ids=lambda member: member.__name__)
def test_a_key_means_the_same_on_every_screen(kind: type) -> None:
    for binding in own_bindings(kind):
        if issubclass(kind, OverviewScreen) and binding.key in PANEL_DIGITS:
            continue
        name = ALIASES.get(binding.key) or MEANING_OF.get(binding.key)
        assert name is not None, f"{binding.key} is not in the table of keys"
        if binding.tooltip and not issubclass(kind, OverviewScreen):
            assert binding.tooltip == KEYS[name].meaning


def test_the_program_binds_every_key_of_the_table() -> None:
    bound = {binding.key for kind in (*all_screens(), GdrtopApp) for binding in own_bindings(kind)}
    of_textual = {"tab", "shift+tab"}
    of_the_overview = {"z"}
    assert set(MEANING_OF) - bound <= of_textual | of_the_overview


CHANGEABLE = "|".join(
    re.escape(key.display) for name, key in KEYS.items() if name not in FIXED and key.display[0].isalpha()
)
# A key in a text: "(R on the Live screen)", "Press m to stop", "the key C hides", "r searches again".
WRITTEN_KEY = re.compile(
    rf"\b[Pp]ress (?:{CHANGEABLE})(?=[ .,;)]|$)|\bkey (?:{CHANGEABLE})(?=[ .,;)]|$)"
    rf"|\((?:[\w ]+[,:] )?(?:then )?(?:{CHANGEABLE})(?:\)|: | on |, then )"
    rf"|(?:^|[.,;] |\bor )(?:{CHANGEABLE}) (?:opens|searches|stops|starts|shows|queries|on the screen)\b"
)


@pytest.mark.parametrize(
    "text",
    [
        "Ask NCCL: gdrtop ras (R on the Live screen)",
        "pauses in the live view (t)",
        "(live view: t, then Enter on the rank)",
        "Live lists them. Press m to stop.",
        "O opens a file, r searches again.",
        "gdrtop setup --skip port, or S on the screen",
        "Panels that are not shown; the key C hides and shows them.",
    ],
)
def test_a_key_in_a_text_is_seen(text: str) -> None:
    assert WRITTEN_KEY.search(text)


@cache
def docstrings(path: Path) -> set[str | None]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds))
    return {ast.get_docstring(node, clean=False) for node in nodes}


@pytest.mark.parametrize("package", ["probes", "widgets", "tui"])
def test_no_text_names_a_key_that_may_be_changed(package: str) -> None:
    root = Path(__file__).parents[3]
    found = [
        f"{path.relative_to(root)}:{line}: {text}"
        for path in sorted((root / package).rglob("*.py"))
        for line, text in constants(path)
        if "simulation" not in path.parts  # imitates the texts of other programs
        and WRITTEN_KEY.search(text)
        and len(text.split()) > 2
        and text not in docstrings(path)
    ]
    assert not found, "take the key from KEYS, or name what it does: " + "\n".join(found)


def test_the_palette_says_where_each_key_works() -> None:
    classes = {kind.__name__: kind for kind in all_screens()}
    names = {"bandwidth": "BandwidthSetupScreen", "nccl": "NcclScreen"}
    for name, screens in ON_SCREENS.items():
        for screen in screens:
            kind = classes[names.get(screen, f"{screen.capitalize()}Screen")]
            bound = {binding.key for binding in own_bindings(kind)}
            assert bound.issuperset(KEYS[name].keys.split(",")), f"{name} on {screen}"


# What runs, stops or sends something, on its own key.
ACTING = ("cancel", "skip", "again", "ras", "verbose", "diagnostics", "prove", "yes")


@pytest.mark.parametrize("name", ACTING)
def test_a_key_that_acts_is_no_other_key_with_shift(name: str) -> None:
    for key in KEYS[name].keys.split(","):
        assert len(key) > 1 or key.swapcase() not in MEANING_OF


HTOP = {
    "f1": "help",
    "f2": "columns",
    "f3": "filter",
    "f4": "filter",
    "f6": "view",
    "f9": "cancel",
    "f10": "exit",
}


def test_function_keys_do_what_they_do_in_htop() -> None:
    assert {key: MEANING_OF[key] for key in HTOP} == HTOP


# Every screen that a key opens.
OPENED = ("", "d", "t", "n", "s", "b", "x", "H", "ctrl+g")


@pytest.mark.slow
async def test_a_key_that_cannot_act_says_why_on_every_screen() -> None:
    clock = SteppedClock()
    app = stepped_app(QuickHost("hgx-h100", clock=clock))
    async with app.run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 2)
        for opening in OPENED:
            if opening:
                await pilot.press(opening)
                await until(pilot, lambda: app.screen is not overview(pilot))
            active = app.screen.active_bindings
            bound = {binding.key for binding in own_bindings(type(app.screen))} & set(MEANING_OF)
            for key in bound - set(active):
                assert "nothing to act on" not in why_dead(app, key), f"{key} on {app.screen}"
            while app.screen is not overview(pilot):
                await pilot.press("escape")


@pytest.mark.slow
async def test_a_key_that_cannot_act_says_why() -> None:
    clock = SteppedClock()
    app = stepped_app(QuickHost("hgx-h100", clock=clock))
    async with app.run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 2)
        await pilot.press("d")
        await on(pilot, DoctorScreen)
        await pilot.press("f", "f", "down", "escape", "ctrl+k")
        await pilot.pause()
        told = [notification.message for notification in app._notifications]
        assert told == [
            "f (Fix): select a finding first.",
            "Ctrl+K (Cancel) does nothing on this screen. Press ? for its keys.",
        ]
        assert why_dead(app, "f9").startswith("F9 (Cancel) does nothing")  # the key that was pressed


# Footer


def footer(pilot: Pilot[None]) -> str:
    """What the footer of the screen on top shows."""
    return str(pilot.app.screen.query_one(KeyFooter).render())


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120])
def test_a_footer_shows_the_most_important_keys_uncut(width: int) -> None:
    bindings = [(binding, True, False) for binding in own_bindings(GdrtopApp)]
    items = items_that_fit(bindings, width)
    assert sum(item.cells for item in items) <= width
    assert [item.key for item in items][-2:] == ["question_mark", "q"]
    assert len(items) <= MOST_ITEMS


@pytest.mark.slow
@pytest.mark.parametrize("width", usual([80, 100, 120], {80}))
async def test_no_screen_cuts_a_key_of_its_footer(width: int) -> None:
    clock = SteppedClock()
    async with stepped_app(QuickHost(NODE, clock=clock)).run_test(size=(width, 30)) as pilot:
        await listed(pilot, clock)
        for key in ("x", "d", "b", "H", "question_mark"):
            await until(pilot, lambda: " ? Help  q " in footer(pilot))
            assert len(footer(pilot)) <= width
            assert not footer(pilot).rstrip().endswith("…")
            await pilot.press(key)
            await pilot.pause()


@pytest.mark.slow
async def test_a_click_on_the_footer_presses_the_key() -> None:
    clock = SteppedClock()
    async with stepped_app(QuickHost(NODE, clock=clock)).run_test(size=(120, 30)) as pilot:
        await readings(pilot, clock, 2)
        await until(pilot, lambda: "d Doctor" in footer(pilot))
        await pilot.click(KeyFooter, offset=(footer(pilot).index("Doctor"), 0))
        await on(pilot, DoctorScreen)


# Leaving


SCREENS: dict[str, type[Screen[None]]] = {
    "d": DoctorScreen,
    "x": ActionsScreen,
    "b": BandwidthSetupScreen,
    "H": HistoryScreen,
    "question_mark": HelpScreen,
}
# A screen and the key that closes it.
CLOSED = [(key, closing) for closing in ("own", "q", "escape", "1") for key in SCREENS]
USUAL_CLOSED = {*((key, "own") for key in SCREENS), ("d", "q"), ("x", "escape"), ("b", "1")}


@pytest.mark.slow
@pytest.mark.parametrize("keys", usual(CLOSED, USUAL_CLOSED), ids=" ".join)
async def test_a_screens_own_key_and_q_close_it(keys: tuple[str, str]) -> None:
    key, closing = keys
    kind = SCREENS[key]
    clock = SteppedClock()
    async with stepped_app(QuickHost(NODE, clock=clock)).run_test(size=(80, 24)) as pilot:
        await readings(pilot, clock, 2)
        await pilot.press(key)
        await on(pilot, kind)
        await pilot.press(key if closing == "own" else closing)
        await until(pilot, lambda: pilot.app.screen is overview(pilot))
        assert pilot.app.is_running


@pytest.mark.slow
@pytest.mark.parametrize("key", ["ctrl+c", "ctrl+q"])
async def test_ctrl_c_quits_from_anywhere(key: str) -> None:
    clock = SteppedClock()
    app = stepped_app(QuickHost(NODE, clock=clock))
    async with app.run_test(size=(80, 24)) as pilot:
        await listed(pilot, clock)
        await pilot.press("slash", *"load", key)
        await until(pilot, lambda: not app.is_running)


@pytest.mark.slow
async def test_q_on_the_overview_quits() -> None:
    clock = SteppedClock()
    app = stepped_app(QuickHost(NODE, clock=clock))
    async with app.run_test(size=(80, 24)) as pilot:
        await readings(pilot, clock, 2)
        await pilot.press("q")
        await until(pilot, lambda: not app.is_running)


# Moving in lists


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=str)
async def test_keys_move_the_selection_and_the_details_follow(size: tuple[int, int]) -> None:
    clock = SteppedClock()
    async with stepped_app(QuickHost(NODE, clock=clock)).run_test(size=size) as pilot:
        await listed(pilot, clock)
        assert isinstance(pilot.app, GdrtopApp)
        state = pilot.app.actions.state
        names = [offer.id for offer in state.offers]
        for key, wanted in (("end", names[-1]), ("g", names[0]), ("G", names[-1]), ("home", names[0])):
            await pilot.press(key)
            assert state.selected == wanted
            offer = state.offer(wanted)
            assert offer is not None
            assert " ".join(offer.title.split()[:3]) in " ".join(seen(pilot, "selected").split())
        await pilot.press("pagedown")
        at = names.index(state.selected)
        assert at > 3
        await pilot.press("pageup")
        assert names.index(state.selected) < at


@pytest.mark.slow
async def test_a_click_selects() -> None:
    clock = SteppedClock()
    async with stepped_app(QuickHost(NODE, clock=clock)).run_test(size=(120, 40)) as pilot:
        await listed(pilot, clock)
        assert isinstance(pilot.app, GdrtopApp)
        row = next(
            row for row, line in enumerate(seen(pilot, "offers").splitlines()) if " unload-peermem" in line
        )
        await pilot.click("#offers", offset=(6, row + 1))
        await pilot.pause()
        assert pilot.app.actions.state.selected == "unload-peermem"
        assert "Unload nvidia_peermem" in seen(pilot, "selected")


@pytest.mark.slow
async def test_enter_opens_a_finding_and_the_keys_scroll_it() -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100+acs-on", clock=clock)).run_test(size=(80, 24)) as pilot:
        await opened(pilot, clock)
        details = pilot.app.screen.query_one("#details")
        before = details.size.height
        await pilot.press("enter")
        await until(pilot, lambda: details.size.height > before + 3)
        await pilot.press("G")
        await until(pilot, lambda: details.scroll_offset.y > 0)
        await pilot.press("g")
        await until(pilot, lambda: details.scroll_offset.y == 0)
        await pilot.press("escape")
        await until(pilot, lambda: details.size.height == before)
        assert is_on(pilot, DoctorScreen)


@pytest.mark.slow
async def test_a_filter_selects_a_possible_action_first() -> None:
    clock = SteppedClock()
    async with stepped_app(QuickHost("hgx-h100", clock=clock)).run_test(size=(120, 40)) as pilot:
        await listed(pilot, clock)
        assert isinstance(pilot.app, GdrtopApp)
        state = pilot.app.actions.state
        await pilot.press("slash", *"load")
        shown = [offer for offer in state.offers if "load" in f"{offer.id} {offer.title}".lower()]
        assert shown[0].plan is None
        assert state.is_possible


# Questions


@pytest.mark.slow
async def test_commands_are_dead_until_a_plan_is_answered() -> None:
    clock = SteppedClock()
    app = stepped_app(QuickHost(NODE, clock=clock))
    async with app.run_test(size=(120, 40)) as pilot:
        await listed(pilot, clock)
        await asked(pilot, "load-modules")
        assert "Enter Run it" in footer(pilot)
        assert "Doctor" not in footer(pilot)
        await pilot.press("x", "d", "1", "r", "colon")
        await pilot.pause()
        assert is_on(pilot, ConfirmScreen)
        assert "x (Actions): first answer the question" in "\n".join(
            notification.message for notification in app._notifications
        )


@pytest.mark.slow
async def test_a_plan_that_cannot_run_asks_nothing_and_commands_work() -> None:
    clock = SteppedClock()
    host = QuickHost(NODE, clock=clock)
    app = GdrtopApp(lambda: host, host.origin, None, read_only=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await listed(pilot, clock)
        await asked(pilot, "load-modules")
        assert "Run it" not in footer(pilot)
        assert "Doctor" in footer(pilot)
        await pilot.press("d")
        await until(pilot, lambda: is_on(pilot, DoctorScreen))
        await pilot.press("q")
        assert is_on(pilot, ConfirmScreen)


@pytest.mark.slow
async def test_a_host_name_is_typed_without_another_key_and_presses_none() -> None:
    clock = SteppedClock()
    async with stepped_app(QuickHost(NODE, clock=clock)).run_test(size=(120, 40)) as pilot:
        await listed(pilot, clock)
        await asked(pilot, "restart-fabric-manager")
        assert footer(pilot).split() == ["Enter", "Run", "it", "Tab", "Plan", "Esc", "Cancel"]
        await pilot.press("tab")
        assert "Copy" in footer(pilot)
        await pilot.press("enter", *"hgx-h100", "down", "enter")
        await ended(pilot)


@pytest.mark.slow
async def test_an_open_question_has_a_footer_of_its_own() -> None:
    clock = SteppedClock()
    async with stepped_app(QuickHost(NODE, clock=clock)).run_test(size=(120, 40)) as pilot:
        await listed(pilot, clock)
        await pilot.app.push_screen(AskScreen(sentences("Stop it?"), "Stop it", "Go on"))
        await until(pilot, lambda: "Stop it?" in seen(pilot, "question"))
        await until(pilot, lambda: footer(pilot).split() == ["Enter", "Confirm", "Esc", "Cancel"])
        pane = pilot.app.screen.query_one(LinesView)
        assert pane.size.height == len(pane.lines)
        await pilot.press("x", "ctrl+k", "K")
        assert is_on(pilot, AskScreen)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["enter", "y"])
async def test_enter_pressed_before_a_question_could_be_read_is_no_yes(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tui.screens.ask.ENTER_DELAY_SECONDS", 3600.0)
    clock = SteppedClock()
    async with stepped_app(QuickHost(NODE, clock=clock)).run_test(size=(120, 40)) as pilot:
        await listed(pilot, clock)
        await asked(pilot, "load-modules")
        await pilot.press(key)
        await pilot.pause()
        assert is_on(pilot, ConfirmScreen) == (key == "enter")
        if key == "y":
            await ended(pilot)


# Help and palette


@pytest.mark.slow
async def test_a_colon_opens_the_palette_on_every_screen() -> None:
    clock = SteppedClock()
    app = stepped_app(QuickHost("hgx-h100", clock=clock))
    async with app.run_test(size=(80, 24)) as pilot:
        await readings(pilot, clock, 2)
        for opening in OPENED:
            if opening:
                await pilot.press(opening)
                await until(pilot, lambda: app.screen is not overview(pilot))
            await pilot.press("colon")
            await until(pilot, lambda: isinstance(app.screen, Palette))
            await pilot.press("escape")
            while app.screen is not overview(pilot):
                await pilot.press("escape")


@pytest.mark.parametrize(
    ("key", "first"), [("", "OVERVIEW"), ("d", "DOCTOR"), ("x", "ACTIONS"), ("H", "HISTORY")]
)
@pytest.mark.slow
async def test_help_opens_at_the_current_screen_and_names_the_origin(key: str, first: str) -> None:
    clock = SteppedClock()
    async with stepped_app(QuickHost(NODE, clock=clock)).run_test(size=(80, 24)) as pilot:
        await readings(pilot, clock, 2)
        if key:
            await pilot.press(key)
            await pilot.pause()
        await pilot.press("question_mark")
        await on(pilot, HelpScreen)
        assert seen(pilot, "help").startswith(first)
        assert "SIMULATED" in seen(pilot, "head")
        words = " ".join(seen(pilot, "help").split())
        for name in ("quit", "exit", "cancel", "palette", "fix"):
            assert KEYS[name].meaning in words


@pytest.mark.slow
async def test_the_palette_lists_prefix_matches_first() -> None:
    clock = SteppedClock()
    async with stepped_app(QuickHost(NODE, clock=clock)).run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 2)
        await pilot.press("colon")
        commands = pilot.app.screen.query("CommandList").first()

        def texts() -> list[str]:
            return [str(option.prompt).splitlines()[0] for option in commands.options]

        await until(pilot, lambda: len(texts()) > 8)
        assert {"Doctor", "Bandwidth", "Actions", "History", "Help", "Theme"} <= set(texts())
        assert not {"Screenshot", "Keys"} & set(texts())
        await pilot.press(*"load")
        await until(pilot, lambda: texts() and all("load" in text.lower() for text in texts()))
        assert texts()[0].startswith("Load")


@pytest.mark.slow
async def test_the_palette_finds_a_key_of_another_screen_and_presses_it_there() -> None:
    clock = SteppedClock()
    app = stepped_app(QuickHost("hgx-h100+acs-on", clock=clock))
    async with app.run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 2)
        for pane, mark in (
            ("details", "Without GPUDirect RDMA"),
            ("details", "ACS redirect"),  # pressed there, it shows the finding again
        ):
            await pilot.press("colon", *"explain")
            listed = app.screen.query("CommandList").first()
            await until(
                pilot, lambda listed=listed: any("Explain" in str(each.prompt) for each in listed.options[:1])
            )
            await pilot.press("enter")
            await on(pilot, DoctorScreen)
            await until(pilot, lambda pane=pane, mark=mark: mark in seen(pilot, pane))


@pytest.mark.slow
async def test_letters_typed_before_the_palette_knows_the_actions_find_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = stepped_app(QuickHost(NODE, clock=SteppedClock()))
    known = asyncio.Event()
    monkeypatch.setattr(app.actions, "refresh", known.wait)  # the node is being read
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("colon", *"doct")
        await pilot.pause()
        known.set()
        commands = app.screen.query("CommandList").first()
        await until(
            pilot, lambda: [str(option.prompt).split()[0] for option in commands.options] == ["Doctor"]
        )


@pytest.mark.slow
async def test_the_history_shows_the_origin_and_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SteppedClock()
    async with stepped_app(QuickHost(NODE, clock=clock)).run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 2)
        await asked(pilot, "load-modules")
        await pilot.press("enter")
        await pilot.pause()
        await pilot.press("H")
        await on(pilot, HistoryScreen)
        assert "SIMULATED" in seen(pilot, "head")
        await until(pilot, lambda: " UTC " in seen(pilot, "runs"))


def test_every_screen_has_its_keys_in_the_help() -> None:
    own = {"AskScreen", "ColumnsScreen", "HelpScreen", "SortScreen"}  # they show their keys themselves
    bases = {
        "ColumnListScreen",
        "HeadScreen",
        "PanelScreen",
        "PanesScreen",
        "ListScreen",
        "FilteredListScreen",
        "ExaminedListScreen",
    }
    missing = sorted({kind.__name__ for kind in all_screens()} - own - bases - {*help_screen._SCREENS})
    assert not missing, f"add {missing} to tui/screens/help.toml"


def test_every_screen_except_the_overview_has_keys_to_leave_it() -> None:
    leaving = {binding.key for binding in Binding.make_bindings(leave_keys())}
    for kind in all_screens():
        is_base = kind.__module__ == "tui.screens.list_screen" or issubclass(OverviewScreen, kind)
        if not issubclass(kind, OverviewScreen) and not is_base:
            assert leaving <= {binding.key for binding in own_bindings(kind)}, kind
