"""`gdrtop completion SHELL`: print what completes commands and options in a shell, from the parser.

shtab writes the script.
"""

from __future__ import annotations

import argparse
from typing import Any, TextIO

import shtab

from probes.checks.registry import CHECKS
from probes.plans.catalogue import ACTIONS
from probes.setup.steps.step_list import STEPS
from tui.command_line.arguments import commands_of
from tui.commands.manifest import KINDS as MANIFESTS
from tui.commands.schema import KINDS
from tui.manual import SUBJECTS

SHELLS = ("bash", "zsh", "fish")
# What is asked at each Tab; the rest stands in the script.
_DYNAMIC = {"demos": "_gdrtop_demos", "hosts": "_gdrtop_hosts"}
_PREAMBLE = {
    "bash": "\n".join(
        f'{function}() {{ compgen -W "$(gdrtop __complete {kind} "$1" 2>/dev/null)" -- "$1"; }}'
        for kind, function in _DYNAMIC.items()
    ),
    "zsh": "\n".join(
        f'{function}() {{ local -a found; found=(${{(@f)"$(gdrtop __complete {kind} "$PREFIX"'
        f' 2>/dev/null)"}}); compadd -a found }}'
        for kind, function in _DYNAMIC.items()
    ),
}
_KIND_OF_OPTION = {"--demo": "demos", "--as": "demos", "--host": "hosts", "--nodes": "hosts"}
_WORDS = {
    ("check", "ids"): tuple(check.id for check in CHECKS),
    ("do", "action"): tuple(action.id for action in ACTIONS),
    ("manifest", "kind"): tuple(MANIFESTS),
    ("setup", "step"): tuple(step.id for step in STEPS),
    ("schema", "kind"): KINDS,
    ("help", "words"): tuple(SUBJECTS),
}
_FILE_METAVARS = ("FILE", "DIR", "PATH")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Print the script of a shell."""
    out.write(script(options.shell, options.parser))
    return 0


def script(shell: str, whole: argparse.ArgumentParser) -> str:
    """Return the script of a shell, "bash", "zsh" or "fish"; `whole`: with every command, and is changed."""
    pending = [("", whole)]
    while pending:
        name, each = pending.pop()
        pending += [(command, parser) for command, (_, parser) in commands_of(each).items()]
        for action in each._actions:
            _describe(name, action)
    text: str = shtab.complete(whole, shell, preamble=_PREAMBLE.get(shell, ""))
    return text.rstrip("\n") + "\n"


def _describe(command: str, action: argparse.Action) -> None:
    """Say what completes an argument, in the attributes that shtab reads."""
    described: Any = action
    metavar = str(action.metavar or "")
    kind = next((_KIND_OF_OPTION[name] for name in action.option_strings if name in _KIND_OF_OPTION), "")
    if kind:
        function = _DYNAMIC[kind]
        fish = f"(gdrtop __complete {kind} (commandline -ct))"
        described.complete = {"bash": function, "zsh": function, "fish": fish}
    elif (command, action.dest) in _WORDS:
        action.choices = _WORDS[command, action.dest]
    elif any(word in metavar for word in _FILE_METAVARS):
        described.complete = shtab.DIRECTORY if metavar == "DIR" else shtab.FILE
