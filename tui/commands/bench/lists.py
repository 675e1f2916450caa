"""`gdrtop bench --list` and `--results`: what can be measured here, and what was."""

from __future__ import annotations

from typing import TextIO

from probes.bandwidth.planning.inventory import inventory, packages_of_tests
from probes.bandwidth.results.against_earlier import local_time
from probes.bandwidth.results.result_json import to_json
from probes.base.origin import Source
from probes.facts.system import platform
from probes.host.protocol import Host
from probes.snapshot.examination import examine
from tui.bandwidth.session import ResultsStore
from tui.commands.json_values import document, host_name, plain_value, write_json
from tui.runtime.printing import heading, print_lines, text_width
from widgets.bandwidth.result import mark_of, words_of
from widgets.bandwidth.series import draw_inventory
from widgets.base.lines import Line, Tone, fit, line, sentence, wrapped


def list_tools(host: Host, as_json: bool, out: TextIO, ascii_only: bool) -> int:
    """Every tool that measures: here or missing, and what it proves."""
    examination = examine(host)
    available = inventory(examination, packages_of_tests(host, examination))
    if as_json:
        tools = [{**plain_value(one), "can_run": one.can_run, "lacks": one.lacks} for one in available]
        node = examination.node
        write_json(document("bench", host_name(node), node.origin, host.wall_clock(), {"tools": tools}), out)
        return 0
    lines = [heading(examination.node), *draw_inventory(available, text_width(out))]
    print_lines(lines, out, ascii_only)
    return 0


def list_results(store: ResultsStore, host: Host, as_json: bool, out: TextIO, ascii_only: bool) -> int:
    """Earlier results, the newest first, a line each; where they cannot be read, why."""
    results, unread = tuple(reversed(store.results())), store.why_unread()
    if as_json:
        saved = {"results": [to_json(one) for one in results]}
        content = {"results": None, "unknown": {"results": unread}} if unread else saved
        name = platform.probe(host).hostname
        write_json(document("bench", name, host.origin, host.wall_clock(), content), out)
        return 0
    width = text_width(out)
    lines: list[Line] = []
    for one in results:
        node = f"{one.node}  " if len({result.node for result in results}) > 1 else ""
        told = f" {one.title} · {one.tool}: {words_of(one)}"
        lines.append(fit(line(f"{local_time(one.taken_at)}  {node}", mark_of(one), told), width))
    if unread:
        lines = wrapped(sentence(unread), width, Tone.WARNING)
    elif not results:
        why = "" if host.origin.source is Source.LIVE else "; those of a simulated node are not kept"
        lines = wrapped(f"No results are kept yet{why}.", width)
    print_lines(lines, out, ascii_only)
    return 0
