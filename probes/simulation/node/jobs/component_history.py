"""The earlier jobs of a simulated node, as `gdrtop watch` would have kept them."""

from __future__ import annotations

from probes.base.unknown import known
from probes.host.component_history import Component, ComponentHistory, JobPart, PastJob
from probes.simulation.node.jobs.processes import JOB
from probes.simulation.node.model.tree import Tree, uuid_of

_JOBS, _NOT_SLOW_IN = 9, (1, 5)
_HOUR = 3600.0
_COMPARED_SHARE, _SLOW_SHARE = 0.8, 0.9


def component_history(tree: Tree, at: float) -> ComponentHistory:
    """Return nine jobs, of which the last one ended an hour before `at` (seconds since 1970)."""
    jobs = []
    for number in range(_JOBS):
        ended = at - _HOUR - number * 50 * _HOUR
        seconds = (6 + 7 * number % 11) * _HOUR
        name = f"{JOB.script} ({JOB.user}, Slurm job {JOB.slurm_job - 1 - number})"
        jobs.append(PastJob(name, ended - seconds, ended))
    components = []
    compared = len(tree.compute_nics) >= 3
    for nic in tree.compute_nics:
        is_slow = nic.name in tree.slow_before
        parts = []
        for number, job in enumerate(jobs):
            seconds = _COMPARED_SHARE * (job.ended - job.began) if compared else 0.0
            slow = _SLOW_SHARE * seconds if is_slow and number not in _NOT_SLOW_IN else 0.0
            parts.append(JobPart(number, seconds, slow))
        guid = known(tree.content(f"{nic.path}/infiniband/{nic.name}/node_guid", 0.0), b"").decode().strip()
        identity = f"{guid or nic.bdf}/1"
        components.append(Component(identity, nic.name, is_gpu=False, bdf=nic.bdf, parts=tuple(parts)))
    for number, gpu in enumerate(tree.gpus):
        parts = [JobPart(job) for job in range(_JOBS)]
        components.append(Component(uuid_of(number), f"GPU {number}", True, gpu.bdf, tuple(parts)))
    return ComponentHistory(jobs[-1].began, jobs[0].ended, tuple(jobs), tuple(components))
