"""Parse YAML for the environment of programs: Kubernetes, Compose, Helm values, workflows, cloud-init.

Lists of `name` and `value`, maps whose keys are variables, and lists of NAME=VALUE count under any key.
Commands, blocks of `run` and `script`, and every text of several lines are read like a shell script.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from probes.base.text import printable
from probes.nccl.variables.catalogue import VARIABLE_NAME
from probes.setup.env.assignments import (
    MAX_ASSIGNMENTS,
    Assignment,
    FileKind,
    Group,
    ParsedFile,
    Problem,
    parse_conf,
    problem_at,
    read_value,
)
from probes.setup.env.cluster_objects import objects_of
from probes.setup.env.container import Container
from probes.setup.env.shell_commands import Command, Word
from probes.setup.env.shell_file import Environment, Script, is_read
from probes.setup.env.yaml_containers import classes_of_claims, of_compose, of_pod
from probes.setup.env.yaml_tree import List, Mapping, Scalar, Value, YamlError, mappings_of, read_yaml

_MAX_GROUPS = 64
_ARGUMENTS = ("command", "args", "entrypoint")
_SCRIPTS = frozenset(
    ("run", "script", "before_script", "cmd", "shell", "inline", "runcmd", "bootcmd", "commands")
)
_PROSE = frozenset(("description", "summary", "title", "message", "help", "notes", "comment"))


@dataclass
class _Found:
    """What a file has besides environments."""

    problems: list[Problem] = field(default_factory=list)
    containers: list[Container] = field(default_factory=list)
    known: set[int] = field(default_factory=set)  # maps that belong to a container that was read
    is_template: bool = False  # only one of two equal names may be left


def parse_pod(text: str, is_inner: bool = False, first_line: int = 1) -> ParsedFile:
    """Parse all documents; text that is no YAML is one problem, but of a template, what can be read is.

    `is_inner`: a file in a ConfigMap; `first_line`: the number of its first line.
    """
    try:
        return _parse(read_yaml(text, first_line), is_inner)
    except YamlError as error:
        template = _fill_template(text)
        if template is None:
            return _by_line(text, problem_at(error.line, "not-yaml", reason=error.reason), first_line)
        return _of_template(text, *template, error.line, first_line)


def _by_line(text: str, problem: Problem, first_line: int) -> ParsedFile:
    """Return the variables of a text that is no YAML."""
    group = Group("", _variables_by_line(text, first_line))
    groups = (group,) if group.assignments else ()
    return ParsedFile(FileKind.POD, groups, (problem,), is_by_line=True)


def _of_template(text: str, left: str, dropped: int, line: int, first_line: int) -> ParsedFile:
    problem = problem_at(line, "template")
    try:
        parsed = _parse(read_yaml(left, first_line), False, True, dropped > 0)
        parsed = replace(parsed, problems=(problem, *parsed.problems))
    except YamlError:
        parsed = _by_line(text, problem, first_line)
    if parsed.groups or parsed.containers or parsed.objects:
        return parsed
    return replace(parsed, problems=(problem_at(line, "template-not-yaml"),))


def _parse(
    documents: list[Value], is_inner: bool, is_template: bool = False, is_partial: bool = False
) -> ParsedFile:
    groups: list[Group] = []
    mappings = list(mappings_of(documents))
    # A template without quotation marks, {{ name }}, is a map whose key is a map.
    has_places = any("" in mapping.items for mapping in mappings)
    is_template, is_partial = is_template or has_places, is_partial or has_places
    found = _Found(is_template=is_template)
    claims = classes_of_claims(mappings)
    for mapping in mappings:
        found.containers.extend(of_pod(mapping, claims, is_partial))
    for document in documents:
        found.containers.extend(of_compose(document, is_partial))
    for mapping in mappings:
        if len(groups) >= _MAX_GROUPS:
            found.problems.append(problem_at(mapping.line, "too-many-containers", most=_MAX_GROUPS))
            break
        if id(mapping) not in found.known:
            groups.extend(_groups_of(mapping, found, is_inner))
        if "image" in mapping.items:
            for key in ("envFrom", "env_file"):
                if key in mapping.items:
                    line = mapping.items[key].line
                    found.problems.append(problem_at(line, "more-variables", where=key))
    problems = tuple(found.problems[:MAX_ASSIGNMENTS])
    containers = tuple(found.containers[:_MAX_GROUPS])
    objects = () if is_inner else objects_of(mappings)
    shown = tuple(groups[:_MAX_GROUPS])
    return ParsedFile(FileKind.POD, shown, problems, containers, objects, is_template)


def _groups_of(mapping: Mapping, found: _Found, is_inner: bool) -> Iterator[Group]:
    """Yield the environments of a container, of a script, or of a map of variables."""
    name = _name_of(mapping)
    variables = _of_map(mapping)
    words: list[Word] = []
    scripts: list[Word] = []
    for key, value in mapping.items.items():
        if key in ("env", "environment") and isinstance(value, Mapping):
            found.known.add(id(value))
            variables.extend(_of_map(value, from_caller=key == "environment"))
        elif isinstance(value, List):
            entries = [_word(item) for item in value.items if isinstance(item, Scalar)]
            if key in _ARGUMENTS:
                words.extend(entries)
            elif key in _SCRIPTS:
                scripts.extend(entries)
            else:
                variables.extend(_of_list(value, found))
        elif isinstance(value, Scalar) and is_read(value.text):
            file = _file_of(key, mapping)
            if file.endswith("nccl.conf"):
                yield from _inside(parse_conf(value.text, _word(value).line), found)
            elif key.endswith((".yaml", ".yml")) and not is_inner:
                inner = parse_pod(value.text, True, _word(value).line)
                yield from _inside(inner, found if inner.groups else _Found())
            elif file.endswith(("/environment", ".env")):  # pam_env(8): no export
                script = Script(exports_all=True)
                script.read(value.text, _word(value).line)
                yield from _finished(name, script, found)
            elif key in _ARGUMENTS or key in _SCRIPTS or ("\n" in value.text and key not in _PROSE):
                scripts.append(_word(value))
    inherited = {assignment.name: assignment for assignment in variables[:MAX_ASSIGNMENTS]}
    if words or scripts:
        yield from _of_commands(name, inherited, words, scripts, found)
    elif inherited:
        yield Group(name, tuple(inherited.values()))


def _name_of(mapping: Mapping) -> str:
    name = mapping.items.get("name")
    is_container = isinstance(name, Scalar) and "image" in mapping.items
    return f"container {printable(name.text, 63)}" if is_container and isinstance(name, Scalar) else ""


def _word(value: Scalar) -> Word:
    """Return a text with the line where it begins; a block begins below its key."""
    return Word(value.text, value.line + ("\n" in value.text))


def _file_of(key: str, mapping: Mapping) -> str:
    """Return the name of a file that a text becomes: a key of a ConfigMap, or a path beside `content`."""
    paths = (mapping.items.get(name) for name in ("path", "destination"))
    path = next((scalar.text for scalar in paths if isinstance(scalar, Scalar)), "")
    return path if key == "content" else key


def _inside(parsed: ParsedFile, into: _Found) -> Iterator[Group]:
    """Yield the groups of a file inside this one."""
    into.problems.extend(problem for problem in parsed.problems if problem.line)
    into.containers.extend(parsed.containers)
    is_conf = parsed.kind is FileKind.NCCL_CONF
    for group in parsed.groups:
        found = group.effective(first_wins=is_conf).values()
        yield Group(group.name or ("nccl.conf" if is_conf else ""), tuple(found))


def _of_commands(
    name: str, inherited: Environment, words: list[Word], scripts: list[Word], found: _Found
) -> Iterator[Group]:
    """Read the arguments of a container and its scripts, each with the variables of the container."""
    if words:
        script = Script(inherited)
        script.run(Command(words, ""))
        for word in words:
            if re.search(r"\s", word.text):  # for an entrypoint that is a shell
                script.read(word.text, word.line)
        yield from _finished(name, script, found)
    for word in scripts:
        script = Script(inherited)
        script.read(word.text, word.line)
        yield from _finished(name, script, found)


def _finished(name: str, script: Script, found: _Found) -> Iterator[Group]:
    found.problems.extend((*script.problems, *script.not_exported()))
    found.containers.extend(script.containers)
    yield from (Group(name, tuple(environment.values())) for environment in script.environments())


def _of_map(mapping: Mapping, from_caller: bool = False) -> list[Assignment]:
    """Return the variables of a map, as Helm values and Compose have it.

    One without a value is not set; `from_caller`: Compose takes it from its own environment.
    """
    return [
        _assignment(key, value, value.line)
        for key, value in mapping.items.items()
        if VARIABLE_NAME.fullmatch(key) and (from_caller or not _is_null(value))
    ]


def _assignment(name: str, value: Value | None, line: int) -> Assignment:
    text, unless = (None, "")
    if isinstance(value, Scalar) and not value.is_null:
        text, unless = read_value(value.text)
    return Assignment(name, text, line, unless_set=unless)


def _is_null(value: Value | None) -> bool:
    return isinstance(value, Scalar) and value.is_null


def _of_list(entries: List, into: _Found) -> list[Assignment]:
    """Return the variables of a list: `name` and `value` in Kubernetes, NAME=VALUE in Compose."""
    found: list[Assignment] = []
    for entry in entries.items:
        if isinstance(entry, Scalar):
            name, equals, value = entry.text.partition("=")
            if equals and VARIABLE_NAME.fullmatch(name):
                found.append(_assignment(name, Scalar(entry.line, value, True), entry.line))
        elif isinstance(entry, Mapping):
            key = entry.items.get("name")
            is_set = not _is_null(entry.items.get("value"))
            if isinstance(key, Scalar) and VARIABLE_NAME.fullmatch(key.text.strip()) and is_set:
                found.append(_of_entry(key, entry.items.get("value"), into.problems))
    first: dict[str, int] = {}
    for assignment in found:
        if assignment.name in first and not into.is_template:
            before = first[assignment.name]
            into.problems.append(problem_at(assignment.line, "entry-twice", assignment.name, first=before))
        first.setdefault(assignment.name, assignment.line)
    return found[:MAX_ASSIGNMENTS]


def _of_entry(name: Scalar, value: Value | None, problems: list[Problem]) -> Assignment:
    shown = name.text.strip()
    if shown != name.text:
        problems.append(problem_at(name.line, "name-with-spaces", shown))
    if isinstance(value, Scalar) and not value.is_text:
        quoted = printable(value.text, 64)
        problems.append(problem_at(value.line, "value-is-no-string", shown, name=shown, value=quoted))
    return _assignment(shown, value, name.line)


# Templates (Helm, Jinja, ERB, envsubst): what can be read before they are filled in.
#
# Line numbers stay. What a template inserts becomes `$TEMPLATE`, whose value is unknown like that of any
# variable; directives such as {{ if }} and {% for %} vanish, and so does a line that is only a placeholder.

_MARK = "$TEMPLATE"
_ENDS = {"{{": "}}", "{%": "%}", "{#": "#}", "<%": "%>"}
_BEGIN = re.compile(r"\{\{|\{%|\{#|<%")
_DIRECTIVE = re.compile(
    r"\{\{-? ?(?:if|else|end|range|with|define|block|template|break|continue|/\*|\$[A-Za-z_]\w{0,63} ?:?=)"
)
# A line that is only a placeholder, or that leaves something out.
_ALONE = re.compile(
    r"[ \t]*(?:\$\{?[A-Za-z_]\w{0,63}\}?|@[A-Z_]{1,64}@|%[A-Z_]{1,64}%|<[A-Z_ -]{1,64}>)[ \t]*"
)
_ELISION = re.compile(r"[ \t]+\.{3}[ \t]*|[ \t]*\u2026[ \t]*")
_NAME_LINE = re.compile(rf"[ \t-]*name: ?[\"']?({VARIABLE_NAME.pattern})[\"']?,?[ \t]*")
_VALUE_LINE = re.compile(r"[ \t]*value:[ \t]*(\S.*)")
_PAIR_LINE = re.compile(rf"[ \t-]*(?:export )?[\"']?({VARIABLE_NAME.pattern})[\"']?[ \t]*[:=][ \t]*(\S.*)")


def _fill_template(text: str) -> tuple[str, int] | None:
    """Return what is left of a template, and how many lines are not; None: the text is none."""
    parts: list[str] = []
    place, found = 0, False
    while match := _BEGIN.search(text, place):
        stop = text.find(_ENDS[match[0]], match.end())
        if stop < 0:
            break
        inner = text[match.start() : stop + 2]
        is_directive = match[0] in ("{%", "{#") or bool(_DIRECTIVE.match(inner))
        parts += [text[place : match.start()], "" if is_directive else _MARK, "\n" * inner.count("\n")]
        place, found = stop + 2, True
    lines = ("".join(parts) + text[place:]).split("\n")
    kept = ["" if _ALONE.fullmatch(line) or _ELISION.fullmatch(line) else line for line in lines]
    dropped = sum(before != after for before, after in zip(lines, kept, strict=True))
    return ("\n".join(kept), dropped) if found or dropped else None


def _variables_by_line(text: str, first_line: int = 1) -> tuple[Assignment, ...]:
    """Return the variables of text that is no YAML even so: NAME: value, NAME=value, `name` and `value`."""
    found: list[Assignment] = []
    name, name_line = "", 0
    for number, line in enumerate(text.split("\n"), first_line):
        if len(found) >= MAX_ASSIGNMENTS:
            break
        if match := _NAME_LINE.fullmatch(line):
            name, name_line = match[1], number
        elif match := _VALUE_LINE.fullmatch(line):
            if name and number - name_line <= 1:
                found.append(
                    _assignment(name, Scalar(number, match[1].strip().strip("\"'"), True), name_line)
                )
            name = ""
        elif match := _PAIR_LINE.fullmatch(line):
            found.append(_assignment(match[1], Scalar(number, match[2].strip().strip("\"'"), True), number))
    return tuple(found)
