"""What goes wrong while gdrtop watches is a finding, on the node and in its verdict, until it has ended."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Maybe, Reason, Unknown
from probes.checks.judgment import Judgment, exit_status
from probes.host.nvml import NvmlLive
from probes.host.ras import VERBOSE_STATUS
from probes.live.model.sample import EventKind, LiveEvent, Role
from probes.live.ras.findings import conditions_of
from probes.live.ras.targets import RasUse, find_targets
from probes.queries.finding import Status
from probes.simulation.faults.catalogue import FAULTS
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.names import SIMULATED_NAMES
from probes.snapshot.verdict import State
from tests.support.doctor import place_of_check, place_of_fault
from tests.support.pilot import SteppedClock
from tests.support.simulated_jobs import evenly_paced
from tui.runtime.node_monitor import NodeMonitor
from tui.runtime.ras_questions import RasQuestions

GREEN = (State.ACTIVE, State.READY)
SHOWN = {name: fault for name, fault in FAULTS.items() if fault.shows}
# Seconds after which each of them is a finding, counted from the start of gdrtop.
LATEST = {"congestion": 110, "rank-behind": 80, "nic-flapping": 70, "job-hung": 70}
LATEST |= {"plane-unused": 75, "nic-uneven": 320}


@dataclass
class Watched:
    """A node that is watched second by second."""

    name: str
    clock: SteppedClock = field(default_factory=SteppedClock)
    events: list[LiveEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.host = SimulatedHost(self.name, clock=self.clock)
        self.monitor = NodeMonitor(self.host)
        evenly_paced(self.monitor._live)

    def step(self, seconds: int = 1) -> Judgment:
        for _ in range(seconds):
            sample = self.monitor.read()
            self.events += sample.events
            if self.monitor.needs_check:
                self.monitor.check()
            self.clock.now += 1.0
        return self.monitor.judgment

    @property
    def found(self) -> set[str]:
        return {finding.id for finding in self.monitor.judgment.found}

    def ask_ras(self) -> None:
        """Ask the job's RAS service twice, as an admin would on the RAS screen."""
        questions = RasQuestions(self.host)
        sample = self.monitor.sample
        assert sample is not None
        for _ in range(2):
            (target,) = find_targets(self.host, sample)
            questions.confirm(target, VERBOSE_STATUS, questions.decide(target, RasUse.ONCE))
            answer = questions.ask(target, VERBOSE_STATUS, RasUse.ONCE, sample)
            jobs = [job for job in sample.jobs if job.role is Role.NCCL]
            self.monitor.note(target.name, conditions_of(answer.found, answer.taken_at, answer.address, jobs))
            self.step(15)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_a_fault_that_comes_while_watching_is_found(name: str) -> None:
    fault = SHOWN[name]
    watched = Watched(f"{fault.on}+{name}")
    expected = fault.shows - {"ras-problem"}
    for _ in range(LATEST.get(name, 60)):
        watched.step()
        if expected <= watched.found:
            break
    if "ras-problem" in fault.shows:
        watched.ask_ras()
        expected = fault.shows
    missing = [place_of_check(id_) for id_ in sorted(expected - watched.found)]
    assert not missing, f"{place_of_fault(name)}: not found within the time: {missing}"
    shown = [finding for finding in watched.monitor.judgment.found if finding.id in fault.shows]
    assert all(finding.since is not None and finding.cause and finding.evidence for finding in shown)
    is_degraded = watched.monitor.judgment.verdict.state not in GREEN
    assert is_degraded == any(finding.data_path or finding.takes for finding in shown)


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", ",nccl-one-path"])
def test_a_collision_is_one_finding_with_its_cure(more: str) -> None:
    watched = Watched(f"oci-h100+ecmp-collision{more}")
    judgment = watched.step(100)
    found = {finding.id: finding for finding in judgment.found}
    slow, root = found["nic-slow-in-job"], found["nccl-one-path" if more else "nic-slow-in-job"]
    assert slow.title.startswith("An ECMP collision likely slows mlx5_12 of train.py since ")
    assert slow.fix is not None
    assert any("NCCL_IB_QPS_PER_CONNECTION=4" in step.why for step in slow.fix.steps)
    assert [finding.id for finding in judgment.listed] == [root.id]
    assert (root.severity, root.data_path) == (Severity.WARNING, True)
    assert "network-congested" not in found


@pytest.mark.slow
def test_congestion_of_all_nics_is_an_incast_and_no_collision() -> None:
    watched = Watched("oci-h100+congestion")
    watched.step(100)
    (found,) = (each for each in watched.monitor.judgment.found if each.id == "network-congested")
    assert "several senders to one receiver (incast)" in found.cause
    assert "nic-slow-in-job" not in watched.found


@pytest.mark.slow
def test_a_lost_gpu_is_in_the_verdict_within_three_samples() -> None:
    watched = Watched("hgx-h100+gpu-off-bus-live")
    watched.step(15)
    assert watched.monitor.judgment.verdict.state in GREEN
    verdict = watched.step(3).verdict
    assert (verdict.state, verdict.gpus_served, verdict.gpus) == (State.DEGRADED, 7, 8)
    assert verdict.reason.startswith("A GPU has fallen off the bus")
    for _ in range(75):
        assert watched.step().verdict.state is State.DEGRADED


@pytest.mark.slow
def test_ranks_with_one_cause_are_one_event_and_one_finding() -> None:
    watched = Watched("hgx-h100+job-restarted-staged")
    judgment = watched.step(50)
    changes = [event for event in watched.events if event.kind is EventKind.PATH_CHANGED]
    assert len(changes) == 1
    assert changes[0].text.startswith("ranks 0-7 of train.py (alice, Slurm job 4711)")
    (staged,) = (finding for finding in judgment.found if finding.id == "job-staged")
    assert len(staged.ranks) == 8
    assert len(judgment.listed) == 1


@pytest.mark.slow
def test_a_finding_ends_with_its_condition_and_says_so() -> None:
    watched = Watched("hgx-h100")
    watched.step(20)
    path = "/sys/class/infiniband/mlx5_3"
    state = f"{watched.host.tree.real(path)}/ports/1/state"
    watched.host.tree.add(state, "1: DOWN\n")
    assert watched.step(3).verdict.state is State.DEGRADED
    assert any("mlx5_3" in finding.devices for finding in watched.monitor.judgment.listed)
    watched.host.tree.add(state, "4: ACTIVE\n")
    assert watched.step(40).verdict.state is State.ACTIVE
    ended = [event.text for event in watched.events if event.kind is EventKind.ENDED]
    assert any(text.startswith("ended: ") and "mlx5_3" in text for text in ended)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hgx-h100", "dgx-a100", "gb200"])
def test_a_healthy_job_stays_green_for_minutes(name: str) -> None:
    watched = Watched(name)
    for _ in range(240):
        judgment = watched.step()
        assert judgment.verdict.state in GREEN, [finding.id for finding in judgment.listed]


@pytest.mark.parametrize("name", ["job-hung", "rank-behind"])
def test_a_job_that_hangs_is_one_finding_whether_or_not_it_was_seen_to_move(name: str) -> None:
    watched = Watched(f"hgx-h100+{name}")
    judgment = watched.step(85)
    assert (judgment.verdict.state, exit_status(judgment.verdict)) == (State.DEGRADED, 1)
    (found,) = judgment.listed
    assert (found.id, found.jobs) == ("job-silent", ("train.py (alice, Slurm job 4711)",))
    assert (len(found.devices), len(found.ranks)) == (8, 8)
    assert ("at least since gdrtop began to look" in found.cause) == (name == "job-hung")
    assert "7 of its 8 GPUs are busy" in found.cause
    assert any(event.kind is EventKind.FOUND and "moves no data" in event.text for event in watched.events)


@pytest.mark.parametrize("name", ["rank-stopped", "task-hung-in-driver"])
def test_the_silence_of_a_job_has_its_cause_and_the_node_is_not_green(name: str) -> None:
    watched = Watched(f"hgx-h100+{name}")
    judgment = watched.step(100)
    assert judgment.verdict.state is State.DEGRADED
    (silent,) = (finding for finding in judgment.found if finding.id == "job-silent")
    assert silent.part_of == name


@pytest.mark.slow
@pytest.mark.parametrize("name", SIMULATED_NAMES)
def test_no_job_of_a_healthy_node_is_silent(name: str) -> None:
    """Its checkpoints, computations and idle GPUs are no alarm; also where nothing can be known."""
    watched = Watched(name)
    watched.step(93)
    assert "job-silent" not in watched.found


class SilentHost(SimulatedHost):
    """A node on which NVML answers nothing about the present."""

    def nvml_live(self) -> Maybe[tuple[NvmlLive, ...]]:
        return Unknown(Reason.TIMED_OUT, "NVML")


def test_nothing_is_ok_whose_figures_are_unknown() -> None:
    watched = Watched("hgx-h100")
    watched.monitor = NodeMonitor(SilentHost("hgx-h100", clock=watched.clock))
    watched.step(20)
    outcomes = {finding.id: finding for finding in watched.monitor.check().findings}
    throttled = outcomes["gpu-throttled"]
    assert throttled.status is Status.UNKNOWN
    assert "timed out" in throttled.cause
    assert outcomes["port-paused"].status is Status.PASSED


def test_a_silent_job_whose_gpus_cannot_be_read_is_unknown() -> None:
    watched = Watched("hgx-h100+job-hung")
    watched.monitor = NodeMonitor(SilentHost("hgx-h100+job-hung", clock=watched.clock))
    evenly_paced(watched.monitor._live)
    watched.step(95)
    (silent,) = (each for each in watched.monitor.judgment.findings if each.id == "job-silent")
    assert silent.status is Status.UNKNOWN
    assert "timed out" in silent.cause


@pytest.mark.slow
def test_a_problem_that_can_no_longer_be_seen_has_not_ended() -> None:
    watched = Watched("hgx-h100+gpu-throttled-live")
    watched.step(60)
    assert "gpu-throttled" in {finding.id for finding in watched.monitor.judgment.found}
    watched.events.clear()
    watched.monitor.host = SilentHost("hgx-h100+gpu-throttled-live", clock=watched.clock)
    watched.step(30)
    assert "gpu-throttled" not in {finding.id for finding in watched.monitor.judgment.found}
    assert [event.text for event in watched.events if event.kind is EventKind.ENDED] == []
