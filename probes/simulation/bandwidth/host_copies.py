"""nvbandwidth on a simulated node: its host-device tests, as text (NVIDIA/nvbandwidth output.cpp)."""

from __future__ import annotations

from collections.abc import Iterator

from probes.facts.system.tool_names import SANITY
from probes.simulation.bandwidth import cuda, speeds
from probes.simulation.bandwidth.command_line import ParsedCommand
from probes.simulation.bandwidth.cuda import CudaDevice
from probes.simulation.bandwidth.node_pair import SimulatedNode
from probes.simulation.bandwidth.playback import Line, Script, SimulatedTest, ended, spread
from probes.snapshot.examination import Examination

_STARTS, _SECONDS_PER_GPU = 1.2, 0.12
_TESTS = {"host_to_device_memcpy_ce": ("->", 1.0), "device_to_host_memcpy_ce": ("<-", 0.985)}
"""Name → direction in the line above the matrix, and the share of the bandwidth to the GPU."""
_HEAD = """\
nvbandwidth Version: v0.8
Built from Git version: v0.8

CUDA Runtime Version: {cuda}
CUDA Driver Version: {cuda}
Driver Version: {driver}

{host}"""


def start(node: SimulatedNode, command: ParsedCommand, at: float) -> SimulatedTest:
    """Start the tests that `-t` names."""
    devices = cuda.devices(node.tree, command.environment)
    if isinstance(devices, int):
        name, text = cuda.ERRORS[devices]
        failure = f"[{name}] {text} in expression cuInit(0) in main() : nvbandwidth.cpp:211"
        return node.run(ended(at + 0.3, 1, failure))
    tests = [word for word in command.words if not word.startswith("-")]
    unknown = next((name for name in tests if name not in _TESTS), None)
    if unknown is not None:
        return node.run(ended(at + 0.3, 1, f"ERROR: Testcase {unknown} not found!"))
    begun = at + _STARTS
    ends_at = begun + len(tests) * len(devices) * _SECONDS_PER_GPU
    head = [*_head(node).split("\n"), *(f"Device {gpu.index}: {gpu.name} ({gpu.bdf})" for gpu in devices), ""]
    lines = (*(Line(begun, text) for text in head), *_rows(node, devices, tests, begun))
    return node.run(Script(lines, ends_at))


def _head(node: SimulatedNode) -> str:
    driver = node.tree.description.driver
    major, _, minor = driver.cuda.partition(".")
    version = int(major) * 1000 + int(minor) * 10
    return _HEAD.format(cuda=version, driver=driver.version, host=node.hostname())


def _rows(
    node: SimulatedNode, devices: tuple[CudaDevice, ...], tests: list[str], at: float
) -> Iterator[Line]:
    examination = node.examine()
    for name in tests:
        direction, share = _TESTS[name]
        yield Line(at, f"Running {name}.")
        at += len(devices) * _SECONDS_PER_GPU
        speed = {gpu.bdf: speeds.host_to_gpu_gbps(examination, gpu.bdf) * share / 8 for gpu in devices}
        figures = [speeds.jittered(speed[bdf], node.seed, f"{name} {bdf}", at) for bdf in speed]
        yield Line(at, f"memcpy CE CPU(row) {direction} GPU(column) bandwidth (GB/s)")
        yield Line(at, "  " + "".join(f"{gpu.index:>10}" for gpu in devices))
        yield Line(at, " 0" + "".join(f"{figure:>10.2f}" for figure in figures))
        yield Line(at, "")
        yield Line(at, f"SUM {name} {sum(round(figure, 2) for figure in figures):.2f}")


# gdrcopy_copybw and gdrcopy_sanity on a simulated node.
#
# NVIDIA/gdrcopy tests/copybw.cpp, tests/common.hpp, tests/testsuites/testsuite.cpp.

_NOT_OPEN = "gdr_open error: Is gdrdrv driver installed and loaded?"
_DEVICE_FILE = "/dev/gdrdrv"
_SIZE = "131072"
_WRITE_SHARE, _MOST_WRITE_GBPS = 0.62, 118.0  # what one core fills write-combined
_READ_GBPS, _READ_C2C_GBPS, _WRITE_C2C_GBPS = 4.4, 72.0, 310.0
_OTHER_NUMA_NODE = 0.64  # of what a core on the GPU's NUMA node reaches
_GDRCOPY_STARTS, _COPIES = 0.7, 0.35  # seconds
_MIB = 1 << 20
_COPY_TESTS = (
    *("basic", "data_validation", "invalidation_access_after_free", "invalidation_access_after_gdr_close"),
    *("invalidation_fork_after_gdr_map", "invalidation_two_mappings"),
)
_SUITE = tuple(f"{name}_{how}" for name in _COPY_TESTS for how in ("cumemalloc", "vmmalloc"))


def start_gdrcopy(node: SimulatedNode, command: ParsedCommand, at: float) -> SimulatedTest:
    """Start either program."""
    return node.run(_script(node, command, at))


def _script(node: SimulatedNode, command: ParsedCommand, at: float) -> Script:
    devices = cuda.devices(node.tree, command.environment)
    if isinstance(devices, int):
        return ended(at + 0.1, 1, *_cuda_failure(devices, "cuInit(0)"))
    device = next((gpu for gpu in devices if str(gpu.index) == command.option("-d", "0")), None)
    if device is None:
        return ended(at + 0.2, 1, *_cuda_failure(101, "cuDeviceGet(&dev, dev_id)"))
    tree = node.tree
    if "gdrdrv" not in tree.live_modules or _DEVICE_FILE not in tree.files or _DEVICE_FILE in tree.denied:
        return ended(at + _GDRCOPY_STARTS, 1, _NOT_OPEN)
    if "GeForce" in device.name:
        return ended(at + _GDRCOPY_STARTS, 1, "This GPU does not support GPUDirect RDMA.")
    if command.program == SANITY:
        total = f"Total: {len(_SUITE)}, Passed: {len(_SUITE)}, Failed: 0, Waived: 0"
        passed = ("", "List of passed tests:", *(f"    {name}" for name in _SUITE), "")
        return ended(at + 4 * _GDRCOPY_STARTS, 0, total, *passed)
    return _copies(node, command, device, at)


def _cuda_failure(error: int, statement: str) -> tuple[str, ...]:
    return (
        f"CUDA error: {cuda.ERRORS[error][0]} in {statement}",
        f'Assertion "(CUDA_SUCCESS) == (result)" failed at common.cpp:{100 + error % 100}',
    )


def _copies(node: SimulatedNode, command: ParsedCommand, device: CudaDevice, at: float) -> Script:
    size = command.option("-s", _SIZE)
    write, read = _bandwidths(node.examine(), device.bdf, command.numa_node)
    writes, reads = at + _GDRCOPY_STARTS, at + _GDRCOPY_STARTS + _COPIES
    ends = reads + _COPIES
    what = f"{command.program} {device.bdf}"
    write_mib = speeds.jittered(write, node.seed, f"{what} write", reads) * 1e9 / 8 / _MIB
    read_mib = speeds.jittered(read, node.seed, f"{what} read", ends) * 1e9 / 8 / _MIB
    head = (
        f"GPU id:{device.index}; name: {device.name}; Bus id: {device.bdf.removesuffix('.0')}",
        f"selecting device {device.index}",
        f"testing size: {size}",
        "gpu alloc fn: cuMemAlloc",
        "info.wc_mapping: 1",
    )
    return Script(
        (
            *spread(at, _GDRCOPY_STARTS, *head),
            Line(writes, f"writing test, size={size} offset=0 num_iters=10000"),
            Line(reads, f"write BW: {write_mib:.6g}MB/s"),
            Line(reads, f"reading test, size={size} offset=0 num_iters=100"),
            Line(ends, f"read BW: {read_mib:.6g}MB/s"),
            *(Line(ends, text) for text in ("unmapping buffer", "unpinning buffer", "closing gdrdrv")),
        ),
        ends,
    )


def _bandwidths(examination: Examination, gpu: str, numa_node: int | None) -> tuple[float, float]:
    """Return Gb/s of writes and reads by a core of a NUMA node; None: it is not bound."""
    gbps = speeds.host_to_gpu_gbps(examination, gpu)
    own = next((end.numa_node for end in examination.topology.gpus if end.id == gpu), None)
    is_far = isinstance(own, int) and numa_node not in (None, own)
    share = _OTHER_NUMA_NODE if is_far else 1.0
    if gbps >= speeds.C2C_GBPS:
        return _WRITE_C2C_GBPS * share, _READ_C2C_GBPS * share
    return min(gbps * _WRITE_SHARE, _MOST_WRITE_GBPS) * share, min(_READ_GBPS, gbps * 0.05) * share
