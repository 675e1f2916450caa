"""What is done about GPUs and their driver: MIG, and a new driver."""

from dataclasses import replace

from probes.examination import Examination, examine
from probes.plan import Plan
from probes.services import ServiceState
from probes.unknown import Reason, Unknown
from tests.probes.checks.changed import said, with_module, with_service
from tests.probes.checks.doctor import examination_of
from tests.probes.plans.looks import commands
from tests.probes.simulation.node import end_job, node

MIG = examination_of("hgx-h100+mig-with-gdr")
NEW_DRIVER = examination_of("hgx-h100+driver-half-updated")


def fix_of(name: str, examination: Examination) -> Plan:
    fix = said(name, examination).fix
    assert fix is not None
    return fix


def test_mig_is_turned_off_once_the_jobs_have_ended() -> None:
    busy = fix_of("mig-with-gdr", MIG)
    assert busy.steps[0].is_instruction
    assert "let the jobs on these GPUs end first (processes 41000" in busy.steps[0].why
    assert "ends with 0 all the same" in busy.note


def test_idle_gpus_have_nothing_to_wait_for() -> None:
    host = node("hgx-h100+mig-with-gdr")
    end_job(host)
    first = commands(fix_of("mig-with-gdr", examine(host)))[0]
    assert first.startswith("nvidia-smi -i 0000:")
    assert first.endswith(" -mig 0")


def test_jobs_that_cannot_be_seen_may_be_there() -> None:
    blind = replace(MIG, processes=Unknown(Reason.NEEDS_ROOT, "/proc"))
    assert fix_of("mig-with-gdr", blind).steps[0].is_instruction


def test_fabric_manager_has_to_be_of_the_new_driver_before_anything_is_stopped() -> None:
    for name in ("driver-upgrade-blocked", "driver-half-updated"):
        assert "install nvidia-fabricmanager 570.133.20" in fix_of(name, NEW_DRIVER).steps[0].why
    tools = NEW_DRIVER.tools
    assert not isinstance(tools, Unknown)
    unread = replace(NEW_DRIVER, tools=replace(tools, fabric_manager=Unknown(Reason.TIMED_OUT, "nv-fab…")))
    assert "make sure that" in fix_of("driver-upgrade-blocked", unread).steps[0].why
    ready = replace(NEW_DRIVER, tools=replace(tools, fabric_manager="570.133.20"))
    assert fix_of("driver-upgrade-blocked", ready).steps[0].why.startswith("drain")
    stopped = with_service(NEW_DRIVER, "nvidia-fabricmanager", state=ServiceState.INACTIVE)
    assert fix_of("driver-upgrade-blocked", stopped).steps[0].why.startswith("drain")


def test_nvidia_drm_goes_before_what_it_holds() -> None:
    shown = with_module(NEW_DRIVER, "nvidia", used_by=("nvidia_uvm", "nvidia_modeset"))
    told = commands(fix_of("driver-upgrade-blocked", shown))
    assert "modprobe -r nvidia_drm nvidia_modeset nvidia_uvm nvidia" in told
