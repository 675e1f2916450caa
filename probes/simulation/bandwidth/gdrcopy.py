"""gdrcopy_copybw and gdrcopy_sanity played.

NVIDIA/gdrcopy tests/copybw.cpp, tests/common.hpp, tests/testsuites/testsuite.cpp.
"""

from __future__ import annotations

from probes.facts.system.tool_names import SANITY
from probes.simulation.bandwidth import cuda
from probes.simulation.bandwidth import speeds as figures
from probes.simulation.bandwidth.command_line import Called
from probes.simulation.bandwidth.cuda import CudaDevice
from probes.simulation.bandwidth.node_pair import Stage
from probes.simulation.bandwidth.playback import Line, Script, ended, spaced
from probes.simulation.commands.command_result import split_options
from probes.snapshot.examination import Examination

_NOT_OPEN = "gdr_open error: Is gdrdrv driver installed and loaded?"
_DEVICE_FILE = "/dev/gdrdrv"
_SIZE = 131_072
_WRITES, _READS = 10_000, 100
_WRITE_SHARE, _MOST_WRITE_GBPS = 0.62, 118.0  # what one core fills write-combined
_READ_GBPS, _READ_C2C_GBPS, _WRITE_C2C_GBPS = 4.4, 72.0, 310.0
_FAR_NODE = 0.64  # a core of another NUMA node than the GPU's
_BEGINS, _COPIES = 0.7, 0.35
_MIB = 1 << 20
_NAMES = tuple(
    f"{name}_{how}"
    for name in (
        "basic",
        "data_validation",
        "invalidation_access_after_free",
        "invalidation_access_after_gdr_close",
        "invalidation_fork_after_gdr_map",
        "invalidation_two_mappings",
        "invalidation_unix_sock_shared_fd_gdr_map",
        "invalidation_unix_sock_shared_fd_gdr_pin_buffer",
    )
    for how in ("cumemalloc", "vmmalloc")
)
_SUITE = (*_NAMES, "basic_small_buffers_mapping", "basic_unaligned_mapping", "basic_with_tokens")


def script(stage: Stage, called: Called, at: float) -> Script:
    """A run of either, from its begin to its end."""
    options, _ = split_options(called.words, "sdcowraMt")
    devices = cuda.devices(stage.tree, called.environment)
    if isinstance(devices, int):
        return ended(at + 0.1, 1, *_failure(devices, "cuInit(0)"))
    listed = [
        f"GPU id:{one.index}; name: {one.name}; Bus id: {one.bdf.removesuffix('.0')}" for one in devices
    ]
    number = options.get("-d", "0")
    device = next((one for one in devices if str(one.index) == number), None)
    if device is None:
        return ended(at + 0.2, 1, *listed, *_failure(101, "cuDeviceGet(&dev, dev_id)"))
    is_suite = called.tool == SANITY
    begun = [] if is_suite else [*listed, f"selecting device {device.index}"]
    tree = stage.tree
    if "gdrdrv" not in tree.live_modules or _DEVICE_FILE not in tree.files or _DEVICE_FILE in tree.denied:
        return ended(at + _BEGINS, 1, *begun, _NOT_OPEN)
    if "GeForce" in device.name:
        return ended(at + _BEGINS, 1, *begun, "This GPU does not support GPUDirect RDMA.")
    if is_suite:
        return _suite(at + 4 * _BEGINS)
    size = options.get("-s", str(_SIZE))
    return _copies(stage, called, device, begun, int(size[:12]) if size.isdecimal() else _SIZE, at)


def _failure(error: int, statement: str) -> tuple[str, ...]:
    name = cuda.ERRORS[error][0]
    return (
        f"CUDA error: {name} in {statement}",
        f'Assertion "(CUDA_SUCCESS) == (result)" failed at common.cpp:{100 + error % 100}',
    )


def _suite(at: float) -> Script:
    names = sorted(_SUITE)
    total = f"Total: {len(names)}, Passed: {len(names)}, Failed: 0, Waived: 0"
    return ended(at, 0, total, "", "List of passed tests:", *(f"    {name}" for name in names), "")


def _copies(
    stage: Stage, called: Called, device: CudaDevice, begun: list[str], size: int, at: float
) -> Script:
    examination = stage.examine()
    write, read = bandwidths(examination, device.bdf, called.numa_node)
    begins, reads = at + _BEGINS, at + _BEGINS + _COPIES
    ends = reads + _COPIES
    what = f"{called.tool} {device.bdf}"
    written = _mib(figures.jittered(write, stage.seed, f"{what} write", reads))
    taken = _mib(figures.jittered(read, stage.seed, f"{what} read", ends))
    address = 0x7F0000000000 + (stage.number(what, at, 1 << 18) << 21)
    mapped = (
        *begun,
        f"testing size: {size}",
        f"rounded size: {-(-size // 65536) * 65536}",
        "gpu alloc fn: cuMemAlloc",
        f"device ptr: {address:x}",
        f"map_d_ptr: 0x{address + (1 << 30):x}",
        f"info.va: {address:x}",
        f"info.mapped_size: {-(-size // 65536) * 65536}",
        "info.page_size: 65536",
        "info.mapped: 1",
        "info.wc_mapping: 1",
        "page offset: 0",
        f"user-space pointer:0x{address + (1 << 30):x}",
    )
    return Script(
        (
            *spaced(at, _BEGINS, *mapped),
            Line(begins, f"writing test, size={size} offset=0 num_iters={_WRITES}"),
            Line(reads, f"write BW: {written:.6g}MB/s"),
            Line(reads, f"reading test, size={size} offset=0 num_iters={_READS}"),
            Line(ends, f"read BW: {taken:.6g}MB/s"),
            *(Line(ends, text) for text in ("unmapping buffer", "unpinning buffer", "closing gdrdrv")),
        ),
        ends,
    )


def bandwidths(examination: Examination, gpu: str, numa_node: int | None) -> tuple[float, float]:
    """Gb/s of the CPU's writes and reads; `numa_node`: of the core, None where it is not bound."""
    reached = figures.to_gpu_gbps(examination, gpu)
    end = next((one for one in examination.topology.gpus if one.id == gpu), None)
    far = end is not None and numa_node is not None and end.numa_node != numa_node
    share = _FAR_NODE if far and isinstance(end.numa_node if end else None, int) else 1.0
    if reached >= figures.C2C_GBPS:
        return _WRITE_C2C_GBPS * share, _READ_C2C_GBPS * share
    return min(reached * _WRITE_SHARE, _MOST_WRITE_GBPS) * share, min(_READ_GBPS, reached * 0.05) * share


def _mib(gbps: float) -> float:
    return gbps * 1e9 / 8 / _MIB
