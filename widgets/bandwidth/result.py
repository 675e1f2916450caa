"""A result: how good it is and why, the memory and path it used, and why it failed."""

from __future__ import annotations

from collections.abc import Sequence

from probes.bandwidth.model.expected import SPARK
from probes.bandwidth.model.planned_series import Purpose
from probes.bandwidth.model.rating import NOT_MEASURED, Rating
from probes.bandwidth.model.request import Mode
from probes.bandwidth.model.result import (
    Ending,
    Result,
    facts_about,
    is_as_requested,
    is_measured,
    memory_used,
    mismatch_evidence,
    nic_routes,
    staged_routes,
)
from probes.bandwidth.model.samples import BY_DMABUF, BY_PEERMEM, HOST_MEMORY, About
from probes.bandwidth.results.against_earlier import gbps_text, headline_text, latency_us
from probes.base.text import binary_size, join_limited
from probes.facts.system.tool_names import GDRCOPY, NCCL_TESTS, PERFTEST
from widgets.bandwidth.series import draw_purpose
from widgets.base.figures import ago, short
from widgets.base.lines import Line, Run, Tone, width_of, wrapped

_MARKS = {
    Rating.NEAR: Run("✓", Tone.GOOD),
    Rating.BELOW: Run("▲", Tone.WARNING),
    Rating.LIKE_HOST: Run("▲", Tone.WARNING),
    Rating.UNKNOWN: Run("·", Tone.PLAIN),
}
_MOST_ROUTES = 4
_NOTHING = "nothing was measured"


def mark_of(result: Result) -> Run:
    """Return ✓ near line rate or passed, ▲ below or other memory, · not rated, ✗ failed, or ■ canceled."""
    if result.ending is Ending.FAILED:
        return Run("✗", Tone.BAD)
    if result.ending is Ending.CANCELED:
        return Run("■", Tone.DIM)
    if not is_as_requested(result):
        return _MARKS[Rating.BELOW]
    return _MARKS[result.judgment.verdict]


def words_of(result: Result) -> str:
    """Return the result in a few words: "186 of 200 Gb/s, 93 %", "failed"."""
    if result.ending is Ending.FAILED:
        return "failed"
    if result.ending is Ending.CANCELED:
        figure = headline_text(result)
        return f"canceled ({figure} so far)" if figure else "canceled"
    if result.figure is None:
        return _NOTHING
    size_bytes = result.figure.size_bytes
    size = "" if size_bytes is None else f" with {binary_size(size_bytes)} messages"
    if result.tool in NCCL_TESTS:
        other = "" if is_as_requested(result) else f": {memory_used(result)}"
        return f"bus bandwidth {headline_text(result)}{size}{other}"
    if result.gbps is None:
        return _latency(result, size)
    if result.tool in GDRCOPY:
        rows = [sample for sample in result.samples if sample.gbps is not None]
        return " · ".join(f"{sample.what} {gbps_text(sample.gbps or 0.0)}" for sample in rows)
    words = result.judgment.words or headline_text(result)
    return words if is_as_requested(result) else f"{words}: {memory_used(result)}, not {result.memory}"


def _latency(result: Result, size: str) -> str:
    us = latency_us(result.figure)
    if us is None or result.figure is None:
        return _NOTHING
    times = {latency.statistic: latency.microseconds for latency in result.figure.latencies}
    tail = f", 99 % within {times['99 %']:.2f} µs" if "99 %" in times else ""
    return f"{us:.2f} µs{size}{tail}"


def draw_result(
    result: Result, comparisons: Sequence[str], width: int, purpose: Purpose | None = None
) -> list[Line]:
    """Return title and rating, then the reason, the memory, the comparisons, and what the test shows."""
    mark = mark_of(result)
    lines: list[Line] = wrapped(result.title, width, Tone.TITLE)
    first, *more = wrapped(words_of(result), width - 2, Tone.PLAIN) or [()]
    lines.append((mark, Run(" "), *(run._replace(tone=mark.tone) for run in first)))
    lines += [(Run("  "), *line) for line in more]

    def add(text: str, tone: Tone = Tone.PLAIN) -> None:
        lines.extend(wrapped(text, width, tone, "  ") if text else ())

    if result.ending is Ending.FAILED:
        add(result.what_failed or "the tool gave no reason", Tone.BAD)
        add(result.failure[len(result.what_failed) :].removeprefix(". "))
        add(f"its output: {result.failure_line}" if result.failure_line else "", Tone.DIM)
    else:
        add(result.failure, Tone.BAD)
        is_latency = result.gbps is None and result.judgment.why != NOT_MEASURED
        if is_latency or (result.gbps is not None and result.tool not in (*GDRCOPY, *NCCL_TESTS)):
            add(result.judgment.reason)
        for text in memory_lines(result):
            add(text, Tone.DIM)
        if result.cpu_seconds is not None and result.cpu_cores is not None:
            cores = f"{result.cpu_cores:.1f} cores on average"
            add(f"CPU: {cores}, {result.cpu_seconds:.0f} s including startup", Tone.DIM)
    for text in comparisons:
        add(text)
    if purpose is not None and is_measured(result):
        lines += draw_purpose(purpose, width, "  ")
    return lines


def memory_lines(result: Result) -> list[str]:
    """Return the memory that was used and how the NIC reached it, as the tool reports it."""
    lines = []
    registered = facts_about(result, About.REGISTERED)
    if not is_as_requested(result):
        lines.append(mismatch_evidence(result))
    elif registered:
        lines.append(f"the tool reports registration via {', '.join(registered)}")
    elif result.memory in (BY_DMABUF, BY_PEERMEM):
        lines.append(f"{result.memory} was requested; the tool did not report how the memory was registered")
    elif result.memory == HOST_MEMORY:
        of_spark = f"host memory, as jobs on {SPARK} use it"
        is_of_spark = result.expected_machine == SPARK
        lines.append(of_spark if is_of_spark else "host memory only; says nothing about the GPU path")
    if routes := facts_about(result, About.ROUTE):
        lines.append(f"NCCL used {join_limited(routes, _MOST_ROUTES)}")
        if is_as_requested(result):
            lines += _gdrdma(nic_routes(result), staged_routes(result))
    return lines


def _gdrdma(routes: Sequence[str], staged: Sequence[str]) -> list[str]:
    if not routes:
        return []
    if not staged:
        return ["GDRDMA on every channel: the NICs accessed GPU memory directly"]
    if len(staged) == len(routes):
        return ["no GDRDMA: NCCL copied through host memory"]
    return [
        f"GDRDMA on some channels; through host memory: {', '.join(staged[:_MOST_ROUTES])}"
        " (NCCL sends with GDRDMA only if NCCL_NET_GDR_READ allows it)"
    ]


# Earlier results


def short_result(result: Result) -> Run:
    """Return "✓387G", in Gb/s as the rates of the NICs; "" if no bandwidth was measured."""
    mark = mark_of(result)
    return mark._replace(text="" if result.gbps is None else f"{mark.text}{short(result.gbps)}G")


def draw_last_result(result: Result, now: float, width: int, label: str = "measured") -> list[Line]:
    """Return "✓ measured 186 of 200 Gb/s, 93 % · DMA-BUF · 2 h ago", in two lines if one is too short.

    Only what differs from ib_write_bw in loopback is mentioned. `now` is in seconds since 1970.
    """
    mark = mark_of(result)
    words = result.judgment.words or headline_text(result)
    first: Line = (mark, Run(f" {label} "), Run(words, mark.tone))
    tool = "" if result.tool == PERFTEST[0] else result.tool
    peer = ""
    if result.pair.peer or result.setup == Mode.SERVER.value:
        peer = f"with {result.pair.peer or 'a peer'}"
    details = " · ".join(filter(None, (result.memory, tool, peer, ago(now - result.taken_at))))
    whole: Line = (*first, Run(f" · {details}", Tone.DIM))
    return [whole] if width_of(whole) <= width else [first, (Run(f"  {details}", Tone.DIM),)]
