"""Why perftest gets its memory or not: CUDA's start, the export of GPU memory, and the NIC's registration.

Each failure follows from the state of the node: modules, driver, kernel, services, limits. Forms of the
lines: linux-rdma/perftest src/cuda_memory.c, src/cuda_loader.c, src/perftest_resources.c.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from probes.bandwidth.prove import (
    COMPUTE_MODE,
    DMABUF,
    EXPORT,
    GPU_CALLS,
    LIBRARIES,
    NIC_CALLS,
    PEER_MEMORY,
    SUPPORTED,
)
from probes.bandwidth.tools.perftest_command import PerftestSettings
from probes.base.unknown import Unknown, known
from probes.facts.gpu.generations import is_model
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.gpudirect_probe import why_topology_allowed
from probes.queries.kernel_log import IMPORTER
from probes.simulation.bandwidth import cuda
from probes.simulation.bandwidth.node_pair import ParsedCommand, SimulatedNode, program_bytes
from probes.simulation.bandwidth.playback import Line, Script, SimulatedTest, printed
from probes.simulation.bandwidth.speeds import device_of
from probes.simulation.node.jobs.processes import library_directory
from probes.simulation.node.jobs.programs import needs_plugin
from probes.simulation.node.model.tree import Tree
from probes.snapshot.examination import Examination

_NO_MEMORY = ("failed to create mr", "Failed to create MR", " Couldn't create IB resources")
_NO_GPU = ("Couldn't init GPU context: 1", " Couldn't create IB resources")
_ENOTSUPP = 524  # of the kernel alone
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
        error = host_error(examination, size)
        return Registered(()) if error is None else Registered(_refused(error), True)
    libcuda = f"{library_directory(tree)}/libcuda.so"
    if b"libcuda.so\0" in program_bytes(tree, command.program) and not tree.is_there(libcuda):
        return Registered(("Failed to load CUDA library dynamically", *_NO_GPU), True)
    devices = cuda.devices(tree, command.environment)
    if isinstance(devices, int):
        return Registered(("initializing CUDA", f"cuInit(0) returned {devices}", *_NO_GPU), True)
    pcie = (f"CUDA device {gpu.index}: PCIe address is {gpu.bdf[5:10].upper()}" for gpu in devices)
    lines = printed("perftest", "cuda-devices", devices="\n".join(pcie))
    is_wanted = (device for device in devices if wanted.bdf == device.bdf or wanted.index == device.index)
    device = next(is_wanted, None)
    if device is None:
        missing = f"cuDeviceGetByPCIBusId failed with error=101; full path = {wanted.bdf}"
        if wanted.index >= 0:
            missing = f"No such device ID ({wanted.index}) exists in system"
        return Registered((*lines, missing, *_NO_GPU), True)
    integrated = is_model(device.name, "GB10")
    about = {"index": device.index, "name": device.name, "pid": pid, "integrated": integrated}
    lines = (*lines, *printed("perftest", "cuda-device", **about))
    if wanted.dmabuf and not tree.description.exports_dmabuf:
        return Registered((*lines, "DMA-BUF is not supported on this GPU", *_NO_GPU), True)
    kind = "CUDA_MEM_HOST" if integrated else "CUDA_MEM_DEVICE"
    lines += printed("perftest", "dmabuf-buffer" if wanted.dmabuf else "buffer", size=size, kind=kind)
    if wanted.dmabuf:
        error = dmabuf_error(tree, examination, settings.device)
    else:
        error = None if integrated else peermem_error(tree, examination)
    if error is not None:
        return Registered((*lines, *_refused(error, wanted.dmabuf)), True)
    return Registered(lines, gpu=device.bdf)


def _refused(error: int, dmabuf: bool = False) -> tuple[str, ...]:
    hint = ("OFED stack does not support DMA-BUF",) if dmabuf and error == errno.EOPNOTSUPP else ()
    return (f"Couldn't allocate MR with error={error}", *hint, *_NO_MEMORY)


def has_provider(tree: Tree) -> bool:
    """Return whether the library is there without which libibverbs skips the NICs."""
    provider = "libefa.so.1" if needs_plugin(tree) else "libmlx5.so.1"
    return tree.is_there(f"{library_directory(tree)}/{provider}")


def host_error(examination: Examination, size: int) -> int | None:
    """Return the error of pinning more than the locked memory limit allows (ib_umem_get)."""
    memlock = examination.memlock
    own = memlock if isinstance(memlock, Unknown) else memlock.own
    return None if isinstance(own, Unknown) or size <= own.soft_bytes else errno.ENOMEM


def dmabuf_error(tree: Tree, examination: Examination, nic: str) -> int | None:
    """Return the error of ibv_reg_dmabuf_mr: of library, NIC driver, or GPU driver when the NIC attaches."""
    direct = examination.node.gpudirect
    if tree.is_there(_OLD_VERBS) or isinstance(direct, Unknown) or direct.nic_dmabuf.get(nic) is False:
        return errno.EOPNOTSUPP
    if _denies(examination) or any("dma-buf attach failed" in line for line in tree.kernel_log):
        return _ENOTSUPP
    # Before 580.65.06 the driver returns no table, which dma_buf_map_attachment calls ENOMEM.
    if any(words in line for line in tree.kernel_log for words in IMPORTER):
        return errno.ENOMEM
    return None


def peermem_error(tree: Tree, examination: Examination) -> int | None:
    """Return the error of ibv_reg_mr with a GPU's address: without a peer-memory client it is EFAULT."""
    if not {"nvidia_peermem", "nv_peer_mem"}.intersection(tree.live_modules):
        return errno.EFAULT
    if _denies(examination):
        return _ENOTSUPP
    return None if tree.description.offers_gdr else errno.EINVAL


def _denies(examination: Examination) -> bool:
    """Return whether the driver's option denies every NIC access to GPU memory."""
    gpus = examination.node.gpus
    return isinstance(gpus, GpuFacts) and why_topology_allowed(gpus) == ""


# Each answer follows from the state of the node, by the rules with which perftest gets its memory or not.

_SECONDS_PER_ANSWER = 0.004
_HOST_BYTES = 4096
_NOT_EXPORTED = 801
_NOT_LISTED = 101


def start(node: SimulatedNode, gpu: str, nics: Sequence[str]) -> SimulatedTest:
    """Start the program for a GPU (BDF) and NICs, given as "ACCESS:NAME"."""
    at = node.clock()
    names = [word.partition(":")[2] for word in nics]
    texts = [json.dumps(answer) for answer in _answers(node.tree, node.examine(), gpu, names)]
    lines = [Line(at + _SECONDS_PER_ANSWER * number, text) for number, text in enumerate(texts, 1)]
    return node.run(Script(lines, lines[-1].at))


def _answers(
    tree: Tree, examination: Examination, gpu: str, nics: Sequence[str]
) -> Iterator[tuple[str, str, int | str]]:
    """Yield (NIC, call, value) of each call that returns."""
    libraries = library_directory(tree)
    for library in LIBRARIES:
        if not tree.is_there(f"{libraries}/{library}.so.1"):
            yield "", library, f"{library}.so.1 is not installed"
            return
    opened = []
    for nic in nics:
        number = _open_error(tree, examination, nic)
        if number == 0:
            opened.append(nic)
        failing_call = NIC_CALLS[-1] if number == errno.ENOMEM else NIC_CALLS[1]
        for call in NIC_CALLS:
            is_failing = number != 0 and call == failing_call
            yield nic, call, number if is_failing else 0
            if is_failing:
                break
    if not opened:
        return
    failed = None
    for answer in _gpu_answers(tree, gpu):
        yield answer
        failed = answer if answer[1] in GPU_CALLS and answer[2] else failed
    if failed is not None:
        return
    is_exported = tree.description.exports_dmabuf
    yield "", EXPORT, 0 if is_exported else _NOT_EXPORTED
    for nic in opened:
        if is_exported:
            yield nic, DMABUF, dmabuf_error(tree, examination, nic) or 0
        yield nic, PEER_MEMORY, _peer_memory_error(tree, examination, nic)


def _open_error(tree: Tree, examination: Examination, nic: str) -> int:
    """Return the errno of opening a NIC and registering host memory; 0 if both succeed."""
    device = device_of(examination, nic)
    if device is None or not has_provider(tree):
        return errno.ENODEV
    file = known(device.uverbs, "")
    if file not in tree.files or file in tree.denied:
        return errno.EACCES
    return host_error(examination, _HOST_BYTES) or 0


def _gpu_answers(tree: Tree, gpu: str) -> Iterator[tuple[str, str, int]]:
    devices = cuda.devices(tree, {})
    if isinstance(devices, int):
        yield "", GPU_CALLS[0], devices
        return
    yield "", GPU_CALLS[0], 0
    is_listed = any(device.bdf == gpu for device in devices)
    yield "", GPU_CALLS[1], 0 if is_listed else _NOT_LISTED
    if not is_listed:
        return
    yield "", COMPUTE_MODE, 0
    supported = (tree.description.offers_gdr, tree.description.exports_dmabuf)
    for name, is_supported in zip(SUPPORTED, supported, strict=True):
        yield "", name, int(is_supported)
    if any(supported):
        for call in GPU_CALLS[2:]:
            yield "", call, 0


def _peer_memory_error(tree: Tree, examination: Examination, nic: str) -> int:
    direct = examination.node.gpudirect
    if not isinstance(direct, Unknown) and direct.nic_peermem.get(nic) is False:
        return errno.EFAULT
    if needs_plugin(tree):  # EFA has a peer-memory module of its own
        return 0
    return peermem_error(tree, examination) or 0
