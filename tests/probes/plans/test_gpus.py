"""What is done about GPUs and their driver: MIG, and a new driver."""

from dataclasses import replace

from probes.base.plan import Plan
from probes.base.unknown import Reason, Unknown
from probes.facts.system.services import ServiceState
from probes.snapshot.examination import Examination
from tests.support.changed_facts import said, with_module, with_service
from tests.support.doctor import examination_of
from tests.support.plans import commands

MIG = examination_of("hgx-h100+mig-with-gdr")
NEW_DRIVER = examination_of("hgx-h100+driver-half-updated")


def fix_of(name: str, examination: Examination) -> Plan:
    fix = said(name, examination).fix
    assert fix is not None
    return fix


def test_turning_mig_off_is_manual() -> None:
    fix = fix_of("mig-with-gdr", MIG)
    assert all(step.is_instruction for step in fix.steps)
    assert "mig-manager" in fix.steps[0].why
    assert "deletes the instances of GPU0" in fix.steps[1].why


def test_fabric_manager_is_upgraded_before_anything_stops() -> None:
    for name in ("driver-upgrade-blocked", "driver-half-updated"):
        assert "Install nvidia-fabricmanager 595.71.05" in fix_of(name, NEW_DRIVER).steps[0].why
    tools = NEW_DRIVER.tools
    assert not isinstance(tools, Unknown)
    unread = replace(NEW_DRIVER, tools=replace(tools, fabric_manager=Unknown(Reason.TIMED_OUT, "nv-fab…")))
    assert "Check that nv-fabricmanager" in fix_of("driver-upgrade-blocked", unread).steps[0].why
    ready = replace(NEW_DRIVER, tools=replace(tools, fabric_manager="595.71.05"))
    assert fix_of("driver-upgrade-blocked", ready).steps[0].why.startswith("Drain")
    stopped = with_service(NEW_DRIVER, "nvidia-fabricmanager", state=ServiceState.INACTIVE)
    assert fix_of("driver-upgrade-blocked", stopped).steps[0].why.startswith("Drain")


def test_fabric_manager_stops_last_and_starts_first() -> None:
    told = commands(fix_of("driver-upgrade-blocked", NEW_DRIVER))
    stops = [command for command in told if command.startswith("systemctl stop")]
    starts = [command for command in told if command.startswith("systemctl start")]
    assert stops[-1] == "systemctl stop nvidia-fabricmanager"
    assert starts[0] == "systemctl start nvidia-fabricmanager"
    (why,) = [
        step.why for step in fix_of("driver-upgrade-blocked", NEW_DRIVER).steps if "Stop nvidia-f" in step.why
    ]
    assert "on pre-H100 GPUs this aborts running CUDA jobs" in why


def test_nvidia_drm_is_unloaded_before_nvidia_modeset() -> None:
    shown = with_module(NEW_DRIVER, "nvidia", used_by=("nvidia_uvm", "nvidia_modeset"))
    told = commands(fix_of("driver-upgrade-blocked", shown))
    assert "modprobe -r nvidia_drm nvidia_modeset nvidia_uvm nvidia" in told
