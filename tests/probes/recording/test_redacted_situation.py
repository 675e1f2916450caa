"""A redacted recording shows setup the same node."""

import pytest

from probes.base.unknown import Unknown
from probes.facts.system.kubernetes import KubernetesFacts, message_of
from probes.recording.recording_host import Moment, RecordingHost
from probes.recording.redaction.identifiers import Identifiers
from probes.recording.redaction.tokens import is_known
from probes.recording.replay_host import ReplayHost
from probes.setup.situation import PROBES, Situation, read_situation
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.description import simulated_names
from probes.snapshot.examination import examine
from tests.support.pilot import SteppedClock
from tests.support.recordings import archive_of, read
from tests.support.tiers import usual

NODES = [
    *simulated_names(),
    "hgx-h100+k8s-operators",
    "hgx-h100+k8s-waiting-for-mofed",
    "hgx-h100+k8s-mofed-storage-modules",
    "pcie-l40s+k8s-peermem-ctr-crashloop",
]
USUAL = {"cloud-vm", "hgx-h100+k8s-waiting-for-mofed"}
SECRET = b"simulated-secret"


def recorded(name: str) -> list[Moment]:
    moments: list[Moment] = []
    recorder = RecordingHost(SimulatedHost(name, clock=SteppedClock()), moments.append)
    read_situation(recorder, examine(recorder))
    recorder.end_moment()
    return moments


def situation_in(moments: list[Moment]) -> Situation:
    host = ReplayHost(read(archive_of(moments)))
    return read_situation(host, examine(host))


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(NODES, USUAL))
def test_the_situation_survives_redaction(name: str) -> None:
    moments = recorded(name)
    identifiers = Identifiers(redact=True)
    plain, masked = (situation_in(moments), situation_in([identifiers.apply(moment) for moment in moments]))
    replaced = sorted(word for word in identifiers.replaced if not is_known(word))
    for field in PROBES:
        before, after = getattr(plain, field), getattr(masked, field)
        if field == "kubernetes" and isinstance(before, KubernetesFacts):
            _assert_same_cluster(before, after, replaced)
        else:
            assert after == before, f"{field}; replaced: {replaced}"


def _assert_same_cluster(plain: KubernetesFacts, masked: object, replaced: list[str]) -> None:
    assert isinstance(masked, KubernetesFacts), f"{masked}; replaced: {replaced}"
    assert masked.node == "host-1"
    for field in ("tool", "gpu_operator", "network_operator"):
        assert getattr(masked, field) == getattr(plain, field), f"{field}; replaced: {replaced}"
    assert not isinstance(plain.containers, Unknown)
    assert not isinstance(masked.containers, Unknown)
    for before, after in zip(plain.containers, masked.containers, strict=True):
        assert (after.name, after.ready, after.reason) == (before.name, before.ready, before.reason), replaced
        assert message_of(after) is message_of(before)
        assert after.pod != before.pod


def test_variables_of_pods_are_never_recorded() -> None:
    """Also without redaction: the environment of a driver pod can have the password of a proxy."""
    host = SimulatedHost("hgx-h100+k8s-operators", clock=SteppedClock())
    answer = host.run(("kubectl", "get", "clusterpolicies.nvidia.com"))
    assert not isinstance(answer, Unknown)
    assert SECRET.decode() in answer.stdout
    archive = b"".join(repr(moment).encode() for moment in recorded("hgx-h100+k8s-operators"))
    assert b"cluster-policy" in archive
    assert SECRET not in archive
