"""Clocks of the CPUs, automatic NUMA balancing, and the interrupts of NICs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Reason, Unknown
from probes.checks.registry import findings
from probes.facts.system.cpu import CpuClocks, CpuFacts, CpuPolicy
from probes.fleet.traits import traits_of
from probes.plans.boot import sysctl_steps
from probes.queries.finding import Finding, Status
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.names import SIMULATED_NAMES
from probes.snapshot.examination import Examination, examine
from tests.support.doctor import examination_of, findings_on

CHECKS = ("cpu-clocks", "numa-balancing-on", "nic-interrupts")


def with_cpu(name: str = "hgx-h100", **fields: object) -> Examination:
    examination = examination_of(name)
    assert isinstance(examination.cpu, CpuFacts)
    return replace(examination, cpu=replace(examination.cpu, **fields))  # type: ignore[arg-type]


def judged(examination: Examination, check: str) -> Finding:
    (finding,) = findings(examination, only=[check])
    return finding


def clocks(driver: str, *governors: str, limit: int = 3800000, preference: str = "") -> CpuClocks:
    policies = tuple(
        CpuPolicy(f"policy{number}", governor, limit, 3800000) for number, governor in enumerate(governors)
    )
    chosen = preference or Unknown(Reason.NOT_THERE, "preference")
    return CpuClocks(driver, chosen, policies, len(policies))


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("node", SIMULATED_NAMES)
def test_a_healthy_node_passes(node: str, check: str) -> None:
    assert findings_on(node)[check].status is Status.PASSED


@pytest.mark.parametrize(
    "usual",
    [
        clocks("intel_pstate", "powersave", "powersave", preference="balance_performance"),  # Ubuntu
        clocks("intel_cpufreq", "schedutil", "schedutil"),
        clocks("acpi-cpufreq", "schedutil", "schedutil"),
        clocks("amd-pstate-epp", "powersave", "powersave", preference="balance_performance"),
        clocks("cppc_cpufreq", "ondemand", "ondemand"),
        clocks("intel_pstate", "performance", limit=3750000, preference="performance"),  # rounded
    ],
    ids=str,
)
def test_what_distributions_choose_is_no_finding(usual: CpuClocks) -> None:
    assert judged(with_cpu(clocks=usual), "cpu-clocks").status is Status.PASSED


@pytest.mark.parametrize(
    ("slow", "cause", "command"),
    [
        (
            clocks("acpi-cpufreq", "powersave", "powersave"),
            "lowest frequency",
            "cpupower frequency-set -g performance",
        ),
        (
            clocks("acpi-cpufreq", "powersave", "schedutil"),
            "different",
            "cpupower frequency-set -g performance",
        ),
        (clocks("intel_pstate", "performance", limit=2000000), "below", "cpupower frequency-set -u 3800000"),
    ],
)
def test_slower_clocks_are_a_warning_that_does_not_degrade_the_node(
    slow: CpuClocks, cause: str, command: str
) -> None:
    finding = judged(with_cpu(clocks=slow), "cpu-clocks")
    assert finding.status is Status.FOUND
    assert cause in finding.cause
    assert (finding.severity, finding.data_path) == (Severity.WARNING, False)
    assert finding.fix is not None
    assert finding.fix.steps[0].command == command


def test_tuned_is_asked_where_it_owns_the_governor() -> None:
    slow = clocks("acpi-cpufreq", "powersave", "powersave")
    finding = judged(with_cpu(clocks=slow, tuned_profile="balanced"), "cpu-clocks")
    assert finding.fix is not None
    (step,) = finding.fix.steps
    assert step.command == "tuned-adm profile throughput-performance"
    assert step.undo == ("tuned-adm", "profile", "balanced")


def test_unknown_clocks_are_not_ok() -> None:
    unread = Unknown(Reason.TIMED_OUT, "cpufreq")
    assert judged(with_cpu(clocks=unread), "cpu-clocks").status is Status.UNKNOWN
    assert judged(with_cpu(numa_balancing=unread), "numa-balancing-on").status is Status.UNKNOWN
    blind = replace(examination_of("hgx-h100"), cpu=unread)
    assert judged(blind, "cpu-clocks").status is Status.UNKNOWN
    tcp = replace(examination_of("hgx-h100+nic-interrupts"), interrupts=unread)
    assert judged(tcp, "nic-interrupts").status is Status.UNKNOWN
    tcp = replace(tcp, interrupts={"0000:1a:00.0": unread, "0000:1b:00.0": ("0", "1")})
    assert judged(tcp, "nic-interrupts").status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("node", "severity"),
    [
        ("hgx-h100", Severity.NOTE),
        ("cloud-vm", Severity.NOTE),
        ("gb200", Severity.WARNING),
        ("hgx-h100+nvshmem-ibgda-driver-options", Severity.WARNING),
        ("dgx-spark", None),  # one NUMA node
    ],
)
def test_numa_balancing_is_a_warning_where_it_was_measured_or_on_grace(
    node: str, severity: Severity | None
) -> None:
    finding = judged(with_cpu(node, numa_balancing=1), "numa-balancing-on")
    assert (finding.severity if finding.status is Status.FOUND else None) == severity


def test_the_fix_of_numa_balancing_works_and_lasts() -> None:
    host = SimulatedHost("hgx-h100+numa-balancing-on", clock=lambda: 1000.0)
    before = judged(examine(host), "numa-balancing-on")
    assert before.fix is not None
    for step in before.fix.steps:
        argv = ("tee", step.file.path) if step.file else step.argv
        assert host.perform(argv, step.file.text or "" if step.file else "").exit_status == 0
    assert judged(examine(host), "numa-balancing-on").status is Status.PASSED
    assert host.read("/etc/sysctl.d/gdrtop-numa-balancing.conf") == "kernel.numa_balancing = 0"
    host.perform(before.fix.steps[0].undo)
    assert judged(examine(host), "numa-balancing-on").status is Status.FOUND


@pytest.mark.parametrize("fault", ["cpu-governor-mixed", "cpu-clocks-capped"])
def test_the_fix_of_the_clocks_works(fault: str) -> None:
    host = SimulatedHost(f"hgx-h100+{fault}", clock=lambda: 1000.0)
    finding = judged(examine(host), "cpu-clocks")
    assert finding.fix is not None
    for step in finding.fix.steps:
        assert not step.argv or host.perform(step.argv).exit_status == 0
    assert judged(examine(host), "cpu-clocks").status is Status.PASSED


def test_a_setting_that_tuned_may_restore_names_it() -> None:
    fix = judged(with_cpu(numa_balancing=1, tuned_profile="balanced"), "numa-balancing-on").fix
    assert fix is not None
    assert "profile balanced" in fix.note


@pytest.mark.parametrize(
    ("loader", "where"), [("TALOS", "Talos"), ("MACHINE_CONFIG", "Node Tuning Operator")]
)
def test_an_immutable_system_keeps_a_sysctl_elsewhere(loader: str, where: str) -> None:
    from probes.facts.kernel.boot_loader import BootLoader

    examination = examination_of("hgx-h100")
    boot = replace(examination.boot, loader=BootLoader[loader])  # type: ignore[type-var]
    steps = sysctl_steps(replace(examination, boot=boot), "numa-balancing", "kernel.numa_balancing", 0, 1)
    assert where in steps[1].why
    assert steps[1].is_instruction


def test_interrupts_matter_only_to_tcp() -> None:
    """The same interrupts, with jobs that use RDMA."""
    tcp = examination_of("hgx-h100+nic-interrupts")
    assert "all on CPU 0" in judged(tcp, "nic-interrupts").evidence[0].value
    rdma = replace(examination_of("hgx-h100"), interrupts=tcp.interrupts)
    assert judged(rdma, "nic-interrupts").status is Status.PASSED
    over_tcp = judged(examination_of("hgx-h100+job-tcp"), "nic-interrupts")
    assert over_tcp.status is Status.PASSED
    assert "NICs with spread interrupts" in over_tcp.evidence[0].value


def test_a_fleet_compares_governor_and_numa_balancing() -> None:
    def values_on(name: str) -> dict[str, object]:
        return {found.fact: found.value for found in traits_of(examination_of(name))}

    healthy, other = values_on("hgx-h100"), values_on("hgx-h100+numa-balancing-on,cpu-governor-mixed")
    assert (healthy["numa-balancing"], other["numa-balancing"]) == ("off", "on")
    assert healthy["cpu-governor"] != other["cpu-governor"]
    assert values_on("cloud-vm")["cpu-governor"] == "none"
