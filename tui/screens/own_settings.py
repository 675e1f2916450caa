"""What is wrong with the settings of screens: the keys and the theme."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from tui.screens.own_keys import KeyProblem, rebound
from tui.settings.configuration import Configuration


def wrong_settings(found: Configuration) -> Iterator[str]:
    """Yield a sentence for the first key and the theme that cannot be used."""
    try:
        rebound({name: str(keys.value) for name, keys in found.keys.items()})
    except KeyProblem as problem:
        yield f"{found.keys[problem.name].origin}: {problem}"
    if "theme" in found.values:
        from widgets.base.themes import theme_meanings

        theme, names = found.configured("theme"), theme_meanings()
        if theme.value not in names:
            near = get_close_matches(str(theme.value), names, n=1)
            hint = f"; did you mean {near[0]}?" if near else "."
            yield f"{theme.origin}: there is no theme {theme.value!r}{hint} The themes are {', '.join(names)}"
