"""No two outputs state what cannot both be true of a node: at the start, and after 90 seconds of watching."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TextIO

import pytest

from probes.checks.judgment import judge
from probes.fleet.summary import summarize
from probes.live.job_examination import examine_with_jobs
from probes.metrics.metric_list import METRICS
from probes.metrics.metrics import Observation, families
from probes.setup.step import SetupRecord, StepState
from probes.setup.steps.checked import CheckedStep
from probes.setup.steps.guide import read_guide
from probes.setup.steps.step_list import STEPS
from probes.simulation.faults.catalogue import FAULTS, NoSuchFault
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.names import SIMULATED_NAMES
from tests.support.pilot import SteppedClock
from tests.support.recordings import recorded
from tests.support.simulated_jobs import evenly_paced
from tests.support.tiers import nodes_to_try, number_of, share, usual
from tests.tui.claims import Claims
from tui.command_line.options import OutputOptions, TableOptions
from tui.commands.check import CheckOptions, write_check
from tui.commands.explain import write_explanation
from tui.commands.live.live import LiveOptions, write_live
from tui.commands.modules import write_modules
from tui.commands.report import text_of
from tui.commands.topo import TopologyOptions, write_topology
from tui.controllers.report_reader import read_report
from tui.runtime.node_monitor import NodeMonitor
from tui.runtime.reading_thread import Probed, Sampled
from tui.screens.head import HeadState
from tui.screens.live.state import LiveState
from tui.screens.overview.state import OverviewState
from widgets.base.lines import Line, plain

FAST = ("ib-uverbs-not-loaded", "job-rank-staged", "port-down", "gpu-off-bus-live")
USUAL = (
    *FAST,
    *("nic-irdma", "p2p-topology-refused-old-importer", "acs-on", "job-hung", "nccl-net-socket"),
    "fabric-manager-down",
)
SECONDS = 90
PANELS = ("findings", "jobs", "modules", "gpudirect", "rates", "topology", "path")
WIDTH = 200
FIRST_RANK = 41000
# Also what moves KV caches shows only in a second reading.
LIVE_FAULTS = {name for name, fault in FAULTS.items() if fault.is_live or fault.is_everywhere}


class Terminal(io.StringIO):
    """A stream that shows every character."""

    encoding = "utf-8"


def printed(write: Callable[[TextIO], object]) -> str:
    out = Terminal()
    write(out)
    return out.getvalue()


def document(write: Callable[[TextIO], object]) -> dict[str, Any]:
    """Return the last document that is printed; of live, each is a line."""
    text = printed(write)
    read: dict[str, Any] = json.loads(text[text.rindex('\n{"') :] if '\n{"' in text else text)
    return read


def shown(lines: Iterable[Line]) -> str:
    return "\n".join(plain(line).rstrip() for line in lines)


def overview_of(monitor: NodeMonitor) -> OverviewState:
    """Return the overview of a node that was read and checked."""
    examination, judgment, sample = monitor.examination, monitor.judgment, monitor.sample
    assert examination is not None
    assert sample is not None
    overview = OverviewState()
    overview.apply(Probed(examination.node, examination.topology))
    overview.apply(Sampled(examination.reading, judgment, sample.taken_at, sample))
    overview.apply_check(examination, judgment)
    return overview


def read_screens(claims: Claims, monitor: NodeMonitor) -> None:
    """Read the panels of the overview, its strips, and the live screen."""
    examination, judgment, sample = monitor.examination, monitor.judgment, monitor.sample
    overview = overview_of(monitor)
    assert examination is not None
    assert sample is not None
    head = HeadState(examination.node.origin, **overview.head_fields())  # type: ignore[arg-type]
    claims.read("head", shown((head.verdicts[0], head.sentence)))
    for panel in PANELS:
        claims.read(panel, shown(overview.lines(panel, WIDTH, False, 100)))
    claims.read("strips", shown(overview.strips(("modules", "gpudirect", "jobs"), WIDTH)))
    live = LiveState()
    live.add(sample)
    live.judge(judgment)
    claims.read("live", shown(live.summary(WIDTH, 12)))
    claims.read("ranks", shown(live.lines("ranks", WIDTH)))


def shows_at_once(host: SimulatedHost) -> bool:
    """Whether outputs that watch for a second, such as live and report, know no more than check."""
    return LIVE_FAULTS.isdisjoint(re.split(r"[+,]", host.origin.label))


def read_check(claims: Claims, host: SimulatedHost, _: SteppedClock) -> None:
    check = partial(write_check, host)
    claims.read("check", printed(lambda out: check(out, CheckOptions())))
    claims.read("check --one-line", printed(lambda out: check(out, CheckOptions(one_line=True))))
    claims.read("check --for nagios", printed(lambda out: check(out, CheckOptions(consumer="nagios"))))


def read_topology(claims: Claims, host: SimulatedHost, _: SteppedClock) -> None:
    claims.read("topo", printed(lambda out: write_topology(host, out, TopologyOptions())))
    claims.read_document(
        "topo --json", document(lambda out: write_topology(host, out, TopologyOptions("json")))
    )


def read_explanations(claims: Claims, host: SimulatedHost, _: SteppedClock) -> None:
    claims.read("explain", printed(lambda out: write_explanation(host, out, FIRST_RANK, "", OutputOptions())))
    claims.read("modules", printed(lambda out: write_modules(host, out, TableOptions())))


def read_reports(claims: Claims, host: SimulatedHost, clock: SteppedClock) -> None:
    def wait(seconds: float) -> None:
        clock.now += seconds

    report = read_report(host, wait=wait)
    claims.read("report", text_of(report, "md"))
    if shows_at_once(host):
        claims.read_document("report --json", json.loads(text_of(report, "json"))["check"])
    claims.read_verdict("fleet", summarize(report.examination, report.judgment).verdict)


def read_setup(claims: Claims, host: SimulatedHost, _: SteppedClock) -> None:
    examination = examine_with_jobs(host)
    judgment = judge(examination)
    guide = read_guide(host, examination, judgment.findings, (), SetupRecord())
    if not guide.choice.is_impossible:
        checked = {step.id for step in STEPS if isinstance(step, CheckedStep)}
        done = (StepState.DONE, StepState.SKIPPED)
        claims.has_open_steps = any(step.id in checked and step.state not in done for step in guide.steps)
    seen = Observation("0", examination, judgment, None, (), (), 0.0)
    (verdict,) = (found for found in families(seen) if found.metric is METRICS["gdrtop_verdict"])
    (state,) = (sample.labels["state"] for sample in verdict.samples if sample.value)
    claims.read_state("metrics", state.upper().replace("_", " "))


def read_replay(claims: Claims, host: SimulatedHost, clock: SteppedClock) -> None:
    replay, options = recorded(host, clock, checks=True), CheckOptions(json=True)
    claims.read_document("check --replay", document(lambda out: write_check(replay, out, options)))


def read_live(claims: Claims, host: SimulatedHost, clock: SteppedClock) -> None:
    def wait(seconds: float) -> None:
        clock.now += seconds

    if shows_at_once(host):
        live = partial(write_live, host, options=LiveOptions(json=True, seconds=1), clock=clock, wait=wait)
        claims.read_document("live --json", document(lambda out: live(out=out)))


COMMANDS: tuple[Callable[[Claims, SimulatedHost, SteppedClock], None], ...] = (
    *(read_check, read_topology, read_explanations, read_reports, read_setup, read_replay, read_live),
)


def watched(host: SimulatedHost, clock: SteppedClock, seconds: int) -> NodeMonitor:
    """Return the monitor of a node that was watched for so long, and checked then."""
    monitor = NodeMonitor(host)
    evenly_paced(monitor._live)
    for _ in range(seconds + 2):
        monitor.read()
        if monitor.needs_check:
            monitor.check()
        clock.now += 1.0
    monitor.check()
    return monitor


def claims_about(name: str, seconds: int, commands: Sequence[Callable[..., None]] = ()) -> Claims:
    """Watch a node, and read what all screens claim, and commands that look once."""
    clock, claims = SteppedClock(), Claims()
    host = SimulatedHost(name, clock=clock)
    monitor = watched(host, clock, seconds)
    read_screens(claims, monitor)
    if commands:
        options = CheckOptions(json=True)
        claims.read_document("check --json", document(lambda out: write_check(host, out, options)))
    for read in commands:
        read(claims, host, clock)
    return claims


def wrong_in(name: str, seconds: int, commands: Sequence[Callable[..., None]] = ()) -> list[str]:
    claims = claims_about(name, seconds, commands)
    assert claims.count
    return list(claims.contradictions())


@pytest.mark.parametrize("fault", usual(FAULTS, FAST))
def test_no_output_contradicts_another_about_a_faulty_node(fault: str) -> None:
    chosen = COMMANDS if fault in USUAL else share(COMMANDS, turn=number_of(fault), parts=2)
    assert wrong_in(f"{FAULTS[fault].on}+{fault}", 0, chosen) == []


@pytest.mark.parametrize("name", SIMULATED_NAMES)
def test_no_output_contradicts_another_about_a_node(name: str) -> None:
    assert wrong_in(name, 0, COMMANDS) == []


@pytest.mark.parametrize("fault", usual(FAULTS, {"job-hung", "nic-flapping"}))
def test_no_screen_contradicts_another_after_a_while(fault: str) -> None:
    assert wrong_in(f"{FAULTS[fault].on}+{fault}", SECONDS) == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_no_fault_makes_outputs_contradict_each_other_on_another_node(fault: str) -> None:
    for node in nodes_to_try(fault)[1:]:
        try:
            assert wrong_in(f"{node}+{fault}", 0, COMMANDS[:1]) == [], node
        except NoSuchFault:
            continue


def test_contradictions_are_seen() -> None:
    """The other side of the tests above: they do not pass because nothing is compared."""
    claims = claims_about("hgx-h100", 0, COMMANDS)
    assert claims.count > 15
    assert not list(claims.contradictions())
    claims.read("gpudirect", "DMA-BUF   ✗ not usable\npeermem   ✗ not usable")
    claims.read("jobs", "● train.py (alice) staged on all 8 ranks")
    wrong = "\n".join(claims.contradictions())
    assert "DMA-BUF is usable and is not" in wrong
    assert "● train.py is" in wrong
