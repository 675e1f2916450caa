"""How the CPUs are clocked, how deep they sleep, automatic NUMA balancing, and who sets these.

Linux Documentation/admin-guide/pm/cpufreq.rst and cpuidle.rst, admin-guide/sysctl/kernel.rst. Every user can
read these files; none of them asks the hardware, as scaling_cur_freq would.
"""

from __future__ import annotations

import re
from functools import partial

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known, not_found
from probes.host.protocol import Host
from probes.host.values import read_integer

POLICIES = "/sys/devices/system/cpu/cpufreq"
IDLE = "/sys/devices/system/cpu/cpu0/cpuidle"
NUMA_BALANCING = "/proc/sys/kernel/numa_balancing"
TUNED_PROFILE = "/etc/tuned/active_profile"
# With a policy for each of 256 CPUs, reading all of them takes 10 ms; 24, spread over the node, take 1 ms.
_MOST_POLICIES = 24
_MOST_STATES = 16
_FREQUENCY = re.compile(r"\b[0-9]{4,9}\b", re.ASCII)
_POLICY, _STATE = re.compile(r"policy([0-9]{1,5})"), re.compile(r"state([0-9]{1,2})")
# They choose the frequency themselves; their "powersave" is like schedutil, not the lowest frequency
# (admin-guide/pm/intel_pstate.rst, amd-pstate.rst, "Active Mode").
_OWN_GOVERNORS = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")


@frozen
class CpuPolicy:
    """The CPUs that share a clock; in kHz."""

    name: str  # "policy0", by its first CPU
    governor: str
    limit_khz: Maybe[int]  # what the governor may choose at most
    hardware_khz: Maybe[int]  # the highest that a governor can choose


@frozen
class CpuClocks:
    """How the frequencies of the CPUs are chosen."""

    driver: Maybe[str]  # of the first policy: "intel_pstate"
    preference: Maybe[str]  # of the first policy (EPP); NOT_THERE: the driver has none
    policies: tuple[CpuPolicy, ...]  # those that were read; one whose CPUs are offline cannot be
    count: int  # of all policies

    @property
    def governors(self) -> tuple[str, ...]:
        """The governors in use."""
        return tuple(sorted({policy.governor for policy in self.policies}))

    @property
    def is_fast(self) -> bool:
        """Whether every CPU that was read is set to run fast, by governor or by the driver's preference."""
        if self.governors == ("powersave",) and self.has_own_governors:
            return known(self.preference, "") == "performance"
        return self.governors == ("performance",)

    @property
    def has_own_governors(self) -> bool:
        """Whether the driver's "powersave" is not the lowest frequency."""
        return known(self.driver, "") in _OWN_GOVERNORS

    def __str__(self) -> str:
        preference = "" if isinstance(self.preference, Unknown) else f", preference {self.preference}"
        return f"governor {' and '.join(self.governors)} ({known(self.driver, 'driver unknown')}{preference})"


@frozen
class IdleState:
    """A sleep of a CPU, and how long it takes to wake up."""

    name: str  # "C6"
    exit_us: int

    def __str__(self) -> str:
        return f"sleep state {self.name} ({self.exit_us} µs to wake up)"


@frozen
class CpuFacts:
    """The settings of the CPUs that may cost latency."""

    clocks: Maybe[CpuClocks]  # NOT_THERE: the kernel does not control them, as in most virtual machines
    deepest_sleep: Maybe[IdleState]  # of CPU 0, that is not disabled; NOT_THERE: no cpuidle
    numa_balancing: Maybe[int]  # 0: off; else bits (1: between nodes, 2: between kinds of memory)
    tuned_profile: Maybe[str]  # NOT_THERE: tuned has none


def probe(host: Host) -> CpuFacts:
    """Read at most 24 clock policies, the sleep states of CPU 0, and the two settings."""
    profile = _word(host, TUNED_PROFILE)
    if profile == "":
        profile = Unknown(Reason.NOT_THERE, TUNED_PROFILE, "no profile")
    return CpuFacts(_clocks(host), _sleep(host), read_integer(host, NUMA_BALANCING), profile)


def _numbered(names: tuple[str, ...], pattern: re.Pattern[str]) -> list[str]:
    return sorted(filter(pattern.fullmatch, names), key=lambda name: int(re.sub(r"\D", "", name)))


def _clocks(host: Host) -> Maybe[CpuClocks]:
    names = host.names(POLICIES)
    if isinstance(names, Unknown):
        return names
    policies = _numbered(names, _POLICY)
    if not policies:
        return Unknown(Reason.NOT_THERE, POLICIES, "no driver controls the frequencies")
    step = max(1.0, len(policies) / _MOST_POLICIES)
    chosen = [policies[int(place * step)] for place in range(min(len(policies), _MOST_POLICIES))]
    table = _table(host, policies[0])
    read = [_policy(host, name, table) for name in chosen]
    active = tuple(policy for policy in read if not isinstance(policy, Unknown))
    if not active:
        return not_found(read, POLICIES, "no governor")
    first = f"{POLICIES}/{active[0].name}"
    driver = _word(host, f"{first}/scaling_driver")
    return CpuClocks(driver, _word(host, f"{first}/energy_performance_preference"), active, len(policies))


def _word(host: Host, path: str) -> Maybe[str]:
    return map_known(host.read(path), lambda text: printable(text, 40))


def _table(host: Host, policy: str) -> Maybe[int]:
    """Return the highest frequency of a driver with a table, such as acpi-cpufreq.

    Its cpuinfo_max_freq includes the boost, which no governor chooses: the kernel lowers scaling_max_freq to
    an entry of the table (drivers/cpufreq/cpufreq.c, cpufreq_set_policy).
    """
    text = host.read(f"{POLICIES}/{policy}/scaling_available_frequencies")
    return map_known(text, lambda found: max(map(int, _FREQUENCY.findall(found)), default=0))


def _policy(host: Host, name: str, table: Maybe[int]) -> Maybe[CpuPolicy]:
    path = f"{POLICIES}/{name}"
    limit, most = (
        read_integer(host, f"{path}/scaling_max_freq"),
        read_integer(host, f"{path}/cpuinfo_max_freq"),
    )
    governor = _word(host, f"{path}/scaling_governor")
    return map_known(governor, lambda word: CpuPolicy(name, word, limit, known(table, 0) or most))


def _sleep(host: Host) -> Maybe[IdleState]:
    """Return the deepest state that is not disabled; the kernel sorts them by depth."""
    names = host.names(IDLE)
    if isinstance(names, Unknown):
        return names
    for name in reversed(_numbered(names, _STATE)[:_MOST_STATES]):
        path = f"{IDLE}/{name}"
        disabled, exit_us = read_integer(host, f"{path}/disable"), read_integer(host, f"{path}/latency")
        title = _word(host, f"{path}/name")
        if isinstance(disabled, Unknown):
            return disabled
        if not disabled:
            return map_known(exit_us, partial(IdleState, known(title, name)))
    return Unknown(Reason.NOT_THERE, IDLE, "no sleep state")
