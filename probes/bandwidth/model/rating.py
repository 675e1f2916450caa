"""Which sample stands for a test, and how good it is compared with the limit of its path and host memory.

Near the limit is a share of it (NEAR_PORT, NEAR_PCIE). A machine type whose figures are known is compared
with those instead: what it reaches is near, whatever the limit. As slow as host memory means within 5 %: runs
on one pair differ by less than 1 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import Enum
from statistics import fmean, median

from probes.bandwidth.model.expected import NEAR_PCIE, NEAR_PORT, Expectation, spark_sign
from probes.bandwidth.model.limits import Limit
from probes.bandwidth.model.planned_series import Settings
from probes.bandwidth.model.samples import Sample
from probes.base.frozen import frozen
from probes.base.unknown import Unknown

LIKE_HOST = 0.95
NOT_MEASURED = "no bandwidth was measured"
LARGE_FROM_BYTES = 65536
"""Smaller messages are limited by the NIC's message rate, not by a link."""
_STALLED = 0.5  # of what flows in most seconds


class Rating(Enum):
    """The rating of a measurement; the values are those of saved results."""

    NEAR = "near line rate"
    BELOW = "below"
    LIKE_HOST = "as slow as host memory"
    UNKNOWN = "not judged"


@frozen
class OpenFinding:
    """A finding of the doctor about the path of a test, when it ran."""

    id: str
    title: str


@frozen
class Assessment:
    """A rating with its reason; the field names are those of saved results."""

    verdict: Rating = Rating.UNKNOWN
    words: str = ""  # "186 of 200 Gb/s, 93 %"
    why: str = ""  # one line
    share: float | None = None  # of the limit, which is without headers
    findings: tuple[OpenFinding, ...] = ()  # open on the path of a slow result

    @property
    def reason(self) -> str:
        """Return why, after the open findings: "open finding: ACS redirect … (acs-redirect-enabled); …"."""
        return "; ".join(filter(None, (self.open_findings, self.why)))

    @property
    def open_findings(self) -> str:
        """Return "open finding: ACS redirect is enabled … (acs-redirect-enabled)"; "" if there is none."""
        named = ", ".join(f"{finding.title} ({finding.id})" for finding in self.findings)
        return f"open finding{'s' if len(self.findings) > 1 else ''}: {named}" if named else ""

    @property
    def is_slow(self) -> bool:
        """Return whether the path should carry more."""
        return self.verdict in (Rating.BELOW, Rating.LIKE_HOST)


def best_of(samples: Iterable[Sample]) -> Sample | None:
    """Return the sample with the most bandwidth, which stands for a run over all sizes."""
    measured = [sample for sample in samples if sample.gbps is not None]
    return max(measured, key=lambda sample: sample.gbps or 0.0, default=None)


def rate(
    sample: Sample, limit: Limit, host: Sample | None = None, expected: Expectation | None = None
) -> Assessment:
    """Rate a sample; `host` is the same test with host memory on the same NIC, if it ran.

    `expected` is what this machine type reaches with large messages, if it is known.
    """
    by_limit = _by_limit(sample, limit, host)
    is_small = sample.size_bytes is not None and sample.size_bytes < LARGE_FROM_BYTES
    if expected is None or sample.gbps is None or is_small:
        return by_limit
    if sample.gbps < expected.gbps:
        verdict = by_limit.verdict if by_limit.verdict is Rating.LIKE_HOST else Rating.BELOW
        sign = spark_sign(expected.spark, sample.gbps)
        words = "; ".join(filter(None, (expected.words, sign and f"reports of such a rate: {sign}")))
        return replace(by_limit, verdict=verdict, why=f"{by_limit.why}; {words}")
    if by_limit.verdict is Rating.NEAR:
        return by_limit
    return replace(by_limit, verdict=Rating.NEAR, why=f"{expected.words}; {by_limit.why}")


def _by_limit(sample: Sample, limit: Limit, host: Sample | None) -> Assessment:
    if sample.gbps is None:
        return Assessment(Rating.UNKNOWN, "", NOT_MEASURED)
    least, most = limit.least, limit.gbps
    if least is None or isinstance(most, Unknown) or isinstance(least.nominal_gbps, Unknown) or not most:
        return Assessment(Rating.UNKNOWN, f"{sample.gbps:.0f} Gb/s", "the limit of the path is unknown")
    # Both directions of a test between two ends are added up; over one port they share its links.
    directions = 2 if sample.is_bidirectional and not limit.is_loopback else 1
    nominal = least.nominal_gbps * directions
    percent = f"{100 * sample.gbps / nominal:.0f} %"
    words = f"{short_gbps(sample.gbps)} of {short_gbps(nominal)} Gb/s, {percent}"
    share = sample.gbps / (most * directions)
    if sample.gbps == 0.0 and sample.messages_per_second == 0.0:  # for small messages 0.00 may be printed
        why = "no message completed after the first second: the path is broken or the node is overloaded"
        return Assessment(Rating.BELOW, words, why, share)
    if share >= (NEAR_PCIE if least.is_pcie else NEAR_PORT):
        return Assessment(Rating.NEAR, words, f"limited by {least.name} ({least.why})", share)
    if sample.size_bytes is not None and sample.size_bytes < LARGE_FROM_BYTES:
        why = f"{sample.size_bytes}-byte messages are limited by the message rate, not by the link"
        return Assessment(Rating.UNKNOWN, words, why, share)
    if limit.unknown:
        why = f"the bandwidth of {limit.unknown[0]} is unknown and may be no more than this"
        return Assessment(Rating.UNKNOWN, words, why, share)
    if host is not None and host.gbps:
        reached = f"host memory reaches {short_gbps(host.gbps)} Gb/s"
        if sample.gbps >= LIKE_HOST * host.gbps:
            why = f"{reached}: limited by the NIC, network or peer, not by the path to the GPU"
            return Assessment(Rating.LIKE_HOST, words, why, share)
        why = f"{reached}: limited by the path to the GPU"
    else:
        why = f"{least.name} ({least.why}) could carry more"
    return Assessment(Rating.BELOW, words, "; ".join((why, *limit.notes)), share)


def short_gbps(gbps: float) -> str:
    """Return Gb/s without the unit: "392", "4.2"."""
    return f"{gbps:.0f}" if gbps >= 10 else f"{gbps:.2g}"


def headline(samples: Sequence[Sample], settings: Settings) -> Sample | None:
    """Return the sample that stands for a test; None if nothing was measured.

    For a test that prints a row a second it is the mean of all rows, so that seconds without data (PFC
    pauses, retransmissions, a flapping link) count. The rows at the beginning do not count: perftest's first
    one, and the rows at 0 after it, because on a slow link it takes seconds until the first of 128 messages
    in flight is done. For a run over all sizes it is the fastest row, for latencies the row of the smallest
    size. nvbandwidth measures each direction by a test of its own, and a GPU's link is as good as its worse
    direction.
    """
    if settings.is_endless:
        return steady(samples)
    if settings.required_tests:
        best = [
            best_of(sample for sample in samples if sample.what == test) for test in settings.required_tests
        ]
        return min(filter(None, best), key=lambda sample: sample.gbps or 0.0, default=None)
    return best_row(samples)


def best_row(samples: Sequence[Sample]) -> Sample | None:
    """Return the row that stands for a run over all sizes; None if there is none."""
    if collectives := [sample for sample in samples if sample.bus_gbps is not None]:
        return max(collectives, key=lambda sample: sample.bus_gbps or 0.0)
    return best_of(samples) or min(samples, key=lambda sample: sample.size_bytes or 0, default=None)


def steady(samples: Sequence[Sample]) -> Sample | None:
    """Return the mean of a test that prints a row a second, without its beginning."""
    return _mean(_counted(samples))


def stalls(samples: Sequence[Sample], is_endless: bool) -> str:
    """Return "in 4 of 9 seconds less than half …"; "" if data flowed steadily."""
    rows = [sample.gbps or 0.0 for sample in _counted(samples)] if is_endless else []
    flowing = [gbps for gbps in rows if gbps > 0.0]
    least = _STALLED * median(flowing) if flowing else 0.0
    stalled = sum(gbps < least for gbps in rows)
    if not stalled:
        return ""
    return f"in {stalled} of {len(rows)} seconds, the bandwidth was less than half the median"


def _counted(samples: Iterable[Sample]) -> list[Sample]:
    """Return the rows without the beginning, which is at most a third of them."""
    rows = [sample for sample in samples if sample.gbps is not None]
    first = next((number for number, sample in enumerate(rows) if sample.gbps), len(rows))
    return rows[min(max(1, first), max(1, len(rows) // 3)) :] or rows


def _mean(rows: Sequence[Sample]) -> Sample | None:
    if not rows:
        return None
    gbps = fmean(sample.gbps or 0.0 for sample in rows)
    nearest = min(rows, key=lambda sample: abs((sample.gbps or 0.0) - gbps))
    rates = [sample.messages_per_second for sample in rows if sample.messages_per_second is not None]
    return replace(nearest, gbps=gbps, messages_per_second=fmean(rates) if rates else None)
