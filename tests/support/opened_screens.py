"""Opens screens of the dashboard, on nodes that a test changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from textual.pilot import Pilot

from probes.simulation.bandwidth.playback import SimulatedTest
from probes.simulation.host import SimulatedHost
from tests.support.action_screens import on, question, seen
from tests.support.pilot import SteppedClock, readings, until
from tests.support.trees import MELLANOX, NVIDIA, add_function, add_rdma_device
from tui.screens.ask import AskScreen
from tui.screens.doctor.screen import DoctorScreen
from tui.screens.prove import RegistrationScreen
from widgets.base.lines_view import LinesView


async def opened(pilot: Pilot[None], clock: SteppedClock) -> None:
    """The doctor's screen with what was found."""
    await readings(pilot, clock, 2)
    await pilot.press("d")
    await until(pilot, lambda: isinstance(pilot.app.screen, DoctorScreen))
    await until(pilot, lambda: " passed" in seen(pilot, "summary"))
    await pilot.pause()


def many_devices(root: Path) -> None:
    """16 GPUs and 18 NICs."""
    for number in range(16):
        bus = f"{number * 4 + 1:02x}"
        path = (f"pci0000:{bus}", f"0000:{bus}:01.0", f"0000:{number * 4 + 2:02x}:00.0")
        add_function(root, path, NVIDIA, 0x2330, 0x030200, numa_node=number // 8, driver="nvidia")
    for number in range(18):
        bus = f"{128 + number * 4:02x}"
        path = (f"pci0000:{bus}", f"0000:{bus}:01.0", f"0000:{129 + number * 4:02x}:00.0")
        add_function(root, path, MELLANOX, 0x1021, 0x020700, numa_node=number // 9)
        add_rdma_device(root, f"mlx5_{number}", path)


def consent(pilot: Pilot[None]) -> str:
    lines = pilot.app.screen.query_one(LinesView).lines
    return " ".join(" ".join("".join(run.text for run in line) for line in lines).split())


class ProvingNode(SimulatedHost):
    """A simulated node on which a registration takes no time, and which counts them."""

    def __init__(self, name: str) -> None:
        self.clock = SteppedClock()
        super().__init__(name, clock=self.clock)
        self.tried: list[str] = []

    def begin_registration(self, gpu: str, nics: Sequence[str]) -> SimulatedTest:
        self.tried.append(gpu)
        begun = super().begin_registration(gpu, nics)
        self.clock.now += 1.0
        return begun


async def asked(pilot: Pilot[None], node: ProvingNode) -> None:
    """Open the screen and the question."""
    await readings(pilot, node.clock, 3)
    await pilot.press("ctrl+g")
    await on(pilot, RegistrationScreen)
    await until(pilot, lambda: "not registered yet" in seen(pilot, "registered"))
    await pilot.press("enter")
    await on(pilot, AskScreen)
    await until(pilot, lambda: "CUDA context" in question(pilot))


async def registered(pilot: Pilot[None], node: ProvingNode) -> None:
    """Confirm the question, and wait for the last GPU."""
    await asked(pilot, node)
    await pilot.press("y")
    await on(pilot, RegistrationScreen)
    await until(pilot, lambda: seen(pilot, "registered").count("registers with") == 8)
    await pilot.pause()
