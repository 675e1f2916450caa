"""A sweep or the full matrix: GPU by NIC, Gb/s in each cell, with a mark and a tone for how good that is."""

from __future__ import annotations

from collections.abc import Sequence

from probes.bandwidth.model.rating import Rating
from probes.bandwidth.model.result import Ending, Result
from probes.bandwidth.results.against_earlier import latency_us
from probes.bandwidth.results.memory_path import is_as_requested
from widgets.bandwidth.result import mark_of
from widgets.base.figures import UNKNOWN_MARK
from widgets.base.lines import Line, Run, Tone, wrapped
from widgets.node.matrix import column_headings

_NOT_MEASURED = Run("·", Tone.DIM)
_HOST = "host"


def draw_matrix(
    results: Sequence[Result], width: int, gpus: Sequence[str] = (), nics: Sequence[str] = ()
) -> list[Line]:
    """Rows are GPUs by their labels, columns NICs; `gpus` and `nics` also those that were not measured.

    Where several kinds of memory were measured, each has a table of its own. More columns than fit go below.
    """
    of_pairs = [one for one in results if one.pair.nic]
    if not of_pairs:
        return wrapped("No pair of GPU and NIC was measured.", width, Tone.DIM)
    memories = list(dict.fromkeys(one.memory for one in of_pairs))
    columns = list(dict.fromkeys((*nics, *(one.pair.nic for one in of_pairs))))
    lines: list[Line] = []
    for memory in memories:
        some = {(one.pair.gpu_label or _HOST, one.pair.nic): one for one in of_pairs if one.memory == memory}
        labels = [label for label, _ in some]
        rows = list(dict.fromkeys((*(gpus if _HOST not in labels else ()), *labels)))
        if lines:
            lines.append(())
        is_latency = all(one.gbps is None and one.figure is not None for one in some.values())
        lines.append((Run(f"{memory}   {'µs' if is_latency else 'Gb/s'}", Tone.TITLE),))
        lines += _table(some, rows, columns, width)
    return [*lines, *wrapped(_legend(of_pairs), width, Tone.DIM)]


def _table(
    some: dict[tuple[str, str], Result], rows: Sequence[str], columns: Sequence[str], width: int
) -> list[Line]:
    prefix, headings = column_headings(columns)
    label = max(len(prefix), *(len(row) for row in rows))
    cell = max(6, max(len(heading) for heading in headings) + 1)
    per_block = max(1, (width - label) // cell)
    lines: list[Line] = []
    for start in range(0, len(columns), per_block):
        if lines:
            lines.append(())
        block = list(zip(columns, headings, strict=True))[start : start + per_block]
        lines.append(
            (Run(f"{prefix:<{label}}", Tone.DIM), *(Run(f"{head:>{cell}}", Tone.TITLE) for _, head in block))
        )
        for row in rows:
            cells = [_cell(some.get((row, nic)), cell) for nic, _ in block]
            lines.append((Run(f"{row:<{label}}", Tone.TITLE), *cells))
    return lines


def _cell(result: Result | None, cells: int) -> Run:
    if result is None:
        return _NOT_MEASURED._replace(text=f"{_NOT_MEASURED.text:>{cells}}")
    mark = mark_of(result)
    if result.ending is Ending.FAILED or result.figure is None:
        return mark._replace(text=f"{mark.text:>{cells}}")
    # Not by colour alone: what is below has its mark behind the figure.
    behind = mark.text if result.ending is Ending.CANCELLED or mark.text == "▲" else ""
    return mark._replace(text=f"{_figure(result) + behind:>{cells}}")


def _figure(result: Result) -> str:
    if result.gbps is None:
        us = latency_us(result.figure)
        return UNKNOWN_MARK if us is None else f"{us:.1f}"
    return f"{result.gbps:.0f}" if result.gbps >= 10 else f"{result.gbps:.1f}"


def _legend(results: Sequence[Result]) -> str:
    told = ["· not measured"]
    if any(one.judgement.verdict in (Rating.BELOW, Rating.LIKE_HOST) for one in results):
        told.append("▲ below the limit of the path")
    if not all(is_as_requested(one) for one in results):
        told.append("▲ not the memory that was requested")
    if any(one.ending is Ending.FAILED for one in results):
        told.append("✗ failed")
    if any(one.ending is Ending.CANCELLED for one in results):
        told.append("■ cancelled")
    limits = sorted({one.limit_gbps for one in results if one.limit_gbps is not None})
    if limits:
        told.append(f"at most {' or '.join(f'{one:.0f}' for one in limits)} Gb/s")
    return "   ".join(told)
