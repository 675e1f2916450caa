"""Why a test failed, in words for an admin: as the catalogue explains its output, or by its exit status."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probes.bandwidth.model.samples import BY_DMABUF, BY_PEERMEM, LINE_LIMIT, Fact, Sample, clean_line
from probes.base.frozen import frozen
from probes.messages.catalogue import catalogue, explain
from probes.messages.message import Context, Found, Weight

CAUSE, SYMPTOM, FOLLOWS = 0, 1, 2
"""How much a line explains: the cause, what failed, or only that something failed before it."""
_RANKS = {Weight.CRITICAL: CAUSE, Weight.WARNING: SYMPTOM, Weight.FOLLOWS: FOLLOWS}
_LINES = 2000
_SIGNALS = {
    2: "the test was interrupted",
    9: "the test was killed",
    11: "the test crashed (segmentation fault)",
    15: "the test was terminated",
}
_MEMORY_LINES = {
    BY_PEERMEM: frozenset({"perftest-gpu-memory"}),
    BY_DMABUF: frozenset({"perftest-gpu-memory", "perftest-dmabuf"}),
}
"""The messages that show how perftest registers memory."""
# Of gdrtop's own run: it binds by numactl, and asks NCCL for IB, which then stops instead of using TCP.
_NO_BIND = "With --no-bind, gdrtop bench measures without binding."
_SETTINGS = {"NCCL_NET": "IB"}


@frozen
class Failure:
    """One thing that went wrong."""

    text: str  # sentences, the first of which says what happened; without the last full stop
    raw: str  # the line it was read from; "" if only the exit status is known
    rank: int  # CAUSE, SYMPTOM or FOLLOWS: the lower, the more it explains


Output = Sample | Fact | Failure
"""What a parser reads from a line."""


def failures_in(line: str, messages: Sequence[str], memory: str = "") -> tuple[Output, ...]:
    """Return the failure in a line, by these files of messages, as a parser returns what it reads."""
    found = catalogue(*messages).find(line[:LINE_LIMIT])
    if found is None and "NCCL WARN " not in line:
        return ()
    failure = _failure(line, found, _context(memory))
    return () if failure is None else (failure,)


def most_telling(
    lines: Sequence[str], status: int | None, messages: Sequence[str], memory: str = ""
) -> Failure | None:
    """Return the failure that explains most of a run; None if the run succeeded.

    `status` is the exit status, negative for a signal as in subprocess; None while the test runs. `memory`
    is what was requested, if known.
    """
    if len(lines) > 2 * _LINES:
        # In a long log the first error is the cause, and the last lines show how it ended.
        lines = [*lines[:_LINES], *lines[-_LINES:]]
    known = catalogue(*messages)
    read = [(line, known.find(line[:LINE_LIMIT])) for line in lines]
    context = _context(memory, (found.message.id for _, found in read if found is not None))
    # A test that succeeded may still have printed warnings. Only wrong results count.
    failures = (_failure(line, found, context) for line, found in read if status != 0 or "FAILED" in line)
    best = min(filter(None, failures), key=lambda failure: failure.rank, default=None)
    return best if best is not None or not status else _from_status(status, lines)


def _context(memory: str, beside: Iterable[str] = ()) -> Context:
    beside = _MEMORY_LINES.get(memory, frozenset()).union(beside)
    return Context(settings={**_SETTINGS, "memory": memory}, beside=beside)


def _failure(line: str, found: Found | None, context: Context) -> Failure | None:
    if "NCCL INFO " in line:
        return None
    if found is None:
        _, warns, warning = line[:LINE_LIMIT].partition("NCCL WARN ")
        return Failure(clean_line(f"NCCL warns: {warning}"), clean_line(line), SYMPTOM) if warns else None
    meaning = explain(found, context)
    rank = _RANKS.get(meaning.weight)
    if rank is None:
        return None
    title = meaning.title if meaning.title[1:2].isupper() else meaning.title[:1].lower() + meaning.title[1:]
    own = _NO_BIND if meaning.program == "numactl" or meaning.title.startswith("numactl") else ""
    text = " ".join(filter(None, (f"{title}.", meaning.cause, meaning.fix, own))).removesuffix(".")
    return Failure(text, clean_line(line), SYMPTOM if found.message.is_general and rank == CAUSE else rank)


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
        return Failure("the test exceeded its time limit", raw, SYMPTOM)
    return Failure(f"the test exited with status {status}", raw, FOLLOWS)
