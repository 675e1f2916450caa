"""What the error lines of a log mean: the catalogue of messages says it, given what the log says besides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from probes.base.frozen import frozen
from probes.base.text import join_limited, printable
from probes.messages.catalogue import codes, explain
from probes.messages.message import Context, Found, Weight, is_version, version_numbers
from probes.nccl.log.facts import Mention, Problem, Setting

UNEXPLAINED = {
    "warning": "NCCL warning",
    "notice": "NCCL notice",
    "diagnostics": "NCCL's diagnostics report what to review",
}
"""The kinds of lines that the catalogue does not know, with their titles."""
UNKNOWN = "unknown"
"""The severity of these."""
_NOTES = (Weight.NOTE, Weight.HARMLESS)
_MOST_HOSTS = 4


@frozen
class ProblemLine:
    """A line of a message, or one that the catalogue does not know."""

    found: Found | None
    kind: str = "warning"  # of UNEXPLAINED
    is_notice: bool = False  # NCCL calls it no error


def problem_of(line: ProblemLine, context: Context, seen: Mention, ranks: tuple[str, ...]) -> Problem:
    """Return what a line means in its log."""
    if line.found is None:
        return Problem(line.kind, UNEXPLAINED[line.kind], "", "", seen, ranks, True, UNKNOWN)
    meaning = explain(line.found, context)
    title, severity = printable(meaning.title, 200), meaning.weight.value
    is_note = line.is_notice or meaning.weight in _NOTES
    if line.is_notice and meaning.weight not in _NOTES:
        severity = Weight.NOTE.value
    proves = meaning.proves.value
    return Problem(meaning.id, title, meaning.cause, meaning.fix, seen, ranks, is_note, severity, proves)


def context_of(
    versions: Iterable[Mention], settings: Iterable[Setting], nics: Iterable[Mention],
    beside: frozenset[str]
) -> Context:  # fmt: skip
    """Return what the log says besides a line; of several versions, the oldest counts."""
    numbers = [found for version in versions if (found := version_numbers(version.text))]
    kinds = (("/RoCE", "roce"), ("/IB", "infiniband"))
    node = frozenset(word for suffix, word in kinds if any(nic.text.endswith(suffix) for nic in nics))
    values = {setting.name: setting.value for setting in settings}
    return Context(min(numbers, default=None), values, node, beside)


def unequal_mtu(mtus: Mapping[str, Mapping[str, Mention]], version: tuple[int, ...] | None) -> Problem | None:
    """Return the problem of nodes whose queue pairs differ in their MTU; host -> number of verbs -> lines.

    NCCL before 2.20.3 uses the smaller one; later, both ends can settle on different ones (NVIDIA/nccl#1524).
    """
    kinds = {frozenset(of_host) for of_host in mtus.values()}
    if len(kinds) < 2:
        return None
    is_shared = bool(frozenset.intersection(*kinds))  # some NICs of all nodes have the same
    table = codes()["ibv_mtu"]
    sizes = (
        f"{' and '.join(table[mtu].name for mtu in sorted(of_host) if mtu in table)} bytes on {host}"
        for host, of_host in sorted(mtus.items(), key=lambda row: sorted(row[1]))
    )
    seen = next(iter(next(iter(mtus.values())).values()))
    is_old = is_version("<2.20.3", version)
    return Problem(
        "mtu-differs",
        f"Nodes have different MTUs: {join_limited(sizes, _MOST_HOSTS)}",
        "This NCCL uses the smaller one." if is_old else "Both ends of a connection can then use different "
        "MTUs. Completion errors 1, 9 and 12, fatal events of a queue pair, or a hang may follow.",
        "Set the same MTU on the RDMA interfaces of all nodes and on the switches: 9000, or at least 4200.",
        seen,
        is_note=is_old,
        severity=(Weight.NOTE if is_old else Weight.WARNING if is_shared else Weight.CRITICAL).value,
    )  # fmt: skip
