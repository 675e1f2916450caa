"""Checks of the CPUs: their clocks, automatic NUMA balancing, and where the NICs' interrupts go.

Each says what it costs: a public measurement, or that there is none.
"""

from __future__ import annotations

from collections.abc import Sequence

from probes.base.evidence import Evidence, Severity, first_distinct
from probes.base.plan import Plan, Step, instruction, make_plan
from probes.base.text import plural
from probes.base.unknown import Unknown, known
from probes.checks.nccl.network import nccl_ib_disabled, nccl_net_socket
from probes.facts.jobs.process_files import has_initialized_nvshmem
from probes.facts.pci.functions import DEVICES
from probes.facts.system.cpu import NUMA_BALANCING, POLICIES, TUNED_PROFILE, CpuClocks, CpuPolicy
from probes.facts.system.numa import number_set
from probes.plans.boot import sysctl_steps
from probes.queries.finding import Area, Outcome, Scope, Status, found, need, passed
from probes.queries.jobs import NO_JOB, about, affected, jobs_of, maps, pid_in
from probes.queries.pcie_paths import functions_of, is_grace
from probes.snapshot.condition import OVER_TCP
from probes.snapshot.examination import Examination

AREA = Area("environment", __package__)
_CPUS = "the settings of the CPUs"
_CAPPED = 0.95  # of what the hardware can: a driver may round
_THROUGHPUT = "throughput-performance"  # of tuned: governor and preference "performance"
_DEEP_EP = "deep_ep_cpp"


@AREA.warning("cpu-clocks", scope=Scope.NODE)
def cpu_clocks(examination: Examination) -> Outcome:
    """Find limits below the hardware's, the lowest frequency as a setting, and CPUs with other governors.

    A governor that raises the frequency with the load, as distributions choose, is no finding.
    """
    facts = need(examination.cpu, _CPUS)
    absent = Evidence(POLICIES, "this kernel does not control the clocks, as in most virtual machines")
    clocks = need(facts.clocks, "the clocks of the CPUs", absent=absent)
    capped = [policy for policy in clocks.policies if _is_capped(policy)]
    is_lowest = clocks.governors == ("powersave",)
    if is_lowest:
        need(clocks.driver, "the driver of the CPUs' clocks")
        is_lowest = not clocks.has_own_governors
    read = "" if len(clocks.policies) == clocks.count else f", {len(clocks.policies)} of {clocks.count} read"
    shown = Evidence(f"{POLICIES}/*/scaling_governor", f"{clocks}{read}")
    causes = (
        "The limit of these CPUs is below what they can." if capped else "",
        "The governor keeps the CPUs at their lowest frequency." if is_lowest else "",
        "The CPUs have different governors." if len(clocks.governors) > 1 else "",
    )
    if not any(causes):
        return passed(shown)
    return found(
        " ".join(filter(None, causes)),
        shown,
        *first_distinct(map(_limit, capped)),
        fix=_full_speed(clocks, facts.tuned_profile, capped),
    )


def _is_capped(policy: CpuPolicy) -> bool:
    limit, hardware = (need(khz, "the limits of the CPUs") for khz in (policy.limit_khz, policy.hardware_khz))
    return 0 < limit < _CAPPED * hardware


def _limit(policy: CpuPolicy) -> Evidence:
    limit, hardware = known(policy.limit_khz, 0), known(policy.hardware_khz, 0)
    text = f"{limit / 1e6:.1f} GHz, the hardware {hardware / 1e6:.1f} GHz"
    return Evidence(f"{POLICIES}/{policy.name}/scaling_max_freq", text)


def _full_speed(clocks: CpuClocks, profile: str | Unknown, capped: list[CpuPolicy]) -> Plan:
    """Let tuned set the governor where it owns it; a limit has to be raised beside it."""
    set_all, steps = ("cpupower", "frequency-set"), []
    if isinstance(profile, str):
        undo = ("tuned-adm", "profile", *profile.split())
        steps.append(Step("Let tuned run the CPUs fast", ("tuned-adm", "profile", _THROUGHPUT), undo=undo))
    elif not clocks.is_fast:
        undo = (*set_all, "-g", clocks.governors[0]) if len(clocks.governors) == 1 else ()
        steps.append(Step("Set the governor of all CPUs", (*set_all, "-g", "performance"), undo=undo))
    if capped:
        most = max(known(policy.hardware_khz, 0) for policy in capped)
        limits = {known(policy.limit_khz, 0) for policy in clocks.policies}
        undo = (*set_all, "-u", str(max(limits))) if len(limits) == 1 else ()
        steps.append(Step("Raise the limit of all CPUs", (*set_all, "-u", str(most)), undo=undo))
    if not isinstance(profile, str):
        steps.append(instruction("To keep this over reboots, set it with tuned or in a systemd unit"))
    note = "The BIOS or a power cap may set the limit again." if capped else ""
    return make_plan("Let all CPUs run at full speed", *steps, note=note)


@AREA.note("numa-balancing-on", scope=Scope.NODE)
def numa_balancing_on(examination: Examination) -> Outcome:
    """Read kernel.numa_balancing where there are several NUMA nodes; a warning on Grace, and with DeepEP."""
    facts, numa = need(examination.cpu, _CPUS), need(examination.node.numa, "the NUMA nodes")
    if len(numa.nodes) < 2:
        return passed(Evidence("/sys/devices/system/node", "one NUMA node, so nothing to balance"))
    absent = Evidence(NUMA_BALANCING, "not built into this kernel")
    value = need(facts.numa_balancing, "kernel.numa_balancing", absent=absent)
    shown = Evidence(NUMA_BALANCING, str(value))
    if not value:
        return passed(shown)
    jobs = jobs_of(examination)
    users = [
        Evidence(f"/proc/{process.pid}/maps", "DeepEP" if maps(process, _DEEP_EP) else "NVSHMEM")
        for process in jobs.processes
        if has_initialized_nvshmem(process.libraries) or maps(process, _DEEP_EP)
    ]
    grace = is_grace(examination)
    cause = f"The kernel moves memory between the {len(numa.nodes)} NUMA nodes while programs run."
    if grace:
        cause += " NVIDIA's guide for Grace turns that off."
    profile, note = facts.tuned_profile, "Programs that are not bound to a NUMA node may become slower."
    if isinstance(profile, str):
        note += f" tuned may set it again, by its profile {profile} ({TUNED_PROFILE})."
    return found(
        about(affected(jobs, users), cause) if users else cause,
        shown,
        *first_distinct(users),
        fix=make_plan(
            "Turn automatic NUMA balancing off",
            *sysctl_steps(examination, "numa-balancing", "kernel.numa_balancing", 0, value),
            note=note,
        ),
        severity=Severity.WARNING if users or grace else None,
        pids=frozenset(pid for pid in map(pid_in, users) if pid is not None),
    )


@AREA.note("nic-interrupts")
def nic_interrupts(examination: Examination) -> Outcome:
    """Compare the CPUs of a NIC's completion interrupts where a job uses TCP."""
    facts = examination.interrupts
    settings = (nccl_net_socket(examination), nccl_ib_disabled(examination))
    watched = examination.watched
    seen = () if isinstance(watched, Unknown) else watched.conditions
    uses_tcp = any(outcome.status is Status.FOUND for outcome in settings)
    if not uses_tcp and not any(condition.check == OVER_TCP for condition in seen):
        unseen = next((outcome for outcome in settings if outcome.status is Status.UNKNOWN), None)
        return unseen or passed(Evidence("/proc/*/environ", "no job is known to use TCP"))
    numa = need(examination.node.numa, "the NUMA nodes")
    near = {node.number: number_set(node.cpulist) or frozenset() for node in numa.nodes}
    functions, labels = functions_of(examination), examination.topology.labels
    nics = need(facts, "the interrupts of the NICs", absent=Evidence("/proc/*/fd", NO_JOB))
    bad: dict[str, Evidence] = {}
    for bdf, used in nics.items():
        if isinstance(used, Unknown):
            continue
        node = functions[bdf].numa_node if bdf in functions else -1
        if fault := _spread_fault(used, near.get(known(node, -1), frozenset())):
            bad[bdf] = Evidence(f"{DEVICES}/{bdf}/msi_irqs", f"{labels.get(bdf, bdf)}: {fault}")
    if not bad:
        for used in nics.values():
            need(used, "the interrupts of the NICs")
        shown = f"{plural(len(nics), 'NIC')} with spread interrupts"
        return passed(Evidence("/proc/irq/*/effective_affinity_list", shown))
    return found(
        "A job uses TCP, and the interrupts of these NICs are not spread over the CPUs near them.",
        *first_distinct(bad.values()),
        devices=tuple(bad),
    )


def _spread_fault(used: Sequence[str], near: frozenset[int]) -> str:
    """Return what is wrong with the CPUs of a NIC's interrupts; "": nothing, or too few to say."""
    cpus = frozenset[int]().union(*(number_set(text) or () for text in used))
    count = plural(len(used), "completion interrupt")
    if len(used) > 1 and len(cpus) == 1:
        return f"{count}, all on CPU {next(iter(cpus))}"
    return f"{count}, none on the NIC's NUMA node" if cpus and near and not cpus & near else ""
