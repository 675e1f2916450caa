"""The matrix of a sweep: GPUs by NICs, each cell with its Gb/s and a mark for how good they are."""

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
    """Return one table per kind of memory, with GPUs as rows and NICs as columns.

    `gpus` (labels) and `nics` also name those that were not measured. Columns that do not fit go below.
    """
    of_pairs = [result for result in results if result.pair.nic]
    if not of_pairs:
        return wrapped("No pair of GPU and NIC was measured.", width, Tone.DIM)
    memories = list(dict.fromkeys(result.memory for result in of_pairs))
    columns = list(dict.fromkeys((*nics, *(result.pair.nic for result in of_pairs))))
    lines: list[Line] = []
    for memory in memories:
        cells = {
            (result.pair.gpu_label or _HOST, result.pair.nic): result
            for result in of_pairs
            if result.memory == memory
        }
        labels = [label for label, _ in cells]
        rows = list(dict.fromkeys((*(gpus if _HOST not in labels else ()), *labels)))
        if lines:
            lines.append(())
        is_latency = all(result.gbps is None and result.figure is not None for result in cells.values())
        lines.append((Run(f"{memory}   {'µs' if is_latency else 'Gb/s'}", Tone.TITLE),))
        lines += _table(cells, rows, columns, width)
    return [*lines, *wrapped(_legend(of_pairs), width, Tone.DIM)]


def _table(
    results: dict[tuple[str, str], Result], rows: Sequence[str], columns: Sequence[str], width: int
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
            cells = [_cell(results.get((row, nic)), cell) for nic, _ in block]
            lines.append((Run(f"{row:<{label}}", Tone.TITLE), *cells))
    return lines


def _cell(result: Result | None, cells: int) -> Run:
    if result is None:
        return _NOT_MEASURED._replace(text=f"{_NOT_MEASURED.text:>{cells}}")
    mark = mark_of(result)
    if result.ending is Ending.FAILED or result.figure is None:
        return mark._replace(text=f"{mark.text:>{cells}}")
    # Not by color alone: a low figure has a mark too.
    suffix = mark.text if result.ending is Ending.CANCELED or mark.text == "▲" else ""
    return mark._replace(text=f"{_figure(result) + suffix:>{cells}}")


def _figure(result: Result) -> str:
    if result.gbps is None:
        us = latency_us(result.figure)
        return UNKNOWN_MARK if us is None else f"{us:.1f}"
    return f"{result.gbps:.0f}" if result.gbps >= 10 else f"{result.gbps:.1f}"


def _legend(results: Sequence[Result]) -> str:
    legend = ["· not measured"]
    if any(result.judgment.verdict in (Rating.BELOW, Rating.LIKE_HOST) for result in results):
        legend.append("▲ below the limit of the path")
    if not all(map(is_as_requested, results)):
        legend.append("▲ not the memory that was requested")
    if any(result.ending is Ending.FAILED for result in results):
        legend.append("✗ failed")
    if any(result.ending is Ending.CANCELED for result in results):
        legend.append("■ canceled")
    limits = sorted({result.limit_gbps for result in results if result.limit_gbps is not None})
    if limits:
        legend.append(f"at most {' or '.join(f'{limit:.0f}' for limit in limits)} Gb/s")
    return "   ".join(legend)
