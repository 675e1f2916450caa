"""Why perftest gets its memory or not: CUDA's start, the export of GPU memory, and the NIC's registration.

Each failure follows from the state of the node: modules, driver, kernel, services, limits. Forms of the
lines: linux-rdma/perftest src/cuda_memory.c, src/cuda_loader.c, src/perftest_resources.c.
"""

from __future__ import annotations

from typing import NamedTuple

from probes.bandwidth.tools.perftest_command import PerftestSettings
from probes.base.unknown import Unknown
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.gpudirect_requirements import why_topology_allowed
from probes.simulation.bandwidth import cuda, perftest_text
from probes.simulation.bandwidth.command_line import ParsedCommand, program_bytes
from probes.simulation.node.jobs.processes import library_directory
from probes.simulation.node.model.tree import Tree
from probes.snapshot.examination import Examination

_NO_MEMORY = ("failed to create mr", "Failed to create MR", " Couldn't create IB resources")
_NO_GPU = ("Couldn't init GPU context: 1", " Couldn't create IB resources")
_EFAULT, _ENOMEM, _EINVAL, _EOPNOTSUPP, _ENOTSUPP = 14, 12, 22, 95, 524
_OLD_VERBS = "/usr/local/lib/libibverbs.so.1"


class Registered(NamedTuple):
    """What was printed until then, and whether there is memory now."""

    lines: tuple[str, ...]
    has_failed: bool = False
    gpu: str | None = None  # BDF; None: host memory


def buffer_bytes(settings: PerftestSettings) -> int:
    """Return what is registered: a buffer for each direction of every queue pair."""
    largest = 1 << 23 if settings.all_sizes else settings.size_bytes or 65536
    return 2 * settings.queue_pairs * max(largest, 4096)


def register(
    tree: Tree, examination: Examination, command: ParsedCommand, settings: PerftestSettings, pid: int
) -> Registered:
    """Register the memory of one end."""
    wanted, size = settings.gpu, buffer_bytes(settings)
    if wanted is None:
        errno = host_error(examination, size)
        return Registered(()) if errno is None else Registered(_refused(errno), True)
    libcuda = f"{library_directory(tree)}/libcuda.so"
    if b"libcuda.so\0" in program_bytes(tree, command.program) and not tree.is_there(libcuda):
        return Registered(("Failed to load CUDA library dynamically", *_NO_GPU), True)
    devices = cuda.devices(tree, command.environment)
    if isinstance(devices, int):
        return Registered(("initializing CUDA", f"cuInit(0) returned {devices}", *_NO_GPU), True)
    lines = perftest_text.cuda_devices(devices)
    is_wanted = (device for device in devices if wanted.bdf == device.bdf or wanted.index == device.index)
    device = next(is_wanted, None)
    if device is None:
        missing = f"cuDeviceGetByPCIBusId failed with error=101; full path = {wanted.bdf}"
        if wanted.index >= 0:
            missing = f"No such device ID ({wanted.index}) exists in system"
        return Registered((*lines, missing, *_NO_GPU), True)
    integrated = "GB10" in device.name
    lines = (*lines, *perftest_text.cuda_picks(device, pid, integrated))
    if wanted.dmabuf and not tree.description.exports_dmabuf:
        return Registered((*lines, "DMA-BUF is not supported on this GPU", *_NO_GPU), True)
    lines = (*lines, *perftest_text.cuda_buffer(size, integrated, wanted.dmabuf))
    if wanted.dmabuf:
        errno = dmabuf_error(tree, examination, settings.device)
    else:
        errno = None if integrated else peermem_error(tree, examination)
    if errno is not None:
        return Registered((*lines, *_refused(errno, wanted.dmabuf)), True)
    return Registered(lines, gpu=device.bdf)


def _refused(errno: int, dmabuf: bool = False) -> tuple[str, ...]:
    hint = ("OFED stack does not support DMA-BUF",) if dmabuf and errno == _EOPNOTSUPP else ()
    return (f"Couldn't allocate MR with error={errno}", *hint, *_NO_MEMORY)


def host_error(examination: Examination, size: int) -> int | None:
    """Return the error of pinning more than the locked memory limit allows (ib_umem_get)."""
    memlock = examination.memlock
    own = memlock if isinstance(memlock, Unknown) else memlock.own
    return None if isinstance(own, Unknown) or size <= own.soft_bytes else _ENOMEM


def dmabuf_error(tree: Tree, examination: Examination, nic: str) -> int | None:
    """Return the error of ibv_reg_dmabuf_mr: of library, NIC driver, or GPU driver when the NIC attaches."""
    direct = examination.node.gpudirect
    if tree.is_there(_OLD_VERBS) or isinstance(direct, Unknown) or direct.nic_dmabuf.get(nic) is False:
        return _EOPNOTSUPP
    if _denies(examination) or any("dma-buf attach failed" in line for line in tree.kernel_log):
        return _ENOTSUPP
    return None


def peermem_error(tree: Tree, examination: Examination) -> int | None:
    """Return the error of ibv_reg_mr with a GPU's address: without a peer-memory client it is EFAULT."""
    if not {"nvidia_peermem", "nv_peer_mem"}.intersection(tree.live_modules):
        return _EFAULT
    if _denies(examination):
        return _ENOTSUPP
    return None if tree.description.offers_gdr else _EINVAL


def _denies(examination: Examination) -> bool:
    """Return whether the driver's option denies every NIC access to GPU memory."""
    gpus = examination.node.gpus
    return isinstance(gpus, GpuFacts) and why_topology_allowed(gpus) == ""
