"""What a judgment must never say: a verdict that its own findings, or the ranks on the node, contradict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from probes.base.evidence import Severity
from probes.base.unknown import Unknown
from probes.checks.judgment import degrading, exit_status, listed
from probes.live.model.sample import LiveSample, PathWord
from probes.queries.finding import Finding, Status
from probes.queries.ports import PORT_DOWN
from probes.snapshot.verdict import State, Usability, Verdict

GREEN = (State.ACTIVE, State.READY)
WITHOUT_GDR = (PathWord.STAGED, PathWord.TCP)


def contradictions(
    verdict: Verdict,
    findings: Sequence[Finding],
    usability: Usability | None = None,
    sample: LiveSample | None = None,
) -> list[str]:
    """Return what of the verdict is not so, in words."""
    wrong = list(_wrong_state(verdict, findings))
    if usability is not None and verdict.state in (*GREEN, State.DEGRADED):
        taken = {end for finding in findings if finding.status is Status.FOUND for end in finding.takes}
        left = set(usability.gpus) - taken
        if (verdict.gpus_served, verdict.gpus) != (len(left), len(usability.gpus)):
            wrong.append(f"{verdict.gpus_served} of {verdict.gpus} GPUs, but {len(left)} are not taken away")
    refuted = {path for finding in findings if finding.is_present for path in finding.refutes}
    if verdict.path in refuted:
        wrong.append(f"via {verdict.path.value if verdict.path else None}, which a finding refutes")
    if sample is not None and verdict.state in GREEN and not isinstance(sample.processes, Unknown):
        wrong += [
            f"green, but pid {process.pid} is {process.path.word.value}"
            for process in sample.processes
            if process.path.word in WITHOUT_GDR
        ]
    if sample is not None:
        up = {port.device for port in sample.ports if port.state == "ACTIVE"}
        down = (finding for finding in listed(findings) if finding.id in PORT_DOWN)
        wrong += [
            f"{finding.title}, but {finding.devices} are up" for finding in down if up >= {*finding.devices}
        ]
    return wrong


def _wrong_state(verdict: Verdict, findings: Sequence[Finding]) -> Iterator[str]:
    shown, costs = listed(findings), degrading(findings)
    critical = sum(finding.severity is Severity.CRITICAL for finding in shown)
    if (verdict.critical, verdict.warnings) != (critical, len(shown) - critical):
        yield f"{verdict.critical} critical and {verdict.warnings} warnings are counted, not what is listed"
    if verdict.state in GREEN and costs:
        yield f"green, but {costs[0].id} costs GPUs or bandwidth"
    if verdict.state is State.DEGRADED and not costs:
        yield "DEGRADED, but no finding costs GPUs or bandwidth"
    is_named = not costs or verdict.reason.startswith(costs[0].title)
    if verdict.state in (State.DEGRADED, State.BROKEN) and not is_named:
        yield f"the reason is {verdict.reason!r}, and the first finding is {costs[0].title!r}"
    if costs and costs[0] != shown[0]:
        yield f"{shown[0].id} is listed above {costs[0].id}, which is in the head"
    if verdict.state is State.BROKEN and not verdict.reason:
        yield "BROKEN without a reason"
    if verdict.state in (State.DEGRADED, State.BROKEN) and exit_status(verdict) not in (1, 2):
        yield f"{verdict.state.value} with exit status {exit_status(verdict)}"
    if verdict.state is State.BROKEN and (verdict.gpus_served or exit_status(verdict) != 2):
        yield "BROKEN with GPUs that have a NIC, or not critical"
