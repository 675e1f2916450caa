"""`gdrtop diff A B`: what differs between nodes, or between moments of one, the most relevant first."""

from __future__ import annotations

import argparse
import os
from typing import TextIO

from probes.base.origin import Source
from probes.base.text import printable
from probes.base.unknown import Unknown, known
from probes.checks.judgment import judge
from probes.facts.node import host_name
from probes.fleet.compare import Fleet, changes_between, compare, compare_moments
from probes.fleet.node_set import is_node_name
from probes.fleet.summary import summarize
from probes.host.protocol import Host
from tui.command_line.arguments import UsageError, add_table_options
from tui.command_line.options import TableOptions, parsed
from tui.commands.check import examine_host
from tui.commands.fleet.output import common_origin, fleet_document, print_fleet
from tui.commands.fleet.saved_nodes import Named, read_host, read_saved, with_own_names
from tui.files.since_ok import last_ok
from tui.runtime.json_values import write_json
from tui.runtime.open_host import NoSuchHost, connect, open_host, target_of
from tui.runtime.printing import print_lines, text_width
from widgets.fleet.differences import draw_changes

_THIS = (".", "this")
_DEMO = "demo:"
_MOST_SIDES = 1000


def add_options(parser: argparse.ArgumentParser) -> None:
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

    UsageError: it names no node; NoSuchHost: the node or the file cannot be read.
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


# `--since-ok`: what has changed on this node since it was last READY or ACTIVE.

_NEVER = (
    "this node has not been READY or ACTIVE since gdrtop first checked it as this user;"
    " gdrtop check saves its facts when it is"
)


def run_since_ok(options: argparse.Namespace, out: TextIO) -> int:
    """Compare this node with its last good check; return 1 if a fact has changed, else 0."""
    if options.sides:
        raise UsageError("--since-ok compares this node with itself; use it without A and B")
    if options.rows:
        raise UsageError("--since-ok prints no table; use it without --rows")
    host = open_host(options)
    if host.origin.source is not Source.LIVE:
        raise UsageError("--since-ok needs this node; use it without --demo, --root, --replay and --host")
    return write_since_ok(host, out, parsed(TableOptions, options))


def write_since_ok(host: Host, out: TextIO, options: TableOptions) -> int:
    """Print what has changed on a node since it last worked.

    NoSuchHost: it never did, or what was saved cannot be read.
    """
    examination = examine_host(host)
    before = last_ok(known(host_name(examination.node), ""))
    if before is None:
        raise NoSuchHost(_NEVER)
    if isinstance(before, Unknown):
        raise NoSuchHost(before.detail)
    now = summarize(examination, judge(examination))
    since = changes_between(before, now)
    status = int(bool(since.changes))
    if options.json:
        write_json(fleet_document(compare_moments(before, now), status, host.origin), out)
    else:
        print_lines(draw_changes(since, text_width(out)), out, options.ascii)
    return status
