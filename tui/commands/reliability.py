"""`gdrtop reliability`: which NICs and GPUs were slow, went down or had errors over weeks of jobs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TextIO, TypedDict

from probes.base.origin import Source
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, map_known
from probes.facts.node import probe_node
from probes.host.component_history import (
    Component,
    ComponentHistory,
    JobPart,
    Loss,
    Mark,
    PastJob,
    known_counts,
)
from probes.host.protocol import Host
from probes.live.reliability import mark_gone
from tui.command_line.arguments import UsageError, add_arguments, add_table_options
from tui.command_line.options import TableOptions, parsed
from tui.runtime.json_values import (
    Changed,
    Time,
    node_document,
    object_from,
    object_of,
    time_json,
    write_json,
)
from tui.runtime.open_host import open_host
from tui.runtime.printing import heading, print_lines, text_width
from widgets.base.lines import Line, sentence, wrapped
from widgets.node.reliability import draw_component, draw_history, draw_jobs, draw_rows

EXIT_STANDS_OUT, EXIT_NO_HISTORY = 1, 2
HOW = "Run gdrtop watch as a service, which keeps the history: gdrtop help watch."
AS_ROOT = "Run gdrtop reliability as root to see it."
ELSEWHERE = "Run gdrtop reliability on that node: the history is not read over a connection."


_PART = Annotated[JobPart, Changed(without=("counts",), is_slow=bool | None, events=Mapping[Mark, int])]


class _Component(TypedDict):
    id: str  # what stays: node GUID and port, or the GPU's UUID; else the PCI address
    name: str
    kind: Literal["port", "gpu"]
    bdf: str | None  # PCI address
    is_gone: bool  # the node no longer has it, so it does not count for the exit status
    slow_jobs: int  # of compared_jobs, those in which it was the slow one
    compared_jobs: int  # its last jobs in which it could be compared, at most 10
    stands_out: bool  # it was the slow one in most of at least 3 jobs
    events: Mapping[Mark, int]  # how often
    jobs: tuple[_PART, ...]


_JOB = Annotated[PastJob, Changed(began=Time, ended=Time)]


class ReliabilityDocument(TypedDict):
    """`gdrtop reliability --json`."""

    since: Maybe[Time]  # when the history begins
    until: Maybe[Time]  # when gdrtop watch wrote it last
    jobs: tuple[_JOB, ...]  # the newest ones, newest first
    components: tuple[_Component, ...]
    losses: tuple[Loss, ...]  # GPU time with findings that cost bandwidth, of all days
    exit_status: int


def add_options(parser: argparse.ArgumentParser) -> None:
    text = "show the jobs of this NIC or GPU: mlx5_5, 'GPU 3', a PCI address, a GUID or a UUID"
    add_arguments(parser, {"[COMPONENT]": text}, component={"default": ""})
    add_table_options(parser, "reliability")


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Print the history, and return the exit status."""
    return write_reliability(open_host(options), out, options.component, parsed(TableOptions, options))


def write_reliability(host: Host, out: TextIO, asked: str, options: TableOptions) -> int:
    """Print the history of a node, or of one component."""
    node = probe_node(host)
    history = map_known(host.component_history(), lambda found: mark_gone(found, node))
    chosen = () if isinstance(history, Unknown) else _chosen(history, asked)
    status = EXIT_STANDS_OUT if any(each.stands_out and not each.is_gone for each in chosen) else 0
    if isinstance(history, Unknown):
        status = EXIT_NO_HISTORY
    if options.json:
        content = _content(history, chosen, status)
        write_json(node_document("reliability", node, host.wall_clock(), content), out)
        return status
    width = text_width(out)
    if options.rows and not isinstance(history, Unknown):
        tables = [draw_jobs(history, each, sys.maxsize) for each in chosen]
        tables = tables if asked else [draw_rows(history, sys.maxsize, True)]
        print_lines([line for table in tables for line in table[1:]], out, options.ascii)
        return status
    lines: list[Line] = [heading(node)]
    if isinstance(history, Unknown):
        text = sentence(f"no history: {history.detail or history}")
        how = {Reason.NOT_THERE: HOW, Reason.NEEDS_ROOT: AS_ROOT}.get(history.reason, "")
        how = ELSEWHERE if host.origin.source is Source.REMOTE else how
        lines += [*wrapped(text, width), *(wrapped(how, width) if how else [])]
    elif asked:
        for component in chosen:
            lines += [(), *draw_component(history, component, width)]
    else:
        lines += draw_history(history, width)
    print_lines(lines, out, options.ascii)
    return status


def _chosen(history: ComponentHistory, asked: str) -> tuple[Component, ...]:
    """Return the components of this name or address; all for "". UsageError: there is none."""
    if not asked:
        return history.components
    key = asked.lower()
    found = tuple(
        component
        for component in history.components
        if key in (component.name.lower(), component.bdf.lower(), component.id.lower())
    )
    if not found:
        names = ", ".join(component.name for component in history.components)
        raise UsageError(f"the history has no component {printable(asked, 80)!r}; it has {names or 'none'}")
    return found


def _content(history: Maybe[ComponentHistory], chosen: tuple[Component, ...], status: int) -> dict[str, Any]:
    jobs = () if isinstance(history, Unknown) else history.jobs
    return object_of(
        {
            "since": map_known(history, lambda found: time_json(found.since)),
            "until": map_known(history, lambda found: time_json(found.until)),
            "jobs": [
                object_from(job, _JOB, began=time_json(job.began), ended=time_json(job.ended)) for job in jobs
            ],
            "components": list(map(_component_json, chosen)),
            "losses": () if isinstance(history, Unknown) else history.losses,
            "exit_status": status,
        }
    )


def _component_json(component: Component) -> dict[str, Any]:
    return object_from(
        component,
        _Component,
        kind="gpu" if component.is_gpu else "port",
        bdf=component.bdf or None,
        events=known_counts(component.counts),
        jobs=[object_from(part, _PART, events=known_counts(part.counts)) for part in component.parts],
    )
