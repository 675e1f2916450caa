"""A simulated node refuses a fault that a user would not notice on it, and has every other one."""

from __future__ import annotations

from functools import cache

import pytest

from probes.base.unknown import Unknown
from probes.checks.registry import findings
from probes.facts.rdma.cable_ends import LLDP
from probes.live.job_examination import examine_with_jobs
from probes.queries.finding import Finding, Status
from probes.simulation.faults.catalogue import FAULTS, NoSuchFault
from probes.simulation.host import SimulatedHost
from tests.support.pilot import SteppedClock
from tests.support.tiers import nodes_to_try, usual
from tui.runtime.open_host import fault_without_effect

SHOWN_AFTER_SECONDS = 60.0  # by then every live fault has begun


def found_on(name: str) -> dict[str, Finding]:
    outcomes = findings(examine_with_jobs(SimulatedHost(name, clock=SteppedClock())))
    return {finding.id: finding for finding in outcomes if finding.status is Status.FOUND}


@cache
def found_without_fault(node: str) -> dict[str, Finding]:
    return found_on(node)


@cache
def seen_later_without_fault(node: str) -> tuple[object, ...]:
    return seen_later(node)


def seen_later(name: str) -> tuple[object, ...]:
    """What gdrtop can read of a node a while after it was opened: files, GPUs, RDMA resources, counters."""
    clock = SteppedClock()
    host = SimulatedHost(name, clock=clock)
    host.kernel_messages()
    clock.now += SHOWN_AFTER_SECONDS
    lost = host.nvml_live()  # also carries out what is due by then
    files = {path: host.read_bytes(path) for path in list(host.tree.files)}
    gpus = host.nvml()
    return files, lost, gpus, host.rdma_resources(), host.kernel_messages(), host.run(LLDP, 5.0)


def is_refused(node: str, fault: str) -> bool:
    try:
        return fault_without_effect(node, fault) is not None
    except NoSuchFault:
        return True


def test_two_equal_nodes_are_seen_alike() -> None:
    assert seen_later("hgx-h100") == seen_later("hgx-h100")


def shows(node: str, name: str) -> bool:
    """Whether a user would notice a fault: one of its checks finds it, or else what is read differs."""
    fault = FAULTS[name]
    if fault.is_live or not fault.finds:  # some faults are healthy variants
        return seen_later(f"{node}+{name}") != seen_later_without_fault(node)
    found, before = found_on(f"{node}+{name}"), found_without_fault(node)
    return any(find in found and found[find] != before.get(find) for find in fault.finds)


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(FAULTS, {"acs-on", "peermem-parameter-wrong"}))
def test_a_fault_is_refused_or_found_on_each_node(name: str) -> None:
    assert not is_refused(FAULTS[name].on, name)
    assert [node for node in nodes_to_try(name) if not is_refused(node, name) and not shows(node, name)] == []


@pytest.mark.parametrize(
    ("node", "fault", "reason"),
    [
        ("gcp-a4", "acs-on", "the hypervisor controls ACS"),
        ("aws-p5", "acs-on", "the hypervisor controls ACS"),
        ("gb200", "acs-on", "no GPU and NIC share a PCIe switch"),
        ("cloud-vm", "acs-on", "no GPU and NIC share a PCIe switch"),
        ("pcie-l40s", "peermem-parameter-wrong", "nvidia_peermem: not loaded"),
        ("dgx-spark", "nvlsm-down", "no NVSwitch, or"),
        ("aws-p5", "nic-flapping", "no job or part that it could affect"),
    ],
)
def test_the_refusal_says_what_the_node_lacks(node: str, fault: str, reason: str) -> None:
    refused = fault_without_effect(node, fault)
    assert refused is not None
    assert refused[0].name == fault
    assert reason in refused[1]


@pytest.mark.parametrize("node", ["dgx-a100", "hgx-b200", "hgx-h100"])
def test_acs_redirects_are_found_on_switches_of_any_depth(node: str) -> None:
    assert fault_without_effect(node, "acs-on") is None


def traffic(name: str) -> dict[str, int]:
    """The octets that each NIC sent in 30 s, in units of four."""
    clock = SteppedClock()
    host = SimulatedHost(name, clock=clock)
    counter = "ports/1/counters/port_xmit_data"
    counters = {nic.name: f"/sys/class/infiniband/{nic.name}/{counter}" for nic in host.tree.nics}

    def read() -> dict[str, int]:
        texts = {nic: host.read(path) for nic, path in counters.items()}
        return {nic: int(text) for nic, text in texts.items() if not isinstance(text, Unknown)}

    before = read()
    clock.now += 30.0
    return {nic: count - before[nic] for nic, count in read().items()}


@pytest.mark.parametrize(
    ("fault", "nic"), [("port-down", "mlx5_1"), ("port-disabled", "mlx5_3"), ("no-subnet-manager", "mlx5_5")]
)
def test_no_rank_sends_over_a_port_that_is_not_active(fault: str, nic: str) -> None:
    usual_traffic, sent = traffic("hgx-h100"), traffic(f"hgx-h100+{fault}")
    assert sent[nic] == 0 < usual_traffic[nic]
    host = SimulatedHost(f"hgx-h100+{fault}")
    ranks = [program for program in host.tree.programs if program.is_nccl]
    assert all(rank.nics and nic not in rank.nics for rank in ranks)
    busy = {name for rank in ranks for name in rank.nics}
    assert sum(sent[name] for name in busy) < 0.7 * sum(usual_traffic[name] for name in busy)


@pytest.mark.parametrize(
    "fault", ["nic-without-driver", "nic-without-rdma-device", "nccl-ib-hca-port-down", "link-layer-wrong"]
)
def test_ranks_use_only_active_ports(fault: str) -> None:
    host = SimulatedHost(f"hgx-h100+{fault}")
    for rank in host.tree.programs:
        for nic in rank.nics:
            assert "ACTIVE" in str(host.read(f"/sys/class/infiniband/{nic}/ports/1/state"))


def test_a_port_that_is_down_makes_no_setting_differ() -> None:
    """NCCL prints the whole NCCL_IB_HCA, and then uses the ports that are active."""
    assert "job-log-other-setting" not in found_on("hgx-h100+port-down")


@pytest.mark.parametrize(
    "name",
    [
        "hgx-h100+job-log-gdr-disabled",
        "hgx-h100+no-gdr-path",
        "hgx-h100+confidential-computing-on",
        "dgx-a100+peermem-not-on-disk-old-driver",
        "cloud-vm+vgpu-without-gdr",
    ],
)
def test_a_staged_job_is_slower_than_one_with_gdr(name: str) -> None:
    staged, direct = traffic(name), traffic(name.partition("+")[0])
    assert staged["mlx5_0"] < 0.7 * direct["mlx5_0"]


def test_only_the_ranks_that_copy_are_slower() -> None:
    staged, direct = traffic("dgx-a100+gpu-nic-cross-socket"), traffic("dgx-a100")
    assert staged["mlx5_0"] < 0.95 * direct["mlx5_0"]  # it also serves a GPU of the other socket
    assert staged["mlx5_2"] == direct["mlx5_2"]


def test_ranks_without_the_driver_send_nothing() -> None:
    assert traffic("pcie-l40s+nvidia-not-loaded")["mlx5_0"] == 0
