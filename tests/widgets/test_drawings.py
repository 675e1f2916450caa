"""The drawings: right at every width, and nothing of the node left out."""

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from probes.base.evidence import Severity
from probes.base.history import History
from probes.base.origin import Origin, Source
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.node import Node, probe_node
from probes.queries.finding import Finding, Status, names_of
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.description import simulated_names
from probes.snapshot.nic_roles import roles_of
from probes.snapshot.rates import PortRate
from probes.topology.paths import Topology, build
from tui.commands.modules import exit_status
from tui.screens import head as head_drawing
from tui.screens.head import HeadState
from widgets.base import figures
from widgets.base.figures import graph, local_time
from widgets.base.lines import Line, Run, Tone, fit, line, plain, rows_of, width_of, wrapped
from widgets.doctor import findings
from widgets.node import matrix as matrix_drawing
from widgets.node import modules as ladder_drawing
from widgets.node import path as path_drawing
from widgets.node import topology as topology_drawing
from widgets.node import traffic as traffic_drawing
from widgets.node.boxes import columns_that_fit, frame
from widgets.node.endpoint_lines import NO_FIGURES, LiveFigures
from widgets.node.highlights import Highlights


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
    assert max(width_of(row) for row in lines) <= width
    assert set(rows_of(lines)) == {end.id for end in (*topology.gpus, *topology.nics)}


def draw_list(
    node: Node,
    topology: Topology,
    width: int,
    live: LiveFigures = NO_FIGURES,
    highlights: Highlights | None = None,
) -> Sequence[Line]:
    """The topology where no box has room."""
    form = topology_drawing.choose(node, topology, width, 0, live, highlights)
    return topology_drawing.draw(node, topology, width, live, highlights, form)


@pytest.mark.parametrize("width", [50, 78])
def test_the_list_shows_every_gpu_and_nic(node: Node, topology: Topology, width: int) -> None:
    lines = draw_list(node, topology, width)
    assert set(rows_of(lines)) == {end.id for end in (*topology.gpus, *topology.nics)}


@pytest.mark.parametrize("width", [30, 72, 200])
def test_the_matrix_shows_every_pair(topology: Topology, width: int) -> None:
    lines = matrix_drawing.draw(topology, width)
    assert max(width_of(row) for row in lines) <= width
    words = [
        run.text
        for row in lines
        for run in row
        if run.text.strip(" •") in ("PIX", "PXB", "PXN", "PHB", "NODE", "SYS", "?")
    ]
    assert len(words) == len(topology.gpus) * len(topology.nics)


def test_frames_of_a_row_are_closed(node: Node, topology: Topology) -> None:
    for row in topology_drawing.draw(node, topology, 118):
        text = plain(row)
        if text.startswith(("│", "╭", "╰")):
            assert width_of(row) == 118
            assert text[-1] in "│╮╯"


def test_a_selection_is_highlights(node: Node, topology: Topology) -> None:
    gpu = topology.gpus[0].id
    best = topology.best_nics[gpu][0]
    lines = topology_drawing.draw(node, topology, 118, highlights=Highlights(gpu, frozenset((best,))))
    tones = {(run.id, run.tone.value) for row in lines for run in row if run.id}
    assert (gpu, "cursor") in tones
    assert (best, "lit") in tones
    assert {end for end, tone in tones if tone in ("cursor", "lit")} == {gpu, best}


@pytest.mark.parametrize("width", [50, 60, 72, 78, 118, 200])
def test_what_was_measured_stands_behind_its_gpu_and_moves_nothing(
    node: Node, topology: Topology, width: int
) -> None:
    measured = {gpu.id: Run("✓387G") for gpu in topology.gpus}
    for draw in (topology_drawing.draw, draw_list):
        bare = [plain(row) for row in draw(node, topology, width)]
        told = [plain(row) for row in draw(node, topology, width, highlights=Highlights(measured=measured))]
        assert len(told) == len(bare)
        assert max(map(len, told)) <= max(width, *map(len, bare))
        assert "\n".join(told).count("✓387G") in (0, len(topology.gpus)) or draw is draw_list
        if width >= 200:
            assert "\n".join(told).count("✓387G") == len(topology.gpus)


def test_the_ladder_names_every_module_and_what_is_missing(node: Node) -> None:
    assert not isinstance(node.modules, Unknown)
    text = "\n".join(map(plain, ladder_drawing.draw(node, {}, 60, full=True)))
    for rung in node.modules.ladder:
        assert rung.module in text
    assert "✗" not in text  # none of the simulated nodes lacks what it needs


def test_where_all_is_well_the_modules_are_one_line(node: Node) -> None:
    (line,) = ladder_drawing.draw(node, {}, 44)
    assert plain(line).endswith("modules loaded")


def test_a_module_that_is_needed_only_without_dmabuf_is_not_missing_while_that_is_unknown() -> None:
    node = probe_node(SimulatedHost("pcie-l40s+rdma-devices-in-pods"))
    assert not isinstance(node.modules, Unknown)
    text = plain(ladder_drawing.summary(node, node.modules))
    assert text == "? nvidia_peermem is needed unless DMA-BUF works, which is unknown"
    assert exit_status(node) == 3


def test_a_missing_module_is_named_and_the_others_are_counted() -> None:
    node = probe_node(SimulatedHost("dgx-a100+no-gdr-path"))
    lines = [plain(row) for row in ladder_drawing.draw(node, {}, 60)]
    assert len(lines) == 2
    assert "nvidia_peermem" in lines[0]
    assert lines[1] == "✓ 7 other modules loaded"


def test_only_peermem_has_a_reference_count() -> None:
    node = probe_node(SimulatedHost("hgx-h100"))
    counts: dict[str, Maybe[int]] = {"ib_core": 987, "nvidia_peermem": 654}
    text = "\n".join(map(plain, ladder_drawing.draw(node, counts, 60, full=True)))
    assert "654" in text
    assert "987" not in text


def test_the_legend_explains_every_word_of_the_matrix_and_repeats_none(topology: Topology) -> None:
    words = {
        matrix_drawing.shown_word(topology.path(a.id, b.id)) for a in topology.gpus for b in topology.nics
    }
    legend = [plain(row) for row in matrix_drawing.legend(topology, 72)]
    assert all(len(text) <= 72 for text in legend)
    for word in words:
        assert re.search(rf"(?:^|  ){word} [A-Za-z0-9]", "\n".join(legend))
    for text in legend:
        names = [word for word in re.findall(r"\b[A-Z]{3,4}\b", text) if word not in ("NCCL", "NUMA", "NIC")]
        assert len(names) == len(set(names))


def test_a_vm_without_numa_nodes_shows_the_words_of_nccl() -> None:
    topology = build(probe_node(SimulatedHost("cloud-vm")))
    text = "\n".join(map(plain, matrix_drawing.draw(topology, 72)))
    assert "?" not in text
    assert text.count("PHB") == 64
    assert "NCCL's terms" in "\n".join(map(plain, matrix_drawing.legend(topology, 72)))


def test_a_lost_gpu_says_so_without_an_abbreviation() -> None:
    node = probe_node(SimulatedHost("hgx-h100+xid-79-fell-off-bus"))
    text = "\n".join(map(plain, topology_drawing.draw(node, build(node), 118)))
    assert "fell off the bus" in text
    assert "NVML" not in text


def test_nics_that_are_not_for_compute_say_what_they_are_for() -> None:
    node = probe_node(SimulatedHost("hgx-h100"))
    topology = build(node)
    highlights = Highlights(roles=roles_of(node, topology))
    for width in (78, 118, 200):
        text = "\n".join(map(plain, topology_drawing.draw(node, topology, width, highlights=highlights)))
        assert text.count("storage") == 2
    text = "\n".join(map(plain, draw_list(node, topology, 78, highlights=highlights)))
    assert text.count("storage") == 2


def test_a_detour_goes_up_to_the_root_port_and_back() -> None:
    topology = build(probe_node(SimulatedHost("hgx-h100")))
    path = topology.path(topology.gpus[0].id, "mlx5_0")
    straight = [plain(row) for row in path_drawing.draw(topology, path, 60)]
    bent = [plain(row) for row in path_drawing.draw(topology, path, 60, is_detour=True)]
    assert not any("root port" in text for text in straight)
    names = [text.split("  ")[0] for text in bent[3:] if not text.startswith(" ")]
    assert [name.split()[0] for name in names] == ["GPU0", "switch", "root", "switch", "mlx5_0"]


def test_rates_are_shares_of_the_line_rate() -> None:
    node = probe_node(SimulatedHost("hgx-h100"))
    topology = build(node)
    live = LiveFigures(ports={("mlx5_0", 1): PortRate(372.0, 40.0)})
    text = "\n".join(map(plain, draw_list(node, topology, 100, live)))
    assert "↑372  93% ↓ 40  10%" in text
    rates = traffic_drawing.line_rates(node, topology, live)
    assert rates["NIC"] == 8 * 400 + 2 * 100
    assert " 11% " in plain(traffic_drawing.draw(traffic_drawing.totals(live), {}, 60, rates)[0])


@pytest.mark.parametrize("width", [40, 100])
def test_the_heading_of_the_list_names_the_share_only_where_it_is_shown(width: int) -> None:
    node = probe_node(SimulatedHost("hgx-h100"))
    live = LiveFigures(ports={("mlx5_0", 1): PortRate(372.0, 40.0)})
    heading, first, *_ = map(plain, draw_list(node, build(node), width, live))
    assert heading.endswith("share") is ("93%" in first) is (width == 100)
    assert first.index("↑372") == heading.index("RDMA Gb/s")


def test_a_list_notices_that_a_line_needs_more_than_when_its_form_was_chosen() -> None:
    node = probe_node(SimulatedHost("hgx-h100"))
    topology = build(node)
    idle, busy = (LiveFigures(ports={("mlx5_0", 1): PortRate(rate, rate)}) for rate in (0.0, 0.03))
    form = topology_drawing.choose(node, topology, 100, 0, idle)
    assert form.columns is not None
    for live, is_outgrown in ((idle, False), (busy, True)):
        list(topology_drawing.draw(node, topology, 100, live, None, form))
        assert form.columns.is_outgrown is is_outgrown


def test_a_steady_load_far_below_the_line_rate_is_no_wall() -> None:
    history = History()
    for second in range(120):
        history.add(float(second), 80.0)
    live = LiveFigures(ports={("mlx5_0", 1): PortRate(80.0, Unknown(Reason.NOT_THERE))})
    low = plain(traffic_drawing.draw(traffic_drawing.totals(live), {"NIC ↑": history}, 60, {"NIC": 400.0})[0])
    assert "█" not in low
    assert "20%" in low
    assert "peak 20%" in low


def test_a_node_without_a_port_has_no_unknown_rate() -> None:
    node = replace(
        probe_node(SimulatedHost("hgx-h100")), rdma=Unknown(Reason.NOT_THERE, "/sys/class/infiniband")
    )
    drawn = traffic_drawing.draw({}, {}, 60, has_ports=traffic_drawing.may_have_ports(node))
    assert [plain(line).strip() for line in drawn[:3]] == [
        "NIC ↑ –  no RDMA port",
        "NIC ↓ –  no RDMA port",
        "GPU ↑ ?  unknown",
    ]
    unread = replace(node, rdma=Unknown(Reason.TIMED_OUT, "/sys/class/infiniband"))
    assert traffic_drawing.may_have_ports(unread)
    assert "unknown" in plain(traffic_drawing.draw_ports(unread, NO_FIGURES, {}, 60)[0])


def test_a_finding_names_its_device() -> None:
    labels = {"0000:18:00.0": "GPU0", "0000:19:00.0": "GPU1", "mlx5_0": "mlx5_0"}
    labels |= {f"0000:83:00.{port}": f"NVSwitch 83:00.{port}" for port in range(2)}

    def named(*devices: str) -> str:
        finding = Finding("a", "nic", Severity.WARNING, Status.FOUND, "a title", (), "", None, "", devices)
        return findings.device_of(finding, labels)

    assert named("0000:18:00.0") == "GPU0"
    assert named("0000:18:00.0", "0000:19:00.0", "0000:16:00.0") == "GPU0, GPU1"
    assert named("0000:18:00.0", "mlx5_0") == "GPU0, mlx5_0"
    assert named("0000:17:01.0", "0000:17:02.0") == "17:01.0 +1"
    assert named("0000:83:00.0", "0000:83:00.1") == "2 NVSwitches"
    assert named("nvidia_peermem") == "nvidia_peermem"
    assert named() == ""


def test_a_finding_names_gpus_and_nics_before_addresses() -> None:
    labels = {"0000:18:00.0": "GPU0"}

    def names(*devices: str) -> list[str]:
        finding = Finding("a", "nic", Severity.WARNING, Status.FOUND, "a title", (), "", None, "", devices)
        return names_of(finding, labels)

    assert names("0000:16:00.0", "0000:18:00.0", "mlx5_0") == ["GPU0", "mlx5_0"]
    assert names("0000:17:01.0", "0000:17:02.0") == ["0000:17:01.0", "0000:17:02.0"]


VERDICT: tuple[Line, ...] = (
    (Run("▲ DEGRADED via DMA-BUF · 7 of 8 GPUs · 8 of 10 NICs · 2 critical, 1 warning (d)"),),
    (Run("▲ DEGRADED · 2 critical, 1 warning (d)"),),
    (Run("▲ DEGRADED"),),
)
SENTENCE: Line = (
    Run("✗ GPU5 does not respond: it has fallen off the bus, and more that is far too long for all"),
)


@pytest.mark.parametrize("source", [Source.LIVE, Source.SIMULATED, Source.RECORDED], ids=str)
@pytest.mark.parametrize("screen", ["Overview", "Bandwidth"])
@pytest.mark.parametrize(
    ("width", "status"),
    [(width, "") for width in (60, 80, 120)]
    + [(width, "no answer for 12 s") for width in (80, 100, 120, 160, 200)],
)
def test_the_head_never_drops_host_screen_verdict_or_clock(
    width: int, screen: str, status: str, source: Source
) -> None:
    label = "hgx-h100+port-down,roce-gid-wrong,nccl-net-socket"
    state = HeadState(
        Origin(source, label if source is not Source.LIVE else ""),
        hostname="ip-10-0-12-34.eu-central-1.compute.internal",
        sentence=SENTENCE,
        verdicts=VERDICT,
        recording=status,
        taken_at=1.0,
    )
    lines = [plain(row) for row in head_drawing.draw(state, screen, width)]
    assert len(lines) == 2
    assert all(len(text) <= width for text in lines)
    assert lines[0].startswith(" ✗ GPU5 does not respond")
    assert lines[1].rstrip().endswith(local_time(1.0))
    for text in (screen, "DEGRADED", status, "" if source is Source.LIVE else source.name):
        assert text in lines[1]
    name = lines[1].partition(screen)[0].split()[-1]
    assert name.endswith("internal" if source is Source.LIVE else "t")  # the end tells hosts apart
    assert "…" in name or len(name) > 40


def test_a_hint_stands_behind_the_sentence_where_there_is_room() -> None:
    head = HeadState(Origin(Source.LIVE), sentence=SENTENCE, hint="press f")
    assert plain(head_drawing.draw(head, "Overview", 120)[0]).endswith("· press f")
    assert "press" not in plain(head_drawing.draw(head, "Overview", 80)[0])


def test_the_usual_interval_is_not_shown() -> None:
    def shown(pace: str) -> str:
        state = HeadState(Origin(Source.SIMULATED, "hgx-h100"), pace=pace, verdicts=VERDICT, taken_at=1.0)
        return "\n".join(plain(row) for row in head_drawing.draw(state, "Overview", 120))

    assert "every 2 s" in shown("every 2 s")
    assert "every 1 s" not in shown("every 1 s")


@given(st.text(max_size=80), st.integers(min_value=3, max_value=60))
def test_a_shortened_name_fits_and_keeps_both_ends(name: str, cells: int) -> None:
    shown = head_drawing.shortened(name, cells)
    assert cell_len(shown) <= max(cells, 0)
    assert shown == name or "…" in shown


def test_the_ladder_of_a_connectx_3_node_shows_mlx4_and_misses_no_mlx5() -> None:
    node = probe_node(SimulatedHost("dgx-a100+nic-connectx-3"))
    text = "\n".join(map(plain, ladder_drawing.draw(node, {}, 72, full=True)))
    assert "✓ mlx4_ib" in text
    assert "– mlx5_ib" in text
    assert "no such card here" in text
    assert "✗" not in text
    assert "modules loaded" in "".join(map(plain, ladder_drawing.strip(node, {}, 200)))
    missing = probe_node(SimulatedHost("dgx-a100+mlx4-ib-not-loaded"))
    assert "✗mlx4_ib" in "".join(map(plain, ladder_drawing.strip(missing, {}, 200)))
    assert "✗ mlx4_ib" in "\n".join(map(plain, ladder_drawing.draw(missing, {}, 72)))


def test_a_node_without_connectx_3_shows_no_mlx4(node: Node) -> None:
    assert "mlx4" not in "\n".join(map(plain, ladder_drawing.draw(node, {}, 72)))


def test_an_unknown_figure_is_a_question_mark_not_zero() -> None:
    unknown = Unknown(Reason.NEEDS_ROOT)
    assert figures.gbps(unknown) == "? Gb/s"
    assert figures.percent(unknown) == "?%"
    assert figures.gibibytes(unknown) == "?"
    assert graph([1.0, None, 2.0])[1] == Run("·", Tone.DIM)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0.0"), (0.04, "0.04"), (4.24, "4.2"), (41.7, "42"), (371.5, "372")]
)
def test_figures_are_short(value: float, text: str) -> None:
    assert figures.short(value) == text


TEXTS = st.text(max_size=60)


@given(st.lists(TEXTS, max_size=4), st.integers(1, 40))
def test_a_fitted_line_has_exactly_its_width(texts: list[str], width: int) -> None:
    row: Line = tuple(Run(text) for text in texts)
    fitted = fit(row, width)
    assert width_of(fitted) == width


@pytest.mark.slow
@given(TEXTS, st.lists(TEXTS, max_size=3), st.integers(8, 50))
def test_a_frame_has_exactly_its_width(title: str, body: list[str], width: int) -> None:
    lines = frame(line(title), [line(text) for text in body], width)
    assert {width_of(row) for row in lines} == {width}


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
    assert "".join("".join(plain(row).split()) for row in wrapped(text, width)) == "".join(
        plain(line(text)).split()
    )
