"""Tables of facts in TOML files beside the code that uses them."""

from __future__ import annotations

import sys
from pkgutil import get_data
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_toml(package: str, name: str) -> dict[str, Any]:
    """Read a TOML file of gdrtop's own, by package and path."""
    content = get_data(package, name)  # importlib.resources imports much more
    assert content is not None
    return tomllib.loads(content.decode())
