"""What a file sets: variables with their lines, mistakes of its syntax; and nccl.conf as NCCL parses it."""

from __future__ import annotations

import re
from enum import Enum

from probes.base.evidence import Severity
from probes.base.frozen import frozen
from probes.base.text import printable
from probes.facts.jobs.nccl_conf import parse_nccl_conf
from probes.nccl.variables.variable import VARIABLE_NAME

LIMIT_BYTES = 1 << 20
MAX_ASSIGNMENTS = 512
MAX_ENVIRONMENTS = 32  # different ones in one file; the checks run once for each
VALUE_LIMIT = 256
_OTHER = re.compile(r"\s*(?:export\s+)?((?:UCX|FI|NVSHMEM)_[A-Z0-9_]{1,60})\s*=")
_MAX_LINES = 20_000


class FileKind(Enum):
    """The files that can be judged; the value is the name on the command line."""

    SBATCH = "sbatch"
    SHELL = "shell"
    POD = "pod"
    NCCL_CONF = "nccl-conf"


@frozen
class Assignment:
    """One variable that a file sets."""

    name: str
    value: str | None  # None: known only when the job runs ("$NICS", valueFrom)
    line: int
    is_exported: bool = True  # programs get it


@frozen
class Problem:
    """One mistake, or one remark."""

    line: int  # 0, in JSON null: the whole file
    severity: Severity
    title: str
    detail: str = ""
    fix: str = ""
    variable: str = ""


TOO_MANY = Problem(
    0, Severity.WARNING, f"The file sets too many variables; only the first {MAX_ASSIGNMENTS} are checked"
)


@frozen
class Group:
    """The variables of one environment: some commands of a script, one container, one nccl.conf."""

    name: str  # "container trainer"; "" where a file has no containers
    assignments: tuple[Assignment, ...]  # in the order of the file

    def effective(self, first_wins: bool = False) -> dict[str, Assignment]:
        """Return the assignment of each name that counts: the last one, in nccl.conf the first."""
        found: dict[str, Assignment] = {}
        for assignment in self.assignments:
            if not (first_wins and assignment.name in found):
                found[assignment.name] = assignment
        return found


@frozen
class GpuContainer:
    """A container of a pod that requests GPUs, and what it has for RDMA."""

    name: str
    line: int
    gpus: int | None  # None: the number is a template
    has_rdma: bool  # a device of a plugin or of a claim, all devices, or a mount of /dev/infiniband
    locks_memory: bool  # privileged, or with the capability IPC_LOCK
    has_own_network: bool  # neither the host's network nor one that is attached to the pod


@frozen
class ParsedFile:
    """A file as its reader sees it."""

    kind: FileKind
    groups: tuple[Group, ...]
    problems: tuple[Problem, ...] = ()
    containers: tuple[GpuContainer, ...] = ()


def parse_conf(text: str) -> ParsedFile:
    """Parse the file; a line counts only if NCCL itself would use it."""
    assignments: list[Assignment] = []
    problems: list[Problem] = []
    first: dict[str, int] = {}
    for number, line in enumerate(text.split("\n")[:_MAX_LINES], 1):
        if len(assignments) + len(problems) >= MAX_ASSIGNMENTS:
            break
        parsed = parse_nccl_conf(line)
        for name, value in parsed.values.items():
            assignments.append(Assignment(name, printable(value, VALUE_LIMIT), number))
            if name in first:
                title = f"{name} is already set on line {first[name]}"
                detail, fix = "NCCL uses the first line.", "Remove one of the lines"
                problems.append(Problem(number, Severity.WARNING, title, detail, fix, name))
            first.setdefault(name, number)
            problems.extend(_of_value(name, value, number))
        for ignored in parsed.ignored:
            found = VARIABLE_NAME.search(ignored)
            title, fix = "NCCL ignores this line", "Write NAME=value, without spaces and without “export”"
            detail = "Spaces and the word “export” become part of the variable's name."
            name = found[0] if found else ""
            problems.append(Problem(number, Severity.CRITICAL, title, detail, fix, name))
        if other := _OTHER.match(line):
            title, fix = f"{other[1]} has no effect in nccl.conf", "Set it in the job's environment"
            detail = "NCCL reads only its own variables from this file."
            problems.append(Problem(number, Severity.WARNING, title, detail, fix, other[1]))
    return ParsedFile(FileKind.NCCL_CONF, (Group("", tuple(assignments)),), tuple(problems))


def _of_value(name: str, value: str, number: int) -> list[Problem]:
    """Find quotation marks, blanks and comments that become part of a value."""
    what = ""
    if value[:1] in "\"'" and value:
        what = "The quotation marks are part of the value"
    elif value != value.strip():
        what = "Spaces before or after the value are part of it"
    elif " #" in value:
        what = "The comment is part of the value"
    if not what:
        return []
    fix = "Write NAME=value; put comments on lines of their own"
    detail = "NCCL takes everything after the first “=” as the value."
    return [Problem(number, Severity.CRITICAL, what, detail, fix, name)]
