"""Every fault of a simulated node is found, and a healthy node has no findings."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.checks.registry import CHECKS
from probes.queries.finding import Severity, Status
from probes.simulation.faults.catalogue import FAULTS
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.names import SIMULATED_NAMES
from tests.probes.checks.doctor import findings_on, found_on
from tests.tiers import USUAL_FAULTS, usual

# Findings on healthy nodes, and why they are correct.
ARGUED: dict[str, set[str]] = {name: set() for name in SIMULATED_NAMES}
# Two of its GPUs are on a socket without a NIC, while the others have one below their switch.
ARGUED["pcie-l40s"] |= {"gpu-nic-cross-socket", "gpu-not-served", "job-log-staged", "job-staged"}


@pytest.mark.parametrize("name", SIMULATED_NAMES)
def test_a_healthy_node_has_no_findings(name: str) -> None:
    found = {one.id: one for one in findings_on(name).values() if one.status is Status.FOUND}
    loud = {name for name, one in found.items() if one.severity is not Severity.NOTE}
    assert loud == ARGUED[name]


@pytest.mark.parametrize("name", usual(FAULTS, USUAL_FAULTS))
def test_each_fault_is_found(name: str) -> None:
    fault = FAULTS[name]
    assert fault.finds <= found_on(f"{fault.on}+{name}")
    assert not fault.finds & found_on(fault.on)


@pytest.mark.parametrize("name", usual(FAULTS, USUAL_FAULTS))
def test_a_finding_has_cause_and_evidence(name: str) -> None:
    fault = FAULTS[name]
    for found in fault.finds:
        finding = findings_on(f"{fault.on}+{name}")[found]
        assert finding.cause
        assert finding.evidence
        assert all(one.source and one.value for one in finding.evidence)


@pytest.mark.parametrize("name", usual(FAULTS, USUAL_FAULTS))
def test_a_root_is_at_least_as_severe_as_its_parts(name: str) -> None:
    found = {one.id: one for one in findings_on(f"{FAULTS[name].on}+{name}").values()}
    order = list(Severity)
    for finding in found.values():
        if finding.status is Status.FOUND and finding.part_of:
            root = found[finding.part_of]
            assert not root.part_of
            assert order.index(root.severity) <= order.index(finding.severity)


# Where GPUDirect RDMA cannot work by design, other faults are not reported.
COMBINED = [
    fault for fault in FAULTS.values() if fault.on == "hgx-h100" and fault.name != "confidential-computing-on"
]


@pytest.mark.slow
@given(st.lists(st.sampled_from(COMBINED), min_size=1, max_size=6, unique_by=lambda fault: fault.name))
@settings(max_examples=60)
def test_faults_are_found_together(faults: list) -> None:  # type: ignore[type-arg]
    names = {fault.name for fault in faults}
    chosen = [fault for fault in faults if not fault.excludes & names]
    found = found_on("hgx-h100+" + ",".join(fault.name for fault in faults))
    for fault in chosen:
        assert fault.finds <= found, fault.name


def test_every_check_has_a_fault() -> None:
    faulted = {found for fault in FAULTS.values() for found in (*fault.finds, *fault.shows)}
    # Only a forecast finds these, and tests/probes/setup/test_forecast.py has a node for each.
    before_a_boot = {"boot-settings-not-written", "boot-image-older-than-settings"}
    # Saved results are no part of a node; tests/probes/bandwidth/results/test_slow_results.py has them.
    by_results = {"bandwidth-below-limit"}
    checks = {check.id for check in CHECKS} - before_a_boot - by_results
    assert not checks - faulted, f"add a fault to probes/simulation/faults for {sorted(checks - faulted)}"
    assert not faulted - checks, f"add a check to probes/checks for {sorted(faulted - checks)}"


@pytest.mark.parametrize("name", ["hgx-h100", "dgx-a100", "gb200", "cloud-vm", "hgx-b200"])
def test_a_port_at_half_rate_is_found_on_every_node_that_has_it(name: str) -> None:
    assert "single-rail-or-half-rate" in found_on(f"{name}+half-rate")


@pytest.mark.parametrize(
    ("fault", "nic", "gbps"), [("half-rate", "mlx5_2", 200), ("one-lane", "mlx5_7", 100)]
)
def test_a_slow_port_carries_no_more_than_its_rate(fault: str, nic: str, gbps: int) -> None:
    seconds = [0.0]
    host = SimulatedHost(f"hgx-h100+{fault}", clock=lambda: seconds[0])
    path = f"/sys/class/infiniband/{nic}/ports/1/counters/port_xmit_data"
    before = int(str(host.read(path)))
    seconds[0] = 10.0
    words = int(str(host.read(path))) - before  # of four bytes
    assert 0 < words * 4 * 8 / 10 / 1e9 <= gbps


@pytest.mark.parametrize("name", ["hgx-h100", "aws-p5", "hgx-b200"])
def test_a_port_that_is_down_carries_nothing(name: str) -> None:
    """Its device has another name on each of these nodes."""
    seconds = [0.0]
    host = SimulatedHost(f"{name}+port-down", clock=lambda: seconds[0])
    ports = [f"/sys/class/infiniband/{nic.name}/ports/1" for nic in host.tree.nics]
    (down,) = (port for port in ports if host.read(f"{port}/state") == "1: DOWN")
    for counter in ("port_xmit_data", "port_rcv_data"):
        before = host.read(f"{down}/counters/{counter}")
        seconds[0] += 10.0
        assert host.read(f"{down}/counters/{counter}") == before
    assert "ib-port-not-active" in found_on(f"{name}+port-down")


def test_titles_begin_with_a_capital() -> None:
    """A capital letter, but for the names of modules, commands and files."""
    names = {"nvidia", "modprobe", "perftest", "perftest's", "gdrdrv", "libibverbs", "efa"}
    begins = {text.split()[0] for check in CHECKS for text in (check.title, check.ok)}
    assert {word for word in begins if word[0].islower() and word.replace("'", "").isalpha()} <= names


def test_ids_are_unique() -> None:
    assert len({check.id for check in CHECKS}) == len(CHECKS)
