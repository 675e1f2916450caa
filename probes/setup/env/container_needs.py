"""What containers with GPUs need for GPUDirect RDMA, and cannot do with what they may use.

Sources: Linux security/device_cgroup.c (what an unprivileged container may open), drivers/infiniband/core/
umem.c (RLIMIT_MEMLOCK); Kubernetes, Device Plugins and Dynamic Resource Allocation; nvidia-container-toolkit
internal/modifier/gated.go (NVIDIA_MOFED); NCCL user guide, Troubleshooting, Docker (shared memory).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from probes.base.evidence import Severity
from probes.base.text import join_limited
from probes.base.unknown import Unknown, known
from probes.facts.system.device_nodes import INFINIBAND
from probes.setup.env.assignments import Problem
from probes.setup.env.clouds import Stack
from probes.setup.env.container import MANY, OF_HOST, Container, Network
from probes.setup.env.device_plugins import EFA, is_rdma
from probes.snapshot.examination import Examination


def problems_of(
    containers: Sequence[Container], examination: Examination, stack: Stack | None
) -> Iterator[Problem]:
    """Name what containers with GPUs miss for RDMA; a warning if they have all GPUs of the node."""
    for container in containers:
        for problem in _of_container(container, examination, stack):
            yield replace(problem, line=container.line)


def _of_container(container: Container, examination: Examination, stack: Stack | None) -> Iterator[Problem]:
    all_gpus = len(examination.topology.gpus)
    is_whole = (container.gpus or 0) >= max(2, all_gpus) and not (container.gpus == MANY and all_gpus == 1)
    severity = Severity.WARNING if is_whole and container.expects_rdma else Severity.NOTE
    syntax = container.syntax
    yield from _of_devices(container, severity, stack)
    if syntax is OF_HOST or container.is_partial:
        return
    needs_lock = stack is not Stack.EFA and EFA not in container.resources
    if needs_lock and not (container.locks_memory or container.is_privileged):
        detail = "Registering memory fails if the runtime limits locked memory."
        yield _problem(severity, f"{container.subject} {syntax.no_lock}", detail, syntax.lock)
    devices = examination.topology.devices.values()
    layers = {known(port.link_layer, "") for device in devices for port in device.ports}
    if container.network is Network.OWN and stack is None and layers == {"Ethernet"}:
        title = f"{container.subject} {syntax.no_network}"
        if syntax.is_pod:
            subject = container.subject[:1].lower() + container.subject[1:]
            title = f"The pod of {subject} uses neither the host network nor an additional one"
        where = "pod" if syntax.is_pod else "container"
        detail = f"RoCE needs the GID of a network interface in the {where}."
        yield _problem(severity, title, detail, syntax.network)
    if not container.has_shm and container.gpus != 1:
        detail = "NCCL and data loaders use /dev/shm, and fail with “No space left on device” if it is full."
        title = f"{container.subject} has only the default 64 MiB of shared memory"
        yield _problem(Severity.NOTE, title, detail, syntax.shm)


def _of_devices(container: Container, severity: Severity, stack: Stack | None) -> Iterator[Problem]:
    """Judge whether the container can open an RDMA device."""
    subject, syntax = container.subject, container.syntax
    kinds = {name: is_rdma(name) for name in container.resources}
    granted = [name for name, kind in kinds.items() if kind is True]
    unclear = [name for name, kind in kinds.items() if isinstance(kind, Unknown)]
    fix = syntax.device
    if "%s" in fix:
        fix %= EFA if stack is Stack.EFA else "rdma/NAME"
    over_tcp = "its traffic to other nodes uses TCP, without GPUDirect RDMA"
    if container.hidden_by:
        title = f"{subject} hides the RDMA devices ({container.hidden_by})"
        detail = f"Without {INFINIBAND}, {over_tcp}."
        yield _problem(Severity.WARNING, title, detail, f"Remove it, or bind {INFINIBAND}")
    elif syntax is OF_HOST or container.is_privileged or container.has_devices:
        return
    elif container.mounts_files and granted:
        title = f"{subject} mounts {INFINIBAND} beside {granted[0]}"
        detail = (
            "The mount shows devices that the plugin did not allocate and that cannot be opened. Programs "
            "that open every device fail."
        )
        if EFA in granted:
            detail = (
                "libfabric's EFA provider opens every device that it sees, fails at those that the plugin did"
                " not allocate (fi_info ends with -61), and NCCL uses TCP."
            )
        yield _problem(Severity.WARNING, title, detail, f"Remove {syntax.mount}; the plugin is enough")
    elif container.mounts_files:
        title = f"{subject} mounts {INFINIBAND} but cannot open its devices"
        detail = (
            "A container that is not privileged opens only devices that its runtime passed in; a mount does "
            f"not pass them in. ibv_open_device fails, and {over_tcp}."
        )
        is_certain = not (unclear or container.is_partial or container.is_rootless)
        if not is_certain:
            title = f"{subject} mounts {INFINIBAND}, which alone opens no device"
        if container.is_rootless:
            detail = f"If root runs it, ibv_open_device fails, and {over_tcp}. A rootless one may open them."
        remove = f"{fix}, instead of {syntax.mount}"
        yield _problem(Severity.WARNING if is_certain else Severity.NOTE, title, detail, remove)
    elif unclear and not granted:
        title = f"{subject} requests {join_limited(unclear)}; whether that is an RDMA device is unknown"
        detail = f"If it is none, {over_tcp}."
        fix = f"Run ls {INFINIBAND} in the container; if it is missing: {fix[:1].lower()}{fix[1:]}"
        yield _problem(Severity.NOTE, title, detail, fix)
    elif not granted and container.is_partial and not syntax.is_pod:
        title = f"{subject} has options that are not in this file, so its RDMA devices were not checked"
        yield _problem(Severity.NOTE, title, "A variable or another file may add them.", "")
    elif not granted and not container.is_partial:
        detail = f"It has no {INFINIBAND}, so {over_tcp}."
        if container.elsewhere:
            detail = f"{detail} {container.elsewhere}"
        yield _problem(severity, f"{subject} requests GPUs but no RDMA device", detail, fix)


def _problem(severity: Severity, title: str, detail: str, fix: str) -> Problem:
    return Problem(0, severity, title, detail, fix)
