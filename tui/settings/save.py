"""Save a setting that was chosen in the dashboard to the user's file; everything else in the file stays."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator

from probes.base.data_files import parse_toml
from probes.base.text import printable
from probes.host.trusted_path import is_root, require_path
from tui.files import NotWritten
from tui.files.new_file import NewFile, make_directory, shown_path, why, why_not_as_root
from tui.files.read_file import read_trusted
from tui.files.xdg import NO_HOME
from tui.settings import load
from tui.settings.load import WHAT
from tui.settings.merge import lines_of
from tui.settings.table import template

_MODE = 0o600  # of a new file
_EDIT = "edit it, and check it with gdrtop config"
_VALUE = re.compile(r"""([^=]*=[ \t]*)("(?:[^"\\]|\\.)*"|'[^']*')""")
_lock = threading.Lock()  # two settings may be saved at the same time


def save(name: str, value: str) -> str:
    """Save the value of a setting for this user, also as root; return the printable path of the file.

    NotWritten: the file cannot be written, or is not valid.
    """
    path = load.user_file()
    if not path:
        raise NotWritten(NO_HOME)
    directory = os.path.dirname(path)
    if not_as_root := why_not_as_root(directory):
        raise NotWritten(not_as_root)
    path = path if is_root() else os.path.realpath(path)  # a link of dotfiles stays one
    with _lock:
        before, status = _read_file(path)
        try:
            text = template() if before is None else before.decode("utf-8-sig")
            changed = with_value(text, name, value)
        except (ValueError, RecursionError) as error:
            is_encoding = isinstance(error, UnicodeDecodeError)
            problem = "it is not UTF-8 text" if is_encoding else printable(str(error), 200)
            raise NotWritten(f"{shown_path(path)} stays as it is: {problem}; {_EDIT}") from None
        make_directory(directory)
        _require_trust(path)
        kept = _MODE if status is None else status.st_mode & 0o7777  # it keeps its mode and owner
        owner = None if status is None else (status.st_uid, status.st_gid)
        NewFile(path, replaces=True, mode=kept, owner=owner).save(changed.encode())
    return shown_path(path)


def _read_file(path: str) -> tuple[bytes | None, os.stat_result | None]:
    """Return content and status of a file of the configuration, None and None if there is none."""
    try:
        return read_trusted(path, load.MOST_BYTES, WHAT, load.TOP), os.stat(path)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        raise NotWritten(f"{shown_path(path)} cannot be edited: {why(error)}") from None


def _require_trust(path: str) -> None:
    """Raise NotWritten if gdrtop, as root, would not read the file at its next start."""
    try:
        if is_root():
            require_path(os.path.dirname(path), load.TOP)
    except OSError as error:
        raise NotWritten(f"{shown_path(path)} would not be read: {why(error)}") from None


def with_value(text: str, name: str, value: str) -> str:
    """Return the text of a configuration in which a setting has this value, with all comments.

    ValueError: the text is not valid TOML, or has the setting in a form that gdrtop does not change.
    """
    wanted = parse_toml(text)
    table, _, key = name.rpartition(".")
    inner = wanted.setdefault(table, {}) if table else wanted
    if not isinstance(inner, dict):
        raise ValueError(f"{table} is not a table")
    inner[key] = value
    for changed in _changes(text, table, key, json.dumps(value, ensure_ascii=False)):
        try:
            if parse_toml(changed) == wanted:
                return changed
        except ValueError:  # not valid there; the next place may be
            continue
    raise ValueError(f"gdrtop cannot change {name} in the form that it has there")


def _changes(text: str, table: str, key: str, value: str) -> Iterator[str]:
    """Yield texts with the value at a place where it may be right, the nicest first; they may be invalid."""
    lines = text.split("\n")
    number = lines_of(text).get((table, key) if table else (key,))
    if number is not None:
        line = _VALUE.sub(lambda found: found[1] + value, lines[number - 1], count=1)
        yield "\n".join([*lines[: number - 1], line, *lines[number:]])
    header, commented = f"[{table}]", re.compile(rf"#[ \t]*{re.escape(key)}[ \t]*=")
    drafts = [lines]
    if table:  # the template has the header in a comment
        drafts.append([header if re.sub(r"^#[ \t]*", "", line) == header else line for line in lines])
    for draft in drafts:
        below = [row for row, line in enumerate(draft) if commented.match(line)]
        below += [row for row, line in enumerate(draft) if line.strip() == header]
        for row in below:
            yield "\n".join([*draft[: row + 1], f"{key} = {value}", *draft[row + 1 :]])
    if table:
        yield f"{text.rstrip()}\n\n{header}\n{key} = {value}\n".lstrip()
        yield f"{table}.{key} = {value}\n{text}"
    else:
        yield f"{key} = {value}\n{text}"
