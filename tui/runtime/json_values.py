"""Facts as JSON: an unknown value is null, and beside it "unknown" says why, by the field's name.

Every document begins with the same facts (`Head`). Its type is a TypedDict beside the command that prints it;
tui/commands/schema.py makes its JSON Schema of that.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping
from datetime import date, datetime
from functools import cache
from typing import Annotated, Any, Literal, TextIO, TypedDict

from probes.base.codec import Codec
from probes.base.evidence import Evidence, Severity
from probes.base.origin import Origin, Source
from probes.base.plan import FileChange, Plan, Step
from probes.base.silence import Silence
from probes.base.unknown import Maybe
from probes.facts.node import Node
from probes.facts.system.platform import PlatformFacts
from probes.plans.common import Undo, undo_of
from probes.queries.finding import Finding, PairGain, Status
from tui.files.version import version

SCHEMA_VERSIONS = {
    **{"check": 2, "forecast": 2, "image": 2, "live": 2, "watch": 2},
    **{"topo": 2, "ras": 2, "bench": 2, "report": 3},
}
"""The version of each document's schema, 1 unless it is here."""

ExitStatus = Literal[0, 1, 2, 3]
Time = Annotated[str, "date-time"]
_LINE = 240  # a hop of a path
_CODEC = Codec(unknown_beside=True)


class Changed:
    """How an object differs from its class: its required fields, if not all are, and types of fields."""

    def __init__(self, *required: str, **types: Any) -> None:
        self.required, self.types = required, types


class Head(TypedDict):
    """What every document begins with."""

    schema: str
    gdrtop: str  # the version of gdrtop
    node: Maybe[str]  # host name, or its token in a redacted recording
    time: Time  # when the node was read, with zone (RFC 3339)
    source: Source
    label: str  # root directory, name of the simulated node or of the recording; empty: a live node


class SilenceObject(TypedDict):
    """Why a finding is silenced, or was until the silence expired."""

    device: str | None  # null: all devices
    reason: str
    until: date  # the last day, in local time
    origin: str  # FILE:LINE of the configuration
    expired: bool


class StepObject(TypedDict):
    """What a step runs or writes, without what only drawings and setup read."""

    why: str
    argv: tuple[str, ...]
    needs_root: bool
    undo: tuple[str, ...]
    file: FileChange | None


class FixStep(StepObject):
    """A step of a fix; facts about the whole plan are repeated in each."""

    reversible: bool  # every command and file change of the plan that changes something can be undone
    needs_reboot: bool
    disturbs: str  # what is known to affect running jobs; empty: unknown or nothing
    group: str  # what equal steps of one plan act on, "switch ports"; empty: a step of its own


class FindingObject(TypedDict):
    """A check that ran, with all details."""

    id: str
    area: str
    severity: Severity
    status: Status
    title: str
    ok: str  # the title of the check where it passed
    impact: str  # what the user loses
    data_path: bool  # a warning of this check costs bandwidth or latency between NIC and GPU
    part_of: str | None  # the id of the finding with the same cause, which is counted instead
    evidence: tuple[Evidence, ...]
    cause: str  # why it was found, or why the check could not run
    devices: tuple[str, ...]
    takes: tuple[str, ...]  # GPUs and NICs that cannot use GPUDirect RDMA because of it
    ranks: tuple[str, ...]  # "rank 5" or "pid 4716", of running jobs
    jobs: tuple[str, ...]  # names of the jobs that it affects
    since: Time | None  # when it began (RFC 3339); null: before gdrtop looked
    silence: SilenceObject | None
    fix: tuple[FixStep, ...]
    gains: tuple[PairGain, ...]  # what the fix should bring, by the limits of the paths, for each pair
    reference: str


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
    kind: str, name: Maybe[str], origin: Origin, at: float, content: Mapping[str, Any]
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


def plain_value(value: object) -> Any:
    """Return a fact as JSON has it; in objects, "unknown" names the unknown fields with their reasons."""
    return _CODEC.encode(value)


def object_of(items: dict[str, object]) -> dict[str, Any]:
    """Return an object of these fields, as `plain_value` does."""
    return dict(plain_value(items))


def object_from(source: object, kind: type, /, **given: object) -> dict[str, Any]:
    """Return an object of a document's type: its fields have the given values, or those of the source."""
    names = (name for name in _field_names(kind) if name in given or hasattr(source, name))
    return object_of({name: given[name] if name in given else getattr(source, name) for name in names})


@cache
def _field_names(kind: type) -> dict[str, None]:
    names = (name for base in reversed(kind.__mro__) for name in inspect.get_annotations(base))
    left_out = getattr(kind, "without", ())
    return {name: None for name in names if name not in left_out}


def finding_json(finding: Finding) -> dict[str, Any]:
    """Return one finding."""
    is_expired = finding.status is Status.FOUND
    return object_from(
        finding,
        FindingObject,
        part_of=finding.part_of or None,
        since=time_json(finding.since),
        silence=None if finding.silence is None else silence_json(finding.silence, is_expired),
        fix=[] if finding.fix is None else _fix_json(finding.fix),
    )


def silence_json(silence: Silence, is_expired: bool) -> dict[str, Any]:
    """Return why a finding is silenced, or was."""
    until = silence.until.isoformat()
    return object_from(silence, SilenceObject, device=silence.device or None, until=until, expired=is_expired)


def step_json(step: Step) -> dict[str, Any]:
    """Return what a step runs or writes."""
    return object_from(step, StepObject)


def _fix_json(plan: Plan) -> list[dict[str, Any]]:
    reversible = undo_of(plan.steps) is Undo.WHOLE
    whole = {"needs_reboot": plan.needs_reboot, "disturbs": plan.disturbs, "reversible": reversible}
    return [object_from(step, FixStep, **whole) for step in plan.steps]
