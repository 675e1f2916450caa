"""What starts jobs on a node, in its own words: Slurm, or Kubernetes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from probes.base.frozen import frozen
from probes.base.plan import Plan, Step, make_plan
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.jobs.processes import groups_of, job_name
from probes.facts.node import host_name
from probes.facts.system.kubernetes import KubernetesFacts
from probes.host.protocol import Host
from probes.queries.jobs import jobs_of
from probes.setup.situation import Situation
from probes.slurm.slurm_node import SlurmNode, drain_plan, is_node_name, read_jobs, read_node, resume_plan
from probes.snapshot.examination import Examination

_CORDON = "Cordon and not drain: kubectl drain evicts pods, and gdrtop ends no job."


@frozen
class Scheduler:
    """A scheduler, and this node in it."""

    name: str  # "Slurm", "Kubernetes"
    node: str  # as the scheduler calls it
    state: Maybe[str]  # in its word: "drained", "cordoned"
    is_out: Maybe[bool]  # no further job starts
    reason: str  # why it is out; "" if none was given
    jobs: Maybe[tuple[str, ...]]  # that still run there
    drain: Callable[[str], Plan | str]  # for a reason; why the node stays in service
    resume: Plan | str  # why it stays out

    @property
    def summary(self) -> str:
        """Return "Slurm: gpu01 is drained", or why that is unknown."""
        if isinstance(self.state, Unknown):
            return f"{self.name}: the state of {self.node} is unknown ({self.state})"
        return f"{self.name}: {self.node} is {self.state}"


def scheduler_of(host: Host, situation: Situation) -> Scheduler | None:
    """Ask the scheduler about this node; of both, Slurm. None: the node shows neither."""
    name = known(host_name(situation.examination.node), "")
    given = known(host.environment("SLURMD_NODENAME"), "")
    if given or not isinstance(situation.slurm, Unknown):
        return _slurm(host, tuple(dict.fromkeys((given, name, name.partition(".")[0]))))
    facts = situation.kubernetes
    return None if isinstance(facts, Unknown) else _kubernetes(facts, name, jobs_on(situation.examination))


def _slurm(host: Host, names: tuple[str, ...]) -> Scheduler:
    """Return the first of these names that Slurm knows, else why it knows none."""
    found: Maybe[SlurmNode] = Unknown(Reason.NOT_THERE, "sinfo", "the node has no name that Slurm can have")
    for name in filter(is_node_name, names):
        found = read_node(host, name)
        if not isinstance(found, Unknown):
            reason, jobs = found.reason if found.is_out else "", read_jobs(host, name)
            plans = partial(drain_plan, found), resume_plan(found, in_repair=True)
            return Scheduler("Slurm", name, found.state, found.is_out, reason, jobs, *plans)
    assert isinstance(found, Unknown)
    why = str(found)
    return Scheduler("Slurm", names[-1], found, found, "", found, lambda _: why, why)


def _kubernetes(facts: KubernetesFacts, name: str, jobs: Maybe[tuple[str, ...]]) -> Scheduler:
    """Return the node, which is cordoned and not drained: draining evicts pods."""
    node, tool = known(facts.node, name), known(facts.tool, "kubectl")
    head = (tool, "adm") if tool == "oc" else (tool,)
    cordon, uncordon = (*head, "cordon", node), (*head, "uncordon", node)
    out = Step(f"Let no further pod start on {node}", cordon, needs_root=False, undo=uncordon)
    back = Step(f"Let pods start on {node} again", uncordon, needs_root=False, undo=cordon)
    return Scheduler(
        "Kubernetes",
        node,
        state=map_known(facts.is_cordoned, lambda is_out: "cordoned" if is_out else "schedulable"),
        is_out=facts.is_cordoned,
        reason="",
        jobs=jobs,
        drain=lambda reason: make_plan(f"Cordon {node} ({reason})", out, note=_CORDON),
        resume=make_plan(f"Uncordon {node}", back),
    )


def jobs_on(examination: Examination) -> Maybe[tuple[str, ...]]:
    """Return the programs that use GPUs here, without those that only watch or serve them."""
    jobs = jobs_of(examination)
    if jobs.unseen:
        return Unknown(Reason.NEEDS_PERMISSION, "/proc", f"to see all jobs: {jobs.unseen}")
    return tuple(job_name(group[0]) for group in groups_of(jobs.processes))
