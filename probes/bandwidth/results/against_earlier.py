"""A result against earlier ones, and against its machine type's baseline.

Within 2 % is the same: runs on one pair differ by less than 1 % (judgement.py), and a baseline may be of
another node.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from probes.bandwidth.model.rating import LARGE_BYTES, short_gbps
from probes.bandwidth.model.result import Result
from probes.bandwidth.results.memory_path import is_measured
from probes.bandwidth.tools.samples import Sample
from probes.facts.system.tool_names import PERFTEST

SAME_PERCENT = 2.0
_LATENCIES = ("typical", "median", "average")  # the first that a tool gives stands for a row


def newest(results: Iterable[Result], key: tuple[object, ...], node: str, origin: str) -> Result | None:
    """The newest that was measured of a test (`Result.key`), on this node and of this origin alone.

    Kept results may be of many nodes, where they share a home directory.
    """
    same = (one for one in results if (one.key, one.node, one.origin) == (key, node, origin))
    return max(filter(is_measured, same), key=lambda one: one.taken_at, default=None)


def earlier(result: Result, kept: Iterable[Result]) -> Result | None:
    """The newest result before this one on the same node, of the same test and origin, that was measured."""
    before = (one for one in kept if one.taken_at < result.taken_at)
    return newest(before, result.key, result.node, result.origin)


def baseline_result(baseline: Iterable[Result], key: tuple[object, ...], origin: str) -> Result | None:
    """What a machine type's baseline has for a test (`Result.key`), whatever node it was measured on."""
    same = (one for one in baseline if (one.key, one.origin) == (key, origin))
    return next(filter(is_measured, same), None)


def expected(result: Result, baseline: Iterable[Result]) -> Result | None:
    """What the baseline of its machine type has for the same test."""
    return baseline_result(baseline, result.key, result.origin)


def change(result: Result, other: Result, of: str) -> str:
    """As "3 % less than on 2026-11-20 14:02 UTC (192 Gb/s)"; "" where there is nothing to compare.

    `of` is what stands for the other one: "on 2026-11-20 14:02 UTC", "the baseline of this machine type (…)".
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
        return f"{ours}: the same as {of} ({theirs}), within {SAME_PERCENT:g} %"
    return f"{ours}: {abs(percent):.0f} % {more if percent > 0 else less} than {of} ({theirs})"


def changes(result: Result, kept: Iterable[Result], baseline: Iterable[Result]) -> tuple[str, ...]:
    """A sentence for the last result of the same test here and one for the baseline, where there are any."""
    if not is_measured(result):
        return ()
    before, norm = earlier(result, kept), expected(result, baseline)
    told = []
    if before is not None and before != norm:
        told.append(change(result, before, f"on {local_time(before.taken_at)}"))
    if norm is not None:
        whose = f"{norm.node}, " if norm.node and norm.node != result.node else ""
        of = f"the baseline of this machine type ({whose}{local_time(norm.taken_at)})"
        told.append(change(result, norm, of))
    return tuple(one for one in told if one)


def local_time(seconds: float) -> str:
    """A moment in local time: "2026-11-20 14:02 UTC"."""
    return time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(seconds))


def latency_us(sample: Sample | None) -> float | None:
    """The latency that stands for a row; None where it has none."""
    if sample is None:
        return None
    times = {one.of: one.microseconds for one in sample.latencies}
    return next((times[of] for of in _LATENCIES if of in times), None)


def gbps_text(gbps: float) -> str:
    """As "392 Gb/s", "4.2 Gb/s"."""
    return f"{short_gbps(gbps)} Gb/s"


def headline_text(result: Result) -> str:
    """The figure that stands for a result, with its unit; "" where nothing was measured."""
    if result.gbps is not None:
        return gbps_text(result.gbps)
    latency = latency_us(result.figure)
    return "" if latency is None else f"{latency:.2f} µs"


def newest_by_pair(results: Iterable[Result], node: str, origin: str) -> dict[tuple[str, str], Result]:
    """The newest bandwidth of each GPU (BDF) and NIC of a node and origin; `results` the oldest first.

    Only what can stand for the pair: RDMA one way, with large messages.
    """
    return {
        (one.pair.gpu, one.pair.nic): one
        for one in results
        if is_measured(one) and (one.node, one.origin) == (node, origin)
        if one.pair.gpu and one.pair.nic and one.tool in PERFTEST and not one.is_bidirectional
        if one.gbps is not None and _is_large(one)
    }


def _is_large(result: Result) -> bool:
    size = None if result.figure is None else result.figure.size_bytes
    return size is None or size >= LARGE_BYTES
