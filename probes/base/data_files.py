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


_TEXT = r"""(?:"([^"\\]*)"|'([^']*)')"""
_LINE = re.compile(rf"\[([\w-]+)\]|([\w-]+) = (?:{_TEXT}|\[)|    {_TEXT},|\]|#.*|")


def _parse_texts(toml: str) -> dict[str, Any] | None:
    """Parse tables of texts and lists of texts, each in a line, in a tenth of the time; None: it has more."""
    tables: dict[str, Any] = {}
    row, items = tables, list[str]()
    for line in toml.split("\n"):
        match = _LINE.fullmatch(line)
        if match is None:
            return None
        table, key, *texts = match.groups()
        text = next((text for text in texts if text is not None), None)
        if table:
            row = tables[table] = {}
        elif key and text is None:
            row[key] = items = []
        elif key:
            row[key] = text
        elif text is not None:
            items.append(text)
    return tables
