"""Checks of what NVLink needs on this node: Fabric Manager, all of its links, and IMEX to other nodes."""

from __future__ import annotations

from probes.base.evidence import Evidence, Severity, first_n
from probes.base.plan import instruction, make_plan
from probes.base.text import plural
from probes.base.unknown import Reason, Unknown, first_unread, is_there, known, map_known
from probes.checks.gpu.devices import bdfs_of, names_of, need_gpus, need_nvml, needs_nvml
from probes.facts.gpu.gpus import CHANNELS, NODES_CONFIG, NOT_SUPPORTED, Gpu
from probes.facts.system.platform import in_container
from probes.facts.system.services import Service, ServiceState
from probes.plans.boot import initramfs_step
from probes.plans.common import service_step, start_at_boot_step
from probes.plans.packages import FABRIC_MANAGER, fabric_manager_steps, nvlsm_steps
from probes.queries.finding import PCI_FUNCTIONS, Area, Outcome, Scope, end_with, found, need, passed, unknown
from probes.queries.jobs import has_pods
from probes.queries.nvlink_fabric import NvSwitches, nvswitches_of
from probes.snapshot.examination import Examination

AREA = Area("gpu", __package__)
_START_MANAGER = start_at_boot_step("Start Fabric Manager now and at boot", FABRIC_MANAGER)
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


def service_of(examination: Examination, name: str) -> Service:
    """Return a service, or end the check as unknown."""
    return need(examination.services, SERVICES).services[name]


def state_of(name: str, value: str) -> Evidence:
    """Return the state of a service as evidence."""
    return Evidence(f"systemctl is-active {name}", value)


@AREA.critical("fabric-manager-down", scope=Scope.NODE)
def fabric_manager_down(examination: Examination) -> Outcome:
    """Check that Fabric Manager runs on a machine with NVSwitches."""
    switches = need_switches(examination)
    service = service_of(examination, FABRIC_MANAGER)
    if is_there(service.state) is False and isinstance(service.path, Unknown):
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


@AREA.critical("fabric-manager-down-absent", scope=Scope.NODE)
def fabric_manager_down_absent(examination: Examination) -> Outcome:
    """Check that Fabric Manager is installed on a machine with NVSwitches."""
    switches = need_switches(examination)
    service = service_of(examination, FABRIC_MANAGER)
    if service.state is ServiceState.ACTIVE or not isinstance(service.path, Unknown):
        return passed(Evidence(known(service.path, "a Fabric Manager process"), "installed"))
    need(first_unread((service.path,)), SERVICES)
    if in_container(examination.node.platform):
        return unknown(NEEDS_HOST)
    subnet_manager = is_there(map_known(examination.fabric_services, lambda facts: facts.nvlsm_program))
    needed = nvlsm_steps(examination) if switches.needs_nvlsm and subnet_manager is False else ()
    version = map_known(examination.node.gpus, lambda gpus: gpus.driver.version)
    return found(
        f"{switches.text} Only Fabric Manager configures them.",
        Evidence(service.path.source, "not there, nor in systemd's other directories"),
        fix=make_plan(
            "Install Fabric Manager",
            *fabric_manager_steps(examination, version),
            *needed,  # Fabric Manager does not start without it
            _START_MANAGER,
        ),
        devices=switches.devices,
    )


@AREA.critical("fabric-manager-down-version", scope=Scope.NODE)
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


@AREA.warning("nvlink-down")
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
            devices=bdfs_of(fewer),
            part_of=("fabric-manager-down", "fabric-manager-down-absent", "xid-nvlink-error"),
        )
    return missing or passed(*first_n(_links(gpu) for gpu in gpus) or (Evidence("NVML", "no GPU"),))


def _links(gpu: Gpu) -> Evidence:
    return Evidence(f"nvidia-smi nvlink --status -i {gpu.index}", f"{known(gpu.nvlinks, 0)} links up")


# Checks of IMEX: the service and the channels with which jobs reach GPUs of other nodes over NVLink.

_IMEX = "nvidia-imex"


def _no_rack(examination: Examination) -> Outcome | None:
    """Return that the check is passed where NVLink reaches no other node (GB200, GB300 NVL do)."""
    gpus = need_gpus(examination)
    links = [(need_nvml(gpu, gpu.c2c_links), need_nvml(gpu, gpu.nvlinks)) for gpu in gpus]
    if not any(c2c and nvlinks for c2c, nvlinks in links):
        return passed(Evidence("NVML", "no GPU with both C2C links and NVLinks"))
    if all(known(gpu.fabric.state, "") == NOT_SUPPORTED for gpu in gpus):
        return passed(Evidence("NVML", "no GPU is part of an NVLink fabric"))
    return None


def _started_elsewhere(examination: Examination, service: Service) -> Evidence | None:
    """Return what starts IMEX, and creates its channels, for each job; None: nothing that is known."""
    if service.masked:  # as NVIDIA's DRA driver for Kubernetes demands (NVIDIA/cloud-native-docs#453)
        return state_of(_IMEX, "masked")
    if has_pods(examination):
        return Evidence("/sys/fs/cgroup/kubepods.slice", "Kubernetes starts IMEX for each job")
    if not isinstance(examination.memlock, Unknown) and "kubelet.service" in examination.memlock.services:
        return Evidence("/etc/systemd/system/kubelet.service", "Kubernetes starts IMEX for each job")
    return None


ACROSS_NODES = Area("gpu", __package__, requires=(_no_rack,))


@ACROSS_NODES.warning("imex-down")
def imex_down(examination: Examination) -> Outcome:
    """Check that IMEX runs where NVLink may reach other nodes (GB200, GB300) and nothing else starts it."""
    service = service_of(examination, _IMEX)
    if service.state is ServiceState.ACTIVE:
        return passed(state_of(_IMEX, "active"))
    elsewhere = _started_elsewhere(examination, service)
    if elsewhere is not None:
        return passed(elsewhere)
    if is_there(service.state) is False:
        if in_container(examination.node.platform):
            return unknown(NEEDS_HOST)
        state = "not installed"
    else:
        state = need(service.state, SERVICES).value
    nodes = map_known(examination.fabric_services, lambda services: services.imex_nodes)
    return found(
        "The nvidia-imex service is not running. Single-node jobs are not affected, nor are jobs whose Slurm"
        " prolog starts IMEX.",
        state_of(_IMEX, state),
        *(() if isinstance(nodes, Unknown) else (Evidence(NODES_CONFIG, plural(nodes, "node")),)),
        # NCCL fails if it finds MNNVL and no working IMEX, unless the variable is 0 (src/mnnvl.cc, init.cc).
        fix=make_plan(
            "Start IMEX on every node of the domain",
            "List the domain's nodes in /etc/nvidia-imex/nodes_config.cfg. Skip this plan if a Slurm "
            "prolog starts IMEX.",
            start_at_boot_step("Start IMEX now and at boot", _IMEX),
            instruction(
                "To run multi-node jobs in the meantime, set NCCL_MNNVL_ENABLE=0. NCCL then uses the NICs.",
                needs_root=False,
            ),
        ),
    )


@ACROSS_NODES.warning("imex-channels-missing", scope=Scope.NODE)
def imex_channels_missing(examination: Examination) -> Outcome:
    """Check that jobs find a channel where the node's own IMEX service runs.

    Without a channel, CUDA refuses to import memory of other nodes with an insufficient permission error, and
    NCCL names the directory in its warning (NCCL src/mnnvl.cc). Kubernetes and Slurm create channels for each
    job.
    """
    service = service_of(examination, _IMEX)
    elsewhere = _started_elsewhere(examination, service)
    if elsewhere is not None:
        return passed(elsewhere)
    if need(service.state, SERVICES, absent=state_of(_IMEX, "not installed")) is not ServiceState.ACTIVE:
        return passed(state_of(_IMEX, "not active (see imex-down)"))
    if in_container(examination.node.platform):
        return unknown("needs the host (a container has only the channels that were passed in)")
    channels = need(examination.fabric_services, "the IMEX channels").imex_channels
    count = 0 if isinstance(channels, Unknown) and channels.reason is Reason.NOT_THERE else channels
    if need(count, "the IMEX channels"):
        return passed(Evidence(CHANNELS, f"{count} found"))
    parameters = known(map_known(examination.node.gpus, lambda gpus: gpus.driver.parameters), {})
    seen = [Evidence(CHANNELS, "no channel")]
    if "CreateImexChannel0" in parameters:
        value = f"CreateImexChannel0: {parameters['CreateImexChannel0']}"
        seen.append(Evidence("/proc/driver/nvidia/params", value))
    memlock = examination.memlock
    with_slurm = not isinstance(memlock, Unknown) and "slurmd.service" in memlock.services
    return found(
        "Jobs need a channel in /dev/nvidia-caps-imex-channels. The driver creates none by default."
        + (" Slurm's switch/nvidia_imex plugin can create one for each job." if with_slurm else ""),
        *seen,
        fix=make_plan(
            "Create the default channel at boot",
            "Write “options nvidia NVreg_CreateImexChannel0=1” to a file in /etc/modprobe.d."
            " The driver then creates channel0, which all users share.",
            initramfs_step(examination),
            "Until the next boot, create it by hand: mknod -m 666"
            " /dev/nvidia-caps-imex-channels/channel0 c MAJOR 0, where MAJOR is the number of"
            " nvidia-caps-imex-channels in /proc/devices.",
        ),
        severity=Severity.NOTE if with_slurm else None,
        devices=bdfs_of(need_gpus(examination)),
    )
