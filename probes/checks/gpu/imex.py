"""Checks of IMEX: the service and the channels with which jobs reach GPUs of other nodes over NVLink."""

from __future__ import annotations

from probes.base.plan import make_plan
from probes.base.text import plural
from probes.base.unknown import Reason, Unknown, known, map_known
from probes.checks.gpu.devices import bdfs_of, need_gpus, need_nvml
from probes.checks.gpu.nvlink import NEEDS_HOST, SERVICES, service_of, state_of
from probes.facts.gpu.fabric import CHANNELS, NODES_CONFIG, NOT_SUPPORTED
from probes.facts.system.platform import in_container
from probes.facts.system.services import Service, ServiceState
from probes.plans.boot import initramfs_step
from probes.plans.services import start_imex
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
from probes.queries.jobs import has_pods
from probes.snapshot.examination import Examination

AREA = Area("gpu")
_GUIDE = "NVIDIA IMEX guide, https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/"
_IMEX = "nvidia-imex"
_NO_MNNVL = (
    "Multi-node NCCL jobs inside an NVLink domain fail with ncclSystemError (“MNNVL … is available"
    " but not working on this system”)."
)


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


@AREA.check(
    "imex-down",
    Severity.WARNING,
    "IMEX is not running, so there is no NVLink to other nodes",
    _GUIDE,
    ok="IMEX is running, or something else starts it for jobs",
    impact=_NO_MNNVL,
)
def imex_down(examination: Examination) -> Outcome:
    """Check that IMEX runs where NVLink may reach other nodes (GB200, GB300) and nothing else starts it."""
    end_with(_no_rack(examination))
    service = service_of(examination, _IMEX)
    if service.state is ServiceState.ACTIVE:
        return passed(state_of(_IMEX, "active"))
    elsewhere = _started_elsewhere(examination, service)
    if elsewhere is not None:
        return passed(elsewhere)
    if isinstance(service.state, Unknown) and service.state.reason is Reason.NOT_THERE:
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
        fix=start_imex(examination),
    )


@AREA.check(
    "imex-channels-missing",
    Severity.WARNING,
    "IMEX is running, but there is no IMEX channel",
    "NVIDIA IMEX guide, IMEX Channels, "
    "https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/imexchannels.html",
    ok="An IMEX channel exists, or something else creates one for jobs",
    impact=_NO_MNNVL,
    scope=Scope.NODE,
)
def imex_channels_missing(examination: Examination) -> Outcome:
    """Check that jobs find a channel where the node's own IMEX service runs.

    Without a channel, CUDA refuses to import memory of other nodes with an insufficient permission error, and
    NCCL names the directory in its warning (NCCL src/mnnvl.cc). Kubernetes and Slurm create channels for each
    job.
    """
    end_with(_no_rack(examination))
    service = service_of(examination, _IMEX)
    elsewhere = _started_elsewhere(examination, service)
    if elsewhere is not None:
        return passed(elsewhere)
    if need(service.state, SERVICES, absent=state_of(_IMEX, "not installed")) is not ServiceState.ACTIVE:
        return passed(state_of(_IMEX, "not active (see imex-down)"))
    if in_container(examination.node.platform):
        return unknown("needs the host (a container has only the channels that were passed in)")
    services = need(examination.fabric_services, "the IMEX channels")
    channels = services.imex_channels
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
