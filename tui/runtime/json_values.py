"""Facts as JSON: an unknown value is null, and beside it "unknown" says why, by the field's name.

Every document begins with the same facts (`Head`). Its type is a TypedDict beside the command that prints it;
tui/commands/schema.py makes its JSON Schema of that.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Literal, TextIO, TypedDict, cast, get_args, get_origin

from probes.base.codec import Codec
from probes.base.origin import Origin, Source
from probes.base.plan import Plan, Step
from probes.base.site import Silence
from probes.base.unknown import Maybe
from probes.facts.node import Node, host_name
from probes.plans.common import Undo, undo_of
from probes.queries.finding import Finding, Status
from probes.snapshot.verdict import Verdict
from tui.files.version import version

SCHEMA_VERSIONS = {
    **{"check": 2, "forecast": 2, "image": 2, "live": 2, "watch": 2},
    **{"topo": 2, "ras": 2, "bench": 3, "report": 4},
}
"""The version of each document's schema, 1 unless it is here."""

ExitStatus = Literal[0, 1, 2, 3]
Time = Annotated[str, "date-time"]
_LINE = 240  # a hop of a path
_CODEC = Codec(unknown_beside=True)
_ENCODER = json.JSONEncoder()


class Changed:
    """How an object differs from the class whose fields it has, as metadata of `Annotated`.

    `required`, `optional`: its fields that are always there, or may be missing; without both, all are there.
    `has_reasons`: its "unknown" may say why values are null. `types`: of fields that differ or are added.
    `schema_name`: of its schema, where a document has the class in several forms.
    """

    def __init__(
        self,
        *required: str,
        without: tuple[str, ...] = (),
        only: tuple[str, ...] = (),
        optional: tuple[str, ...] = (),
        has_reasons: bool = False,
        schema_name: str = "",
        **types: Any,
    ) -> None:
        self.required, self.optional, self.types = required, optional, types
        self.has_reasons, self.schema_name = has_reasons, schema_name
        self.without, self.only = without, only

    def names(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the names of the fields, where the class has these."""
        kept = (name for name in names if name not in self.without and name in (self.only or (name,)))
        return tuple(dict.fromkeys((*kept, *self.types)))


NO_REASONS = Changed()
"""Of a class without unknown values: the object has no "unknown"."""


class Head(TypedDict):
    """What every document begins with."""

    schema: str
    gdrtop: str  # the version of gdrtop
    node: Maybe[str]  # host name, or its token in a redacted recording
    time: Time  # when the node was read, with zone (RFC 3339)
    source: Source
    label: str  # root directory, name of the simulated node or of the recording; empty: a live node


class _FixStep(Step):
    reversible: bool  # every command and file change of the plan that changes something can be undone
    needs_reboot: bool
    disturbs: str  # what is known to affect running jobs; empty: unknown or nothing


_UNUSED = ("check_title", "explained_by", "marked", "part_jobs", "pids", "refutes")  # of a finding, in JSON
VerdictObject = Annotated[Verdict, NO_REASONS]
StepObject = Annotated[Step, Changed(without=("group",))]
FixStep = Annotated[_FixStep, NO_REASONS]
SilenceObject = Annotated[Silence, Changed(without=("id", "nodes"), device=str | None, expired=bool)]
FindingObject = Annotated[
    Finding,
    Changed(
        without=_UNUSED,
        optional=("url",),
        url=str,  # of its page, where the configuration says where these are published (site_url)
        part_of=str | None,
        since=Time | None,
        silence=SilenceObject | None,
        fix=tuple[FixStep, ...],
    ),
]


def write_json(content: object, out: TextIO) -> None:
    """Write it as JSON, in ASCII: a container that fits is one line, which halves a topology's size.

    An iterator is an array, of which each item is written before the next one is made.
    """
    for piece in _json_pieces(content, ""):
        out.write(piece)
    out.write("\n")


def write_json_line(content: object, out: TextIO) -> None:
    """Write it as one line of JSON, at once."""
    out.write(f"{json.dumps(content)}\n")
    out.flush()


def _json_pieces(value: object, indent: str) -> Iterator[str]:
    is_stream = isinstance(value, Iterator)
    whole = None if is_stream else _one_line(value)
    if whole is not None:
        yield whole
        return
    inner = f"{indent} "
    begin, end = "{}" if isinstance(value, dict) else "[]"
    separator = f"{begin}\n{inner}"
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{separator}{json.dumps(str(key))}: "
            yield from _json_pieces(item, inner)
            separator = f",\n{inner}"
    else:
        for item in cast("Iterable[object]", value):
            yield separator
            yield from _json_pieces(item, inner)
            separator = f",\n{inner}"
    yield f"\n{indent}{end}" if separator.startswith(",") else f"{begin}{end}"


def _one_line(value: object) -> str | None:
    """Return a value as a line; None for a container that does not fit, or that has an iterator."""
    if not isinstance(value, (dict, list, tuple)):
        return json.dumps(value)
    pieces, length = [], 0
    try:
        for piece in _ENCODER.iterencode(value):
            pieces.append(piece)
            length += len(piece)
            if length > _LINE:
                return None
    except TypeError:
        if any(isinstance(item, Iterator) for item in (value.values() if isinstance(value, dict) else value)):
            return None
        raise
    return "".join(pieces)


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


def node_document(kind: str, node: Node, at: float, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document about one node, as `document` does."""
    return document(kind, host_name(node), node.origin, at, content)


def time_json(at: float | None) -> str | None:
    """Return seconds since 1970 as RFC 3339, with zone and milliseconds: the only form of a time in JSON."""
    return None if at is None else datetime.fromtimestamp(at).astimezone().isoformat(timespec="milliseconds")


def plain_value(value: object) -> Any:
    """Return a fact as JSON has it; in objects, "unknown" names the unknown fields with their reasons."""
    return _CODEC.encode(value)


def object_of(items: dict[str, object]) -> dict[str, Any]:
    """Return an object of these fields, as `plain_value` does."""
    return dict(plain_value(items))


def object_from(source: object, kind: Any, /, *more: object, **given: object) -> dict[str, Any]:
    """Return an object of a document's type: its fields have the given values, or those of the sources."""
    found = {}
    for name in field_names(kind):
        if name in given:
            found[name] = given[name]
        elif owners := [each for each in (source, *more) if hasattr(each, name)]:
            found[name] = getattr(owners[0], name)
    return object_of(found)


@cache
def field_names(kind: Any) -> tuple[str, ...]:
    """Return the names of the fields of an object of this type."""
    plain, *changes = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    names = tuple(name for base in reversed(plain.__mro__) for name in inspect.get_annotations(base))
    for changed in changes:
        names = changed.names(names)
    return names


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
        **url_json(finding),
    )


def url_json(finding: Finding) -> dict[str, str]:
    """Return the field that has the address of its page, where there is one."""
    return {"url": finding.page} if finding.page else {}


def silence_json(
    silence: Silence, is_expired: bool, kind: Any = SilenceObject, **given: object
) -> dict[str, Any]:
    """Return why a finding is silenced, or was."""
    given |= {"device": silence.device or None, "until": silence.until.isoformat(), "expired": is_expired}
    return object_from(silence, kind, **given)


def _fix_json(plan: Plan) -> list[dict[str, Any]]:
    reversible = undo_of(plan.steps) is Undo.WHOLE
    whole = {"needs_reboot": plan.needs_reboot, "disturbs": plan.disturbs, "reversible": reversible}
    return [object_from(step, FixStep, **whole) for step in plan.steps]
