"""What gdrtop forecasts for the guest's next boot, and what it finds after that boot."""

from dataclasses import dataclass
from typing import Any

from tests.node_vm.guest import Guest
from tests.node_vm.machine import Machine


@dataclass(frozen=True)
class Outcome:
    """A verdict, and the findings that cost bandwidth."""

    state: str
    path: str | None
    gpus: tuple[int, int]  # served, present
    costs: frozenset[str]


def outcome_of(document: dict[str, Any]) -> Outcome:
    """The outcome in what `check`, or one kernel of its forecast, says as JSON."""
    verdict = document["verdict"]
    costs = (
        finding["id"]
        for finding in document["findings"]
        if finding["status"] == "found"
        and finding["data_path"]
        and finding["severity"] != "note"
        and not finding["part_of"]
    )
    gpus = verdict["gpus_served"], verdict["gpus"]
    return Outcome(verdict["state"], verdict["path"], gpus, frozenset(costs))


def forecast_of(guest: Guest) -> Outcome:
    """What gdrtop says that the next boot brings."""
    (kernel,) = guest.json("forecast")["kernels"]
    return outcome_of(kernel)


def reboot_as_forecast(machine: Machine) -> Outcome:
    """Reboots, and gives what the guest is then, which is what was forecast."""
    forecast = forecast_of(machine.guest)
    machine.reboot("load-drivers || true")  # those that the kernel refuses
    found = outcome_of(machine.guest.json("check"))
    assert forecast == found
    return found
