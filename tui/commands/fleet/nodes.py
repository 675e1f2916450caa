"""Which nodes a fleet command is about, and how they are reached."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from contextlib import contextmanager
from string import Template
from typing import TYPE_CHECKING

from probes.base.text import did_you_mean, printable
from probes.fleet.node_set import MOST_TEXT, NodeSetError, parse_hosts_file, parse_nodes, slurm_nodes
from probes.host import trusted_path
from probes.host.machine.local import LocalHost
from tui.command_line.arguments import UsageError, add_arguments
from tui.files.new_file import shown_path, why
from tui.files.read_file import read_small
from tui.files.xdg import group_files
from tui.runtime.open_host import reach, target_of

if TYPE_CHECKING:
    from probes.host.remote.remote_host import RemoteHost
    from probes.host.remote.transport import Target

MOST_OPEN = 256  # nodes that are watched at once
_AT_ONCE = 32  # connections that are being opened
_FIRST_SECONDS = 5.0  # then the next node of a kind is asked first
_FILES_A_NODE = 8  # two connections, each with three pipes and what waits for them
PARTS = {
    "check": "judge the nodes, and show which differ from the rest",
    "watch": "show the nodes on a screen that is read again every minute, the worst first",
    "live": "show one job on all of its nodes: each rank's path and rate, and which rank differs",
    "hang": "show why a job on several nodes hangs: the suspect, the evidence and the next command",
    "bench": "measure bandwidth between pairs of nodes",
}
_DEMO = "hgx-h100*6,hgx-h100+acs-on,hgx-h100+port-down"
_MOST_DEMO = 1000


def names_nodes(options: argparse.Namespace) -> bool:
    """Return whether the options name nodes."""
    return bool(options.node_set or options.nodes or options.hosts or options.slurm)


def add_node_set_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name nodes."""
    text = "the nodes: 'gpu[001-064],login1' or @GROUP"
    parser.add_argument("node_set", metavar="NODES", nargs="?", help=text)
    add_arguments(
        parser,
        {
            "-w --nodes NODES": "the same as NODES alone",
            "--hosts FILE": "the nodes in a file, a node or set a line",
            "--slurm NAME": "the nodes of a partition, or of a job if NAME is a number",
        },
        nodes={"default": ""},
        hosts={"default": ""},
        slurm={"default": ""},
    )


def named_nodes(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the nodes that the options name.

    UsageError: no node is named, or in two ways, or they cannot be found.
    """
    given = options.node_set or ""
    if given.isalpha() and (hint := did_you_mean(given, PARTS, 0.7)):
        raise UsageError(f"unknown command {given!r} (a node of this name: -w {given}){hint}")
    ways = [way for way in (given, options.nodes, options.hosts, options.slurm) if way]
    if len(ways) != 1:
        raise UsageError(
            "name the nodes with NODES, such as 'gpu[01-64]', --hosts FILE or --slurm NAME"
            + ", only once" * bool(ways)
        )
    try:
        if nodes := given or options.nodes:
            return parse_nodes(nodes, _group_files(nodes))
        if options.slurm:
            return slurm_nodes(LocalHost(), options.slurm)
        text = read_small(options.hosts, MOST_TEXT, "a file of nodes").decode("utf-8", "replace")
        return parse_hosts_file(text, _group_files(text))
    except NodeSetError as error:
        where = f"{shown_path(options.hosts)}: " if options.hosts else ""
        raise UsageError(f"{where}{error}") from None
    except OSError as error:
        raise UsageError(f"{shown_path(options.hosts)} cannot be read: {why(error)}") from None


def _group_files(text: str) -> tuple[str, ...]:
    """Return the files that define groups; as root, those that root alone can write.

    They name commands. UsageError: a file of the site, or one that it includes, is not trusted.
    """
    site, *own = group_files()
    if "@" not in text or not trusted_path.is_root():
        return (site, *own)
    trusted: list[str] = []
    for path in (site, *own):
        try:
            trusted.append(trusted_path.require_path(path))
        except FileNotFoundError:  # and only root could make one
            trusted.append(path)
        except OSError as error:
            reason = f"{printable(path)} is not read: {why(error)}"
            if path == site:
                raise UsageError(reason) from None
            if os.path.lexists(path):
                print(f"gdrtop: {reason}", file=sys.stderr)
    for path in _included(trusted):
        try:
            trusted_path.require_path(os.path.abspath(path))
        except OSError as error:
            where = " or ".join(printable(each) for each in trusted if os.path.exists(each))
            raise UsageError(f"{printable(path)}, named in {where}, is not read: {why(error)}") from None
    return tuple(trusted)


def _included(paths: Sequence[str]) -> Iterator[str]:
    """Yield the directories that files of groups name, and what is in them (groups.conf(5))."""
    parser = ConfigParser()
    try:
        read = parser.read(paths)
        named = [parser.get("Main", key, fallback="") for key in ("groupsdir", "confdir", "autodir")]
        directories = shlex.split(" ".join(named))
    except (ConfigParserError, ValueError, OSError):
        return  # ClusterShell reports it
    for directory in directories:
        place = Template(directory).safe_substitute(CFGDIR=os.path.dirname(read[-1]))
        if os.path.isdir(place):
            yield place
            yield from (os.path.join(place, name) for name in sorted(os.listdir(place)))


def targets(options: argparse.Namespace, names: Sequence[str]) -> tuple[Target, ...]:
    """Return how each node is reached; NoSuchHost: --over cannot be used."""
    return tuple(target_of(name, options.over, options.sudo) for name in names)


def demo_fleet(text: str) -> dict[str, str]:
    """Return simulated nodes by name, "hgx-h100*6,hgx-h100+acs-on": six without a fault, and one with.

    UsageError: the text names none, or more than a thousand.
    """
    found: list[str] = []
    for part in (text or _DEMO).split(","):
        name, _, count = part.partition("*")
        if not name or (count and not (count.isascii() and count.isdecimal() and len(count) < 5)):
            raise UsageError(f"{printable(part, 80)!r} is not NAME or NAME*COUNT, such as hgx-h100+acs-on*3")
        found.extend([name] * int(count or 1))
        if not 0 < len(found) <= _MOST_DEMO:
            raise UsageError(f"--demo of a fleet takes 1 to {_MOST_DEMO} nodes")
    digits = max(2, len(str(len(found))))
    return {f"gpu{number:0{digits}}": name for number, name in enumerate(found, 1)}


@contextmanager
def opened_nodes(
    options: argparse.Namespace,
    read: Callable[[RemoteHost], object] | None = None,
    patience: float = float("inf"),
) -> Iterator[tuple[dict[str, RemoteHost], dict[str, str]]]:
    """Connect to the nodes that the options name; give them, and why others could not be reached.

    `read`: what each is asked, by default all. When no further node has been reached for so many seconds
    of `patience`, the others are late: they move from the second dictionary to the first one when they are.
    In the end, also after Ctrl-C while nodes are still being reached, all connections end together.
    """
    names = named_nodes(options)
    if len(names) > MOST_OPEN:
        raise UsageError(f"{len(names)} nodes are named; gdrtop watches at most {MOST_OPEN} at once")
    from probes.host.remote.connection import INTERRUPT_SECONDS, Connections
    from probes.host.remote.fan_out import allow_nodes
    from probes.host.remote.remote_host import QuestionLists
    from probes.host.remote.transport import ConnectionFailed

    allowed = allow_nodes(len(names), _FILES_A_NODE)
    if allowed < len(names):
        raise UsageError(
            f"{len(names)} nodes are named, and this process may open files for {allowed};"
            " raise the limit of open files (ulimit -n)"
        )
    connections, lists = Connections(), QuestionLists(_FIRST_SECONDS)
    hosts: dict[str, RemoteHost] = {}
    unanswered = dict.fromkeys(names, "still connecting")

    def open_node(target: Target) -> None:
        try:
            hosts[target.host] = reach(target, connections, read, lists)
            del unanswered[target.host]
        except ConnectionFailed as error:
            unanswered[target.host] = str(error)
        finally:
            lists.end(target.host)

    threads = ThreadPoolExecutor(min(_AT_ONCE, len(names)), "fleet")
    try:
        reading = [threads.submit(open_node, target) for target in targets(options, names)]
        count, until = 0, float("inf")
        while wait(reading, INTERRUPT_SECONDS).not_done and time.monotonic() < until:
            if count != len(hosts):
                count, until = len(hosts), time.monotonic() + patience
        for each in reading:
            if each.done():
                each.result()
        for name in [name for name in names if name in hosts]:  # whichever was reached first
            hosts[name] = hosts.pop(name)
        yield hosts, unanswered
    finally:
        connections.close()
        lists.stop()
        threads.shutdown(wait=False, cancel_futures=True)
