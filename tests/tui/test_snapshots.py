"""How the screens look, at four sizes that admins have."""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Protocol

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from probes.simulation.host import SimulatedHost
from tests.support.action_screens import QuickHost, asked, ended, listed, on, seen
from tests.support.bandwidth_screens import measured, met, over, scripted, set_up, started
from tests.support.fleet_screens import FIRST, SECOND, FleetOnDemand
from tests.support.fleet_screens import read as read_fleet
from tests.support.opened_screens import ProvingNode, consent, opened, registered
from tests.support.pilot import SteppedClock, examined, overview, readings, settled, shown, stepped_app, until
from tests.support.recordings import recorded
from tests.support.setup_screens import to_setup
from tests.support.training_samples import install
from tui.app import GdrtopApp
from tui.runtime.replay_source import ReplaySource
from tui.screens.ask import AskScreen
from tui.screens.bandwidth_run.screen import BandwidthRunScreen
from tui.screens.confirm import ConfirmScreen
from tui.screens.history import HistoryScreen
from tui.screens.live.screen import LiveScreen
from tui.screens.request import Request


def _sizes(*usual: tuple[int, int]) -> list[Any]:
    """All sizes that are compared; the fast tier has the usual ones."""
    return [
        pytest.param(size, id=f"{size[0]}x{size[1]}", marks=[] if size in usual else pytest.mark.slow)
        for size in ((80, 24), (100, 30), (120, 40), (200, 60))
    ]


SIZES, SMALL_OR_SLOW = _sizes((80, 24), (120, 40)), _sizes((80, 24))


def after(clock: SteppedClock, *keys: str) -> Callable[[Pilot[None]], Awaitable[None]]:
    async def drive(pilot: Pilot[None]) -> None:
        await readings(pilot, clock, 5)
        await pilot.press(*keys)
        if pilot.app.screen is overview(pilot):
            await settled(pilot)
        await pilot.pause()

    return drive


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["hgx-h100", "pcie-l40s"])
def test_overview(snap_compare: Any, name: str, size: tuple[int, int]) -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost(name, clock=clock))
    assert snap_compare(app, terminal_size=size, run_before=after(clock))


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_a_broken_node(snap_compare: Any, size: tuple[int, int]) -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100+acs-on", clock=clock))

    async def to_findings(pilot: Pilot[None]) -> None:
        await examined(pilot, clock)
        await readings(pilot, clock, 4)

    assert snap_compare(app, terminal_size=size, run_before=to_findings)


@pytest.mark.slow
@pytest.mark.parametrize("size", SMALL_OR_SLOW)
def test_a_selected_gpu(snap_compare: Any, size: tuple[int, int]) -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("dgx-a100", clock=clock))
    assert snap_compare(app, terminal_size=size, run_before=after(clock, "down", "down"))


@pytest.mark.slow
@pytest.mark.parametrize("size", SMALL_OR_SLOW)
def test_a_recording(snap_compare: Any, size: tuple[int, int]) -> None:
    clock = SteppedClock()
    host = recorded(SimulatedHost("hgx-h100", clock=clock), clock, 5)
    app = GdrtopApp(lambda: host, host.origin, None, ReplaySource(host))

    async def to_the_third(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "1/5" in shown(pilot, "head"))
        await pilot.press("right_square_bracket", "right_square_bracket")
        await until(pilot, lambda: "3/5" in shown(pilot, "head"))
        pilot.app.post_message(Request("check"))
        state = overview(pilot).state
        assert state is not None
        await until(pilot, lambda: state.judgment is not None and state.judgment.is_checked)
        await settled(pilot)

    assert snap_compare(app, terminal_size=size, run_before=to_the_third)


@pytest.mark.slow
@pytest.mark.parametrize("size", SMALL_OR_SLOW)
def test_help(snap_compare: Any, size: tuple[int, int]) -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100", clock=clock))
    assert snap_compare(app, terminal_size=size, run_before=after(clock, "question_mark"))


@pytest.mark.parametrize("size", SMALL_OR_SLOW)
def test_the_doctor(snap_compare: Any, size: tuple[int, int]) -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100+no-gdr-path", clock=clock))

    async def to_the_doctor(pilot: Pilot[None]) -> None:
        await opened(pilot, clock)
        await pilot.press("e")
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=to_the_doctor)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_live(snap_compare: Any, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]) -> None:
    install(monkeypatch)
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100", clock=clock))

    async def to_live(pilot: Pilot[None]) -> None:
        await opened(pilot, clock)
        await pilot.press("escape")
        await readings(pilot, clock, 11)
        await pilot.press("t")
        await until(pilot, lambda: "mlx5_0" in seen(pilot, "nics"))
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=to_live)


@pytest.mark.parametrize("size", [pytest.param((80, 24), id="80x24")])
def test_live_of_engines(snap_compare: Any, size: tuple[int, int]) -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100+kv-over-tcp", clock=clock))

    async def to_live(pilot: Pilot[None]) -> None:
        await opened(pilot, clock)
        await pilot.press("escape")
        await readings(pilot, clock, 8)
        await pilot.press("t")
        await until(pilot, lambda: "10.0.0.8" in seen(pilot, "ranks"))
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=to_live)


@pytest.mark.slow
@pytest.mark.parametrize("size", SMALL_OR_SLOW)
def test_columns_of_live(snap_compare: Any, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]) -> None:
    install(monkeypatch)
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100", clock=clock))

    async def to_the_list(pilot: Pilot[None]) -> None:
        await opened(pilot, clock)
        await pilot.press("t", "tab")
        await until(pilot, lambda: "mlx5_0" in seen(pilot, "nics"))
        await pilot.press("C", "down", "space", "down")
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=to_the_list)


@pytest.mark.slow
@pytest.mark.parametrize("size", SMALL_OR_SLOW)
def test_the_order_of_live(snap_compare: Any, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]) -> None:
    install(monkeypatch)
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100", clock=clock))

    async def to_the_list(pilot: Pilot[None]) -> None:
        await opened(pilot, clock)
        await pilot.press("t", "tab")
        await until(pilot, lambda: "mlx5_0" in seen(pilot, "nics"))
        await pilot.press("o", "down")
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=to_the_list)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_live_in_the_past(snap_compare: Any, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]) -> None:
    install(monkeypatch)
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100", clock=clock))

    async def to_an_event(pilot: Pilot[None]) -> None:
        await opened(pilot, clock)
        await pilot.press("escape")
        await readings(pilot, clock, 11)
        await pilot.press("t", "left_parenthesis", "left_parenthesis")
        await until(pilot, lambda: "ago" in seen(pilot, "summary"))
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=to_an_event)


@pytest.mark.slow
@pytest.mark.parametrize("size", SMALL_OR_SLOW)
def test_nccl(snap_compare: Any, size: tuple[int, int]) -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100+job-rank-staged", clock=clock))

    async def to_a_log(pilot: Pilot[None]) -> None:
        await readings(pilot, clock, 3)
        await pilot.press("n")
        await until(pilot, lambda: "slurm" in seen(pilot, "logs"))
        await pilot.press("enter")
        await until(pilot, lambda: "channels on" in seen(pilot, "log"))
        await pilot.press("escape")
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=to_a_log)


@pytest.mark.slow
@pytest.mark.parametrize("size", SMALL_OR_SLOW)
def test_ras(snap_compare: Any, size: tuple[int, int]) -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100+rank-behind", clock=clock))

    async def to_an_answer(pilot: Pilot[None]) -> None:
        await readings(pilot, clock, 3)
        clock.now += 60.0  # the rank is behind by now
        await readings(pilot, clock, 2)
        await pilot.press("t")
        await on(pilot, LiveScreen)
        await pilot.press("i")
        await on(pilot, AskScreen)
        await until(pilot, lambda: "STATUS" in consent(pilot))
        await pilot.press("y")
        await until(pilot, lambda: "32 processes" in seen(pilot, "answer"))
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=to_an_answer)


@pytest.mark.slow
@pytest.mark.parametrize("size", SMALL_OR_SLOW)
def test_registration(snap_compare: Any, size: tuple[int, int]) -> None:
    node = ProvingNode("hgx-h100+dmabuf-nic-driver-lacks-support")

    async def to_results(pilot: Pilot[None]) -> None:
        await registered(pilot, node)

    assert snap_compare(stepped_app(node), terminal_size=size, run_before=to_results)


@pytest.mark.slow
@pytest.mark.parametrize("size", SMALL_OR_SLOW)
@pytest.mark.parametrize(
    ("demo", "keys"),
    [
        ("hgx-h100+iommu-translated,acs-on,memlock-login", ()),
        ("hgx-h100+iommu-translated,acs-on,memlock-login", ("o",)),
        ("pcie-l40s+new-node", ()),
    ],
    ids=["steps", "paths", "new-node"],
)
def test_setup(
    snap_compare: Any,
    monkeypatch: pytest.MonkeyPatch,
    size: tuple[int, int],
    demo: str,
    keys: tuple[str, ...],
) -> None:
    monkeypatch.setattr("tui.runtime.lock.user_name", lambda: "admin")
    clock = SteppedClock()
    app = stepped_app(SimulatedHost(demo, clock=clock))

    async def to_the_steps(pilot: Pilot[None]) -> None:
        await to_setup(pilot, clock)
        await pilot.press(*keys)
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=to_the_steps)


@pytest.mark.slow
def test_a_new_node_in_setup(snap_compare: Any) -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-b200+new-node", clock=clock))

    async def to_the_plan(pilot: Pilot[None]) -> None:
        await to_setup(pilot, clock)
        await pilot.press("enter")
        await on(pilot, ConfirmScreen)
        await pilot.pause()

    assert snap_compare(app, terminal_size=(80, 24), run_before=to_the_plan)


class Driven(Protocol):
    def __call__(self, pilot: Pilot[None], clock: SteppedClock) -> Awaitable[None]: ...


async def to_actions(pilot: Pilot[None], clock: SteppedClock) -> None:
    await listed(pilot, clock)


async def to_confirm(pilot: Pilot[None], clock: SteppedClock) -> None:
    await readings(pilot, clock, 2)
    await asked(pilot, "restart-fabric-manager")
    await pilot.press("enter", *"hgx")
    pilot.app.screen.query_one(Input).cursor_blink = False
    await pilot.pause()


async def to_run(pilot: Pilot[None], clock: SteppedClock) -> None:
    await readings(pilot, clock, 2)
    await asked(pilot, "load-modules")
    await pilot.press("enter")
    await ended(pilot)


async def to_history(pilot: Pilot[None], clock: SteppedClock) -> None:
    await to_run(pilot, clock)
    clock.now += 60.0
    await asked(pilot, "restart-fabric-manager")
    await pilot.press("enter", *"hgx-h100", "enter")
    await ended(pilot)
    await pilot.press("escape")
    assert isinstance(pilot.app, GdrtopApp)
    pilot.app.action_history()
    await on(pilot, HistoryScreen)
    await until(pilot, lambda: "done" in seen(pilot, "runs"))
    await pilot.pause()


@pytest.mark.slow
@pytest.mark.parametrize("size", SMALL_OR_SLOW)
@pytest.mark.parametrize(
    "drive", [to_actions, to_confirm, to_run, to_history], ids=lambda function: function.__name__
)
def test_acting(
    snap_compare: Any, monkeypatch: pytest.MonkeyPatch, drive: Driven, size: tuple[int, int]
) -> None:
    monkeypatch.setattr("pwd.getpwuid", lambda uid: SimpleNamespace(pw_name="admin"))
    monkeypatch.delenv("SUDO_USER", raising=False)
    clock = SteppedClock()
    app = stepped_app(QuickHost("hgx-h100+nvidia-not-loaded", clock=clock))

    async def run_before(pilot: Pilot[None]) -> None:
        await drive(pilot, clock)

    assert snap_compare(app, terminal_size=size, run_before=run_before)


@pytest.mark.slow
@pytest.mark.parametrize("size", SMALL_OR_SLOW)
def test_bandwidth_setup(snap_compare: Any, size: tuple[int, int]) -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100", clock=clock))

    async def to_settings(pilot: Pilot[None]) -> None:
        await set_up(pilot, clock, "down", "down")

    assert snap_compare(app, terminal_size=size, run_before=to_settings)


@pytest.mark.slow
@pytest.mark.parametrize("size", SMALL_OR_SLOW)
@pytest.mark.parametrize("seconds", [6, 10], ids=["running", "ended"])
def test_bandwidth_run(
    snap_compare: Any, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int], seconds: int
) -> None:
    processes, clock = scripted(monkeypatch), SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100", clock=clock))

    async def to_rows(pilot: Pilot[None]) -> None:
        await set_up(pilot, clock)
        await started(pilot)
        await met(pilot, clock, processes)
        figures = [386.0, 387.0, 381.0, 388.0, 390.0, 389.0, 200.0, 190.0, 388.0, 389.0]
        await measured(pilot, clock, processes.started[1], *figures[:seconds])
        if seconds == len(figures):
            clock.now += 1.0
            await over(pilot)
        screen = pilot.app.screen
        assert isinstance(screen, BandwidthRunScreen)
        screen.draw()
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=to_rows)


@pytest.mark.parametrize("size", SIZES)
def test_fleet(snap_compare: Any, size: tuple[int, int]) -> None:
    async def to_the_changes(pilot: Pilot[None]) -> None:
        await read_fleet(pilot, 2)
        await until(pilot, lambda: "changed" in seen(pilot, "head"))
        await pilot.pause()

    app = FleetOnDemand(FIRST, SECOND).app()
    assert snap_compare(app, terminal_size=size, run_before=to_the_changes)
