"""The keys that a user has configured, put into the key table before any screen is imported.

Textual's own keymap ignores unknown ids, reports a clash at each key press only, and cannot disable a key.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

from textual.binding import Binding
from textual.keys import KEY_NAME_REPLACEMENTS, Keys, format_key

from probes.base.text import did_you_mean, printable
from tui.screens.keys import FUNCTION_KEYS, KEYS, RANKS, Key, ranks_of

# Keys that lead out of every screen, and pairs that screens bind one by one.
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
    hint = did_you_mean(name, names, 0.6, most=1, otherwise=".")
    return f"is not the name of a key{hint} The names are {', '.join(names)}"


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
