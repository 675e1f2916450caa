"""Checks of RoCE ports: GIDs, MTU, congestion."""

from dataclasses import replace

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Reason, Unknown, known
from probes.facts.jobs.processes import ProcessFacts
from probes.facts.rdma.devices import Gid, RdmaPort
from probes.queries.finding import Status
from probes.snapshot.examination import Examination
from tests.support.changed_facts import said, status, with_health, with_ports
from tests.support.doctor import examination_of, findings_on

HGX = examination_of("hgx-h100")
L40S = examination_of("pcie-l40s")
GIDS = ("roce-gid-wrong-namespace", "roce-gid-wrong-no-v2", "roce-gid-wrong-link-local")


@pytest.mark.parametrize("name", GIDS)
def test_a_gid_table_that_cannot_be_read_is_unknown(name: str) -> None:
    denied = with_ports(HGX, lambda port: replace(port, gids=Unknown(Reason.IO_ERROR)), "mlx5_4")
    assert status(name, denied) is Status.UNKNOWN


def test_a_gid_of_unknown_type_may_be_the_right_one() -> None:
    def blind(port: RdmaPort) -> RdmaPort:
        assert not isinstance(port.gids, Unknown)
        gids = tuple(replace(gid, type=Unknown(Reason.IO_ERROR)) for gid in port.gids)
        return replace(port, gids=gids)

    assert status("roce-gid-wrong-no-v2", with_ports(HGX, blind, "mlx5_4")) is Status.UNKNOWN


@pytest.mark.parametrize("name", GIDS)
def test_infiniband_ports_have_different_gids(name: str) -> None:
    assert status(name, examination_of("gb200")) is Status.PASSED


def test_a_routable_ipv6_address_is_enough() -> None:
    gid = Gid(5, "fd00:0000:0000:0000:0000:0000:0000:0001", "RoCE v2", "ens4np0")
    routed = with_ports(HGX, lambda port: replace(port, gids=(gid,)), "mlx5_4")
    assert status("roce-gid-wrong-link-local", routed) is Status.PASSED


def test_missing_gids_on_every_nic_are_critical() -> None:
    empty = with_ports(L40S, lambda port: replace(port, gids=()))
    assert said("roce-gid-wrong-namespace", empty).severity is Severity.CRITICAL


def test_the_gid_index_of_a_job() -> None:
    asking = examination_of("hgx-h100+roce-gid-wrong")
    assert "NCCL_IB_GID_INDEX=11" in {line.value for line in said("roce-gid-wrong", asking).evidence}
    right = with_job(asking, "3")
    assert status("roce-gid-wrong", right) is Status.PASSED
    assert status("roce-gid-wrong", with_job(asking, "-1")) is Status.PASSED


def with_job(examination, index: str):  # type: ignore[no-untyped-def]
    facts = examination.processes
    assert isinstance(facts, ProcessFacts)
    changed = tuple(
        replace(process, environment={"NCCL_IB_GID_INDEX": index})
        if process.pid in (41000, 41900)
        else process
        for process in facts.processes
    )
    return replace(examination, processes=replace(facts, processes=changed))


def test_jobs_of_other_users_are_unknown() -> None:
    asking = examination_of("hgx-h100")
    closed = Unknown(Reason.NEEDS_ROOT, "/proc/41001/fd")
    facts = asking.processes
    assert isinstance(facts, ProcessFacts)
    hidden = tuple(replace(process, gpu_files=closed, environment=closed) for process in facts.processes)
    finding = said("roce-gid-wrong", replace(asking, processes=replace(facts, processes=hidden)))
    assert finding.status is Status.UNKNOWN
    assert finding.cause == "needs root: the environment of other users' processes"


def test_a_wrong_gid_of_storage_nics_does_not_affect_a_job_on_infiniband() -> None:
    """The GPUs of the job have nearer InfiniBand NICs."""
    found = findings_on("hgx-h100+roce-gid-wrong")
    assert found["nccl-gid-index-missing"].severity is Severity.NOTE
    assert found["roce-gid-wrong"].severity is Severity.NOTE


def test_a_wrong_gid_is_one_finding() -> None:
    found = findings_on("hgx-h100+roce-gid-wrong")
    assert found["roce-gid-wrong"].part_of == "nccl-gid-index-missing"
    assert not found["nccl-gid-index-missing"].part_of
    for finding in (found["roce-gid-wrong"], found["nccl-gid-index-missing"]):
        assert finding.cause.startswith("python3 (alice, pid 41900): ")


@pytest.mark.parametrize(
    ("index", "check", "severity"),
    [
        ("11", "nccl-gid-index-missing", Severity.CRITICAL),
        ("2", "nccl-gid-index-not-v2", Severity.WARNING),  # it works inside one Ethernet segment
    ],
)
def test_a_wrong_gid_of_every_nic_that_a_job_uses(index: str, check: str, severity: Severity) -> None:
    asking = with_job(L40S, index)
    assert said(check, asking).severity is severity
    assert said("roce-gid-wrong", asking).severity is severity


LOCAL = Gid(1, "fe80:0000:0000:0000:0000:0000:0000:0001", "RoCE v2", "ens4np0")


def test_a_port_without_an_address_is_a_note_if_no_job_uses_it() -> None:
    busy = with_ports(L40S, lambda port: replace(port, gids=(LOCAL,)))
    assert said("roce-gid-wrong-link-local", busy).severity is Severity.WARNING
    facts = busy.processes
    assert isinstance(facts, ProcessFacts)
    idle = replace(busy, processes=replace(facts, processes=()))
    pods = replace(busy, driver_container=replace(busy.driver_container, kubelet=True))
    for quiet in (idle, pods, examination_of("hgx-h100+roce-gid-wrong-link-local")):
        finding = said("roce-gid-wrong-link-local", quiet)
        assert (finding.status, finding.severity) == (Status.FOUND, Severity.NOTE)


def test_a_port_with_virtual_functions_needs_no_address_of_its_own() -> None:
    busy = with_ports(L40S, lambda port: replace(port, gids=(LOCAL,)))
    assert not isinstance(busy.node.pci, Unknown)
    functions = dict(busy.node.pci.functions)
    assert not isinstance(busy.node.rdma, Unknown)
    for device in busy.node.rdma.devices:
        bdf = known(device.bdf, "")
        functions[f"{bdf[:-1]}7"] = replace(functions[bdf], bdf=f"{bdf[:-1]}7", physical_function=bdf)
    node = replace(busy.node, pci=replace(busy.node.pci, functions=functions))
    assert said("roce-gid-wrong-link-local", replace(busy, node=node)).severity is Severity.NOTE


def test_mtu_1500_gives_rdma_1024_bytes() -> None:
    assert "1024 bytes" in said("mtu-mismatch-small", examination_of("hgx-h100+mtu-small")).cause


def test_mtu_4200_is_enough() -> None:
    enough = with_health(
        HGX, lambda port: replace(port, netdev_mtu_bytes=4200, roce_mtu_bytes=4096), "mlx5_4", "mlx5_9"
    )
    assert status("mtu-mismatch-small", enough) is Status.PASSED


def mtus_of(examination: Examination, name: str) -> list[str]:
    """Return the MTUs that the fix sets."""
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


def test_without_peers_the_mtu_to_set_is_the_largest_of_the_network() -> None:
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


def test_the_kernels_own_driver_cannot_disable_ecn() -> None:
    assert status("roce-lossless-off", L40S) is Status.PASSED
    assert status("roce-lossless-off", HGX) is Status.PASSED
