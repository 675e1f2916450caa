"""What a fleet knows of one node: its verdict, findings and traits; to JSON and back, exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from probes.base.codec import Bounds, Codec, CodecError
from probes.base.evidence import Severity
from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.checks.judgment import Judgment, exit_status
from probes.facts.system.platform import PlatformFacts
from probes.fleet.cables import Cable, cables_of
from probes.fleet.traits import (
    MOST_CHARACTERS,
    MOST_TRAITS,
    Trait,
    gpu_model,
    link_figures,
    model_of,
    nics_of,
    trait,
    traits_of,
)
from probes.queries.finding import Finding, named_first
from probes.snapshot.examination import Examination
from probes.snapshot.verdict import Verdict

if TYPE_CHECKING:  # loaded once something was measured
    from probes.bandwidth.model.result import Result

_MOST_FINDINGS = 400
_MOST_DEVICES = 64
_MOST_MODELS = 64
_TEXT = 1000
_MOST_FIGURE = 1e15
_YEAR_2100 = 4102444800.0
_CODEC = Codec(
    clean=printable,
    is_lenient=True,
    unknown_beside=True,
    sparse=(Trait,),
    bounds={
        "": Bounds(text=_TEXT, least=0, most=_MOST_FIGURE),
        "taken_at": Bounds(least=0, most=_YEAR_2100),
        "findings": Bounds(items=_MOST_FINDINGS),
        "cables": Bounds(items=_MOST_DEVICES),
        "devices": Bounds(text=MOST_CHARACTERS, items=_MOST_DEVICES),
        "names": Bounds(text=MOST_CHARACTERS, items=_MOST_DEVICES),
        **dict.fromkeys(("gpus", "nics"), Bounds(text=MOST_CHARACTERS, least=0, items=_MOST_MODELS)),
    },
)
_REASONS = {reason.value: reason for reason in Reason}


@frozen
class FoundProblem:
    """A critical finding or a warning, as far as nodes are compared by it."""

    id: str
    severity: Severity
    title: str
    devices: tuple[str, ...] = ()  # RDMA device names, PCI addresses, module names
    names: tuple[str, ...] = ()  # the same as people call them: "GPU0", "mlx5_0", "0000:16:00.0"


@frozen
class Role:
    """The type of a node: nodes of one type should be alike."""

    machine: str = ""  # "Supermicro SYS-821GE-TNHR"; "": unknown
    gpus: tuple[tuple[str, int], ...] = ()  # models with their number, sorted
    nics: tuple[tuple[str, int], ...] = ()


@frozen
class NodeSummary:
    """One node at one moment."""

    name: str
    taken_at: float  # seconds since 1970, in whole milliseconds
    verdict: Verdict
    role: Role
    findings: tuple[FoundProblem, ...]  # critical ones first, one for each cause
    traits: tuple[Trait, ...]
    cables: tuple[Cable, ...] = ()  # of its Ethernet ports

    @property
    def status(self) -> int:
        """The exit status of `gdrtop check` on this node."""
        return exit_status(self.verdict)


def summarize(
    examination: Examination, judgment: Judgment, name: str = "", results: Iterable[Result] = ()
) -> NodeSummary:
    """Return the summary of a judged examination.

    `name`: of the node, by default its host name; `results`: saved bandwidth results of this node, oldest
    first.
    """
    platform = examination.node.platform
    hostname: Maybe[str] = platform.hostname if isinstance(platform, PlatformFacts) else platform
    verdict = judgment.verdict
    return NodeSummary(
        name=printable(name or known(hostname, "?"), MOST_CHARACTERS),
        taken_at=round(examination.taken_at, 3),
        verdict=replace(verdict, reason=printable(verdict.reason, _TEXT)),
        role=_role(examination),
        findings=tuple(
            _problem(finding, examination.topology.labels) for finding in judgment.listed[:_MOST_FINDINGS]
        ),
        traits=(*traits_of(examination), *_figures(results), *link_figures(examination))[:MOST_TRAITS],
        cables=cables_of(examination)[:_MOST_DEVICES],
    )


def _problem(finding: Finding, labels: Mapping[str, str]) -> FoundProblem:
    devices = named_first(finding, labels)[:_MOST_DEVICES]
    names = (labels.get(device, device) for device in devices)
    return FoundProblem(
        finding.id,
        finding.severity,
        printable(finding.title, MOST_CHARACTERS),
        tuple(printable(device, MOST_CHARACTERS) for device in devices),
        tuple(printable(name, MOST_CHARACTERS) for name in names),
    )


def with_shared_traits(summary: NodeSummary, seen: dict[Trait, Trait]) -> NodeSummary:
    """Return the summary with the objects of equal traits in `seen`, to which it adds its others.

    Most traits of most nodes of a fleet are equal: each object of its own, they take 56 kB a node.
    """
    return replace(summary, traits=tuple(seen.setdefault(each, each) for each in summary.traits))


def _role(examination: Examination) -> Role:
    node = examination.node
    platform = node.platform
    machine = platform.product if isinstance(platform, PlatformFacts) else platform
    nics = nics_of(examination)
    return Role(
        printable(known(machine, ""), MOST_CHARACTERS),
        _counted(gpu_model(examination, gpu) for gpu in node.known_gpus),
        _counted(map(model_of, () if isinstance(nics, Unknown) else nics)),
    )


def _counted(models: Iterable[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(Counter(printable(model, MOST_CHARACTERS) for model in models).items()))[
        :_MOST_MODELS
    ]


def _figures(results: Iterable[Result]) -> list[Trait]:
    """Return the newest good figure of each test."""
    measured = tuple(results)
    if not measured:
        return []
    from probes.bandwidth.model.result import Ending

    newest: dict[str, Trait] = {}
    for result in measured:
        if result.ending is Ending.DONE and result.gbps is not None:
            ends = " ".join(filter(None, (result.pair.gpu_label, result.pair.nic)))
            slot = f"{result.title}, {ends}" if ends else result.title
            newest[slot] = trait("bandwidth", float(result.gbps), slot)
    return list(newest.values())


def to_json(summary: NodeSummary) -> dict[str, Any]:
    """Return the summary as JSON values; an unknown value is null, with its reason beside.

    The time is RFC 3339 with zone and milliseconds.
    """
    encoded: dict[str, Any] = _CODEC.encode(summary)
    time = datetime.fromtimestamp(encoded.pop("taken_at")).astimezone().isoformat(timespec="milliseconds")
    return {"name": encoded.pop("name"), "time": time, **encoded}


def from_json(content: object) -> NodeSummary | None:
    """Return the summary in any JSON value; None if there is none. Raises nothing."""
    if not isinstance(content, Mapping):
        return None
    traits, time = content.get("traits"), content.get("time")
    listed = traits[:MOST_TRAITS] if isinstance(traits, list) else []
    fields: dict[str, Any] = {**content, "traits": []}
    try:
        fields["taken_at"] = datetime.fromisoformat(time if isinstance(time, str) else "").timestamp()
        summary: NodeSummary = _CODEC.decode(NodeSummary, fields)
    except (CodecError, ValueError, OverflowError):
        return None
    found = map(_trait_from, listed)
    return replace(summary, traits=tuple(filter(None, found))) if summary.name else None


def _trait_from(content: object) -> Trait | None:
    """Return one trait. A fleet has hundreds of thousands, for which the codec would take seconds."""
    if not isinstance(content, dict):
        return None
    fact, slot, device = content.get("fact"), content.get("slot", ""), content.get("device", "")
    if not isinstance(fact, str) or not isinstance(slot, str) or not isinstance(device, str):
        return None
    value = content.get("value")
    known_value: Maybe[str | float]
    if isinstance(value, str):
        known_value = printable(value, MOST_CHARACTERS)
    elif value is None:
        reasons = content.get("unknown")
        text = reasons.get("value") if isinstance(reasons, dict) else None
        reason, _, detail = text.partition(": ") if isinstance(text, str) else ("", "", "")
        detail = printable(detail, MOST_CHARACTERS)
        known_value = Unknown(_REASONS.get(reason, Reason.MALFORMED), "", detail)
    elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MOST_FIGURE:
        known_value = float(value)
    else:
        return None
    names = (printable(text, MOST_CHARACTERS) for text in (slot, device))
    return Trait(printable(fact, MOST_CHARACTERS), known_value, *names)
