"""What was measured between a GPU and a NIC, beside their path."""

from __future__ import annotations

from probes.bandwidth.model.request import Mode
from probes.bandwidth.model.result import Result
from probes.bandwidth.results.against_earlier import headline_text
from probes.facts.system.tool_names import PERFTEST
from widgets.bandwidth.result import mark_of
from widgets.base.figures import ago, short
from widgets.base.lines import Line, Run, Tone, width_of


def short_measured(result: Result) -> Run:
    """As "✓387G", the unit being Gb/s as with the NICs' rates; nothing where no bandwidth was measured."""
    mark = mark_of(result)
    return mark._replace(text="" if result.gbps is None else f"{mark.text}{short(result.gbps)}G")


def draw_measured(result: Result, now: float, width: int, label: str = "measured") -> list[Line]:
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
