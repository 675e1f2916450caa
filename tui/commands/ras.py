"""`gdrtop ras`: what NCCL's RAS service says about the ranks of the jobs on this node, only on request."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TextIO

from probes.base.origin import Source
from probes.live.ras.policy import LEAST_INTERVAL_SECONDS
from tui.commands.arguments import EXIT_WRONG_USAGE, UsageError
from tui.commands.live import refusal
from tui.commands.ras_session import Ras, RasOptions
from tui.runtime.open_host import open_host

_MOST_SECONDS = 3600
_STATUS_HELP = """\
exit status, by the last report of each job:
  0    all ranks answer, and none is known to be behind
  1    operation counts are unequal and have not moved for 10 s, or a diagnostic needs review
  2    ranks are dead, do not answer, report errors, or nothing has moved for 60 s
  3    unknown: nothing was asked or answered; wrong usage
  130  interrupted
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _STATUS_HELP
    parser.add_argument("--verbose", action="store_true", help="let RAS name more ranks (VERBOSE STATUS)")
    parser.add_argument(
        "--diagnostics",
        action="store_true",
        help="let the job run diagnostics inside its processes (DIAGNOSTICS); needs NCCL 2.31",
    )
    parser.add_argument(
        "--watch",
        metavar="SECONDS",
        type=_interval,
        help=f"ask every {LEAST_INTERVAL_SECONDS:.0f} to {_MOST_SECONDS} s until Ctrl-C; needs NCCL 2.29.2",
    )
    parser.add_argument("--count", metavar="N", type=_count, help="with --watch, end after N reports")
    parser.add_argument(
        "--monitor", action="store_true", help="print RAS events until Ctrl-C (MONITOR); needs NCCL 2.29.2"
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON, one line a report (gdrtop schema ras)"
    )
    parser.add_argument("--yes", action="store_true", help="ask the job without confirmation")
    parser.add_argument(
        "--nccl",
        metavar="VERSION",
        type=_version,
        help="the job's NCCL version, if gdrtop cannot read it",
    )


def _interval(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 5):
        text = "0"
    if not LEAST_INTERVAL_SECONDS <= int(text) <= _MOST_SECONDS:
        raise argparse.ArgumentTypeError(
            f"not a whole number from {LEAST_INTERVAL_SECONDS:.0f} to {_MOST_SECONDS}"
        )
    return int(text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < 7 and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 999999")
    return int(text)


def _version(text: str) -> str:
    if not re.fullmatch(r"[0-9]{1,3}\.[0-9]{1,3}(?:\.[0-9]{1,3})?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a version such as 2.29.7")
    return text


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Ask the jobs of the node that the options name, and return the exit status."""
    if options.monitor and (options.watch or options.verbose):
        raise UsageError("--monitor cannot be combined with --watch or --verbose")
    if options.diagnostics and (options.watch or options.verbose or options.monitor):
        raise UsageError("--diagnostics cannot be combined with --watch, --verbose or --monitor")
    if options.count and not options.watch and not options.monitor:
        raise UsageError("--count needs --watch or --monitor")
    host = open_host(options)
    if host.origin.source is Source.TREE:
        print(refusal("ras"), file=sys.stderr)
        return EXIT_WRONG_USAGE
    chosen = RasOptions(
        verbose=options.verbose,
        diagnostics=options.diagnostics,
        watch=options.watch,
        count=options.count,
        as_json=options.json,
        yes=options.yes,
        nccl=options.nccl or "",
        ascii_only=options.ascii,
    )
    ras = Ras(host, out, chosen)
    return ras.monitor() if options.monitor else ras.ask()
