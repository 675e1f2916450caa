"""gdrtop's own themes: for color-blind users, and without hues. They stand beside those of Textual.

The hues are those of Okabe and Ito (https://jfly.uni-koeln.de/color/), lighter or darker where a text needs
more contrast. tests/widgets/base/test_themes.py computes contrast and simulates color blindness.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from textual.theme import BUILTIN_THEMES, Theme

_LIGHT, _DARK = "#e6e6e6", "#101418"
_WHITE, _BLACK = "#ffffff", "#1a1a1a"

# Textual's has red for warnings too: yellow cannot be read on white.
ANSI_LIGHT = replace(BUILTIN_THEMES["ansi-light"], warning="ansi_magenta", accent="ansi_cyan")
_COLORS = ("primary", "secondary", "success", "warning", "error", "accent", "foreground", "background")
_OWN: dict[str, tuple[Any, ...]] = {
    "colorblind-dark": ("#3d94cc", "#cc79a7", "#56b4e9", "#f0e442", "#e8743b", "#e69f00", _LIGHT, _DARK),
    "colorblind-light": ("#005f96", "#9a3f70", "#0072b2", "#946200", "#7a1f00", "#9a3d00", _BLACK, _WHITE),
    "monochrome-dark": ("#a0a0a0", _LIGHT, _LIGHT, _WHITE, _WHITE, _WHITE, _LIGHT, "#000000"),
    "monochrome-light": ("#585858", _BLACK, _BLACK, "#000000", "#000000", "#000000", _BLACK, _WHITE),
}
OWN_THEMES = {
    name: Theme(name, dark=name.endswith("-dark"), **dict(zip(_COLORS, colors, strict=True)))
    for name, colors in _OWN.items()
}
# In the order in which they are offered, with what they are for.
_MEANINGS = {
    "ansi-dark": "the terminal's own colors (default)",
    "ansi-light": "the terminal's own colors, on a light background",
    "colorblind-dark": "blue, yellow and orange, for red-green color blindness",
    "colorblind-light": "the same on a light background",
    "monochrome-dark": "white and gray on black",
    "monochrome-light": "black and gray on white",
}


def theme_meanings() -> dict[str, str]:
    """Return the names of all themes, and what each is for; those of Textual last."""
    return {**_MEANINGS, **dict.fromkeys(sorted(BUILTIN_THEMES.keys() - _MEANINGS.keys()), "")}
