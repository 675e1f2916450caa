"""What a file sets: variables with their lines, mistakes of its syntax; and nccl.conf as NCCL parses it."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

from probes.base.data_files import read_toml_once
from probes.base.evidence import Severity
from probes.base.frozen import frozen
from probes.base.text import printable
from probes.facts.jobs.nccl_conf import parse_nccl_conf
from probes.nccl.variables.catalogue import VARIABLE_NAME
from probes.setup.env.container import Container
from probes.setup.env.yaml_tree import Mapping

LIMIT_BYTES = 1 << 20
MAX_ASSIGNMENTS = 512
MAX_ENVIRONMENTS = 32  # different ones in one file; the checks run once for each
VALUE_LIMIT = 256
_OTHER = re.compile(r"\s*(?:export\s+)?((?:UCX|FI|NVSHMEM)_[A-Z0-9_]{1,60})\s*=")
_MAX_LINES = 20_000
_DEFAULT = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]{0,127}|[0-9@*])(:?[-=])([^${}`]*)\}")
_MOST_DEFAULTS = 8  # one inside the other


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
    unless_set: str = ""  # the variable of the caller that replaces this default: ${NAME:-default}


@frozen
class Problem:
    """One mistake, or one remark."""

    line: int  # 0, in JSON null: the whole file
    severity: Severity
    title: str
    detail: str = ""
    fix: str = ""
    variable: str = ""


def problem_at(
    line: int, id_: str, variable: str = "", severity: Severity | None = None, **words: object
) -> Problem:
    """Return the problem of problems.toml with this id; `words`: what its texts name, as it may be shown."""
    row = read_toml_once(__package__, "problems.toml")[id_]
    title, detail, fix = (
        row.get(part, "").format(variable=variable, **words) for part in ("title", "detail", "fix")
    )
    return Problem(line, severity or Severity(row["severity"]), title, detail, fix, variable)


def read_value(text: str, given: Callable[[str], str | None] | None = None) -> tuple[str | None, str]:
    """Return the value of a text with `$`, and the variables that replace its defaults.

    `given`: what the file sets a variable to, as far as it is known. The value is None where only the job
    knows it.
    """
    names: list[str] = []

    def default(match: re.Match[str]) -> str:
        name, value = match[1], match[3]
        if given and (known := given(name)) is not None:
            return known
        names.append(name if name.isidentifier() else f"${name}")
        return value.strip("\"'")

    for _ in range(_MOST_DEFAULTS if "${" in text else 0):
        text, count = _DEFAULT.subn(default, text)
        if not count:
            break
    if "$" in text or "`" in text or "{{" in text or (names and not text):
        return None, ""
    return printable(text, VALUE_LIMIT), " or ".join(dict.fromkeys(reversed(names[-4:])))


def too_many() -> Problem:
    """Return that a file sets more variables than are checked."""
    return problem_at(0, "too-many-variables", most=MAX_ASSIGNMENTS)


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
class ParsedFile:
    """A file as its reader sees it."""

    kind: FileKind
    groups: tuple[Group, ...]
    problems: tuple[Problem, ...] = ()
    containers: tuple[Container, ...] = ()
    objects: tuple[Mapping, ...] = ()  # of operators
    is_template: bool = False  # parts of its texts may be missing
    is_by_line: bool = False  # no YAML: only lines that set variables were read


def parse_conf(text: str, first_line: int = 1) -> ParsedFile:
    """Parse the file; a line counts only if NCCL itself would use it."""
    assignments: list[Assignment] = []
    problems: list[Problem] = []
    first: dict[str, int] = {}
    for number, line in enumerate(text.split("\n")[:_MAX_LINES], first_line):
        if len(assignments) + len(problems) >= MAX_ASSIGNMENTS:
            break
        parsed = parse_nccl_conf(line)
        for name, value in parsed.values.items():
            assignments.append(Assignment(name, printable(value, VALUE_LIMIT), number))
            if name in first:
                problems.append(problem_at(number, "line-twice", name, first=first[name]))
            first.setdefault(name, number)
            problems.extend(_of_value(name, value, number))
        for ignored in parsed.ignored:
            found = VARIABLE_NAME.search(ignored)
            problems.append(problem_at(number, "line-ignored", found[0] if found else ""))
        if other := _OTHER.match(line):
            problems.append(problem_at(number, "other-library", other[1]))
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
    return [problem_at(number, "part-of-value", name, what=what)] if what else []
