"""A silenced finding counts for nothing but is still there; what it takes away stays away."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from functools import cache

import pytest

from probes.base.site import Silence, Site, set_site
from probes.base.unknown import Reason, Unknown
from probes.checks.judgment import Judge, Judgment, conclude, exit_status, judge
from probes.facts.gpudirect import GdrPath
from probes.live.job_examination import examine_with_jobs
from probes.queries.finding import Finding, Status
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination
from probes.snapshot.verdict import State

ACS, PORT, LOST = "acs-redirect-enabled", "ib-port-not-active", "xid-79-fell-off-bus"
FAR = date(2099, 12, 31)


@pytest.fixture(autouse=True)
def nothing_is_silenced_afterwards() -> Iterator[None]:
    yield
    set_site(Site())


@cache
def examined(fault: str) -> Examination:
    return examine_with_jobs(SimulatedHost(f"hgx-h100+{fault}"))


def judged(fault: str, *silences: Silence) -> Judgment:
    set_site(Site(silences=silences))
    return judge(examined(fault))


def finding(judgment: Judgment, name: str) -> Finding:
    return next(each for each in judgment.findings if each.id == name)


def test_a_silenced_warning_counts_for_nothing_and_is_still_there() -> None:
    before = judged("acs-on").verdict
    assert (before.state, before.warnings, exit_status(before)) == (State.DEGRADED, 1, 1)
    judgment = judged("acs-on", Silence(ACS, "ticket 4711", FAR))
    verdict = judgment.verdict
    assert (verdict.state, verdict.warnings, verdict.silenced) == (State.ACTIVE, 0, 1)
    assert exit_status(verdict) == 0
    assert finding(judgment, ACS).status is Status.SILENCED
    assert finding(judgment, ACS).silence == Silence(ACS, "ticket 4711", FAR)
    assert not judgment.listed


def test_what_has_the_same_cause_is_silenced_too() -> None:
    """Findings with one cause are one finding."""
    judgment = judged("port-down", Silence(PORT, "cable ordered", FAR))
    assert finding(judgment, "nccl-ib-hca-port-down").status is Status.SILENCED
    assert judgment.verdict.silenced == 1
    assert exit_status(judgment.verdict) == 0
    assert judgment.verdict.nics == 7  # the port is as down as before


def test_a_silenced_consequence_does_not_silence_its_cause() -> None:
    judgment = judged("port-down", Silence("nccl-ib-hca-port-down", "known", FAR))
    assert finding(judgment, PORT).status is Status.FOUND
    assert judgment.verdict.warnings == 1


def test_a_gpu_that_a_silenced_finding_takes_away_is_not_counted_as_usable() -> None:
    judgment = judged("xid-79-fell-off-bus", Silence(LOST, "RMA 17", FAR))
    verdict = judgment.verdict
    assert (verdict.gpus_served, verdict.gpus, verdict.critical) == (7, 8, 0)
    assert verdict.is_green
    assert exit_status(verdict) == 0


def test_a_node_whose_gpus_are_all_lost_stays_broken() -> None:
    set_site(Site(silences=(Silence(LOST, "RMA 17", FAR),)))
    examination = examined("xid-79-fell-off-bus")
    usability = replace(examination.usability, gpus=("0000:9b:00.0",))
    verdict = judge(replace(examination, usability=usability)).verdict
    assert verdict.state is State.BROKEN
    assert verdict.reason == "A GPU has fallen off the bus (silenced)"
    assert exit_status(verdict) == 2


def test_a_node_without_a_path_stays_broken() -> None:
    names = {each.id for each in judged("nvidia-not-loaded").found}
    judgment = judged("nvidia-not-loaded", *(Silence(name, "known", FAR) for name in names))
    assert not judgment.found
    assert judgment.verdict.state is State.BROKEN
    assert exit_status(judgment.verdict) == 2


def test_a_silence_holds_through_its_last_day_and_then_says_that_it_has_expired() -> None:
    today = date.fromtimestamp(examined("acs-on").taken_at)
    assert judged("acs-on", Silence(ACS, "x", today)).verdict.silenced == 1
    expired = Silence(ACS, "x", today - timedelta(days=1))
    judgment = judged("acs-on", expired)
    assert judgment.verdict.warnings == 1
    assert judgment.verdict.silenced == 0
    assert finding(judgment, ACS).silence == expired
    assert judged("acs-on", expired, Silence(ACS, "y", today)).verdict.silenced == 1


@pytest.mark.parametrize("device", ["mlx5_1", "MLX5_1", "0000:1b:00.0"])
def test_a_finding_on_one_device_is_silenced_by_its_name_or_address(device: str) -> None:
    assert judged("port-down", Silence(PORT, "x", FAR, device)).verdict.silenced == 1


def test_a_finding_on_more_devices_than_are_silenced_counts() -> None:
    judgment = judged("port-down", Silence(PORT, "x", FAR, "mlx5_0"))
    assert judgment.verdict.warnings == 1
    assert finding(judgment, PORT).silence is None
    devices = finding(judgment, PORT).devices
    two = replace(finding(judgment, PORT), devices=(*devices, "mlx5_0"))
    assert len(two.devices) == 2
    assert judged("acs-on", Silence(ACS, "x", FAR, "mlx5_0")).verdict.warnings == 1


def test_the_silence_of_each_device_that_ends_first_is_shown() -> None:
    all_of = finding(judged("acs-on"), ACS).devices
    silences = [Silence(ACS, "x", FAR, device) for device in all_of]
    silences[3] = replace(silences[3], until=date(2098, 1, 1))
    judgment = judged("acs-on", *silences)
    assert judgment.verdict.silenced == 1
    silence = finding(judgment, ACS).silence
    assert silence is not None
    assert silence.until == date(2098, 1, 1)


def test_a_watched_node_is_judged_in_the_same_way() -> None:
    set_site(Site(silences=(Silence(ACS, "x", FAR),)))
    judgment = Judge().examine(examined("acs-on"))
    assert judgment.verdict.silenced == 1
    assert judgment.verdict.is_green


def test_a_path_that_a_silenced_finding_refutes_stays_unusable_at_each_reading() -> None:
    examination = examined("p2p-topology-refused-old-importer")
    set_site(Site(silences=(Silence("p2p-topology-refused-old-importer", "new kernel on Monday", FAR),)))
    judge_of_node = Judge()
    before = judge_of_node.examine(examination)
    assert [path.usable for path in before.paths] == [False, True]
    usability = replace(examination.usability, reason="4 memory regions registered via peermem")
    after = judge_of_node.update(usability, examination.watched, 1.0)
    assert after.verdict.reason == "4 memory regions registered via peermem"
    assert after.paths == before.paths


def test_a_refuted_path_beside_an_unknown_one_leaves_the_verdict_open() -> None:
    examination = examined("p2p-topology-refused-old-importer")
    first, other = examination.usability.paths
    other = replace(other, usable=Unknown(Reason.NEEDS_ROOT), why="peer memory: nvidia_peermem unknown")
    paths = (replace(first, usable=True), other)
    usability = replace(examination.usability, path=GdrPath.DMABUF, paths=paths)
    verdict = conclude(usability, judge(examination).findings)
    assert (verdict.state, verdict.path) == (State.UNKNOWN, None)
    assert verdict.reason.endswith("Peer memory: nvidia_peermem unknown")
    set_site(Site(silences=(Silence("p2p-topology-refused-old-importer", "new kernel on Monday", FAR),)))
    silenced = conclude(usability, judge(examination).findings)
    assert (silenced.state, silenced.silenced) == (State.UNKNOWN, 1)
    title, reason = verdict.reason.split(". ", 1)
    assert silenced.reason == f"{title} (silenced). {reason}"


def test_paths_are_stated_anew_where_the_verdict_stays() -> None:
    examination = examined("acs-on")
    judge_of_node = Judge()
    before = judge_of_node.examine(examination)
    paths = tuple(replace(path, usable=False, why="gone") for path in examination.usability.paths[1:])
    usability = replace(examination.usability, paths=(examination.usability.paths[0], *paths))
    after = judge_of_node.update(usability, examination.watched, 1.0)
    assert after.verdict == before.verdict
    assert [path.usable for path in before.paths] == [True, True]
    assert [path.usable for path in after.paths] == [True, False]


def test_a_silence_for_a_check_that_does_not_exist_changes_nothing() -> None:
    assert judged("acs-on", Silence("no-such-check", "x", FAR)) == judged("acs-on")


def test_any_clock_of_a_recording_can_be_compared() -> None:
    assert Silence("x", "x", FAR).is_expired(float("inf"))
    assert not Silence("x", "x", FAR).is_expired(0.0)


@pytest.mark.parametrize(
    ("nodes", "silenced"), [((), 1), (("hgx-h100",), 1), (("gpu17", "gpu18"), 0), (("hgx-h100.cluster",), 0)]
)
def test_a_silence_of_some_nodes_leaves_the_others_alone(nodes: tuple[str, ...], silenced: int) -> None:
    judgment = judged("acs-on", Silence(ACS, "x", FAR, nodes=frozenset(nodes)))
    assert judgment.verdict.silenced == silenced


def test_a_node_is_named_with_and_without_its_domain() -> None:
    silence = Silence(ACS, "x", FAR, nodes=frozenset({"gpu17"}))
    assert silence.covers_node(["gpu17.cluster.example"])
    assert not silence.covers_node([])
    assert Silence(ACS, "x", FAR).covers_node([])


def test_a_fleet_may_call_the_node_by_another_name() -> None:
    until = date(2100, 1, 1)
    set_site(Site(silences=(Silence("acs-redirect-enabled", "known", until, nodes=frozenset({"gpu17"})),)))
    examination = examine_with_jobs(SimulatedHost("hgx-h100+acs-on"))
    assert judge(examination).verdict.warnings == 1
    assert judge(examination, called="gpu17").verdict.warnings == 0
