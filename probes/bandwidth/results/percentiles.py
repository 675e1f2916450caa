"""How much the results of one test vary: over the time of a node, and over nodes of its machine type.

Percentiles need LEAST values. Of fewer, less than one value is below the 5th percentile: it would lie between
the lowest two, and one bad run would decide it. Then only the range is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median, quantiles

from probes.bandwidth.model.rating import short_gbps
from probes.bandwidth.model.result import Result, is_measured
from probes.base.frozen import frozen
from probes.base.grouping import grouped
from probes.base.text import plural

LEAST = 20


@frozen
class Spread:
    """Bandwidths of one test, in Gb/s; of fewer than LEAST, the percentiles are None."""

    count: int
    low: float
    median: float
    high: float
    p5: float | None
    p95: float | None
    percentile: float | None  # of the newest value: how many percent of all are not above it

    def of(self, noun: str, nouns: str) -> str:
        """Return where the newest value is: "p3 of 64 nodes, slower than 97 % (p5 385, …)"."""
        low, middle, high = map(short_gbps, (self.low, self.median, self.high))
        counted = plural(self.count, noun, nouns)
        if self.p5 is None or self.p95 is None or self.percentile is None:
            return f"{counted}: {low if low == high else f'{low} to {high}'} Gb/s"
        faster = 100.0 - self.percentile
        slower = f", slower than {faster:.0f} %" if faster >= 0.5 else ""
        figures = f"p5 {short_gbps(self.p5)}, median {middle}, p95 {short_gbps(self.p95)} Gb/s"
        return f"p{self.percentile:.0f} of {counted}{slower} ({figures})"


def spread_of(values: Sequence[float], newest: float) -> Spread:
    """Return how values vary, and where the newest one of them is."""
    figures = len(values), min(values), median(values), max(values)
    if len(values) < LEAST:
        return Spread(*figures, None, None, None)
    cuts = quantiles(values, n=20, method="inclusive")
    not_above = sum(value <= newest for value in values)
    return Spread(*figures, cuts[0], cuts[-1], 100.0 * not_above / len(values))


@frozen
class Standing:
    """How the newest result of a test on a node compares with what is kept."""

    on_node: Spread  # of all results of this test on this node, the newest one included
    over_nodes: Spread | None  # of the newest one of each node like it; None: of no other node

    def words(self, nodes: str) -> str:
        """Return "p12 of 45 results, slower than 88 % (p5 385, …); p3 of 64 nodes, …" with this word."""
        own = self.on_node.of("result", "results") if self.on_node.count > 1 else ""
        over = "" if self.over_nodes is None else self.over_nodes.of(nodes, nodes)
        return "; ".join(filter(None, (own, over)))


OF_TYPE = "nodes of this machine type"


def standing_of(own: Sequence[float], others: Sequence[float]) -> Standing | None:
    """Return the standing of the last one of a node's own values; `others`: the last one of each node.

    None: there is nothing to compare with.
    """
    over = spread_of(others, own[-1]) if len(others) > 1 else None
    return Standing(spread_of(own, own[-1]), over) if over is not None or len(own) > 1 else None


def standings(kept: Iterable[Result]) -> tuple[tuple[Result, Standing], ...]:
    """Return the newest bandwidth of each test on each node with its standing, the newest first.

    Compared are only results with the same test, tool, message size, direction, memory, GPU, NIC and peer.
    `kept`: oldest first.
    """
    measured = [result for result in kept if is_measured(result) and result.gbps]
    runs = grouped((_test(result, result.node), result) for result in measured)
    newest = [of_test[-1] for of_test in runs.values()]
    rates = grouped((_test(result, result.machine), result.gbps or 0.0) for result in newest)
    found = []
    for of_test in runs.values():
        result = of_test[-1]
        own = [each.gbps or 0.0 for each in of_test]
        if (standing := standing_of(own, rates[_test(result, result.machine)])) is not None:
            found.append((result, standing))
    return tuple(sorted(found, key=lambda each: -each[0].taken_at))


def _test(result: Result, where: str) -> tuple[object, ...]:
    # A GPU that fell off the bus gives others its number.
    return (where, result.origin, result.pair.gpu, *result.key)
