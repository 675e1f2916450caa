"""Write a plan as a shell script, to be read, changed, or run elsewhere."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import count

from probes.base.plan import FileChange, Plan, Step
from probes.base.text import printable
from tui.actions.manual_steps import why_manual

_END_OF_TEXT = "END_OF_FILE"


def script_of(plan: Plan, node: str) -> str:
    """Return a script for sh(1) that stops at the first failure; manual steps and undos are comments."""
    return script_of_all(plan.title, (plan,), node)


def script_of_all(title: str, plans: Sequence[Plan], node: str) -> str:
    """Return one script of several plans in order, each below its own title."""
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
    lines += ["set -eu", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", ""]
    numbers = count(1)
    for plan in plans:
        if len(plans) > 1:
            lines += [f"## {printable(plan.title)}", ""]
        for step in plan.steps:
            why, *to_copy = step.why.split("\n")
            lines.append(f"# {next(numbers)}. {printable(why)}")
            lines += [f"#    {printable(text)}" for text in to_copy]
            lines += _commands(step)
            if step.undo:
                lines.append(f"#    undo: {shlex.join(map(printable, step.undo))}")
            lines.append("")
    return "\n".join(lines)


def _commands(step: Step) -> list[str]:
    if step.is_instruction:
        return []
    if step.file is not None:
        return _file_commands(step.file)
    command = shlex.join(map(printable, step.argv))
    why = why_manual(step)
    return [f"# manual: {why}", f"# {command}"] if why else [command]


def _file_commands(change: FileChange) -> list[str]:
    """Return the commands that back up the existing file and write the new one, as gdrtop does."""
    path = shlex.quote(printable(change.path))
    backup = f"if [ -e {path} ]; then cp -p {path} {path}.before; fi"
    if change.text is None:
        return [backup, f"rm -f {path}"]
    text = change.text if change.text.endswith("\n") else change.text + "\n"
    body = [printable(line) for line in text.splitlines()]
    end = _END_OF_TEXT
    while end in body:
        end += "_"
    folder = shlex.quote(printable(change.path.rpartition("/")[0] or "/"))
    return [backup, f"mkdir -p {folder}", f"cat > {path} <<'{end}'", *body, end]
