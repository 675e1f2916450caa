"""`gdrtop schema`: the JSON Schemas (draft 2020-12) of what `--json` prints."""

from __future__ import annotations

import argparse
import json
from importlib import resources
from typing import TextIO

from tui.command_line.arguments import UsageError

KINDS = (
    *("check", "forecast", "image", "topo", "modules", "live", "explain", "nccl-log"),
    *("ras", "hang", "watch", "do", "setup", "upgrade", "env", "bench", "prove", "report", "config"),
    "reliability",
    *("bench-bisect", "fleet", "fleet-bench", "fleet-live", "job-counters"),
)
"""What has a schema, tui/commands/schemas/KIND.json: commands with --json; forecast: check --after-reboot;
image: check --as; upgrade: setup --before; fleet: diff and fleet check."""

_PARTS = ("check", "topo", "live", "bench")  # documents inside a report


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "kind", metavar="COMMAND", nargs="?", help=f"{', '.join(KINDS)}; without it, list the schemas"
    )


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Print one schema, or list them all."""
    if options.kind not in (None, *KINDS):
        raise UsageError(f"unknown schema {options.kind!r}; the schemas are {', '.join(KINDS)}")
    out.write("".join(f"{kind}\n" for kind in KINDS) if options.kind is None else schema_text(options.kind))
    return 0


def schema_text(kind: str) -> str:
    """Return a schema as JSON text; that of the report contains those of its parts."""
    text = _file_text(kind)
    if kind != "report":
        return text
    schema = json.loads(text)
    schema["$defs"] |= {part: json.loads(_file_text(part)) for part in _PARTS}
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _file_text(kind: str) -> str:
    return resources.files("tui.commands").joinpath(f"schemas/{kind}.json").read_text(encoding="utf-8")
