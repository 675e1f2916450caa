"""gdrtop's own themes: for color-blind users, and without hues. They stand beside those of Textual.

The hues are those of Okabe and Ito (https://jfly.uni-koeln.de/color/), lighter or darker where a text needs
more contrast. tests/widgets/base/test_themes.py computes contrast and simulates color blindness.
"""

from __future__ import annotations

from dataclasses import replace

from textual.theme import BUILTIN_THEMES, Theme

_LIGHT, _DARK = "#e6e6e6", "#101418"
_WHITE, _BLACK = "#ffffff", "#1a1a1a"

# Textual's has red for warnings too: yellow cannot be read on white.
ANSI_LIGHT = replace(BUILTIN_THEMES["ansi-light"], warning="ansi_magenta", accent="ansi_cyan")
OWN_THEMES = {
    theme.name: theme
    for theme in (
        Theme(
            "colorblind-dark",
            primary="#3d94cc",
            secondary="#cc79a7",
            success="#56b4e9",
            warning="#f0e442",
            error="#e8743b",
            accent="#e69f00",
            foreground=_LIGHT,
            background=_DARK,
        ),
        Theme(
            "colorblind-light",
            primary="#005f96",
            secondary="#9a3f70",
            success="#0072b2",
            warning="#946200",
            error="#7a1f00",
            accent="#9a3d00",
            foreground=_BLACK,
            background=_WHITE,
            dark=False,
        ),
        Theme(
            "monochrome-dark",
            primary="#a0a0a0",
            secondary=_LIGHT,
            success=_LIGHT,
            warning=_WHITE,
            error=_WHITE,
            accent=_WHITE,
            foreground=_LIGHT,
            background="#000000",
        ),
        Theme(
            "monochrome-light",
            primary="#585858",
            secondary=_BLACK,
            success=_BLACK,
            warning="#000000",
            error="#000000",
            accent="#000000",
            foreground=_BLACK,
            background=_WHITE,
            dark=False,
        ),
    )
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
