"""Judge the values of variables by the doctor's own checks, so that both always agree."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from probes.base.text import capitalized
from probes.base.unknown import Reason, Unknown, known
from probes.checks.registry import VARIABLE_AREAS, findings
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.jobs.nccl_conf import NcclConf
from probes.facts.jobs.processes import ProcessFacts
from probes.facts.rdma.devices import RdmaFacts
from probes.nccl.variables.catalogue import Version
from probes.queries.finding import Finding, Status
from probes.queries.jobs import NEW_JOBS
from probes.setup.env.assignments import Problem
from probes.snapshot.examination import Examination

_CHECKS = frozenset(check.id for area in VARIABLE_AREAS for check in area.checks) | {"roce-gid-wrong"}
_SET = re.compile(r"([A-Z][A-Za-z0-9_]{1,63})=")
_LOGIN_NODE = Unknown(Reason.NOT_THERE, "/sys/class/infiniband", "not compared: this node has no GPU")


def has_gpus_and_nics(examination: Examination) -> bool:
    """Return whether names of NICs and distances can be compared with this node."""
    gpus, rdma = examination.node.gpus, examination.node.rdma
    return (
        isinstance(gpus, GpuFacts) and bool(gpus.gpus) and isinstance(rdma, RdmaFacts) and bool(rdma.devices)
    )


def with_settings(examination: Examination, values: Mapping[str, str], version: Version = ()) -> Examination:
    """Return the node as if a new job had these variables and this NCCL, and no other job were running."""
    facts = examination.processes
    taken_at = 0.0 if isinstance(facts, Unknown) else facts.taken_at
    conf = NcclConf(dict(values), ())
    changed = replace(examination, processes=ProcessFacts((), 0, 0, conf, taken_at, new_jobs_nccl=version))
    if has_gpus_and_nics(examination):
        return changed
    return replace(changed, node=replace(examination.node, rdma=_LOGIN_NODE))


def judge(examination: Examination, values: Mapping[str, str], version: Version = ()) -> tuple[Problem, ...]:
    """Return what the doctor finds in these settings, the most severe first; (): an unknown version."""
    if not values:
        return ()
    found = [
        finding
        for finding in findings(with_settings(examination, values, version), only=_CHECKS)
        if finding.status is Status.FOUND
    ]
    reported = {finding.id for finding in found}
    return tuple(
        _problem(finding, variable)
        for finding in found
        if finding.part_of not in reported
        for variable in _variables(finding, values)
    )


def _variables(finding: Finding, values: Mapping[str, str]) -> list[str]:
    """Return the variables in a finding's evidence; without one it is not about these settings."""
    matches = (_SET.match(line.value) for line in finding.evidence)
    return list(dict.fromkeys(match[1] for match in matches if match and match[1] in values))


def _problem(finding: Finding, variable: str) -> Problem:
    cause = finding.cause.removeprefix(f"{NEW_JOBS}: ")
    steps = () if finding.fix is None else finding.fix.steps
    remark = next((line.value for line in finding.evidence if line.value.startswith(f"{variable}=")), "")
    shown = re.search(r" \((.{1,200})\)$", remark)
    detail = capitalized(cause)
    if shown and len(shown[1].split()) > 3:  # shorter remarks only repeat the title
        detail = f"{capitalized(shown[1])}. {detail}"
    return Problem(0, finding.severity, finding.title, detail, steps[0].why if steps else "", variable)


def conf_values(examination: Examination) -> dict[str, str]:
    """Return what the node's own /etc/nccl.conf sets."""
    facts = examination.processes
    conf = None if isinstance(facts, Unknown) else known(facts.nccl_conf, None)
    return {} if conf is None else dict(conf.values)
