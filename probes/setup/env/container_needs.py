"""What containers with GPUs need for GPUDirect RDMA, and cannot do with what they may use.

Sources: Linux security/device_cgroup.c (what an unprivileged container may open), drivers/infiniband/core/
umem.c (RLIMIT_MEMLOCK); Kubernetes, Device Plugins and Dynamic Resource Allocation; nvidia-container-toolkit
internal/modifier/gated.go (NVIDIA_MOFED); NCCL user guide, Troubleshooting, Docker (shared memory).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

from probes.base.data_files import read_toml
from probes.base.evidence import Severity
from probes.base.text import join_limited
from probes.base.unknown import Unknown, known
from probes.setup.env.assignments import Problem, problem_at
from probes.setup.env.clouds import Stack
from probes.setup.env.container import EFA, MANY, Container, Network, Syntax, device_name, is_rdma
from probes.snapshot.examination import Examination


@cache
def fixes_of(syntax: Syntax) -> dict[str, str]:
    """Return how a kind of file gives a container what it needs."""
    return dict(read_toml(__package__, "container.toml")[syntax.value])


def problems_of(container: Container, examination: Examination, stack: Stack | None) -> Iterator[Problem]:
    """Name what a container with GPUs misses for RDMA; a warning if it has all GPUs of the node."""
    problem = partial(problem_at, container.line, subject=container.subject)
    all_gpus = len(examination.topology.gpus)
    is_whole = (container.gpus or 0) >= max(2, all_gpus) and not (container.gpus == MANY and all_gpus == 1)
    severity = Severity.WARNING if is_whole and container.expects_rdma else Severity.NOTE
    syntax, fixes = container.syntax, fixes_of(container.syntax)
    yield from _of_devices(container, severity, stack)
    if syntax is Syntax.OF_HOST or container.is_partial:
        return
    needs_lock = stack is not Stack.EFA and EFA not in container.resources
    if needs_lock and not (container.locks_memory or container.is_privileged):
        yield problem("locked-memory", severity=severity, lack=fixes["no_lock"], fix=fixes["lock"])
    devices = examination.topology.devices.values()
    layers = {known(port.link_layer, "") for device in devices for port in device.ports}
    if container.network is Network.OWN and stack is None and layers == {"Ethernet"}:
        id_ = "own-network-of-pod" if syntax is Syntax.KUBERNETES else "own-network"
        pod = container.subject[:1].lower() + container.subject[1:]
        yield problem(id_, severity=severity, pod=pod, fix=fixes["network"])
    if not container.has_shm and container.gpus != 1:
        yield problem("small-shm", fix=fixes["shm"])


def _of_devices(container: Container, severity: Severity, stack: Stack | None) -> Iterator[Problem]:
    """Judge whether the container can open an RDMA device."""
    syntax, fixes = container.syntax, fixes_of(container.syntax)
    problem = partial(problem_at, container.line, subject=container.subject, mount=fixes["mount"])
    kinds = {name: is_rdma(name) for name in container.resources}
    granted = [name for name, kind in kinds.items() if kind is True]
    unclear = [name for name, kind in kinds.items() if isinstance(kind, Unknown)]
    add = fixes["device"].replace("%s", device_name(stack is Stack.EFA))
    if container.hidden_by:
        yield problem("devices-hidden", by=container.hidden_by)
    elif syntax is Syntax.OF_HOST or container.is_privileged or container.has_devices:
        return
    elif container.mounts_files and granted:
        yield problem("mount-beside-efa" if EFA in granted else "mount-beside-plugin", resource=granted[0])
    elif container.mounts_files and container.is_rootless:
        yield problem("mount-if-rootless", add=add)
    elif container.mounts_files:
        is_certain = not (unclear or container.is_partial)
        yield problem("mount-opens-nothing" if is_certain else "mount-may-open-nothing", add=add)
    elif unclear and not granted:
        yield problem("resource-unclear", names=join_limited(unclear), add=add[:1].lower() + add[1:])
    elif not granted and container.is_partial and syntax is not Syntax.KUBERNETES:
        yield problem("options-elsewhere")
    elif not granted and not container.is_partial:
        elsewhere = container.elsewhere and f" {container.elsewhere}"
        yield problem("no-device", severity=severity, elsewhere=elsewhere, add=add)
