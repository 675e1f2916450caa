"""Parse shell scripts and sbatch scripts for variables, without running anything.

It knows `export`, `declare -x`, `set -a`, `unset`, `setenv`, variables before a command, and the options
with which launchers pass variables: mpirun -x, -genv, --env, docker -e, srun --export, and ENV of a
Dockerfile. It reads quoted text as commands only where a shell does: sh -c, ssh, eval. Of ${NAME:-default} it
takes the default; other values with `$` or a backtick are known only when the script runs.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from probes.nccl.variables.catalogue import VARIABLE_NAME, is_known
from probes.setup.env.assignments import (
    MAX_ASSIGNMENTS,
    MAX_ENVIRONMENTS,
    Assignment,
    FileKind,
    Group,
    ParsedFile,
    Problem,
    problem_at,
    read_value,
    too_many,
)
from probes.setup.env.cluster_objects import objects_of
from probes.setup.env.container import Container
from probes.setup.env.run_commands import STARTS, Run, run_of, values_of
from probes.setup.env.shell_commands import Command, Word, split_commands
from probes.setup.env.yaml_tree import Mapping

Environment = dict[str, Assignment]
_DEEPEST = 3  # bash -c "bash -c '…'"
_MAX_WORDS = 4096  # of one command
_PAIR = re.compile(rf"({VARIABLE_NAME.pattern})=(.*)", re.DOTALL)
_OPTION = re.compile(rf"(?:-x|-e|-E|--env=|-env=)({VARIABLE_NAME.pattern})=(.*)", re.DOTALL)
_LEADING = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,127})\+?=(.*)", re.DOTALL)
_KEYWORDS = frozenset(("then", "do", "else", "elif", "if", "while", "until", "time", "!", "{", "exec"))
_BRANCHES = frozenset(("if", "elif", "else", "case", "while", "until", "for", "&&", "||", ";;"))
_EXPORTS = frozenset(("export", "declare", "typeset", "readonly", "local"))
_PRINTS = frozenset(
    ("echo", "printf", "logger", "cat", "grep", "egrep", "sed", "awk", "test", "[", "[[", "read", "trap")
)
# Commands that end before a job begins; other commands use what is set before them.
_USE_NOTHING = _PRINTS | frozenset(
    (":", "cd", "mkdir", "module", "ml", "source", ".", "sleep", "true", "shift", "ulimit", "shopt", "return")
)
_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "ash", "su", "runuser"))
_REMOTE = frozenset(("ssh", "eval", "pdsh", "clush", "pssh", "parallel"))
_COMMAND_OPTION = re.compile(r"-[A-Za-z]{0,8}c|--command|--wrap")
_PASSES = frozenset(("-x", "-e", "-E", "--env", "-env", "-genvlist"))
_PASSES_PAIR = frozenset(("-genv", "-env"))
_ASSIGNS_DEFAULT = re.compile(rf"\$\{{({VARIABLE_NAME.pattern}):?=")
_IN_EVERY_DUMP, _DUMPED = re.compile(r"(?:PATH|HOME|PWD)="), re.compile(r"[A-Za-z_][^\s=]{0,127}=")
_MOST_TEXTS, _LONGEST_TEXT = 512, 8192
_NONE = re.compile(r"#SBATCH\s.*--export[=\s]\s*(?:NONE|NIL)\b")


def parse_shell(text: str, exports_all: bool = False) -> ParsedFile:
    """Parse a script; one with #SBATCH lines is an sbatch script. `exports_all`: as after set -a."""
    lines = text.split("\n")
    script = Script(exports_all=exports_all or _is_dump(lines))
    for number, line in enumerate(lines, 1):
        if line.startswith("#SBATCH"):
            script.pass_to_all([Word(word, number) for word in line.split()[1:]])
    script.read(text, 1)
    is_sbatch = any(line.startswith("#SBATCH") for line in lines)
    groups = tuple(Group("", tuple(found.values())) for found in script.environments())
    problems = [*script.problems, *script.not_exported(), *(_export_none(lines) if is_sbatch else ())]
    kind = FileKind.SBATCH if is_sbatch else FileKind.SHELL
    objects = objects_of(script.objects)
    return ParsedFile(kind, groups, tuple(problems), tuple(script.containers), objects)


def _is_dump(lines: list[str]) -> bool:
    """Return whether this is what env(1) prints, where every variable is exported."""
    used = [line for line in lines if line.strip()]
    return any(map(_IN_EVERY_DUMP.match, used)) and all(map(_DUMPED.match, used))


def is_read(text: str) -> bool:
    """Return whether a text may set a variable or start a container."""
    return bool(VARIABLE_NAME.search(text) or STARTS.search(text))


def _export_none(lines: list[str]) -> Iterator[Problem]:
    text = "\n".join(line for line in lines if not line.startswith("#"))
    if "SLURM_EXPORT_ENV" in text or "--export=ALL" in text:
        return
    for number, line in enumerate(lines, 1):
        if _NONE.match(line):
            yield problem_at(number, "not-passed-by-srun")


class Script:
    """The variables of a script and the environments in which its commands run."""

    def __init__(self, inherited: Environment | None = None, exports_all: bool = False) -> None:
        """Begin with the variables that a container sets; `exports_all`: as after set -a."""
        self.problems: list[Problem] = []
        self.containers: list[Container] = []
        self.objects: list[Mapping] = []  # values of charts
        self._texts: dict[str, str | None] = {}  # of other variables: all that they may hold; None: too much
        self._in_force: Environment = dict(inherited or {})
        self._used: Environment = {}  # in force when a command last ran
        self._environments: list[Environment] = []
        self._found: list[Assignment] = []
        self._exported: set[str] = set(self._in_force)
        self._exports_all = exports_all
        self._depth = 0

    def environments(self) -> list[Environment]:
        """Return every environment that differs for some command, the last one of the script at the end."""
        found: list[Environment] = []
        for environment in (*self._environments, self._in_force):
            complete = {
                name: replace(assignment, is_exported=assignment.is_exported or name in self._exported)
                for name, assignment in environment.items()
            }
            if complete and complete not in found:
                found.append(complete)
        return found

    def not_exported(self) -> Iterator[Problem]:
        """Yield the variables that no program gets; other names may be the script's own."""
        exported = self._exported | {assignment.name for assignment in self._found if assignment.is_exported}
        for assignment in self._found:
            name = assignment.name
            if name not in exported and is_known(name):
                yield problem_at(assignment.line, "not-exported", name)

    def pass_to_all(self, words: list[Word]) -> None:
        """Read options that set variables for all commands."""
        for assignment in self._passed(words):
            self._in_force[assignment.name] = assignment

    def read(self, text: str, line: int) -> None:
        """Read commands; `line` is the number of the first line."""
        if self._depth >= _DEEPEST or not is_read(text):
            return
        self._depth += 1
        for command in split_commands(text, line):
            self.run(command)
        self._depth -= 1

    def run(self, command: Command) -> None:
        """Read one command."""
        words = command.words[:_MAX_WORDS]
        if command.operator == "=(":  # ARGS=(-x NAME=VALUE), an array of options
            self._hold(command.array, " ".join(word.text for word in words))
            self._record(self._passed(words))
            return
        if command.operator in _BRANCHES or words[0].text in _BRANCHES:
            self._used = dict(self._in_force)  # a branch may be skipped
        while words and words[0].text in _KEYWORDS:
            words = words[1:]
        leading: list[tuple[str, Word, str]] = []
        while words and (match := _LEADING.fullmatch(words[0].text)):
            leading.append((match[1], words[0], match[2]))
            words = words[1:]
        if not words:
            for name, word, value in leading:
                if VARIABLE_NAME.fullmatch(name):
                    self._set(name, value, word.line, self._exports_all)
                    continue
                self._hold(name, value)
                if value.lstrip().startswith("-"):  # FLAGS="-x NAME=VALUE"
                    parts = value.split()[:_MAX_WORDS]
                    self._record(self._passed([Word(part, word.line) for part in parts]))
            return
        first, rest = words[0], words[1:]
        name = posixpath.basename(first.text)
        if VARIABLE_NAME.fullmatch(first.text) and rest and rest[0].text == "=":
            self._blanks(first)
        elif name in _EXPORTS or first.text == "ENV":  # ENV: of a Dockerfile
            self._export("export" if first.text == "ENV" else name, rest)
        elif name == ":":
            for word in rest:
                if match := _ASSIGNS_DEFAULT.match(word.text):
                    self._set(match[1], word.text, word.line, self._exports_all)
        elif name == "unset":
            for word in rest:
                self._replace(word.text, None)
        elif name == "setenv" and len(rest) > 1 and VARIABLE_NAME.fullmatch(rest[0].text):
            self._set(rest[0].text, rest[1].text, rest[0].line, True)
        elif name == "set":
            options = [word.text for word in rest]
            if any(re.fullmatch("-[a-zA-Z]*a[a-zA-Z]*", word) or word == "allexport" for word in options):
                self._exports_all = "+o" not in options
            elif "+a" in options:
                self._exports_all = False
        elif name not in _USE_NOTHING:
            for before, _, value in leading:
                if not VARIABLE_NAME.fullmatch(before):
                    self._hold(before, value)
            set_here = [self._assignment(name, value, word.line, True) for name, word, value in leading]
            self._launch(command, words, [assignment for assignment in set_here if assignment is not None])

    def _launch(self, command: Command, words: list[Word], leading: list[Assignment]) -> None:
        """Read a command that gets the variables in force, those before it and those of its options."""
        passed = [*leading, *self._passed(words)]
        run = run_of(words, self._texts.get)
        if run is not None and len(self.containers) < MAX_ENVIRONMENTS:
            self._start(run, words[0].line, {assignment.name for assignment in passed})
        if (values := values_of(words)) is not None and len(self.objects) < MAX_ENVIRONMENTS:
            self.objects.append(values)
        self._record(passed)
        code = [*_code_in(words)]
        names = {posixpath.basename(word.text) for word in words}
        if command.heredoc is not None and not code and names & {*_SHELLS, *_REMOTE, "sbatch"}:
            code.append(command.heredoc)
        if code:
            outside = dict(self._in_force)
            self._in_force |= {assignment.name: assignment for assignment in leading}
            for word in code:
                self.read(word.text, word.line)
                if self._in_force != outside:
                    self._keep(self._in_force)
            if words[0].text != "eval":
                self._in_force = outside
            self._used = dict(self._in_force)

    def _hold(self, name: str, text: str) -> None:
        """Remember a text that may hold options; a branch may not run, so earlier texts count too."""
        name, old = name.rstrip("+"), self._texts.get(name.rstrip("+"), "")
        if len(self._texts) >= _MOST_TEXTS and name not in self._texts:
            return
        own = re.compile(rf"\$(?:{re.escape(name)}\b|\{{{re.escape(name)}(?:\[[@*]\])?\}})")
        new = own.sub("", text)
        whole = f"{old or ''} {new}".strip()
        is_known = old is not None and len(whole) <= _LONGEST_TEXT
        self._texts[name] = whole if is_known else None

    def _start(self, run: Run, line: int, passed: set[str]) -> None:
        """Keep the container that a command starts, and name variables that it does not get."""
        if run.container is not None:
            self.containers.append(run.container)
        if run.reads_file:
            self.problems.append(problem_at(line, "more-variables", where="--env-file"))
        is_whole = not (run.reads_file or run.is_partial)
        if not is_whole or not run.has_own_environment or run.container is None:
            return
        for name, assignment in self._in_force.items():
            exported = assignment.is_exported or name in self._exported
            if exported and is_known(name) and name not in passed and name not in run.passes:
                shown = problem_at(
                    line,
                    "not-passed-to-container",
                    name,
                    engine=run.engine,
                    line_of=assignment.line,
                    option=run.option,
                )
                self.problems.append(shown)

    def _export(self, command: str, words: list[Word]) -> None:
        exports = command == "export" or any(word.text.startswith("-") and "x" in word.text for word in words)
        for place, word in enumerate(words):
            name, equals, value = word.text.partition("=")
            after = words[place + 1].text if place + 1 < len(words) else ""
            if not VARIABLE_NAME.fullmatch(name):
                if equals and _LEADING.fullmatch(word.text):
                    self._hold(name, value)
                continue
            if equals and not value and after and not after.startswith("-") and "=" not in after:
                self._blanks(word)
            elif equals:
                self._set(name, value, word.line, exports or self._exports_all)
            elif after.startswith("="):
                self._blanks(word)
            elif exports:
                self._exported.add(name)

    def _passed(self, words: list[Word]) -> list[Assignment]:
        """Return the variables that options of a launcher, or `env`, pass to a program."""
        pairs: list[tuple[str, str, int]] = []
        is_env = False
        for place, word in enumerate(words):
            before = words[place - 1].text if place else ""
            pair = _PAIR.fullmatch(word.text)
            if word.text.startswith("--export=") or before == "--export":
                parts = (_PAIR.fullmatch(part) for part in word.text.removeprefix("--export=").split(","))
                pairs.extend((part[1], part[2], word.line) for part in parts if part)
            elif before in _PASSES_PAIR and VARIABLE_NAME.fullmatch(word.text):
                pairs.append((word.text, words[place + 1].text if place + 1 < len(words) else "", word.line))
            elif before in _PASSES and pair:
                pairs.append((pair[1], pair[2], word.line))
            elif before in _PASSES and VARIABLE_NAME.fullmatch(word.text):
                self._exported.add(word.text)
            elif match := _OPTION.fullmatch(word.text):
                pairs.append((match[1], match[2], word.line))
            elif posixpath.basename(word.text) in ("env", "sudo"):
                is_env = True
            elif is_env and pair:
                pairs.append((pair[1], pair[2], word.line))
            elif is_env:
                is_env = word.text.startswith("-") or "=" in word.text or before == "-u"
        found = (self._assignment(name, value, line, True) for name, value, line in pairs)
        return [assignment for assignment in found if assignment is not None]

    def _assignment(self, name: str, value: str, line: int, is_exported: bool) -> Assignment | None:
        if not VARIABLE_NAME.fullmatch(name):
            return None
        if len(self._found) >= MAX_ASSIGNMENTS:
            if (problem := too_many()) not in self.problems:
                self.problems.append(problem)
            return None
        shown, unless = read_value(value, self._given)
        assignment = Assignment(name, shown, line, is_exported, unless)
        self._found.append(assignment)
        return assignment

    def _given(self, name: str) -> str | None:
        """Return what the script itself sets a variable to, as far as that is certain."""
        if (assignment := self._in_force.get(name)) is not None:
            return assignment.value
        text = self._texts.get(name) or ""
        return text if text and not re.search(r"[\s$`]", text) else None

    def _set(self, name: str, value: str, line: int, is_exported: bool) -> None:
        if (assignment := self._assignment(name, value, line, is_exported)) is not None:
            self._replace(name, assignment)

    def _replace(self, name: str, assignment: Assignment | None) -> None:
        """Set or unset a variable; a value that a command used is judged too."""
        old = self._in_force.pop(name, None)
        if old is not None and self._used.get(name) == old:
            self._keep(self._used)
        if assignment is not None:
            self._in_force[name] = assignment

    def _record(self, passed: Iterable[Assignment]) -> None:
        """Remember what is in force for a command."""
        if self._used != self._in_force:
            self._used = dict(self._in_force)
        if only_here := {assignment.name: assignment for assignment in passed}:
            self._keep({**self._in_force, **only_here})

    def _keep(self, environment: Environment) -> None:
        if environment in self._environments or len(self._environments) > MAX_ENVIRONMENTS:
            return
        self._environments.append(dict(environment))
        if len(self._environments) > MAX_ENVIRONMENTS:
            self.problems.append(problem_at(0, "too-many-environments", most=MAX_ENVIRONMENTS))

    def _blanks(self, word: Word) -> None:
        name = word.text.partition("=")[0]
        if len(self.problems) < MAX_ASSIGNMENTS:
            self.problems.append(problem_at(word.line, "spaces-around-equals", name))


def _code_in(words: list[Word]) -> Iterator[Word]:
    """Yield the arguments that a shell runs as commands."""
    names = [posixpath.basename(word.text) for word in words]
    if names[0] == "eval":
        yield Word(" ".join(word.text for word in words[1:]), words[0].line)
        return
    in_shell, is_remote = False, False
    for place, word in enumerate(words):
        is_command = place > 0 and bool(_COMMAND_OPTION.fullmatch(words[place - 1].text))
        if word.text.startswith("--wrap="):
            yield Word(word.text.removeprefix("--wrap="), word.line)
        elif (is_command and (in_shell or words[place - 1].text == "--wrap")) or (
            is_remote and re.search(r"\s", word.text)
        ):
            yield word
        in_shell = in_shell or names[place] in _SHELLS
        is_remote = is_remote or names[place] in _REMOTE
