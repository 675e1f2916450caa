"""Setup of a real kernel by keys, at 80×24: from nothing loaded to "the node is set up", over a reboot."""

import json
import re
from collections.abc import Sequence
from typing import Any

from tests.node_vm.dashboard import Dashboard
from tests.node_vm.guest import Guest
from tests.node_vm.machine import Machine
from tests.node_vm.next_boot import reboot_as_forecast
from tests.node_vm.test_ladder import lsmod

DONE, TO_DO = "done", "to do"
NEEDED = {"mlx5_core", "nvidia", "nvidia_peermem"}
OF_USER = "/var/log/gdrtop /root/.local/share/gdrtop /root/gdrtop-report-*.html"
# What a virtual node can never do, and an admin leaves out: the steps, and why.
SKIPPED_AFTER_MODULES = {
    "modules": "mlx5_core drives no pretended NIC; all modules are loaded",
    "hardware": "NVML would name the GPUs, and the guest's library is an empty file",
    "build": "NVML would give the driver's version",
    "fabric": "NVML would give the state of NVLink",
    "pcie": "a GPU's link is narrow by the shape of the node",
    "memlock": "only a person can do it, and only a later login has another limit",
}
SKIPPED_AFTER_BOOT = {
    "boot": "its file is written; what is left is the persistence mode, which NVML would give",
    "tools": "Debian builds perftest without CUDA, and the guest has none to build it with",
}
SKIPPED_AFTER_MEASURING = {"measure-pair": "it needs perftest with CUDA", "measure-all": "so does this"}


def setup(guest: Guest, *options: str) -> dict[str, dict[str, Any]]:
    """The steps by their ids; the status is not 0 as long as some are left."""
    document = json.loads(guest.gdrtop("setup", "--json", *options).output)
    assert document["path"] == "nvidia-peermem"
    return {step["id"]: step for step in document["steps"]}


class SetupScreen:
    """The Setup screen of a dashboard, which is driven by keys alone."""

    def __init__(self, dashboard: Dashboard, order: Sequence[str]) -> None:
        self._dashboard, self._order = dashboard, order

    def open(self) -> str:
        """Open it from the overview; its lines, joined."""
        self._dashboard.until_shown("Overview", "q Quit")
        self._dashboard.press("s")
        return self.until("steps done")

    def until(self, text: str) -> str:
        """Wait for a text of the summary or a row, wherever its lines break."""
        return _joined(self._dashboard.until(lambda screen: text in _joined(screen)))

    def run(self, title: str) -> str:
        """Run the plan of the step that comes next; the console's last lines, joined."""
        self.until(f"next: {title}")
        self._dashboard.press("Enter")
        self.until("Press Enter to run it")
        self._dashboard.press("Enter")
        console = self.until("CHECKED AGAIN")
        self._dashboard.press("Escape")
        return console

    def measure(self, title: str) -> str:
        """Run the bandwidth test of the step that comes next; the lines with its result, joined."""
        self.until(f"next: {title}")
        self._dashboard.press("Enter")
        self.until("Enter: run")
        self._dashboard.press("Enter")
        self.until("Ctrl+R Run again")
        self._dashboard.press("q", "q")  # to the settings, and back
        return _joined(
            self._dashboard.until(lambda screen: title in screen and "1 test to run" not in screen)
        )

    def skip(self, *names: str) -> None:
        """Select these steps and skip them; each is then no longer counted."""
        for name in names:
            counted = re.search(r"of (\d+) steps done", self.until("steps done"))
            assert counted is not None
            self._dashboard.press("g", *("Down" for _ in range(self._order.index(name))), "S")
            self.until(f"of {int(counted[1]) - 1} steps done")


def _joined(screen: str) -> str:
    return " ".join(screen.split())


def test_by_keys_from_nothing_loaded_to_a_node_that_is_set_up(rebooting: Machine) -> None:
    guest = rebooting.guest
    guest.run("reset-node")
    guest.shell(f"rm -rf {OF_USER}")

    assert not lsmod(guest).keys() & NEEDED
    # The ports are left out: nothing configures these interfaces at boot, so a larger MTU would not last.
    begun = setup(guest, "--skip", "ports")
    assert begun["modules"]["state"] == TO_DO
    with Dashboard(guest, columns=80, rows=24) as dashboard:
        screen = SetupScreen(dashboard, list(begun))
        screen.open()
        assert "via peermem · 8 of 8 GPUs" in screen.run("Load the modules")
        assert lsmod(guest).keys() >= NEEDED
        screen.until("▸ Load the modules A NIC has no driver")
        screen.skip(*SKIPPED_AFTER_MODULES)
        screen.run("Load everything at boot")
        screen.until("? Load everything at boot")
        screen.skip(*SKIPPED_AFTER_BOOT)
        measured = screen.measure("Measure a NIC with host memory")
        assert "Gb/s" in measured
        if "✓ Measure a NIC with host memory" not in measured:  # emulation is slower than the port
            screen.skip("measure-host")
        screen.skip(*SKIPPED_AFTER_MEASURING)
        screen.until("next: Reboot and check again")
        dashboard.press("Enter")  # gdrtop leaves the command to the admin
        dashboard.until_shown("systemctl reboot", "gdrtop forecast")

    assert reboot_as_forecast(rebooting).state == "DEGRADED"
    assert lsmod(guest).keys() >= NEEDED
    with Dashboard(guest, columns=80, rows=24) as dashboard:
        screen = SetupScreen(dashboard, list(begun))
        screen.open()
        screen.until("next: Write the report")
        dashboard.press("Enter")
        done = re.search(r"(\d+) of (\d+) steps done", screen.until("· the node is set up"))
        assert done is not None
        assert done[1] == done[2]
    last = setup(guest)
    assert (last["reboot"]["state"], last["report"]["state"]) == (DONE, DONE)
    assert last["ports"]["state"] == "skipped"
    assert "<html" in guest.shell("cat gdrtop-report-*.html")
    guest.shell(f"reset-node; rm -rf {OF_USER}")


def test_the_script_is_played_to_its_end_and_again(node: Guest) -> None:
    node.shell(f"rm -rf {OF_USER}")
    steps = setup(node, "--path", "peermem")
    setup(node, "--skip", ",".join(step for step in steps if step not in ("modules", "boot")))
    node.write("/root/setup.sh", node.gdrtop("setup", "--script").output)
    for _ in ("from nothing loaded", "with all of it done"):
        played = node.ask("sh", "/root/setup.sh")
        assert played.status == 0, f"{played.output}{played.errors}"
        assert "Every step of this script is done" in played.output
        assert lsmod(node).keys() >= NEEDED
        assert "nvidia_peermem" in node.read("/etc/modules-load.d/gdrtop.conf")
    node.shell(f"rm -rf {OF_USER} /root/setup.sh")
