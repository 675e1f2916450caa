"""The forecast of a node is the verdict of the same node after it was really restarted."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from probes.base.evidence import Severity
from probes.checks.judgment import conclude
from probes.checks.registry import findings
from probes.facts.gpudirect import GdrPath
from probes.facts.kernel import boot
from probes.facts.system import packages
from probes.facts.system.platform import in_container
from probes.queries.finding import Finding, Status
from probes.setup.forecast import KernelForecast, forecast
from probes.simulation.faults.catalogue import FAULTS, NoSuchFault
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.description import simulated_names
from probes.snapshot.examination import examine
from probes.snapshot.verdict import State, Verdict
from tests.support.contradictions import contradictions
from tests.support.pilot import SteppedClock
from tests.support.tiers import USUAL_FAULTS, nodes_to_try, usual

_DRIVER_OF_NICS = "RDMA devices are there only while their driver runs, and it does not run now"
# Where the forecast may say UNKNOWN although the node works (or does not) after its restart, and why no
# file could show it.
UNKNOWN_IS_RIGHT = {
    **dict.fromkeys(("ib-core-not-loaded", "mlx5-core-not-loaded", "mlx5-ib-not-loaded"), _DRIVER_OF_NICS),
    **dict.fromkeys(("ib-uverbs-not-loaded", "mlx4-core-not-loaded", "mlx4-ib-not-loaded"), _DRIVER_OF_NICS),
    **dict.fromkeys(("efa-not-loaded", "cxi-ss1-not-loaded"), _DRIVER_OF_NICS),
    "nvidia-not-loaded": "only NVML shows whether a GPU has C2C links to the CPU, which bring NICs near",
    "dkms-not-built-for-kernel": "dkms.service may build the driver during the boot",
}
NO_PROBE_FAILS = "the probe failed"


@dataclass(frozen=True)
class Outcome:
    """What is compared."""

    state: State
    path: GdrPath | None
    gpus: tuple[int, int]
    data_path: frozenset[str]  # causes that cost bandwidth


def outcome(verdict: Verdict, found: tuple[Finding, ...]) -> Outcome:
    data_path = (
        finding.id
        for finding in found
        if finding.status is Status.FOUND
        and finding.data_path
        and finding.severity is not Severity.NOTE
        and not finding.part_of
    )
    return Outcome(verdict.state, verdict.path, (verdict.gpus_served, verdict.gpus), frozenset(data_path))


def forecast_of(host: SimulatedHost) -> KernelForecast | None:
    """Return the forecast for the kernel that the simulated node will start; None: a pod starts none."""
    examination = examine(host)
    release = examination.node.kernel_release
    assert isinstance(release, str)
    facts = boot.probe(host, packages.probe(host), release)
    kernel = forecast(host, examination, facts, release).chosen(release)
    assert (kernel is None) == in_container(examination.node.platform)
    return kernel


def restarted(host: SimulatedHost) -> Outcome:
    """Restart the node, without the jobs of before: none runs after a boot."""
    host.reboot(with_jobs=False)
    after = examine(host)
    found = findings(after)
    return outcome(conclude(after.usability, found), found)


def compare(name: str) -> None:
    host = SimulatedHost(name, clock=SteppedClock())
    fault = name.partition("+")[2]
    if fault in host.faults_without_effect:
        return
    kernel = forecast_of(host)
    if kernel is None:
        return
    said, real = outcome(kernel.verdict, kernel.findings), restarted(host)
    assert not contradictions(kernel.verdict, kernel.findings), name
    assert NO_PROBE_FAILS not in kernel.verdict.reason, name
    assert "a bug in gdrtop" not in " ".join(finding.cause for finding in kernel.findings), name
    if said.state is State.UNKNOWN and said != real:
        assert fault in UNKNOWN_IS_RIGHT, (name, kernel.verdict.reason, real)
        assert "not known yet" in kernel.verdict.reason, (name, kernel.verdict.reason)
        # Without NVML a GB10, to which findings do not apply by design, is any GPU.
        assert said.data_path <= real.data_path or real.state is State.NOT_APPLICABLE, name
        return
    assert said == real, name


@pytest.mark.parametrize("name", usual(simulated_names(), {"hgx-h100", "dgx-a100", "gb200", "slingshot"}))
def test_a_healthy_node_is_forecast_as_it_starts(name: str) -> None:
    compare(name)


@pytest.mark.slow
@pytest.mark.parametrize("fault", sorted(USUAL_FAULTS | UNKNOWN_IS_RIGHT.keys()))
def test_the_forecast_is_what_the_node_becomes(fault: str) -> None:
    compare(f"{FAULTS[fault].on}+{fault}")


@pytest.mark.slow
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_the_forecast_of_another_node_is_what_it_becomes(fault: str) -> None:
    for node in nodes_to_try(fault):
        try:
            compare(f"{node}+{fault}")
        except NoSuchFault:
            continue


@pytest.mark.slow
def test_unknown_is_said_only_where_a_reason_is_written_here() -> None:
    """The list above is short, and each of its faults makes some forecast unknown."""
    for fault in UNKNOWN_IS_RIGHT:
        node = "gb200" if fault == "nvidia-not-loaded" else FAULTS[fault].on
        kernel = forecast_of(SimulatedHost(f"{node}+{fault}", clock=SteppedClock()))
        assert kernel is not None
        assert kernel.verdict.state is State.UNKNOWN, fault
