"""The ends of a test meet, are ended whatever happens, and a failure says why."""

from collections.abc import Callable

import pytest

from probes.bandwidth.model.request import MemoryPath, Mode, Request
from probes.bandwidth.model.result import Ending
from probes.bandwidth.tools.failures import Failure
from tests.tui.bandwidth.scripted import BANNER, REFUSED, SERVER, Play, Scene, rows
from tui.bandwidth.events import BandwidthEvent, LinePrinted, ProcessStarted, SampleReceived
from tui.bandwidth.runner import TestRunner

FOREVER = Play(SERVER, opens_port_at=0.2)
MEASURES = Play(rows(0.5, 20))


def meet(
    scene: Scene, request: Request | None = None, cancel: Callable[[], bool] = lambda: False
) -> tuple[Ending, Failure | None, list[BandwidthEvent]]:
    """Goes through a whole test; a hundred seconds are more than any of these takes."""
    heard: list[BandwidthEvent] = []
    test = scene.series(request or Request()).tests[0]
    began = scene.now
    with TestRunner(scene.host, scene, test, heard.append) as meeting:
        while meeting.step():
            assert scene.now - began < 100
            if cancel():
                meeting.cancel()
                break
    assert scene.alive == []
    return (*meeting.outcome(), heard)


def test_an_endless_test_is_ended_after_its_time_the_client_first() -> None:
    scene = Scene([FOREVER, MEASURES])
    ending, trouble, heard = meet(scene, Request(duration_s=10))
    assert (ending, trouble) == (Ending.DONE, None)
    measured = [event for event in heard if isinstance(event, SampleReceived)]
    assert measured[-1].seconds == pytest.approx(10.0, abs=0.2)
    assert scene.log == ["start 0", "start 1", "end 1", "end 0"]


def test_the_client_waits_until_the_server_listens() -> None:
    scene = Scene([Play(SERVER, opens_port_at=4.0), MEASURES])
    meet(scene)
    assert scene.running[1].began - scene.running[0].began >= 4.0


def test_nobodys_client_goes_to_a_strangers_server() -> None:
    scene = Scene([])
    test = scene.series(Request()).tests[0]
    scene.listen(18515)
    with TestRunner(scene.host, scene, test, lambda event: None) as meeting:
        assert not meeting.step()
    ending, trouble = meeting.outcome()
    assert ending is Ending.FAILED
    assert trouble is not None
    assert "another process is now listening on TCP port 18515" in trouble.text
    assert scene.started == []


def test_a_server_that_says_nothing_gets_no_client_until_it_waits() -> None:
    scene = Scene([Play(((7.0, BANNER),), opens_port_at=0.1), MEASURES])
    meet(scene)
    assert scene.running[1].began - scene.running[0].began >= 7.0


def test_a_port_that_is_not_seen_is_not_waited_for_without_end() -> None:
    scene = Scene([Play(SERVER), MEASURES])
    assert meet(scene)[0] is Ending.DONE
    assert scene.running[1].began - scene.running[0].began == pytest.approx(10.1, abs=0.2)


def test_where_the_ports_cannot_be_seen_a_moment_is_enough() -> None:
    scene = Scene([Play(SERVER), MEASURES])
    test = scene.series(Request()).tests[0]
    scene.host.tree.remove("/proc/net/tcp")
    with TestRunner(scene.host, scene, test, lambda event: None) as meeting:
        while meeting.step():
            pass
    assert scene.running[1].began - scene.running[0].began < 1.0


def test_a_server_that_dies_first_is_told_in_its_own_words() -> None:
    scene = Scene([Play(((0.1, "Couldn't allocate MR with error=14"),), ends_at=0.2, status=1)])
    ending, trouble, _ = meet(scene, Request(memory=MemoryPath.PEERMEM))
    assert ending is Ending.FAILED
    assert trouble is not None
    assert "nvidia_peermem" in trouble.text
    assert trouble.raw == "Couldn't allocate MR with error=14"
    assert scene.log == ["start 0"]


def test_a_server_that_dies_in_the_middle_takes_the_client_with_it() -> None:
    server = Play((*SERVER, (3.0, " Completion with error at server"), (3.0, " Failed status 12: wr_id 0")))
    server.ends_at, server.status, server.opens_port_at = 3.1, 1, 0.2
    scene = Scene([server, Play(rows(0.5, 2))])
    ending, trouble, _ = meet(scene)
    assert ending is Ending.FAILED
    assert trouble is not None
    assert "did not respond" in trouble.text
    assert scene.log[-1] == "end 1"


def test_a_program_that_could_not_be_begun_says_so() -> None:
    scene = Scene([Play(ends_at=0.0, status=None, why="ib_write_bw is not installed")])
    ending, trouble, _ = meet(scene)
    assert ending is Ending.FAILED
    assert trouble is not None
    assert "not installed" in trouble.text


@pytest.mark.slow
def test_a_test_that_ends_well_without_a_figure_has_failed() -> None:
    scene = Scene([Play(SERVER, ends_at=2.0, opens_port_at=0.2), Play(ends_at=1.0)])
    ending, trouble, _ = meet(scene, Request(tool="ib_write_lat"))
    assert ending is Ending.FAILED
    assert trouble is not None
    assert "without a result" in trouble.text


def test_one_that_passes_its_limit_of_time_says_so() -> None:
    late = Play(SERVER, ends_at=30.0, status=-15, why="stopped after its time limit of 30 s")
    ending, trouble, _ = meet(Scene([late]), Request(setup=Mode.SERVER))
    assert ending is Ending.FAILED
    assert trouble is not None
    assert "time limit" in trouble.text


def test_a_client_that_came_before_its_far_server_comes_again() -> None:
    early = Play(((0.1, REFUSED), (0.1, "Unable to init the socket connection")), ends_at=0.2, status=1)
    scene = Scene([Play(SERVER), early, early, MEASURES])
    ending, _, heard = meet(scene, Request(setup=Mode.BOTH_ENDS, peer="root@node2"))
    assert ending is Ending.DONE
    names = [event.process for event in heard if isinstance(event, ProcessStarted)]
    assert names == ["server", *["client"] * 3]


def test_what_an_early_client_said_is_no_reason_for_a_later_failure() -> None:
    early = Play(((0.1, REFUSED),), ends_at=0.2, status=1)
    broken = Play(((0.1, "Failed to modify QP 77 to RTR"),), ends_at=0.2, status=1)
    scene = Scene([Play(SERVER), early, broken])
    ending, trouble, _ = meet(scene, Request(setup=Mode.BOTH_ENDS, peer="node2"))
    assert ending is Ending.FAILED
    assert trouble is not None
    assert "GID index" in trouble.text


def test_a_client_does_not_come_for_ever() -> None:
    early = Play(((0.1, REFUSED),), ends_at=0.2, status=1)
    scene = Scene([Play(SERVER), *[early] * 20])
    ending, trouble, _ = meet(scene, Request(setup=Mode.BOTH_ENDS, peer="node2"))
    assert ending is Ending.FAILED
    assert trouble is not None
    assert "cannot connect to node2:18515" in trouble.text
    assert len(scene.started) == 6


def test_a_client_of_a_server_here_does_not_come_again() -> None:
    scene = Scene([FOREVER, Play(((0.1, REFUSED),), ends_at=0.2, status=1)])
    assert meet(scene)[0] is Ending.FAILED
    assert len(scene.started) == 2


@pytest.mark.slow
@pytest.mark.parametrize("steps", range(0, 60, 3))
def test_cancelled_at_any_moment_nothing_is_left(steps: int) -> None:
    scene = Scene([Play(SERVER, opens_port_at=0.5), Play(rows(0.4, 20))])
    left = [steps]

    def cancel() -> bool:
        left[0] -= 1
        return left[0] < 0

    ending, trouble, _ = meet(scene, cancel=cancel)
    assert (ending, trouble) == (Ending.CANCELED, None)
    ended = [line for line in scene.log if line.startswith("end")]
    assert ended == [f"end {number}" for number in reversed(range(len(scene.started)))]


def test_whoever_listens_may_fail_and_nothing_is_left() -> None:
    scene = Scene([FOREVER, MEASURES])

    def hear(event: BandwidthEvent) -> None:
        if isinstance(event, SampleReceived):
            raise RuntimeError("the screen has gone")

    test = scene.series(Request()).tests[0]

    def go_through() -> None:
        with TestRunner(scene.host, scene, test, hear) as meeting:
            while meeting.step():
                pass

    with pytest.raises(RuntimeError):
        go_through()
    assert scene.log[-2:] == ["end 1", "end 0"]


def test_both_ends_are_heard_and_only_the_clients_rows_count() -> None:
    scene = Scene([Play((*SERVER, *rows(1.0, 5)), opens_port_at=0.2), MEASURES])
    _, _, heard = meet(scene, Request(duration_s=3))
    assert {event.process for event in heard if isinstance(event, LinePrinted)} == {"server", "client"}
    assert len([event for event in heard if isinstance(event, SampleReceived)]) <= 5
