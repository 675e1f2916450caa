"""Guards before a plan: nothing may run here, running jobs would be affected, or the network cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probes.base.frozen import frozen
from probes.base.origin import Origin, Source
from probes.base.plan import Plan, Step
from probes.base.text import plural, printable
from probes.base.unknown import Maybe, Unknown, known
from probes.facts.jobs.processes import Process, ProcessFacts, groups_of, job_name, name_of
from probes.facts.network.network_dependencies import NetworkDependency, NetworkDependencyFacts
from probes.facts.node import host_name
from probes.plans.common import affects_jobs, may_take_down_netdevs, netdevs_taken_down, unloaded_by
from probes.plans.pcie import why_no_setpci
from probes.snapshot.examination import Examination
from tui.actions.manual_steps import ALL_MANUAL, runnable, why_manual
from tui.settings.current import current

_MOST_NAMED = 8
_UNKNOWN_NODE = "this node"


@frozen
class Clearance:
    """Whether a plan may run; `word` must be typed first if it affects jobs or the network."""

    refused: str = ""  # why nothing runs
    affected: tuple[str, ...] = ()  # jobs and modules in use, a line each
    cuts: tuple[str, ...] = ()  # SSH sessions, default routes, a root over the network, a line each
    word: str = ""  # the host name, because the wrong node is the most common mistake

    @property
    def is_detached(self) -> bool:
        """Return whether it runs detached from the terminal, so that it finishes if the connection drops."""
        return bool(self.cuts) and not self.refused


def no_actions_here(origin: Origin, read_only: bool) -> str:
    """Return why nothing runs on this host, or ""."""
    if read_only:
        configured = current().configured("read_only")
        by_configuration = f"gdrtop is read-only here ({configured.origin})"
        return by_configuration if configured.value else "gdrtop was started with --read-only"
    if origin.source is Source.TREE:
        return "this is a tree of files, not a running node"
    return "this is a recording, not a running node" if origin.source is Source.RECORDED else ""


def clearance(
    plan: Plan,
    examination: Examination,
    read_only: bool,
    network: Maybe[NetworkDependencyFacts] | None = None,
) -> Clearance:
    """Check a plan on the examined node; `network` is read if the plan takes netdevs down."""
    refused = no_actions_here(examination.node.origin, read_only)
    cuts = () if network is None else cut_by(plan.steps, network)
    if not refused and not runnable(plan):
        refused = ALL_MANUAL
        if not all(step.is_instruction for step in plan.steps):
            first = plan.steps[0]
            why = "" if first.is_instruction else f" ({why_manual(first, plan.is_simulated)})"
            refused = f"the first step is manual{why}"
    if not refused and any(step.argv[:1] == ("setpci",) for step in runnable(plan)):
        refused = why_no_setpci(examination)
    if refused:
        return Clearance(refused, cuts=cuts)
    cuts = () if network is None else cut_by(runnable(plan), network)
    affected = (*modules_in_use(plan, examination), *affected_by(plan, examination.processes))
    word = node_name(examination) if affected or cuts else ""
    return Clearance("", affected, cuts, word)


def node_name(examination: Examination) -> str:
    """Return the host name, or "this node" if it is unknown."""
    return known(host_name(examination.node), "") or _UNKNOWN_NODE


# The network


def takes_down_netdevs(plan: Plan) -> bool:
    """Return whether a step can take netdevs down, so that the network must be read."""
    return any(may_take_down_netdevs(step.argv) for step in plan.steps)


def cut_by(steps: Iterable[Step], network: Maybe[NetworkDependencyFacts]) -> tuple[str, ...]:
    """Return what these steps cut off, or may cut off, a line each."""
    lines: list[str] = []
    if isinstance(network, Unknown):
        commands = [printable(step.command, 120) for step in steps if may_take_down_netdevs(step.argv)]
        return tuple(
            f"{command} may cut the network: cannot tell what uses it ({network})" for command in commands
        )
    for step in steps:
        taken = netdevs_taken_down(step.argv, network)
        command = printable(step.command, 120)
        for dependency in network.dependencies if taken else ():
            hit = [name for name in dependency.netdevs if name in taken]
            if hit:
                lines.append(f"{command} takes down {_names(hit, dependency)} {dependency.what}")
            elif not any(name in network.netdevs for name in dependency.netdevs):
                over = f" ({dependency.netdevs[0]})" if dependency.netdevs else ""
                lines.append(f"{command} may cut {dependency.what}: its NIC is unknown{over}")
        lines += [
            f"{command} may cut the network: {each.source} unknown ({each})"
            for each in network.unread
            if taken
        ]
    return tuple(dict.fromkeys(lines))


def _names(hit: list[str], dependency: NetworkDependency) -> str:
    """Return "ens1f0, which carries", or "ens1f0 (part of bond0), which carries"."""
    part = "" if dependency.netdevs[0] in hit else f" (part of {dependency.netdevs[0]})"
    return f"{', '.join(hit[:_MOST_NAMED])}{part}, which carries"


# Jobs


def affected_by(plan: Plan, processes: Maybe[ProcessFacts]) -> tuple[str, ...]:
    """Return the jobs that use GPUs or RDMA, a line each, if the plan would affect them."""
    if not plan.disturbs and not any(map(affects_jobs, runnable(plan))):
        return ()
    if isinstance(processes, Unknown):
        return (f"processes that use GPUs or RDMA are unknown: {processes}",)
    groups = groups_of(processes.processes)
    shown = [_affected(group) for group in groups[:_MOST_NAMED]]
    more = sum(map(len, groups[_MOST_NAMED:])) + processes.left_out
    if more > 0:
        shown.append(f"and {plural(more, 'more process', 'more processes')}")
    if processes.not_read:
        shown.append(processes.not_read)
    return tuple(shown)


def _affected(group: Sequence[Process]) -> str:
    """Return "train.py (alice, Slurm job 4711): 8 processes use GPUs and RDMA"."""
    uses = [
        what
        for what, files in (("GPUs", "gpu_files"), ("RDMA", "uverbs_files"))
        if any(known(getattr(process, files), ()) for process in group)
    ]
    what = " and ".join(uses) or "a GPU"
    if len(group) == 1:
        return f"{name_of(group[0])} uses {what}"
    return f"{job_name(group[0])}: {len(group)} processes use {what}"


def modules_in_use(plan: Plan, examination: Examination) -> tuple[str, ...]:
    """Return the modules that the plan unloads although processes use them, a line each."""
    names = dict.fromkeys(name for step in runnable(plan) for name in unloaded_by(step.argv))
    facts = examination.node.modules
    if isinstance(facts, Unknown):
        return (f"{', '.join(names)} may be in use: {facts}",) if names else ()
    refcnts = examination.reading.module_refcnts
    lines = []
    for name in names:
        module = facts.modules.get(name)
        count = refcnts.get(name, module.refcnt if module else 0)
        if isinstance(count, int) and count > (len(module.used_by) if module else 0):
            lines.append(
                f"{name} is in use (refcnt {count}); the kernel refuses to unload it until it is released"
            )
    return tuple(lines)


def unloads_driver(plan: Plan) -> bool:
    """Return whether the plan unloads the NVIDIA driver, which NVML keeps in use."""
    return any("nvidia" in unloaded_by(step.argv) for step in runnable(plan))
