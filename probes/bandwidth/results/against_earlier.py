"""Compare a result with earlier ones and with its machine type's baseline.

A difference up to 2 % counts as the same: runs on one pair differ by less than 1 % (rating.py), and a
baseline may be from another node.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from probes.bandwidth.model.command import Refused
from probes.bandwidth.model.rating import LARGE_FROM_BYTES, Rating, short_gbps
from probes.bandwidth.model.result import Ending, Result, is_measured
from probes.bandwidth.model.samples import Sample
from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Unknown, known
from probes.facts.pci.functions import PciFacts, PciFunction
from probes.facts.pci.names import built_in_name
from probes.facts.system.platform import PlatformFacts
from probes.facts.system.tool_names import PERFTEST
from probes.snapshot.examination import Examination
from probes.topology.endpoints import Endpoint

SAME_PERCENT = 2.0
_LATENCIES = ("typical", "median", "average")  # the first one that a tool prints stands for a row


def newest(results: Iterable[Result], key: tuple[object, ...], node: str, origin: str) -> Result | None:
    """Return the newest measured result of a test (`Result.key`) on this node and of this origin.

    Saved results may be of many nodes that share a home directory.
    """
    same = (result for result in results if (result.key, result.node, result.origin) == (key, node, origin))
    return max(filter(is_measured, same), key=lambda result: result.taken_at, default=None)


def earlier(result: Result, kept: Iterable[Result]) -> Result | None:
    """Return the newest measured result before this one, of the same node, test and origin."""
    before = (other for other in kept if other.taken_at < result.taken_at)
    return newest(before, result.key, result.node, result.origin)


def baseline_result(baseline: Iterable[Result], key: tuple[object, ...], origin: str) -> Result | None:
    """Return the result of a test (`Result.key`) in a machine type's baseline, whatever node it is from."""
    same = (result for result in baseline if (result.key, result.origin) == (key, origin))
    return next(filter(is_measured, same), None)


def change(result: Result, other: Result, other_name: str) -> str:
    """Return "186 Gb/s: 3 % less than on 2026-11-20 14:02 UTC (192 Gb/s)"; "" if nothing can be compared.

    `other_name`: "on 2026-11-20 14:02 UTC", "the baseline of this machine type (…)".
    """
    ours, theirs = headline_text(result), headline_text(other)
    if result.gbps is not None and other.gbps:
        now, before, more, less = result.gbps, other.gbps, "more", "less"
    else:
        mine, its = latency_us(result.figure), latency_us(other.figure)
        if mine is None or not its or result.gbps is not None or other.gbps is not None:
            return ""
        now, before, more, less = mine, its, "longer", "shorter"
    percent = 100.0 * (now - before) / before
    if abs(percent) <= SAME_PERCENT:
        return f"{ours}: the same as {other_name} ({theirs}), within {SAME_PERCENT:g} %"
    return f"{ours}: {abs(percent):.0f} % {more if percent > 0 else less} than {other_name} ({theirs})"


def changes(result: Result, kept: Iterable[Result], baseline: Iterable[Result]) -> tuple[str, ...]:
    """Return a sentence for the previous result of the same test, and one for the baseline, if they exist."""
    if not is_measured(result):
        return ()
    before, norm = earlier(result, kept), baseline_result(baseline, result.key, result.origin)
    sentences = []
    if before is not None and before != norm:
        sentences.append(change(result, before, f"on {local_time(before.taken_at)}"))
    if norm is not None:
        whose = f"{norm.node}, " if norm.node and norm.node != result.node else ""
        name = f"the baseline of this machine type ({whose}{local_time(norm.taken_at)})"
        sentences.append(change(result, norm, name))
    return tuple(filter(None, sentences))


def local_time(seconds: float) -> str:
    """Return a moment in local time with its zone: "2026-11-20 14:02 UTC"."""
    return time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(seconds))


def latency_us(sample: Sample | None) -> float | None:
    """Return the latency that stands for a row; None if it has none."""
    if sample is None:
        return None
    times = {latency.statistic: latency.microseconds for latency in sample.latencies}
    return next((times[kind] for kind in _LATENCIES if kind in times), None)


def gbps_text(gbps: float) -> str:
    """Return "392 Gb/s", "4.2 Gb/s"."""
    return f"{short_gbps(gbps)} Gb/s"


def headline_text(result: Result) -> str:
    """Return the figure that stands for a result, with its unit; "" if nothing was measured."""
    if result.gbps is not None:
        return gbps_text(result.gbps)
    latency = latency_us(result.figure)
    return "" if latency is None else f"{latency:.2f} µs"


def newest_by_pair(results: Iterable[Result], node: str, origin: str) -> dict[tuple[str, str], Result]:
    """Return the newest bandwidth of each GPU (BDF) and NIC of a node and origin; `results`: oldest first.

    Only results that can stand for the pair: RDMA in one direction, with large messages.
    """
    return {
        (result.pair.gpu, result.pair.nic): result
        for result in results
        if is_measured(result) and (result.node, result.origin) == (node, origin)
        if result.pair.gpu and result.pair.nic and result.tool in PERFTEST and not result.is_bidirectional
        if result.gbps is not None
        if result.figure is None or (result.figure.size_bytes or LARGE_FROM_BYTES) >= LARGE_FROM_BYTES
    }


# Nodes of one machine type are expected to measure the same. The type is made only of what a fault does not
# change: no port rates, and gdrtop's own names, because pci.ids and the driver's names differ between nodes.

_MACHINE_TYPE_LIMIT = 200  # characters


@frozen
class Baseline:
    """The results expected of every node of a machine type."""

    machine: str
    results: tuple[Result, ...]


def updated_baseline(
    results: Iterable[Result], before: Callable[[str], Iterable[Result]]
) -> Baseline | Refused:
    """Return the baseline of these results' machine type with them added; a test's older result is replaced.

    `before` returns the current baseline of a machine type.
    """
    measured = tuple(filter(is_measured, results))
    if not measured:
        return Refused("no result can be saved as a baseline")
    machine = measured[0].machine
    merged = {result.key: result for result in (*before(machine), *measured)}
    return Baseline(machine, tuple(merged.values()))


def below_limit(results: Iterable[Result]) -> tuple[Result, ...]:
    """Return the results below the limit of their path: saved as a baseline only if the user insists."""
    return tuple(
        result
        for result in results
        if result.ending is Ending.DONE and result.judgment.verdict is Rating.BELOW
    )


def other_type_hint(machine: str, types: Sequence[str]) -> str:
    """Return a hint that the same product has a baseline of another machine type; "" if it has none.

    A missing GPU or port makes another machine type, and that is just the node to compare.
    """
    same_product = sorted(
        other for other in types if other != machine and product_of(other) == product_of(machine)
    )
    if not same_product:
        return ""
    more = f" (and {len(same_product) - 1} more)" if len(same_product) > 1 else ""
    return f"there is a baseline for {same_product[0]}{more}, but none for this machine type: {machine}"


def product_of(machine: str) -> str:
    """Return the product name, the first part of a machine type."""
    return machine.partition(", ")[0]


def machine_type(examination: Examination) -> str:
    """Return product, GPUs and NICs: "Supermicro SYS-821GE-TNHR, 8 × NVIDIA H100 SXM5 80GB, 8 × …".

    Parts that are unknown are left out.
    """
    node, topology = examination.node, examination.topology
    product = known(node.platform.product, "") if isinstance(node.platform, PlatformFacts) else ""
    functions = node.pci.functions if isinstance(node.pci, PciFacts) else {}
    parts = [product, *_counted(topology.gpus, functions), *_counted(topology.nics, functions)]
    return printable(", ".join(filter(None, parts)), _MACHINE_TYPE_LIMIT) or "unknown type"


def _counted(ends: Iterable[Endpoint], functions: dict[str, PciFunction]) -> list[str]:
    found = [functions.get(end.bdf) for end in ends if not isinstance(end.bdf, Unknown)]
    ids = ((known(card.vendor_id, 0), known(card.device_id, 0)) for card in found if card is not None)
    counts = Counter(built_in_name(*pair) for pair in ids)
    return [f"{count} × {name}" for name, count in sorted(counts.items())]
