"""Setup of a real kernel: from nothing loaded to a measured loopback, over two reboots."""

import json
from typing import Any

from tests.node_vm.guest import Guest
from tests.node_vm.machine import Machine

DONE, TO_DO = "done", "to do"


def setup(guest: Guest) -> dict[str, Any]:
    """What setup says; its status is not 0 as long as steps are left."""
    document: dict[str, Any] = json.loads(guest.ask("gdrtop", "setup", "--json").output)
    return document


def states(guest: Guest) -> dict[str, str]:
    """The state of each step."""
    return {step["id"]: step["state"] for step in setup(guest)["steps"]}


def setup_step(guest: Guest, name: str) -> dict[str, Any]:
    """One step."""
    return next(step for step in setup(guest)["steps"] if step["id"] == name)


def run_step(guest: Guest, name: str) -> str:
    """Runs a step as an admin would, without being asked."""
    return guest.run("gdrtop", "setup", name, "--run", "--yes")


def test_from_nothing_loaded_to_a_measured_loopback_that_survives_reboots(rebooting: Machine) -> None:
    guest = rebooting.guest
    guest.run("reset-node")
    guest.run("rm", "-rf", "/var/log/gdrtop", "/root/.local/share/gdrtop")
    guest.ask("gdrtop", "setup", "--path", "peermem")
    begun = states(guest)
    assert begun["modules"] == TO_DO
    assert begun["measure-host"] != DONE

    run_step(guest, "modules")
    assert "nvidia_peermem" in guest.read("/proc/modules")
    # What remains cannot be mended: mlx5_core drives no pretended NIC, and there are no device files.
    left = setup_step(guest, "modules")["findings"]
    assert set(left) <= {"nic-without-driver", "dev-nvidia-missing"}
    for name in ("modules", "ports", "acs", "iommu"):
        guest.ask("gdrtop", "setup", "--skip", name)

    # In the middle: what was only loaded is gone, and setup says so; the choices are not.
    rebooting.reboot()
    guest = rebooting.guest
    guest.ask("gdrtop", "setup", "--unskip", "modules")
    again = setup(guest)
    assert again["path"] == "nvidia-peermem"
    resumed = {step["id"]: step for step in again["steps"]}
    assert "peermem-not-loaded" in resumed["modules"]["findings"]
    assert resumed["ports"]["state"] == "skipped"
    assert resumed["reboot"]["state"] != DONE

    run_step(guest, "modules")
    guest.ask("gdrtop", "setup", "--skip", "modules")
    run_step(guest, "boot")
    measured = run_step(guest, "measure-host")
    assert "Gb/s" in measured
    ready = states(guest)
    assert ready["measure-host"] == DONE
    assert ready["reboot"] == TO_DO

    rebooting.reboot()
    last = states(rebooting.guest)
    assert "nvidia_peermem" in rebooting.guest.read("/proc/modules")
    assert last["reboot"] == DONE
    assert last["measure-host"] == DONE
    rebooting.guest.run("gdrtop", "do", "unpersist-modules", "--yes")
    rebooting.guest.run("rm", "-rf", "/var/log/gdrtop", "/root/.local/share/gdrtop")
