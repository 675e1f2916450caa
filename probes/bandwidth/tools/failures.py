"""Why a test failed, in one sentence for an admin, from the lines that it printed and its exit status."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from probes.bandwidth.tools.failure_patterns import (
    CAUSE,
    CM_EVENTS,
    COMPLETION_STATUS,
    FOLLOWS,
    MR_ERRORS,
    MR_OLD,
    SYMPTOM,
    TEXTS,
)
from probes.bandwidth.tools.samples import LINE_LIMIT, Fact, Sample, shown

_MR = re.compile(r"Couldn't allocate MR(?: with error=(?P<errno>\d{1,4}))?")
_STATUS = re.compile(r"Failed status (?P<status>\d{1,3}):")
_CM_EVENT = re.compile(r"Unexpected CM event(?: bl blka)? (?P<event>\d{1,3})")
_GPU = re.compile(r"^(?:initializing CUDA|creating CUDA Ctx|allocated GPU buffer)")
_DMABUF = re.compile(r"^using DMA-BUF for GPU buffer|^Calling ibv_reg_(?:dmabuf_mr|mr_ex with dmabuf)")
_PATTERNS = tuple((re.compile(pattern), rank, told) for pattern, rank, told in TEXTS)
_LINES = 2000
_SIGNALS = {
    2: "it was interrupted",
    9: "it was killed",
    11: "it crashed (segmentation fault)",
    15: "it was ended",
}


@dataclass(frozen=True)
class Failure:
    """One thing that went wrong."""

    told: str  # one sentence
    raw: str  # the line that says so; "" where only the exit status does
    rank: int  # CAUSE, SYMPTOM or FOLLOWS of trouble_texts: the lower, the more it tells


Output = Sample | Fact | Failure
"""What a line of a tool tells."""


@dataclass(frozen=True)
class Memory:
    """Whose memory a test uses, and how the NIC gets at it; None: not known."""

    gpu: bool | None = None
    dmabuf: bool | None = None


def memory_told(lines: Iterable[str]) -> Memory:
    """What the lines of perftest say about it, in whatever order stdout and stderr came."""
    gpu = dmabuf = None
    for line in lines:
        gpu = gpu or bool(_GPU.match(line)) or None
        dmabuf = dmabuf or bool(_DMABUF.match(line)) or None
    return Memory(gpu or dmabuf, dmabuf)


def failure_in(line: str, memory: Memory | None = None) -> Failure | None:
    """What a line tells of a failure; None for a line that tells of none."""
    line = line[:LINE_LIMIT]
    match = _MR.search(line)
    if match:
        return _of_registration(match["errno"], memory or Memory(), line)
    match = _STATUS.search(line)
    if match:
        status = int(match["status"])
        told = COMPLETION_STATUS.get(status, f"a message was not delivered (ibv_wc_status {status})")
        return Failure(told, shown(line), FOLLOWS if status == 5 else CAUSE)
    match = _CM_EVENT.search(line)
    if match:
        event = int(match["event"])
        told = CM_EVENTS.get(event, f"the connection by rdma_cm failed (event {event})")
        return Failure(told, shown(line), CAUSE)
    for pattern, rank, told in _PATTERNS:
        match = pattern.search(line)
        if match:
            words = {name: shown(word or "") for name, word in match.groupdict().items()}
            return Failure(told.format(**words), shown(line), rank)
    return None


def failures_in(line: str, memory: Memory | None = None) -> tuple[Output, ...]:
    """What a line tells of a failure, as parsers give what lines tell."""
    trouble = failure_in(line, memory)
    return () if trouble is None else (trouble,)


def explain(lines: Iterable[str], status: int | None, memory: Memory | None = None) -> Failure | None:
    """The most telling trouble of a run that has ended; None where it ended well.

    `status` is the exit status, negative for a signal as subprocess gives it; None while the test runs.
    `memory` is what was asked for, where the caller knows.
    """
    all_lines = list(lines)
    # Of a long log the first error is the cause and the last lines tell how it ended.
    last = all_lines if len(all_lines) <= 2 * _LINES else all_lines[:_LINES] + all_lines[-_LINES:]
    told = memory_told(last)
    if memory is not None:
        told = Memory(
            told.gpu if memory.gpu is None else memory.gpu,
            told.dmabuf if memory.dmabuf is None else memory.dmabuf,
        )
    best: Failure | None = None
    if status == 0:
        # A test that ended well may still have warned; only what was measured wrong counts.
        last = [line for line in last if "FAILED" in line]
    for line in last:
        trouble = failure_in(line, told)
        if trouble is not None and (best is None or trouble.rank < best.rank):
            best = trouble
    return best if best is not None or not status else _of_status(status, last)


def _of_registration(errno: str | None, memory: Memory, line: str) -> Failure:
    if memory.dmabuf:
        place = 1
    elif memory.gpu:
        place = 0
    elif memory.gpu is False:
        place = 2
    else:
        place = None
    texts = MR_OLD if errno is None else MR_ERRORS.get(int(errno))
    if texts is None:
        return Failure(f"the memory could not be registered (errno {errno})", shown(line), CAUSE)
    if place is not None:
        return Failure(texts[place], shown(line), CAUSE)
    return Failure(f"with GPU memory: {texts[0]}; with host memory: {texts[2]}", shown(line), CAUSE)


def _of_status(status: int, lines: list[str]) -> Failure:
    signal = -status if status < 0 else status - 128
    raw = next((shown(line) for line in reversed(lines) if line.strip()), "")
    if signal in _SIGNALS:
        return Failure(_SIGNALS[signal], raw, SYMPTOM)
    if status == 127:
        return Failure("the program was not found", raw, CAUSE)
    if status == 126:
        return Failure("the program cannot be run: it is not executable", raw, CAUSE)
    if status == 124:
        return Failure("it took longer than its time limit", raw, SYMPTOM)
    return Failure(f"it ended with status {status}", raw, FOLLOWS)
