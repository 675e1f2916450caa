"""gdrcopy_copybw on a simulated node.

NVIDIA/gdrcopy tests/copybw.cpp, tests/common.hpp.
"""

from __future__ import annotations

from probes.simulation.bandwidth import cuda, speeds
from probes.simulation.bandwidth.cuda import CudaDevice
from probes.simulation.bandwidth.node_pair import ParsedCommand, SimulatedNode
from probes.simulation.bandwidth.playback import Script, SimulatedTest, at_once, ended, printed, spread
from probes.snapshot.examination import Examination

_NOT_OPEN = "gdr_open error: Is gdrdrv driver installed and loaded?"
_DEVICE_FILE = "/dev/gdrdrv"
_SIZE = "131072"
_WRITE_SHARE, _MOST_WRITE_GBPS = 0.62, 118.0  # what one core fills write-combined
_READ_GBPS, _READ_C2C_GBPS, _WRITE_C2C_GBPS = 4.4, 72.0, 310.0
_OTHER_NUMA_NODE = 0.64  # of what a core on the GPU's NUMA node reaches
_STARTS, _COPIES = 0.7, 0.35  # seconds
_MIB = 1 << 20


def start(node: SimulatedNode, command: ParsedCommand, at: float) -> SimulatedTest:
    """Start the program."""
    return node.run(_script(node, command, at))


def _script(node: SimulatedNode, command: ParsedCommand, at: float) -> Script:
    devices = cuda.devices(node.tree, command.environment)
    if isinstance(devices, int):
        return ended(at + 0.1, 1, *_cuda_failure(devices))
    device = next((gpu for gpu in devices if str(gpu.index) == command.option("-d", "0")), None)
    if device is None:
        return ended(at + 0.2, 1, *_cuda_failure(101))
    tree = node.tree
    if "gdrdrv" not in tree.live_modules or _DEVICE_FILE not in tree.files or _DEVICE_FILE in tree.denied:
        return ended(at + _STARTS, 1, _NOT_OPEN)
    if "GeForce" in device.name:
        return ended(at + _STARTS, 1, "This GPU does not support GPUDirect RDMA.")
    return _copies(node, command, device, at)


def _cuda_failure(error: int) -> tuple[str, ...]:
    name = cuda.error_of(error).also[0]
    return printed("gdrcopy", "cuda-failure", error=name, line=100 + error % 100)


def _copies(node: SimulatedNode, command: ParsedCommand, device: CudaDevice, at: float) -> Script:
    size = command.option("-s", _SIZE)
    write, read = _bandwidths(node.examine(), device.bdf, command.numa_node)
    writes, reads = at + _STARTS, at + _STARTS + _COPIES
    ends = reads + _COPIES
    what = f"{command.program} {device.bdf}"
    write_mib = speeds.jittered(write, node.seed, f"{what} write", reads) * 1e9 / 8 / _MIB
    read_mib = speeds.jittered(read, node.seed, f"{what} read", ends) * 1e9 / 8 / _MIB
    bus = device.bdf.removesuffix(".0")
    head = printed("gdrcopy", "head", index=device.index, name=device.name, bus=bus, size=size)
    lines = (
        *spread(at, _STARTS, *head),
        *at_once(writes, *printed("gdrcopy", "write", size=size)),
        *at_once(reads, *printed("gdrcopy", "read", write=write_mib, size=size)),
        *at_once(ends, *printed("gdrcopy", "end", read=read_mib)),
    )
    return Script(lines, ends)


def _bandwidths(examination: Examination, gpu: str, numa_node: int | None) -> tuple[float, float]:
    """Return Gb/s of writes and reads by a core of a NUMA node; None: it is not bound."""
    gbps = speeds.host_to_gpu_gbps(examination, gpu)
    own = next((end.numa_node for end in examination.topology.gpus if end.id == gpu), None)
    is_far = isinstance(own, int) and numa_node not in (None, own)
    share = _OTHER_NUMA_NODE if is_far else 1.0
    if gbps >= speeds.C2C_GBPS:
        return _WRITE_C2C_GBPS * share, _READ_C2C_GBPS * share
    return min(gbps * _WRITE_SHARE, _MOST_WRITE_GBPS) * share, min(_READ_GBPS, gbps * 0.05) * share
