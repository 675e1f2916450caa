"""The mouse on the overview: a click on any cell selects what is drawn there."""

import re
from collections.abc import Iterator

import pytest
from textual import events
from textual.pilot import Pilot

from probes.facts.node import probe_node
from probes.simulation.host import SimulatedHost
from probes.topology.paths import build
from tests.support.pilot import SteppedClock, examined, overview, settled, shown, stepped_app
from widgets.base.lines_view import LinesView
from widgets.node.matrix import pair_id

NAME = re.compile(r"\b(GPU\d+|mlx5_\d+)\b")
LISTS = ("findings", "rates")
Cell = tuple[str, int, int, str, str]  # panel, x, y, the row's text, what a click there would pick


def cells(pilot: Pilot[None]) -> Iterator[Cell]:
    """Every cell of the lines that are visible."""
    for view in overview(pilot).query(LinesView):
        texts = ["".join(run.text for run in line) for line in view.lines]
        for y in range(view.size.height if view.display else 0):
            row = y + view.scroll_offset.y
            text = texts[row] if row < len(texts) else ""
            for x in range(view.room):
                yield view.id or "", x, y, text, view.id_at(x, y)


def drawn_in_boxes(text: str, x: int) -> str:
    """The name whose figures are at this cell of the topology: in the same box, at or left of it."""
    start = text.rfind("│", 0, x + 1) + 1
    end = text.find("│", x)
    names = list(NAME.finditer(text, start, end if end >= 0 else len(text)))
    left = [found.group() for found in names if found.start() <= x]
    return left[-1] if left else names[0].group() if names else ""


def drawn_in_matrix(rows: list[str], text: str, x: int) -> tuple[str, str]:
    """The GPU and the NIC of a cell of the matrix, whose figure is behind its word."""
    row = NAME.match(text)
    starts = [(found.start(), f"mlx5_{found.group()}") for found in re.finditer(r"(?<= )\d+", rows[0])]
    column = [name for start, name in starts if start - 1 <= x < len(text)]
    return row.group() if row else "", column[-1] if column else ""


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)], ids=str)
async def test_every_cell_selects_what_is_drawn_there(size: tuple[int, int]) -> None:
    clock = SteppedClock()
    host = SimulatedHost("hgx-h100+port-down", clock=clock)
    topology = build(probe_node(host))
    ids = {end.label: end.id for end in (*topology.gpus, *topology.nics)}
    seen: set[str] = set()
    async with stepped_app(host).run_test(size=size) as pilot:
        await examined(pilot, clock)
        matrix = shown(pilot, "matrix").splitlines()
        for panel, x, y, text, picked in cells(pilot):
            at = f"{panel} {x},{y} of {text!r}"
            if panel == "topology":
                wanted = ids.get(drawn_in_boxes(text, x), "")
                is_blank = text[x : x + 1].strip(" │┌┐└┘╭╮╰╯─") == ""
                assert picked == wanted or (is_blank and not picked), at
            elif panel == "matrix":
                gpu, nic = drawn_in_matrix(matrix, text, x)
                if gpu and x < len(text):
                    assert picked == (pair_id(ids[gpu], ids[nic]) if nic else ids[gpu]), at
                elif text.rstrip() == matrix[0]:
                    assert picked == ids.get(nic, ""), at
                else:
                    assert not picked, at
            elif panel in LISTS:
                name = NAME.match(text)
                assert bool(picked) == text.startswith(("✗", "▲", "mlx5_", "  ")), at
                assert panel == "findings" or picked == (ids[name.group()] if name else ""), at
            elif panel == "path" and picked:  # a row of the list of best NICs
                names = NAME.findall(text)
                assert picked == pair_id(*(ids[name] for name in names)), at
            else:
                assert not picked, at
            seen.update(picked.split("\n"))
        assert seen >= set(ids.values())


@pytest.mark.slow
async def test_clicks_on_figures_select_their_own_device_and_one_on_the_matrix_selects_the_pair() -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100", clock=clock)).run_test(size=(120, 40)) as pilot:
        await examined(pilot, clock)
        for name, words in (("GPU0", "Nearest NICs of GPU0"), ("mlx5_2", "mlx5_2 is the best NIC")):
            rows = shown(pilot, "topology").splitlines()
            y = next(number for number, row in enumerate(rows) if f" {name} " in row)
            x = rows[y].index("↑", rows[y].index(f" {name} "))
            await pilot.click("#topology", offset=(x + 1, y + 1))
            await settled(pilot)
            assert words in shown(pilot, "path")
        heading, *rows = shown(pilot, "matrix").splitlines()
        y = next(number for number, row in enumerate(rows) if row.startswith("GPU1 "))
        await pilot.click("#matrix", offset=(heading.index(" 6") + 2, y + 2))
        await settled(pilot)
        assert "GPU1 → mlx5_6  SYS" in shown(pilot, "path")


async def test_the_wheel_scrolls_the_panel_under_the_mouse() -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("aws-p5", clock=clock)).run_test(size=(80, 24)) as pilot:
        await examined(pilot, clock)
        topology = overview(pilot).query_one("#topology", LinesView)
        assert topology.max_scroll_y > 0
        x, y = topology.region.x + 5, topology.region.y + 3
        pilot.app.post_message(events.MouseScrollDown(None, x, y, 0, 1, 0, False, False, False, x, y))
        await settled(pilot)
        assert topology.scroll_offset.y > 0
