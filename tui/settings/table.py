"""All settings, which settings.toml lists, and what their values may be."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from probes.base.data_files import read_text, read_toml
from probes.base.frozen import frozen
from probes.base.text import printable
from tui.settings import PREFIX
from widgets.live import TABLE_NAMES

Value: TypeAlias = "bool | int | float | str"
KEYS, SILENCE, COMBINATION, FLOOR = "keys", "silence", "combination", "floor"  # [keys], [[silence]], …
_MOST_TEXT = 1000
_WORDS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


@frozen
class Text:
    """What a text may be."""

    pattern: str
    expects: str  # "the name of a theme"


@frozen
class Setting:
    """One value of the configuration; its type is that of its default."""

    name: str  # "interval", "fleet.fanout"
    default: Value
    meaning: str  # one sentence
    limits: Sequence[float] | Text = (0, 0)  # the least and the most, of a number
    option: str = ""  # where argparse stores the option that has this default
    command: str = ""  # the command that has the option; "": several
    runs_command: bool = False  # as root, only a file of the site may set it

    @property
    def variable(self) -> str:
        """Return the environment variable that sets it."""
        return PREFIX + self.name.upper().replace(".", "_")

    @property
    def key(self) -> str:
        """Return its key within its table."""
        return self.name.rpartition(".")[2]

    @property
    def kind(self) -> str:
        """Return what it must be."""
        if isinstance(self.default, bool):
            return "true or false"
        if isinstance(self.limits, Text):
            return self.limits.expects
        number = "a whole number" if isinstance(self.default, int) else "a number"
        return f"{number} from {self.limits[0]:g} to {self.limits[1]:g}"


def _rows() -> Iterator[Setting]:
    for name, row in read_toml(__name__, "settings.toml").items():
        if "pattern" in row:
            row["limits"] = Text(row.pop("pattern"), row.pop("expects"))
        for table, what in TABLE_NAMES.items() if "{table}" in name else (("", ""),):
            meaning = row["meaning"].replace("{what}", what)
            yield Setting(name.replace("{table}", table), **{**row, "meaning": meaning})


SETTINGS = {setting.name: setting for setting in _rows()}
TABLES = tuple(dict.fromkeys(name.partition(".")[0] for name in SETTINGS if "." in name))


def keys_in(table: str) -> tuple[str, ...]:
    """Return the keys of a table, such as "fleet"; of the top level for ""."""
    own = tuple(setting.key for name, setting in SETTINGS.items() if name.rpartition(".")[0] == table)
    return own if table else (*own, *TABLES, KEYS, SILENCE, COMBINATION, FLOOR)


def checked(setting: Setting, value: object) -> Value:
    """Return a value as the setting has it; ValueError, "must be true or false, not 3", if it cannot be."""
    default = setting.default
    if isinstance(default, bool):
        if isinstance(value, bool):
            return value
    elif isinstance(setting.limits, Text):
        is_text = isinstance(value, str) and value.isprintable() and len(value) <= _MOST_TEXT
        if is_text and re.fullmatch(setting.limits.pattern, str(value)):
            return str(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        is_whole = isinstance(value, int) or not isinstance(default, int)
        if is_whole and setting.limits[0] <= value <= setting.limits[1]:  # nan is in no range
            return type(default)(value)
    raise ValueError(f"must be {setting.kind}, not {shown(value)}")


def from_text(setting: Setting, text: str) -> Value:
    """Return the value of an environment variable; ValueError as `checked`."""
    value: object = text
    try:
        if isinstance(setting.default, bool):
            value = _WORDS.get(text.lower(), text)
        elif not isinstance(setting.default, str):
            value = type(setting.default)(text)
    except ValueError:
        value = text
    return checked(setting, value)


def shown(value: object) -> str:
    """Return a value as TOML has it, on one line, of at most 80 characters."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(printable(value, 80), ensure_ascii=False)
    if isinstance(value, int | float):
        return f"{value:g}" if isinstance(value, float) else printable(str(value)[:80], 80)
    return {"dict": "a table", "list": "a list"}.get(type(value).__name__, printable(str(value)[:80], 80))


_WIDTH = 90
_HEAD = """\
# Configuration of gdrtop. gdrtop help config explains it, and gdrtop config shows what is in force.
# Remove the # before a line to set a value.
"""


def template() -> str:
    """Return the text of a new file."""
    parts, table = [_HEAD], ""
    for name, setting in SETTINGS.items():
        above, _, key = name.rpartition(".")
        text = textwrap.fill(
            f"{setting.meaning} ({setting.kind})", _WIDTH, initial_indent="# ", subsequent_indent="# "
        )
        head = f"# [{above}]\n" if above != table else ""
        table = above
        parts.append(f"{head}{text}\n# {key} = {shown(setting.default)}\n")
    return "\n".join([*parts, read_text(__name__, "template.toml")])
