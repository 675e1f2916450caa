"""`gdrtop bench --list` and `--results`: the available tools, and earlier results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TextIO, TypedDict

from probes.bandwidth.model.planned_series import LeftOut, PlannedTest, Purpose
from probes.bandwidth.model.result import Result, to_json
from probes.bandwidth.model.samples import Sample
from probes.bandwidth.planning.inventory import Available, inventory, packages_of_tests
from probes.bandwidth.results.against_earlier import gbps_text, local_time
from probes.bandwidth.results.percentiles import OF_TYPE, Standing, standings
from probes.base.origin import Source
from probes.base.unknown import Maybe
from probes.facts.system import platform
from probes.host.protocol import Host
from probes.snapshot.examination import examine
from tui.bandwidth.results_store import MOST_HISTORY, MOST_RESULTS, ResultsStore
from tui.command_line.options import OutputOptions
from tui.runtime.json_values import Changed, Time, document, node_document, object_from, time_json, write_json
from tui.runtime.printing import heading, print_lines, text_width
from widgets.bandwidth.result import mark_of, words_of
from widgets.bandwidth.series import draw_inventory
from widgets.base.lines import Line, Tone, fit, line, paragraphs, section, sentence, wrapped

_PURPOSE = Annotated[Purpose, Changed(has_reasons=True)]
_TOOL = Annotated[Available, Changed(purpose=_PURPOSE, can_run=bool, missing=str)]
LeftOutObject = Annotated[LeftOut, Changed(without=("is_missed",))]
PlannedTestObject = Annotated[
    PlannedTest,
    Changed(
        only=("title", "seconds", "notes"),
        proves=str,
        not_proven=str,
        commands=Mapping[str, tuple[str, ...]],
        for_peer=str,
        limit_gbps=float | None,
        expected_gbps=float | None,
        expected_machine=str,
    ),
]
_FIGURES: dict[str, Any] = {  # one that was not measured is missing
    **dict.fromkeys(("gbps", "peak_gbps", "bus_gbps", "messages_per_second", "time_us"), float),
    **dict.fromkeys(("size_bytes", "iterations", "wrong"), int),
}
_SAMPLE = Annotated[Sample, Changed("what", "raw", **_FIGURES)]
_RESULT = Annotated[
    Result,
    Changed(
        without=("taken_at",),
        optional=("comparisons",),
        time=Time,
        gbps=float | None,
        figure=_SAMPLE | None,
        samples=tuple[_SAMPLE, ...],
        comparisons=tuple[str, ...],
    ),
]


_STANDING = Annotated[Standing, Changed(node=str, title=str, tool=str, gbps=float, text=str)]
_MOST_STANDINGS = 40  # lines


class BenchDocument(TypedDict, total=False):
    """`gdrtop bench --json, with --list, --results or --dry-run`."""

    tools: tuple[_TOOL, ...]
    machine: str
    title: str
    affected: tuple[str, ...]  # processes that a test would affect
    left_out: tuple[LeftOutObject, ...]
    seconds: float
    refused: str
    tests: tuple[PlannedTestObject, ...]
    results: Maybe[tuple[_RESULT, ...]]
    standings: tuple[_STANDING, ...]  # how the newest result of each test compares with the others
    meaning: tuple[str, ...]
    no_baseline: str
    exit_status: int
    exit_reason: str  # what decided the exit status, in words


_SERIES = ("machine", "title", "affected", "left_out")
FORMS = {
    "--list": ("tools",),
    "--results": ("results", "standings"),
    "part of a report": ("results",),
    "--dry-run": (*_SERIES, "seconds", "refused", "tests"),
    "a measurement": (*_SERIES, "results", "meaning", "no_baseline", "exit_status", "exit_reason"),
}
"""The fields that each form of the document has, and no other form's."""


def list_tools(host: Host, out: TextIO, options: OutputOptions) -> int:
    """Print every benchmark tool, installed or not, and what it shows."""
    examination = examine(host)
    available = inventory(examination, packages_of_tests(host, examination))
    if options.json:
        tools = [object_from(entry, _TOOL) for entry in available]
        node = examination.node
        write_json(node_document("bench", node, host.wall_clock(), {"tools": tools}), out)
        return 0
    print_lines([heading(examination.node), *draw_inventory(available, text_width(out))], out, options.ascii)
    return 0


def result_json(result: Result) -> dict[str, Any]:
    """Return one result; unlike a saved one, it is part of a document, and its time is as in all of them."""
    fields = to_json(result)
    del fields["schema"]
    return {"time": time_json(fields.pop("taken_at")), **fields}


def list_results(store: ResultsStore, host: Host, out: TextIO, options: OutputOptions) -> int:
    """Print earlier results, newest first, a line each; or why they cannot be read."""
    kept, unread = store.results(MOST_HISTORY), store.why_unread()
    results, compared = kept[: -MOST_RESULTS - 1 : -1], standings(kept)
    if options.json:
        saved = {
            "results": [result_json(result) for result in results],
            "standings": [
                object_from(each, _STANDING, result, text=each.words(OF_TYPE)) for result, each in compared
            ],
        }
        content = {"results": None, "unknown": {"results": unread}} if unread else saved
        name = platform.probe(host).hostname
        write_json(document("bench", name, host.origin, host.wall_clock(), content), out)
        return 0
    width = text_width(out)
    has_several_nodes = len({result.node for result in results}) > 1
    lines: list[Line] = []
    for result in results:
        node = f"{result.node}  " if has_several_nodes else ""
        text = f" {result.title} · {result.tool}: {words_of(result)}"
        lines.append(fit(line(f"{local_time(result.taken_at)}  {node}", mark_of(result), text), width))
    if unread:
        lines = wrapped(sentence(unread), width, Tone.WARNING)
    elif not results:
        why = "" if host.origin.source is Source.LIVE else " (results of a simulated node are not saved)"
        lines = wrapped(f"No results are saved yet{why}.", width)
    lines += section("The newest result of each test among all of them", _draw_standings(compared, width))
    print_lines(lines, out, options.ascii)
    return 0


def _draw_standings(compared: Sequence[tuple[Result, Standing]], width: int) -> list[Line]:
    has_several_nodes = len({result.node for result, _ in compared}) > 1
    texts = [
        f"{f'{result.node} ' if has_several_nodes else ''}{result.title} · {result.tool}:"
        f" {gbps_text(result.gbps or 0.0)}, {each.words(OF_TYPE)}"
        for result, each in compared[:_MOST_STANDINGS]
    ]
    if len(compared) > len(texts):
        texts.append(f"… and {len(compared) - len(texts)} more (--json lists all)")
    return paragraphs(texts, width, indent="  ", hanging="  ")
