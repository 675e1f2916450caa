"""Summaries of nodes, made without an examination."""

from probes.base.evidence import Severity
from probes.facts.gpudirect import GdrPath
from probes.fleet.summary import FoundProblem, NodeSummary, Role
from probes.fleet.traits import trait
from probes.snapshot.verdict import State, Verdict

H100 = Role("Supermicro SYS-821GE-TNHR", (("NVIDIA H100 SXM5 80GB", 8),), (("MT4129", 10),))


def problem(
    id: str,  # noqa: A002 - the word of findings
    title: str,
    severity: Severity = Severity.WARNING,
    *devices: str,
) -> FoundProblem:
    return FoundProblem(id, severity, title, devices or ("mlx5_0",))


def a_summary(
    name: str,
    state: State = State.READY,
    *findings: FoundProblem,
    taken_at: float = 1_790_000_000.0,
    driver: str = "570.211.01",
    role: Role = H100,
) -> NodeSummary:
    """Return a node of eight GPUs, all of which are served unless it is broken."""
    critical = sum(found.severity is Severity.CRITICAL for found in findings)
    is_broken = state is State.BROKEN
    verdict = Verdict(
        state,
        None if is_broken else GdrPath.DMABUF,
        0 if is_broken else 8,
        8,
        findings[0].title if findings else "",
        8,
        critical,
        len(findings) - critical,
    )
    return NodeSummary(name, taken_at, verdict, role, findings, (trait("driver", driver),))
