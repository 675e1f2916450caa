"""Certificates: complete only with every pair measured, bound to the parts, compared with earlier ones."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.acceptance.certificate import (
    Certificate,
    CertificateError,
    EarlierCertificate,
    HardwareFact,
    certificate_of,
    earlier_certificate,
    parts_of,
)
from probes.acceptance.profile import Answer, Outcome, shipped
from probes.bandwidth.model.rating import Rating
from probes.bandwidth.model.result import Result
from probes.bandwidth.model.samples import HOST_MEMORY
from probes.base.unknown import Maybe, Reason, Unknown
from probes.checks.judgment import judge
from probes.host.protocol import READ_LIMIT_BYTES
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination
from tests.support.doctor import examination_of
from tests.support.sample_results import BY_DMABUF, judged, result

NODE = "hgx-h100"


def measured(examination: Examination, memory: str, gbps: float = 390.0) -> list[Result]:
    near = examination.topology.near_nics
    sample = result(gbps)
    pairs = [(gpu, nic) for gpu, nics in near.items() for nic in nics]
    return [replace(sample, memory=memory, pair=replace(sample.pair, gpu=gpu, nic=nic)) for gpu, nic in pairs]


def certified(
    name: str = NODE, results: Sequence[Result] = (), earlier: EarlierCertificate | None = None
) -> Certificate:
    examination = examination_of(name)
    return certificate_of(shipped("gdrtop"), examination, judge(examination), results, (), earlier)


def test_a_node_without_measurements_is_incomplete() -> None:
    found = certified()
    assert found.outcome is Outcome.INCOMPLETE
    assert {each.id for each in found.criteria if each.answer is not Answer.PASS} == {"rate-gpu", "rate-host"}


def test_a_node_with_every_pair_measured_passes_and_without_one_it_does_not() -> None:
    examination = examination_of(NODE)
    results = [*measured(examination, BY_DMABUF), *measured(examination, HOST_MEMORY)]
    assert certified(results=results).outcome is Outcome.PASSED
    fewer = [each for each in results if (each.memory, each.pair.nic) != (BY_DMABUF, "mlx5_3")]
    found = certified(results=fewer)
    assert found.outcome is Outcome.INCOMPLETE
    (open_,) = (each for each in found.criteria if each.answer is Answer.NOT_SHOWN)
    assert open_.id == "rate-gpu"
    assert "mlx5_3" in open_.evidence[0]


def test_a_fault_fails_whatever_was_measured() -> None:
    examination = examination_of(NODE)
    results = [*measured(examination, BY_DMABUF), *measured(examination, HOST_MEMORY)]
    assert certified(f"{NODE}+acs-on", results).outcome is Outcome.FAILED


def test_another_part_has_another_fingerprint() -> None:
    found, other = certified(), certified("hgx-b200")
    assert found.fingerprint_sha256 == certified().fingerprint_sha256
    assert found.fingerprint_sha256 != other.fingerprint_sha256
    facts = {fact.name: str(fact.value) for fact in found.fingerprint}
    assert "96.00.89.00.01" in facts["GPU0"]
    assert "MT_0000000838 0000:1a:00.0 51a0:1a7e:0000:0000 28." in facts["NIC mlx5_0"]


def test_an_earlier_certificate_shows_what_differs() -> None:
    before = certified()
    fingerprint = [{"name": fact.name, "value": fact.value} for fact in before.fingerprint]
    fingerprint[-1]["value"] = "MT4125 old"
    criteria = [{"id": "detours", "answer": "pass"}]
    given_parts = {
        "criteria": criteria,
        "fingerprint": [*fingerprint, {"name": "GPU8", "value": "x\x1b[31m"}],
    }
    earlier = earlier_certificate(json.dumps({"certificate": given_parts}))
    changes = certified(f"{NODE}+acs-on", earlier=earlier).changes
    assert changes is not None
    assert "criterion detours: fail, was pass" in changes
    assert any(change.endswith("was MT4125 old") for change in changes)
    assert "GPU8: is gone" in changes
    assert len(changes) == 3


@given(
    st.one_of(
        st.text(max_size=200), st.from_regex(r'\{"certificate": \{"criteria": .{0,20}\}\}', fullmatch=True)
    )
)
def test_no_text_crashes_the_reader(text: str) -> None:
    with suppress(CertificateError):
        earlier_certificate(text)


@pytest.mark.parametrize("text", ["{}", "[]", "no", '{"certificate": {"criteria": 3}}'])
def test_what_is_no_certificate_is_said(text: str) -> None:
    with pytest.raises(CertificateError):
        earlier_certificate(text)


def test_what_could_not_be_read_now_is_not_gone() -> None:
    examination = examination_of(NODE)
    fingerprint = {fact.name: str(fact.value) for fact in certified().fingerprint}
    unread = replace(examination, node=replace(examination.node, gpus=Unknown(Reason.TIMED_OUT, "NVML")))
    earlier = EarlierCertificate("2026-01-01", {}, fingerprint)
    assert certificate_of(shipped("gdrtop"), unread, judge(examination), [], (), earlier).changes == ()


def test_a_part_that_could_not_be_read_once_is_no_change() -> None:
    fingerprint = {fact.name: str(fact.value) for fact in certified().fingerprint}
    fingerprint["GPU0"] = fingerprint["GPU0"].replace("96.00.89.00.01", "?")
    assert certified(earlier=EarlierCertificate("2026-01-01", {}, fingerprint)).changes == ()


@pytest.mark.parametrize(
    ("verdict", "outcome"),
    [
        (Rating.LIKE_HOST, Outcome.FAILED),
        (Rating.BELOW, Outcome.FAILED),
        (Rating.UNKNOWN, Outcome.INCOMPLETE),
    ],
)
def test_a_measurement_that_is_slow_or_not_judged_is_no_pass(verdict: Rating, outcome: Outcome) -> None:
    examination = examination_of(NODE)
    results = [*measured(examination, BY_DMABUF), *measured(examination, HOST_MEMORY)]
    results[0] = judged(results[0], verdict)
    assert certified(results=results).outcome is outcome


class WithoutRoot(SimulatedHost):
    """A simulated node on which only root may read a VPD."""

    def read_bytes(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[bytes]:
        return Unknown(Reason.NEEDS_ROOT, path) if path.endswith("/vpd") else super().read_bytes(path, limit)


def parts(name: str, host: type[SimulatedHost] = SimulatedHost) -> dict[str, Maybe[str]]:
    read = parts_of(host(name, clock=lambda: 1000.0), examination_of(name))
    return {fact.name: fact.value for fact in read}


def test_cards_and_cables_have_their_serial_numbers() -> None:
    found = parts(f"{NODE}+optic-fault")  # as root, with mlxlink
    assert str(found["NIC mlx5_0 serial number"]).startswith("MT2245")
    assert str(found["NIC mlx5_0 cable serial number"]).startswith("MT2312VS")
    assert len({value for name, value in found.items() if name.endswith("serial number")}) == 20
    gpus = {fact.name: fact.value for fact in certified().fingerprint}
    assert gpus["GPU3 serial number"] == "1650923000003"


def test_a_serial_number_that_only_root_can_read_is_unknown_once() -> None:
    found = parts(NODE, WithoutRoot)
    reason = found["NIC serial numbers"]
    assert isinstance(reason, Unknown)
    assert reason.reason is Reason.NEEDS_ROOT
    assert "NIC mlx5_0 serial number" not in found
    assert isinstance(found["NIC cable serial numbers"], Unknown)


def changed(**values: str) -> tuple[str, ...] | None:
    """Return what differs from a certificate in which these parts, with "_" for " ", had other values."""
    examination, read = examination_of(NODE), parts(f"{NODE}+optic-fault")
    facts = [HardwareFact(name, value) for name, value in read.items()]
    now = certificate_of(shipped("gdrtop"), examination, judge(examination), (), facts)
    before = {fact.name: str(fact.value) for fact in now.fingerprint if not isinstance(fact.value, Unknown)}
    before |= {name.replace("__", " "): value for name, value in values.items()}
    earlier = EarlierCertificate("2026-01-01", {}, {name: text for name, text in before.items() if text})
    return certificate_of(shipped("gdrtop"), examination, judge(examination), (), facts, earlier).changes


def test_a_part_with_another_serial_number_was_replaced() -> None:
    assert changed() == ()
    assert changed(GPU3__serial__number="1650923999999") == (
        "GPU3 was replaced: serial number 1650923000003, was 1650923999999",
    )
    (cable,) = changed(NIC__mlx5_0__cable__serial__number="MT1 NVIDIA") or ()
    assert cable.startswith("NIC mlx5_0 cable was replaced: serial number MT2312VS")


def test_a_part_in_another_place_was_not_replaced() -> None:
    """A GPU that fell off the bus gives all others new numbers."""
    moved = changed(GPU3__serial__number="1650923000004", GPU4__serial__number="1650923000003")
    assert moved == ("GPU3 is the former GPU4", "GPU4 is the former GPU3")


def test_a_serial_number_that_was_not_read_before_is_no_change() -> None:
    assert changed(GPU3__serial__number="", NIC__mlx5_0__cable__serial__number="") == ()
