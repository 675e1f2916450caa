"""Several RoCE NICs in one subnet, and bonded NICs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from probes.bandwidth.model.limits import limit_of_host_memory
from probes.bandwidth.model.rating import Rating, rate
from probes.bandwidth.model.samples import Sample
from probes.base.unknown import Reason, Unknown
from probes.checks.registry import findings
from probes.facts.rdma.roce import CONF
from probes.queries.finding import Finding, Status
from probes.simulation.host import SimulatedHost
from probes.simulation.node.devices.network import set_policy_routing
from probes.simulation.node.model.tree import Tree
from probes.snapshot.examination import Examination, examine
from tests.support.doctor import examination_of, findings_on

ONE_SUBNET, STRICT = "roce-rails-one-subnet", "roce-rp-filter-strict"


def finding(name: str, node: str, change: Callable[[Tree], None] = lambda tree: None) -> Finding:
    host = SimulatedHost(node)
    change(host.tree)
    return findings(examine(host), only=(name,))[0]


def set_all(key: str, value: int) -> Callable[[Tree], None]:
    def change(tree: Tree) -> None:
        for path in [path for path in tree.files if path.startswith(CONF) and path.endswith(f"/{key}")]:
            tree.add(path, f"{value}\n")

    return change


def test_nics_with_a_subnet_each_may_answer_as_they_like() -> None:
    assert finding(ONE_SUBNET, "gcp-a4").status is Status.PASSED
    assert finding(STRICT, "gcp-a4", set_all("rp_filter", 1)).status is Status.PASSED


def test_the_fix_sets_only_what_is_missing_and_names_the_undo() -> None:
    found = findings_on(f"bare-roce+{ONE_SUBNET}")[ONE_SUBNET]
    assert found.fix is not None
    commands = [step for step in found.fix.steps if step.argv]
    assert [step.argv[:3] for step in commands] == [("sysctl", "-w", "net.ipv4.conf.bond0.arp_ignore=1")]
    assert commands[0].undo[2] == "net.ipv4.conf.bond0.arp_ignore=0"
    both = finding(ONE_SUBNET, f"bare-roce+{ONE_SUBNET}", set_all("arp_announce", 0)).fix
    assert both is not None
    assert [step.argv[2].rpartition(".")[2] for step in both.steps if step.argv] == [
        "arp_ignore=1",
        "arp_announce=2",
    ]


@pytest.mark.parametrize("value", [1, 2])
def test_nics_that_answer_for_their_own_address_only_are_fine(value: int) -> None:
    assert finding(ONE_SUBNET, "bare-roce", set_all("arp_ignore", value)).status is Status.PASSED


def test_arp_filter_helps_only_with_a_rule_for_each_address() -> None:
    def filtered(tree: Tree) -> None:
        set_all("arp_ignore", 0)(tree)
        set_all("arp_filter", 1)(tree)

    def routed(tree: Tree) -> None:
        filtered(tree)
        set_policy_routing(tree, by_source=True)

    assert finding(ONE_SUBNET, "bare-roce", filtered).status is Status.FOUND
    assert finding(ONE_SUBNET, "bare-roce", routed).status is Status.PASSED


@pytest.mark.slow
def test_a_strict_filter_is_right_where_a_rule_routes_each_address() -> None:
    def routed(tree: Tree) -> None:
        set_all("rp_filter", 1)(tree)
        set_policy_routing(tree, by_source=True)

    assert finding(STRICT, "oci-h100", set_all("rp_filter", 1)).status is Status.FOUND
    assert finding(STRICT, "oci-h100", routed).status is Status.PASSED


def test_a_strict_filter_without_the_rules_is_unknown() -> None:
    def without_ip(tree: Tree) -> None:
        set_all("rp_filter", 1)(tree)
        tree.commands["ip"] = lambda argv, seconds: Unknown(Reason.NOT_THERE, "ip", "not installed")

    found = finding(STRICT, "oci-h100", without_ip)
    assert found.status is Status.UNKNOWN
    assert "routing rules" in found.cause


def sample(gbps: float) -> Sample:
    return Sample("RDMA_Write", "", size_bytes=1 << 20, gbps=gbps)


def test_half_the_rate_of_a_bond_with_one_queue_pair_is_no_fault() -> None:
    examination: Examination = examination_of("bare-roce")
    limit = limit_of_host_memory(examination, "mlx5_bond_0", queue_pairs=1)
    judged = rate(sample(195.0), limit)
    assert judged.verdict is Rating.NEAR
    assert judged.words.startswith("195 of 200 Gb/s")
    assert "1 queue pair uses 1 of 2 ports on bond0: test with 2 or more" in judged.why
    both = limit_of_host_memory(examination, "mlx5_bond_0", queue_pairs=2)
    assert rate(sample(195.0), both).verdict is Rating.BELOW
    assert rate(sample(390.0), both).words.startswith("390 of 400 Gb/s")


def test_jobs_with_two_queue_pairs_use_both_ports() -> None:
    assert findings_on("bare-roce")["single-rail-or-half-rate-bond"].status is Status.PASSED
    found = findings_on("bare-roce+bond-one-queue-pair")["single-rail-or-half-rate-bond"]
    assert found.status is Status.FOUND
    assert found.evidence[0].value == "ens0f0np0, ens0f1np1 (802.3ad)"


def test_a_lost_port_of_a_bond_is_one_finding() -> None:
    found = {
        name: finding
        for name, finding in findings_on("bare-roce+roce-bond-port-down").items()
        if finding.status is Status.FOUND
    }
    assert {finding.part_of for name, finding in found.items() if name != "roce-bond-port-down"} == {
        "roce-bond-port-down"
    }
    assert found["roce-bond-port-down"].devices == ("mlx5_bond_2",)
