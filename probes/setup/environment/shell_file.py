"""Parse shell scripts and sbatch scripts for variables, without running anything.

It knows `export`, `declare -x`, `set -a`, `unset`, `setenv`, variables before a command, and the options
with which launchers pass variables: mpirun -x, -genv, --env, docker -e, srun --export. Values with `$` or a
backtick are known only when the script runs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from probes.base.text import printable
from probes.nccl.variables.variable import VARIABLE_NAME
from probes.queries.finding import Severity
from probes.setup.environment.assignments import (
    MAX_ASSIGNMENTS,
    VALUE_LIMIT,
    Assignment,
    FileKind,
    Group,
    ParsedFile,
    Problem,
)

_MAX_LINES = 20_000
_MAX_LINE = 16_384
_DEEPEST = 3  # bash -c "bash -c '…'"
_ASSIGNED = re.compile(rf"(?:--?[A-Za-z][A-Za-z-]{{0,30}}=?)?({VARIABLE_NAME.pattern})=(.*)", re.DOTALL)
_LEADING = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,127})\+?=(.*)", re.DOTALL)
_BROKEN = re.compile(rf"(?<![A-Za-z0-9_])({VARIABLE_NAME.pattern})=(\"[^\"]*|'[^']*|[^\s;&|]*)")
_OPERATOR = re.compile(r"[;&|()<>]+")
_KEYWORDS = frozenset(("then", "do", "else", "elif", "if", "while", "until", "time", "!", "{", "exec"))
_EXPORTS = frozenset(("export", "declare", "typeset", "readonly", "local"))
_PASSES_NAME = frozenset(("-x", "-e", "--env", "-genvlist"))
_PASSES_PAIR = frozenset(("-genv", "-env"))
_NONE = re.compile(r"#SBATCH\s.*--export[=\s]\s*(?:NONE|NIL)\b")


def parse_shell(text: str) -> ParsedFile:
    """Parse a script; one with #SBATCH lines is an sbatch script."""
    lines = text.split("\n")[:_MAX_LINES]
    script = _Script()
    for number, line in _logical_lines(lines):
        if line.lstrip().startswith("#SBATCH"):
            script.read_words(line.split()[1:], number)
        elif not line.lstrip().startswith("#"):
            script.read_line(line, number)
    is_sbatch = any(line.startswith("#SBATCH") for line in lines)
    problems = [*script.problems, *script.not_exported(), *(_export_none(lines) if is_sbatch else ())]
    kind = FileKind.SBATCH if is_sbatch else FileKind.SHELL
    return ParsedFile(kind, (Group("", script.assignments()),), tuple(problems))


def assignments_in(text: str, line: int) -> tuple[Assignment, ...]:
    """Return what commands in a YAML file set for their programs; those of a block begin below `line`."""
    script = _Script()
    lines = text.split("\n")[:_MAX_LINES]
    for number, part in _logical_lines(lines):
        script.read_line(part, line + number if len(lines) > 1 else line)
    return tuple(assignment for assignment in script.assignments() if assignment.is_exported)


def _logical_lines(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Join lines that end with a backslash; yield the number of the first one."""
    start, joined = 0, ""
    for number, line in enumerate(lines, 1):
        start = start or number
        joined = (joined + line)[:_MAX_LINE]
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            joined = joined[:-1] + " "
            continue
        yield start, joined
        start, joined = 0, ""
    if joined:
        yield start, joined


def _export_none(lines: list[str]) -> Iterator[Problem]:
    text = "\n".join(line for line in lines if not line.startswith("#"))
    if "SLURM_EXPORT_ENV" in text or "--export=ALL" in text:
        return
    for number, line in enumerate(lines, 1):
        if _NONE.match(line):
            yield Problem(
                number,
                Severity.WARNING,
                "srun passes no variables of this script to its tasks",
                "With --export=NONE, sbatch sets SLURM_EXPORT_ENV, which srun obeys too.",
                "Add “unset SLURM_EXPORT_ENV” before srun, or use srun --export=ALL",
            )


def _is_dynamic(value: str) -> bool:
    return "$" in value or "`" in value


class _Script:
    """The variables of a script, line by line."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._found: list[Assignment] = []
        self._exported: set[str] = set()
        self._all = False  # set -a
        self._depth = 0

    def assignments(self) -> tuple[Assignment, ...]:
        """Return what was set, with what was exported by name on another line."""
        return tuple(
            Assignment(one.name, one.value, one.line, one.is_exported or one.name in self._exported)
            for one in self._found
        )

    def not_exported(self) -> Iterator[Problem]:
        """Yield the variables that no program gets."""
        exported = {one.name for one in self.assignments() if one.is_exported}
        for one in self._found:
            if one.name not in exported:
                yield Problem(
                    one.line,
                    Severity.WARNING,
                    f"{one.name} is set but not exported",
                    "Programs that the script starts do not get it.",
                    f"Write “export {one.name}=…”",
                    one.name,
                )

    def read_line(self, line: str, number: int) -> None:
        """Read the commands of one line."""
        if not VARIABLE_NAME.search(line) and "set " not in line:
            return
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()<>")
        lexer.whitespace_split = True
        lexer.commenters = ""
        command: list[str] = []
        try:
            for word in lexer:
                if word.startswith("#"):
                    break
                if _OPERATOR.fullmatch(word):
                    self.read_words(command, number)
                    command = []
                else:
                    command.append(word)
        except ValueError:  # a quotation that spans lines
            for match in _BROKEN.finditer(line):
                self._add(match[1], match[2].strip("\"'"), number, True)
            return
        self.read_words(command, number)

    def read_words(self, words: list[str], number: int) -> None:
        """Read one command."""
        while words and words[0] in _KEYWORDS:
            words = words[1:]
        leading: list[tuple[str, str]] = []
        while words and (match := _LEADING.fullmatch(words[0])):
            leading.append((match[1], match[2]))
            words = words[1:]
        for name, value in leading:
            if VARIABLE_NAME.fullmatch(name):
                self._add(name, value, number, bool(words) or self._all)
        if not words:
            return
        first, rest = words[0], words[1:]
        if VARIABLE_NAME.fullmatch(first) and rest[:1] == ["="]:
            self._blanks(first, number)
        elif first in _EXPORTS:
            self._export(first, rest, number)
        elif first == "unset":
            self._found = [one for one in self._found if one.name not in rest]
        elif first == "setenv" and len(rest) > 1 and VARIABLE_NAME.fullmatch(rest[0]):
            self._add(rest[0], rest[1], number, True)
        elif first == "set":
            self._all = ("-a" in rest or "allexport" in rest) or (self._all and "+a" not in rest)
        else:
            self._arguments(rest if first != "--export" else words, number)

    def _export(self, command: str, words: list[str], number: int) -> None:
        exports = command == "export" or any(word.startswith("-") and "x" in word for word in words)
        for place, word in enumerate(words):
            name, equals, value = word.partition("=")
            if not VARIABLE_NAME.fullmatch(name):
                continue
            if equals and not value and place + 1 < len(words) and not words[place + 1].startswith("-"):
                self._blanks(name, number)
            elif equals:
                self._add(name, value, number, exports or self._all)
            elif words[place + 1 : place + 2] and words[place + 1].startswith("="):
                self._blanks(name, number)
            elif exports:
                self._exported.add(name)

    def _arguments(self, words: list[str], number: int) -> None:
        """Read the arguments of a launcher."""
        for place, word in enumerate(words):
            before = words[place - 1] if place else ""
            if word.startswith("--export=") or before == "--export":
                for part in word.removeprefix("--export=").split(","):
                    self._argument(part, number)
            elif before in _PASSES_PAIR and VARIABLE_NAME.fullmatch(word):
                self._add(word, words[place + 1] if place + 1 < len(words) else "", number, True)
            elif before in _PASSES_NAME and VARIABLE_NAME.fullmatch(word):
                self._exported.add(word)
            elif not self._argument(word, number) and " " in word and VARIABLE_NAME.search(word):
                self._inner(word, number)

    def _argument(self, word: str, number: int) -> bool:
        match = _ASSIGNED.fullmatch(word)
        if match and " " not in match[2]:
            self._add(match[1], match[2], number, True)
        return bool(match) and " " not in word

    def _inner(self, text: str, number: int) -> None:
        """Read a command line within a word: bash -c "…"."""
        if self._depth < _DEEPEST:
            self._depth += 1
            self.read_line(text, number)
            self._depth -= 1

    def _add(self, name: str, value: str, number: int, is_exported: bool) -> None:
        if len(self._found) < MAX_ASSIGNMENTS:
            shown = None if _is_dynamic(value) else printable(value, VALUE_LIMIT)
            self._found.append(Assignment(name, shown, number, is_exported))

    def _blanks(self, name: str, number: int) -> None:
        if len(self.problems) < MAX_ASSIGNMENTS:
            self.problems.append(
                Problem(
                    number,
                    Severity.CRITICAL,
                    f"Spaces around “=”: the line does not set {name}",
                    "",
                    f"Write “export {name}=VALUE”",
                    name,
                )
            )
