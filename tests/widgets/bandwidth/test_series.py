"""Tests before they run: the command for the peer names this node, or says that somebody has to."""

import shlex

import pytest

from probes.bandwidth.model.planned_series import PlannedTest, Series
from probes.bandwidth.model.request import Mode, Request
from probes.bandwidth.planning.series import plan_series
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine
from widgets.bandwidth.series import draw_commands, draw_for_peer, peer_command
from widgets.base.lines import plain


@pytest.fixture(scope="module")
def server() -> PlannedTest:
    request = Request(tool="ib_write_bw", setup=Mode.SERVER)
    series = plan_series(examine(SimulatedHost("hgx-h100")), request, 18515)
    assert isinstance(series, Series)
    return series.tests[0]


@pytest.mark.parametrize("node", ["node-a", "node-a.example.org", "10.0.0.1", "fd00::1"])
def test_a_hosts_name_stands_behind_the_command(server: PlannedTest, node: str) -> None:
    assert shlex.split(peer_command(server, node)) == [*server.for_peer, node]


@pytest.mark.parametrize(
    "node", ["", "--help", "-oProxyCommand=x", "this node", "$(id)", "a;b", "näh", "x" * 999]
)
def test_what_is_no_hosts_name_never_gets_into_the_command(server: PlannedTest, node: str) -> None:
    assert shlex.split(peer_command(server, node)) == [*server.for_peer, "THIS-NODE"]


@pytest.mark.parametrize("node", ["node-a", "--help"])
def test_pane_and_text_say_what_is_copied(server: PlannedTest, node: str) -> None:
    copied = peer_command(server, node)
    pane = " ".join(plain(line).removesuffix("\\") for line in draw_for_peer(server, 60, node))
    assert copied in " ".join(pane.split())
    assert copied in "\n".join(plain(line) for line in draw_commands(server, node))
