"""A DGX Spark's ports, lanes and memory, and checks of a path that its GPU cannot have."""

from dataclasses import replace

import pytest

from probes.base.unknown import Reason, Unknown
from probes.checks.registry import CHECKS, run_checks
from probes.facts.rdma.roce import RailNetworkFacts
from probes.facts.system.numa import MemoryFacts
from probes.queries.finding import Outcome, Status
from probes.snapshot.examination import Examination
from probes.snapshot.verdict import State
from tests.support.doctor import examination_of, findings_on, found_on

SPARK = examination_of("dgx-spark")
ADDRESSES, SUBNETS, CMA = (
    "spark-function-unaddressed",
    "spark-functions-one-subnet",
    "cma-blocks-registration",
)


def outcome(name: str, examination: Examination) -> Outcome:
    ((_, found),) = run_checks(examination, [check for check in CHECKS if check.id == name])
    return found


def with_networks(**networks: tuple[str, ...]) -> Examination:
    """Return the node with other IPv4 networks of these netdevs; () takes the address away."""
    facts = SPARK.rail_networks
    assert isinstance(facts, RailNetworkFacts)
    netdevs = (
        replace(netdev, networks=networks.get(netdev.name, netdev.networks)) for netdev in facts.netdevs
    )
    kept = tuple(netdev for netdev in netdevs if netdev.networks)
    return replace(SPARK, rail_networks=RailNetworkFacts(kept))


def test_a_healthy_pair_has_nothing_to_mend() -> None:
    assert outcome(ADDRESSES, SPARK).status is Status.PASSED
    assert outcome(SUBNETS, SPARK).status is Status.PASSED
    assert outcome(CMA, SPARK).status is Status.PASSED


def test_one_function_without_an_address_is_found_with_a_free_subnet() -> None:
    found = outcome(ADDRESSES, with_networks(enP2p1s0f0np0=()))
    assert found.status is Status.FOUND
    assert found.devices == ("roceP2p1s0f0",)
    assert found.fix is not None
    # 100, 101 and 103 are in use.
    assert "enP2p1s0f0np0 192.168.102.N/24" in found.fix.steps[0].why


def test_a_function_that_is_down_beside_its_twin_comes_up_first() -> None:
    found = findings_on("dgx-spark+spark-function-down")[ADDRESSES]
    assert found.status is Status.FOUND
    assert found.part_of == ""
    assert found.fix is not None
    assert found.fix.steps[0].argv == ("ip", "link", "set", "dev", "enP2p1s0f0np0", "up")


def test_a_port_without_a_cable_needs_no_address() -> None:
    rdma = SPARK.node.rdma
    assert not isinstance(rdma, Unknown)
    devices = tuple(
        replace(device, ports=tuple(replace(port, state="DOWN") for port in device.ports))
        if device.name.endswith("f1")
        else device
        for device in rdma.devices
    )
    one_cable = with_networks(enp1s0f1np1=(), enP2p1s0f1np1=())
    node = replace(one_cable.node, rdma=replace(rdma, devices=devices))
    assert outcome(ADDRESSES, replace(one_cable, node=node)).status is Status.PASSED


@pytest.mark.parametrize(
    ("other", "status"),
    [
        ("192.168.100.0/24", Status.FOUND),
        ("192.168.0.0/16", Status.FOUND),
        ("192.168.101.0/24", Status.PASSED),  # of the other port, whose cable is another one
        ("192.168.200.0/24", Status.PASSED),
        ("192.168.100.7/24", Status.PASSED),  # of a redacted recording, where addresses stand for networks
    ],
)
def test_the_functions_of_one_port_need_two_subnets(other: str, status: Status) -> None:
    assert outcome(SUBNETS, with_networks(enP2p1s0f0np0=(other,))).status is status


def test_one_subnet_is_the_cause_of_mixed_arp_answers() -> None:
    found = findings_on("dgx-spark+spark-functions-one-subnet")
    assert found["roce-rails-one-subnet"].part_of == SUBNETS


def test_without_the_routes_the_addresses_are_unknown() -> None:
    unread = replace(SPARK, rail_networks=Unknown(Reason.TIMED_OUT, "/proc/net/route"))
    assert outcome(ADDRESSES, unread).status is Status.UNKNOWN
    assert outcome(SUBNETS, unread).status is Status.UNKNOWN


def test_two_lanes_are_the_firmware_and_no_loose_card() -> None:
    found = findings_on("dgx-spark+spark-pcie-lanes")
    assert set(found["spark-pcie-lanes"].devices) == {"0002:01:00.0", "0002:01:00.1"}
    assert found["pcie-link-degraded-width"].part_of == "spark-pcie-lanes"
    assert findings_on("dgx-spark")["spark-pcie-lanes"].status is Status.PASSED


@pytest.mark.parametrize(
    ("total", "free", "status"),
    [
        (0, 963_178_496, Status.FOUND),
        (0, 0, Status.PASSED),
        (67_108_864, 67_108_864, Status.PASSED),
        (Unknown(Reason.NOT_THERE, "/proc/meminfo"), 0, Status.PASSED),
        (Unknown(Reason.TIMED_OUT, "/proc/meminfo"), 0, Status.UNKNOWN),
    ],
)
def test_more_free_cma_than_there_is_keeps_memory_from_being_registered(
    total: int | Unknown, free: int, status: Status
) -> None:
    memory = MemoryFacts(1 << 30, total, free)
    assert outcome(CMA, replace(SPARK, memory=memory)).status is status


def test_kexec_handover_is_turned_off_at_boot() -> None:
    found = findings_on("dgx-spark+cma-blocks-registration")[CMA]
    assert found.fix is not None
    assert found.fix.needs_reboot
    assert any("kho=off" in f"{step.why} {step.file}" for step in found.fix.steps)


@pytest.mark.parametrize("node", ["dgx-spark", "pcie-l40s+geforce-no-gdr"])
@pytest.mark.parametrize(
    "fault",
    [
        "p2p-topology-refused", "p2p-topology-refused-old-importer", "p2p-topology-refused-override",
        "nccl-gdr-level-off", "nccl-gdr-read-off", "nccl-dmabuf-disabled", "mooncake-needs-peermem",
        "hybrid-ep-needs-peermem", "rdma-core-without-dmabuf", "perftest-without-cuda", "iommu-translated",
        "k8s-rdma-not-enabled",
    ],
)  # fmt: skip
def test_what_only_the_gpus_path_needs_is_no_finding_where_it_cannot_be(node: str, fault: str) -> None:
    broken = f"{node}{',' if '+' in node else '+'}{fault}"
    assert found_on(broken) - {"pid-namespace-hides-users"} == found_on(node)
    assert examination_of(broken).usability.state is State.NOT_APPLICABLE


def test_what_slows_host_memory_is_still_found_there() -> None:
    assert "nccl-net-socket" in found_on("dgx-spark+nccl-net-socket")
    assert "iommu-fault" in found_on("pcie-l40s+geforce-no-gdr,iommu-fault")
