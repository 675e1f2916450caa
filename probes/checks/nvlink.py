"""Checks of what NVLink needs: Fabric Manager, IMEX, and all of its links."""

from __future__ import annotations

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.gpu import bdfs_of, gpus_of, names_of
from probes.checks.wording import at_most
from probes.examination import Examination
from probes.gpus import Gpu
from probes.pci import PciKind
from probes.plan import Plan, Step, instruction
from probes.plans.services import start_imex
from probes.platform import in_container
from probes.services import Service, ServiceState
from probes.unknown import Maybe, Reason, Unknown, known

AREA = Area("gpu")
_FABRIC = (
    "NVIDIA Fabric Manager user guide, "
    "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html"
)
_IMEX = "NVIDIA IMEX guide, https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/"
_MANAGER = "nvidia-fabricmanager"


def _switches(examination: Examination) -> Outcome | tuple[str, ...]:
    """The node's NVSwitches; else what the check says."""
    pci = examination.node.pci
    if isinstance(pci, Unknown):
        return unsure(f"needs the PCI functions: {pci}")
    switches = tuple(bdf for bdf, one in pci.functions.items() if one.kind is PciKind.NVSWITCH)
    return switches or passed(Evidence("/sys/bus/pci/devices", "no NVSwitch here"))


def _service(examination: Examination, name: str) -> Maybe[Service]:
    services = examination.services
    return services if isinstance(services, Unknown) else services.services[name]


def _runs(examination: Examination) -> bool:
    service = _service(examination, _MANAGER)
    return not isinstance(service, Unknown) and service.state is ServiceState.ACTIVE


def _state(name: str, value: str) -> Evidence:
    return Evidence(f"systemctl is-active {name}", value)


@AREA.check(
    "fabric-manager-down", Severity.CRITICAL, "Fabric Manager does not run: CUDA answers error 802", _FABRIC
)
def fabric_manager_down(examination: Examination) -> Outcome:
    """Whether Fabric Manager runs on a machine with NVSwitches."""
    switches = _switches(examination)
    if isinstance(switches, Outcome):
        return switches
    service = _service(examination, _MANAGER)
    if isinstance(service, Unknown):
        return unsure(f"needs the services: {service}")
    if isinstance(service.state, Unknown):
        if service.state.reason is Reason.NOT_THERE and isinstance(service.path, Unknown):
            return passed(_state(_MANAGER, "not installed: see fabric-manager-down-absent"))
        return unsure(f"needs to know whether {_MANAGER} runs: {service.state}")
    if service.state is ServiceState.ACTIVE:
        return passed(_state(_MANAGER, "active"))
    return found(
        f"this machine has {len(switches)} NVSwitches, which only Fabric Manager sets up"
        + (": it failed" if service.state is ServiceState.FAILED else ""),
        _state(_MANAGER, service.state.value),
        fix=Plan(
            "Start Fabric Manager",
            (
                Step(
                    "starts it, now and at boot",
                    ("systemctl", "enable", "--now", _MANAGER),
                    undo=("systemctl", "disable", "--now", _MANAGER),
                ),
                instruction("where it fails: read /var/log/fabricmanager.log"),
            ),
        ),
        devices=switches,
    )


@AREA.check(
    "fabric-manager-down-absent",
    Severity.CRITICAL,
    "Fabric Manager is not installed: CUDA answers error 802",
    _FABRIC,
)
def fabric_manager_absent(examination: Examination) -> Outcome:
    """Whether Fabric Manager is there on a machine with NVSwitches."""
    switches = _switches(examination)
    if isinstance(switches, Outcome):
        return switches
    service = _service(examination, _MANAGER)
    if isinstance(service, Unknown):
        return unsure(f"needs the services: {service}")
    if service.state is ServiceState.ACTIVE or not isinstance(service.path, Unknown):
        return passed(Evidence(known(service.path, "a process of Fabric Manager"), "installed"))
    if service.path.reason is not Reason.NOT_THERE:
        return unsure(f"needs the services: {service.path}")
    if in_container(examination.node.platform):
        return unsure("needs the node's own services: run it on the node, not in a container")
    return found(
        f"this machine has {len(switches)} NVSwitches, which only Fabric Manager sets up",
        Evidence(f"systemctl cat {_MANAGER}", "no such unit"),
        fix=Plan(
            "Install Fabric Manager",
            (
                instruction(f"install the package {_MANAGER} of exactly the driver's version"),
                Step(
                    "starts it, now and at boot",
                    ("systemctl", "enable", "--now", _MANAGER),
                    undo=("systemctl", "disable", "--now", _MANAGER),
                ),
            ),
        ),
        devices=switches,
    )


@AREA.check(
    "fabric-manager-down-version",
    Severity.CRITICAL,
    "Fabric Manager and the driver are of different versions",
    _FABRIC,
)
def fabric_manager_version(examination: Examination) -> Outcome:
    """Fabric Manager's version, which has to be the driver's."""
    switches = _switches(examination)
    if isinstance(switches, Outcome):
        return switches
    gpus, tools = examination.node.gpus, examination.tools
    if isinstance(gpus, Unknown):
        return unsure(f"needs the driver's version: {gpus}")
    if isinstance(tools, Unknown):
        return unsure(f"needs Fabric Manager's version: {tools}")
    driver, manager = gpus.driver.version, tools.fabric_manager
    if isinstance(manager, Unknown):
        if manager.reason is Reason.NOT_THERE:
            return passed(Evidence("nv-fabricmanager --version", "not installed here"))
        return unsure(f"needs Fabric Manager's version: {manager}")
    if isinstance(driver, Unknown):
        return unsure(f"needs the driver's version: {driver}")
    seen = (
        Evidence("nv-fabricmanager --version", manager),
        Evidence("/sys/module/nvidia/version", driver),
    )
    if manager == driver:
        return passed(*seen)
    return found(
        "it refuses to start with another driver than its own: after the next start of either CUDA fails",
        *seen,
        fix=Plan(
            "Bring both to one version",
            (
                instruction(f"install the package {_MANAGER} of version {driver}"),
                Step("starts the new one", ("systemctl", "restart", _MANAGER)),
            ),
            disturbs="jobs that use NVLink, while it restarts",
        ),
        # While the old one runs, all is well until the next start.
        severity=Severity.WARNING if _runs(examination) else None,
        devices=switches,
    )


@AREA.check("imex-down", Severity.NOTE, "nvidia-imex does not run: no NVLink to other nodes", _IMEX)
def imex_down(examination: Examination) -> Outcome:
    """Whether IMEX runs where NVLink may reach other nodes (GB200, GB300)."""
    gpus = gpus_of(examination)
    if isinstance(gpus, Unknown):
        return unsure(f"needs the GPUs: {gpus}")
    for gpu in gpus:
        if isinstance(gpu.c2c_links, Unknown) or isinstance(gpu.nvlinks, Unknown):
            return unsure(f"needs the links of GPU{gpu.index}: {gpu.nvml}")
    if not any(known(gpu.c2c_links, 0) and known(gpu.nvlinks, 0) for gpu in gpus):
        return passed(Evidence("NVML", "no GPU with both C2C links and NVLinks"))
    service = _service(examination, "nvidia-imex")
    if isinstance(service, Unknown):
        return unsure(f"needs the services: {service}")
    if service.state is ServiceState.ACTIVE:
        return passed(_state("nvidia-imex", "active"))
    absent = isinstance(service.state, Unknown)
    if isinstance(service.state, Unknown):
        if service.state.reason is not Reason.NOT_THERE:
            return unsure(f"needs to know whether nvidia-imex runs: {service.state}")
        if in_container(examination.node.platform):
            return unsure("needs the node's own services: run it on the node, not in a container")
    return found(
        "jobs over several nodes of one NVLink domain fall back to the NICs; a single node does not need it",
        _state(
            "nvidia-imex", "not installed" if absent else known(service.state, ServiceState.INACTIVE).value
        ),
        fix=start_imex(examination),
    )


@AREA.check(
    "nvlink-down",
    Severity.WARNING,
    "a GPU has fewer NVLinks than its equals",
    "nvidia-smi(1), nvlink --status",
)
def nvlink_down(examination: Examination) -> Outcome:
    """Active NVLinks of GPUs of one name."""
    gpus = gpus_of(examination)
    if isinstance(gpus, Unknown):
        return unsure(f"needs the GPUs: {gpus}")
    most: dict[str, int] = {}
    missing: Outcome | None = None
    for gpu in gpus:
        if isinstance(gpu.nvlinks, Unknown):
            missing = unsure(f"needs the number of NVLinks of GPU{gpu.index}: {gpu.nvlinks}")
        else:
            most[gpu.name] = max(most.get(gpu.name, 0), gpu.nvlinks)
    fewer = [gpu for gpu in gpus if known(gpu.nvlinks, most.get(gpu.name, 0)) < most.get(gpu.name, 0)]
    if fewer:
        return found(
            f"{names_of(fewer)}: {most[fewer[0].name]} links are up on others. Jobs over NVLink go at the "
            "pace of the slowest GPU, or do not start",
            *at_most(_links(gpu) for gpu in fewer),
            fix=Plan(
                "Look at the links, and reset",
                (
                    Step("shows every link's state", ("nvidia-smi", "nvlink", "--status"), False),
                    instruction("drain, and reset all GPUs or reboot; replace what stays down"),
                ),
                disturbs="every job on this node",
            ),
            devices=bdfs_of(fewer),
        )
    return missing or passed(*at_most(_links(gpu) for gpu in gpus) or (Evidence("NVML", "no GPU"),))


def _links(gpu: Gpu) -> Evidence:
    return Evidence(f"nvidia-smi nvlink --status -i {gpu.index}", f"{known(gpu.nvlinks, 0)} links up")
