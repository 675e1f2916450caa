"""The traffic class of RoCE, and congestion control."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from probes.base.unknown import Reason, Unknown
from probes.checks.registry import findings
from probes.facts.jobs.nccl_conf import NCCL_CONF
from probes.queries.finding import Finding, Status
from probes.simulation.host import SimulatedHost
from probes.simulation.node.devices.network import set_qos
from probes.simulation.node.jobs.processes import add_rank
from probes.simulation.node.model.tree import Tree
from probes.snapshot.examination import examine
from tests.support.doctor import findings_on

CLASS, OVERRIDDEN, ECN = "roce-class-not-lossless", "roce-class-overridden", "roce-lossless-off"


def finding(name: str, node: str, change: Callable[[Tree], None] = lambda tree: None) -> Finding:
    host = SimulatedHost(node)
    change(host.tree)
    return findings(examine(host), only=(name,))[0]


def with_class(value: str) -> Callable[[Tree], None]:
    return lambda tree: tree.add(NCCL_CONF, f"NCCL_IB_TC={value}\nNCCL_IB_SL=3\n")


@pytest.mark.slow
def test_a_class_in_a_lossless_priority_is_fine_whatever_its_ecn_bits() -> None:
    for value in ("104", "106", "0x6a"):
        assert finding(CLASS, "bare-roce", with_class(value)).status is Status.PASSED
    wrong = finding(CLASS, "bare-roce", with_class("160"))
    assert wrong.status is Status.FOUND
    assert "DSCP 40 maps to priority 5 (PFC is on for 3)" in wrong.evidence[1].value


def test_a_job_without_a_class_is_told_which_ones_are_lossless() -> None:
    found = findings_on(f"bare-roce+{CLASS}")[CLASS]
    assert found.fix is not None
    assert "104 (DSCP 26)" in found.fix.steps[-1].why


def test_a_port_that_trusts_pcp_uses_the_service_level() -> None:
    def by_pcp(level: int) -> Callable[[Tree], None]:
        def change(tree: Tree) -> None:
            described = tree.description.nic["compute"].qos
            assert described is not None
            set_qos(tree, replace(described, trusts_dscp=False))
            tree.add(NCCL_CONF, f"NCCL_IB_TC=106\nNCCL_IB_SL={level}\n")

        return change

    assert finding(CLASS, "bare-roce", by_pcp(3)).status is Status.PASSED
    wrong = finding(CLASS, "bare-roce", by_pcp(0))
    assert wrong.status is Status.FOUND
    assert wrong.fix is not None
    assert "--trust dscp" in wrong.fix.steps[-1].why


def test_where_nothing_has_flow_control_no_class_is_wrong() -> None:
    def lossy(tree: Tree) -> None:
        described = tree.description.nic["compute"].qos
        assert described is not None
        set_qos(tree, replace(described, pfc=()))

    assert finding(CLASS, "bare-roce", lossy).status is Status.PASSED


def test_a_class_that_cannot_be_compared_is_unknown_and_none_is_fine() -> None:
    def without_dcb(tree: Tree) -> None:
        del tree.commands["dcb"]

    def without_both(tree: Tree) -> None:
        without_dcb(tree)
        tree.add(NCCL_CONF, "")

    unknown = finding(CLASS, "bare-roce", without_dcb)
    assert unknown.status is Status.UNKNOWN
    assert "mlnx_qos" in unknown.cause
    assert finding(CLASS, "bare-roce", without_both).status is Status.PASSED


def test_a_plugin_of_a_cloud_sets_its_own_class() -> None:
    def configured(tree: Tree) -> None:
        set_qos(tree, bare)

    bare = SimulatedHost("bare-roce").tree.description.nic["compute"].qos
    assert bare is not None
    assert finding(CLASS, "gcp-a4", configured).status is Status.PASSED


def test_the_class_of_rdma_cm_counts_too() -> None:
    path = "/sys/kernel/config/rdma_cm/mlx5_bond_1/ports/1/default_roce_tos"
    found = finding(CLASS, "bare-roce", lambda tree: tree.add(path, "32\n"))
    assert found.status is Status.FOUND
    assert found.devices == ("mlx5_bond_1",)


@pytest.mark.slow
def test_the_class_of_the_driver_replaces_that_of_the_job() -> None:
    def by_driver(value: int) -> Callable[[Tree], None]:
        def change(tree: Tree) -> None:
            for nic in tree.nics:
                path = f"{nic.path}/infiniband/{nic.name}/tc/1/traffic_class"
                tree.add(path, f"Global tclass={value}\n")

        return change

    assert finding(OVERRIDDEN, "bare-roce", by_driver(106)).status is Status.PASSED
    assert finding(OVERRIDDEN, "bare-roce", by_driver(104)).status is Status.FOUND
    assert finding(CLASS, "bare-roce", by_driver(104)).status is Status.PASSED
    assert finding(CLASS, "bare-roce", by_driver(32)).status is Status.FOUND


def gpu_posted(
    *libraries: str, port: int | None = 236, conf: str = "", node: str = "bare-roce", **variables: str
) -> Finding:
    """Return the finding about a job whose GPUs may post to queue pairs, on ports with this class."""

    def change(tree: Tree) -> None:
        tree.add(NCCL_CONF, conf)
        add_rank(tree, 46000, 0, variables, libraries)
        for nic in tree.nics if port is not None else ():
            tree.add(f"{nic.path}/infiniband/{nic.name}/tc/1/traffic_class", f"Global tclass={port}\n")

    return finding("roce-class-of-gpu", node, change)


@pytest.mark.parametrize(
    ("version", "settings", "variable"),
    [
        ("2.30.7", {}, "NCCL_GIN_IB_TC=236"),
        ("2.31.2", {"NCCL_GIN_IB_TC": "0"}, "NCCL_GIN_IB_TC=236"),
        ("2.31.2", {"NCCL_IB_TC": "106"}, "NCCL_GIN_IB_TC=236"),
        ("2.29.7", {"NCCL_GIN_IB_TC": "236"}, "NCCL_IB_TC=236"),  # this version does not read it
        ("2.31.2", {"NCCL_GIN_IB_TC": "236"}, ""),
        ("2.31.2", {"NCCL_GIN_IB_TC": "238"}, ""),  # the same DSCP
        ("2.29.7", {"NCCL_IB_TC": "236"}, ""),
        ("2.31.2", {"NCCL_GIN_TYPE": "2"}, ""),  # the CPU posts
    ],
)
def test_the_class_of_the_port_does_not_reach_the_queue_pairs_of_gpus(
    version: str, settings: dict[str, str], variable: str
) -> None:
    """NVIDIA/nccl issue 2383, and gin.cc and gin_host_gdaki.cc of 2.29.7, 2.30.4, 2.30.7 and 2.31.2."""
    found = gpu_posted(f"/opt/libnccl.so.{version}", **{"NCCL_GIN_TYPE": "3", **settings})
    assert (found.status is Status.FOUND) == bool(variable)
    if variable:
        assert found.fix is not None
        assert variable in found.fix.steps[0].why


def test_only_the_program_can_set_another_class() -> None:
    gin = {"NCCL_GIN_TYPE": "3"}
    assert "unless the program" in gpu_posted("/opt/libnccl.so.2.30.7", **gin).cause
    assert "unless the program" not in gpu_posted("/opt/libnccl.so.2.29.7", **gin).cause


def test_ibgda_of_nvshmem_has_its_own_variable() -> None:
    transport = "/usr/lib64/nvshmem_transport_ibgda.so.3.0.0"
    found = gpu_posted(transport)
    assert found.fix is not None
    assert "NVSHMEM_IB_TRAFFIC_CLASS=236" in found.fix.steps[0].why
    assert gpu_posted(transport, NVSHMEM_IB_TRAFFIC_CLASS="236").status is Status.PASSED
    assert gpu_posted(transport, port=None).status is Status.PASSED
    assert gpu_posted(transport, port=0).status is Status.PASSED


def class_of_gpu(library: str, **settings: str) -> Finding:
    """Judge a job whose verbs have a lossless class, on a node whose priority 3 is lossless."""

    def change(tree: Tree) -> None:
        tree.remove(NCCL_CONF)  # GIN takes NCCL_IB_TC where its own variable is missing
        add_rank(tree, 46000, 0, {"NCCL_IB_SL": "3", **settings}, (library,))
        for nic in tree.nics:
            tree.add(f"{nic.path}/infiniband/{nic.name}/tc/1/traffic_class", "Global tclass=104\n")

    return finding(CLASS, "bare-roce", change)


@pytest.mark.parametrize(
    ("library", "settings", "variable"),
    [
        ("/opt/libnccl.so.2.30.7", {"NCCL_GIN_TYPE": "3"}, "NCCL_GIN_IB_TC"),
        ("/opt/libnccl.so.2.30.7", {"NCCL_GIN_TYPE": "3", "NCCL_GIN_IB_TC": "104"}, ""),
        ("/opt/libnccl.so.2.30.4", {"NCCL_GIN_TYPE": "3", "NCCL_GIN_IB_TC": "104"}, "NCCL_IB_TC"),
        ("/opt/libnccl.so.2.30.7", {"NCCL_GIN_TYPE": "3", "NCCL_IB_TC": "104"}, ""),  # gin.cc:284
        ("/opt/libnccl.so.2.30.7", {"NCCL_GIN_TYPE": "2"}, ""),  # the proxy uses verbs
        ("/usr/lib64/nvshmem_transport_ibgda.so.3.0.0", {}, "NVSHMEM_IB_TRAFFIC_CLASS"),
        ("/usr/lib64/nvshmem_transport_ibgda.so.3.0.0", {"NVSHMEM_IB_TRAFFIC_CLASS": "104"}, ""),
        ("/usr/lib64/nvshmem_transport_ibrc.so.3.0.0", {}, ""),
    ],
)
def test_the_class_of_gpu_posted_queue_pairs_has_to_be_lossless(
    library: str, settings: dict[str, str], variable: str
) -> None:
    """NVIDIA/nccl gin.cc and gin_host_gdaki.cc of 2.30.4 and 2.30.7; issue 2383 has the sign."""
    found = class_of_gpu(library, **settings)
    assert found.status is (Status.FOUND if variable else Status.PASSED)
    if variable:
        assert found.fix is not None
        steps = " | ".join(step.why for step in found.fix.steps)
        assert f"Set {variable} in the job" in steps
        assert ("/etc/nccl.conf" in steps) == variable.startswith("NCCL_")
        assert ("tx_prio0_bytes" in steps) == (variable != "NCCL_IB_TC")


def test_an_overridden_class_is_not_claimed_of_the_queue_pairs_of_gpus() -> None:
    def change(tree: Tree) -> None:
        add_rank(tree, 46000, 0, {"NCCL_GIN_TYPE": "3"}, ("/opt/libnccl.so.2.30.7",))
        for nic in tree.nics:
            tree.add(f"{nic.path}/infiniband/{nic.name}/tc/1/traffic_class", "Global tclass=236\n")

    assert "but for those that GPUs post to" in finding(OVERRIDDEN, "bare-roce", change).cause
    assert "GPUs post" not in findings_on(f"bare-roce+{OVERRIDDEN}")[OVERRIDDEN].cause


def test_a_driver_that_cannot_disable_ecn_has_not_disabled_it() -> None:
    passed = finding(ECN, "gcp-a4")
    assert passed.status is Status.PASSED
    assert "cannot disable ECN" in passed.evidence[0].value


def test_handled_notifications_prove_that_ecn_works() -> None:
    def handled(tree: Tree) -> None:
        for nic in tree.nics:
            tree.add(f"{nic.path}/infiniband/{nic.name}/ports/1/hw_counters/rp_cnp_handled", "12\n")

    assert finding(ECN, "gcp-a4", handled).evidence[0].value == "12: ECN works"


def test_ecn_settings_that_cannot_be_read_are_unknown() -> None:
    examination = examine(SimulatedHost("bare-roce"))
    health = examination.port_health
    assert not isinstance(health, Unknown)
    refused = Unknown(Reason.IO_ERROR, "ecn")
    ports = {key: replace(port, ecn_priorities=refused) for key, port in health.ports.items()}
    changed = replace(examination, port_health=replace(health, ports=ports))
    assert findings(changed, only=(ECN,))[0].status is Status.UNKNOWN


def test_the_ports_of_a_bond_have_the_ecn_settings() -> None:
    passed = finding(ECN, "bare-roce")
    assert passed.status is Status.PASSED
    assert passed.evidence[0].source == "/sys/class/net/ens0f0np0/ecn/roce_rp/enable"
