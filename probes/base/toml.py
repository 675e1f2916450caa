"""TOML, of the standard library since Python 3.11, and the files of it beside the code."""

from __future__ import annotations

import sys
from pkgutil import get_data
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

parse_toml = tomllib.loads


def read_toml(package: str, name: str) -> dict[str, Any]:
    """Return the tables of a file in a package of gdrtop."""
    content = get_data(package, name)  # importlib.resources imports much more
    assert content is not None
    return parse_toml(content.decode())
