"""TOML: the parser that Python has since 3.11, and the tables that stand beside the code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

parse = tomllib.loads


def read_beside(file: str, name: str) -> dict[str, Any]:
    """Return the tables of a file in the folder of a module; `file`: its `__file__`."""
    return parse(Path(file).with_name(name).read_text(encoding="utf-8"))
