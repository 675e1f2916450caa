"""Facts as JSON: an unknown value is null, and beside it "unknown" says why, by the field's name.

Every document begins with the same five facts (`document`); tui/commands/schemas has a JSON Schema of
each kind.
"""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from datetime import datetime
from typing import Any, TextIO

from probes.base.codec import Codec
from probes.base.origin import Origin
from probes.base.plan import Plan, Step
from probes.base.silence import Silence
from probes.base.unknown import Maybe
from probes.facts.node import Node
from probes.facts.system.platform import PlatformFacts
from probes.plans.common import Undo, undo_of
from probes.queries.finding import Finding, Status
from probes.snapshot.verdict import Verdict
from tui.files.version import version

SCHEMA_VERSIONS = {
    **{"check": 2, "forecast": 2, "image": 2, "live": 2, "watch": 2},
    **{"topo": 2, "ras": 2, "bench": 2, "report": 3},
}
"""The version of each document's schema, 1 unless it is here; tui/commands/schemas/KIND.json has it too."""

_LINE = 240  # a hop of a path
_CODEC = Codec(unknown_beside=True)


def write_json(content: object, out: TextIO) -> None:
    """Write it as JSON, in ASCII: a container that fits is one line, which halves a topology's size."""
    out.write(f"{_json_text(content, '')}\n")


def write_document(content: object, out: TextIO, form: str) -> None:
    """Write a document as "json" or "yaml"."""
    if form == "yaml":
        out.write(yaml_text(content))
    else:
        write_json(content, out)


def yaml_text(content: object) -> str:
    """Return a document as YAML, in ASCII; YAML 1.1 and 1.2 read the same keys and values in it."""
    import yaml  # only here: no other output needs it

    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # libyaml is six times as fast

    class Dumper(base):  # type: ignore[misc]
        def ignore_aliases(self, data: object) -> bool:
            """Return that a value that is used twice is written twice, as in JSON."""
            return True

    def represent_text(dumper: Any, text: str) -> Any:
        """Quote what YAML 1.1 and 1.2 read differently, such as 1e3 and 0o17."""
        whole = text.encode("utf-8", "replace").decode("utf-8")  # libyaml takes no lone surrogates
        style = None if whole[:1].isalpha() and whole.isprintable() else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", whole, style)

    Dumper.add_representer(str, represent_text)
    return str(yaml.dump(content, Dumper=Dumper, sort_keys=False, width=sys.maxsize >> 32))


def _json_text(value: object, indent: str) -> str:
    text = json.dumps(value, ensure_ascii=True)
    if len(text) <= _LINE or not isinstance(value, (dict, list, tuple)):
        return text
    inner = f"{indent} "
    if isinstance(value, dict):
        lines = [f"{json.dumps(str(key))}: {_json_text(item, inner)}" for key, item in value.items()]
    else:
        lines = [_json_text(item, inner) for item in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return f"{begin}\n{inner}" + f",\n{inner}".join(lines) + f"\n{indent}{end}"


def document(
    kind: str, name: Maybe[str], origin: Origin, at: float, content: dict[str, Any]
) -> dict[str, Any]:
    """What `--json` prints: which schema, gdrtop, node, time and source, and then the content.

    `kind`: the command, as in `gdrtop schema KIND`; `name`: the node's host name; `at`: seconds since 1970.
    """
    head: dict[str, object] = {
        "schema": f"gdrtop/{kind}/{SCHEMA_VERSIONS.get(kind, 1)}",
        "gdrtop": version(),
        "node": name,
        "time": time_json(at),
        "source": origin.source,
        "label": origin.label,
    }
    begun = object_of(head)
    reasons = {**begun.pop("unknown", {}), **content.get("unknown", {})}
    return {**begun, **content, **({"unknown": reasons} if reasons else {})}


def time_json(at: float | None) -> str | None:
    """Return seconds since 1970 as RFC 3339, with zone and milliseconds: the only form of a time in JSON."""
    return None if at is None else datetime.fromtimestamp(at).astimezone().isoformat(timespec="milliseconds")


def with_time(fields: dict[str, Any], name: str = "at") -> dict[str, Any]:
    """Return an object whose field `name`, seconds since 1970, is "time" instead, in the same place."""
    return {
        "time" if key == name else key: time_json(item) if key == name else item
        for key, item in fields.items()
    }


def host_name(node: Node) -> Maybe[str]:
    """The node's host name; of a redacted recording its token."""
    return node.platform.hostname if isinstance(node.platform, PlatformFacts) else node.platform


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """Return the verdict; "critical" and "warnings" are null if the checks have not run."""
    return {field.name: plain_value(getattr(verdict, field.name)) for field in fields(verdict)}


def plain_value(value: object) -> Any:
    """Return a fact as JSON has it; in objects, "unknown" names the unknown fields with their reasons."""
    return _CODEC.encode(value)


def object_of(items: dict[str, object]) -> dict[str, Any]:
    """Return an object of these fields, as `plain_value` does."""
    return dict(plain_value(items))


def finding_json(finding: Finding) -> dict[str, Any]:
    """Return one finding."""
    return {
        "id": finding.id,
        "area": finding.area,
        "severity": finding.severity.value,
        "status": finding.status.value,
        "title": finding.title,
        "ok": finding.ok,
        "impact": finding.impact,
        "data_path": finding.data_path,
        "part_of": finding.part_of or None,
        "evidence": [plain_value(evidence) for evidence in finding.evidence],
        "cause": finding.cause,
        "devices": list(finding.devices),
        "takes": list(finding.takes),
        "ranks": list(finding.ranks),
        "jobs": list(finding.jobs),
        "since": time_json(finding.since),
        "silence": None
        if finding.silence is None
        else silence_json(finding.silence, is_expired=finding.status is Status.FOUND),
        "fix": [] if finding.fix is None else _fix_json(finding.fix),
        "gains": [plain_value(gain) for gain in finding.gains],
        "reference": finding.reference,
    }


def silence_json(silence: Silence, is_expired: bool) -> dict[str, Any]:
    """Return why a finding is silenced, or was."""
    return {
        "device": silence.device or None,
        "reason": silence.reason,
        "until": silence.until.isoformat(),
        "origin": silence.origin,
        "expired": is_expired,
    }


def step_json(step: Step) -> dict[str, Any]:
    """Return what a step runs or writes, without what only drawings and setup read."""
    names = ("why", "argv", "needs_root", "undo", "file")
    return {name: plain_value(getattr(step, name)) for name in names}


def _fix_json(plan: Plan) -> list[dict[str, Any]]:
    """Return the steps; facts about the whole plan are repeated in each."""
    return [
        {
            **step_json(step),
            "group": step.group,
            "reversible": undo_of(plan.steps) is Undo.WHOLE,
            "needs_reboot": plan.needs_reboot,
            "disturbs": plan.disturbs,
        }
        for step in plan.steps
    ]
