"""The options of `gdrtop bench`: what is wished, and how it is told."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from probes.bandwidth.model.request import MemoryPath, Mode, Request, Scope
from probes.facts.system.tool_names import GDRCOPY, NCCL_TESTS, PERFTEST, PROGRAMS

TESTS = {program.option: program.name for program in PROGRAMS}
"""Word of the command line → tool: write, read, send, write-lat, …, gdrcopy, all-reduce, …"""
MEMORIES = {path.value: path for path in MemoryPath}
DESCRIPTION = """\
Measure bandwidth and latency of GPU memory over the NICs. Without further arguments, measure the first GPU
over its best NIC, in loopback. Results are saved below $XDG_DATA_HOME/gdrtop (~/.local/share/gdrtop).
"""
EPILOG = """\
examples:
  gdrtop bench --memory compare        host memory, nvidia-peermem and DMA-BUF on one pair, compared
  gdrtop bench --sweep --min-gbps 380  every GPU with its best NIC; a threshold for a script
  gdrtop bench --serve                 wait here, and print the command for the peer
  gdrtop bench --ssh root@node2        client here, server there
  gdrtop bench --test all-reduce --over-network
  gdrtop bench --dry-run --matrix      the commands, and what they would affect

exit status:
  0    measured, and every test reached --min-gbps
  1    a test is below --min-gbps
  2    not measured: refused, a test failed or used other memory than requested (with --memory compare:
       no path to GPU memory works), one was left out of a sweep, or running jobs would be affected and
       --yes was missing
  3    wrong usage, or the results cannot be written or saved as a baseline
  130  interrupted, or stdout closed. Both ends were stopped; results so far were printed
"""
_MOST_SECONDS = 3600
_LARGEST_BYTES = 1 << 30
_SIZE = re.compile(r"(\d{1,10})([KMG]?)", re.ASCII)
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}
_OF_PERFTEST = ("to", "memory", "matrix", "serve", "connect", "ssh", "peer_nic", "queue_pairs", "both_ways")


@dataclass(frozen=True)
class BenchOptions:
    """All that was asked for; `request.gpu` is still as typed: a number or a PCI address."""

    request: Request
    as_json: bool = False
    list_tools: bool = False
    list_results: bool = False
    dry_run: bool = False
    yes: bool = False
    min_gbps: float | None = None
    text_file: str | None = None
    save_baseline: bool = False


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `gdrtop bench`, in groups."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    what = parser.add_argument_group("what is measured")
    what.add_argument(
        "--test", choices=TESTS, default="write", metavar="TEST", help=f"{', '.join(TESTS)} (default: write)"
    )
    what.add_argument("--gpu", metavar="N|BDF", help="the GPU (default: the first)")
    what.add_argument("--nic", metavar="DEV", help="the RDMA device (default: the GPU's best)")
    what.add_argument(
        "--memory",
        choices=MEMORIES,
        metavar="PATH",
        help=f"{', '.join(MEMORIES)}: whose memory, by which path (default: best)",
    )
    scope = what.add_mutually_exclusive_group()
    scope.add_argument("--sweep", action="store_true", help="every GPU with its best NIC")
    scope.add_argument("--matrix", action="store_true", help="every GPU with every NIC")
    what.add_argument("--size", type=_size, metavar="BYTES[K|M|G]|all", help="of a message (default: 1M)")
    what.add_argument(
        "--seconds",
        type=_whole("seconds", 2, _MOST_SECONDS),
        metavar="N",
        help="of each bandwidth test (default: 10)",
    )
    what.add_argument("--queue-pairs", type=_whole("queue pairs", 1, 16_384), metavar="N", help="default: 1")
    what.add_argument("--both-ways", action="store_true", help="both directions at once, added up")
    what.add_argument(
        "--over-network",
        action="store_true",
        help="nccl-tests: use the NICs, without NVLink and shared memory",
    )
    what.add_argument(
        "--no-bind",
        action="store_true",
        help="do not bind CPU and memory to the NIC's NUMA node (a container may forbid numactl)",
    )
    ends = parser.add_argument_group("where the other end is (default: here, on the same port)")
    setup = ends.add_mutually_exclusive_group()
    setup.add_argument("--to", metavar="DEV", help="here, on another RDMA device")
    setup.add_argument("--serve", action="store_true", help="wait for a peer, and print the command for it")
    setup.add_argument("--connect", metavar="HOST", help="connect to a server that was started on HOST")
    setup.add_argument("--ssh", metavar="[USER@]HOST", help="HOST, started by SSH without a password prompt")
    ends.add_argument("--peer-nic", metavar="DEV", help="the peer's RDMA device (default: the same name)")
    ends.add_argument(
        "--port", type=_whole("port", 1024, 65_535), metavar="N", help="TCP port (default: the first free)"
    )
    told = parser.add_argument_group("output and results")
    told.add_argument("--list", action="store_true", help="what can be measured here; nothing is run")
    told.add_argument("--results", action="store_true", help="earlier results, the newest first")
    told.add_argument("--dry-run", action="store_true", help="show commands, duration and affected processes")
    told.add_argument("--json", action="store_true", help="one JSON object at the end")
    told.add_argument("--text", metavar="FILE", help="also write a text for a ticket to a new file")
    told.add_argument("--min-gbps", type=_bar, metavar="X", help="fail below X Gb/s (10^9 bits a second)")
    told.add_argument(
        "--save-baseline",
        action="store_true",
        help="save the results as the baseline of this machine type; asks if one is low",
    )
    told.add_argument(
        "--yes", action="store_true", help="run even if running jobs are affected, save even a low baseline"
    )


def wanted(options: argparse.Namespace) -> BenchOptions:
    """What the options say; argparse.ArgumentTypeError, with a sentence, where they contradict each other."""
    odd = _contradiction(options)
    if odd:
        raise argparse.ArgumentTypeError(odd)
    setup, peer = Mode.LOOPBACK, ""
    if options.serve:
        setup = Mode.SERVER
    elif options.connect is not None:
        setup, peer = Mode.CLIENT, options.connect
    elif options.ssh is not None:
        setup, peer = Mode.BOTH_ENDS, options.ssh
    scope = Scope.SWEEP if options.sweep else Scope.MATRIX if options.matrix else Scope.PAIR
    request = Request(
        tool=TESTS[options.test],
        setup=setup,
        scope=scope,
        memory=MEMORIES[options.memory or MemoryPath.BEST.value],
        gpu=options.gpu,
        nic=options.nic,
        far_nic=options.to or options.peer_nic,
        peer=peer,
        size_bytes=options.size if isinstance(options.size, int) else None,
        all_sizes=options.size == "all",
        duration_s=options.seconds or Request.duration_s,
        queue_pairs=options.queue_pairs or 1,
        is_bidirectional=options.both_ways,
        tcp_port=options.port,
        over_network=options.over_network,
        binds=not options.no_bind,
    )
    return BenchOptions(
        request,
        as_json=options.json,
        list_tools=options.list,
        list_results=options.results,
        dry_run=options.dry_run,
        yes=options.yes,
        min_gbps=options.min_gbps,
        text_file=options.text,
        save_baseline=options.save_baseline,
    )


def _contradiction(options: argparse.Namespace) -> str:
    """What does not go together; an option that would be passed over in silence is one as well."""
    tool = TESTS[options.test]
    is_perftest, is_nccl = tool in PERFTEST, tool in NCCL_TESTS
    if not is_perftest:
        given = [name for name in (*_OF_PERFTEST, "port", "seconds") if getattr(options, name)]
        if given:
            return f"--{given[0].replace('_', '-')} is for tests of perftest, not for {options.test}"
        if options.nic is not None and not (is_nccl and options.over_network):
            return f"no NIC takes part in {options.test}" + (" without --over-network" if is_nccl else "")
    if options.no_bind and not is_perftest and tool not in GDRCOPY:
        return f"{options.test} is never bound: leave --no-bind out"
    if options.over_network and not is_nccl:
        return "--over-network is for nccl-tests, such as --test all-reduce"
    if options.size is not None and not (is_perftest or (tool == GDRCOPY[0] and options.size != "all")):
        return f"{options.test} has its own sizes"
    if options.size == "all" and options.seconds is not None:
        return "--size all is measured by a number of messages, not by --seconds"
    if is_perftest and tool.endswith("_lat") and options.seconds is not None:
        return "a latency test counts messages: leave --seconds out"
    if options.min_gbps is not None and (tool.endswith("_lat") or tool == GDRCOPY[1]):
        return f"{options.test} measures no bandwidth: leave --min-gbps out"
    if (options.sweep or options.matrix) and options.gpu is not None:
        return "a sweep takes every GPU: leave --gpu out"
    if options.matrix and options.nic is not None:
        return "--matrix takes every NIC: leave --nic out"
    if (options.sweep or options.matrix) and is_nccl:
        return f"{options.test} takes all GPUs together: leave --sweep out"
    if (options.sweep or options.matrix) and (options.serve or options.connect is not None):
        return "a sweep needs both ends from here: in loopback, or with --ssh"
    if options.peer_nic is not None and not (options.serve or options.connect or options.ssh):
        return "--peer-nic is the far end's: it goes with --connect, --ssh or --serve"
    return ""


def _size(text: str) -> int | str:
    if text == "all":
        return text
    match = _SIZE.fullmatch(text.upper().removesuffix("IB").removesuffix("B"))
    size = int(match[1]) << _UNITS[match[2]] if match else 0
    if not 1 <= size <= _LARGEST_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is not 1 to 1G bytes (such as 65536, 64K or 1M) or all")
    return size


def _whole(what: str, least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if text.isascii() and text.isdecimal() and len(text) < 8 and least <= int(text) <= most:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number ({what}) from {least} to {most}")

    return read


def _bar(text: str) -> float:
    try:
        gbps = float(text)
    except ValueError:
        gbps = math.nan
    if not 0.0 < gbps < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no bandwidth in Gb/s")
    return gbps
