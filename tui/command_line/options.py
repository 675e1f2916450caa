"""The options of commands as dataclasses, built from what the parser read, field by field.

Apart from arguments.py, because `gdrtop --version` and the dashboard need no command's options.
"""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any, TypeVar

from probes.base.frozen import frozen

_Options = TypeVar("_Options")


@frozen
class OutputOptions:
    """How a command prints; one with more options adds them in a class of its own."""

    json: bool = False
    ascii: bool = False


@frozen
class TableOptions(OutputOptions):
    """How a command prints that has the options of `add_table_options`."""

    rows: bool = False  # only the rows of the table, with all columns


def parsed(kind: type[_Options], options: argparse.Namespace) -> _Options:
    """Return the dataclass of a command's options; each field has the name under which argparse stores it."""
    own: Any = kind
    return kind(**{field.name: getattr(options, field.name) for field in fields(own)})
