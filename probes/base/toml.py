"""TOML: the parser of each Python version, and the files beside the code."""

from __future__ import annotations

import sys
from pkgutil import get_data
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["read_toml", "tomllib"]


def read_toml(package: str, name: str) -> dict[str, Any]:
    """Return the tables of a file in a package."""
    content = get_data(package, name)  # importlib.resources imports much more
    assert content is not None
    return tomllib.loads(content.decode())
