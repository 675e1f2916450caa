"""RAS in the dashboard: what is sent and when, what the user confirms before, and what the screens show."""

from __future__ import annotations

from itertools import pairwise

import pytest
from textual.pilot import Pilot

from probes.base.unknown import Maybe
from probes.host.ras import ANSWER_SECONDS, STATUS, VERBOSE_STATUS
from probes.simulation.host import SimulatedHost
from tests.support.action_screens import is_on, on, seen
from tests.support.opened_screens import consent
from tests.support.pilot import SteppedClock, readings, stepped_app, until
from tests.support.recordings import recorded
from tests.support.tiers import usual
from tui.app import GdrtopApp
from tui.runtime.replay_source import ReplaySource
from tui.screens.ask import AskScreen
from tui.screens.live.screen import LiveScreen
from tui.screens.nccl import NcclScreen
from tui.screens.ras import RasScreen


class Node(SimulatedHost):
    """A simulated node that counts what is sent to RAS and when."""

    def __init__(self, name: str = "hgx-h100+rank-behind") -> None:
        self.clock = SteppedClock()
        super().__init__(name, clock=self.clock)
        self.sent: list[tuple[float, str]] = []
        self.subscribed = 0
        self.ended = 0

    def ras_answer(self, address: str, command: str, seconds: float = ANSWER_SECONDS) -> Maybe[str]:
        self.sent.append((self.clock(), command))
        return super().ras_answer(address, command, seconds)

    def ras_events(self, address: str, last: bool = False) -> Maybe[tuple[str, ...]]:
        self.ended += last
        self.subscribed += not last
        return super().ras_events(address, last)


async def opened(pilot: Pilot[None], node: Node, key: str = "t") -> None:
    """Show Live or NCCL, with the jobs of the node known."""
    await readings(pilot, node.clock, 3)
    await pilot.press(key)
    await on(pilot, LiveScreen if key == "t" else NcclScreen)


async def asks(pilot: Pilot[None], key: str) -> str:
    """Press a key that needs a confirmation; return what the user is shown."""
    await pilot.press(key)
    await on(pilot, AskScreen)
    await until(pilot, lambda: consent(pilot))
    return consent(pilot)


def answer(pilot: Pilot[None]) -> str:
    """The lower pane as one line, however it is wrapped."""
    return " ".join(seen(pilot, "answer").split())


@pytest.mark.slow
@pytest.mark.parametrize("key", usual(["t", "n"], {"t"}))
async def test_one_key_asks_after_a_confirmation_and_shows_the_answer(key: str) -> None:
    node = Node()
    async with stepped_app(node).run_test(size=(100, 30)) as pilot:
        await opened(pilot, node, key)
        shown = await asks(pilot, "i")
        assert "gdrtop sends 'STATUS' to NCCL's RAS service on port 28028" in shown
        assert "can crash" in shown
        assert not node.sent
        await pilot.press("y")
        await until(pilot, lambda: "4 nodes, 32 processes" in answer(pilot))
        assert [command for _, command in node.sent] == [STATUS]
        await pilot.press("q")
        await on(pilot, LiveScreen if key == "t" else NcclScreen)


@pytest.mark.slow
@pytest.mark.parametrize("no", usual(["escape", "q"], {"escape"}))
async def test_nothing_is_sent_without_consent(no: str) -> None:
    node = Node()
    async with stepped_app(node).run_test(size=(80, 24)) as pilot:
        await opened(pilot, node)
        await asks(pilot, "i")
        await pilot.press("x", no)  # x is no command while it asks
        await on(pilot, RasScreen)
        await until(pilot, lambda: "not confirmed; nothing was sent" in answer(pilot).lower())
        assert not node.sent


@pytest.mark.slow
async def test_it_is_confirmed_once_and_never_asked_twice_in_ten_seconds() -> None:
    node = Node("hgx-h100+rank-behind")
    async with stepped_app(node).run_test(size=(120, 40)) as pilot:
        await opened(pilot, node)
        await asks(pilot, "i")
        await pilot.press("y")
        await until(pilot, lambda: "Queried at" in answer(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: "gdrtop waits 10 s" in answer(pilot))
        assert len(node.sent) == 1
        for _ in range(7):
            node.clock.now += 12.0
            before = len(node.sent)
            await pilot.press("enter")
            await until(
                pilot,
                lambda before=before: len(node.sent) > before and "querying" not in seen(pilot, "ports"),
            )
            assert is_on(pilot, RasScreen)
        await until(pilot, lambda: "rank 2 (GPU2, mlx5_2) has launched 3 fewer collectives" in answer(pilot))
        assert all(later - earlier >= 10.0 for (earlier, _), (later, _) in pairwise(node.sent))
        shown = await asks_again(pilot, node)
        assert "VERBOSE STATUS" in shown


async def asks_again(pilot: Pilot[None], node: Node) -> str:
    """Another command needs its own confirmation."""
    node.clock.now += 12.0
    shown = await asks(pilot, "v")
    before = len(node.sent)
    await pilot.press("y")
    await until(pilot, lambda: len(node.sent) > before)
    assert node.sent[-1][1] == VERBOSE_STATUS
    return shown


@pytest.mark.slow
async def test_a_young_job_is_not_asked() -> None:
    node = Node("hgx-h100+job-restarted-staged")
    async with stepped_app(node).run_test(size=(100, 30)) as pilot:
        await opened(pilot, node)
        node.clock.now += 40.0  # the job has restarted
        await readings(pilot, node.clock, 6)
        await pilot.press("i")
        await on(pilot, RasScreen)
        await until(pilot, lambda: "RAS must not be queried in the first 2 minutes" in answer(pilot))
        assert not node.sent


@pytest.mark.slow
async def test_diagnostics_need_a_new_nccl_and_a_confirmation_each_time() -> None:
    node = Node("hgx-h100+rank-behind")
    async with stepped_app(node).run_test(size=(100, 30)) as pilot:
        await opened(pilot, node)
        await asks(pilot, "i")
        await pilot.press("escape")
        await on(pilot, RasScreen)
        await pilot.press("ctrl+d")
        await until(pilot, lambda: "has no DIAGNOSTICS (added in NCCL 2.31)" in answer(pilot))
        assert not node.sent


async def test_events_are_followed_in_the_timeline_and_end_with_gdrtop() -> None:
    node = Node("hgx-h100+rank-stopped")
    async with stepped_app(node).run_test(size=(120, 40)) as pilot:
        await opened(pilot, node)
        shown = await asks(pilot, "m")
        assert "'MONITOR all'" in shown
        assert not node.subscribed
        await pilot.press("y")
        await until(pilot, lambda: node.subscribed == 1)
        await until(pilot, lambda: pilot.app._notifications)
        node.clock.now += 50.0
        await readings(pilot, node.clock, 3)
        await until(pilot, lambda: "rank 3 (GPU3, mlx5_3) does not respond to RAS" in seen(pilot, "changes"))
        assert not node.ended
        assert not node.sent
    assert node.ended == 1


@pytest.mark.slow
async def test_events_end_by_the_same_key() -> None:
    node = Node("hgx-h100+rank-stopped")
    async with stepped_app(node).run_test(size=(120, 40)) as pilot:
        await opened(pilot, node)
        await asks(pilot, "m")
        await pilot.press("y")
        await until(pilot, lambda: node.subscribed == 1 and pilot.app._notifications)
        await pilot.press("m")
        await until(pilot, lambda: node.ended == 1)
        await readings(pilot, node.clock, 3)
        assert "gdrtop no longer follows RAS events" in seen(pilot, "changes")
        asked = node.subscribed
        await readings(pilot, node.clock, 3)
        assert node.subscribed == asked
    assert node.ended == 1


@pytest.mark.slow
async def test_a_recording_sends_nothing_and_says_what_it_has() -> None:
    clock = SteppedClock()
    host = recorded(SimulatedHost("hgx-h100", clock=clock), clock, 3)
    app = GdrtopApp(lambda: host, host.origin, None, ReplaySource(host))
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app._shared.live.newest is not None)
        await pilot.press("t")
        await on(pilot, LiveScreen)
        await pilot.press("i")
        await on(pilot, RasScreen)
        await until(pilot, lambda: "not recorded" in answer(pilot))
