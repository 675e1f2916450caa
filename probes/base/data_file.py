"""The data files of gdrtop's own packages: tables and texts that lie beside the code."""

from __future__ import annotations

import sys
from pkgutil import get_data  # importlib.resources imports much more
from typing import Any


def read_data(package: str, name: str) -> str:
    """Return a file of a package."""
    content = get_data(package, name)
    assert content is not None
    return content.decode()


def read_table(package: str, name: str) -> dict[str, Any]:
    """Return a TOML file of a package."""
    if sys.version_info >= (3, 11):  # costs a command that needs no table some milliseconds
        import tomllib
    else:
        import tomli as tomllib

    return tomllib.loads(read_data(package, name))
