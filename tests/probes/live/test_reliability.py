"""What counts as slow, and which events of a component are counted, during its jobs and outside them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Reason, Unknown
from probes.checks.judgment import judge
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.node import Node, probe_node
from probes.facts.rdma.devices import RdmaFacts
from probes.host.component_history import Component, ComponentHistory, JobPart, Mark
from probes.live.events.detectors import EventDetector
from probes.live.model.sample import EventKind, LiveEvent, LiveSample, OddOne, Role, SlowestNic, SlowestRank
from probes.live.reliability import (
    ComponentTally,
    JobChange,
    PartChange,
    Share,
    costs_of,
    identities_of,
    past_by_device,
    slow_text,
)
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.names import SIMULATED_NAMES
from tests.support.doctor import examination_of
from tests.support.live_samples import a_job, a_port, a_process, a_sample, gpu_bdf

SLOW = SlowestNic("mlx5_5", 120.0)


@cache
def node() -> Node:
    """A node whose GPUs have the addresses of the samples."""
    found = probe_node(SimulatedHost("hgx-h100"), seconds=60.0)
    assert isinstance(found.gpus, GpuFacts)
    gpus = tuple(replace(gpu, bdf=gpu_bdf(number)) for number, gpu in enumerate(found.gpus.gpus))
    return replace(found, gpus=replace(found.gpus, gpus=gpus))


def event(kind: EventKind, subject: str, severity: Severity = Severity.WARNING) -> LiveEvent:
    return LiveEvent(0.0, kind, severity, subject, f"{subject} …")


def a_second(at: int, **parts: Any) -> LiveSample:
    job = replace(a_job(), gpus=tuple(gpu_bdf(number) for number in range(8)), **parts.pop("job", {}))
    return a_sample(float(at), **{"jobs": (job,), **parts})


def tally_of(*samples: LiveSample) -> ComponentTally:
    tally = ComponentTally()
    for sample in samples:
        tally.update(sample, node())
    return tally


def the_job(tally: ComponentTally) -> JobChange:
    changes = tally.changes()
    assert changes is not None
    (job,) = changes.jobs
    return job


def part_of(tally: ComponentTally, name: str) -> PartChange:
    return the_job(tally).parts[identities_of(node())[name].id]


def test_the_slow_nic_of_a_job_is_counted_and_the_others_are_compared() -> None:
    slow = [a_second(at, job={"slowest_nic": SLOW}) for at in range(0, 81)]
    tally = tally_of(*slow, *(a_second(at) for at in range(81, 101)))
    assert (part_of(tally, "mlx5_5").compared_seconds, part_of(tally, "mlx5_5").slow_seconds) == (100, 80)
    assert (part_of(tally, "mlx5_0").compared_seconds, part_of(tally, "mlx5_0").slow_seconds) == (100, 0)


def test_a_nic_below_half_of_the_others_is_slow_too() -> None:
    odd = OddOne("mlx5_5", "mlx5_5 carries …", device="mlx5_5", aspect="rate")
    tally = tally_of(*(a_second(at, job={"odd": (odd,)}) for at in range(0, 101)))
    assert part_of(tally, "mlx5_5").slow_seconds == 100


@pytest.mark.parametrize(
    "parts",
    [
        {"ports": tuple(a_port(number, 0.01) for number in range(8))},  # the job computes
        {"ports": tuple(a_port(number, Unknown(Reason.IO_ERROR)) for number in range(8))},
        {"ports": (a_port(0), a_port(1))},  # some are gone
        {"job": {"nics": ("mlx5_0", "mlx5_5")}},  # of two, neither is the slow one
    ],
)
def test_where_nics_cannot_be_compared_none_is_slow(parts: dict[str, Any]) -> None:
    job = {"slowest_nic": SLOW, **parts.pop("job", {})}
    tally = tally_of(*(a_second(at, job=job, **parts) for at in range(0, 101)))
    assert part_of(tally, "mlx5_5") == PartChange()


def test_nics_that_two_jobs_share_are_not_compared() -> None:
    first = replace(a_job(), slowest_nic=SLOW)
    first = replace(first, shared_nics=frozenset(first.nics))
    jobs = (first, replace(first, id="other"))
    tally = tally_of(*(a_second(at, jobs=jobs) for at in range(0, 101)))
    changes = tally.changes()
    assert changes is not None
    assert [part for job in changes.jobs for part in job.parts.values() if part != PartChange()] == []


def test_the_gpu_of_the_slowest_rank_is_slow_where_the_inspector_measures() -> None:
    ranks = tuple(a_process(number, bus_gbps=300.0) for number in range(8))
    slowest = SlowestRank(ranks[2].pid, 200.0, 300.0, "AllReduce", 7, "c")
    job = {"slowest": slowest}
    tally = tally_of(*(a_second(at, job=job, processes=ranks) for at in range(0, 101)))
    assert part_of(tally, gpu_bdf(2)).slow_seconds == part_of(tally, gpu_bdf(3)).compared_seconds == 100
    unmeasured = tally_of(*(a_second(at, job=job) for at in range(0, 101)))
    assert part_of(unmeasured, gpu_bdf(2)) == PartChange()


def test_a_short_job_is_not_kept_and_daemons_are_no_jobs() -> None:
    seconds = [a_second(at) for at in range(0, 50)]
    assert tally_of(*seconds, a_sample(50.0, jobs=())).changes() is None
    storage = [a_second(at, job={"role": Role.STORAGE}) for at in range(0, 200)]
    assert tally_of(*storage).changes() is None


def test_a_job_that_has_ended_is_written_once() -> None:
    tally = tally_of(*(a_second(at) for at in range(0, 100)), a_sample(100.0, jobs=()))
    job = the_job(tally)
    assert (job.id, job.until - job.began) == ("job", 99)
    tally.forget()
    assert tally.changes() is None


def test_what_is_written_is_not_counted_again() -> None:
    tally = tally_of(*(a_second(at) for at in range(0, 101)))
    assert part_of(tally, "mlx5_0").compared_seconds == 100
    tally.forget()
    tally.update(a_second(103), node())
    assert part_of(tally, "mlx5_0").compared_seconds == 3
    assert the_job(tally).began < the_job(tally).since


def test_events_count_for_the_day_and_for_the_jobs_of_the_component() -> None:
    happened = (
        event(EventKind.ERRORS_RISING, "mlx5_3"),
        event(EventKind.XID, gpu_bdf(2), Severity.CRITICAL),
        event(EventKind.PORT_RATE, "mlx5_4", Severity.NOTE),  # it is back
        event(EventKind.MODULE_UNLOADED, "nvidia_peermem"),
    )
    tally = tally_of(
        *(a_second(at) for at in range(0, 70)),
        a_second(70, downs=("mlx5_3",), events=happened),
        a_second(71),
        a_sample(72.0, jobs=()),
        a_sample(73.0, jobs=(), events=(event(EventKind.ERRORS_RISING, "mlx5_3"),)),
    )
    assert part_of(tally, "mlx5_3").counts == {Mark.DOWN: 1, Mark.ERRORS: 1}
    assert part_of(tally, gpu_bdf(2)).counts == {Mark.XID: 1}
    changes = tally.changes()
    assert changes is not None
    ids = {name: identity.id for name, identity in identities_of(node()).items()}
    counted = {(component, mark): number for (_, component, mark), number in changes.days.items()}
    assert counted == {
        (ids["mlx5_3"], Mark.DOWN): 1,
        (ids["mlx5_3"], Mark.ERRORS): 2,
        (ids[gpu_bdf(2)], Mark.XID): 1,
    }


def test_a_flapping_port_is_counted_each_time_that_live_sees_it_go_down() -> None:
    detector, tally = EventDetector(), ComponentTally()
    for at in range(75):
        is_down = at in (60, 62, 64, 66, 67)
        ports = tuple(
            a_port(number, state="DOWN" if is_down and number == 3 else "ACTIVE") for number in range(8)
        )
        sample = detector.update(a_second(at, ports=ports), ())
        tally.update(sample, node())
    assert part_of(tally, "mlx5_3").counts == {Mark.DOWN: 4}


def test_an_event_of_many_ports_counts_for_each() -> None:
    rising = replace(event(EventKind.ERRORS_RISING, "mlx5_0"), others=("mlx5_1", "mlx5_2"))
    tally = tally_of(a_second(0), a_second(1, events=(rising,)))
    changes = tally.changes()
    assert changes is not None
    ids = identities_of(node())
    assert {name for _, name, _ in changes.days} == {ids[f"mlx5_{number}"].id for number in range(3)}


def test_components_keep_their_identity_when_their_names_change() -> None:
    before = identities_of(node())
    assert isinstance(node().rdma, RdmaFacts)
    devices = tuple(replace(device, name=f"rocep{device.name}") for device in node().rdma.devices)
    after = identities_of(replace(node(), rdma=replace(node().rdma, devices=devices)))
    assert after["rocepmlx5_5"].id == before["mlx5_5"].id
    assert before[gpu_bdf(0)].id.startswith("GPU-")


def test_without_a_guid_the_address_is_the_identity() -> None:
    assert isinstance(node().rdma, RdmaFacts)
    devices = tuple(replace(device, node_guid="0000:0000:0000:0000") for device in node().rdma.devices)
    found = identities_of(replace(node(), rdma=replace(node().rdma, devices=devices)))
    assert found["mlx5_5"].id == f"{found['mlx5_5'].bdf}/1"


def component(slow: int, compared: int, **parts: Any) -> Component:
    jobs = [JobPart(job, 3600.0, 3600.0 if job < slow else 0.0) for job in range(compared)]
    return Component("a", "mlx5_5", is_gpu=False, bdf="0000:9c:00.0", parts=tuple(jobs), **parts)


def test_how_often_a_nic_was_slow_is_said_only_for_enough_jobs() -> None:
    assert slow_text(component(7, 9)) == "mlx5_5 was the slow NIC in 7 of its last 9 jobs"
    assert slow_text(component(2, 2)) == slow_text(component(0, 9)) == ""
    assert slow_text(component(5, 30)) == "mlx5_5 was the slow NIC in 5 of its last 10 jobs"
    assert [component(slow, 9).stands_out for slow in (4, 5)] == [False, True]


def test_a_short_slowdown_and_a_short_comparison_do_not_count() -> None:
    brief = JobPart(0, 3600.0, 300.0), JobPart(1, 3600.0, 300.0), JobPart(2, 3600.0, 400.0)
    short = JobPart(3, 50.0, 50.0)
    found = replace(component(0, 0), parts=(*brief, short))
    assert slow_text(found) == "mlx5_5 was the slow NIC in 1 of its last 3 jobs"


def history_of(*components: Component) -> ComponentHistory:
    return ComponentHistory(0.0, 0.0, (), components)


def past_of(history: ComponentHistory, node: Node, device: str) -> str:
    return past_by_device(history, node).get(device, "")


def test_the_past_of_a_device_has_its_events() -> None:
    here = replace(component(7, 9, counts={"down": 3, "errors": 1}), id=identities_of(node())["mlx5_5"].id)
    slow = "mlx5_5 was the slow NIC in 7 of its last 9 jobs"
    events = "went down 3 times and had rising errors once"
    assert past_of(history_of(here), node(), "mlx5_5") == f"{slow}; it {events}"
    assert past_of(history_of(replace(here, parts=())), node(), "mlx5_5") == f"mlx5_5 {events}"
    assert past_of(history_of(here), node(), "mlx5_0") == ""


def test_the_past_follows_a_renamed_nic_and_is_not_that_of_a_replaced_one() -> None:
    here = identities_of(node())["mlx5_5"].id
    renamed = replace(component(7, 9), id=here, name="mlx5_0")
    assert past_of(history_of(renamed), node(), "mlx5_5") == "mlx5_5 was the slow NIC in 7 of its last 9 jobs"
    assert past_of(history_of(renamed), node(), "mlx5_0") == ""
    replaced = replace(component(7, 9), id="another GUID/1")
    assert past_of(history_of(replaced), node(), "mlx5_5") == ""
    assert past_of(history_of(replaced, replace(component(0, 9), id=here)), node(), "mlx5_5") == ""


def test_the_past_of_a_nic_has_each_of_its_ports() -> None:
    assert isinstance(node().rdma, RdmaFacts)
    devices = tuple(
        replace(device, ports=(*device.ports, replace(device.ports[0], number=2)))
        for device in node().rdma.devices
    )
    two_ports = replace(node(), rdma=replace(node().rdma, devices=devices))
    second = identities_of(two_ports)["mlx5_5/2"].id
    history = history_of(replace(component(0, 9, counts={"errors": 1}), id=second))
    assert past_of(history, two_ports, "mlx5_5") == "mlx5_5/2 had rising errors once"


# GPU time with findings that cost bandwidth


def losses_of(name: str, *samples: LiveSample) -> dict[str, tuple[float, ...]]:
    examination = examination_of(name)
    findings, tally = judge(examination).listed, ComponentTally()
    for sample in samples:
        tally.update(replace(sample, findings=findings), node(), examination.topology)
    changes = tally.changes()
    return {} if changes is None else {finding: row for (_, finding), row in changes.losses.items()}


def seconds(held: tuple[str, ...]) -> list[LiveSample]:
    return [a_sample(float(at), jobs=(replace(a_job(), gpus=held),)) for at in range(0, 101)]


def test_a_port_that_is_down_takes_half_of_two_gpus_and_only_one_is_in_a_job() -> None:
    near = ("0000:18:00.0", "0000:19:00.0")
    found = losses_of("hgx-h100+port-down", *seconds(near[:1]))
    assert found == dict.fromkeys(("ib-port-not-active", ""), (200.0, 200.0, 100.0, 100.0, 50.0))
    assert losses_of("hgx-h100+port-down", *seconds(()))[""] == (200.0, 200.0, 0.0, 0.0, 0.0)


def test_a_share_that_no_source_gives_and_jobs_that_could_not_be_read_are_unknown() -> None:
    found = losses_of("hgx-h100+acs-on", *seconds(("0000:18:00.0",)))
    assert found["acs-redirect-enabled"] == (800.0, 800.0, 100.0, 0.0, 0.0)
    unread = (replace(each, processes=Unknown(Reason.TIMED_OUT, "")) for each in seconds(("0000:18:00.0",)))
    assert losses_of("hgx-h100+port-down", *unread)[""] == (200.0, 0.0, 0.0, 0.0, 0.0)


def test_a_gpu_with_two_findings_counts_once_in_all() -> None:
    topology = examination_of(both := "hgx-h100+port-down,job-tcp").topology
    costs = costs_of(judge(examination_of(both)).listed, topology)
    assert costs[""]["0000:18:00.0"] == Share(0.5, is_known=False)
    assert costs[""]["0000:3a:00.0"] == Share(0.0, is_known=False)
    assert len(costs[""]) == len(topology.gpus)
    found = losses_of(both, *seconds(("0000:18:00.0",)))
    assert found[""] == (800.0, 800.0, 100.0, 0.0, 50.0)


def test_a_lost_gpu_loses_its_own_paths_alone() -> None:
    examination = examination_of("hgx-h100+xid-79-fell-off-bus")
    costs = costs_of(judge(examination).listed, examination.topology)
    (lost,) = costs[""]
    assert costs[""][lost] == Share(1.0, is_known=True)


@pytest.mark.parametrize("name", SIMULATED_NAMES)
def test_a_healthy_node_loses_nothing(name: str) -> None:
    examination = examination_of(name)
    costs = costs_of(judge(examination).listed, examination.topology)
    assert not any(share.least for shares in costs.values() for share in shares.values()), costs
