"""Results as plain ASCII text for a ticket, with everything that a reader asks for."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence

from probes.bandwidth.model.planned_series import LeftOut
from probes.bandwidth.model.result import Result
from probes.bandwidth.results.against_earlier import changes, local_time
from probes.bandwidth.results.comparison import conclusions
from probes.queries import versions as queries
from probes.snapshot.examination import Examination
from tui.runtime.printing import print_lines
from widgets.bandwidth.result import draw_result
from widgets.bandwidth.table import draw_rows
from widgets.base.lines import Line, line, paragraphs, plain, wrapped

_WIDTH = 100
_MOST_ROWS = 40
_LIVE = "live"
_VERSIONS = ("kernel", "NVIDIA driver", "perftest", "OFED")


def versions_of(examination: Examination) -> dict[str, str]:
    """Return the versions that a reader of a ticket asks for first; unknown ones say why."""
    versions = queries.versions_of(examination)
    return {name: str(versions[name]) for name in _VERSIONS}


def ticket_text(
    results: Sequence[Result],
    hostname: str = "",
    versions: Mapping[str, str] | None = None,
    earlier: Iterable[Result] = (),
    baseline: Iterable[Result] = (),
    left_out: Sequence[LeftOut] = (),
) -> str:
    """Return the results, each with its exact commands, figure, rating and failure.

    They are compared with `earlier` and `baseline`. Without `hostname`, the node is that of the results.
    """
    lines: list[Line] = [line("gdrtop bandwidth tests")]
    first = results[0] if results else None
    node, machine = (first.node, first.machine) if first else ("", "")
    facts = {"node": hostname or node, "machine": machine, **(versions or {})}
    cells = max(map(len, facts)) + 1
    lines += [line(f"{name + ':':<{cells}} {value}") for name, value in facts.items() if value]
    origins = sorted({result.origin for result in results if result.origin != _LIVE})
    for origin in origins:
        lines += [(), line(f"SIMULATED, NOT MEASURED: {origin.upper()}")]
    earlier, baseline = tuple(earlier), tuple(baseline)
    for number, result in enumerate(results, 1):
        lines += [(), *_test(number, result, changes(result, earlier, baseline))]
    for test in left_out:
        lines += [(), *wrapped(f"skipped: {test.title}: {test.reason}", _WIDTH)]
    if meaning := conclusions(results, left_out):
        lines += [(), line("what it means"), *paragraphs(meaning, _WIDTH, indent="  ")]
    out = io.StringIO()
    print_lines(lines, out, ascii_only=True)
    return out.getvalue()


def _test(number: int, result: Result, comparisons: Sequence[str]) -> list[Line]:
    head = f"[{number}] {local_time(result.taken_at)}, {result.seconds:.0f} s, {result.setup}"
    if result.origin != _LIVE:
        head += f", SIMULATED ({result.origin})"
    lines: list[Line] = [line(head)]
    # In one line, so that it can be copied.
    lines += [line(f"  $ {command}") for command in result.commands]
    lines += [line("  ", plain(text)) for text in draw_result(result, comparisons, _WIDTH - 2)]
    rows = draw_rows(result.samples[-_MOST_ROWS:], _WIDTH - 4, result.tool.endswith("_lat"))
    return [*lines, *(line("    ", plain(row)) for row in rows)]
