"""The registration screen: nothing is registered before the user confirms, and what it shows then."""

from __future__ import annotations

import pytest

from tests.support.action_screens import on, question, seen
from tests.support.opened_screens import ProvingNode, asked, registered
from tests.support.pilot import readings, stepped_app, until
from tui.app import GdrtopApp
from tui.screens.prove import RegistrationScreen


@pytest.mark.slow
async def test_the_question_names_the_cost_and_the_jobs_and_esc_registers_nothing() -> None:
    node = ProvingNode("hgx-h100")
    async with stepped_app(node).run_test(size=(120, 40)) as pilot:
        await asked(pilot, node)
        assert "107 to 555 MiB" in question(pilot)
        assert "train.py" in question(pilot)
        await pilot.press("escape")
        await on(pilot, RegistrationScreen)
        assert node.tried == []
        assert "Nothing has been registered yet" in " ".join(seen(pilot, "reasons").split())


async def test_each_gpu_shows_what_registers_and_the_selected_one_why_not() -> None:
    node = ProvingNode("hgx-h100+dmabuf-nic-driver-lacks-support")
    async with stepped_app(node).run_test(size=(120, 40)) as pilot:
        await registered(pilot, node)
        assert len(node.tried) == 8
        assert "registers with 10 of 10 NICs" in seen(pilot, "registered")
        await pilot.press("down")
        shown = " ".join(seen(pilot, "reasons").split())
        assert "GPU1 with mlx5_6, DMA-BUF refused" in shown
        assert "does not show that data arrives" in shown


@pytest.mark.slow
async def test_a_read_only_dashboard_registers_nothing() -> None:
    node = ProvingNode("hgx-h100")
    app = GdrtopApp(lambda: node, node.origin, interval=None, read_only=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await readings(pilot, node.clock, 3)
        await pilot.press("ctrl+g")
        await on(pilot, RegistrationScreen)
        await until(pilot, lambda: "not registered yet" in seen(pilot, "registered"))
        await pilot.press("enter")
        await until(pilot, lambda: "--read-only" in seen(pilot, "registered"))
        assert node.tried == []
