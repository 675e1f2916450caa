"""`gdrtop diff A B`: what differs between nodes, or between moments of one, the most relevant first."""

from __future__ import annotations

import argparse
import os
from typing import TextIO

from probes.base.origin import Source
from probes.base.text import printable
from probes.fleet.compare import Fleet, compare
from probes.fleet.node_set import is_node_name
from tui.command_line.arguments import UsageError, add_table_options
from tui.commands.fleet.output import common_origin, print_fleet
from tui.commands.fleet.saved_nodes import Named, read_host, read_saved, with_own_names
from tui.runtime.open_host import connect, open_host, target_of

_THIS = (".", "this")
_DEMO = "demo:"
_MOST_SIDES = 1000
_STATUS_HELP = """\
A and B are each one of:
  FILE.tar.gz     a recording of gdrtop record; its last moment counts
  FILE.json       what gdrtop diff --json has written, with all its nodes
  .               this node
  demo:NAME       a simulated node, for example demo:hgx-h100+acs-on
  NAME            another node, over ssh; a file of this name counts first
--since-ok compares this node with its last check at which it was READY or ACTIVE.

exit status:
  0    the nodes do not differ
  1    they differ
  3    usage error, or a node cannot be read
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.epilog = _STATUS_HELP
    add_table_options(parser, "fleet")
    parser.add_argument(
        "--since-ok", action="store_true", help="show what has changed on this node since it last worked"
    )
    parser.add_argument("sides", metavar="A B", nargs="*", help="the nodes to compare")


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Compare the nodes that the options name; return whether they differ."""
    if options.host or options.replay is not None or options.root != "/" or options.at:
        given = "--host, --root, --replay and --at"
        raise UsageError(f"diff takes its nodes as arguments, not by {given}: gdrtop diff old.tar.gz .")
    if options.since_ok:
        from tui.commands.fleet.since_ok import run_since_ok

        return run_since_ok(options, out)
    if len(options.sides) > _MOST_SIDES:
        raise UsageError(f"gdrtop diff compares at most {_MOST_SIDES} nodes by name")
    sides = [open_side(text, options) for text in options.sides]
    summaries = with_own_names(sides)
    if len(summaries) < 2:
        raise UsageError(
            "gdrtop diff compares at least two nodes; write for example gdrtop diff old.tar.gz ."
        )
    unanswered = [node for side in sides for node in side.unanswered]
    fleet = compare(summaries, unanswered, by_type=False)
    label = ", ".join(side.label for side in sides)
    origin = common_origin([side.origin for side in sides], label, Source.RECORDED)
    return print_fleet(fleet, out, diff_status(fleet), options, origin)


def open_side(text: str, options: argparse.Namespace) -> Named:
    """Return the nodes of one argument.

    Raises:
        UsageError: it names no node.
        NoSuchHost: the node or the file cannot be read.
    """
    if text in _THIS:
        return read_host(open_host(options), "this node")
    if text.startswith(_DEMO):
        name = text.removeprefix(_DEMO)
        chosen = {**vars(options), "demo": name, "replay": None, "root": "/", "at": ""}
        return read_host(open_host(argparse.Namespace(**chosen)), printable(name, 120))
    if os.path.exists(text):
        return read_saved(text, options)
    if not is_node_name(text):
        raise UsageError(f"{text!r} is neither a file nor the name of a node")
    host = connect(target_of(text, options.over, options.sudo))
    try:
        return read_host(host, text)
    finally:
        host.close()


def diff_status(fleet: Fleet) -> int:
    """Return 1 if the nodes differ in a fact or a finding, else 0."""
    found = {tuple(problem.id for problem in summary.findings) for summary in fleet.summaries}
    return int(bool(fleet.differences) or len(found) > 1 or bool(fleet.unanswered))
