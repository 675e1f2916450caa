"""`gdrtop bench`: measure bandwidth and latency between GPUs and NICs."""

from __future__ import annotations

import argparse
import math
import re
import sys
from typing import TextIO

from probes.bandwidth.model.request import DEFAULT_BYTES, Request
from tui.command_line.arguments import add_arguments, duration, whole_number
from tui.commands.bench.options import DEFAULT_TEST, MEMORIES, TESTS, parse_options
from tui.runtime.open_host import open_host

_MOST_SECONDS = 3600
_LARGEST_BYTES = 1 << 30
_SIZE = re.compile(r"(\d{1,10})([KMG]?)", re.ASCII)
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to a parser, in groups."""
    what = parser.add_argument_group("what to measure")
    tests, memories = ", ".join(TESTS), ", ".join(MEMORIES)
    add_arguments(
        what,
        {
            "--test TEST": f"{tests} (default: {DEFAULT_TEST})",
            "--gpu N|BDF": "the GPU (default: the first)",
            "--nic DEV": "the RDMA device (default: the GPU's best)",
            "--memory PATH": f"memory and path to it: {memories} (default: {Request.memory.value});"
            " nccl-tests: staged or compare",
        },
        test={"choices": TESTS},
        memory={"choices": MEMORIES},
    )
    scopes = {"--sweep": "every GPU with its best NIC", "--matrix": "every GPU with every NIC"}
    add_arguments(what.add_mutually_exclusive_group(), scopes)
    add_arguments(
        what,
        {
            "--size BYTES[K|M|G]|all": f"message size (default: {DEFAULT_BYTES >> 20}M)",
            "--seconds TIME": f"duration of each bandwidth test (default: {Request.duration_s})",
            "--queue-pairs N": f"number of queue pairs (default: {Request.queue_pairs})",
            "--both-ways": "both directions at once; report the sum",
            "--over-network": "nccl-tests: use the NICs instead of NVLink and shared memory",
            "--no-bind": "do not bind CPU and memory to the NIC's NUMA node (a container may forbid numactl)",
        },
        size={"type": _size},
        seconds={"type": duration(2, _MOST_SECONDS)},
        queue_pairs={"type": whole_number(1, 16_384, "queue pairs")},
    )
    ends = parser.add_argument_group("the peer (default: this node, same port)")
    modes = {
        "--to DEV": "this node, on another RDMA device",
        "--serve": "wait for a peer, and print the command that it must run",
        "--connect HOST": "connect to a server that is running on HOST",
        "--ssh [USER@]HOST": "start the server on HOST over SSH, without a password prompt",
    }
    add_arguments(ends.add_mutually_exclusive_group(), modes)
    add_arguments(
        ends,
        {
            "--peer-nic DEV": "the peer's RDMA device (default: the same name)",
            "--port N": "TCP port (default: the first free port)",
        },
        port={"type": whole_number(1024, 65_535, "port")},
    )
    add_arguments(
        parser.add_argument_group("output and results"),
        {
            "--list": "list the available tools; run nothing",
            "--results": "list earlier results, newest first",
            "--dry-run": "show commands, duration and affected jobs; run nothing",
            "--json": "print one JSON object at the end",
            "--text FILE": "also write the results as text for a ticket to a new file",
            "--min-gbps X": "fail if a test is below X Gb/s (10^9 bits per second)",
            "--expected FILE": "table of expected figures (default: /etc/gdrtop/expected.toml, then "
            "gdrtop's own)",
            "--save-baseline": "save the results as the baseline of this machine type; ask if a result "
            "is low",
            "--yes": "do not ask: run even if jobs are affected, save even a low baseline",
        },
        min_gbps={"type": _gbps},
    )


def _size(text: str) -> int | str:
    if text == "all":
        return text
    match = _SIZE.fullmatch(text.upper().removesuffix("IB").removesuffix("B"))
    size = int(match[1]) << _UNITS[match[2]] if match else 0
    if not 1 <= size <= _LARGEST_BYTES:
        sizes = "1 to 1G bytes (such as 65536, 64K or 1M), or all"
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid message size: {sizes}")
    return size


def _gbps(text: str) -> float:
    try:
        gbps = float(text)
    except ValueError:
        gbps = math.nan
    if not 0.0 < gbps < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a bandwidth in Gb/s")
    return gbps


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Measure the node that the options name, or list tools or results; return the exit status."""
    from tui.commands.bench.run import command

    bench_options = parse_options(options)
    return command(open_host(options), out, bench_options, read_only=options.read_only, answers=sys.stdin)
