"""Checks of RoCE ports: GIDs, MTU, congestion."""

from dataclasses import replace

import pytest

from probes.checks.finding import Severity, Status
from probes.examination import Examination
from probes.processes import ProcessFacts
from probes.rdma import Gid, RdmaPort
from probes.unknown import Reason, Unknown
from tests.probes.checks.changed import said, status, with_health, with_ports
from tests.probes.checks.doctor import examination_of, findings_on

HGX = examination_of("hgx-h100")
L40S = examination_of("pcie-l40s")
GIDS = ("roce-gid-wrong-namespace", "roce-gid-wrong-no-v2", "roce-gid-wrong-link-local")


@pytest.mark.parametrize("name", GIDS)
def test_a_gid_table_that_cannot_be_read_is_unknown(name: str) -> None:
    denied = with_ports(HGX, lambda port: replace(port, gids=Unknown(Reason.IO_ERROR)), "mlx5_4")
    assert status(name, denied) is Status.UNKNOWN


def test_a_gid_of_unknown_type_may_be_the_one() -> None:
    def blind(port: RdmaPort) -> RdmaPort:
        assert not isinstance(port.gids, Unknown)
        gids = tuple(replace(gid, type=Unknown(Reason.IO_ERROR)) for gid in port.gids)
        return replace(port, gids=gids)

    assert status("roce-gid-wrong-no-v2", with_ports(HGX, blind, "mlx5_4")) is Status.UNKNOWN


@pytest.mark.parametrize("name", GIDS)
def test_infiniband_ports_have_other_gids(name: str) -> None:
    assert status(name, examination_of("gb200")) is Status.PASSED


def test_a_routable_ipv6_address_will_do() -> None:
    gid = Gid(5, "fd00:0000:0000:0000:0000:0000:0000:0001", "RoCE v2", "ens4np0")
    routed = with_ports(HGX, lambda port: replace(port, gids=(gid,)), "mlx5_4")
    assert status("roce-gid-wrong-link-local", routed) is Status.PASSED


def test_the_only_nics_without_gids_cost_gpudirect() -> None:
    empty = with_ports(L40S, lambda port: replace(port, gids=()))
    assert said("roce-gid-wrong-namespace", empty).severity is Severity.CRITICAL


def test_the_index_that_a_job_asks_for() -> None:
    asking = examination_of("hgx-h100+roce-gid-wrong")
    assert "NCCL_IB_GID_INDEX=11" in {one.value for one in said("roce-gid-wrong", asking).evidence}
    right = with_job(asking, "3")
    assert status("roce-gid-wrong", right) is Status.PASSED
    assert status("roce-gid-wrong", with_job(asking, "-1")) is Status.PASSED


def with_job(examination, index: str):  # type: ignore[no-untyped-def]
    facts = examination.processes
    assert isinstance(facts, ProcessFacts)
    (job,) = (one for one in facts.processes if one.pid == 41900)
    job = replace(job, environment={"NCCL_IB_GID_INDEX": index})
    return replace(examination, processes=replace(facts, processes=(job,), hidden=0))


def test_jobs_of_others_are_not_said_to_be_right() -> None:
    asking = with_job(examination_of("hgx-h100+roce-gid-wrong"), "3")
    others = replace(asking, processes=replace(asking.processes, hidden=2))
    finding = said("roce-gid-wrong", others)
    assert finding.status is Status.UNKNOWN
    assert finding.cause.startswith("needs root")


def test_mtu_1500_gives_rdma_1024_bytes() -> None:
    assert "1024 bytes" in said("mtu-mismatch-small", examination_of("hgx-h100+mtu-small")).cause


def test_mtu_4200_is_enough() -> None:
    enough = with_health(
        HGX, lambda port: replace(port, netdev_mtu_bytes=4200, roce_mtu_bytes=4096), "mlx5_4", "mlx5_9"
    )
    assert status("mtu-mismatch-small", enough) is Status.PASSED


def mtus_of(examination: Examination, name: str) -> list[str]:
    """The MTUs that the fix of a finding sets."""
    fix = said(name, examination).fix
    assert fix is not None
    return [step.argv[-1] for step in fix.steps]


def test_the_mtu_to_set_is_that_of_the_peers() -> None:
    """Google's network allows no more than 8896; a site may use 4200."""
    for mtu in (8896, 4200):
        other = with_health(
            with_health(HGX, lambda port, mtu=mtu: replace(port, netdev_mtu_bytes=mtu), "mlx5_4"),  # type: ignore[misc]
            lambda port: replace(port, netdev_mtu_bytes=1500, roce_mtu_bytes=1024),
            "mlx5_9",
        )
        assert mtus_of(other, "mtu-mismatch") == [str(mtu)]
        assert mtus_of(other, "mtu-mismatch-small") == [str(mtu)]


def test_without_peers_it_is_the_greatest_of_the_network() -> None:
    small = examination_of("hgx-h100+mtu-small")
    assert mtus_of(small, "mtu-mismatch-small") == ["9000", "9000"]
    platform = small.node.platform
    assert not isinstance(platform, Unknown)
    google = replace(small, node=replace(small.node, platform=replace(platform, hypervisor="Google")))
    assert mtus_of(google, "mtu-mismatch-small") == ["8896", "8896"]


def test_a_port_with_a_smaller_mtu_than_its_peers_is_one_finding() -> None:
    found = findings_on("hgx-h100+mtu-mismatch")
    assert found["mtu-mismatch-small"].part_of == "mtu-mismatch"
    assert findings_on("hgx-h100+mtu-small")["mtu-mismatch-small"].part_of == ""


@pytest.mark.parametrize("name", ["mtu-mismatch", "mtu-mismatch-small"])
def test_an_mtu_that_cannot_be_read_is_unknown(name: str) -> None:
    denied = with_health(HGX, lambda port: replace(port, roce_mtu_bytes=Unknown(Reason.IO_ERROR)), "mlx5_4")
    assert status(name, denied) is Status.UNKNOWN


def test_the_kernels_own_driver_shows_no_ecn() -> None:
    assert status("roce-lossless-off", L40S) is Status.UNKNOWN
    assert status("roce-lossless-off", HGX) is Status.PASSED
