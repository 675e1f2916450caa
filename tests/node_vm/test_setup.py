"""Setup of a real kernel: from nothing loaded to a measured loopback, over two reboots."""

import json
from typing import Any

from tests.node_vm.guest import Guest
from tests.node_vm.machine import Machine
from tests.node_vm.next_boot import reboot_as_forecast

DONE, TO_DO = "done", "to do"


def setup(guest: Guest, *options: str) -> dict[str, dict[str, Any]]:
    """The steps by their ids; the status is not 0 as long as some are left."""
    document = json.loads(guest.gdrtop("setup", "--json", *options).output)
    assert document["path"] == "nvidia-peermem"
    return {step["id"]: step for step in document["steps"]}


def run_step(guest: Guest, name: str) -> str:
    """Runs a step as an admin would, without being asked."""
    return guest.gdrtop("setup", name, "--run", "--yes").output


def test_from_nothing_loaded_to_a_measured_loopback_that_survives_reboots(rebooting: Machine) -> None:
    guest = rebooting.guest
    guest.run("reset-node")
    guest.run("rm", "-rf", "/var/log/gdrtop", "/root/.local/share/gdrtop")
    # mlx5_core drives no pretended NIC, there are no device files, and the port's packets are small.
    begun = setup(guest, "--path", "peermem", "--skip", "ports")
    assert begun["modules"]["state"] == TO_DO
    assert begun["measure-host"]["state"] != DONE
    run_step(guest, "modules")
    assert "nvidia_peermem" in guest.read("/proc/modules")

    # In the middle: what was only loaded is gone, as was forecast, and setup says so; the choices are not.
    assert reboot_as_forecast(rebooting).state == "BROKEN"
    resumed = setup(guest)
    assert "peermem-not-loaded" in resumed["modules"]["findings"]
    assert resumed["ports"]["state"] == "skipped"
    assert resumed["reboot"]["state"] != DONE

    run_step(guest, "modules")
    left = setup(guest, "--skip", "modules,acs,iommu")
    assert set(left["modules"]["findings"]) <= {"nic-without-driver", "dev-nvidia-missing"}
    run_step(guest, "boot")
    assert "Gb/s" in run_step(guest, "measure-host")
    ready = setup(guest)
    assert "Gb/s" in ready["measure-host"]["reason"]
    assert ready["boot"]["state"] not in (TO_DO, "blocked")
    assert ready["reboot"]["state"] == TO_DO

    rebooting.reboot()
    guest = rebooting.guest
    assert "nvidia_peermem" in guest.read("/proc/modules")
    last = setup(guest)
    assert last["reboot"]["state"] == DONE
    assert "Gb/s" in last["measure-host"]["reason"]
    guest.run_gdrtop("do", "unpersist-modules", "--yes")
    guest.run("rm", "-rf", "/var/log/gdrtop", "/root/.local/share/gdrtop")
