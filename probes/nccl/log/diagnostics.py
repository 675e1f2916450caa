"""What NCCL's own diagnostics print when a communicator is created, and what it means.

With NCCL_RUN_DIAGNOSTICS=1, NCCL 2.31 and later test P2P between GPUs, and 2.32.3 and later run ib_write_bw
of perftest between neighboring nodes. Lines are `host:pid NCCL DIAG [OK] check: text` on standard output,
whatever NCCL_DEBUG says; [INFO] marks what may need review, and nothing is ever fatal. With
NCCL_RUN_RAS_DIAGNOSTICS=1, the passive checks of RAS are printed in the same form.

Sources: NVIDIA/nccl src/diagnostics.cc, src/diagnostics/{p2p,ib_write_bw}.cc; its user guide, "Diagnostics".
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from probes.base.frozen import frozen
from probes.nccl.log.facts import LogFacts
from probes.nccl.log.grammar import version_numbers
from probes.nccl.log.problems import Explanation, Form

SINCE_NETWORK = (2, 32, 3)
"""The first version whose diagnostics measure the network."""
DIAGNOSTICS_KIND = "diagnostics"
"""The kind of a line that gdrtop does not explain, and the begin of all others."""

_LINE = re.compile(r"(?:\[(?P<tag>[A-Z]{1,10})\] *)?(?P<text>.{0,1500})")
_COMMUNICATOR = re.compile(r" in comm 0x[0-9a-f]{1,16}$")
_RESULT = re.compile(r"net bw: [\d.]{1,12}/[\d.]{1,12}/[\d.]{1,12} Gbit/s min/median/max ")
_HEADING = re.compile(r"=+ .{0,80} =+$")


@frozen
class DiagnosticResult:
    """What a line says: a result, or what needs review, with the rank that it is about."""

    text: str
    problem: Explanation | None = None
    rank: str = ""


def _form(pattern: str, kind: str, title: str, cause: str, fix: str, is_note: bool = False) -> Form:
    return Form(re.compile(pattern), Explanation(f"{DIAGNOSTICS_KIND}-{kind}", title, cause, fix, is_note))


_NOTHING_MEASURED = "Nothing was measured between the nodes. This says nothing about the network."
_INSTALL = "Install perftest on every node or in the job's image for the next run."
_MEASURE = "Measure between nodes with gdrtop fleet bench."
_PAIR = (
    r"net bw: mode=(?:same|cross) server_rank=\d{1,9} server_host=(?P<a>\S{1,255}) server_device=\S{1,64} "
    r"client_rank=\d{1,9} client_host=(?P<b>\S{1,255}) client_device=\S{1,64} (?:memory=\S{1,20} )?"
)
_RANK = (
    r"net bw: (?:same|cross)-nic rank (?P<rank>\d{1,9} \([^()]{1,255}\)): (?P<a>[\d.]{1,12}) Gbit/s, "
    r">30% off median (?P<b>[\d.]{1,12})"
)
_FASTER = _form(
    _RANK,
    "fast-rank",
    "A rank is faster than the others in NCCL's bandwidth test: {a}, median {b} Gb/s",
    "Ranks that share a NIC share its bandwidth, so one with a NIC of its own is faster.",
    "",
    is_note=True,
)
_FORMS = (
    _form(_RANK, "slow-rank",
          "A rank is slower than the others in NCCL's bandwidth test: {a} of {b} Gb/s",
          "NCCL ran ib_write_bw between neighboring nodes, over the first NIC of each rank. Both ranks of a "
          "pair have its figure. A NIC, its path to the GPU or its port is slow at one end. "
          "Ranks that share a NIC also share its bandwidth.",
          "Run gdrtop check on these nodes, and measure the pair with gdrtop fleet bench."),
    _form(r"net bw: (?:same|cross)-nic: (?P<a>\d{1,9}) more ranks >30% off median", "slow-ranks",
          "{a} more ranks differ from the others in NCCL's bandwidth test",
          "NCCL lists only the first eight of them.", _MEASURE),
    _form(_PAIR + r"(?P<c>tool missing|cannot build .{1,60})", "not-measured",
          "NCCL could not measure between {b} and {a}: {c}", _NOTHING_MEASURED, _INSTALL, is_note=True),
    _form(_PAIR + r"(?P<c>.{1,60})", "pair-failed",
          "NCCL's bandwidth test between {b} and {a} failed: {c}",
          "ib_write_bw gave no result between these nodes within 5 s. Either RDMA between the two NICs fails "
          "(with memory=cuda, from GPU memory), or the server's host name or TCP port cannot be reached.",
          "Run gdrtop check on both nodes. If they are fine, check that each resolves the other's host name "
          "and that TCP ports 10000 to 29999 are open between them."),
    _form(r"net bw: required external tool missing", "no-tool",
          "NCCL could not measure the network: ib_write_bw is missing",
          f"NCCL runs ib_write_bw of perftest, with timeout and stdbuf. {_NOTHING_MEASURED}",
          _INSTALL, is_note=True),
    _form(r"net bw: failed: selected network plugin does not support IB", "no-ib",
          "NCCL measures no network of this kind",
          "Its bandwidth test needs its own InfiniBand and RoCE transport or NVIDIA's plugins. EFA, "
          f"Slingshot and TCP are not measured. {_NOTHING_MEASURED}", _MEASURE, is_note=True),
    _form(r"net bw: setup failed on rank (?P<a>\d{1,9})", "setup-failed",
          "NCCL measured no network: rank {a} was not ready",
          f"A line of that rank says why. {_NOTHING_MEASURED}",
          "Read the standard output of that rank's process.", is_note=True),
    _form(r"net bw: (?:failed: |cannot |invalid |capability probe |bootstrap failure)", "no-device",
          "NCCL could not measure the network", _NOTHING_MEASURED, _MEASURE, is_note=True),
    _form(r"net bw: test unable to complete in allocated time; ran (?P<a>\d) of (?P<b>\d)", "out-of-time",
          "NCCL ended its bandwidth test early, after {a} of {b} phases",
          "A pair that hangs delays the others. Some pairs were not measured.",
          "If no pair is listed as failed, measure between the nodes with gdrtop fleet bench.", is_note=True),
    _form(r"net bw: (?:multiple net devices per rank|net devices are shared across ranks)", "coverage",
          "NCCL's bandwidth test does not cover every NIC alone",
          "It uses only the first NIC of each rank, and ranks that share a NIC measure at the same time.",
          "Measure each NIC with gdrtop bench.", is_note=True),
    _form(r"p2p: (?:only )?(?P<a>\d{1,9})/(?P<b>\d{1,9}) ", "p2p",
          "P2P between GPUs failed: {a} of {b} accesses passed",
          "GPUs could not read or write each other's memory, or read something else than was written.",
          "The lines before this one name the pairs. Run gdrtop check on their nodes."),
    _form(r"p2p: (?:read|write) mismatch srcRank=(?P<a>\d{1,9}) .{0,80}?dstRank=(?P<b>\d{1,9}) .{0,80}?"
          r"path=(?P<c>\w{1,8})", "p2p-data",
          "P2P from rank {a} to rank {b} delivered wrong data ({c})",
          "The GPUs exchanged data over this path and read something else than was written, so collectives "
          "can compute wrong results. On PCIe paths (PIX, PXB, PHB, SYS), suspect the IOMMU or ACS.",
          "Do not use this node until the cause is found. Run gdrtop check on it."),
    _form(r"p2p: (?P<c>[a-zA-Z/ -]{1,60}) srcRank=(?P<a>\d{1,9}) .{0,80}?dstRank=(?P<b>\d{1,9}) ",
          "p2p-failed", "P2P from rank {a} to rank {b}: {c}",
          "NCCL could not test this pair of GPUs. Its line says what to inspect.",
          "Look for errors of these ranks before this line, and run gdrtop check on their nodes."),
)  # fmt: skip


def read_diagnostic(text: str) -> DiagnosticResult | None:
    """Return what follows `NCCL DIAG ` in a line; None for headings and empty lines."""
    match = _LINE.match(text)
    if match is None or _HEADING.match(match["text"]) or not match["text"].strip():
        return None
    said = _COMMUNICATOR.sub("", match["text"].strip())
    if match["tag"] in (None, "OK") or _RESULT.match(said):
        return DiagnosticResult(said)
    for form in _FORMS:
        if found := form.pattern.match(said):
            groups = {name: (group or "").strip() for name, group in found.groupdict().items()}
            if form.pattern is _FASTER.pattern and _number(groups["a"]) > _number(groups["b"]):
                form = _FASTER
            rank = groups.pop("rank", "")
            problem = replace(form.meaning, title=form.meaning.title.format(**groups))
            return DiagnosticResult(said, problem, f"rank {rank}" if rank else "")
    review = Explanation(DIAGNOSTICS_KIND, "NCCL's diagnostics report what to review", "", "", is_note=True)
    return DiagnosticResult(said, review)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # "1.2.3"
        return math.nan


# Problems that a test between the nodes can narrow down.
_BETWEEN_NODES = ("completion-", "watchdog-timeout", "watchdog-failure", "async-event", "connect-queue")
_MEASURED_NETWORKS = re.compile(r"(?:IB|IBext|SPCX|NCCL RDMA Plugin)(?:[_ ]|$)")


def is_recommended(facts: LogFacts) -> bool:
    """Return whether diagnostics help the next run: errors between nodes that this NCCL can measure."""
    versions = [version_numbers(version.text) for version in facts.versions]
    if not versions or not all(numbers is not None and numbers >= SINCE_NETWORK for numbers in versions):
        return False
    kinds = [problem.kind for problem in facts.problems]
    networks = [network.text for network in facts.networks]
    return (
        not facts.diagnostics
        and not any(kind.startswith(DIAGNOSTICS_KIND) for kind in kinds)
        and any(kind.startswith(_BETWEEN_NODES) for kind in kinds)
        and bool(networks)
        and all(_MEASURED_NETWORKS.match(name) for name in networks)
        and facts.communicators.nodes != 1
    )
