"""`gdrtop fleet watch`: the nodes on a screen, and the dashboard of the selected one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, TextIO

from probes.base.frozen import frozen
from probes.base.origin import Origin, Source
from probes.base.text import plural, printable
from probes.fleet.compare import Unanswered
from probes.fleet.summary import NodeSummary
from probes.host.protocol import Host
from tui import dashboard
from tui.command_line.arguments import UsageError
from tui.commands.fleet.check import Judged, add_reading_options, judge_simulated, read_fleet
from tui.commands.fleet.nodes import demo_fleet, named_nodes, names_nodes, targets
from tui.commands.fleet.saved_nodes import judging_processes, read_directory, with_own_names
from tui.runtime.open_host import NoSuchHost, connect, open_recording, open_simulated

if TYPE_CHECKING:
    from probes.host.remote.fan_out import FanOut
    from tui.fleet_app import FleetApp, NodeApp, OpenedNode
    from tui.runtime.fleet_reader import Found, Progress, Read

_STOP_SECONDS = 2.0  # to end what a reading has started


def add_options(parser: argparse.ArgumentParser) -> None:
    add_reading_options(parser)


@frozen
class WatchedFleet:
    """Where the nodes are from, and how they are read and opened."""

    origin: Origin
    read: Read
    open_node: Callable[[str], Host]  # raises NoSuchHost
    is_live: bool = True  # False: they change only with their files
    stop: Callable[[], object] = lambda: None  # what a running reading has started
    names: tuple[str, ...] = ()  # known before they answer


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Show the table until the user quits, and return the exit status."""
    del out
    if refusal := dashboard.refusal():
        print(f"gdrtop: {refusal}; for text, use gdrtop fleet check", file=sys.stderr)
        return 3
    ascii_only = dashboard.prepare(options.ascii, options.color)
    with judging_processes() as executor:  # before any thread starts
        return _show(watched_fleet(options, executor), options, ascii_only)


def watched_fleet(options: argparse.Namespace, executor: Executor) -> WatchedFleet:
    """Return the fleet that the options name; UsageError: they name none, or two."""
    if options.saved:
        if options.demo is not None or names_nodes(options):
            raise UsageError("--from shows saved nodes; it cannot be used with --demo or names of nodes")
        saved = _SavedFleet(options, executor)
        origin = Origin(Source.RECORDED, printable(options.saved, 200))
        return WatchedFleet(origin, saved.read, saved.open_node, is_live=False)
    if options.demo is not None:
        simulated = demo_fleet(options.demo)
        seeds = {name: options.seed + number for number, name in enumerate(simulated)}
        for label in set(simulated.values()):
            open_simulated(label)  # before the screen, where a wrong name is printed

        def read_simulated(
            progress: Progress, found: Found
        ) -> tuple[tuple[NodeSummary, ...], tuple[Unanswered, ...]]:
            summaries: list[NodeSummary] = []
            for summary in executor.map(judge_simulated, simulated, simulated.values(), seeds.values()):
                summaries.append(summary)
                found(summary)
                progress(len(summaries), len(simulated))
            return tuple(summaries), ()

        return WatchedFleet(
            Origin(Source.SIMULATED, plural(len(simulated), "node")),
            read_simulated,
            lambda name: open_simulated(simulated[name], seeds[name]),
            names=tuple(simulated),
        )
    names = named_nodes(options)
    target = dict(zip(names, targets(options, names), strict=True))
    running: list[FanOut[Judged]] = []

    def begun(fan_out: FanOut[Judged]) -> None:
        running[:] = [fan_out]

    def stop() -> None:
        for fan_out in running:
            fan_out.stop()

    def read(progress: Progress, found: Found) -> tuple[tuple[NodeSummary, ...], tuple[Unanswered, ...]]:
        judged, unanswered = read_fleet(options, names, progress, executor, begun, found=found)
        return tuple(each.summary for each in judged), unanswered

    return WatchedFleet(
        Origin(Source.REMOTE, plural(len(names), "node")),
        read,
        lambda name: connect(target[name]),
        stop=stop,
        names=names,
    )


class _SavedFleet:
    """The files of a directory, as they were read last."""

    def __init__(self, options: argparse.Namespace, executor: Executor) -> None:
        self._options, self._executor = options, executor
        self._recordings: dict[str, str] = {}  # by node

    def read(
        self, progress: Progress, found: Found
    ) -> tuple[tuple[NodeSummary, ...], tuple[Unanswered, ...]]:
        """Judge all files; which nodes they are about is known at the end."""
        del found
        sides, unanswered = read_directory(self._options.saved, self._options, progress, self._executor)
        summaries = with_own_names(sides)
        paths = [side.recording for side in sides for _ in side.summaries]
        self._recordings = {node.name: path for node, path in zip(summaries, paths, strict=True)}
        return summaries, unanswered

    def open_node(self, name: str) -> Host:
        """Open the recording of a node."""
        path = self._recordings.get(name)
        if not path:
            raise NoSuchHost(f"there is no recording of {name}; only a recording has a dashboard")
        chosen = argparse.Namespace(**{**vars(self._options), "replay": path, "root": "/", "host": ""})
        return open_recording(chosen)


def _show(fleet: WatchedFleet, options: argparse.Namespace, ascii_only: bool) -> int:
    """Show the table and the dashboards of nodes in turn, each as an app that has the terminal alone."""
    from tui.fleet_app import INTERVAL_SECONDS, FleetApp
    from tui.runtime.fleet_reader import FleetReader
    from tui.runtime.memory import collect_garbage_rarely
    from tui.screens.fleet import FleetState

    collect_garbage_rarely()
    state, reader = FleetState(names=fleet.names), FleetReader(fleet.read)
    interval = INTERVAL_SECONDS if fleet.is_live else None

    def table() -> FleetApp:
        return FleetApp(state, reader, fleet.open_node, fleet.origin, interval, ascii_only)

    try:
        return _alternate(table, options, ascii_only)
    finally:
        fleet.stop()
        reader.wait(_STOP_SECONDS)


def _alternate(table: Callable[[], FleetApp], options: argparse.Namespace, ascii_only: bool) -> int:
    """Show the table, then the dashboard of a node, and so on; return the last exit status."""
    while True:
        app = table()
        status = dashboard.run_fleet(app)
        if app.return_value is None or status:
            return status
        node = node_app(app.return_value, options, ascii_only)
        try:
            status = dashboard.run(node)
        finally:
            _close(app.return_value.host)
        if not node.goes_back:
            return status


def _close(host: Host) -> None:
    """End the connection to a node, if it has one."""
    from probes.host.remote.remote_host import RemoteHost

    if isinstance(host, RemoteHost):
        host.close()


def node_app(node: OpenedNode, options: argparse.Namespace, ascii_only: bool = False) -> NodeApp:
    """Return the dashboard of a node: live, simulated or recorded."""
    from probes.recording.replay_host import ReplayHost
    from tui.fleet_app import NodeApp
    from tui.runtime.replay_source import ReplaySource

    host = node.host
    replay = ReplaySource(host) if isinstance(host, ReplayHost) else None
    return NodeApp(lambda: host, host.origin, options.interval, replay, options.read_only, ascii_only)
