"""How good a measured bandwidth is, against what its way can carry and against host memory.

Near the line is from 90 % on: azurehpc-health-checks takes 180 of 200 Gb/s (ND A100 v4) and 380 of 400 Gb/s
(ND H100 v5) for a healthy GPU–NIC pair by ib_write_bw. Where a PCIe link limits, from 82 % on: 90 % of what
acknowledgements and flow control leave, which take 8 to 10 % of it (Neugebauer et al., SIGCOMM 2018) and are
not in the limit. As slow as host memory is within 5 %: runs on one pair differ by less than 1 %.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from probes.bandwidth.model.limits import Limit
from probes.bandwidth.tools.samples import Sample
from probes.base.unknown import Unknown

NEAR_PORT = 0.90
NEAR_PCIE = 0.82
LIKE_HOST = 0.95
LARGE_BYTES = 65536
"""Smaller messages are bound by how many the NIC sends a second, not by any link."""


class Rating(Enum):
    """The word for a measurement."""

    NEAR = "near the line"
    BELOW = "below"
    LIKE_HOST = "as slow as host memory"
    UNKNOWN = "not judged"


@dataclass(frozen=True)
class Judgement:
    """What a measurement is worth."""

    verdict: Rating = Rating.UNKNOWN
    words: str = ""  # "186 of 200 Gb/s, 93 %"
    why: str = ""  # one line
    share: float | None = None  # of what the limiting part can carry, headers taken off


def best_of(samples: Iterable[Sample]) -> Sample | None:
    """The sample of most bandwidth: what to judge of a run over all sizes."""
    measured = [one for one in samples if one.gbps is not None]
    return max(measured, key=lambda one: one.gbps or 0.0, default=None)


def rate(sample: Sample, limit: Limit, host: Sample | None = None) -> Judgement:
    """`host` is the same test with host memory on the same NIC, where it was run."""
    if sample.gbps is None:
        return Judgement(Rating.UNKNOWN, "", "no bandwidth was measured")
    least, most = limit.least, limit.gbps
    if least is None or isinstance(most, Unknown) or isinstance(least.nominal_gbps, Unknown) or not most:
        return Judgement(Rating.UNKNOWN, f"{sample.gbps:.0f} Gb/s", "what the way can carry is not known")
    # Both directions of a test between two ends are added up; over one port they share its links.
    ways = 2 if sample.is_bidirectional and not limit.is_loopback else 1
    nominal = least.nominal_gbps * ways
    words = f"{short_gbps(sample.gbps)} of {short_gbps(nominal)} Gb/s, {sample.gbps / nominal:.0%}".replace(
        "%", " %"
    )
    share = sample.gbps / (most * ways)
    by = f"{least.name} limits: {least.why}"
    if sample.gbps == 0.0 and sample.messages_per_second == 0.0:  # small ones may print 0.00
        nothing = (
            "in all that counts not one message had gone through: the way is broken, or the node too busy"
        )
        return Judgement(Rating.BELOW, words, nothing, share)
    if share >= (NEAR_PCIE if least.is_pcie else NEAR_PORT):
        return Judgement(Rating.NEAR, words, by, share)
    if sample.size_bytes is not None and sample.size_bytes < LARGE_BYTES:
        small = f"messages of {sample.size_bytes} bytes are bound by their number, not by the link"
        return Judgement(Rating.UNKNOWN, words, small, share)
    if limit.unknown:
        untold = f"what {limit.unknown[0]} carries is not known: it may be no more than this"
        return Judgement(Rating.UNKNOWN, words, untold, share)
    if host is not None and host.gbps:
        reached = f"host memory reaches {short_gbps(host.gbps)} Gb/s"
        if sample.gbps >= LIKE_HOST * host.gbps:
            common = f"{reached}: NIC, network or far side limit, not the way to the GPU"
            return Judgement(Rating.LIKE_HOST, words, common, share)
        way = f"{reached}: the way to the GPU limits"
        return Judgement(Rating.BELOW, words, "; ".join((way, *limit.notes)), share)
    more = f"{least.name} would carry more: {least.why}"
    return Judgement(Rating.BELOW, words, "; ".join((more, *limit.notes)), share)


def short_gbps(gbps: float) -> str:
    """Without the unit: "392", "4.2"."""
    return f"{gbps:.0f}" if gbps >= 10 else f"{gbps:.2g}"
