"""What kind of file a text is, by its name and by what can be read in it."""

from __future__ import annotations

import re
from dataclasses import replace

from probes.base.evidence import Severity
from probes.base.frozen import frozen
from probes.nccl.variables.catalogue import VARIABLE_NAME
from probes.setup.env.assignments import LIMIT_BYTES, FileKind, ParsedFile, parse_conf
from probes.setup.env.pod_file import parse_pod
from probes.setup.env.shell_commands import split_commands
from probes.setup.env.shell_file import is_read, parse_shell

_NAMED_YAML = re.compile(r"\.(?:ya?ml|json)(?:\.[a-z0-9]{1,8})?$")  # .yaml.j2
_MOST_PARTS = 32
_LOG = re.compile(r"\bNCCL (?:INFO|WARN|ERROR|TRACE)\b")
_YAML = re.compile(r"^[ ]{0,8}(?:- )?[\"']?[A-Za-z_][\w./-]{0,127}[\"']?:(?:[ \t]|$)|^[ \t]*\{", re.MULTILINE)
# The beginning of YAML, and not of a script or a page with YAML in it.
_OBJECT = re.compile(r"(?:[ \t]*(?:#(?!!).*|---.*)?\n)*(?:apiVersion|kind|metadata|services|version):")
_HERE_YAML = re.compile(r"^[ \t]*(?:apiVersion|kind|services):", re.MULTILINE)
# Only in a script is a variable without "export" a mistake; in a thread it is alone.
_SCRIPT = re.compile(r"^(?:#!|#SBATCH|[ \t]*(?:export|set|source|unset)\s)", re.MULTILINE)
_CONF_LINE = re.compile(r"[ \t]*(?:#.*)?|NCCL_[A-Z0-9_]{1,60}=.*")


@frozen
class File:
    """One file to check."""

    name: str  # as shown
    text: str
    kind: FileKind


def named_file(name: str, text: str, kind: str | None = None) -> File:
    """Return a file of this kind, or of the one that its name and its text show."""
    return File(name, text, FileKind(kind) if kind else kind_of(name, text))


def kind_of(name: str, text: str) -> FileKind:
    """Guess what a file is from its name, else from its first lines, else from all of it."""
    if name.endswith(".conf"):
        return FileKind.NCCL_CONF
    if _NAMED_YAML.search(name):
        return FileKind.POD
    lines = [line for line in text.split("\n", 200)[:200] if line.strip()]
    if any(line.startswith("#SBATCH") for line in lines):
        return FileKind.SBATCH
    if any(line.startswith(("apiVersion:", "kind:", "---")) for line in lines):
        return FileKind.POD
    is_script = name.endswith((".sh", ".bash")) or text.startswith("#!")
    return FileKind.SHELL if is_script else recognize(text) or FileKind.SHELL


def recognize(text: str) -> FileKind | None:
    """Return the kind of a text that has something to judge; None: there is nothing in it, or it is a log."""
    text = text[:LIMIT_BYTES].replace("\r\n", "\n")
    if _LOG.search(text) or not (is_read(text) or _YAML.search(text)):
        return None
    if VARIABLE_NAME.search(text) and all(_CONF_LINE.fullmatch(line) for line in text.split("\n")):
        return FileKind.NCCL_CONF
    if _YAML.search(text) and not text.startswith("#!"):
        parsed = parse_pod(text)
        is_wrong = any(problem.severity is Severity.CRITICAL for problem in parsed.problems)
        is_object = bool(_OBJECT.match(text))
        if (_has_content(parsed) and (is_object or not parsed.is_by_line)) or (is_object and is_wrong):
            return FileKind.POD
    parsed = parse_file(text, FileKind.SHELL)
    return parsed.kind if _has_content(parsed) or parsed.problems else None


def _has_content(parsed: ParsedFile) -> bool:
    return bool(parsed.groups or parsed.containers or parsed.objects)


def parse_file(text: str, kind: FileKind, is_excerpt: bool = False) -> ParsedFile:
    """Parse a file for the variables that it sets; `is_excerpt`: without the script that exports them."""
    if kind is FileKind.NCCL_CONF:
        return parse_conf(text)
    if kind is FileKind.POD:
        return parse_pod(text)
    parsed = parse_shell(text, exports_all=is_excerpt and not _SCRIPT.search(text))
    return _with_here_documents(parsed, text) if "<<" in text and _HERE_YAML.search(text) else parsed


def _with_here_documents(parsed: ParsedFile, text: str) -> ParsedFile:
    """Add the objects of Kubernetes in here-documents: kubectl apply -f - <<EOF."""
    parts = [parsed]
    for command in split_commands(text):
        here = command.heredoc
        if here is not None and len(parts) < _MOST_PARTS and _HERE_YAML.search(here.text):
            inner = parse_pod(here.text, first_line=here.line)
            if _has_content(inner):
                parts.append(inner)
    return replace(
        parsed,
        groups=tuple(group for part in parts for group in part.groups),
        problems=tuple(problem for part in parts for problem in part.problems),
        containers=tuple(container for part in parts for container in part.containers),
        objects=tuple(each for part in parts for each in part.objects),
        is_template=any(part.is_template for part in parts),
    )
