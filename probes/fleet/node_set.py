"""Names of nodes, and sets of them as Slurm and ClusterShell write them: "gpu[001-512],login1".

ClusterShell parses and folds the sets. It takes any text for a node's name, "-oProxyCommand=…" too, and a set
may have more nodes than fit into memory, so both are checked here. Sources: clush(1), nodeset(1), sinfo(1),
squeue(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from probes.base.text import printable
from probes.base.unknown import Reason, Unknown
from probes.host.protocol import Host
from probes.host.remote.transport import NODE_NAME

if TYPE_CHECKING:
    from probes.host.remote.cluster_shell import GroupResolver

MOST_NODES = 10_000
MOST_TEXT = 1 << 20  # characters of a set, and of a file of nodes
_ITEM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:@/,\[\]-]*|@[A-Za-z0-9_.:*+-]{1,256}", re.ASCII)
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?:/[0-9]{1,9})?)?", re.ASCII)
_OPERATORS = re.compile(r"[,!&^]")
_PARTITION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}", re.ASCII)
_JOB = re.compile(r"[0-9]{1,12}(?:[_+][0-9]{1,9})?", re.ASCII)
_SLURM_SECONDS = 10.0


class NodeSetError(Exception):
    """The nodes cannot be named; the message says why."""


def is_node_name(name: str) -> bool:
    """Return whether a name may be a node's: safe as an argument of ssh, at most 254 characters."""
    return NODE_NAME.fullmatch(name) is not None


def parse_nodes(text: str, group_files: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the nodes of a set in natural order, each once.

    `group_files`: configuration files of ClusterShell that define the groups of "@name"; never the examples
    that come with ClusterShell.

    Raises:
        NodeSetError: the text is no set of nodes, or names more than MOST_NODES.
    """
    text = "".join(text.split("\n")).strip()
    shown = printable(text, 80)
    if len(text) > MOST_TEXT:
        raise NodeSetError(f"the set of nodes is longer than {MOST_TEXT >> 20} MiB")
    # Commas in brackets separate ranges, the others nodes.
    masked = _BRACKETS.sub(lambda brackets: brackets[0].replace(",", ";"), text)
    items = [item.strip().replace(";", ",") for item in _OPERATORS.split(masked)]
    for item in items:
        if not _ITEM.fullmatch(item):
            raise NodeSetError(_wrong_item(item, shown))
    if sum(map(_count, items)) > MOST_NODES:
        raise NodeSetError(f"{shown!r} names more than {MOST_NODES} nodes")
    from probes.host.remote.cluster_shell import (
        GroupResolverConfig,
        GroupResolverError,
        NodeSet,
        NodeSetException,
    )

    resolver = GroupResolverConfig(list(group_files), illegal_chars=set("@,!&^*"))
    files = " and ".join(map(printable, group_files)) or "no file"
    try:
        unknown = next((item for item in items if item[:1] == "@" and not _is_group(item, resolver)), "")
        if unknown:
            hint = f"; for a Slurm partition, use --slurm {name}" if (name := unknown[1:]).isalnum() else ""
            if _is_answered(unknown, resolver):
                raise NodeSetError(f"group {unknown} has no node now, or there is no such group in {files}")
            raise NodeSetError(f"there is no group {unknown}; gdrtop looked for groups in {files}{hint}")
        nodes = NodeSet(text, resolver=resolver)
        names = tuple(map(str, nodes)) if len(nodes) <= MOST_NODES else None
    except NodeSetException as error:
        raise NodeSetError(f"{shown!r} is not a set of nodes: {_clause(str(error))}") from None
    except GroupResolverError as error:
        raise NodeSetError(f"groups of nodes cannot be read from {files}: {_clause(str(error))}") from None
    except NodeSetError:
        raise
    except Exception as error:  # ClusterShell reads files of groups, and YAML in them
        raise NodeSetError(f"{shown!r} cannot be read as a set of nodes: {_clause(str(error))}") from None
    if names is None:
        raise NodeSetError(f"{shown!r} names more than {MOST_NODES} nodes")
    if not names:
        raise NodeSetError(f"{shown!r} names no node" if text else "no node is named")
    wrong = next((name for name in names if not is_node_name(name)), None)
    if wrong is not None:
        raise NodeSetError(_wrong_item(wrong, shown))
    return names


def _is_group(item: str, resolver: GroupResolver) -> bool:
    """Return whether "@name" or "@source:name" is defined: to ClusterShell, others are empty."""
    from probes.host.remote.cluster_shell import GroupResolverSourceError, GroupSourceNoUpcall

    source, _, name = item[1:].rpartition(":")
    try:
        return name in ("*", *resolver.grouplist(source or None))
    except GroupSourceNoUpcall:  # a command that cannot list its groups
        return name == "*" or bool(resolver.group_nodes(name, source or None))
    except GroupResolverSourceError:
        return False


def _is_answered(item: str, resolver: GroupResolver) -> bool:
    """Return whether a command of the site takes "@source:name" for a group: it may list only those in use.

    "@slurmstate:idle" is not listed while no node is idle, and sinfo answers with nothing.
    """
    from probes.host.remote.cluster_shell import GroupResolverSourceError, GroupSourceError, UpcallGroupSource

    source, _, name = item[1:].rpartition(":")
    try:
        found = resolver._source(source or None)
        return isinstance(found, UpcallGroupSource) and resolver.group_nodes(name, source or None) == []
    except (GroupResolverSourceError, GroupSourceError):
        return False


def _wrong_item(item: str, shown: str) -> str:
    if not shown:
        return "no node is named"
    problem = f"{printable(item, 80)!r} is not a node name" if item else f"{shown!r} has an empty name"
    return f"{problem}; write for example gpu[001-016],login1"


def _clause(message: str) -> str:
    return printable(" ".join(message.split()), 120)


def _count(item: str) -> int:
    """Return at most how many nodes a pattern such as r[1-4]n[01-16] names; ClusterShell lists them all."""
    count = 1
    for inside in _BRACKETS.findall(item):
        ranges = [_RANGE.fullmatch(part) for part in inside.split(",")]
        count *= max(1, sum(int(found[2] or found[1]) - int(found[1]) + 1 for found in ranges if found))
        if count > MOST_NODES:
            break
    return count


def fold_nodes(names: Iterable[str]) -> str:
    """Return names as one set: "gpu[001-510]"; names that ClusterShell would read otherwise stay as they are.

    Each name is one node, whatever its text: it may come from a recording.
    """
    distinct = list(dict.fromkeys(names))
    plain = [name for name in distinct if is_node_name(name)]
    others = [printable(name, 120) for name in distinct if not is_node_name(name)]
    if len(plain) > 1:
        from probes.host.remote.cluster_shell import GroupResolver, NodeSet

        plain = [str(NodeSet.fromlist(plain, resolver=GroupResolver()))]
    return ", ".join([*plain, *others])


def parse_hosts_file(text: str, group_files: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the nodes of a file: one node or set a line, # starts a comment; each node once, in order.

    Raises:
        NodeSetError: a line is no set of nodes, all lines name more than MOST_NODES, or none names any.
    """
    if len(text) > MOST_TEXT:
        raise NodeSetError(f"the file is larger than {MOST_TEXT >> 20} MiB")
    nodes: dict[str, None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        try:
            named = (words,) if is_node_name(words) else parse_nodes(words, group_files)
        except NodeSetError as error:
            raise NodeSetError(f"line {number}: {error}") from None
        nodes.update(dict.fromkeys(named))
        if len(nodes) > MOST_NODES:
            raise NodeSetError(f"the file names more than {MOST_NODES} nodes")
    if not nodes:
        raise NodeSetError("the file names no node")
    return tuple(nodes)


def slurm_nodes(host: Host, name: str) -> tuple[str, ...]:
    """Return the nodes of a running Slurm job (4711, 4711_3), or else of a partition, asked on this machine.

    Raises:
        NodeSetError: there is no such job or partition, or Slurm did not answer.
    """
    argv: tuple[str, ...] = ("sinfo", "-h", "-N", "-p", name, "-o", "%N")
    what, form, wrong = f"partition {name}", _PARTITION, "the name of a Slurm partition"
    if name[:1].isdigit():
        argv, what = ("squeue", "-h", "-j", name, "-o", "%N"), f"job {name}"
        form, wrong = _JOB, "the id of a Slurm job; write for example 4711"
    if not form.fullmatch(name):
        raise NodeSetError(f"{printable(name, 80)!r} is not {wrong}")
    answer = host.run(argv, _SLURM_SECONDS)
    if isinstance(answer, Unknown):
        if answer.reason is Reason.NOT_THERE:
            where = "on this machine, or not where gdrtop looks (gdrtop help safety)"
            hint = "set cluster.commands to its directory, or name the nodes with -w or --hosts"
            raise NodeSetError(f"{argv[0]} is not installed {where}; {hint}")
        raise NodeSetError(f"{argv[0]} did not answer ({answer}); name the nodes instead")
    if answer.exit_status:
        why = _clause(answer.stderr) or f"exit status {answer.exit_status}"
        raise NodeSetError(f"{argv[0]} does not list the nodes of {what}: {why}")
    sets = list(dict.fromkeys(line.strip() for line in answer.stdout.splitlines()))
    sets = [line for line in sets if line and line != "(null)"]
    if not sets:
        raise NodeSetError(f"Slurm's {what} has no node")
    if any(not _ITEM.fullmatch(line) or line.startswith("@") for line in sets):
        raise NodeSetError(f"{argv[0]} printed something other than nodes for {what}")
    return parse_nodes(",".join(sets))
