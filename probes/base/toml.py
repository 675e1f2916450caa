"""TOML: the parser that Python has since 3.11, and the files that stand beside the code."""

from __future__ import annotations

import sys
from pkgutil import get_data
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

parse = tomllib.loads


def text_beside(module: str, name: str) -> str:
    """Return a file in the folder of a module; `module`: its `__name__`."""
    content = get_data(module, name)
    assert content is not None, name
    return content.decode()


def read_beside(module: str, name: str) -> dict[str, Any]:
    """Return the tables of a file in the folder of a module; `module`: its `__name__`."""
    return parse(text_beside(module, name))
