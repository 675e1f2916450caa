"""Parse Kubernetes manifests for the environment of every container.

Any mapping with `env` counts: containers and initContainers of pods, jobs and custom resources, and the
`env` maps of Helm values and of Compose files. Launchers in `command` and `args` are read like a shell.
"""

from __future__ import annotations

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
from probes.setup.environment.shell_file import assignments_in
from probes.setup.environment.yaml_tree import (
    Mapping,
    Scalar,
    Sequence,
    Value,
    YamlError,
    mappings_of,
    read_yaml,
)

_MAX_GROUPS = 64


def parse_pod(text: str) -> ParsedFile:
    """Parse all documents; text that is no YAML is one problem."""
    try:
        documents = read_yaml(text)
    except YamlError as error:
        problem = Problem(error.line, Severity.CRITICAL, f"The file is not valid YAML: {error.reason}")
        return ParsedFile(FileKind.POD, (), (problem,))
    groups: list[Group] = []
    problems: list[Problem] = []
    for mapping in mappings_of(documents):
        if len(groups) >= _MAX_GROUPS:
            title = f"Only the first {_MAX_GROUPS} containers are checked"
            problems.append(Problem(mapping.line, Severity.WARNING, title))
            break
        found = [*_of_env(mapping.items.get("env"), problems), *_of_commands(mapping)]
        if found or ("image" in mapping.items and "name" in mapping.items):
            groups.append(Group(_name_of(mapping), tuple(found[:MAX_ASSIGNMENTS])))
        if "envFrom" in mapping.items and "image" in mapping.items:
            source = mapping.items["envFrom"]
            text = "envFrom sets more variables, which are not in this file"
            problems.append(Problem(source.line, Severity.NOTE, text))
    return ParsedFile(FileKind.POD, tuple(groups), tuple(problems))


def _name_of(mapping: Mapping) -> str:
    name = mapping.items.get("name")
    return f"container {printable(name.text, 63)}" if isinstance(name, Scalar) else ""


def _of_env(env: Value | None, problems: list[Problem]) -> list[Assignment]:
    """Return the variables of an env list, or of an env map as Helm and Compose have it."""
    found: list[Assignment] = []
    if isinstance(env, Mapping):
        for key, value in env.items.items():
            if VARIABLE_NAME.fullmatch(key):
                text = _text(value) if isinstance(value, Scalar) else None
                found.append(Assignment(key, text, value.line))
    for entry in env.items if isinstance(env, Sequence) else ():
        if isinstance(entry, Scalar):  # Compose: - NAME=value
            found.extend(assignments_in(f"env {entry.text}", entry.line))
            continue
        name = entry.items.get("name") if isinstance(entry, Mapping) else None
        if isinstance(entry, Mapping) and isinstance(name, Scalar) and _is_variable(name):
            found.append(_of_entry(name, entry.items.get("value"), problems))
    _find_duplicates(found, problems)
    return found[:MAX_ASSIGNMENTS]


def _is_variable(name: Scalar) -> bool:
    return bool(VARIABLE_NAME.fullmatch(name.text.strip()))


def _of_entry(name: Scalar, value: Value | None, problems: list[Problem]) -> Assignment:
    shown = name.text.strip()
    if shown != name.text:
        title = f"The name of {shown} has spaces"
        problems.append(Problem(name.line, Severity.CRITICAL, title, fix="Remove them", variable=shown))
    if isinstance(value, Scalar):
        if not value.is_text:
            problems.append(
                Problem(
                    value.line,
                    Severity.CRITICAL,
                    f"The value of {shown} is not a string, so Kubernetes rejects the object",
                    fix=f'Quote it: value: "{printable(value.text, 64)}"',
                    variable=shown,
                )
            )
        return Assignment(shown, _text(value), name.line)
    return Assignment(shown, None, name.line)


def _text(value: Scalar) -> str | None:
    return None if "$(" in value.text or "{{" in value.text else printable(value.text, VALUE_LIMIT)


def _of_commands(mapping: Mapping) -> list[Assignment]:
    """Return what `command` and `args` pass to programs."""
    if "image" not in mapping.items:
        return []
    found: list[Assignment] = []
    before = ""
    for key in ("command", "args"):
        value = mapping.items.get(key)
        for item in value.items if isinstance(value, Sequence) else ():
            if not isinstance(item, Scalar):
                continue
            if VARIABLE_NAME.search(item.text):
                option = before if before.startswith("-") and " " not in before else ""
                found.extend(assignments_in(f"command {option} {item.text}", item.line))
            before = item.text
    return found


def _find_duplicates(found: list[Assignment], problems: list[Problem]) -> None:
    first: dict[str, int] = {}
    for one in found:
        if one.name in first:
            title = f"{one.name} is already set on line {first[one.name]}"
            detail = "Kubernetes uses the last entry."
            problems.append(Problem(one.line, Severity.WARNING, title, detail, "Remove one entry", one.name))
        first.setdefault(one.name, one.line)
