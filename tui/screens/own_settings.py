"""The settings of screens, and what is wrong with them: the keys, the theme, hidden columns and panels."""

from __future__ import annotations

from collections.abc import Iterator

from probes.base.text import did_you_mean
from tui.screens.own_keys import KeyProblem, rebound
from tui.settings.configuration import Configuration, Configured

HIDE = "live.hide_"  # begins the settings of hidden columns, by table
SORT = "live.sort_"  # begins the settings of the order of rows, by table
HIDE_PANELS = "overview.hide"  # the setting of hidden panels
# Findings and jobs are always shown where there are any, and the topology.
HIDEABLE = ("matrix", "rates", "path", "gpudirect", "modules", "traffic")
PLACES = {
    "top": ("findings",),
    "left": ("topology", "matrix", "rates"),
    "right": ("jobs", "path", "gpudirect", "modules", "traffic"),
}


def wrong_settings(found: Configuration) -> Iterator[str]:
    """Yield a sentence for the first key, the theme and each column that cannot be used."""
    try:
        rebound({name: str(keys.value) for name, keys in found.keys.items()})
    except KeyProblem as problem:
        yield f"{found.keys[problem.name].origin}: {problem}"
    if "theme" in found.values:
        from widgets.base.themes import theme_meanings

        theme, names = found.configured("theme"), theme_meanings()
        if theme.value not in names:
            hint = did_you_mean(str(theme.value), names, 0.6, most=1, otherwise=".")
            yield f"{theme.origin}: there is no theme {theme.value!r}{hint} The themes are {', '.join(names)}"
    for name, configured in found.values.items():
        if name.startswith((HIDE, SORT)):
            yield from _wrong_columns(name, configured)
        elif name == HIDE_PANELS:
            yield from _wrong_panels(configured)


def _wrong_panels(configured: Configured) -> Iterator[str]:
    """Yield a sentence for each name that is not that of a panel which can be hidden."""
    for name in filter(None, map(str.strip, str(configured.value).split(","))):
        if name not in HIDEABLE:
            hint = did_you_mean(name, HIDEABLE, 0.6, most=1, otherwise=".")
            panels = ", ".join(HIDEABLE)
            yield f"{configured.origin}: {HIDE_PANELS} has no panel {name!r}{hint} The panels are {panels}"


def _wrong_columns(setting: str, configured: Configured) -> Iterator[str]:
    """Yield a sentence for each name that is not that of a column, or hides one that is always shown."""
    from widgets.live.columns import COLUMNS, names_in

    hides, text = setting.startswith(HIDE), str(configured.value)
    columns = {column.key: column for column in COLUMNS[setting.rpartition("_")[2]]}
    for name in names_in(text) if hides else filter(None, [text.removeprefix("-")]):
        column = columns.get(name)
        if column is None:
            hint = did_you_mean(name, columns, 0.6, most=1, otherwise=".")
            names = ", ".join(key for key, column in columns.items() if not (hides and column.is_fixed))
            yield f"{configured.origin}: {setting} has no column {name!r}{hint} The columns are {names}"
        elif hides and column.is_fixed:
            yield f"{configured.origin}: {setting} cannot hide {name}, which identifies the row"
