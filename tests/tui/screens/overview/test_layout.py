"""The overview's rows: a larger terminal never shows fewer GPUs and NICs."""

import inspect
import itertools
import re
from dataclasses import replace
from pathlib import Path

import pytest

from probes.checks.judgment import Judgment, conclude
from probes.facts.node import probe_node
from probes.host.machine.local import LocalHost
from probes.host.protocol import Host
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.description import simulated_names
from probes.snapshot.nic_roles import roles_of
from probes.snapshot.rates import read
from probes.snapshot.verdict import Usability, assess
from probes.topology.paths import build
from tests.support.opened_screens import many_devices
from tests.support.pilot import SteppedClock
from tests.support.tiers import share, usual
from tui.runtime.reading_thread import Probed, Sampled
from tui.screens.overview import panel_screen
from tui.screens.overview.layout import arrange, left_cells
from tui.screens.overview.panels import Panels
from tui.screens.overview.state import OverviewState
from tui.screens.own_settings import PLACES
from widgets.base.lines import plain, rows_of

WIDTHS, HEIGHTS = range(80, 221, 10), range(24, 61, 2)
Sizes = tuple[list[int], list[int]]
HEAD_ROWS = 2


def unchecked(usability: Usability) -> Judgment:
    return Judgment(conclude(usability, None))


def state_of(host: Host, clock: SteppedClock) -> OverviewState:
    node = probe_node(host)
    topology = build(node)
    state = OverviewState()
    state.apply(Probed(node, topology, roles_of(node, topology)))
    for _ in range(3):
        clock.now += 1.0
        reading = read(host, node)
        state.apply(Sampled(reading, unchecked(assess(node, topology, reading)), 0.0))
    return state


def visible(state: OverviewState, width: int, height: int) -> set[str]:
    """The GPUs and NICs that are drawn in the rows that the topology has."""
    arranged = state.arrange(width, height - HEAD_ROWS)
    width = left_cells(width, arranged.is_one_column) - 3  # border and scroll bar
    lines = state.lines("topology", width, False, arranged.inside("topology"))
    return set(rows_of(lines[: arranged.inside("topology")]))


def test_every_panel_has_its_place_rows_and_drawing() -> None:
    clock = SteppedClock()
    state = state_of(SimulatedHost("hgx-h100", clock=clock), clock)
    drawn = {"topology", *re.findall(r'case "(\w+)":', inspect.getsource(Panels.draw))}
    placed = {name for names in PLACES.values() for name in names}
    assert "path" not in state.arrange(240, 150).rows  # nothing is selected
    state.select(1, [])
    arranged = {*state.arrange(240, 150).rows} | {"modules"}  # a line in another panel while all are loaded
    panels = {*panel_screen.PANELS}
    assert panels <= drawn, "add a case to Panels.draw in tui/screens/overview/panels.py"
    assert panels == placed, "PANELS in panel_screen.py and PLACES in own_settings.py differ"
    assert panels == arranged, "tui/screens/overview/layout.py gives a panel no rows on the largest screen"


def sizes_for(name: str) -> Sizes:
    """All sizes for the usual node, a quarter for another one, and other ones for the next."""
    if name == "hgx-h100":
        return [*WIDTHS], [*HEIGHTS]
    turn = simulated_names().index(name)
    return share(WIDTHS, turn, parts=2), share(HEIGHTS, turn, parts=2)


def check(state: OverviewState, sizes: Sizes) -> None:
    widths, heights = sizes
    seen = {(width, height): visible(state, width, height) for width in widths for height in heights}
    wider, higher = dict(itertools.pairwise(widths)), dict(itertools.pairwise(heights))
    for (width, height), ends in seen.items():
        for larger in ((wider.get(width), height), (width, higher.get(height))):
            assert ends <= seen.get(larger, ends), f"{width}x{height} shows more than {larger}"


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(simulated_names(), {"hgx-h100"}))
def test_a_larger_terminal_shows_no_fewer_gpus_and_nics(name: str) -> None:
    clock = SteppedClock()
    state = state_of(SimulatedHost(name, clock=clock), clock)
    check(state, sizes_for(name))
    everything = visible(state, 220, 60)
    assert visible(state, 120, 40) == everything
    if len(everything) <= 32:  # the 40 GPUs and NICs of aws-p5 scroll on smaller screens
        assert visible(state, 100, 30) == everything


def test_figures_stay_when_the_node_is_read_again() -> None:
    clock = SteppedClock()
    host = SimulatedHost("hgx-h100+rank-behind", clock=clock)
    state = state_of(host, clock)
    names = ("topology", "traffic", "rates")
    before = [list(map(plain, state.lines(name, 100, False))) for name in names]
    node = probe_node(host)
    topology = build(node)
    state.apply(Probed(node, topology, roles_of(node, topology)))
    assert [list(map(plain, state.lines(name, 100, False))) for name in names] == before


def test_the_list_of_ports_that_come_up_is_as_if_they_had_always_been_up() -> None:
    clock = SteppedClock()
    host = SimulatedHost("hgx-h100", clock=clock)
    node = probe_node(host)
    topology = build(node)
    readings = []
    for _ in range(3):
        clock.now += 1.0
        readings.append(read(host, node))

    def listed(words: list[str]) -> list[str]:
        state = OverviewState()
        state.apply(Probed(node, topology, roles_of(node, topology)))
        for reading, word in zip(readings, words, strict=True):
            now = replace(reading, port_states=dict.fromkeys(reading.port_states, word))
            state.apply(Sampled(now, unchecked(assess(node, topology, now)), 0.0))
            lines = [plain(line) for line in state.lines("topology", 60, False, 5)]
        return lines

    assert listed(["DOWN", "DOWN", "ACTIVE"]) == listed(["ACTIVE"] * 3)


def usual_needs(**changed: int) -> dict[str, int]:
    needs = dict.fromkeys(panel_screen.PANELS, 4) | {"topology": 11, "matrix": 10, "rates": 11, "findings": 2}
    return needs | {"path": 0, "modules": 0} | changed


def arranged(needs: dict[str, int], width: int, height: int) -> dict[str, int]:
    one_column = width < 120
    rows = arrange(width, height - HEAD_ROWS, one_column, needs, lambda most: min(most, 16), needs).rows
    return dict(rows)


def test_the_first_screen_has_six_panels_and_a_path_takes_the_place_of_the_traffic() -> None:
    first = {"findings", "topology", "matrix", "jobs", "gpudirect", "traffic"}
    assert arranged(usual_needs(), 120, 40).keys() == first
    assert arranged(usual_needs(findings=0), 120, 40).keys() == first - {"findings"}
    assert arranged(usual_needs(modules=3), 120, 40).keys() == first - {"traffic"} | {"modules"}
    assert arranged(usual_needs(path=9), 120, 40).keys() == first - {"traffic"} | {"path"}


def test_at_100x30_no_panel_is_cut_and_the_fix_of_a_finding_stands_there() -> None:
    needs = usual_needs(topology=10)
    healthy = arranged({**needs, "findings": 0}, 100, 30)
    assert healthy["matrix"] == needs["matrix"] + 2
    wishes = {**needs, "findings": 8}
    rows = arrange(100, 30 - HEAD_ROWS, True, needs, lambda most: min(most, 16), wishes).rows
    assert "matrix" not in rows
    assert rows["findings"] == wishes["findings"] + 2


@pytest.mark.slow
def test_a_larger_terminal_shows_no_fewer_of_many(tmp_path: Path) -> None:
    many_devices(tmp_path)
    check(state_of(LocalHost(str(tmp_path)), SteppedClock()), (share(WIDTHS, 0, 2), share(HEIGHTS, 0, 2)))


@pytest.mark.parametrize("name", usual(simulated_names(), {"hgx-h100"}))
@pytest.mark.slow
def test_the_panels_fill_the_terminal_and_no_more(name: str) -> None:
    clock = SteppedClock()
    state = state_of(SimulatedHost(name, clock=clock), clock)
    widths, heights = sizes_for(name)
    for width in widths:
        for height in heights:
            arranged = state.arrange(width, height - HEAD_ROWS)
            column, other = (*PLACES["top"], *PLACES["left"]), PLACES["right"]
            rows = sum(arranged.rows.get(panel, 0) for panel in column)
            room = height - HEAD_ROWS - 1 - len(arranged.strips)
            if arranged.is_one_column:
                rows += sum(arranged.rows.get(panel, 0) for panel in other)
            else:
                assert sum(arranged.rows.get(panel, 0) for panel in (*PLACES["top"], *other)) == room
            assert rows == room
