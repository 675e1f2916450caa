"""Any text that may set variables, start containers or configure operators: what it is, and what is wrong."""

from __future__ import annotations

import re
from dataclasses import replace

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.system.platform import Cloud
from probes.host.no_host import NoHost
from probes.nccl.variables.variable import VARIABLE_NAME
from probes.setup.env.assignments import LIMIT_BYTES, FileKind, ParsedFile
from probes.setup.env.lint import FileReport, kind_of, lint, parse_file
from probes.snapshot.examination import Examination, examine

_NO_CLOUD = Unknown(Reason.NOT_RECORDED, "cloud", "no node was read")
_LOG = re.compile(r"\bNCCL (?:INFO|WARN|ERROR|TRACE)\b")
_YAML = re.compile(r"^[ ]{0,8}(?:- )?[\"']?[A-Za-z_][\w./-]{0,127}[\"']?:(?:[ \t]|$)|^[ \t]*\{", re.MULTILINE)
_OBJECT = re.compile(r"^apiVersion:|^kind:|^services:", re.MULTILINE)
_CONF_LINE = re.compile(rf"[ \t]*(?:#.*)?|(?:{VARIABLE_NAME.pattern})=.*")


def recognize(text: str, name: str = "") -> FileKind | None:
    """Return the kind of a text that has something to judge; None: there is nothing in it, or it is a log."""
    text = text[:LIMIT_BYTES].replace("\r\n", "\n")
    named = kind_of(name, text) if name else None
    if named is not None and named is not FileKind.SHELL:
        return named
    if _LOG.search(text):
        return None
    lines = text.split("\n")
    if VARIABLE_NAME.search(text) and all(_CONF_LINE.fullmatch(line) for line in lines):
        return FileKind.NCCL_CONF
    if _YAML.search(text):
        parsed = parse_file(text, FileKind.POD)
        if _has_content(parsed) or (_OBJECT.search(text) and parsed.problems):
            return FileKind.POD
    parsed = parse_file(text, FileKind.SHELL)
    return parsed.kind if _has_content(parsed) or parsed.problems else None


def _has_content(parsed: ParsedFile) -> bool:
    return bool(parsed.groups or parsed.containers or parsed.objects)


def judge_text(
    text: str,
    examination: Examination | None = None,
    cloud: Maybe[Cloud] = _NO_CLOUD,
    nccl: str = "",
    name: str = "",
) -> FileReport | None:
    """Judge a text as the file that it is; None: it is none. Without a node, nothing is compared with one."""
    kind = recognize(text, name)
    if kind is None:
        return None
    if examination is not None:
        return lint(text[:LIMIT_BYTES], kind, examination, cloud, nccl)
    report = lint(text[:LIMIT_BYTES], kind, examine(NoHost()), cloud, nccl)
    return replace(report, not_compared="no node was read")
