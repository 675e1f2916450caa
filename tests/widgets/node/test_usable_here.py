"""What a session may not use stands out in the topology and in the matrix, in every form."""

from __future__ import annotations

import json

import pytest

from probes.queries.usable_here import UsableHere
from probes.topology.paths import Topology
from tests.support.doctor import examination_of
from tui.cli import main
from widgets.base.lines import plain, width_of
from widgets.node import matrix, topology
from widgets.node.endpoint_lines import Detail
from widgets.node.highlights import Highlights
from widgets.node.topology import Form, Style

HGX = examination_of("hgx-h100")
NODE, TOPOLOGY = HGX.node, HGX.topology
REASON = "no device file"
DENIED = "hgx-h100+dev-infiniband-denied,dev-nvidia-missing"


def limited(topology_of: Topology) -> Highlights:
    devices = {topology_of.gpus[1].id: REASON, "mlx5_1": REASON, "mlx5_2": ""}
    return Highlights(usable=UsableHere(devices, {1: "no CPU in the cpuset"}, is_container=True))


@pytest.mark.parametrize("style", list(Style))
@pytest.mark.parametrize("width", [80, 120, 200])
def test_every_form_has_mark_and_legend(style: Style, width: int) -> None:
    form = Form(style, Detail.SHORT)
    marked = topology.draw(NODE, TOPOLOGY, width, highlights=limited(TOPOLOGY), form=form)
    usual = [plain(line) for line in topology.draw(NODE, TOPOLOGY, width, form=form)]
    text = [plain(line) for line in marked]
    legend = [line for line in text if line.startswith("⊘")]
    assert "This container may not use GPU1, mlx5_1: no device file" in " ".join(legend)
    assert "NUMA 1: no CPU in the cpuset" in " ".join(legend)
    drawn = text[: len(usual)]
    assert sum(line.count("GPU1⊘") for line in drawn) == 1
    assert not any("mlx5_2⊘" in line for line in drawn)
    assert text.index(legend[0]) == len(usual)
    assert max(map(width_of, marked)) <= width


def test_the_matrix_marks_pairs_and_explains_the_mark() -> None:
    highlights = limited(TOPOLOGY)
    rows = [plain(line) for line in matrix.draw(TOPOLOGY, 120, highlights=highlights)]
    assert rows[1].split()[:3] == ["GPU0", "PIX•", "PIX⊘"]
    assert rows[2].count("⊘") == len(TOPOLOGY.nics)
    legend = " ".join(plain(line) for line in matrix.legend(TOPOLOGY, 120, highlights))
    assert "⊘ not usable here" in legend
    assert "⊘" not in " ".join(plain(line) for line in matrix.legend(TOPOLOGY, 120, Highlights()))


@pytest.mark.slow
def test_topo_reports_what_this_session_may_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topo", "--json", "--demo", DENIED]) == 0
    document = json.loads(capsys.readouterr().out)
    gpus = {gpu["index"]: gpu for gpu in document["gpus"]}
    assert gpus[0]["usable_here"] is True
    assert "not_usable_because" not in gpus[0]
    assert (gpus[1]["usable_here"], gpus[1]["not_usable_because"]) == (False, "no device file")
    nics = {nic["name"]: nic for nic in document["nics"]}
    assert nics["mlx5_1"]["not_usable_because"] == "no permission for the device file"
    assert main(["topo", "--ascii", "--demo", DENIED]) == 0
    assert "! This session may not use GPU1: no device file" in capsys.readouterr().out
