"""Checks of what NVLink needs on this node: Fabric Manager, and all of its links."""

from __future__ import annotations

from probes.base.plan import Step, make_plan
from probes.base.unknown import Maybe, Reason, Unknown, is_there, known, map_known
from probes.checks.gpu.devices import bdfs_of, names_of, need_gpus, needs_nvml
from probes.facts.gpu.gpus import Gpu
from probes.facts.system.platform import in_container
from probes.facts.system.services import Service, ServiceState
from probes.plans.common import service_step, start_at_boot_step
from probes.plans.packages import FABRIC_MANAGER, fabric_manager_steps, nvlsm_steps
from probes.queries.evidence_list import PCI_FUNCTIONS, first_n
from probes.queries.finding import (
    Area,
    Evidence,
    Outcome,
    Scope,
    Severity,
    end_with,
    found,
    need,
    passed,
    unknown,
)
from probes.queries.nvlink_fabric import NvSwitches, nvswitches_of
from probes.snapshot.examination import Examination

AREA = Area("gpu")
FABRIC_GUIDE = (
    "NVIDIA Fabric Manager user guide, "
    "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html"
)
_START_MANAGER = start_at_boot_step("Start Fabric Manager now and at boot", FABRIC_MANAGER)
NO_CUDA = "CUDA fails with error 802 (system not yet initialized), so no GPU job starts."
_FAILS_LATER = "CUDA fails with error 802 after the next start of Fabric Manager or the driver."
SERVICES = "the services"
_TOOLS = "the installed tools"
NEEDS_HOST = "needs the host (services are not visible in a container)"


def need_switches(examination: Examination) -> NvSwitches:
    """Return the NVSwitches that Fabric Manager of this node configures; without any, end the check."""
    switches = need(nvswitches_of(examination), PCI_FUNCTIONS)
    if switches is None:
        end_with(passed(Evidence("/sys/bus/pci/devices", "no NVSwitch, or it is configured elsewhere")))
    assert switches is not None
    return switches


def _driver_version(examination: Examination) -> Maybe[str]:
    return map_known(examination.node.gpus, lambda gpus: gpus.driver.version)


def service_of(examination: Examination, name: str) -> Service:
    """Return a service, or end the check as unknown."""
    return need(examination.services, SERVICES).services[name]


def state_of(name: str, value: str) -> Evidence:
    """Return the state of a service as evidence."""
    return Evidence(f"systemctl is-active {name}", value)


@AREA.check(
    "fabric-manager-down",
    Severity.CRITICAL,
    "Fabric Manager is not running",
    FABRIC_GUIDE,
    ok="Fabric Manager is running, or there is no NVSwitch",
    impact=NO_CUDA,
    scope=Scope.NODE,
)
def fabric_manager_down(examination: Examination) -> Outcome:
    """Check that Fabric Manager runs on a machine with NVSwitches."""
    switches = need_switches(examination)
    service = service_of(examination, FABRIC_MANAGER)
    is_absent = isinstance(service.state, Unknown) and service.state.reason is Reason.NOT_THERE
    if is_absent and isinstance(service.path, Unknown):
        return passed(state_of(FABRIC_MANAGER, "not installed (see fabric-manager-down-absent)"))
    state = need(service.state, SERVICES)
    if state is ServiceState.ACTIVE:
        return passed(state_of(FABRIC_MANAGER, "active"))
    return found(
        f"{switches.text} Only Fabric Manager configures them."
        + (" Its service failed." if state is ServiceState.FAILED else ""),
        state_of(FABRIC_MANAGER, state.value),
        fix=make_plan("Start Fabric Manager", _START_MANAGER, "If it fails, read /var/log/fabricmanager.log"),
        devices=switches.devices,
        subjects=(),  # its causes are no NVSwitches
        part_of=("nvidia-not-loaded", "fabric-manager-down-version", "ib-umad-missing", "nvlsm-missing"),
    )


@AREA.check(
    "fabric-manager-down-absent",
    Severity.CRITICAL,
    "Fabric Manager is not installed",
    FABRIC_GUIDE,
    ok="Fabric Manager is installed, or there is no NVSwitch",
    impact=NO_CUDA,
    scope=Scope.NODE,
)
def fabric_manager_down_absent(examination: Examination) -> Outcome:
    """Check that Fabric Manager is installed on a machine with NVSwitches."""
    switches = need_switches(examination)
    service = service_of(examination, FABRIC_MANAGER)
    if service.state is ServiceState.ACTIVE or not isinstance(service.path, Unknown):
        return passed(Evidence(known(service.path, "a Fabric Manager process"), "installed"))
    if service.path.reason is not Reason.NOT_THERE:
        need(service.path, SERVICES)
    if in_container(examination.node.platform):
        return unknown(NEEDS_HOST)
    subnet_manager = is_there(map_known(examination.fabric_services, lambda facts: facts.nvlsm_program))
    needed = nvlsm_steps(examination) if switches.needs_nvlsm and subnet_manager is False else ()
    return found(
        f"{switches.text} Only Fabric Manager configures them.",
        Evidence(service.path.source, "not there, nor in systemd's other directories"),
        fix=make_plan(
            "Install Fabric Manager",
            *fabric_manager_steps(examination, _driver_version(examination)),
            *needed,  # Fabric Manager does not start without it
            _START_MANAGER,
        ),
        devices=switches.devices,
    )


@AREA.check(
    "fabric-manager-down-version",
    Severity.CRITICAL,
    "Fabric Manager and the driver have different versions",
    FABRIC_GUIDE,
    ok="Fabric Manager matches the driver's version, or there is no NVSwitch",
    impact=NO_CUDA,
    scope=Scope.NODE,
)
def fabric_manager_down_version(examination: Examination) -> Outcome:
    """Compare Fabric Manager's version with the driver's."""
    switches = need_switches(examination)
    gpus = need(examination.node.gpus, "the driver's version")
    tools = need(examination.tools, _TOOLS)
    not_here = Evidence("nv-fabricmanager --version", "not installed")
    manager = need(tools.fabric_manager, _TOOLS, absent=not_here)
    driver = need(gpus.driver.version, "the driver's version")
    seen = (Evidence("nv-fabricmanager --version", manager), Evidence("/sys/module/nvidia/version", driver))
    if manager == driver:
        return passed(*seen)
    state = map_known(examination.services, lambda services: services.services[FABRIC_MANAGER].state)
    runs = state is ServiceState.ACTIVE
    return found(
        "Fabric Manager starts only with a driver of the same version.",
        *seen,
        fix=make_plan(
            "Install the Fabric Manager that matches the driver",
            *fabric_manager_steps(examination, driver),
            service_step("Start the new version", "restart", FABRIC_MANAGER),
            disturbs="jobs that use NVLink, while Fabric Manager restarts",
        ),
        severity=Severity.WARNING if runs else None,
        impact=_FAILS_LATER if runs else "",
        devices=switches.devices,
        part_of=("driver-library-mismatch",),
    )


@AREA.check(
    "nvlink-down",
    Severity.WARNING,
    "A GPU has fewer active NVLinks than the others",
    "nvidia-smi(1), nvlink --status",
    ok="GPUs of the same model have the same number of NVLinks",
    impact="Multi-GPU jobs run at the speed of the slowest GPU, or do not start.",
)
def nvlink_down(examination: Examination) -> Outcome:
    """Compare the active NVLinks of GPUs of one model."""
    gpus = need_gpus(examination)
    most: dict[str, int] = {}
    missing: Outcome | None = None
    for gpu in gpus:
        if isinstance(gpu.nvlinks, Unknown):
            missing = missing or unknown(needs_nvml(gpu, gpu.nvlinks))
        else:
            most[gpu.name] = max(most.get(gpu.name, 0), gpu.nvlinks)
    fewer = [gpu for gpu in gpus if known(gpu.nvlinks, most.get(gpu.name, 0)) < most.get(gpu.name, 0)]
    if fewer:
        return found(
            f"{names_of(fewer)}: other GPUs have {most[fewer[0].name]} active links.",
            *first_n(_links(gpu) for gpu in fewer),
            fix=make_plan(
                "Reset the links",
                Step("Show every link's state", ("nvidia-smi", "nvlink", "--status"), False),
                "Drain the node, then reset all GPUs or reboot",
                "Replace the part if a link stays down",
                disturbs="every job on this node",
            ),
            devices=bdfs_of(fewer),
            part_of=("fabric-manager-down", "fabric-manager-down-absent", "xid-nvlink-error"),
        )
    return missing or passed(*first_n(_links(gpu) for gpu in gpus) or (Evidence("NVML", "no GPU"),))


def _links(gpu: Gpu) -> Evidence:
    return Evidence(f"nvidia-smi nvlink --status -i {gpu.index}", f"{known(gpu.nvlinks, 0)} links up")
