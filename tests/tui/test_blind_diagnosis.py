"""Blind diagnosis: within a minute, the screen's text alone says which device or subject is faulty."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from textual.pilot import Pilot

from probes.base.evidence import Severity
from probes.checks.judgment import judge, listed
from probes.checks.registry import CHECKS
from probes.live.job_examination import examine_with_jobs
from probes.live.model.activity import WAIT_SECONDS
from probes.simulation.faults import live
from probes.simulation.faults.catalogue import FAULTS
from probes.simulation.host import SimulatedHost
from probes.simulation.node.jobs.processes import FIRST_RANK
from probes.simulation.node.model.tree import Tree
from tests.support.pilot import SteppedClock, readings, settled
from tests.support.tiers import share, usual
from tui.app import GdrtopApp
from tui.screens.head import HEAD_ROWS

SIZE = (120, 40)
SECONDS_TO_READ = 60  # from the beginning of the fault
STEP_SECONDS = 4
ROUNDS = 50  # a fifth of them ends as skipped: on their nodes, the finding is only a note
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
    "ecmp-collision": (live.CONGESTED_AFTER, _rank(live.SLOW_RANK)),
    "plane-unused": (60, lambda tree: {"one plane of its NICs"}),
    "nic-flapping": (live.FLAP_FIRST, _rank(live.FLAPPING_RANK)),
    "nic-link-retrained": (live.RETRAINED_AFTER, _rank(live.RETRAINED_RANK)),
    "rank-stopped": (live.STOPPED_AFTER, _rank(live.STOPPED_RANK)),
    "gpu-off-bus-live": (live.LOST_AFTER, _rank(live.LOST_RANK)),
    "gpu-throttled-live": (live.CONGESTED_AFTER, _rank(0)),
    "packets-lost-live": (live.CONGESTED_AFTER, _rank(0)),
    "job-rank-staged": (0, _rank(live.STAGED_RANK)),
    "job-restarted-staged": (live.RESTART_ENDS, lambda tree: {"copies through host memory since"}),
    "job-log-differs": (0, _rank(0)),
    "rank-behind": (live.BEHIND_AFTER, lambda tree: {"job moves far less data"}),
    "job-hung": (WAIT_SECONDS, lambda tree: {"moves no data"}),
    "kv-over-tcp": (0, lambda tree: {"container has no RDMA"}),
    "kv-over-loopback": (0, lambda tree: {"moves KV caches over TCP"}),
    "ucx-without-verbs": (0, lambda tree: {"moves KV caches over TCP"}),
    "nixl-ucx-without-cuda": (0, lambda tree: {"NIXL uses UCX"}),
    "congestion": (live.CONGESTED_AFTER, lambda tree: {"network", "congested"}),
}
# Once missed, because their nodes had a second problem, which stood first.
ONCE_MISSED = ("acs-direct-nic", "k8s-rdma-not-enabled", "nccl-gid-index-not-v2")
# Found after minutes, which tests/probes/live/test_watched_faults.py watches without a screen.
SLOW = {"nic-uneven"}
WATCHED = {name for name, fault in FAULTS.items() if fault.shows} - SLOW


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
    about = [found[id_] for id_ in FAULTS[name].finds]
    about += [found[finding.part_of] for finding in about if finding.part_of]
    devices = {device for finding in about for device in finding.devices}
    affected = {word for finding in about for word in (*finding.ranks, *finding.jobs)}
    # A worse finding about the same devices stands before it.
    about += [finding for finding in found.values() if devices and devices <= set(finding.devices)]
    titles = {finding.title[:24] for finding in about}
    return {labels.get(device, device) for device in devices} | affected | titles


def is_loud(name: str) -> bool:
    """Whether a critical finding or a warning is about the fault: notes are only in the doctor."""
    if name in WATCHED:
        return True
    findings = judge(examine_with_jobs(faulty(name, SteppedClock()))).found
    here = {finding.id for finding in listed(findings)}
    about = [finding for finding in findings if finding.id in FAULTS[name].finds]
    return any({finding.id, finding.part_of} & here for finding in about)


SEVERITIES = {check.id: check.severity for check in CHECKS}
STATIC = [
    name
    for name, fault in FAULTS.items()
    if name not in (*SUBJECTS, *ONCE_MISSED)
    and any(SEVERITIES[id_] is not Severity.NOTE for id_ in fault.finds)
]
PARTS = len(STATIC) // (ROUNDS - len(SUBJECTS))
TRIED = [*SUBJECTS, *ONCE_MISSED, *share(STATIC, turn=0, parts=PARTS)]


def text_of(pilot: Pilot[None]) -> list[str]:
    strips = pilot.app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip) for strip in strips]


def first_finding(lines: list[str]) -> str:
    """Return the first line of the panel Findings, on the overview."""
    for row, text in enumerate(lines):
        if title := re.search(r"╭.? ?Findings[^╮]*╮", text):
            return lines[row + 1][title.start() : title.end()]
    return ""


def first_job(lines: list[str]) -> str:
    """Return the line below the head of Live."""
    return lines[HEAD_ROWS]


def test_the_rounds_know_what_each_watched_fault_is_about() -> None:
    assert len(TRIED) >= ROUNDS
    unknown = sorted(WATCHED - set(SUBJECTS))
    assert not unknown, f"add {unknown} to SUBJECTS in tests/tui/test_blind_diagnosis.py"


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(TRIED, {"nic-link-retrained"}))
async def test_the_first_line_names_what_is_faulty(name: str) -> None:
    if not is_loud(name):
        pytest.skip("it is only a note")
    begin = SUBJECTS[name][0] if name in SUBJECTS else 0
    names = [re.compile(rf"(?<!\w){re.escape(subject)}(?!\d)") for subject in subjects(name)]
    clock = SteppedClock()
    latest = clock.now + begin + SECONDS_TO_READ
    host = faulty(name, clock)
    app = GdrtopApp(lambda: host, host.origin, NEVER)
    overview = ""
    async with app.run_test(size=SIZE) as pilot:
        while clock.now + STEP_SECONDS <= latest:
            await readings(pilot, clock, STEP_SECONDS + 1)
            overview = first_finding(text_of(pilot))
            if any(subject.search(overview) for subject in names):
                return
        await pilot.press("t")
        await settled(pilot)
        job = first_job(text_of(pilot))
    assert any(subject.search(job) for subject in names), (subjects(name), overview, job)


async def test_the_first_line_names_the_rank_that_copies_through_host_memory() -> None:
    clock = SteppedClock()
    host = faulty("job-rank-staged", clock)
    app = GdrtopApp(lambda: host, host.origin, NEVER)
    async with app.run_test(size=SIZE) as pilot:
        for _ in range(SECONDS_TO_READ // STEP_SECONDS):
            await readings(pilot, clock, STEP_SECONDS + 1)
            if "▲" in (line := first_finding(text_of(pilot))):
                break
    assert f"▲ rank {(live.STAGED_RANK + host.tree.seed) % 8} " in line
