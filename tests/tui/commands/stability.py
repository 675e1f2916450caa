"""What a release promises to scripts (gdrtop help json): names, ids, exit statuses and JSON documents.

`python -m tests.tui.commands.stability` writes it down for RELEASE, once for each release.
"""

import argparse
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from probes.checks.registry import CHECKS
from probes.plans.catalogue import ACTIONS
from probes.setup.manifests.catalogue import MANIFESTS
from probes.setup.steps.step_list import STEPS
from tests.tui.commands.published_schemas import FOLDER as SCHEMAS
from tui.cli import command_parser
from tui.files.version import RELEASE

FOLDER = Path(__file__).parent / "released"
_STATUS = re.compile(r"\b(\d{1,3})(?=:|  )")


def promises() -> dict[str, set[str]]:
    """Return the names of each kind: "options of check", "checks", "exit statuses of do" and others."""
    promised = dict(_command_line(command_parser(), ""))
    promised["checks"] = {check.id for check in CHECKS}
    promised["actions"] = {action.id for action in ACTIONS}
    promised["steps of setup"] = {step.id for step in STEPS}
    promised["manifests"] = set(MANIFESTS)
    promised["commands"] = {
        kind.removeprefix("options of ") for kind in promised if kind.startswith("options")
    }
    return promised


def _command_line(parser: argparse.ArgumentParser, command: str) -> Iterator[tuple[str, set[str]]]:
    if fill := getattr(parser, "fill", None):
        parser.fill = None  # type: ignore[attr-defined]
        fill(parser)
    name = command or "gdrtop"
    commands: dict[str, argparse.ArgumentParser] = {}
    options: set[str] = set()
    for action in parser._actions:
        options |= set(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            commands = action.choices
        elif action.choices:
            yield (
                f"values of {name} {(action.option_strings or [action.dest])[-1]}",
                set(map(str, action.choices)),
            )
    yield f"options of {name}", options
    statuses = re.search("(?s)exit status.*", parser.format_help(), re.IGNORECASE)
    if statuses:
        yield f"exit statuses of {name}", set(_STATUS.findall(statuses[0]))
    for word, inner in commands.items():
        yield from _command_line(inner, f"{command} {word}".strip())


def written(promised: dict[str, set[str]]) -> str:
    """Return a table with a line for each kind."""
    return "".join(
        f"{kind}: {', '.join(sorted(names))}\n" for kind, names in sorted(promised.items()) if names
    )


def read(path: Path) -> dict[str, set[str]]:
    """Return the names of a table, by kind."""
    lines = (line.partition(": ") for line in path.read_text(encoding="utf-8").splitlines())
    return {kind: set(names.split(", ")) for kind, _, names in lines}


def main() -> int:
    table = FOLDER / f"{RELEASE}.txt"
    if table.exists():
        print(f"{table} is there; a release keeps what it has promised", file=sys.stderr)
        return 1
    table.write_text(written(promises()), encoding="utf-8")
    shutil.copytree(SCHEMAS, FOLDER / RELEASE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
