"""The drawings: right at every width, and nothing of the node left out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.node import Node, probe_node
from probes.simulation import SimulatedHost, simulated_names
from probes.topology import Topology, build
from probes.unknown import Reason, Unknown
from widgets import figures, ladder_drawing, matrix_drawing, topology_drawing
from widgets.boxes import columns_that_fit, frame
from widgets.lines import Line, Run, fit, line, plain, rows_of, width_of, wrapped
from widgets.topology_drawing import Lit


@pytest.fixture(params=simulated_names(), scope="module")
def node(request: pytest.FixtureRequest) -> Node:
    return probe_node(SimulatedHost(request.param))


@pytest.fixture
def topology(node: Node) -> Topology:
    return build(node)


@pytest.mark.parametrize("width", [60, 72, 118, 200])
def test_boxes_show_every_gpu_and_nic_and_keep_their_width(
    node: Node, topology: Topology, width: int
) -> None:
    lines = topology_drawing.draw(node, topology, width)
    assert max(width_of(of) for of in lines) <= width
    assert set(rows_of(lines)) == {end.id for end in (*topology.gpus, *topology.nics)}


@pytest.mark.parametrize("width", [50, 78])
def test_the_list_shows_every_gpu_and_nic(node: Node, topology: Topology, width: int) -> None:
    lines = topology_drawing.draw_list(node, topology, width)
    assert set(rows_of(lines)) == {end.id for end in (*topology.gpus, *topology.nics)}


@pytest.mark.parametrize("width", [30, 72, 200])
def test_the_matrix_shows_every_pair(topology: Topology, width: int) -> None:
    lines = matrix_drawing.draw(topology, width)
    assert max(width_of(of) for of in lines) <= width
    words = [
        run.text
        for of in lines
        for run in of
        if run.text.strip(" •") in ("PIX", "PXB", "PHB", "NODE", "SYS", "?")
    ]
    assert len(words) == len(topology.gpus) * len(topology.nics)


def test_frames_of_a_row_are_closed(node: Node, topology: Topology) -> None:
    for of in topology_drawing.draw(node, topology, 118):
        text = plain(of)
        if text.startswith(("│", "╭", "╰")):
            assert width_of(of) == 118
            assert text[-1] in "│╮╯"


def test_a_selection_is_lit(node: Node, topology: Topology) -> None:
    gpu = topology.gpus[0].id
    best = topology.best_nics[gpu][0]
    lines = topology_drawing.draw(node, topology, 118, lit=Lit(gpu, frozenset((best,))))
    tones = {run.id: run.tone.value for of in lines for run in of if run.id}
    assert tones[gpu] == "cursor"
    assert tones[best] == "lit"


@pytest.mark.parametrize("width", [50, 60, 72, 78, 118, 200])
def test_what_was_measured_stands_behind_its_gpu_and_moves_nothing(
    node: Node, topology: Topology, width: int
) -> None:
    measured = {gpu.id: Run("✓387G") for gpu in topology.gpus}
    for draw in (topology_drawing.draw, topology_drawing.draw_list):
        bare = [plain(of) for of in draw(node, topology, width)]
        told = [plain(of) for of in draw(node, topology, width, lit=Lit(measured=measured))]
        assert len(told) == len(bare)
        assert max(map(len, told)) <= max(width, *map(len, bare))
        assert "\n".join(told).count("✓387G") in (0, len(topology.gpus)) or draw is topology_drawing.draw_list
        if width >= 200:
            assert "\n".join(told).count("✓387G") == len(topology.gpus)


def test_the_ladder_names_every_module_and_what_is_missing(node: Node) -> None:
    assert not isinstance(node.modules, Unknown)
    text = "\n".join(map(plain, ladder_drawing.draw(node, {}, 60)))
    for rung in node.modules.ladder:
        assert rung.module in text
    assert "✗" not in text  # none of the simulated nodes lacks what it needs


def test_the_ladder_of_a_connectx_3_node_shows_mlx4_and_misses_no_mlx5() -> None:
    node = probe_node(SimulatedHost("dgx-a100+nic-connectx-3"))
    text = "\n".join(map(plain, ladder_drawing.draw(node, {}, 72)))
    assert "✓ mlx4_ib" in text
    assert "– mlx5_ib" in text
    assert "no such card here" in text
    assert "✗" not in text
    assert "✓mlx4_ib" in "".join(map(plain, ladder_drawing.strip(node, {}, 200)))
    missing = probe_node(SimulatedHost("dgx-a100+mlx4-ib-not-loaded"))
    assert "✗ mlx4_ib" in "\n".join(map(plain, ladder_drawing.draw(missing, {}, 72)))


def test_a_node_without_connectx_3_shows_no_mlx4(node: Node) -> None:
    assert "mlx4" not in "\n".join(map(plain, ladder_drawing.draw(node, {}, 72)))


def test_an_unknown_figure_is_a_question_mark_not_zero() -> None:
    unknown = Unknown(Reason.NEEDS_ROOT)
    assert figures.gbps(unknown) == "? Gb/s"
    assert figures.percent(unknown) == "?%"
    assert figures.gibibytes(unknown) == "?"
    assert figures.sparkline([1.0, None, 2.0])[1] == "·"


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0.0"), (0.04, "0.04"), (4.24, "4.2"), (41.7, "42"), (371.5, "372")]
)
def test_figures_are_short(value: float, text: str) -> None:
    assert figures.short(value) == text


TEXTS = st.text(max_size=60)


@given(st.lists(TEXTS, max_size=4), st.integers(1, 40))
def test_a_fitted_line_has_exactly_its_width(texts: list[str], width: int) -> None:
    of: Line = tuple(Run(text) for text in texts)
    fitted = fit(of, width)
    assert width_of(fitted) == width


@given(TEXTS, st.lists(TEXTS, max_size=3), st.integers(8, 50))
def test_a_frame_has_exactly_its_width(title: str, body: list[str], width: int) -> None:
    lines = frame(line(title), [line(text) for text in body], width)
    assert {width_of(of) for of in lines} == {width}


@given(TEXTS)
def test_plain_text_holds_nothing_that_acts_on_a_terminal(text: str) -> None:
    assert all(character.isprintable() for character in plain(line(text)))


@given(st.integers(1, 60), st.integers(1, 20), st.integers(10, 200))
def test_boxes_that_stand_side_by_side_fit(least: int, count: int, width: int) -> None:
    across = columns_that_fit(least, count, width)
    assert 1 <= across <= count
    assert across == 1 or across * least + across - 1 <= width


@given(TEXTS, st.integers(10, 60))
def test_wrapped_text_loses_no_word(text: str, width: int) -> None:
    assert "".join("".join(plain(of).split()) for of in wrapped(text, width)) == "".join(
        plain(line(text)).split()
    )
