"""Merge the layers of the configuration: tables merge, and of one value the last layer counts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import TypeVar

from probes.base.data_files import parse_toml
from probes.base.site import (
    COMPONENTS,
    TRAINS,
    Floor,
    Silence,
    SiteCombination,
    VersionRange,
    parse_fixed,
    parse_range,
)
from probes.base.text import did_you_mean, printable
from tui.files.xdg import group_files
from tui.settings.configuration import ConfigFile, Configuration, Configured
from tui.settings.table import (
    COMBINATION,
    FLOOR,
    KEYS,
    SETTINGS,
    SILENCE,
    TABLES,
    checked,
    from_text,
    keys_in,
    shown,
)

_LOCKED = "read_only"
_FIELDS = ("id", "device", "nodes", "reason", "until")
_OPTIONAL = ("device", "nodes", "board", "source")
_COMBINATION_FIELDS = ("board", *COMPONENTS, "symptom", "cure", "source")
_FLOOR_FIELDS = ("board", *TRAINS, "reason", "source")
_MOST_ROWS = 1000
_Row = TypeVar("_Row")
_MOST_ERRORS = 20
_MOST_DOTS = (
    64  # of a line without its texts and comments; the time for a key grows with the square of its parts
)
_ONLY_SITE = "decides what runs; as root, gdrtop reads it only from /etc/gdrtop"
_TEXT_OR_COMMENT = re.compile(r"""\"[^"\\]*(?:\\.[^"\\]*)*"?|'[^']*'?|#.*""", re.DOTALL)
_NAME = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_DOTTED = rf"{_NAME}(?:[ \t]*\.[ \t]*{_NAME})*"
_HEADER = re.compile(rf"[ \t]*(\[\[?)[ \t]*({_DOTTED})[ \t]*\]")
_KEY = re.compile(rf"[ \t]*({_DOTTED})[ \t]*=")
_PARTS = re.compile(_NAME)


def merge(
    texts: Iterable[tuple[str, bool, bytes]],
    variables: Mapping[str, str],
    files: tuple[ConfigFile, ...] = (),
    errors: Iterable[str] = (),
    notes: Iterable[str] = (),
    is_root: bool = False,
) -> Configuration:
    """Return the configuration of these files, (path, whether it is the site's, content), and variables.

    `is_root`: a user's file may not name a command.
    """
    layers = _Layers(is_root, list(errors), list(notes))
    for path, is_site, content in texts:
        layers.add_file(printable(path), is_site, content)
    for variable, text in sorted(variables.items()):
        layers.add_variable(variable, text)
    more = len(layers.errors) - _MOST_ERRORS
    shown_errors = [*layers.errors[:_MOST_ERRORS], *([f"and {more} more errors"] if more > 0 else ())]
    return Configuration(
        layers.values,
        layers.keys,
        tuple(layers.silences),
        tuple(layers.combinations),
        tuple(layers.floors),
        files,
        tuple(shown_errors),
        tuple(layers.notes),
    )


class _Layers:
    """The layers so far."""

    def __init__(self, is_root: bool, errors: list[str], notes: list[str]) -> None:
        self._is_root = is_root
        self.values: dict[str, Configured] = {}
        self.keys: dict[str, Configured] = {}
        self.silences: list[Silence] = []
        self.combinations: list[SiteCombination] = []
        self.floors: list[Floor] = []
        self.errors, self.notes = errors, notes
        self._path, self._is_site = "", False
        self._lines: dict[tuple[str, ...], int] = {}

    def add_file(self, path: str, is_site: bool, content: bytes) -> None:
        """Put a file on top."""
        self._path, self._is_site = path, is_site
        try:
            text = content.decode("utf-8-sig")
            _require_short_keys(text)
            tables = parse_toml(text)
        except (ValueError, RecursionError) as error:
            is_encoding = isinstance(error, UnicodeDecodeError)
            what = "it is not UTF-8 text" if is_encoding else printable(str(error) or "too deep", 200)
            self.errors.append(f"{path} is not valid TOML: {what}")
            return
        self._lines = lines_of(text)
        for key, value in tables.items():
            if key == KEYS:
                self._add_keys(value)
            elif key == SILENCE:
                self._add_rows(key, value, self.silences, self._silence)
            elif key == COMBINATION:
                self._add_rows(key, value, self.combinations, self._combination)
            elif key == FLOOR:
                self._add_rows(key, value, self.floors, self._floor)
            elif key in TABLES and not isinstance(value, dict):
                self._error((key,), f"{key} must be a table: [{key}]")
            elif key in TABLES:
                for inner, item in value.items():
                    self._add(key, inner, item)
            else:
                self._add("", key, value)

    def add_variable(self, variable: str, text: str) -> None:
        """Put an environment variable on top; one that is no setting's may be another program's."""
        settings = {setting.variable: setting for setting in SETTINGS.values()}
        setting = settings.get(variable)
        if setting is None:
            if near := did_you_mean(variable, settings, 0.85, most=1):
                self.notes.append(f"{printable(variable, 80)} is not a setting{near}")
            return
        if setting.runs_command and self._is_root:
            self.errors.append(f"{variable} {_ONLY_SITE}")
            return
        try:
            self._set(setting.name, Configured(from_text(setting, text), variable))
        except ValueError as error:
            self.errors.append(f"{variable} {error}")

    def _add(self, table: str, key: str, value: object) -> None:
        name = f"{table}.{key}" if table else key
        path = (table, key) if table else (key,)
        setting = SETTINGS.get(name)
        if setting is None or "." in key:
            self._error(path, unknown_key(key, keys_in(table), table))
            return
        if setting.runs_command and self._is_root and not self._is_site:
            self._error(path, f"{name} {_ONLY_SITE}")
            return
        try:
            is_locked = name == _LOCKED and self._is_site and value is True
            configured = Configured(checked(setting, value), self._origin(path), is_locked)
        except ValueError as error:
            self._error(path, f"{name} {error}")
        else:
            self._set(name, configured)

    def _set(self, name: str, configured: Configured) -> None:
        before = self.values.get(name)
        if before is None or not before.is_locked:
            self.values[name] = configured
        elif configured.value != before.value:
            locked = f"{name} = {shown(before.value)} in {before.origin} cannot be undone"
            self.notes.append(f"{configured.origin} has no effect: {locked}")

    def _add_keys(self, value: object) -> None:
        if not isinstance(value, dict):
            self._error((KEYS,), f"{KEYS} must be a table: [{KEYS}]")
            return
        for name, keys in value.items():
            if not isinstance(keys, str) or not keys.isprintable() or len(keys) > 200:
                self._error((KEYS, name), f'{KEYS}.{printable(name, 40)} must be keys such as "f,f5"')
                continue
            self.keys[printable(name, 40)] = Configured(keys, self._origin((KEYS, name)))

    def _add_rows(
        self,
        name: str,
        value: object,
        rows: list[_Row],
        row_of: Callable[[tuple[str, ...], dict[str, object]], _Row | None],
    ) -> None:
        """Add the rows of a list of tables; `row_of` notes the errors of one."""
        if not isinstance(value, list):
            self._error((name,), f"{name} must be a list of tables: [[{name}]]")
            return
        for number, fields in enumerate(value):
            place = (name, str(number))
            if len(rows) >= _MOST_ROWS:
                self._error(place, f"more than {_MOST_ROWS} of [[{name}]]")
                return
            if not isinstance(fields, dict):
                self._error(place, f"each of {name} must be a table: [[{name}]]")
                continue
            count = len(self.errors)
            row = row_of(place, fields)
            if row is not None and len(self.errors) == count:
                rows.append(row)

    def _texts(
        self,
        place: tuple[str, ...],
        fields: dict[str, object],
        names: Sequence[str],
        all_names: Sequence[str],
    ) -> dict[str, str]:
        """Return the texts of these names, after noting the errors of a row."""
        for key in fields:
            if key not in all_names:
                self._error((*place, key), unknown_key(key, all_names, f"[{place[0]}]"))
        texts = {}
        for key in names:
            text = fields.get(key, "")
            if not isinstance(text, str) or not text.isprintable() or len(text) > 500:
                self._error((*place, key), f"{key} must be a text on one line")
            elif not text.strip() and key not in _OPTIONAL:
                self._error(place, f"a {place[0]} needs {key}")
            texts[key] = str(text)
        return texts

    def _silence(self, place: tuple[str, ...], fields: dict[str, object]) -> Silence | None:
        """Return a silence, or None after noting that it has no date."""
        texts = self._texts(place, fields, ("id", "reason", "device", "nodes"), _FIELDS)
        until = fields.get("until")
        if not isinstance(until, date) or isinstance(until, datetime):
            self._error((*place, "until"), "a silence needs until, a date without quotes such as 2026-12-31")
            return None
        nodes = self._nodes(place, texts["nodes"]) if "nodes" in fields else frozenset()
        return Silence(texts["id"], texts["reason"], until, texts["device"], nodes, self._origin(place))

    def _nodes(self, place: tuple[str, ...], text: str) -> frozenset[str]:
        """Return the nodes of a silence; a text that names none is an error, and no silence of every node."""
        from probes.fleet.node_set import NodeSetError, parse_nodes  # only who names nodes needs ClusterShell

        try:
            return frozenset(parse_nodes(text, group_files()))
        except NodeSetError as error:
            self._error((*place, "nodes"), str(error))
            return frozenset()

    def _combination(self, place: tuple[str, ...], fields: dict[str, object]) -> SiteCombination:
        """Return a row of versions that do not work together."""
        texts = self._named(place, fields, ("symptom", "cure", "board", "source"), _COMBINATION_FIELDS)
        versions: dict[str, VersionRange] = {}
        for name in COMPONENTS:
            if name not in fields:
                continue
            text = fields[name]
            try:
                versions[name] = parse_range(text if isinstance(text, str) else "")
            except ValueError:
                said = f'{name} must be versions such as "28.39.1002", "before 28.43", "28.39 to 28.41"'
                self._error((*place, name), f'{said} or "28.43 or newer", not {shown(text)}')
        if not versions and not texts["board"]:
            self._error(place, f"a {COMBINATION} needs board or a version: {', '.join(COMPONENTS)}")
        return SiteCombination(
            texts["symptom"], texts["cure"], versions, texts["board"], texts["source"], self._origin(place)
        )

    def _floor(self, place: tuple[str, ...], fields: dict[str, object]) -> Floor | None:
        """Return a row of versions that this site requires, or None after noting that it has none."""
        texts = self._named(place, fields, ("reason", "board", "source"), _FLOOR_FIELDS)
        versions: dict[str, tuple[str, ...]] = {}
        for name in [name for name in TRAINS if name in fields] or ["firmware"]:
            try:
                versions[name] = parse_fixed(fields.get(name), name)
            except ValueError:
                said = 'one full version of each train or branch, such as ["28.43.8002", "28.46.3008"]'
                self._error((*place, name), f"a {FLOOR} needs {name}, a list with {said}")
                return None
        firmware, driver = (versions.get(name, ()) for name in TRAINS)
        return Floor(self._origin(place), texts["reason"], firmware, driver, texts["board"], texts["source"])

    def _named(
        self,
        place: tuple[str, ...],
        fields: dict[str, object],
        names: Sequence[str],
        all_names: Sequence[str],
    ) -> dict[str, str]:
        """Return the texts of a row about versions, in which an optional one that is there is not empty."""
        texts = {name: text.strip() for name, text in self._texts(place, fields, names, all_names).items()}
        for name in ("board", "source"):
            if name in fields and not texts[name]:
                self._error((*place, name), f"{name} must not be empty")
        return texts

    def _origin(self, path: tuple[str, ...]) -> str:
        lines = (self._lines.get(path[:depth]) for depth in range(len(path), 0, -1))
        line = next(filter(None, lines), None)
        return f"{self._path}:{line}" if line else self._path

    def _error(self, path: tuple[str, ...], message: str) -> None:
        self.errors.append(f"{self._origin(path)}: {message}")


def unknown_key(key: str, known: Sequence[str], table: str = "") -> str:
    """Return the sentence about a key that is not known, with the nearest ones and all that are."""
    elsewhere = next((name for name in SETTINGS if "." in name and name.rpartition(".")[2] == key), "")
    hint = did_you_mean(key, known, 0.6, most=1, otherwise=".")
    if elsewhere:
        hint = f"; did you mean {elsewhere}?"
    where = f" in [{table}]" if table else ""
    return f"unknown key {shown(key)}{where}{hint} The keys here are {', '.join(known)}"


def _require_short_keys(text: str) -> None:
    """Raise ValueError for a key of so many parts that parsing it would take long."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > _MOST_DOTS and _TEXT_OR_COMMENT.sub("", line).count(".") > _MOST_DOTS:
            raise ValueError(f"a key has more than {_MOST_DOTS} parts (at line {number})")


def lines_of(text: str) -> dict[tuple[str, ...], int]:
    """Return the line of each key, by its path: ("interval",), ("fleet", "fanout"), ("silence", "0", "id").

    The parsers of TOML do not keep it. What looks like a key within a text of many lines has one too.
    """
    found: dict[tuple[str, ...], int] = {}
    counts: dict[str, int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.split("\n"), 1):
        if header := _HEADER.match(line):
            table = _parts(header[2])
            if header[1] == "[[":
                counts[header[2]] = count = counts.get(header[2], -1) + 1
                table = (*table, str(count))
        elif key := _KEY.match(line):
            found.setdefault((*table, *_parts(key[1])), number)
            continue
        if table:
            found.setdefault(table, number)
    return found


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(name.strip("\"'") for name in _PARTS.findall(dotted))


def problems_of(content: bytes, path: str, is_site: bool, is_root: bool = False) -> tuple[str, ...]:
    """Return what is wrong in a file of its own."""
    return merge([(path, is_site, content)], {}, is_root=is_root).errors
