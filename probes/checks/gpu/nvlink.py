"""Checks of what NVLink needs: Fabric Manager, IMEX, and all of its links."""

from __future__ import annotations

from probes.base.plan import Plan, Step, instruction
from probes.base.unknown import Reason, Unknown, known
from probes.checks.gpu.devices import bdfs_of, names_of, need_gpus, need_nvml, needs_nvml
from probes.facts.gpu.gpus import Gpu
from probes.facts.pci.functions import PciKind
from probes.facts.system.platform import in_container
from probes.facts.system.services import Service, ServiceState
from probes.plans.services import start_imex
from probes.queries.evidence_list import PCI_FUNCTIONS, first_n
from probes.queries.finding import Area, Evidence, Outcome, Severity, end_with, found, need, passed, unknown
from probes.queries.jobs import has_pods
from probes.snapshot.examination import Examination

AREA = Area("gpu")
_FABRIC = (
    "NVIDIA Fabric Manager user guide, "
    "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html"
)
_IMEX = "NVIDIA IMEX guide, https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/"
_MANAGER = "nvidia-fabricmanager"
_NO_CUDA = "CUDA fails with error 802 (system not yet initialized), so no GPU job starts."
_SERVICES = "the services"
_TOOLS = "the installed tools"
_NEEDS_HOST = "needs the host (services are not visible in a container)"


def _switches(examination: Examination) -> tuple[str, ...]:
    """Return the node's NVSwitches; without any, end the check."""
    pci = need(examination.node.pci, PCI_FUNCTIONS)
    switches = tuple(bdf for bdf, function in pci.functions.items() if function.kind is PciKind.NVSWITCH)
    if not switches:
        end_with(passed(Evidence("/sys/bus/pci/devices", "no NVSwitch here")))
    return switches


def _service(examination: Examination, name: str) -> Service:
    return need(examination.services, _SERVICES).services[name]


def _manager_runs(examination: Examination) -> bool:
    services = examination.services
    return not isinstance(services, Unknown) and services.services[_MANAGER].state is ServiceState.ACTIVE


def _state(name: str, value: str) -> Evidence:
    return Evidence(f"systemctl is-active {name}", value)


@AREA.check(
    "fabric-manager-down",
    Severity.CRITICAL,
    "Fabric Manager is not running",
    _FABRIC,
    ok="Fabric Manager is running, or there is no NVSwitch",
    impact=_NO_CUDA,
)
def fabric_manager_down(examination: Examination) -> Outcome:
    """Check that Fabric Manager runs on a machine with NVSwitches."""
    switches = _switches(examination)
    service = _service(examination, _MANAGER)
    is_absent = isinstance(service.state, Unknown) and service.state.reason is Reason.NOT_THERE
    if is_absent and isinstance(service.path, Unknown):
        return passed(_state(_MANAGER, "not installed (see fabric-manager-down-absent)"))
    state = need(service.state, _SERVICES)
    if state is ServiceState.ACTIVE:
        return passed(_state(_MANAGER, "active"))
    return found(
        f"This machine has {len(switches)} NVSwitches. Only Fabric Manager configures them."
        + (" Its service failed." if state is ServiceState.FAILED else ""),
        _state(_MANAGER, state.value),
        fix=Plan(
            "Start Fabric Manager",
            (_start_manager(), instruction("If it fails, read /var/log/fabricmanager.log")),
        ),
        devices=switches,
        part_of=("fabric-manager-down-version",),
    )


def _start_manager() -> Step:
    return Step(
        "Start Fabric Manager now and at boot",
        ("systemctl", "enable", "--now", _MANAGER),
        undo=("systemctl", "disable", "--now", _MANAGER),
    )


@AREA.check(
    "fabric-manager-down-absent",
    Severity.CRITICAL,
    "Fabric Manager is not installed",
    _FABRIC,
    ok="Fabric Manager is installed, or there is no NVSwitch",
    impact=_NO_CUDA,
)
def fabric_manager_absent(examination: Examination) -> Outcome:
    """Check that Fabric Manager is installed on a machine with NVSwitches."""
    switches = _switches(examination)
    service = _service(examination, _MANAGER)
    if service.state is ServiceState.ACTIVE or not isinstance(service.path, Unknown):
        return passed(Evidence(known(service.path, "a Fabric Manager process"), "installed"))
    if service.path.reason is not Reason.NOT_THERE:
        need(service.path, _SERVICES)
    if in_container(examination.node.platform):
        return unknown(_NEEDS_HOST)
    return found(
        f"This machine has {len(switches)} NVSwitches. Only Fabric Manager configures them.",
        Evidence(f"systemctl cat {_MANAGER}", "no such unit"),
        fix=Plan(
            "Install Fabric Manager",
            (
                instruction(f"Install the package {_MANAGER} with exactly the driver's version"),
                _start_manager(),
            ),
        ),
        devices=switches,
    )


@AREA.check(
    "fabric-manager-down-version",
    Severity.CRITICAL,
    "Fabric Manager and the driver have different versions",
    _FABRIC,
    ok="Fabric Manager has the driver's version, or there is no NVSwitch",
    impact=_NO_CUDA,
)
def fabric_manager_version(examination: Examination) -> Outcome:
    """Compare Fabric Manager's version with the driver's."""
    switches = _switches(examination)
    gpus = need(examination.node.gpus, "the driver's version")
    tools = need(examination.tools, _TOOLS)
    not_here = Evidence("nv-fabricmanager --version", "not installed here")
    manager = need(tools.fabric_manager, _TOOLS, absent=not_here)
    driver = need(gpus.driver.version, "the driver's version")
    seen = (
        Evidence("nv-fabricmanager --version", manager),
        Evidence("/sys/module/nvidia/version", driver),
    )
    if manager == driver:
        return passed(*seen)
    runs = _manager_runs(examination)
    return found(
        "Fabric Manager refuses to start with a driver of another version.",
        *seen,
        fix=Plan(
            "Install the driver's version of Fabric Manager",
            (
                instruction(f"Install the package {_MANAGER} of version {driver}"),
                Step("Start the new version", ("systemctl", "restart", _MANAGER)),
            ),
            disturbs="jobs that use NVLink, while Fabric Manager restarts",
        ),
        severity=Severity.WARNING if runs else None,
        impact="CUDA fails with error 802 after the next start of Fabric Manager or the driver."
        if runs
        else "",
        devices=switches,
        part_of=("driver-library-mismatch",),
    )


@AREA.check(
    "imex-down",
    Severity.WARNING,
    "IMEX is not running, so there is no NVLink to other nodes",
    _IMEX,
    ok="IMEX is running, or something else starts it for jobs",
    impact="Multi-node NCCL jobs inside an NVLink domain fail with ncclSystemError (“MNNVL … is available"
    " but not working on this system”).",
)
def imex_down(examination: Examination) -> Outcome:
    """Check that IMEX runs where NVLink may reach other nodes (GB200, GB300) and nothing else starts it."""
    gpus = need_gpus(examination)
    links = [(need_nvml(gpu, gpu.c2c_links), need_nvml(gpu, gpu.nvlinks)) for gpu in gpus]
    if not any(c2c and nvlinks for c2c, nvlinks in links):
        return passed(Evidence("NVML", "no GPU with both C2C links and NVLinks"))
    service = _service(examination, "nvidia-imex")
    if service.state is ServiceState.ACTIVE:
        return passed(_state("nvidia-imex", "active"))
    if service.masked:  # as NVIDIA's DRA driver for Kubernetes demands (NVIDIA/cloud-native-docs#453)
        return passed(_state("nvidia-imex", "masked"))
    if has_pods(examination):
        return passed(Evidence("/sys/fs/cgroup/kubepods.slice", "Kubernetes starts IMEX for each job"))
    if not isinstance(examination.memlock, Unknown) and "kubelet.service" in examination.memlock.services:
        return passed(Evidence("/etc/systemd/system/kubelet.service", "Kubernetes starts IMEX for each job"))
    if isinstance(service.state, Unknown) and service.state.reason is Reason.NOT_THERE:
        if in_container(examination.node.platform):
            return unknown(_NEEDS_HOST)
        state = "not installed"
    else:
        state = need(service.state, _SERVICES).value
    return found(
        "The nvidia-imex service is not running. Single-node jobs are not affected, nor are jobs whose Slurm"
        " prolog starts IMEX.",
        _state("nvidia-imex", state),
        fix=start_imex(examination),
    )


@AREA.check(
    "nvlink-down",
    Severity.WARNING,
    "A GPU has fewer active NVLinks than the others",
    "nvidia-smi(1), nvlink --status",
    ok="All GPUs of one model have the same number of NVLinks",
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
            fix=Plan(
                "Reset the links",
                (
                    Step("Show every link's state", ("nvidia-smi", "nvlink", "--status"), False),
                    instruction("Drain, and reset all GPUs or reboot"),
                    instruction("Replace the part if a link stays down"),
                ),
                disturbs="every job on this node",
            ),
            devices=bdfs_of(fewer),
            part_of=("fabric-manager-down", "fabric-manager-down-absent", "xid-nvlink-error"),
        )
    return missing or passed(*first_n(_links(gpu) for gpu in gpus) or (Evidence("NVML", "no GPU"),))


def _links(gpu: Gpu) -> Evidence:
    return Evidence(f"nvidia-smi nvlink --status -i {gpu.index}", f"{known(gpu.nvlinks, 0)} links up")
