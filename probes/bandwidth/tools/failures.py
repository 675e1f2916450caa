"""Why a test failed, in one sentence for an admin, from its output and its exit status."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property

from probes.bandwidth.model.samples import (
    BY_DMABUF,
    BY_PEERMEM,
    LINE_LIMIT,
    Fact,
    Sample,
    clean_line,
)
from probes.base.frozen import frozen

CAUSE, SYMPTOM, FOLLOWS = 0, 1, 2
"""How much a line explains: the cause, what failed, or only that something failed before it."""
_GPU = re.compile(r"^(?:initializing CUDA|creating CUDA Ctx|allocated GPU buffer)")
_DMABUF = re.compile(r"^using DMA-BUF for GPU buffer|^Calling ibv_reg_(?:dmabuf_mr|mr_ex with dmabuf)")
_LINES = 2000
_SIGNALS = {
    2: "the test was interrupted",
    9: "the test was killed",
    11: "the test crashed (segmentation fault)",
    15: "the test was terminated",
}


@frozen
class FailurePattern:
    """One row of a table: a line that matches means this sentence, in which {a} is the group `a`."""

    pattern: str
    rank: int  # CAUSE, SYMPTOM or FOLLOWS
    text: str
    memory: str = ""  # HOST_MEMORY, BY_PEERMEM or BY_DMABUF: only with this memory; "": with any

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The pattern, compiled when a line is first compared with it."""
        return re.compile(self.pattern)


@frozen
class Failure:
    """One thing that went wrong."""

    text: str  # one sentence
    raw: str  # the line it was read from; "" if only the exit status is known
    rank: int  # CAUSE, SYMPTOM or FOLLOWS: the lower, the more it explains


Output = Sample | Fact | Failure
"""What a parser reads from a line."""


def memory_in(lines: Iterable[str]) -> str:
    """Return the memory that perftest's lines name; "" if none does. The lines may be in any order."""
    memory = ""
    for line in lines:
        if _DMABUF.match(line):
            return BY_DMABUF
        if _GPU.match(line):
            memory = BY_PEERMEM
    return memory


def failure_in(line: str, patterns: Iterable[FailurePattern], memory: str = "") -> Failure | None:
    """Return the failure of the first pattern that matches a line, in the order of the table."""
    line = line[:LINE_LIMIT]
    for row in patterns:
        if row.memory not in ("", memory):
            continue
        match = row.compiled.search(line)
        if match:
            groups = {name: clean_line(text or "") for name, text in match.groupdict().items()}
            return Failure(row.text.format(**groups), clean_line(line), row.rank)
    return None


def failures_in(line: str, patterns: Iterable[FailurePattern], memory: str = "") -> tuple[Output, ...]:
    """Return the failure in a line as a parser returns what it reads."""
    failure = failure_in(line, patterns, memory)
    return () if failure is None else (failure,)


def most_telling(
    lines: Sequence[str], status: int | None, patterns: Sequence[FailurePattern], memory: str = ""
) -> Failure | None:
    """Return the failure that explains most of a run; None if the run succeeded.

    `status` is the exit status, negative for a signal as in subprocess; None while the test runs. `memory`
    is what was requested, if known.
    """
    if len(lines) > 2 * _LINES:
        # In a long log the first error is the cause, and the last lines show how it ended.
        lines = [*lines[:_LINES], *lines[-_LINES:]]
    memory = memory or memory_in(lines)
    if status == 0:
        # A test that succeeded may still have printed warnings. Only wrong results count.
        lines = [line for line in lines if "FAILED" in line]
    failures = filter(None, (failure_in(line, patterns, memory) for line in lines))
    best = min(failures, key=lambda failure: failure.rank, default=None)
    return best if best is not None or not status else _from_status(status, lines)


def _from_status(status: int, lines: Sequence[str]) -> Failure:
    signal = -status if status < 0 else status - 128
    raw = next((clean_line(line) for line in reversed(lines) if line.strip()), "")
    if signal in _SIGNALS:
        return Failure(_SIGNALS[signal], raw, SYMPTOM)
    if status == 127:
        return Failure("the program was not found", raw, CAUSE)
    if status == 126:
        return Failure("the program is not executable", raw, CAUSE)
    if status == 124:
        return Failure("the test took longer than its time limit", raw, SYMPTOM)
    return Failure(f"the test ended with status {status}", raw, FOLLOWS)
