"""Themes on real screens: what is configured or chosen in the palette has its colors, and can be read."""

import pytest
from rich.color import Color as RichColor
from textual.color import Color
from textual.pilot import Pilot
from textual.widgets import Input

from tests.support.action_screens import NODE, QuickHost, on
from tests.support.contrast import LARGE, TEXT, contrast, linear
from tests.support.pilot import SteppedClock, examined, stepped_app, until
from tests.support.settings_machine import Machine
from tui.controllers.palette import Palette
from tui.screens.doctor.screen import DoctorScreen
from tui.settings import save as save_module
from tui.settings.current import use
from tui.settings.load import load
from widgets.base.themes import OWN_THEMES


def cells(pilot: Pilot[None]) -> list[tuple[str, RichColor, RichColor, bool]]:
    """The texts on the screen with their colors, and whether each is dimmed."""
    return [
        (segment.text, segment.style.color, segment.style.bgcolor, segment.style.dim is not None)
        for strip in pilot.app.screen._compositor.render_strips()
        for segment in strip
        if segment.style is not None and any(map(str.isalnum, segment.text))
        if segment.style.color is not None and segment.style.bgcolor is not None
    ]


def unreadable(pilot: Pilot[None]) -> list[str]:
    found = []
    for text, color, background, is_dim in cells(pilot):
        ratio = contrast(linear(Color.from_rich_color(color)), linear(Color.from_rich_color(background)))
        if ratio < (LARGE if is_dim else TEXT):
            found.append(f"{text!r}: {ratio:.1f}")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN_THEMES)
async def test_every_text_on_the_screen_can_be_read(machine: Machine, name: str) -> None:
    machine.user_file.write_text(f"theme = '{name}'\n")
    use(load({}))
    clock = SteppedClock()
    async with stepped_app(QuickHost("hgx-h100+acs-on", clock=clock)).run_test(size=(120, 40)) as pilot:
        await examined(pilot, clock)
        assert {background.name for _, _, background, _ in cells(pilot)} >= {OWN_THEMES[name].background}
        for key in ("", "d", "question_mark"):
            await pilot.press(*filter(None, [key]))
            await pilot.pause()
            assert len(cells(pilot)) > 10
            assert not unreadable(pilot), key


async def chosen(pilot: Pilot[None], name: str) -> None:
    """Choose a theme in the palette."""
    first: object = None
    for words in ("theme", name):  # in a palette each
        await until(
            pilot,
            lambda first=first: (
                isinstance(screen := pilot.app.screen, Palette)
                and screen is not first
                and len(screen.query(Input)) > 0
            ),
        )
        first = pilot.app.screen
        await pilot.press(*words)
        commands = pilot.app.screen.query("CommandList").first()
        await until(
            pilot,
            lambda words=words, commands=commands: (
                [str(option.prompt).splitlines()[0].lower() for option in commands.options][:1] == [words]
            ),
        )
        await pilot.press("enter")
        await pilot.pause()


@pytest.mark.slow
async def test_a_theme_chosen_in_the_palette_is_used_and_saved(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_module, "why_not_as_root", lambda _: "")
    clock = SteppedClock()
    async with stepped_app(QuickHost(NODE, clock=clock)).run_test(size=(80, 24)) as pilot:
        await examined(pilot, clock)
        await pilot.press("d")
        await on(pilot, DoctorScreen)
        assert all(background.is_default for _, _, background, _ in cells(pilot))
        await pilot.press("ctrl+p")
        await chosen(pilot, "colorblind-light")
        await on(pilot, DoctorScreen)
        notes = pilot.app._notifications
        await until(pilot, lambda: len(notes) > 0)
        (note,) = notes
        assert note.message == f"Theme colorblind-light, saved in {machine.user_file}."
        assert note.severity == "information"
        for key in ("", "1"):  # the screen below has the theme too
            await pilot.press(*filter(None, [key]))
            await pilot.pause()
            backgrounds = {background.name for _, _, background, _ in cells(pilot)}
            assert "#ffffff" in backgrounds
            assert "default" not in backgrounds
    assert load({}).configured("theme").value == "colorblind-light"


async def test_a_configuration_that_cannot_be_written_is_said(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_module, "why_not_as_root", lambda path: f"{path} belongs to uid 1000")
    monkeypatch.setenv("GDRTOP_THEME", "nord")
    clock = SteppedClock()
    async with stepped_app(QuickHost(NODE, clock=clock)).run_test(size=(80, 24)) as pilot:
        await examined(pilot, clock)
        await pilot.press("ctrl+p")
        await chosen(pilot, "monochrome-dark")
        await until(pilot, lambda: len(pilot.app._notifications) > 0)
        (note,) = pilot.app._notifications
        assert pilot.app.theme == "monochrome-dark"
        assert note.severity == "warning"
        directory = machine.user_file.parent
        assert note.message == (
            f"Theme monochrome-dark, until gdrtop ends. Not saved: {directory} belongs to uid 1000"
        )
    assert not machine.user_file.exists()
