"""What each event means, and what to do about it: the texts of explanations.toml."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from probes.base.data_files import read_toml
from probes.base.evidence import Severity
from probes.facts.rdma.port_health import Harm
from probes.live.model.sample import EventKind, LiveEvent, PathWord


@cache
def _texts() -> Mapping[str, Mapping[str, str]]:
    return read_toml("probes.live.model", "explanations.toml")


def explanation_of(kind: EventKind | PathWord | Harm) -> str:
    """Return what an event of a kind, a path or a risen error counter means."""
    table = "event" if isinstance(kind, EventKind) else "path" if isinstance(kind, PathWord) else "error"
    text = _texts()[table][kind.value]
    return _texts()[table].get(text, text)


def detail(name: str) -> str:
    """Return one of the texts that differ within a kind: "port-down"."""
    return _texts()["detail"][name]


def explained(at: float, kind: EventKind, severity: Severity, subject: str, text: str) -> LiveEvent:
    """Return an event with what its kind means; `at`: seconds since 1970."""
    return LiveEvent(at, kind, severity, subject, text, explanation_of(kind))
