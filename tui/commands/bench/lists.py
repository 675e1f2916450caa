"""`gdrtop bench --list` and `--results`: the available tools, and earlier results."""

from __future__ import annotations

from typing import Any, TextIO

from probes.bandwidth.model.result import Result
from probes.bandwidth.planning.inventory import inventory, packages_of_tests
from probes.bandwidth.results.against_earlier import local_time
from probes.bandwidth.results.result_json import to_json
from probes.base.origin import Source
from probes.facts.system import platform
from probes.host.protocol import Host
from probes.snapshot.examination import examine
from tui.bandwidth.results_store import ResultsStore
from tui.command_line.arguments import OutputOptions
from tui.runtime.json_values import document, host_name, plain_value, with_time, write_json
from tui.runtime.printing import heading, print_lines, text_width
from widgets.bandwidth.result import mark_of, words_of
from widgets.bandwidth.series import draw_inventory
from widgets.base.lines import Line, Tone, fit, line, sentence, wrapped


def list_tools(host: Host, out: TextIO, options: OutputOptions) -> int:
    """Print every benchmark tool, installed or not, and what it shows."""
    examination = examine(host)
    available = inventory(examination, packages_of_tests(host, examination))
    if options.json:
        tools = [
            {**plain_value(entry), "can_run": entry.can_run, "missing": entry.missing} for entry in available
        ]
        node = examination.node
        write_json(document("bench", host_name(node), node.origin, host.wall_clock(), {"tools": tools}), out)
        return 0
    print_lines([heading(examination.node), *draw_inventory(available, text_width(out))], out, options.ascii)
    return 0


def result_json(result: Result) -> dict[str, Any]:
    """Return one result; unlike a saved one, it is part of a document, and its time is as in all of them."""
    fields = to_json(result)
    del fields["schema"]
    return with_time(fields, "taken_at")


def list_results(store: ResultsStore, host: Host, out: TextIO, options: OutputOptions) -> int:
    """Print earlier results, newest first, a line each; or why they cannot be read."""
    results, unread = tuple(reversed(store.results())), store.why_unread()
    if options.json:
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
    print_lines(lines, out, options.ascii)
    return 0
