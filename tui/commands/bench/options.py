"""The command-line options of `gdrtop bench`."""

from __future__ import annotations

import argparse
import math
import re

from probes.bandwidth.model.request import MemoryPath, Mode, Request, Scope
from probes.base.frozen import frozen
from probes.facts.system.tool_names import GDRCOPY, NCCL_TESTS, PERFTEST, PROGRAMS
from tui.commands.arguments import whole_number

TESTS = {program.option: program.name for program in PROGRAMS}
"""Name on the command line → tool: write, read, send, write-lat, …, gdrcopy, all-reduce, …"""
MEMORIES = {path.value: path for path in MemoryPath}
DESCRIPTION = """\
Measure bandwidth and latency between GPU memory and NICs. Without options,
measure the first GPU with its best NIC, in loopback. Results are saved below
$XDG_DATA_HOME/gdrtop (default: ~/.local/share/gdrtop).
"""
EPILOG = """\
examples:
  gdrtop bench --memory compare        compare host memory, nvidia-peermem and
                                       DMA-BUF on one pair of GPU and NIC
  gdrtop bench --sweep --min-gbps 380  measure every GPU with its best NIC; fail
                                       if one is below 380 Gb/s
  gdrtop bench --serve                 wait here, and print the command that the
                                       peer must run
  gdrtop bench --ssh root@node2        run the client here and the server there
  gdrtop bench --test all-reduce --over-network
  gdrtop bench --test all-reduce --memory compare
                                       measure what jobs lose without GPUDirect
                                       RDMA: bandwidth, latency and CPU time
  gdrtop bench --dry-run --matrix      show the commands and the affected jobs

exit status:
  0    measured, and every test reached --min-gbps, or what gdrtop's or the
       site's table expects of this machine type
  1    a test is below that
  2    not measured: the request was refused, a test failed, a test used other
       memory than requested (with --memory compare: no path to GPU memory
       works), a test of a sweep was skipped, or running jobs would be affected
       and --yes was missing
  3    wrong usage, or the results could not be written or saved as a baseline
  130  interrupted, or stdout closed. Both ends were stopped; results so far
       were printed
"""
_MOST_SECONDS = 3600
_LARGEST_BYTES = 1 << 30
_SIZE = re.compile(r"(\d{1,10})([KMG]?)", re.ASCII)
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}
_STAGED_TEST = "all-reduce"
_OF_NCCL = (MemoryPath.STAGED.value, MemoryPath.COMPARE.value)
_PERFTEST_ONLY = ("to", "memory", "matrix", "serve", "connect", "ssh", "peer_nic", "queue_pairs", "both_ways")


@frozen
class BenchOptions:
    """The parsed options; `request.gpu` is still as typed: a number or a PCI address."""

    request: Request
    as_json: bool = False
    list_tools: bool = False
    list_results: bool = False
    dry_run: bool = False
    yes: bool = False
    min_gbps: float | None = None
    text_file: str | None = None
    save_baseline: bool = False
    expected_file: str | None = None


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to a parser, in groups."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    what = parser.add_argument_group("what to measure")
    tests, memories = ", ".join(TESTS), ", ".join(MEMORIES)
    what.add_argument("--test", choices=TESTS, metavar="TEST", help=f"{tests} (default: write)")
    what.add_argument("--gpu", metavar="N|BDF", help="the GPU (default: the first)")
    what.add_argument("--nic", metavar="DEV", help="the RDMA device (default: the GPU's best)")
    what.add_argument(
        "--memory",
        choices=MEMORIES,
        metavar="PATH",
        help=f"memory and path to it: {memories} (default: best); nccl-tests: staged or compare",
    )
    scope = what.add_mutually_exclusive_group()
    scope.add_argument("--sweep", action="store_true", help="every GPU with its best NIC")
    scope.add_argument("--matrix", action="store_true", help="every GPU with every NIC")
    size_help = "message size (default: 1M)"
    what.add_argument("--size", type=_size, metavar="BYTES[K|M|G]|all", help=size_help)
    seconds = whole_number(2, _MOST_SECONDS, "seconds")
    seconds_help = "duration of each bandwidth test (default: 10)"
    what.add_argument("--seconds", type=seconds, metavar="N", help=seconds_help)
    pairs = whole_number(1, 16_384, "queue pairs")
    what.add_argument("--queue-pairs", type=pairs, metavar="N", help="number of queue pairs (default: 1)")
    what.add_argument("--both-ways", action="store_true", help="both directions at once; report the sum")
    what.add_argument(
        "--over-network",
        action="store_true",
        help="nccl-tests: use the NICs instead of NVLink and shared memory",
    )
    what.add_argument(
        "--no-bind",
        action="store_true",
        help="do not bind CPU and memory to the NIC's NUMA node (a container may forbid numactl)",
    )
    ends = parser.add_argument_group("the other end (default: this node, same port)")
    mode = ends.add_mutually_exclusive_group()
    mode.add_argument("--to", metavar="DEV", help="this node, on another RDMA device")
    serve_help = "wait for a peer, and print the command that it must run"
    mode.add_argument("--serve", action="store_true", help=serve_help)
    mode.add_argument("--connect", metavar="HOST", help="connect to a server that is running on HOST")
    ssh_help = "start the server on HOST over SSH, without a password prompt"
    mode.add_argument("--ssh", metavar="[USER@]HOST", help=ssh_help)
    ends.add_argument("--peer-nic", metavar="DEV", help="the peer's RDMA device (default: the same name)")
    port = whole_number(1024, 65_535, "port")
    ends.add_argument("--port", type=port, metavar="N", help="TCP port (default: the first free one)")
    output = parser.add_argument_group("output and results")
    output.add_argument("--list", action="store_true", help="list the available tools; run nothing")
    output.add_argument("--results", action="store_true", help="list earlier results, newest first")
    dry_help = "show commands, duration and affected jobs; run nothing"
    output.add_argument("--dry-run", action="store_true", help=dry_help)
    output.add_argument("--json", action="store_true", help="print one JSON object at the end")
    text_help = "also write the results as text for a ticket to a new file"
    output.add_argument("--text", metavar="FILE", help=text_help)
    min_help = "fail if a test is below X Gb/s (10^9 bits per second)"
    output.add_argument("--min-gbps", type=_gbps, metavar="X", help=min_help)
    expected_help = (
        "table of what machines should reach (default: /etc/gdrtop/expected.toml, then gdrtop's own)"
    )
    output.add_argument("--expected", metavar="FILE", help=expected_help)
    output.add_argument(
        "--save-baseline",
        action="store_true",
        help="save the results as the baseline of this machine type; ask if one is low",
    )
    yes_help = "do not ask: run even if jobs are affected, save even a low baseline"
    output.add_argument("--yes", action="store_true", help=yes_help)


def parse_options(options: argparse.Namespace) -> BenchOptions:
    """Return the options, or raise argparse.ArgumentTypeError if they contradict each other."""
    uses_nics = options.memory in _OF_NCCL
    options.test = options.test or (_STAGED_TEST if options.memory == MemoryPath.STAGED.value else "write")
    options.over_network |= uses_nics and TESTS[options.test] in NCCL_TESTS
    contradiction = _contradiction(options)
    if contradiction:
        raise argparse.ArgumentTypeError(contradiction)
    mode, peer = Mode.LOOPBACK, ""
    if options.serve:
        mode = Mode.SERVER
    elif options.connect is not None:
        mode, peer = Mode.CLIENT, options.connect
    elif options.ssh is not None:
        mode, peer = Mode.BOTH_ENDS, options.ssh
    scope = Scope.SWEEP if options.sweep else Scope.MATRIX if options.matrix else Scope.PAIR
    request = Request(
        tool=TESTS[options.test],
        setup=mode,
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
        expected_file=options.expected,
    )


def _contradiction(options: argparse.Namespace) -> str:
    """Return what contradicts each other, or an option that would have no effect; else ""."""
    tool = TESTS[options.test]
    is_perftest, is_nccl = tool in PERFTEST, tool in NCCL_TESTS
    if options.memory == MemoryPath.STAGED.value and not is_nccl:
        return "--memory staged applies only to nccl-tests, such as --test all-reduce"
    if not is_perftest:
        given = [name for name in (*_PERFTEST_ONLY, "port", "seconds") if getattr(options, name)]
        if is_nccl and options.memory in _OF_NCCL:
            given.remove("memory")
        elif is_nccl and options.memory is not None:
            return f"--memory of {options.test} can be {' or '.join(_OF_NCCL)}, not {options.memory}"
        if given:
            return f"--{given[0].replace('_', '-')} applies only to perftest tests, not to {options.test}"
        if options.nic is not None and not (is_nccl and options.over_network):
            return f"{options.test} uses no NIC" + (" without --over-network" if is_nccl else "")
    if options.no_bind and not is_perftest and tool not in GDRCOPY:
        return f"{options.test} is never bound; omit --no-bind"
    if options.over_network and not is_nccl:
        return "--over-network applies only to nccl-tests, such as --test all-reduce"
    if options.size is not None and not (is_perftest or (tool == GDRCOPY[0] and options.size != "all")):
        return f"{options.test} chooses its own message sizes; omit --size"
    if options.size == "all" and options.seconds is not None:
        return "--size all sends a fixed number of messages; omit --seconds"
    if is_perftest and tool.endswith("_lat") and options.seconds is not None:
        return "a latency test sends a fixed number of messages; omit --seconds"
    if options.min_gbps is not None and (tool.endswith("_lat") or tool == GDRCOPY[1]):
        return f"{options.test} measures no bandwidth; omit --min-gbps"
    if (options.sweep or options.matrix) and options.gpu is not None:
        return "--sweep and --matrix measure every GPU; omit --gpu"
    if options.matrix and options.nic is not None:
        return "--matrix measures every NIC; omit --nic"
    if (options.sweep or options.matrix) and is_nccl:
        return f"{options.test} uses all GPUs at once; omit --sweep and --matrix"
    if (options.sweep or options.matrix) and (options.serve or options.connect is not None):
        return "--sweep and --matrix need both ends: use loopback or --ssh"
    if options.peer_nic is not None and not (options.serve or options.connect or options.ssh):
        return "--peer-nic needs --connect, --ssh or --serve"
    return ""


def _size(text: str) -> int | str:
    if text == "all":
        return text
    match = _SIZE.fullmatch(text.upper().removesuffix("IB").removesuffix("B"))
    size = int(match[1]) << _UNITS[match[2]] if match else 0
    if not 1 <= size <= _LARGEST_BYTES:
        sizes = "1 to 1G bytes (such as 65536, 64K or 1M), or all"
        raise argparse.ArgumentTypeError(f"{text!r} is not a message size: {sizes}")
    return size


def _gbps(text: str) -> float:
    try:
        gbps = float(text)
    except ValueError:
        gbps = math.nan
    if not 0.0 < gbps < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a bandwidth in Gb/s")
    return gbps
