"""Why perftest gets its memory or does not: CUDA's start, the export of GPU memory, and the NIC's word.

Each failure follows from the state of the node: modules, driver, kernel, services, limits. Forms of the
lines: linux-rdma/perftest src/cuda_memory.c, src/cuda_loader.c, src/perftest_resources.c.
"""

from __future__ import annotations

from dataclasses import dataclass

from probes.base.unknown import Unknown
from probes.facts.gpu.gpus import GpuFacts
from probes.simulation.bandwidth import cuda, perftest_text
from probes.simulation.bandwidth.command_line import Called, program_of
from probes.simulation.bandwidth.cuda import CudaDevice
from probes.simulation.bandwidth.perftest_options import Options
from probes.simulation.bandwidth.perftest_text import Numbers
from probes.simulation.node.processes import library_directory
from probes.simulation.node.tree import Tree
from probes.snapshot.examination import Examination

_NOT_CREATED = ("failed to create mr", "Failed to create MR", " Couldn't create IB resources")
_NO_CONTEXT = "Couldn't init GPU context: 1"
_EFAULT, _ENOMEM, _EINVAL, _EOPNOTSUPP, _ENOTSUPP = 14, 12, 22, 95, 524
_OLD_VERBS = "/usr/local/lib/libibverbs.so.1"


@dataclass(frozen=True)
class Registered:
    """What was printed on the way, and whether there is memory now."""

    lines: tuple[str, ...]
    failed: bool = False
    gpu: CudaDevice | None = None


def register(
    tree: Tree, examination: Examination, called: Called, options: Options, nic: str, numbers: Numbers
) -> Registered:
    """The memory of one end."""
    if not options.of_gpu:
        errno = _of_host(examination, options)
        return Registered(()) if errno is None else Registered(_refused(errno), True)
    if b"libcuda.so\0" in program_of(tree, called.tool) and not _has_libcuda(tree):
        return Registered(
            ("Failed to load CUDA library dynamically", _NO_CONTEXT, " Couldn't create IB resources"), True
        )
    devices = cuda.devices(tree, called.environment)
    if isinstance(devices, int):
        said = ("initializing CUDA", f"cuInit(0) returned {devices}", _NO_CONTEXT)
        return Registered((*said, " Couldn't create IB resources"), True)
    begun = perftest_text.cuda_begins(devices)
    device = _chosen(options, devices)
    if device is None:
        missing = f"No such device ID ({options.cuda_index}) exists in system"
        if options.cuda_bus_id is not None:
            missing = f"cuDeviceGetByPCIBusId failed with error=101; full path = {options.cuda_bus_id}"
        return Registered((*begun, missing, _NO_CONTEXT, " Couldn't create IB resources"), True)
    integrated = "GB10" in device.name
    picked = (*begun, *perftest_text.cuda_picks(device, numbers, integrated))
    if options.dmabuf and not cuda.exports_dmabuf(tree):
        gone = ("DMA-BUF is not supported on this GPU", _NO_CONTEXT, " Couldn't create IB resources")
        return Registered((*picked, *gone), True)
    lines = (*picked, *perftest_text.cuda_buffer(options, numbers, integrated))
    if options.dmabuf:
        lines = (*lines, perftest_text.cuda_registers(options, numbers))
        errno = _by_dmabuf(tree, examination, nic)
    else:
        errno = None if integrated else _by_peermem(tree, examination)
    if errno is not None:
        return Registered((*lines, *_refused(errno, options.dmabuf)), True)
    return Registered(lines, gpu=device)


def _refused(errno: int, dmabuf: bool = False) -> tuple[str, ...]:
    hint = ("OFED stack does not support DMA-BUF",) if dmabuf and errno == _EOPNOTSUPP else ()
    return (f"Couldn't allocate MR with error={errno}", *hint, *_NOT_CREATED)


def _of_host(examination: Examination, options: Options) -> int | None:
    """Pinned memory counts against the limit of locked memory (ib_umem_get)."""
    memlock = examination.memlock
    own = memlock if isinstance(memlock, Unknown) else memlock.own
    if isinstance(own, Unknown) or options.buffer_bytes <= own.soft_bytes:
        return None
    return _ENOMEM


def _has_libcuda(tree: Tree) -> bool:
    return tree.is_there(f"{library_directory(tree)}/libcuda.so")


def _chosen(options: Options, devices: tuple[CudaDevice, ...]) -> CudaDevice | None:
    if options.cuda_bus_id is not None:
        wanted = options.cuda_bus_id.lower()
        return next((one for one in devices if one.bdf == wanted), None)
    return next((one for one in devices if one.index == options.cuda_index), None)


def _by_dmabuf(tree: Tree, examination: Examination, nic: str) -> int | None:
    """What ibv_reg_dmabuf_mr says: library, NIC driver, and the GPU driver when the NIC attaches."""
    direct = examination.node.gpudirect
    if tree.is_there(_OLD_VERBS):
        return _EOPNOTSUPP
    if isinstance(direct, Unknown) or direct.nic_dmabuf.get(nic) is False:
        return _EOPNOTSUPP
    if _denies(tree, examination) or any("dma-buf attach failed" in line for line in tree.kernel_log):
        return _ENOTSUPP
    return None


def _by_peermem(tree: Tree, examination: Examination) -> int | None:
    """What ibv_reg_mr says of a GPU's address: without a peer-memory client it is nobody's (EFAULT)."""
    if not {"nvidia_peermem", "nv_peer_mem"}.intersection(tree.live_modules):
        return _EFAULT
    if _denies(tree, examination):
        return _ENOTSUPP
    return None if tree.description.offers_gdr else _EINVAL


def _denies(tree: Tree, examination: Examination) -> bool:
    """NVreg_GrdmaPciTopoCheckOverride=2 refuses every NIC, but for GPUs on a CPU's chip-to-chip links."""
    gpus = examination.node.gpus
    parameters = gpus.driver.parameters if isinstance(gpus, GpuFacts) else {}
    is_set = not isinstance(parameters, Unknown) and parameters.get("GrdmaPciTopoCheckOverride") == "2"
    return is_set and not tree.description.gpu.c2c
