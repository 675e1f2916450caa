"""Write a plan as a shell script, to be read, changed, or run elsewhere.

The script runs every command in order, also those that gdrtop only shows. It stops at the first failure and
where a person must act. It saves how far it came, so started again it continues there.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Sequence

from probes.base.data_files import read_text
from probes.base.plan import FileChange, Plan, Step
from probes.base.text import printable
from probes.plans.common import is_reboot

_END_OF_TEXT = "END_OF_FILE"
_REBOOTED = (
    "This node was rebooted since this script began. Have gdrtop write a new one, which has what is left,"
    " or give this one the number of a step."
)
_ROOT = 'if [ "$(id -u)" -ne 0 ]; then echo "Run this script as root." >&2; exit 3; fi'


def script_of(plan: Plan, source: str) -> str:
    """Return a script for sh(1) that stops at the first failure and at manual steps; undos are comments."""
    return script_of_all(plan.title, (plan,), source)


def script_of_all(title: str, plans: Sequence[Plan], source: str) -> str:
    """Return one script of several plans in order, each below its own title; `source`: derivation(node)."""
    needs_root = any(plan.needs_root for plan in plans)
    lines = [
        "#!/bin/sh",
        f"# {printable(title)}",
        f"# {printable(source)}.",
        f"# Read it before you run it{', as root' if needs_root else ''}.",
        "# It stops at the first failure, and with status 2 where you must act. Start it again to continue.",
    ]
    disturbs = dict.fromkeys(plan.disturbs for plan in plans if plan.disturbs)
    if disturbs:
        lines.append(f"# affects: {printable('; '.join(disturbs))}")
    lines += [f"# {printable(note)}" for note in dict.fromkeys(plan.note for plan in plans) if note]
    body = _body(plans)
    name = hashlib.sha256("\n".join([source, *body]).encode()).hexdigest()[:12]
    root = _ROOT if needs_root else ""
    # $1: the step to begin with. After a reboot, what was set by earlier steps may be gone.
    head = read_text(__name__, "script-head.sh").format(root=root, name=name, rebooted=shlex.quote(_REBOOTED))
    return "\n".join([*lines, *(line for line in head.split("\n") if line), "", *body, ""])


def _is_manual(step: Step) -> bool:
    """Return whether a person must act: there is no command, or the command ends everything that runs."""
    is_advice = step.why.startswith("If ")  # only for the case that another step fails
    return (step.is_instruction and not is_advice) or is_reboot(step)


def _body(plans: Sequence[Plan]) -> list[str]:
    lines: list[str] = []
    by_hand: list[str] = []  # the manual steps that were not written yet
    first = number = 0
    for plan in plans:
        title = [f"## {printable(plan.title)}"] if len(plans) > 1 else []
        for step in plan.steps:
            number += 1
            if _is_manual(step):
                first = first if by_hand else number
                by_hand += [*title, *_texts(step, number), *(f"   {line}" for line in _commands(step))]
            else:
                lines += _stop(by_hand, first, number)
                by_hand = []
                lines += ["", *title, *_run(step, number)]
            title = []
    lines += _stop(by_hand, first, 0)
    return [
        *lines,
        "",
        'rm -f "$progress"',
        "echo 'Every step of this script is done. Check the node: gdrtop check'",
    ]


def _texts(step: Step, number: int) -> Iterable[str]:
    why, *to_copy = step.why.split("\n")
    yield f"{number}. {printable(why)}"
    yield from (f"   {printable(text)}" for text in to_copy)


def _run(step: Step, number: int) -> list[str]:
    """Return the commands of a step, and what notes that it is done."""
    words = " ".join(text.strip() for text in _texts(step, number))
    undo = [f"# undo: {shlex.join(map(printable, step.undo))}"] if step.undo else []
    return [
        f'if [ "$step" -le {number} ]; then',
        f"echo {shlex.quote(words)}",
        *_commands(step),
        *undo,
        f"reached {number + 1}",
        "fi",
    ]


def _stop(by_hand: Sequence[str], first: int, following: int) -> list[str]:
    """Return the commands that print manual steps and end the script; `following`: 0 is none."""
    if not by_hand:
        return []
    then = f"Then start this script again and answer y, or give it the argument {following}."
    texts = ["These steps are yours:", *by_hand, then if following else "Then check the node: gdrtop check"]
    end = _end_of(texts)
    return [
        "",
        f'if [ "$step" -le {first} ]; then',
        f"by_hand {first} {following} <<'{end}'",
        *texts,
        end,
        "fi",
    ]


def _end_of(texts: Sequence[str]) -> str:
    """Return the line that ends a here-document of these lines."""
    end = _END_OF_TEXT
    while end in texts:
        end += "_"
    return end


def _commands(step: Step) -> list[str]:
    if step.is_instruction:
        return []
    if step.file is not None:
        return _file_commands(step.file)
    return [shlex.join(map(printable, step.argv))]


def _file_commands(change: FileChange) -> list[str]:
    """Return the commands that back up the existing file and write the new one, as gdrtop does."""
    path = shlex.quote(printable(change.path))
    # A second run keeps the backup of the first.
    backup = f"if [ -e {path} ] && [ ! -e {path}.before ]; then cp -p {path} {path}.before; fi"
    if change.text is None:
        return [backup, f"rm -f {path}"]
    text = change.text if change.text.endswith("\n") else change.text + "\n"
    body = [printable(line) for line in text.splitlines()]
    end = _end_of(body)
    folder = shlex.quote(printable(change.path.rpartition("/")[0] or "/"))
    return [backup, f"mkdir -p {folder}", f"cat > {path} <<'{end}'", *body, end]
