"""A round measures all pairs at once, and leaves nothing running, whatever dies."""

from collections.abc import Sequence

import pytest

from probes.base.unknown import Unknown
from probes.fleet.attribution import PairMemory, PairResult
from probes.fleet.pairs import PairSettings, node_rail, pair_test
from probes.fleet.rails import rails_of
from probes.snapshot.examination import Examination, examine
from tests.support.pairs_fleet import GOOD, SLOW, DeadProcesses, Fleet, LostProcesses, fleet
from tui.bandwidth.pairs.pairs_runner import UNCONFIRMED, PairsRunner, PairTest

SETTINGS = PairSettings(memories=(PairMemory.HOST,))


def test_of(scene: Fleet, server: str, client: str) -> PairTest:
    seen: dict[str, Examination] = {}
    ends = []
    for name in (server, client):
        label = scene.hosts[name].origin.label
        examination = seen[label] if label in seen else examine(scene.hosts[name])
        seen[label] = examination
        rails = rails_of(examination.node, examination.topology)
        assert isinstance(rails, tuple)
        end = node_rail(name, examination, rails[0], PairMemory.HOST, SETTINGS)
        ends.append(end)
    planned = pair_test(ends[0], ends[1], SETTINGS)  # type: ignore[arg-type]
    return PairTest(ends[0], ends[1], planned)  # type: ignore[arg-type]


test_of.__test__ = False  # type: ignore[attr-defined]


def runner_of(scene: Fleet) -> PairsRunner:
    return PairsRunner(scene.nodes, SETTINGS, scene.clock, scene.clock.pause)


def figures(results: Sequence[PairResult]) -> dict[str, float | str]:
    return {
        f"{result.client.node} {result.server.node}": result.gbps.detail
        if isinstance(result.gbps, Unknown)
        else round(result.gbps, -1)
        for result in results
    }


def test_all_pairs_of_a_round_run_at_the_same_time() -> None:
    scene = fleet(GOOD, GOOD, GOOD, SLOW)
    began = scene.clock.now
    results = runner_of(scene).run([test_of(scene, "gpu0", "gpu1"), test_of(scene, "gpu2", "gpu3")])
    assert figures(results) == {"gpu1 gpu0": 190.0, "gpu3 gpu2": 90.0}
    assert scene.clock.now - began < 15
    assert scene.alive == {}
    assert results[0].limit_gbps is not None


def test_the_client_starts_after_its_server_waits() -> None:
    scene = fleet(GOOD, GOOD)
    seen: list[tuple[int, int]] = []
    counts = [scene.processes[name].started for name in ("gpu0", "gpu1")]
    scene.clock.on_pause.append(lambda: seen.append((len(counts[0]), len(counts[1]))))
    runner_of(scene).run([test_of(scene, "gpu0", "gpu1")])
    assert (1, 0) in seen
    assert seen[-1] == (1, 1)


def test_a_stop_ends_both_ends_and_gives_no_result() -> None:
    scene = fleet(GOOD, GOOD)
    runner = runner_of(scene)
    scene.clock.on_pause.append(lambda: scene.clock.now > 1003 and runner.stop())
    assert runner.run([test_of(scene, "gpu0", "gpu1")]) == ()
    assert [len(watched.started) for watched in scene.processes.values()] == [1, 1]
    assert scene.alive == {}
    assert runner.left_behind == []


def test_an_exception_ends_both_ends() -> None:
    scene = fleet(GOOD, GOOD)

    def fail() -> None:
        if scene.clock.now > 1003:
            raise RuntimeError("a fault of gdrtop")

    scene.clock.on_pause.append(fail)
    test = test_of(scene, "gpu0", "gpu1")
    with pytest.raises(RuntimeError):
        runner_of(scene).run([test])
    scene.clock.on_pause.clear()
    assert scene.alive == {}


def test_a_node_that_dies_fails_its_own_test_and_no_other() -> None:
    scene = fleet(GOOD, GOOD, GOOD, GOOD)
    dead = DeadProcesses()
    scene.nodes["gpu0"] = (scene.hosts["gpu0"], dead)
    tests = [test_of(scene, "gpu0", "gpu1"), test_of(scene, "gpu2", "gpu3")]
    runner = runner_of(scene)
    results = figures(runner.run(tests))
    assert results["gpu3 gpu2"] == 190.0
    assert results["gpu1 gpu0"] == "no answer from gpu0 or gpu1"
    assert runner.left_behind == [f"lost the connection: {UNCONFIRMED}"]
    assert scene.alive == {}


def test_a_broken_connection_is_a_failure_of_that_test() -> None:
    scene = fleet(GOOD, GOOD, GOOD, GOOD)
    scene.nodes["gpu1"] = (scene.hosts["gpu1"], LostProcesses())
    tests = [test_of(scene, "gpu0", "gpu1"), test_of(scene, "gpu2", "gpu3")]
    results = figures(runner_of(scene).run(tests))
    assert results["gpu1 gpu0"] == "connection lost: Connection reset by peer"
    assert results["gpu3 gpu2"] == 190.0
    assert scene.alive == {}


def test_a_server_that_cannot_start_says_why() -> None:
    scene = fleet(GOOD, GOOD)
    test = test_of(scene, "gpu0", "gpu1")
    for path in [path for path in scene.hosts["gpu0"].tree.files if path.endswith("/ib_write_bw")]:
        del scene.hosts["gpu0"].tree.files[path]
    (why,) = figures(runner_of(scene).run([test])).values()
    assert "ib_write_bw" in str(why)
    assert scene.alive == {}
