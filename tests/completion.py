"""Write what completes gdrtop in bash, zsh and fish, from the command line's parser (make man)."""

import argparse
from pathlib import Path
from typing import Any

import shtab

from probes.checks.registry import CHECKS
from probes.plans.catalogue import ACTIONS
from probes.setup.steps.step_list import STEPS
from tests.man_page import commands_of
from tui import cli
from tui.commands import completion, manifest
from tui.commands.schema import KINDS
from tui.manual import SUBJECTS

FOLDER = Path(completion.__file__).parent
# What is asked at each Tab; the rest stands in the script.
DYNAMIC = {"demos": "_gdrtop_demos", "hosts": "_gdrtop_hosts"}
PREAMBLE = {
    "bash": "\n".join(
        f'{function}() {{ compgen -W "$(gdrtop __complete {kind} "$1" 2>/dev/null)" -- "$1"; }}'
        for kind, function in DYNAMIC.items()
    ),
    "zsh": "\n".join(
        f'{function}() {{ local -a found; found=(${{(f)"$(gdrtop __complete {kind} "$PREFIX"'
        f' 2>/dev/null)"}}); compadd -a found }}'
        for kind, function in DYNAMIC.items()
    ),
}
KIND_OF_OPTION = {"--demo": "demos", "--as": "demos", "--host": "hosts", "--nodes": "hosts"}
WORDS = {
    ("check", "ids"): tuple(check.id for check in CHECKS),
    ("do", "action"): tuple(action.id for action in ACTIONS),
    ("manifest", "kind"): tuple(manifest.KINDS),
    ("setup", "step"): tuple(step.id for step in STEPS),
    ("schema", "kind"): KINDS,
    ("help", "words"): tuple(SUBJECTS),
}
FILE_METAVARS = ("FILE", "DIR", "PATH")


def parser() -> argparse.ArgumentParser:
    """The whole command line, in which arguments say what completes them."""
    whole = cli._parser()
    pending = [("", whole)]
    while pending:
        name, each = pending.pop()
        pending += [(command, parser) for command, (_, parser) in commands_of(each).items()]
        for action in each._actions:
            _describe(name, action)
    return whole


def _describe(command: str, action: Any) -> None:
    metavar = str(action.metavar or "")
    kind = next((KIND_OF_OPTION[name] for name in action.option_strings if name in KIND_OF_OPTION), "")
    if kind:
        function = DYNAMIC[kind]
        action.complete = {
            "bash": function,
            "zsh": function,
            "fish": f"(gdrtop __complete {kind} (commandline -ct))",
        }
    elif (command, action.dest) in WORDS:
        action.choices = WORDS[command, action.dest]
    elif any(word in metavar for word in FILE_METAVARS):
        action.complete = shtab.DIRECTORY if metavar == "DIR" else shtab.FILE


def script(shell: str) -> str:
    text: str = shtab.complete(parser(), shell, preamble=PREAMBLE)
    return text.rstrip("\n") + "\n"


def main() -> None:
    for shell, name in completion.FILES.items():
        (FOLDER / name).write_text(script(shell), encoding="utf-8")
        print(FOLDER / name)


if __name__ == "__main__":
    main()
