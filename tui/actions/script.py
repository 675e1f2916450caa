"""Write a plan as a shell script, to be read, changed, or run elsewhere."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from probes.base.plan import FileChange, Plan, Step
from probes.base.text import printable
from tui.actions.manual_steps import why_manual

_END_OF_TEXT = "END_OF_FILE"


def script_of(plan: Plan, node: str) -> str:
    """Return a script for sh(1) that stops at the first failure and at manual steps; undos are comments."""
    return script_of_all(plan.title, (plan,), node)


def script_of_all(title: str, plans: Sequence[Plan], node: str) -> str:
    """Return one script of several plans in order, each below its own title.

    Manual steps are printed, and the script ends there with status 2. Its argument is the step to begin with.
    """
    needs_root = any(plan.needs_root for plan in plans)
    lines = [
        "#!/bin/sh",
        f"# {printable(title)}",
        f"# Written by gdrtop for {printable(node) or 'this node'}. Read it before you run it"
        f"{', as root' if needs_root else ''}",
    ]
    disturbs = dict.fromkeys(plan.disturbs for plan in plans if plan.disturbs)
    if disturbs:
        lines.append(f"# affects: {printable('; '.join(disturbs))}")
    lines += [f"# {printable(plan.note)}" for plan in plans if plan.note]
    parts = _parts(plans)
    if any(part.manual for part in parts):
        lines.append("# Manual steps are printed, and the script stops there with exit status 2")
    lines += ["set -eu", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", ""]
    for part, following in zip_longest(parts, parts[1:]):
        if following is None:
            lines += [*part.commands, *_stop(part, 0)]
            continue
        lines.append(f'if [ "${{1:-1}}" -lt {following.first} ]; then')
        lines += ["", *part.commands, *_stop(part, following.first), "fi", ""]
    return "\n".join(lines)


@dataclass
class _Part:
    """Commands up to the next manual steps, and these."""

    first: int  # the number of its first step
    commands: list[str] = field(default_factory=list)
    manual: list[str] = field(default_factory=list)


def _parts(plans: Sequence[Plan]) -> list[_Part]:
    """Divide the steps, each part to be run when the manual steps before it are done."""
    parts = [_Part(1)]
    number = 0
    for plan in plans:
        title = [f"## {printable(plan.title)}", ""] if len(plans) > 1 else []
        for step in plan.steps:
            number += 1
            why, *to_copy = step.why.split("\n")
            texts = [f"{number}. {printable(why)}", *(f"   {printable(text)}" for text in to_copy)]
            is_manual = bool(why_manual(step))
            if parts[-1].manual and not is_manual:
                parts.append(_Part(number))
            part, commands = parts[-1], _commands(step)
            undo = [f"   undo: {shlex.join(map(printable, step.undo))}"] if step.undo else []
            if is_manual:
                part.manual += [*title, *texts, *(f"   {command}" for command in commands), *undo]
            else:
                part.commands += [*title, *(f"# {text}" for text in texts), *commands]
                part.commands += [*(f"# {text}" for text in undo), ""]
            title = []
    return parts


def _stop(part: _Part, next_step: int) -> list[str]:
    """Return the commands that print manual steps and end the script."""
    if not part.manual:
        return []
    then = [f"Then run this script again with the argument {next_step}."] if next_step else []
    texts = ["Manual steps:", *part.manual, *then]
    end = _end_of(texts)
    return [f"cat >&2 <<'{end}'", *texts, end, "exit 2", ""]


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
