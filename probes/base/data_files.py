"""Data files of gdrtop, beside the code that reads them."""

from __future__ import annotations

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
    return parse_toml(read_text(package, name))
