"""gdrtop's themes: every tone can be read, and good, warning and bad differ for color-blind users."""

from itertools import combinations

import pytest
from textual.color import Color
from textual.filter import DIM_FACTOR
from textual.theme import BUILTIN_THEMES, Theme

from tests.support.contrast import LARGE, TEXT, TO_XYZ, Rgb, contrast, linear, times
from widgets.base.lines import TONE_STYLES, Tone
from widgets.base.themes import OWN_THEMES, theme_meanings

CLEARLY = 20.0  # CIE 1976 color difference; about 2.3 is just noticeable
STATES = (Tone.GOOD, Tone.WARNING, Tone.BAD)
# Machado, Oliveira, Fernandes: A Physiologically-based Model for Simulation of Color Vision Deficiency, 2009,
# severity 1.0, on linear sRGB.
VISIONS = {
    "normal": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
}
WHITE = (0.9505, 1.0, 1.089)


def difference(one_color: Rgb, other: Rgb) -> float:
    """The distance in CIELAB."""

    def lab(color: Rgb) -> Rgb:
        x, y, z = (
            part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116
            for part in (value / white for value, white in zip(times(TO_XYZ, color), WHITE, strict=True))
        )
        return 116 * y - 16, 500 * (x - y), 200 * (y - z)

    pairs = zip(lab(one_color), lab(other), strict=True)
    return float(sum((left - right) ** 2 for left, right in pairs) ** 0.5)


def seen(color: Rgb, vision: str) -> Rgb:
    return tuple(min(1.0, max(0.0, part)) for part in times(VISIONS[vision], color))


def colors(theme: Theme) -> tuple[dict[Tone, Rgb], Rgb]:
    """The color of each tone, and that behind it; where tones are reversed, the two change places."""
    variables = {**theme.to_color_system().generate(), **theme.variables}
    background, foreground = Color.parse(variables["background"]), Color.parse(variables["foreground"])
    found = {}
    for tone, (name, attributes) in TONE_STYLES.items():
        color = Color.parse(variables[name]) if name else foreground
        found[tone] = linear(background.blend(color, DIM_FACTOR) if "dim" in attributes else color)
    return found, linear(background)


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("name", OWN_THEMES)
def test_every_tone_can_be_read(name: str, vision: str) -> None:
    tones, background = colors(OWN_THEMES[name])
    ratios = {tone: contrast(seen(color, vision), seen(background, vision)) for tone, color in tones.items()}
    assert not {
        tone: ratio for tone, ratio in ratios.items() if ratio < (LARGE if tone is Tone.DIM else TEXT)
    }


@pytest.mark.parametrize("name", OWN_THEMES)
def test_borders_and_their_titles_can_be_read(name: str) -> None:
    theme = OWN_THEMES[name]
    variables = theme.to_color_system().generate()
    background = linear(Color.parse(variables["background"]))
    for variable in ("primary", "accent"):
        assert contrast(linear(Color.parse(variables[variable])), background) >= TEXT, variable


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("name", ["colorblind-dark", "colorblind-light"])
def test_good_warning_and_bad_differ_for_color_blind_users(name: str, vision: str) -> None:
    tones, _ = colors(OWN_THEMES[name])
    pairs = {
        (left, right): difference(seen(tones[left], vision), seen(tones[right], vision))
        for left, right in combinations(STATES, 2)
    }
    assert not {pair: distance for pair, distance in pairs.items() if distance < CLEARLY}


def test_the_simulation_confuses_what_color_blind_users_confuse() -> None:
    """The green and yellow of many themes: so near that the test above would find them."""
    green, yellow = linear(Color.parse("#00cc00")), linear(Color.parse("#cccc00"))
    assert difference(green, yellow) > CLEARLY
    for vision in ("protanopia", "deuteranopia"):
        assert difference(seen(green, vision), seen(yellow, vision)) < CLEARLY


def test_monochrome_themes_have_no_hue() -> None:
    for name in ("monochrome-dark", "monochrome-light"):
        tones, background = colors(OWN_THEMES[name])
        for color in (*tones.values(), background):
            assert len({round(part, 6) for part in color}) == 1, name


def test_all_themes_are_offered_once() -> None:
    assert list(theme_meanings())[:2] == ["ansi-dark", "ansi-light"]
    assert set(theme_meanings()) == {*BUILTIN_THEMES, *OWN_THEMES}
