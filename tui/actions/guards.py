"""What speaks against running a plan here: nothing may run at all, or somebody would feel it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from probes.examination import Examination
from probes.modules import KernelModule
from probes.origin import Origin, Source
from probes.plan import Plan, Step
from probes.platform import PlatformFacts
from probes.processes import ProcessFacts
from probes.unknown import Maybe, Unknown, known
from tui.actions.by_hand import runnable, why_by_hand

_MOST_NAMED = 8
_UNKNOWN_NODE = "this node"


@dataclass(frozen=True)
class Clearance:
    """Whether a plan may run; where somebody would feel it, only after `word` was typed."""

    refused: str = ""  # why nothing of it is run here
    felt_by: tuple[str, ...] = ()  # who would feel it, a line each
    word: str = ""  # the node's name: the wrong node is the commonest mistake


def no_actions_here(origin: Origin, read_only: bool) -> str:
    """Why nothing at all is run on this host; "" where actions are possible."""
    if read_only:
        return "gdrtop was started with --read-only"
    if origin.source is Source.TREE:
        return "this is a tree of files, not a running node"
    return "this is a recording, not a running node" if origin.source is Source.RECORDED else ""


def clearance(plan: Plan, examination: Examination, read_only: bool) -> Clearance:
    """What speaks against this plan on the node that was examined."""
    refused = no_actions_here(examination.node.origin, read_only)
    if not refused and not runnable(plan):
        refused = f"nothing of it is gdrtop's to run: {why_by_hand(plan.steps[0])}"
    if refused:
        return Clearance(refused)
    felt = (*held_modules(plan, examination), *felt_by(plan, examination.processes))
    return Clearance("", felt, node_name(examination)) if felt else Clearance()


def node_name(examination: Examination) -> str:
    """The node's name, or words for it where it has none."""
    platform = examination.node.platform
    name = known(platform.hostname, "") if isinstance(platform, PlatformFacts) else ""
    return name or _UNKNOWN_NODE


def felt_by(plan: Plan, processes: Maybe[ProcessFacts]) -> tuple[str, ...]:
    """The processes that use GPUs or RDMA, where the plan is one that they would feel."""
    if not _disturbs(plan):
        return ()
    if isinstance(processes, Unknown):
        return (f"which processes use GPUs or RDMA is not known: {processes}",)
    lines = []
    for process in processes.processes:
        files = (("GPUs", process.gpu_files), ("RDMA", process.uverbs_files))
        uses = [what for what, opened in files if not isinstance(opened, Unknown) and opened]
        uid = known(process.uid, -1)
        whose = f", uid {uid}" if uid >= 0 else ""
        told = f" uses {' and '.join(uses)}" if uses else " uses a GPU"
        lines.append(f"process {process.pid} ({known(process.comm, 'name unknown')}{whose}){told}")
    more = len(lines) - _MOST_NAMED + processes.left_out
    shown = lines[:_MOST_NAMED]
    if more > 0:
        shown.append(f"and {more} more processes")
    hidden = processes.hidden
    if isinstance(hidden, Unknown):
        shown.append(f"whether there are others is not known: {hidden}")
    elif hidden:
        shown.append(f"{hidden} processes of other users could not be looked into: needs root")
    return tuple(shown)


def held_modules(plan: Plan, examination: Examination) -> tuple[str, ...]:
    """The modules that the plan unloads while something besides other modules holds them."""
    names = dict.fromkeys(name for step in runnable(plan) for name in unloaded_by(step))
    facts = examination.node.modules
    if isinstance(facts, Unknown):
        return (f"whether {', '.join(names)} is held is not known: {facts}",) if names else ()
    refcnts = examination.reading.module_refcnts
    lines = []
    for name in names:
        module = facts.modules.get(name)
        count = refcnts.get(name, module.refcnt if module else 0)
        if isinstance(count, int) and count > _held_by_modules(module):
            lines.append(f"{name} is held (refcnt {count}): the kernel refuses until it is given back")
    return tuple(lines)


def _held_by_modules(module: KernelModule | None) -> int:
    return len(module.used_by) if module else 0


def unloaded_by(step: Step) -> tuple[str, ...]:
    """The modules that a step unloads by name, as /proc/modules spells them."""
    words = step.argv
    if not words or words[0] not in ("rmmod", "modprobe"):
        return ()
    if words[0] == "modprobe" and not {"-r", "--remove"} & set(words):
        return ()
    return tuple(word.replace("-", "_") for word in words[1:] if not word.startswith("-"))


def unloads_driver(plan: Plan) -> bool:
    """Whether the NVIDIA driver itself goes, which NVML, once asked, holds."""
    return any("nvidia" in unloaded_by(step) for step in runnable(plan))


def _disturbs(plan: Plan) -> bool:
    return bool(plan.disturbs) or any(map(_is_disturbing, runnable(plan)))


def _is_disturbing(step: Step) -> bool:
    """What running jobs may feel whatever the plan says of itself."""
    return bool(unloaded_by(step)) or _matches(
        step.argv,
        (
            r"systemctl (?:stop|restart|reload) .*",
            r"ip link set .* (?:down|mtu .*)",
            r"ibportstate .* (?:disable|reset)",
            r"nvidia-smi .*(?:--gpu-reset|-r|-mig|-e|-c) .*",
            r"setpci .*",
        ),
    )


def _matches(argv: Iterable[str], patterns: Iterable[str]) -> bool:
    told = " ".join(argv)
    return any(re.fullmatch(pattern, told) for pattern in patterns)
