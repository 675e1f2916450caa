"""The texts of measured results: the figure, the limit, when, how, and what it means."""

from __future__ import annotations

from probes.bandwidth.model.rating import Rating
from probes.base.frozen import frozen
from probes.base.text import printable
from probes.setup.report import Measured, Report
from widgets.bandwidth.result import mark_of, words_of
from widgets.base.figures import local_time
from widgets.base.lines import Tone, sentence

HOW_TO_MEASURE = (
    ("gdrtop bench --sweep", "every GPU with its best NIC"),
    ("gdrtop bench --memory compare", "host memory, nvidia-peermem and DMA-BUF on one pair of GPU and NIC"),
)


@frozen
class ResultText:
    """One result."""

    mark: str
    tone: Tone
    title: str
    setup: str  # "loopback"
    words: str  # "186 of 200 Gb/s, 93 %"
    when: str
    limit: str  # "port 1 of mlx5_0: 200 Gb/s"
    notes: tuple[str, ...]  # why it is slow or failed, and comparisons
    commands: tuple[str, ...]


def results_of(report: Report) -> tuple[ResultText, ...]:
    """Return the newest result of each test."""
    return tuple(map(_result, report.measured))


def conclusions_of(report: Report) -> tuple[str, ...]:
    """Return what the results mean, as sentences."""
    return tuple(printable(sentence(words)) for words in report.conclusions)


def _result(measured: Measured) -> ResultText:
    result = measured.result
    mark = mark_of(result)
    limit = f"{result.limit_by}: {result.limit_gbps:.0f} Gb/s" if result.limit_gbps else result.limit_by
    is_near = result.judgment.verdict is Rating.NEAR
    notes = (result.failure, "" if is_near else result.judgment.reason, *measured.comparisons)
    return ResultText(
        mark=mark.text,
        tone=mark.tone,
        title=printable(result.title, 300),
        setup=printable(result.setup, 60),
        words=printable(words_of(result)),
        when=local_time(result.taken_at, "%Y-%m-%d %H:%M %Z"),
        limit=printable(limit),
        notes=tuple(printable(sentence(note)) for note in notes if note),
        commands=tuple(map(printable, result.commands)),
    )
