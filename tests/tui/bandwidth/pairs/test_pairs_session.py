"""A whole run: suspects meet other nodes, busy nodes are left out, and an interrupted run goes on."""

from collections.abc import Callable
from pathlib import Path

import pytest

from probes.fleet.attribution import PairMemory, attribute
from probes.fleet.pairs import PairSettings
from tests.support.pairs_fleet import GOOD, SLOW, DeadProcesses, Fleet, fleet
from tui.bandwidth.pairs.pairs_session import NodeLeftOut, PairsEvent, PairsSession, RoundEnded, RoundStarted
from tui.files.pair_results import PairResultsFile

SETTINGS = PairSettings(memories=(PairMemory.HOST,))


def session_of(
    scene: Fleet,
    file: PairResultsFile | None = None,
    guards_jobs: bool = False,
    on_event: Callable[[PairsEvent], object] = lambda event: None,
) -> tuple[PairsSession, list[PairsEvent]]:
    seen: list[PairsEvent] = []

    def handle(event: PairsEvent) -> None:
        seen.append(event)
        on_event(event)

    session = PairsSession(scene.nodes, SETTINGS, handle, file, scene.clock, scene.clock.pause, guards_jobs)
    session.read()
    return session, seen


def rounds(seen: list[PairsEvent]) -> list[tuple[str, int]]:
    return [(event.title, event.pairs) for event in seen if isinstance(event, RoundStarted)]


def test_a_slow_node_is_measured_with_two_others_and_named() -> None:
    scene = fleet(GOOD, GOOD, SLOW, GOOD)
    session, seen = session_of(scene)
    plan = session.plan(True)
    assert (plan.nodes, plan.rails) == (("gpu0", "gpu1", "gpu2", "gpu3"), (0,))
    assert (plan.quick_seconds, plan.full_seconds) == (9.0, 27.0)
    session.run(False)
    again = ("suspects with other nodes, host memory", 2)
    assert rounds(seen) == [("quick round, host memory", 2), again, again]
    assert [culprit.node for culprit in attribute(session.results).culprits] == ["gpu2"]
    assert scene.alive == {}


def test_all_pairs_are_measured_once() -> None:
    scene = fleet(GOOD, GOOD, GOOD, GOOD)
    session, _ = session_of(scene)
    session.run(True)
    met = [frozenset((result.server.node, result.client.node)) for result in session.results]
    assert len(met) == len(set(met)) == 6


@pytest.mark.slow
def test_an_interrupted_run_goes_on_after_its_finished_pairs(tmp_path: Path) -> None:
    file = PairResultsFile(["gpu0", "gpu1", "gpu2", "gpu3"], SETTINGS, str(tmp_path))
    scene = fleet(GOOD, GOOD, GOOD, GOOD)
    session, seen = session_of(scene, file)
    scene.clock.on_pause.append(lambda: len(rounds(seen)) == 2 and session.stop())
    session.run(True)
    assert len(session.results) == 2
    assert scene.alive == {}
    later = fleet(GOOD, GOOD, GOOD, GOOD)
    session, seen = session_of(later, file)
    session.run(True)
    assert [pairs for _, pairs in rounds(seen)] == [2, 2]
    assert len(session.results) == 6
    assert file.unfinished() == ()  # the run is complete: the next one begins again


def test_a_node_with_a_running_job_is_left_out_with_the_reason() -> None:
    session, seen = session_of(fleet("hgx-h100", "hgx-h100"), guards_jobs=True)
    assert set(session.left_out) == {"gpu0", "gpu1"}
    assert session.left_out["gpu0"].startswith("in use: ")
    assert [event.node for event in seen if isinstance(event, NodeLeftOut)] == ["gpu0", "gpu1"]
    assert session.plan(False).nodes == ()


def take_port(scene: Fleet, name: str) -> None:
    row = f"   0: 00000000:{18515:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1\n"
    scene.hosts[name].tree.add("/proc/net/tcp", f"  sl  local_address rem_address   st\n{row}")


def test_a_node_whose_port_is_taken_is_left_out() -> None:
    scene = fleet(GOOD, GOOD, GOOD)
    take_port(scene, "gpu1")
    session, _ = session_of(scene)
    assert session.left_out == {"gpu1": "TCP port 18515 is in use there (choose another one with --port)"}


def test_a_node_that_is_used_meanwhile_takes_part_no_longer() -> None:
    scene = fleet(GOOD, GOOD, SLOW, GOOD)

    def use(event: PairsEvent) -> None:
        if isinstance(event, RoundEnded):
            take_port(scene, "gpu1")

    session, _ = session_of(scene, on_event=use)
    session.run(False)
    assert list(session.left_out) == ["gpu1"]
    assert "gpu1" not in {end.node for result in session.results[2:] for end in result.ends}


@pytest.mark.slow
def test_a_node_that_answers_no_more_is_left_out_after_two_rounds() -> None:
    scene = fleet(GOOD, GOOD, GOOD, GOOD, GOOD, GOOD)
    scene.nodes["gpu4"] = (scene.hosts["gpu4"], DeadProcesses())
    session, _ = session_of(scene)
    session.run(True)
    assert list(session.left_out) == ["gpu4"]
    assert "all of its tests fail" in session.left_out["gpu4"]
    assert scene.alive == {}
