"""`gdrtop bench --list` and `--results`: the available tools, and earlier results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, TextIO, TypedDict

from probes.bandwidth.model.planned_test import LeftOut, Purpose
from probes.bandwidth.model.result import Result
from probes.bandwidth.model.samples import Sample
from probes.bandwidth.planning.inventory import Available, inventory, packages_of_tests
from probes.bandwidth.results.against_earlier import local_time
from probes.bandwidth.results.result_json import to_json
from probes.base.origin import Source
from probes.base.unknown import Maybe
from probes.facts.system import platform
from probes.host.protocol import Host
from probes.snapshot.examination import examine
from tui.bandwidth.results_store import ResultsStore
from tui.runtime.json_values import (
    Changed,
    Time,
    document,
    host_name,
    object_from,
    with_time,
    write_json,
)
from tui.runtime.printing import heading, print_lines, text_width
from widgets.bandwidth.result import mark_of, words_of
from widgets.bandwidth.series import draw_inventory
from widgets.base.lines import Line, Tone, fit, line, sentence, wrapped

if TYPE_CHECKING:
    pass


class PurposeObject(Purpose):
    """What a test shows and what it does not."""

    optional = ("unknown",)
    unknown: Mapping[str, str]


class ToolObject(Available):
    """A benchmark tool, installed or not."""

    can_run: bool
    missing: str  # what it cannot do on this node


class LeftOutObject(LeftOut):
    """A test that this node cannot run."""

    without = ("is_missed",)


class PlannedTestObject(TypedDict):
    """A test that --dry-run shows."""

    title: str
    proves: str
    not_proven: str
    commands: Mapping[str, tuple[str, ...]]
    for_peer: str
    limit_gbps: float | None
    expected_gbps: float | None
    expected_machine: str
    seconds: float
    notes: tuple[str, ...]


class SampleObject(Sample):
    """A measurement."""

    is_sparse = True


class ResultObject(Result):
    """The result of a test."""

    without = ("taken_at",)
    optional = ("comparisons",)
    time: Time  # when the test began (RFC 3339)
    gbps: float | None
    comparisons: tuple[str, ...]


_RESULT = Changed(figure=SampleObject | None, samples=tuple[SampleObject, ...])


class BenchDocument(TypedDict, total=False):
    """`gdrtop bench --json, with --list, --results or --dry-run`."""

    tools: tuple[Annotated[ToolObject, Changed(purpose=PurposeObject)], ...]
    machine: str
    title: str
    affected: tuple[str, ...]  # processes that a test would affect
    left_out: tuple[LeftOutObject, ...]
    seconds: float
    refused: str
    tests: tuple[PlannedTestObject, ...]
    results: Maybe[tuple[Annotated[ResultObject, _RESULT], ...]]
    meaning: tuple[str, ...]
    no_baseline: str
    exit_status: int
    exit_reason: str  # what decided the exit status, in words


_SERIES = ("machine", "title", "affected", "left_out")
FORMS = {
    "--list": ("tools",),
    "--results": ("results",),
    "--dry-run": (*_SERIES, "seconds", "refused", "tests"),
    "a measurement": (*_SERIES, "results", "meaning", "no_baseline", "exit_status", "exit_reason"),
}
"""The fields that each form of the document has, and no other form's."""


def list_tools(host: Host, as_json: bool, out: TextIO, ascii_only: bool) -> int:
    """Print every benchmark tool, installed or not, and what it shows."""
    examination = examine(host)
    available = inventory(examination, packages_of_tests(host, examination))
    if as_json:
        tools = [object_from(entry, ToolObject) for entry in available]
        node = examination.node
        write_json(document("bench", host_name(node), node.origin, host.wall_clock(), {"tools": tools}), out)
        return 0
    print_lines([heading(examination.node), *draw_inventory(available, text_width(out))], out, ascii_only)
    return 0


def result_json(result: Result) -> dict[str, Any]:
    """Return one result; unlike a saved one, it is part of a document, and its time is as in all of them."""
    fields = to_json(result)
    del fields["schema"]
    return with_time(fields, "taken_at")


def list_results(store: ResultsStore, host: Host, as_json: bool, out: TextIO, ascii_only: bool) -> int:
    """Print earlier results, newest first, a line each; or why they cannot be read."""
    results, unread = tuple(reversed(store.results())), store.why_unread()
    if as_json:
        saved = {"results": [result_json(result) for result in results]}
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
    print_lines(lines, out, ascii_only)
    return 0
