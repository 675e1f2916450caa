"""A fleet of four nodes whose readings a test gives, and the app that shows it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

from textual.pilot import Pilot

from probes.base.evidence import Severity
from probes.base.origin import Origin, Source
from probes.fleet.compare import Unanswered
from probes.fleet.summary import NodeSummary
from probes.host.protocol import Host
from probes.simulation.host import SimulatedHost
from probes.snapshot.verdict import State
from tests.support.pilot import LONGEST_WAIT_SECONDS, until
from tests.support.summaries import a_summary, problem
from tui.fleet_app import FleetApp
from tui.runtime.fleet_reader import FleetReader, Progress
from tui.screens.fleet import FleetState
from widgets.base.lines_view import LinesView

ORIGIN = Origin(Source.REMOTE, "5 nodes")
LINK = problem("port-down", "An RDMA port has no link")
DRIVER = problem("nvidia-not-loaded", "The nvidia driver is not loaded", Severity.CRITICAL, "nvidia")
Found = tuple[tuple[NodeSummary, ...], tuple[Unanswered, ...]]
FIRST: Found = (
    (
        a_summary("gpu1"),
        a_summary("gpu2", State.DEGRADED, LINK),
        a_summary("gpu3", driver="550.54.15"),
        a_summary("gpu4"),
        a_summary("gpu5"),
    ),
    (),
)
SECOND: Found = (
    (
        a_summary("gpu1", State.BROKEN, DRIVER, LINK),
        a_summary("gpu2"),
        a_summary("gpu3", driver="550.54.15"),
        a_summary("gpu5"),
    ),
    (Unanswered("gpu4", "connection timed out"),),
)


class FleetOnDemand:
    """A fleet that is read when a test asks for it; its clock steps a minute with each reading."""

    def __init__(self, *readings: Found | Exception, names: tuple[str, ...] = ()) -> None:
        self._readings = list(readings)
        self.now = 1_790_000_000.0
        self.state = FleetState(lambda: self.now, names)
        self.reader = FleetReader(self.read, lambda: self.now)
        self.opened: list[str] = []
        self.hang = threading.Event()  # clear: the last node does not answer
        self.hang.set()

    def read(self, progress: Progress, take: Callable[[NodeSummary], object]) -> Found:
        found = self._readings.pop(0)
        self.now += 60.0
        progress(1, 5)
        if isinstance(found, Exception):
            raise found
        for summary in found[0][:-1]:
            take(summary)
        progress(len(found[0]) - 1, 5)
        assert self.hang.wait(LONGEST_WAIT_SECONDS)
        return found

    def open_node(self, name: str) -> Host:
        self.opened.append(name)
        return SimulatedHost("cloud-vm")

    def app(self, open_node: Callable[[str], Host] | None = None) -> FleetApp:
        return FleetApp(self.state, self.reader, open_node or self.open_node, ORIGIN, None)


async def read(pilot: Pilot[object], times: int = 1) -> None:
    """Wait for the first reading, and take `times` - 1 more."""
    for number in range(times):
        if number:
            await pilot.press("r")
        await until(pilot, lambda: has_read(pilot))  # type: ignore[arg-type]
        await pilot.pause()


def has_read(pilot: Pilot[object]) -> bool:
    """Return whether the nodes have answered and are not being read."""
    is_reading = re.search(r"[Rr]eading( …|:| the nodes)", text(pilot, "summary")) is not None
    failed = "failed" in text(pilot, "summary")
    return not is_reading and (failed or "nodes: " in text(pilot, "head"))


def text(pilot: Pilot[object], pane: str) -> str:
    """Return the lines of a pane of the screen on top."""
    view = pilot.app.screen.query_one(f"#{pane}", LinesView)
    return "\n".join("".join(run.text for run in line).rstrip() for line in view.lines)


def rows(pilot: Pilot[object]) -> list[str]:
    """Return the names of the nodes, from the top."""
    return [line.split()[0] for line in text(pilot, "nodes").splitlines()[1:]]
