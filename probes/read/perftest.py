"""Pasted outputs of perftest: which memory the NIC reached, and how much of what the path can carry."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from probes.bandwidth.model.limits import Limit, limit_of_host_memory, limit_of_pair
from probes.bandwidth.model.rating import LIKE_HOST, Assessment, Rating, rate, stalls
from probes.bandwidth.model.samples import GPU_MEMORY, INTEGRATED_MEMORY, About, Sample, parse_int
from probes.bandwidth.results.against_earlier import gbps_text, latency_us
from probes.bandwidth.tools.perftest import PerftestOutput
from probes.base.text import binary_size
from probes.messages.message import Proof, Weight
from probes.read.benchmark_tables import Test, parsed, read_tables, result_statement
from probes.read.reading import Parsed, Section, Statement
from probes.snapshot.examination import Examination

SIGN = (
    r"\* Waiting for client to connect|initializing CUDA\s*$|creating CUDA Ctx"
    r"|Using ROCm Device with ID|allocated (?:\d+ bytes of )?GPU buffer"
    r"|\s*(?:(?:Send|RDMA_Write)(?:_imm)?|RDMA_Read|Atomic) .{0,80}Test\s*$|\s*#bytes\s+#iterations"
)
_PORT_GBPS = (10, 25, 40, 50, 56, 100, 200, 400, 800)
_OVER_PORT = 1.05  # still of that port
_ASKS_FOR_GPU = re.compile(r"--use_(?:cuda|rocm)")
_LOCAL = re.compile(r"\b(?:localhost|127\.0\.0\.1)\b")
_ADDRESS = re.compile(r"CUDA device (\d{1,4}): PCIe address is ([0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})")
_PICKED = re.compile(r"Picking (?:device No\.|GPU number) (\d{1,4})")


def read_perftest(section: Section) -> Parsed:
    """Read the tables of perftest."""
    reader = read_tables(section, PerftestOutput())
    return parsed(section, reader, _of_perftest(section, [test for test in reader.tests if test.samples]))


def _of_perftest(section: Section, tests: Sequence[Test]) -> Iterator[Statement]:
    for test in tests:
        figure = test.figure
        us = latency_us(figure) or 0.0
        if figure is None or (figure.gbps is None and not us):
            continue
        memory, device = test.facts.get(About.MEMORY, ""), test.facts.get(About.DEVICE, "")
        what = f"{figure.what or 'RDMA'} over {device}" if device else figure.what or "RDMA"
        reached = f"takes {us:.2f} µs"
        weight, cause, fix = Weight.NOTE, "", ""
        if figure.gbps is not None:
            reached = f"reaches {gbps_text(figure.gbps)} ({figure.gbps / 8:.1f} GB/s)"
            weight, cause, fix = _judged(section, test, figure, tests)
        by = f" ({test.facts[About.REGISTERED]})" if About.REGISTERED in test.facts else ""
        parts = [f"{memory}{by}"] if memory == GPU_MEMORY else []
        parts += [f"{binary_size(figure.size_bytes)} messages"] if figure.size_bytes is not None else []
        cause = f"{_MEMORY_WORDS.get(memory) or _without_gpu_line(section.command)} {cause}".strip()
        result = f"{what} {reached} with {' and '.join(parts)}" if parts else f"{what} {reached}"
        proves = Proof.GDR if memory == GPU_MEMORY and figure.gbps != 0.0 else Proof.NOTHING
        texts = {"weight": weight, "proves": proves, "result": result, "cause": cause, "fix": fix}
        yield result_statement(section, test.line, "perftest-result", **texts)


_MEMORY_WORDS = {
    GPU_MEMORY: "The NIC reached GPU memory itself: GPUDirect RDMA works between this GPU and this NIC.",
    INTEGRATED_MEMORY: "This GPU has no memory of its own, so host memory is what it uses.",
}


def _without_gpu_line(command: str) -> str:
    """Return which memory a test used whose output names no GPU buffer."""
    if _ASKS_FOR_GPU.search(command):
        return (
            "The command asks for GPU memory, but no line names a GPU buffer: the beginning of the output was"
            " left out, or this perftest is too old to know the option and used host memory."
        )
    if "ib_" in command:
        return "The command asks for host memory, so it says nothing about the GPU."
    return (
        "No line names a GPU buffer. Unless the beginning of the output was left out, it is host memory, and"
        " says nothing about the GPU."
    )


def _judged(section: Section, test: Test, figure: Sample, tests: Sequence[Test]) -> tuple[Weight, str, str]:
    """Return what a bandwidth means: beside the path's limit or a port, host memory, and second by second."""
    gbps = figure.gbps or 0.0
    if not gbps and not figure.messages_per_second:
        why = "No message completed: the path is broken."
        return Weight.CRITICAL, why, "Read the output of the other end."
    of_gpu = test.facts.get(About.MEMORY) == GPU_MEMORY
    host = _same_with_host_memory(test, figure, tests) if of_gpu else None
    judgment = Assessment() if (limit := _limit(section, test)) is None else rate(figure, limit, host)
    cause = _of_port(gbps / (2 if figure.is_bidirectional else 1))
    if judgment.verdict is not Rating.UNKNOWN:
        cause = f"That is {judgment.words} on this node: {judgment.why}."
    if figure.is_bidirectional:
        cause = f"Both directions are added up. {cause}"
    if uneven := stalls(test.samples, test.is_endless):
        fix = "Look for pauses (PFC), retransmissions and a flapping link on both ports."
        return Weight.WARNING, f"{cause} {uneven[0].upper()}{uneven[1:]}.", fix
    if judgment.is_slow:
        return Weight.WARNING, cause, "Run gdrtop check on both nodes."
    if not of_gpu or judgment.verdict is Rating.NEAR:
        return Weight.NOTE, cause, ""
    if host is None or gbps >= LIKE_HOST * (host.gbps or 0.0):
        return Weight.NOTE, cause, "Compare it with host memory on the same NIC (without --use_cuda)."
    return (
        Weight.WARNING,
        f"{cause} Host memory reaches {gbps_text(host.gbps or 0.0)} on the same NIC: the path between GPU and"
        " NIC limits. They may be far apart (different sockets or switches), ACS may redirect their traffic,"
        " or a link is slow.",
        "Run gdrtop check and gdrtop topo on the node, and test a GPU and a NIC that are near each other.",
    )


def _same_with_host_memory(test: Test, figure: Sample, tests: Sequence[Test]) -> Sample | None:
    """Return the figure of the same test with host memory in the same text."""
    for other in tests:
        host = other.figure
        is_same = other.facts.get(About.DEVICE) == test.facts.get(About.DEVICE)
        of_gpu = other.facts.get(About.MEMORY) in (GPU_MEMORY, None)
        if host is None or of_gpu or not is_same or not host.gbps:
            continue
        if (host.what, host.is_bidirectional) == (figure.what, figure.is_bidirectional):
            return host
    return None


def _limit(section: Section, test: Test) -> Limit | None:
    """Return what the path can carry on the node of the text; None if node, NIC or GPU are not known."""
    node, nic = section.node, test.facts.get(About.DEVICE, "")
    if node is None or nic not in node.topology.devices or _LOCAL.search(section.command):
        return None
    queue_pairs = parse_int(test.facts.get(About.QUEUE_PAIRS, "")) or 1
    if test.facts.get(About.MEMORY) != GPU_MEMORY:
        return limit_of_host_memory(node, nic, queue_pairs=queue_pairs)
    gpu = _gpu_of(section.lines[: test.line], node)
    return limit_of_pair(node, gpu, nic, queue_pairs=queue_pairs, data_direct=False) if gpu else None


def _gpu_of(lines: Sequence[str], node: Examination) -> str:
    """Return the BDF of the GPU that perftest picked; "" if the node has none there."""
    picked, addresses = "", {}
    for line in lines:
        if address := _ADDRESS.match(line):
            addresses[address[1]] = address[2].lower()
        elif gpu := _PICKED.match(line):
            picked = gpu[1]
    found = [card.bdf for card in node.node.known_gpus if card.bdf[-7:-2] == addresses.get(picked, "")]
    return found[0] if len(found) == 1 else ""


def _of_port(gbps: float) -> str:
    """Return how much that is of the slowest usual port that can carry it."""
    rate = next((rate for rate in _PORT_GBPS if gbps <= _OVER_PORT * rate), None)
    if rate is None:
        return ""
    if gbps > rate:
        return f"That is a little more than a {rate} Gb/s port carries, as in loopback or over two ports."
    return f"That is {100 * gbps / rate:.0f} % of a {rate} Gb/s port; ibstat shows the rate of this one."
