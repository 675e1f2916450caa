"""What `gdrtop bench` was asked for, and which of its options contradict each other."""

from __future__ import annotations

import argparse

from probes.bandwidth.model.request import MemoryPath, Mode, Request, Scope
from probes.base.frozen import frozen
from probes.facts.system.tool_names import GDRCOPY, NCCL_TESTS, PERFTEST, PROGRAMS
from tui.command_line.arguments import UsageError
from tui.command_line.options import OutputOptions, parsed

TESTS = {program.option: program.name for program in PROGRAMS}
"""Name on the command line → tool: write, read, write-lat, …, gdrcopy, all-reduce, alltoall"""
DEFAULT_TEST = next(option for option, tool in TESTS.items() if tool == Request.tool)
MEMORIES = {path.value: path for path in MemoryPath}
_NCCL_TEST = "all-reduce"
_OF_NCCL = (MemoryPath.STAGED.value, MemoryPath.COMPARE.value)
_PERFTEST_ONLY = ("to", "memory", "matrix", "serve", "connect", "ssh", "peer_nic", "queue_pairs", "both_ways")


@frozen
class BenchOptions(OutputOptions):
    """The parsed options; `request.gpu` is still as typed: a number or a PCI address."""

    request: Request = Request()
    list: bool = False  # the tools
    results: bool = False  # list earlier ones
    dry_run: bool = False
    yes: bool = False
    min_gbps: float | None = None
    text: str | None = None  # a file
    save_baseline: bool = False
    expected: str | None = None  # a file


def parse_options(options: argparse.Namespace) -> BenchOptions:
    """Return the options, or raise UsageError if they contradict each other."""
    uses_nics = options.memory in _OF_NCCL
    uses_nccl = options.memory == MemoryPath.STAGED.value
    options.test = options.test or (_NCCL_TEST if uses_nccl else DEFAULT_TEST)
    options.over_network |= uses_nics and TESTS[options.test] in NCCL_TESTS
    contradiction = _contradiction(options)
    if contradiction:
        raise UsageError(contradiction)
    mode, peer = Mode.LOOPBACK, ""
    if options.serve:
        mode = Mode.SERVER
    elif options.connect is not None:
        mode, peer = Mode.CLIENT, options.connect
    elif options.ssh is not None:
        mode, peer = Mode.BOTH_ENDS, options.ssh
    scope = Scope.SWEEP if options.sweep else Scope.MATRIX if options.matrix else Scope.PAIR
    options.request = Request(
        tool=TESTS[options.test],
        setup=mode,
        scope=scope,
        memory=MEMORIES[options.memory or Request.memory.value],
        gpu=options.gpu,
        nic=options.nic,
        far_nic=options.to or options.peer_nic,
        peer=peer,
        size_bytes=options.size if isinstance(options.size, int) else None,
        all_sizes=options.size == "all",
        duration_s=options.seconds or Request.duration_s,
        queue_pairs=options.queue_pairs or Request.queue_pairs,
        is_bidirectional=options.both_ways,
        tcp_port=options.port,
        over_network=options.over_network,
        binds=not options.no_bind,
    )
    return parsed(BenchOptions, options)


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
            return f"--memory for {options.test} can be {' or '.join(_OF_NCCL)}, not {options.memory}"
        if given:
            return f"--{given[0].replace('_', '-')} applies only to perftest tests, not to {options.test}"
        if options.nic is not None and not (is_nccl and options.over_network):
            return f"{options.test} uses no NIC" + (" without --over-network" if is_nccl else "")
    if options.no_bind and not is_perftest and tool not in GDRCOPY:
        return f"{options.test} is never bound to a NUMA node; omit --no-bind"
    if options.over_network and not is_nccl:
        return "--over-network applies only to nccl-tests, such as --test all-reduce"
    if options.size is not None and not (is_perftest or (tool in GDRCOPY and options.size != "all")):
        return f"{options.test} chooses its own message sizes; omit --size"
    if options.size == "all" and options.seconds is not None:
        return "--size all sends a fixed number of messages; omit --seconds"
    if is_perftest and tool.endswith("_lat") and options.seconds is not None:
        return "a latency test sends a fixed number of messages; omit --seconds"
    if options.min_gbps is not None and tool.endswith("_lat"):
        return f"{options.test} does not measure bandwidth; omit --min-gbps"
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
