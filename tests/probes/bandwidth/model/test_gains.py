"""What a fix should bring, compared with what simulated nodes measure before and after it."""

import pytest

from probes.base.unknown import Unknown
from probes.queries.finding import PairGain
from probes.simulation.bandwidth.speeds import Place, sustained
from tests.support.doctor import examination_of, findings_on

LEAST_SHARE = 0.85  # of a limit, which simulated tests reach


def measured_gbps(name: str, gain: PairGain) -> float:
    """Return what a test of the pair measures on a simulated node."""
    examination = examination_of(name)
    gpu = next(gpu.id for gpu in examination.topology.gpus if gpu.label == gain.gpu)
    return sustained(Place(examination, gain.nic, 1, gpu), nic_reads=False, is_loopback=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("node", "fault", "finding", "pairs"),
    [
        ("hgx-h100", "pcie-link-degraded-width", "pcie-link-degraded-width", 2),
        ("hgx-h100", "pcie-link-limited-by-slot", "pcie-link-limited-by-slot", 2),
        ("hgx-h100", "half-rate", "single-rail-or-half-rate", 2),
        ("hgx-h100", "one-lane", "single-rail-or-half-rate-one-lane", 2),
        ("oci-h100", "mtu-small", "mtu-mismatch-small", 2),
    ],
)
def test_a_fix_brings_what_a_test_measures_then(node: str, fault: str, finding: str, pairs: int) -> None:
    gains = findings_on(f"{node}+{fault}")[finding].gains
    assert len(gains) == pairs
    for gain in gains:
        assert not isinstance(gain.now_gbps, Unknown)
        now, then = measured_gbps(f"{node}+{fault}", gain), measured_gbps(node, gain)
        assert LEAST_SHARE * gain.now_gbps < now <= gain.now_gbps
        assert LEAST_SHARE * gain.fixed_gbps < then <= gain.fixed_gbps


def test_a_detour_has_no_limit_now_and_the_link_rate_then() -> None:
    gains = findings_on("hgx-h100+acs-on")["acs-redirect-enabled"].gains
    assert len(gains) == len(examination_of("hgx-h100").topology.near_pairs)
    for gain in gains[:4]:
        assert isinstance(gain.now_gbps, Unknown)
        then = measured_gbps("hgx-h100", gain)
        assert measured_gbps("hgx-h100+acs-on", gain) < LEAST_SHARE * then
        assert LEAST_SHARE * gain.fixed_gbps < then <= gain.fixed_gbps


@pytest.mark.parametrize("finding", ["ib-port-not-active", "peermem-not-loaded"])
def test_what_carries_nothing_now_brings_the_rate_of_its_equals(finding: str) -> None:
    """Without a path, the module that is missing brings it: the finding with the same cause has no fix."""
    name = "hgx-h100+port-down" if finding.startswith("ib") else "hgx-h100+no-gdr-path"
    gains = findings_on(name)[finding].gains
    assert {gain.now_gbps for gain in gains} == {0.0}
    for gain in gains:
        then = measured_gbps("hgx-h100", gain)
        assert LEAST_SHARE * gain.fixed_gbps < then <= gain.fixed_gbps


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "finding"),
    [
        ("nvidia-not-loaded,port-down", "ib-port-not-active"),
        ("nvidia-not-loaded,acs-on", "acs-redirect-enabled"),
        ("acs-on,port-down", "ib-port-not-active"),
        ("acs-on,no-gdr-path", "peermem-not-loaded"),
    ],
)
def test_a_fix_promises_nothing_that_another_fault_prevents(faults: str, finding: str) -> None:
    assert findings_on(f"hgx-h100+{faults}")[finding].gains == ()


def test_a_fix_brings_no_more_than_the_rest_of_the_path_allows() -> None:
    """The port is at half its rate, and its PCIe link carries hardly more."""
    findings = findings_on("hgx-h100+half-rate,pcie-link-degraded-width")
    link, rate = (findings[name].gains for name in ("pcie-link-degraded-width", "single-rail-or-half-rate"))
    assert link == (), "the port stays the limit"
    assert {gain.limited_by for gain in rate} == {"PCIe link of mlx5_2"}
