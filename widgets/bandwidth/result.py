"""One result: how good it is, why, by which memory and path, and why it failed where it did."""

from __future__ import annotations

from collections.abc import Sequence

from probes.bandwidth.model.rating import Rating
from probes.bandwidth.model.request import Mode
from probes.bandwidth.model.result import Ending, Result
from probes.bandwidth.results.against_earlier import gbps_text, headline_text, latency_us
from probes.bandwidth.results.memory_path import (
    facts_about,
    is_as_requested,
    is_measured,
    memory_used,
    mismatch_evidence,
    nic_routes,
)
from probes.bandwidth.tools.samples import BY_DMABUF, BY_PEERMEM, HOST_MEMORY, About
from probes.bandwidth.tools.tool import Purpose
from probes.facts.system.tool_names import GDRCOPY, NCCL_TESTS, PERFTEST, SANITY
from widgets.bandwidth.series import draw_purpose
from widgets.base.figures import ago, binary_size, short
from widgets.base.lines import Line, Run, Tone, width_of, wrapped

_MARKS = {
    Rating.NEAR: Run("✓", Tone.GOOD),
    Rating.BELOW: Run("▲", Tone.WARNING),
    Rating.LIKE_HOST: Run("▲", Tone.WARNING),
    Rating.UNKNOWN: Run("·", Tone.PLAIN),
}
_MOST_ROUTES = 4


def mark_of(result: Result) -> Run:
    """`✓` near the line or passed, `▲` below or of other memory than asked, `·` not judged, `✗`, `■`."""
    if result.ending is Ending.FAILED:
        return Run("✗", Tone.BAD)
    if result.ending is Ending.CANCELLED:
        return Run("■", Tone.DIM)
    if not is_as_requested(result):
        return _MARKS[Rating.BELOW]
    return Run("✓", Tone.GOOD) if result.tool == SANITY else _MARKS[result.judgement.verdict]


def words_of(result: Result) -> str:
    """The result in a few words: "186 of 200 Gb/s, 93 %", "failed"."""
    if result.ending is Ending.FAILED:
        return "failed"
    if result.ending is Ending.CANCELLED:
        figure = headline_text(result)
        return f"cancelled ({figure} so far)" if figure else "cancelled"
    if result.tool == SANITY:
        return _sanity(result)
    if result.figure is None:
        return "nothing was measured"
    size = (
        ""
        if result.figure.size_bytes is None
        else f" with messages of {binary_size(result.figure.size_bytes)}"
    )
    if result.tool in NCCL_TESTS:
        other = "" if is_as_requested(result) else f": {memory_used(result)}"
        return f"bus bandwidth {headline_text(result)}{size}{other}"
    if result.gbps is None:
        return _latency(result, size)
    if result.tool in GDRCOPY:
        return " · ".join(
            f"{one.what} {gbps_text(one.gbps)}" for one in result.samples if one.gbps is not None
        )
    words = result.judgement.words or headline_text(result)
    return words if is_as_requested(result) else f"{words}: {memory_used(result)}, not {result.memory}"


def draw_result(
    result: Result, comparisons: Sequence[str], width: int, purpose: Purpose | None = None
) -> list[Line]:
    """Title and verdict, then why, how memory was reached, the comparisons, and what it shows."""
    mark = mark_of(result)
    lines: list[Line] = wrapped(result.title, width, Tone.TITLE)
    first, *more = wrapped(words_of(result), width - 2, Tone.PLAIN) or [()]
    lines.append((mark, Run(" "), *(run._replace(tone=mark.tone) for run in first)))
    lines += [(Run("  "), *one) for one in more]
    if result.ending is Ending.FAILED:
        lines += _failure(result, width)
    else:
        lines += wrapped(result.trouble, width, Tone.BAD, "  ") if result.trouble else []
        lines += _reasons(result, width)
    for told in comparisons:
        lines += wrapped(told, width, Tone.PLAIN, "  ")
    if purpose is not None and is_measured(result):
        lines += draw_purpose(purpose, width, "  ")
    return lines


def _failure(result: Result, width: int) -> list[Line]:
    lines = wrapped(result.trouble or "the tool gave no reason", width, Tone.BAD, "  ")
    if result.trouble_raw:
        lines += wrapped(f"its output: {result.trouble_raw}", width, Tone.DIM, "  ")
    return lines


def _reasons(result: Result, width: int) -> list[Line]:
    lines: list[Line] = []
    is_judged = result.gbps is not None and result.tool not in (*GDRCOPY, *NCCL_TESTS)
    if is_judged and result.judgement.why:
        lines += wrapped(result.judgement.why, width, Tone.PLAIN, "  ")
    for told in memory_lines(result):
        lines += wrapped(told, width, Tone.DIM, "  ")
    return lines


def memory_lines(result: Result) -> list[str]:
    """Whose memory it was and how the NIC got at it, as the tool itself told it."""
    lines = []
    registered = facts_about(result, About.REGISTERED)
    if not is_as_requested(result):
        lines.append(mismatch_evidence(result))
    elif registered:
        lines.append(f"the tool reports: registered by {', '.join(registered)}")
    elif result.memory in (BY_DMABUF, BY_PEERMEM):
        lines.append(f"{result.memory} was requested; the tool did not report how the memory was registered")
    elif result.memory == HOST_MEMORY:
        lines.append("host memory: says nothing about the GPU")
    routes = facts_about(result, About.ROUTE)
    if routes:
        more = f" and {len(routes) - _MOST_ROUTES} more" if len(routes) > _MOST_ROUTES else ""
        lines.append(f"NCCL used {', '.join(routes[:_MOST_ROUTES])}{more}")
        if is_as_requested(result):
            lines += _gdrdma(nic_routes(result))
    return lines


def _gdrdma(routes: Sequence[str]) -> list[str]:
    without = [one for one in routes if "/GDRDMA" not in one]
    if not routes:
        return []
    if not without:
        return ["GDRDMA on every channel: the NICs accessed GPU memory directly"]
    if len(without) == len(routes):
        return ["no GDRDMA: NCCL copied through host memory"]
    return [
        f"GDRDMA on some channels; through host memory: {', '.join(without[:_MOST_ROUTES])}"
        " (NCCL sends by GDRDMA only where NCCL_NET_GDR_READ allows it)"
    ]


def _latency(result: Result, size: str) -> str:
    assert result.figure is not None
    times = {one.of: one.microseconds for one in result.figure.latencies}
    us = latency_us(result.figure)
    if us is None:
        return "nothing was measured"
    tail = next((f", 99 % within {times[of]:.2f} µs" for of in ("99 %",) if of in times), "")
    return f"{us:.2f} µs{size}{tail}"


def _sanity(result: Result) -> str:
    """Counts come in the order in which gdrcopy prints them; names of what failed have no number."""
    counts = {one.about: one.value for one in result.facts if one.value.isdecimal()}
    total, passed = counts.get(About.TOTAL, "?"), counts.get(About.PASSED, "?")
    waived = counts.get(About.WAIVED, "0")
    told = f"passed: {passed} of {total} tests of CPU access to GPU memory"
    return told if waived == "0" else f"{told}, {waived} waived"


# Earlier results


def short_result(result: Result) -> Run:
    """As "✓387G", the unit being Gb/s as with the NICs' rates; nothing where no bandwidth was measured."""
    mark = mark_of(result)
    return mark._replace(text="" if result.gbps is None else f"{mark.text}{short(result.gbps)}G")


def draw_last_result(result: Result, now: float, width: int, label: str = "measured") -> list[Line]:
    """As "✓ measured 186 of 200 Gb/s, 93 % · DMA-BUF · 2 h ago", in two lines where one is too short.

    It is ib_write_bw in loopback where nothing else is said. `now` is in seconds since 1970.
    """
    mark = mark_of(result)
    words = result.judgement.words or headline_text(result)
    head: Line = (mark, Run(f" {label} "), Run(words, mark.tone))
    rest = " · ".join(filter(None, (result.memory, *_otherwise(result), ago(now - result.taken_at))))
    whole: Line = (*head, Run(f" · {rest}", Tone.DIM))
    return [whole] if width_of(whole) <= width else [head, (Run(f"  {rest}", Tone.DIM),)]


def _otherwise(result: Result) -> list[str]:
    """What was measured otherwise than gdrtop does unasked."""
    told = [] if result.tool == PERFTEST[0] else [result.tool]
    if result.pair.peer:
        told.append(f"with {result.pair.peer}")
    elif result.setup == Mode.SERVER.value:
        told.append("with a peer")
    return told
