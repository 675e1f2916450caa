"""`gdrtop schema`: the JSON Schemas (draft 2020-12) of what `--json` prints."""

from __future__ import annotations

from importlib import resources
from typing import TextIO

KINDS = ("check", "topo", "modules", "do", "bench")
"""The commands whose --json has a schema, tui/schemas/KIND.json."""


def schema_text(kind: str) -> str:
    """A schema as JSON text."""
    return resources.files("tui.commands").joinpath(f"schemas/{kind}.json").read_text(encoding="utf-8")


def command(kind: str | None, out: TextIO) -> int:
    """`gdrtop schema`: print one schema, or without a kind list them; gives the exit status."""
    out.write("".join(f"{one}\n" for one in KINDS) if kind is None else schema_text(kind))
    return 0
