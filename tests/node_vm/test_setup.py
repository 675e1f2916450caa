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
    assert states(guest)["modules"] == DONE
    assert "nvidia_peermem" in guest.read("/proc/modules")

    # In the middle: what was only loaded is gone, and setup says so; the choice of the path is not.
    rebooting.reboot()
    guest = rebooting.guest
    again = setup(guest)
    assert again["path"] == "nvidia-peermem"
    resumed = {step["id"]: step["state"] for step in again["steps"]}
    assert resumed["modules"] == TO_DO
    assert resumed["reboot"] != DONE

    run_step(guest, "modules")
    run_step(guest, "boot")
    measured = run_step(guest, "measure-host")
    assert "Gb/s" in measured
    ready = states(guest)
    assert (ready["modules"], ready["boot"], ready["measure-host"]) == (DONE, DONE, DONE)
    assert ready["reboot"] == TO_DO

    rebooting.reboot()
    last = states(rebooting.guest)
    assert last["modules"] == DONE
    assert last["reboot"] == DONE
    assert last["measure-host"] == DONE
    rebooting.guest.run("gdrtop", "do", "unpersist-modules", "--yes")
    rebooting.guest.run("rm", "-rf", "/var/log/gdrtop", "/root/.local/share/gdrtop")
