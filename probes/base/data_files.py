"""Data files of gdrtop, beside the code that reads them."""

from __future__ import annotations

import re
import sys
from functools import cache
from pkgutil import get_data
from typing import Any


def read_text(package: str, name: str) -> str:
    """Return the text of a file of a package, or of one beside a module."""
    content = get_data(package, name)  # importlib.resources imports much more
    assert content is not None
    return content.decode()


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; its parser takes 10 ms to import."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


@cache
def read_toml_once(package: str, name: str) -> dict[str, Any]:
    """Parse a TOML file as read_toml() does, and keep it: for texts that are asked for again and again."""
    return read_toml(package, name)


def read_toml(package: str, name: str) -> dict[str, Any]:
    """Parse a TOML file of a package, or one beside a module."""
    text = read_text(package, name)
    texts = _parse_texts(text)
    return parse_toml(text) if texts is None else texts


_LINE = re.compile(r"""\[([\w-]+)\]|([\w-]+) = (?:"([^"\\]*)"|'([^']*)')|#.*|""")


def _parse_texts(toml: str) -> dict[str, Any] | None:
    """Parse tables of texts, each in one line, in a tenth of the time; None: the file has more than these."""
    tables: dict[str, Any] = {}
    row = tables
    for line in toml.split("\n"):
        match = _LINE.fullmatch(line)
        if match is None:
            return None
        table, key, basic, literal = match.groups()
        if table:
            row = tables[table] = {}
        elif key:
            row[key] = literal if basic is None else basic
    return tables
