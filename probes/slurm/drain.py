"""Whether to drain a node of Slurm, with which reason, and whether the present reason may be replaced.

`scontrol update` replaces the reason of another program or admin without asking, and a failed Prolog sets
Slurm's own only where there is none (src/slurmctld/node_mgr.c). So the present one is read first, and the
node is drained before the Prolog fails.
"""

from __future__ import annotations

import re

from probes.base.frozen import frozen
from probes.base.plan import Plan, Step, make_plan
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.protocol import Host
from probes.queries.finding import Finding

LEADER = "gdrtop:"  # reasons that begin so are gdrtop's to replace and to clear
PROLOG_ERROR = "Prolog error"  # Slurm's own reason, as 22.05 sets it
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_REASON_CHARACTERS = 120
_SECONDS = 5.0  # slurmctld may be busy


@frozen
class SlurmNode:
    """What slurmctld says of a node."""

    name: str
    state: str  # as sinfo prints it: "idle", "drained", "draining*"
    reason: str  # "" if there is none

    @property
    def is_draining(self) -> bool:
        """Whether no further job starts on it."""
        return self.state.startswith("drain")

    @property
    def has_own_reason(self) -> bool:
        """Whether gdrtop has set the reason."""
        return self.reason.startswith(LEADER)


def is_node_name(name: str) -> bool:
    """Return whether a word can be the name of a node in slurm.conf."""
    return _NODE.fullmatch(name) is not None


def read_node(host: Host, name: str) -> Maybe[SlurmNode]:
    """Ask slurmctld for the state of a node and its reason, by sinfo(1), else by scontrol(1).

    sinfo lists only nodes of partitions.
    """
    assert is_node_name(name)
    argv = ("sinfo", "--noheader", "--nodes", name, "--format", "%T|%E")
    answer = host.run(argv, _SECONDS)
    if isinstance(answer, Unknown):
        return answer
    if answer.exit_status:
        return Unknown(Reason.MALFORMED, "sinfo", printable(answer.stderr.strip().partition("\n")[0], 200))
    if answer.stdout.strip():
        return parse_sinfo(name, answer.stdout)
    shown = host.run(("scontrol", "--oneliner", "show", "node", name), _SECONDS)
    return parse_sinfo(name, "") if isinstance(shown, Unknown) else parse_scontrol(name, shown.stdout)


def parse_sinfo(name: str, text: str) -> Maybe[SlurmNode]:
    """Parse "STATE|REASON", a line for each partition; sinfo writes "none" where there is no reason."""
    state, bar, reason = text.partition("\n")[0].partition("|")
    if not bar:
        return Unknown(Reason.NOT_THERE, "sinfo", f"Slurm has no node {name}")
    reason = printable(reason.strip(), 200)
    return SlurmNode(name, printable(state.strip(), 40), "" if reason == "none" else reason)


def parse_scontrol(name: str, text: str) -> Maybe[SlurmNode]:
    """Parse the line of `scontrol --oneliner show node`: "… State=IDLE+DRAIN … Reason=disk [root@2026-…]"."""
    state = re.search(r" State=([A-Z+*~#!%$@^_-]{1,120})", text)
    if state is None:
        return Unknown(Reason.NOT_THERE, "scontrol", f"Slurm has no node {name}")
    words = state[1].split("+")
    is_busy = words[0].startswith(("ALLOC", "MIX")) or "COMPLETING" in words
    drains = "draining" if is_busy else "drained"
    reason = re.search(r" Reason=(.{0,300}?) \[[^\[\]\s]{1,80}@[^\[\]\s]{1,40}\]", text)
    said = printable(reason[1].strip(), 200) if reason else ""
    return SlurmNode(name, drains if "DRAIN" in words else words[0].lower(), said)


def reason_for(findings: tuple[Finding, ...]) -> str:
    """Return "gdrtop: port-down mlx5_3" for the first finding, with the number of further ones."""
    first = findings[0]
    devices = first.takes or first.devices
    more = f" +{len(findings) - 1}" if len(findings) > 1 else ""
    where = f" {devices[0]}" if devices else ""
    return printable(f"{LEADER} {first.id}{where}{more}", _REASON_CHARACTERS)


def drain_plan(node: SlurmNode, reason: str) -> Plan | str:
    """Return the plan that drains a node, or why it stays as it is."""
    if node.is_draining and not node.has_own_reason:
        return f"{node.name} is {node.state} already, with the reason “{node.reason or 'none'}”"
    if node.reason and not node.has_own_reason:
        return f"{node.name} has another reason already: “{node.reason}”"
    if node.is_draining and node.reason == reason:
        return f"{node.name} is {node.state} already, with this reason"
    step = Step(
        f"Let no further job start on {node.name}",
        ("scontrol", "update", f"NodeName={node.name}", "State=DRAIN", f"Reason={reason}"),
        undo=("scontrol", "update", f"NodeName={node.name}", "State=UNDRAIN"),
    )
    return make_plan(f"Drain {node.name}", step)


def resume_plan(node: SlurmNode) -> Plan | str:
    """Return the plan that lets jobs start again, or why the node stays as it is."""
    if not node.is_draining:
        return f"{node.name} is not drained"
    if not node.has_own_reason:
        return f"{node.name} was not drained by gdrtop: “{node.reason or 'no reason'}”"
    step = Step(
        f"Let jobs start on {node.name} again",
        ("scontrol", "update", f"NodeName={node.name}", "State=UNDRAIN"),
    )
    return make_plan(f"Resume {node.name}", step)
