"""The settings of screens: the user's keys, what is wrong with the settings, and saving what was chosen.

The user's keys are put into the key table before any screen is imported. Textual's own keymap ignores unknown
ids, reports a clash at each key press only, and cannot disable a key.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from textual.binding import Binding
from textual.keys import KEY_NAME_REPLACEMENTS, Keys, format_key

from probes.base.text import did_you_mean, printable
from tui.files import NotWritten
from tui.runtime.background_task import call_in_thread
from tui.screens.keys import FUNCTION_KEYS, KEYS, RANKS, Key, ranks_of
from tui.settings.configuration import Configuration, Configured
from tui.settings.current import current, use
from tui.settings.table import SETTINGS

if TYPE_CHECKING:
    from textual.app import App


# Keys that lead out of every screen, and those that screens bind in pairs (bind_pair).
FIXED = frozenset(
    (
        *("help", "quit", "open", "back", "exit", "views"),
        *("select", "change", "page", "first", "last", "pane", "pace", "moment", "moments", "event", "ends"),
    )
)
# The panels of the overview have digits; comma and full stop are other names of the arrows there.
_RESERVED = ("1", "2", "3", "4", "5", "6", "comma", "full_stop")
_MODIFIERS = ("ctrl", "shift", "alt")
# The terminal sends the same for Tab and Enter, and no modifier beside a letter.
_NOT_SENT = ("ctrl+i", "ctrl+m")
_NAMED = frozenset({key.value for key in Keys} | set(KEY_NAME_REPLACEMENTS.values()))


class KeyProblem(Exception):
    """A configured key cannot be used; the message says why, `name` is that of the key table."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"keys.{name} {message}")
        self.name = name


def rebound(changes: Mapping[str, str]) -> dict[str, Key]:
    """Return the key table with these keys, "f,f5" by name, "" for none; KeyProblem: one cannot be used."""
    table = dict(KEYS)
    for name, text in changes.items():
        if name not in KEYS or name in FIXED:
            raise KeyProblem(name, _why_not(name))
        keys = [_key(name, part.strip()) for part in text.split(",")] if text.strip() else []
        display = " ".join(map(format_key, keys)) or "–"
        table[name] = KEYS[name]._replace(keys=",".join(keys), display=display)
    # Function keys are second names, which a configured key may take.
    taken = {key for name in changes for key in table[name].keys.split(",")} & FUNCTION_KEYS
    for name, member in KEYS.items():
        if name not in changes:
            left = ",".join(key for key in member.keys.split(",") if key not in taken)
            table[name] = member._replace(keys=left)
    used: dict[str, str] = {}
    # The changed ones last: their names stand in the message.
    for name in sorted(table, key=lambda name: name in changes):
        for key in filter(None, table[name].keys.split(",")):
            other = used.setdefault(key, name)
            if other != name:
                raise KeyProblem(name, f"cannot be {format_key(key)}, which is the key of {other}")
            if name in changes and key in _RESERVED and key not in KEYS[name].keys.split(","):
                raise KeyProblem(name, f"cannot be {format_key(key)}, which the overview uses for its panels")
    return table


def use_keys(changes: Mapping[str, str]) -> None:
    """Put these keys into the table of all screens; KeyProblem: one cannot be used."""
    KEYS.update(rebound(changes))
    RANKS.clear()
    RANKS.update(ranks_of(KEYS))


def _why_not(name: str) -> str:
    if name in FIXED:
        return "cannot be changed"
    names = [known for known in KEYS if known not in FIXED]
    return _unknown("is not the name of a key", name, names, "names")


def _unknown(what: str, name: str, names: Collection[str], noun: str) -> str:
    """Return what is wrong with a name, the name that may be meant, and all that there are."""
    hint = did_you_mean(name, names, 0.6, most=1, otherwise=".")
    return f"{what}{hint} The {noun} are {', '.join(names)}"


def _key(name: str, text: str) -> str:
    """Return a key by Textual's name."""
    *modifiers, base = text.split("+") if len(text) > 1 else [text]
    is_named = len(base) == 1 and base.isprintable() and base != " "
    is_known = is_named or base in _NAMED or _is_character(base)
    if not is_known or not set(modifiers) <= set(_MODIFIERS):
        raise KeyProblem(name, f"has an unknown key {printable(text, 40)!r}; write f, F, f5, ctrl+f or space")
    if text in _NOT_SENT or (len(modifiers) > 1 and base.isalpha() and len(base) == 1):
        raise KeyProblem(
            name, f"cannot be {printable(text, 40)}, which terminals do not send as a key of its own"
        )
    return next(iter(Binding.make_bindings([Binding(text, "")]))).key


def _is_character(name: str) -> bool:
    try:
        unicodedata.lookup(name.replace("_", " "))
    except KeyError:
        return False
    return True


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
            what = f"{theme.origin}: there is no theme {theme.value!r}"
            yield _unknown(what, str(theme.value), names, "themes")
    for setting, configured in found.values.items():
        if setting.startswith((HIDE, SORT)):
            yield from _wrong_columns(setting, configured)
        for name in map(str.strip, str(configured.value).split(",")) if setting == HIDE_PANELS else ():
            if name and name not in HIDEABLE:
                what = f"{configured.origin}: {setting} has no panel {name!r}"
                yield _unknown(what, name, HIDEABLE, "panels")


def _wrong_columns(setting: str, configured: Configured) -> Iterator[str]:
    """Yield a sentence for each name that is not that of a column, or hides one that is always shown."""
    from widgets.live.columns import COLUMNS, names_in

    hides, text = setting.startswith(HIDE), str(configured.value)
    columns = {column.key: column for column in COLUMNS[setting.rpartition("_")[2]]}
    for name in names_in(text) if hides else filter(None, [text.removeprefix("-")]):
        column = columns.get(name)
        if column is None:
            what = f"{configured.origin}: {setting} has no column {name!r}"
            names = [key for key, column in columns.items() if not (hides and column.is_fixed)]
            yield _unknown(what, name, names, "columns")
        elif hides and column.is_fixed:
            yield f"{configured.origin}: {setting} cannot hide {name}, which identifies the row"


_CHOSEN = "chosen in the dashboard"


def save_setting(app: App[Any], name: str, value: str, what: str) -> None:
    """Use a value from now on and save it; notify where, or why that failed.

    `what`: begins the notification, such as "Theme nord".
    """
    found = current()
    use(replace(found, values={**found.values, name: Configured(value, _CHOSEN)}))
    variable = SETTINGS[name].variable
    over = f" {variable} is set and counts more at the next start." if variable in os.environ else ""

    def work() -> tuple[str, bool]:
        from tui.settings.save import save

        try:
            return f"{what}, saved in {save(name, value)}.{over}", True
        except NotWritten as error:
            return f"{what}, until gdrtop ends. Not saved: {error}", False

    def show(answer: tuple[str, bool]) -> None:
        message, is_saved = answer
        app.notify(message, severity="information" if is_saved else "warning", markup=False)

    call_in_thread(app.call_later, work, show, lambda why: show((f"{what}. Not saved: {why}", False)))
