"""What NCCL's own diagnostics print when a communicator is created.

With NCCL_RUN_DIAGNOSTICS=1, NCCL 2.31 and later test P2P between GPUs, and 2.32.3 and later run ib_write_bw
of perftest between neighboring nodes. Lines are `host:pid NCCL DIAG [OK] check: text` on standard output,
whatever NCCL_DEBUG says; [INFO] marks what may need review. probes/messages/nccl-diagnostics.toml says what
they mean. Sources: NVIDIA/nccl src/diagnostics.cc; its user guide, "Diagnostics".
"""

from __future__ import annotations

import re

from probes.base.frozen import frozen
from probes.messages.catalogue import catalogue
from probes.messages.message import Weight, version_numbers
from probes.nccl.log.facts import LogFacts
from probes.nccl.log.messages import ProblemLine

SINCE_NETWORK = (2, 32, 3)
"""The first version whose diagnostics measure the network."""
DIAGNOSTICS_KIND = "diagnostics"
"""The kind of a line that gdrtop does not explain, and the begin of all others."""

_LINE = re.compile(r"(?:\[(?P<tag>[A-Z]{1,10})\] *)?(?P<text>.{0,1500})")
_COMMUNICATOR = re.compile(r" in comm 0x[0-9a-f]{1,16}$")
_HEADING = re.compile(r"=+ .{0,80} =+$")


@frozen
class DiagnosticResult:
    """What a line says: a result, or what needs review, with the rank that it is about."""

    text: str
    problem: ProblemLine | None = None
    rank: str = ""


def read_diagnostic(text: str) -> DiagnosticResult | None:
    """Return what follows `NCCL DIAG ` in a line; None for headings and empty lines."""
    match = _LINE.match(text)
    if match is None or _HEADING.match(match["text"]) or not match["text"].strip():
        return None
    said = _COMMUNICATOR.sub("", match["text"].strip())
    if match["tag"] in (None, "OK"):
        return DiagnosticResult(said)
    found = catalogue("nccl-diagnostics").find(said)
    if found is None:
        return DiagnosticResult(said, ProblemLine(None, DIAGNOSTICS_KIND))
    if found.message.weight == Weight.HARMLESS.value:
        return DiagnosticResult(said)
    host = found.values.get("host")
    rank = f"rank {found.values['rank']} ({host})" if host and "rank" in found.values else ""
    return DiagnosticResult(said, ProblemLine(found), rank)


# Problems that a test between the nodes can narrow down.
_BETWEEN_NODES = ("completion-", "watchdog-timeout", "watchdog-failure", "async-event", "connect-queue")
_MEASURED_NETWORKS = re.compile(r"(?:IB|IBext|SPCX|NCCL RDMA Plugin)(?:[_ ]|$)")


def is_recommended(facts: LogFacts) -> bool:
    """Return whether diagnostics help the next run: errors between nodes that this NCCL can measure."""
    versions = [version_numbers(version.text) for version in facts.versions]
    if not versions or min(versions) < SINCE_NETWORK:
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
