"""What starts jobs on a node: Slurm, Kubernetes or neither, each in its own words."""

from __future__ import annotations

from probes.base.plan import Plan
from probes.base.unknown import Reason, Unknown
from probes.repair.scheduler import Scheduler, scheduler_of
from probes.setup.situation import read_situation
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine

WHY = "gdrtop repair: port-down mlx5_3"


def scheduler_on(host: SimulatedHost) -> Scheduler | None:
    return scheduler_of(host, read_situation(host, examine(host)))


def test_slurm_says_state_jobs_and_reason() -> None:
    host = SimulatedHost("hgx-h100")
    found = scheduler_on(host)
    assert found is not None
    assert (found.name, found.state, found.is_out, found.reason) == ("Slurm", "mixed", False, "")
    assert found.jobs == ("4711 (alice, RUNNING, 1:20:00 left)",)
    assert found.resume == "hgx-h100 is not drained"
    plan = found.drain(WHY)
    assert isinstance(plan, Plan)
    host.perform(plan.steps[0].argv)
    found = scheduler_on(host)
    assert found is not None
    assert (found.state, found.is_out, found.reason, found.jobs) == ("drained", True, WHY, ())
    assert isinstance(found.resume, Plan)
    (step,) = found.resume.steps
    assert step.argv == ("scontrol", "update", "NodeName=hgx-h100", "State=RESUME")
    assert step.undo[-1] == f"Reason={WHY}"


def test_a_slurm_that_does_not_answer_leaves_all_unknown() -> None:
    host = SimulatedHost("hgx-h100")
    host.tree.commands["sinfo"] = lambda argv, seconds: Unknown(Reason.TIMED_OUT, "sinfo")
    found = scheduler_on(host)
    assert found is not None
    assert all(isinstance(each, Unknown) for each in (found.state, found.is_out, found.jobs))
    assert isinstance(found.resume, str)
    assert isinstance(found.drain(WHY), str)


def test_a_node_of_kubernetes_is_cordoned_and_no_pod_is_evicted() -> None:
    host = SimulatedHost("pcie-l40s+k8s-operators")
    found = scheduler_on(host)
    assert found is not None
    assert (found.name, found.state, found.is_out) == ("Kubernetes", "schedulable", False)
    plan = found.drain(WHY)
    assert isinstance(plan, Plan)
    assert (plan.title, plan.steps[0].argv) == (
        f"Cordon pcie-l40s ({WHY})",
        ("kubectl", "cordon", "pcie-l40s"),
    )
    host.perform(plan.steps[0].argv)
    found = scheduler_on(host)
    assert found is not None
    assert (found.state, found.is_out) == ("cordoned", True)


def test_without_either_there_is_none() -> None:
    assert scheduler_on(SimulatedHost("pcie-l40s")) is None
