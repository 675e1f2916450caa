"""Blind diagnosis: within a minute, the screen's text alone says which device or subject is faulty."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from textual.pilot import Pilot

from probes.checks.judgment import judge, listed
from probes.live.verdict import examine_with_jobs
from probes.simulation.faults import live
from probes.simulation.faults.catalogue import FAULTS
from probes.simulation.host import SimulatedHost
from probes.simulation.node.jobs.processes import FIRST_RANK
from probes.simulation.node.model.tree import Tree
from tests.tiers import share, usual
from tests.tui.pilot import SteppedClock, readings, settled
from tui.app import GdrtopApp

SIZE = (120, 40)
SECONDS_AFTER_BEGIN = 60
ROUNDS = 40
NEVER = 3600.0  # seconds between readings that the test does not ask for


def _rank(number: int) -> Callable[[Tree], set[str]]:
    """Return what a fault of a rank may be named by: the rank, its process, its GPU, its NICs."""

    def names(tree: Tree) -> set[str]:
        ranks = [program for program in tree.programs if program.is_nccl and program.nics]
        rank = ranks[(number + tree.seed) % len(ranks)]
        return {f"rank {rank.pid - FIRST_RANK}", str(rank.pid), f"GPU{rank.gpu}", *rank.nics}

    return names


# What a fault that comes with time is about, and when it begins; the others are there from the start.
SUBJECTS: dict[str, tuple[float, Callable[[Tree], set[str]]]] = {
    "nic-slow": (0, _rank(live.SLOW_RANK)),
    "nic-flapping": (live.FLAP_FIRST, _rank(live.FLAPPING_RANK)),
    "nic-link-retrained": (live.RETRAINED_AFTER, _rank(live.RETRAINED_RANK)),
    "rank-stopped": (live.STOPPED_AFTER, _rank(live.STOPPED_RANK)),
    "gpu-off-bus-live": (live.LOST_AFTER, _rank(live.LOST_RANK)),
    "gpu-throttled-live": (live.CONGESTED_AFTER, _rank(0)),
    "packets-lost-live": (live.CONGESTED_AFTER, _rank(0)),
    "job-rank-staged": (0, _rank(live.STAGED_RANK)),
    "job-restarted-staged": (live.RESTART_ENDS, lambda tree: {"train.py", "ranks 0-7"}),
    "rank-behind": (live.BEHIND_AFTER, lambda tree: {"train.py", *_rank(live.BEHIND_RANK)(tree)}),
    "congestion": (live.CONGESTED_AFTER, lambda tree: {"network", "congest", "paused"}),
}
WATCHED = {name for name, fault in FAULTS.items() if fault.shows}


def faulty(name: str, clock: SteppedClock) -> SimulatedHost:
    return SimulatedHost(f"{FAULTS[name].on}+{name}", clock=clock)


def subjects(name: str) -> set[str]:
    """Return what the screen may name: the devices of the fault's findings, or the beginning of a title."""
    host = faulty(name, SteppedClock())
    if name in SUBJECTS:
        return SUBJECTS[name][1](host.tree)
    labels = {gpu.bdf: f"GPU{number}" for number, gpu in enumerate(host.tree.gpus)}
    labels |= {nic.bdf: nic.name for nic in host.tree.nics}
    found = {finding.id: finding for finding in judge(examine_with_jobs(host)).found}
    wanted = [found[id_] for id_ in FAULTS[name].finds]
    wanted += [found[finding.part_of] for finding in wanted if finding.part_of]
    devices = {labels.get(device, device) for finding in wanted for device in finding.devices}
    return devices | {finding.title[:24] for finding in wanted}


def is_loud(name: str) -> bool:
    """Whether a critical finding or a warning is about the fault: notes are only in the doctor."""
    if name in WATCHED:
        return True
    findings = judge(examine_with_jobs(faulty(name, SteppedClock()))).found
    here = {finding.id for finding in listed(findings)}
    about = [finding for finding in findings if finding.id in FAULTS[name].finds]
    return any({finding.id, finding.part_of} & here for finding in about)


STATIC = [name for name, fault in FAULTS.items() if fault.finds and name not in SUBJECTS]
PARTS = len(STATIC) // (ROUNDS - len(SUBJECTS))
TRIED = [*SUBJECTS, *share(STATIC, turn=0, parts=PARTS)]


def text_of(pilot: Pilot[None]) -> list[str]:
    strips = pilot.app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip) for strip in strips]


def first_finding(lines: list[str]) -> str:
    """Return the first line below the title of the panel Findings, as far as the panel is wide."""
    for row, text in enumerate(lines):
        if title := re.search(r"╭.? ?Findings[^╮]*╮", text):
            return lines[row + 1][title.start() : title.end()]
    return ""


def test_the_rounds_are_enough_and_know_what_each_watched_fault_is_about() -> None:
    assert len(TRIED) >= ROUNDS
    assert set(SUBJECTS) >= WATCHED


@pytest.mark.parametrize("name", usual(TRIED, {"nic-slow"}))
async def test_the_first_line_names_what_is_faulty(name: str) -> None:
    if not is_loud(name):
        pytest.skip("it is only a note")
    begin = SUBJECTS[name][0] if name in SUBJECTS else 0
    names = subjects(name)
    clock = SteppedClock()
    host = faulty(name, clock)
    app = GdrtopApp(lambda: host, host.origin, NEVER)
    read: list[str] = []
    async with app.run_test(size=SIZE) as pilot:
        while clock.now - 1000.0 <= begin + SECONDS_AFTER_BEGIN:
            await readings(pilot, clock, 5)
            lines = text_of(pilot)
            read = [first_finding(lines)]
            if any(name in read[0] for name in names):
                return
        await pilot.press("t")
        await settled(pilot)
        read += text_of(pilot)[:3]
    assert any(name in line for name in names for line in read[1:]), (names, read)
