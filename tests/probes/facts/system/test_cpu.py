"""Clocks and sleep of the CPUs, automatic NUMA balancing, and tuned's profile."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown, known
from probes.facts.system.cpu import IDLE, NUMA_BALANCING, POLICIES, TUNED_PROFILE, CpuClocks, IdleState, probe
from probes.host.machine.local import LocalHost
from tests.support.trees import write


def add_policy(top: Path, number: int, **files: object) -> None:
    values = {"scaling_governor": "performance", "scaling_max_freq": 3800000, "cpuinfo_max_freq": 3800000}
    for name, value in {**values, **files}.items():
        write(top, f"{POLICIES}/policy{number}/{name}", f"{value}\n")


def clocks_of(top: Path) -> CpuClocks:
    clocks = probe(LocalHost(str(top))).clocks
    assert isinstance(clocks, CpuClocks), clocks
    return clocks


def test_a_virtual_machine_has_no_clocks_and_no_sleep(tmp_path: Path) -> None:
    facts = probe(LocalHost(str(tmp_path)))
    for fact in (facts.clocks, facts.deepest_sleep, facts.numa_balancing, facts.tuned_profile):
        assert isinstance(fact, Unknown)
        assert fact.reason is Reason.NOT_THERE


def test_of_many_policies_some_over_the_whole_node_are_read(tmp_path: Path) -> None:
    for number in range(256):
        add_policy(tmp_path, number)
    clocks = clocks_of(tmp_path)
    numbers = [int(policy.name.removeprefix("policy")) for policy in clocks.policies]
    assert clocks.count == 256
    assert len(numbers) == 24
    assert numbers == sorted(numbers)
    assert numbers[0] == 0
    assert numbers[-1] > 240


def test_a_policy_whose_cpus_are_offline_is_left_out(tmp_path: Path) -> None:
    """The kernel refuses to read its governor (EBUSY)."""
    add_policy(tmp_path, 0)
    write(tmp_path, f"{POLICIES}/policy1/cpuinfo_max_freq", "3800000\n")
    assert [policy.name for policy in clocks_of(tmp_path).policies] == ["policy0"]


@pytest.mark.parametrize(
    ("driver", "governor", "preference", "fast"),
    [
        ("intel_pstate", "performance", "performance", True),
        ("intel_pstate", "powersave", "performance", True),
        ("intel_pstate", "powersave", "balance_performance", False),
        ("amd-pstate-epp", "powersave", "performance", True),
        ("intel_cpufreq", "powersave", "performance", False),
        ("acpi-cpufreq", "schedutil", None, False),
        ("cppc_cpufreq", "performance", None, True),
    ],
)
def test_powersave_is_fast_only_where_the_driver_prefers_performance(
    tmp_path: Path, driver: str, governor: str, preference: str | None, fast: bool
) -> None:
    extra = {} if preference is None else {"energy_performance_preference": preference}
    add_policy(tmp_path, 0, scaling_driver=driver, scaling_governor=governor, **extra)
    assert clocks_of(tmp_path).is_fast is fast


def test_the_boost_is_no_frequency_that_a_governor_can_choose(tmp_path: Path) -> None:
    """EPYC with acpi-cpufreq: the kernel itself lowers scaling_max_freq to an entry of the table."""
    table = "2450000 2000000 1500000"
    values = {"scaling_max_freq": 2450000, "cpuinfo_max_freq": 3529052}
    add_policy(tmp_path, 0, scaling_available_frequencies=table, **values)
    (policy,) = clocks_of(tmp_path).policies
    assert (policy.limit_khz, policy.hardware_khz) == (2450000, 2450000)


def test_the_deepest_state_is_one_that_is_not_disabled(tmp_path: Path) -> None:
    for number, (name, latency, disable) in enumerate((("POLL", 0, 0), ("C1", 1, 0), ("C6", 290, 1))):
        for file, value in (("name", name), ("latency", latency), ("disable", disable)):
            write(tmp_path, f"{IDLE}/state{number}/{file}", f"{value}\n")
    assert probe(LocalHost(str(tmp_path))).deepest_sleep == IdleState("C1", 1)


@pytest.mark.parametrize(
    ("text", "profile"), [("throughput-performance\n", "throughput-performance"), ("", "")]
)
def test_tuned_and_numa_balancing(tmp_path: Path, text: str, profile: str) -> None:
    write(tmp_path, TUNED_PROFILE, text)
    write(tmp_path, NUMA_BALANCING, "3\n")
    facts = probe(LocalHost(str(tmp_path)))
    assert facts.numa_balancing == 3
    assert known(facts.tuned_profile, "") == profile


@given(st.binary(max_size=80))
def test_any_bytes_are_read(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    top = tmp_path_factory.mktemp("cpu")
    names = ("scaling_governor", "scaling_max_freq", "cpuinfo_max_freq", "scaling_available_frequencies")
    for path in (*(f"{POLICIES}/policy0/{name}" for name in names), TUNED_PROFILE, f"{IDLE}/state0/disable"):
        target = Path(f"{top}{path}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    probe(LocalHost(str(top)))
