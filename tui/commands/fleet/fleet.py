"""`gdrtop fleet`: many nodes at once; each of its commands has its own file."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any, TextIO

from tui.command_line.arguments import UsageError, add_node_options, add_output_options, set_help
from tui.commands.fleet.nodes import PARTS, add_node_set_options, demo_fleet, names_nodes, opened_nodes
from tui.runtime.open_host import chosen_origin

_DEMO_NODES = 4  # of a job on simulated nodes
_PATIENCE_SECONDS = 3.0  # with nodes that are not reached yet; they may still join


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the commands of a fleet, with the options of each."""
    parts = parser.add_subparsers(dest="part", metavar="COMMAND", prog=parser.prog, required=True)
    for name, summary in PARTS.items():
        part = parts.add_parser(name, help=summary, description=f"{summary[:1].upper()}{summary[1:]}.")
        add_node_options(part, "fleet")
        add_node_set_options(part)
        set_help(part, f"fleet {name}")
        _command(name).add_options(part)
        add_output_options(part)


def _command(name: str) -> Any:
    return import_module(f"tui.commands.fleet.{name}")


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Run the command of a fleet, and return its exit status."""
    if options.host or options.replay is not None or options.root != "/" or options.at:
        raise UsageError(
            "--host, --root and --replay name a single node; name many with -w, --hosts or --slurm"
        )
    if options.demo is not None and names_nodes(options):
        raise UsageError("--demo takes simulated nodes, such as 'hgx-h100*6,hgx-h100+acs-on', and no others")
    if options.part == "bench":
        return _bench(options, out)
    command = _command(options.part)
    if options.part in ("check", "watch"):
        return int(command.run(options, out))
    if options.demo is not None:
        from tui.commands.fleet.live import demo_hosts

        hosts = demo_hosts(chosen_origin(options).label, _DEMO_NODES, options.seed)
        return int(command.run(options, hosts, {}, out))
    read = command.Begun() if options.part == "live" else None
    with opened_nodes(options, read, _PATIENCE_SECONDS) as (reached, unanswered):
        more = {} if read is None else {"begun": read}
        return int(command.run(options, reached, unanswered, out, **more))


def _bench(options: argparse.Namespace, out: TextIO) -> int:
    from tui.commands.fleet import bench

    if options.demo is not None:
        return bench.run(options, bench.demo_nodes(demo_fleet(options.demo)), out)
    from tui.bandwidth.pairs.remote_processes import RemoteNodeProcesses

    with opened_nodes(options) as (hosts, unanswered):
        nodes = {name: (host, RemoteNodeProcesses(host.target)) for name, host in hosts.items()}
        return bench.run(options, nodes, out, unanswered=unanswered)
