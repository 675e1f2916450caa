"""No two outputs state what cannot both be true of a node: at the start, and after 90 seconds of watching."""

from __future__ import annotations

import io

import pytest

from probes.simulation.faults.catalogue import FAULTS
from probes.simulation.host import SimulatedHost
from tests.probes.live.simulated_jobs import evenly_paced
from tests.tiers import usual
from tests.tui.claims import Claims
from tests.tui.pilot import SteppedClock
from tui.commands.check import CheckOptions, write_check
from tui.commands.topo import write_topology
from tui.runtime.node_monitor import NodeMonitor
from tui.runtime.reading_thread import Probed, Sampled
from tui.screens.live.state import LiveState
from tui.screens.overview.state import OverviewState
from widgets.base.lines import Line, plain

USUAL = (
    *("ib-uverbs-not-loaded", "nic-irdma", "p2p-topology-refused-old-importer", "job-rank-staged"),
    *("port-down", "acs-on", "job-hung", "nccl-net-socket", "gpu-off-bus-live", "fabric-manager-down"),
)
SECONDS = 90
PANELS = ("findings", "jobs", "modules", "gpudirect", "rates", "topology", "path")
WIDTH = 200


class Terminal(io.StringIO):
    """A stream that shows every character."""

    encoding = "utf-8"


def text_of(lines: list[Line]) -> str:
    return "\n".join(plain(line).rstrip() for line in lines)


def claims_on_screens(claims: Claims, monitor: NodeMonitor) -> None:
    """Read the panels of the overview, its strips, and the live screen."""
    examination, judgment, sample = monitor.examination, monitor.judgment, monitor.sample
    assert examination is not None
    assert sample is not None
    overview = OverviewState()
    overview.apply(Probed(examination.node, examination.topology))
    overview.apply(Sampled(examination.reading, judgment, sample.taken_at, sample))
    overview.apply_check(examination, judgment)
    claims.read("head", plain(overview.verdict_line()))
    for panel in PANELS:
        claims.read(panel, text_of(list(overview.lines(panel, WIDTH, False, 100))))
    claims.read("strips", text_of(overview.strips(WIDTH)))
    live = LiveState(examination.node.origin)
    live.add(sample)
    live.judge(judgment)
    claims.read("live", text_of(live.summary(WIDTH, 12)[1:]))
    claims.read("ranks", text_of(list(live.lines("ranks", WIDTH))))


def claims_of_commands(claims: Claims, host: SimulatedHost, clock: SteppedClock) -> None:
    """Read what the commands print that look once."""

    def check(**options: object) -> str:
        out = Terminal()
        write_check(host, out, CheckOptions(**options))  # type: ignore[arg-type]
        return out.getvalue()

    def topo(form: str) -> str:
        out = Terminal()
        write_topology(host, out, form)
        return out.getvalue()

    claims.read("check", check())
    claims.read("check --one-line", check(one_line=True))
    claims.read("check --for nagios", check(consumer="nagios"))
    claims.read_document("check --json", check(as_json=True))
    claims.read("topo", topo("text"))
    claims.read_document("topo --json", topo("json"))


def watched(name: str, seconds: int) -> tuple[NodeMonitor, SimulatedHost, SteppedClock]:
    clock = SteppedClock()
    host = SimulatedHost(name, clock=clock)
    monitor = NodeMonitor(host)
    evenly_paced(monitor._live)
    for _ in range(seconds + 2):
        monitor.read()
        if monitor.needs_check:
            monitor.check()
        clock.now += 1.0
    monitor.check()
    return monitor, host, clock


def wrong_in(name: str, seconds: int) -> list[str]:
    """Return the contradictions among all outputs, at the start also with commands that look once."""
    monitor, host, clock = watched(name, seconds)
    claims = Claims()
    claims_on_screens(claims, monitor)
    if not seconds:
        claims_of_commands(claims, host, clock)
    assert claims.count
    return list(claims.contradictions())


@pytest.mark.parametrize("fault", usual(FAULTS, USUAL))
@pytest.mark.parametrize("seconds", [0, SECONDS])
def test_no_output_contradicts_another(fault: str, seconds: int) -> None:
    assert wrong_in(f"{FAULTS[fault].on}+{fault}", seconds) == []
