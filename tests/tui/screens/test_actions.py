"""The actions' screens as an admin uses them: keys pressed, screens read."""

import pytest
from textual.widgets import Input

from probes.simulation.host import SimulatedHost
from tests.support.action_screens import (
    NODE,
    HeldHost,
    QuickHost,
    asked,
    ended,
    is_on,
    listed,
    on,
    question,
    seen,
)
from tests.support.pilot import SteppedClock, readings, shown, stepped_app, until
from tui.screens.actions.screen import ActionsScreen
from tui.screens.ask import AskScreen
from tui.screens.confirm import ConfirmScreen
from tui.screens.doctor.screen import DoctorScreen
from tui.screens.overview.screen import OverviewScreen
from tui.screens.run import RunScreen

SIZES = [(80, 24), (120, 40)]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.slow
async def test_every_action_is_listed_with_its_reason(size: tuple[int, int]) -> None:
    clock = SteppedClock()
    async with stepped_app(QuickHost(NODE, clock=clock)).run_test(size=size) as pilot:
        await listed(pilot, clock)
        lines = seen(pilot, "offers")
        assert "▸ load-modules" in lines
        assert "– unload-peermem" in lines
        assert "Unload nvidia_peermem · " in lines
        assert lines.index("ACTIONS") < lines.index("FIXES FOR FINDINGS") < lines.index("▸ fix:peermem")
        assert (
            lines.index("▸ load-modules") < lines.index("▸ persist-modules") < lines.index("– unload-peermem")
        )
        while pilot.app.actions.state.selected != "unload-peermem":
            await pilot.press("down")
        assert "nvidia_peermem is not loaded" in seen(pilot, "selected")
        await pilot.press("enter")
        assert is_on(pilot, ActionsScreen)
        assert "nvidia_peermem is not loaded" in seen(pilot, "selected")
        await pilot.press("escape", "escape")
        await on(pilot, OverviewScreen)


@pytest.mark.slow
async def test_refresh_examines_the_node_again_on_both_screens() -> None:
    clock = SteppedClock()
    async with stepped_app(QuickHost(NODE, clock=clock)).run_test(size=(120, 40)) as pilot:
        await listed(pilot, clock)
        state = pilot.app.actions.state
        first = state.examination
        await pilot.press("r")
        await until(pilot, lambda: state.examination is not first)
        second = state.examination
        await pilot.press("d")
        await on(pilot, DoctorScreen)
        await pilot.press("f5")
        await until(pilot, lambda: state.examination is not second)


@pytest.mark.slow
async def test_the_filter_lists_matching_entries() -> None:
    clock = SteppedClock()
    async with stepped_app(QuickHost(NODE, clock=clock)).run_test(size=(120, 40)) as pilot:
        await listed(pilot, clock)
        await pilot.press("slash", *"restart", "enter")
        names = [line.split()[1] for line in seen(pilot, "offers").splitlines() if line[0] in "▸–"]
        assert names
        assert all("restart" in name for name in names)
        await pilot.press("slash", *"zzz", "enter")
        assert "No action contains" in seen(pilot, "offers")
        await pilot.press("escape")
        assert "load-modules" in seen(pilot, "offers")


@pytest.mark.slow
async def test_a_plan_is_shown_and_run_and_the_node_checked_again() -> None:
    clock = SteppedClock()
    async with stepped_app(QuickHost(NODE, clock=clock)).run_test(size=(120, 40)) as pilot:
        await listed(pilot, clock)
        await pilot.press("down", "enter")
        await on(pilot, ConfirmScreen)
        plan = seen(pilot, "plan")
        assert "modprobe nvidia_peermem" in plan
        assert "can be undone" in plan
        assert "undo: rmmod" in plan
        await pilot.press("enter")
        await ended(pilot)
        console = seen(pilot, "console")
        assert "on the simulated node" in console
        assert "1 modprobe nvidia_peermem" in console
        assert "✓ done" in console
        assert "fixed   ✓ peermem-not-loaded" in console
        await pilot.press("escape")
        await on(pilot, ActionsScreen)
        await until(pilot, lambda: "– load-peermem" in seen(pilot, "offers"))
        assert "▸ unload-peermem" in seen(pilot, "offers")
        await pilot.press("escape")
        assert "ACT" not in shown(pilot, "head")


@pytest.mark.slow
async def test_a_plan_that_affects_jobs_runs_only_after_the_host_name() -> None:
    clock = SteppedClock()
    host = HeldHost(NODE, clock)
    async with stepped_app(host).run_test(size=(120, 40)) as pilot:
        await listed(pilot, clock)
        await asked(pilot, "restart-fabric-manager")
        assert "train.py" in seen(pilot, "plan")
        await pilot.press(*"hgx-h10", "enter")
        await pilot.pause()
        assert is_on(pilot, ConfirmScreen)
        assert "not the host name (hgx-h100). Nothing was run." in question(pilot)
        await pilot.press("0", "enter")
        await on(pilot, RunScreen)
        host.release_one()
        await ended(pilot)
        assert host.ran[0][0] == "systemctl"


@pytest.mark.slow
async def test_a_plan_that_cuts_the_session_asks_for_the_host_name() -> None:
    clock = SteppedClock()
    host = QuickHost("dgx-a100+ssh-over-nic", clock=clock)
    async with stepped_app(host).run_test(size=(80, 24)) as pilot:
        await listed(pilot, clock)
        await asked(pilot, "restart-openibd")
        told = " ".join(seen(pilot, "plan").split())
        assert "THIS CAN CUT OFF THE NODE" in told
        assert "takes down ens4np0, which carries this SSH session (from 10.0.0.5)" in told
        assert "run detached from this terminal" in told
        assert "the host name dgx-a100" in str(pilot.app.screen.query_one(Input).placeholder)
        await pilot.press("y", "enter")
        await pilot.pause()
        assert is_on(pilot, ConfirmScreen)


@pytest.mark.slow
async def test_similar_steps_are_folded_and_unfold_on_a_key() -> None:
    clock = SteppedClock()
    async with stepped_app(QuickHost("hgx-h100+acs-on", clock=clock)).run_test(size=(120, 40)) as pilot:
        await listed(pilot, clock)
        await asked(pilot, "acs-redirect-off")
        assert "STEPS 1–16\n" in seen(pilot, "plan")
        assert seen(pilot, "plan").count("\n  setpci") == 1
        await pilot.press("tab", "a")  # out of the field of the host name
        assert "STEP 16\n" in seen(pilot, "plan")
        assert seen(pilot, "plan").count("\n  setpci") == 16
        await pilot.press("a")
        assert "… 15 more like this" in seen(pilot, "plan")


@pytest.mark.slow
async def test_a_run_can_be_left_and_shown_again_and_stopped() -> None:
    clock = SteppedClock()
    host = HeldHost("hgx-h100+nvidia-not-loaded", clock)
    async with stepped_app(host).run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 2)
        await listed(pilot, clock)
        await asked(pilot, "load-modules")
        await pilot.press("enter")
        await on(pilot, RunScreen)
        await until(pilot, lambda: "step 1/" in seen(pilot, "summary"))
        await pilot.press("escape", "escape")
        await on(pilot, OverviewScreen)
        assert "ACTION step 1/3" in shown(pilot, "head")
        await pilot.press("x")
        await on(pilot, RunScreen)
        await pilot.press("k", "ctrl+k")
        await on(pilot, AskScreen)
        await pilot.press("escape")
        await on(pilot, RunScreen)
        assert "stopping" not in seen(pilot, "summary")
        await pilot.press("ctrl+c", "ctrl+k")
        await on(pilot, RunScreen)
        assert "stopping after this step" in seen(pilot, "summary")
        await pilot.press("ctrl+k", "y")
        await on(pilot, RunScreen)
        assert "no longer waiting" in seen(pilot, "summary")
        host.release_one()
        await ended(pilot)
        console = seen(pilot, "console")
        assert "■ stopped" in console
        assert "not run:" in console
        assert len(host.ran) == 1


@pytest.mark.slow
async def test_quitting_waits_for_the_running_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SteppedClock()
    host = HeldHost("hgx-h100+nvidia-not-loaded", clock)
    app = stepped_app(host)
    async with app.run_test(size=(120, 40)) as pilot:
        await listed(pilot, clock)
        await asked(pilot, "load-modules")
        await pilot.press("enter")
        await until(pilot, lambda: host.ran)
        monkeypatch.setattr("tui.terminal_app.QUIT_DELAY_SECONDS", 1e6)
        await pilot.press("q", "q", "q")
        await pilot.pause()
        assert is_on(pilot, OverviewScreen)  # the third came too soon after the step back
        monkeypatch.setattr("tui.terminal_app.QUIT_DELAY_SECONDS", 0.0)
        await pilot.press("q")
        await on(pilot, AskScreen)
        await pilot.press("y")
        await on(pilot, RunScreen)
        assert "then gdrtop quits" in seen(pilot, "summary")
        assert app.is_running
        host.release_one()
        await until(pilot, lambda: not app.is_running)
    app.quitting.finish()
    assert len(host.ran) == 1


@pytest.mark.slow
async def test_a_fix_of_the_doctor_is_an_action() -> None:
    clock = SteppedClock()
    async with stepped_app(QuickHost("hgx-h100+no-gdr-path", clock=clock)).run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 2)
        await pilot.press("d")
        await until(pilot, lambda: is_on(pilot, DoctorScreen) and " passed" in seen(pilot, "summary"))
        assert "modprobe nvidia_peermem" in seen(pilot, "details")
        await pilot.press("f")
        await on(pilot, ConfirmScreen)
        await pilot.press("y")
        await ended(pilot)
        console = seen(pilot, "console")
        assert "✗ BROKEN" in console
        # The fix works for new jobs; the running one keeps its path.
        assert "▲ DEGRADED" in console
        assert "new     ▲ job-log-gdr-disabled A job started before nvidia_peermem" in console
        assert "no-gdr-path" in console
        await pilot.press("escape")
        await on(pilot, DoctorScreen)
        assert "no-gdr-path" not in seen(pilot, "findings")


@pytest.mark.slow
async def test_l_loads_the_modules() -> None:
    clock = SteppedClock()
    async with stepped_app(QuickHost(NODE, clock=clock)).run_test(size=(80, 24)) as pilot:
        await readings(pilot, clock, 2)
        await pilot.press("l")
        await on(pilot, ConfirmScreen)
        await pilot.press("enter")
        await ended(pilot)
        await pilot.press("escape")
        await on(pilot, OverviewScreen)
        await pilot.press("l")
        await on(pilot, ActionsScreen)
        await until(pilot, lambda: "Load missing modules" in seen(pilot, "selected"))
        assert not pilot.app._notifications


async def test_an_idle_simulated_node_does_not_change() -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100", clock=clock)).run_test(size=(80, 24)) as pilot:
        await listed(pilot, clock)
        assert "possible" in seen(pilot, "summary")
