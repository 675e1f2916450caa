"""Plans as data: commands and file changes that fix something. Nothing here runs them."""

from __future__ import annotations

import shlex

from probes.base.frozen import frozen
from probes.base.text import capitalized


@frozen
class FileChange:
    """A file's whole new text, or its removal."""

    path: str
    text: str | None  # None: the file is removed, or replaced by `kept`
    kept: str = ""  # the file that replaces this one


@frozen
class Step:
    """One command, one file change, or, if there is neither, one manual step."""

    why: str  # one line: what it does, and why here; a manual step's second line is text to copy
    argv: tuple[str, ...] = ()
    needs_root: bool = True
    undo: tuple[str, ...] = ()  # the command that undoes it; empty: none
    file: FileChange | None = None
    group: str = ""  # "switch ports": consecutive steps of a group differ only in the device

    @property
    def is_instruction(self) -> bool:
        """Return whether the step is manual."""
        return not self.argv and self.file is None

    @property
    def command(self) -> str:
        """Return the command as typed, or what happens to the file; "" for a manual step."""
        if self.file is None:
            return shlex.join(self.argv)
        if self.file.text is not None:
            return f"write {self.file.path}"
        kept = self.file.kept
        return f"restore {self.file.path} from {kept}" if kept else f"remove {self.file.path}"

    @property
    def is_cordon(self) -> bool:
        """Return whether it lets Kubernetes start pods on a node, or no longer."""
        return self.argv[:1] in (("kubectl",), ("oc",)) and bool({"cordon", "uncordon"} & {*self.argv[1:3]})

    @property
    def to_copy(self) -> str:
        """Return the text that a manual step asks the user to copy; "" if there is none."""
        return self.why.partition("\n")[2] if self.is_instruction else ""


@frozen
class Plan:
    """Steps in order, and their effects on the node."""

    title: str
    steps: tuple[Step, ...]
    needs_reboot: bool = False
    disturbs: str = ""  # known effects on running jobs; empty claims nothing
    note: str = ""  # what to know before or after
    is_simulated: bool = False  # on a simulated node, with the commands that a person runs on a real one

    @property
    def needs_root(self) -> bool:
        """Return whether any step needs root."""
        return any(step.needs_root for step in self.steps)

    @property
    def is_for_scheduler(self) -> bool:
        """Return whether it changes only what the scheduler knows of the node, and nothing on the node."""
        return all(step.argv[:1] == ("scontrol",) or step.is_cordon for step in self.steps)


class NothingToDo(str):
    """Why an action has no plan: what it would do is done already. Any other reason is a refusal."""

    __slots__ = ()


def instruction(text: str, needs_root: bool = True, to_copy: str = "") -> Step:
    """Return a manual step: a firmware setting, a package to choose; `to_copy`: the text to put in a file."""
    return Step(f"{text}\n{to_copy}" if to_copy else text, needs_root=needs_root)


def make_plan(
    title: str,
    *steps: Step | str,
    needs_root: bool = True,
    needs_reboot: bool = False,
    disturbs: str = "",
    note: str = "",
) -> Plan:
    """Return a plan of these steps; a text is a manual step, and `needs_root` is about the texts only."""
    made = tuple(instruction(step, needs_root) if isinstance(step, str) else step for step in steps)
    return Plan(title, made, needs_reboot, disturbs, note)


def user_plan(title: str, *steps: Step | str, disturbs: str = "", note: str = "") -> Plan:
    """Return a plan of these steps; a text is a manual step that needs no root."""
    return make_plan(title, *steps, needs_root=False, disturbs=disturbs, note=note)


def sentences(*parts: str) -> str:
    """Join the parts that are not empty as "One thing. Another thing."."""
    return " ".join(f"{capitalized(part)}." for part in parts if part)


def plan_or_none(answer: Plan | str) -> Plan | None:
    """Return the plan; None if the answer says why there is none."""
    return answer if isinstance(answer, Plan) else None
