"""What could be done about something, as plain data: shown, copied, and run by nobody here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FileChange:
    """A file's whole new text, or its removal; an earlier file is kept beside it."""

    path: str
    text: str | None  # None: the file is removed, or comes back from where it was kept
    kept: str = ""  # the file that is put in its place


@dataclass(frozen=True)
class Step:
    """One command, one change of a file, or where there is neither one thing that only a person can do."""

    why: str  # one line: what it does and why at this place
    argv: tuple[str, ...] = ()
    needs_root: bool = True
    undo: tuple[str, ...] = ()  # the command that takes it back; empty: there is none
    file: FileChange | None = None
    group: str = ""  # "switch ports": steps of one group that follow each other differ in the device alone

    @property
    def is_instruction(self) -> bool:
        """Whether there is nothing to run."""
        return not self.argv and self.file is None


@dataclass(frozen=True)
class Plan:
    """Steps in order, and what they mean for the node."""

    title: str
    steps: tuple[Step, ...]
    reversible: bool = True
    needs_reboot: bool = False
    disturbs: str = ""  # what running jobs may feel; empty: nothing
    note: str = ""  # what to know before or after

    @property
    def needs_root(self) -> bool:
        """Whether any step does."""
        return any(step.needs_root for step in self.steps)


def instruction(text: str, needs_root: bool = True) -> Step:
    """A step that is no command: a setting of the firmware, a package to choose."""
    return Step(text, needs_root=needs_root)


def sentences(*parts: str) -> str:
    """Join what there is as "One thing. Another thing."."""
    return " ".join(f"{part[0].upper()}{part[1:]}." for part in parts if part)


def plan_or_none(answer: Plan | str) -> Plan | None:
    """The plan; None where the answer says why there is none."""
    return answer if isinstance(answer, Plan) else None
