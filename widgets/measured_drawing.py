"""What was measured between a GPU and a NIC, beside their path."""

from __future__ import annotations

from probes.bandwidth.comparison import figure_words
from probes.bandwidth.result import Result
from widgets.figures import ago
from widgets.lines import Line, Run, Tone
from widgets.result_drawing import mark_of


def measured_line(result: Result, now: float) -> Line:
    """As "✓ measured 186 of 200 Gb/s, 93 % · DMA-BUF · 2 h ago"; `now` in seconds since 1970."""
    mark = mark_of(result)
    rest = " · ".join(filter(None, (result.memory, ago(now - result.taken_at))))
    words = result.judgement.words or figure_words(result)
    return (mark, Run(" measured "), Run(words, mark.tone), Run(f" · {rest}", Tone.DIM))
