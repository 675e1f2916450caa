"""No judgment contradicts itself or another one: on all nodes, with all faults, and at every moment.

A node is judged as it is now, without its jobs, from a recording, as an image for its own hardware, and
second by second while a fault comes. tests/probes/setup/test_next_boot.py judges the next boot, and compares
it with a real one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from probes.checks.judgment import judge, listed
from probes.live.job_examination import examine_with_jobs
from probes.queries.finding import Status
from probes.setup.forecast import check_image
from probes.simulation.faults.catalogue import FAULTS, NoSuchFault
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.names import SIMULATED_NAMES
from probes.snapshot.verdict import State
from tests.support.contradictions import GREEN, contradictions
from tests.support.doctor import examination_of, findings_on
from tests.support.pilot import SteppedClock
from tests.support.recordings import recorded
from tests.support.simulated_jobs import evenly_paced
from tests.support.tiers import nodes_to_try, number_of, share, usual
from tui.runtime.node_monitor import NodeMonitor
from tui.runtime.snapshot import Snapshot, take_snapshot

LIVE_FAULTS = tuple(name for name, fault in FAULTS.items() if fault.is_live)
# In the fast tier: all views of a node take seconds a fault.
USUAL = ("acs-on", "no-gdr-path", "peermem-not-loaded", "port-down", "mig-with-gdr", "memlock-login")
SECONDS = 60  # by then every live fault has begun


def waiting(clock: SteppedClock) -> Callable[[float], None]:
    def wait(seconds: float) -> None:
        clock.now += seconds

    return wait


def wrong_in(snapshot: Snapshot) -> list[str]:
    judgment, usability = snapshot.judgment, snapshot.examination.usability
    return contradictions(judgment.verdict, judgment.findings, usability, snapshot.sample)


def wrong_without_jobs(name: str) -> list[str]:
    host = SimulatedHost(name, clock=SteppedClock())
    host.reboot(with_jobs=False)
    examination = examine_with_jobs(host)
    judgment = judge(examination)
    return contradictions(judgment.verdict, judgment.findings, examination.usability)


def wrong_now(name: str) -> list[str]:
    clock = SteppedClock()
    return wrong_in(take_snapshot(SimulatedHost(name, clock=clock), waiting(clock)))


def wrong_in_a_recording(name: str) -> list[str]:
    clock = SteppedClock()
    return wrong_in(take_snapshot(recorded(SimulatedHost(name, clock=clock), clock, 2)))


def wrong_in_an_image(name: str) -> list[str]:
    clock = SteppedClock()
    hardware = SimulatedHost(name.partition("+")[0], clock=clock)
    image = check_image(SimulatedHost(name, clock=clock), hardware)
    return contradictions(image.verdict, image.findings)


VIEWS: tuple[Callable[[str], list[str]], ...] = (
    wrong_now,
    wrong_in_a_recording,
    wrong_without_jobs,
    wrong_in_an_image,
)


@pytest.mark.slow
@pytest.mark.parametrize("name", SIMULATED_NAMES)
def test_no_view_of_a_node_contradicts_itself(name: str) -> None:
    assert [wrong for view in VIEWS for wrong in view(name)] == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", usual(FAULTS, USUAL))
def test_no_view_of_a_faulty_node_contradicts_itself(fault: str) -> None:
    views = VIEWS if fault in USUAL else share(VIEWS, turn=number_of(fault), parts=2)
    assert [wrong for view in views for wrong in view(f"{FAULTS[fault].on}+{fault}")] == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_no_fault_makes_a_contradiction_on_another_node(fault: str) -> None:
    for node in nodes_to_try(fault)[1:]:
        try:
            assert not wrong_now(f"{node}+{fault}"), node
            assert not wrong_without_jobs(f"{node}+{fault}"), node
        except NoSuchFault:
            continue


def watched(name: str, seconds: int) -> Iterator[NodeMonitor]:
    """Yield the monitor of a node at each second."""
    clock = SteppedClock()
    monitor = NodeMonitor(SimulatedHost(name, clock=clock))
    evenly_paced(monitor._live)
    for _ in range(seconds):
        monitor.read()
        if monitor.needs_check:
            monitor.check()
        yield monitor
        clock.now += 1.0


def wrong_while_watching(name: str, seconds: int) -> None:
    for second, monitor in enumerate(watched(name, seconds)):
        judgment, examination, sample = monitor.judgment, monitor.examination, monitor.sample
        assert sample is not None
        assert examination is not None
        wrong = contradictions(judgment.verdict, judgment.findings, examination.usability)
        assert not wrong, (name, second)
        # What the sample itself says is what it was judged by.
        if judgment.verdict == sample.verdict:
            wrong = contradictions(sample.verdict, judgment.findings, examination.usability, sample)
            assert not wrong, (name, second)


@pytest.mark.parametrize(
    "fault", usual(LIVE_FAULTS, {"gpu-off-bus-live", "nic-slow", "job-restarted-staged", "nic-flapping"})
)
def test_no_second_contradicts_itself_while_a_fault_comes(fault: str) -> None:
    wrong_while_watching(f"{FAULTS[fault].on}+{fault}", SECONDS)


@pytest.mark.slow
@pytest.mark.parametrize("fault", LIVE_FAULTS)
def test_no_second_contradicts_itself_on_another_node(fault: str) -> None:
    for node in nodes_to_try(fault):
        try:
            wrong_while_watching(f"{node}+{fault}", SECONDS)
        except NoSuchFault:
            continue


@pytest.mark.parametrize(("node", "slow"), [("cloud-vm", "mlx5_6"), ("hgx-h100", "0000:bc:00.0")])
def test_the_faults_of_two_nics_are_two_findings(node: str, slow: str) -> None:
    """One has no link from the start, and the PCIe link of the other becomes slower."""
    *_, monitor = watched(f"{node}+nic-link-retrained,port-disabled", 45)
    about = {device for finding in monitor.judgment.listed for device in finding.devices}
    assert {"mlx5_3", slow} <= about
    parts = [finding for finding in monitor.judgment.found if "disabled" in finding.part_of]
    assert [finding.id for finding in parts] == ["nccl-ib-hca-port-down"]


def test_one_bad_cable_is_one_finding_that_follows_the_port() -> None:
    listed_ids = []
    for monitor in watched("hgx-h100+nic-flapping", 100):
        listed_ids += [finding.id for finding in monitor.judgment.listed]
        assert len(monitor.judgment.listed) <= 1
    assert list(dict.fromkeys(listed_ids)) == ["ib-port-not-active", "link-flaps", "port-flapping"]


def test_a_lost_gpu_is_one_finding_and_marks_no_nic_of_its_job() -> None:
    *_, monitor = watched("hgx-h100+gpu-off-bus-live", 60)
    assert [finding.id for finding in monitor.judgment.listed] == ["xid-79-fell-off-bus"]
    assert "job-traffic-fell" in {finding.id for finding in monitor.judgment.found}
    assert {device for finding in monitor.judgment.found for device in finding.marked} == {"0000:9b:00.0"}


def test_a_job_that_was_restarted_without_gpudirect_rdma_is_the_headline() -> None:
    *_, monitor = watched("hgx-h100+job-restarted-staged", 45)
    (finding,) = monitor.judgment.listed
    assert re.fullmatch(r"train\.py copies through host memory since \d\d:\d\d:\d\d", finding.title)
    assert monitor.judgment.verdict.reason == f"{finding.title}. {finding.explained_by}"


def test_a_contradiction_is_seen() -> None:
    """The other side of all tests above: they do not pass because nothing is compared."""
    good, bad = examination_of("hgx-h100"), tuple(findings_on("hgx-h100+acs-on").values())
    verdict = judge(good).verdict
    assert verdict.state in GREEN
    assert contradictions(verdict, bad)
    assert not contradictions(verdict, tuple(findings_on("hgx-h100").values()), good.usability)
    assert listed(bad)
    assert any(finding.status is Status.FOUND for finding in bad)
    assert judge(examination_of("hgx-h100+acs-on")).verdict.state is State.DEGRADED
