"""Command lines of gdrcopy's tests, nvbandwidth and nccl-tests.

NVIDIA/gdrcopy tests/copybw.cpp, sanity.cpp; NVIDIA/nvbandwidth README.md; NVIDIA/nccl-tests README.md. That
a node uses the network between its own GPUs where P2P and shared memory are off is shown by NVIDIA/nccl-tests
issue #206.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from probes.bandwidth.tools.command import Command, Refused, between, command, is_rdma_device
from probes.facts.system.tool_names import GDRCOPY
from probes.facts.system.tools import ToolFacts

_PCI_ORDER = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
# NVLS (NVLink SHARP) does not ask whether P2P is disabled (NCCL src/transport/nvls.cc), and where NCCL's own
# IB transport is not wanted by name, TCP over some Ethernet takes its place.
_OVER_NETWORK = (
    ("NCCL_P2P_DISABLE", "1"),
    ("NCCL_SHM_DISABLE", "1"),
    ("NCCL_NVLS_ENABLE", "0"),
    ("NCCL_NET", "IB"),
)
_TEST_NAME = re.compile(r"[a-z][a-z0-9_]{0,79}")


@dataclass(frozen=True)
class GdrcopySettings:
    """The CPU's own reach to GPU memory."""

    gpu_index: int
    tool: str = "gdrcopy_copybw"  # or "gdrcopy_sanity"
    size_bytes: int | None = None
    numa_node: int | None = None


@dataclass(frozen=True)
class NvbandwidthSettings:
    """Copies by CUDA between host and GPUs."""

    tests: tuple[str, ...] = ("host_to_device_memcpy_ce", "device_to_host_memcpy_ce")
    buffer_mib: int | None = None  # None: its own, 512
    samples: int | None = None  # None: its own, 3
    gpus: tuple[int, ...] = ()  # in PCI order; () all
    as_json: bool = False


@dataclass(frozen=True)
class NcclSettings:
    """A collective in one process on this node."""

    gpus: tuple[int, ...]  # in PCI order
    tool: str = "all_reduce_perf"
    begin_bytes: int = 8
    end_bytes: int = 1 << 30
    factor: int = 2
    iterations: int = 20
    is_checked: bool = True
    over_network: bool = False  # without P2P, shared memory, NVLS and TCP, so that NCCL takes the NICs
    devices: tuple[str, ...] = ()  # RDMA devices, exactly these; () NCCL chooses
    debug: bool = True  # NCCL tells which way it takes


def gdrcopy(settings: GdrcopySettings, tools: ToolFacts) -> Command | Refused:
    """The command of gdrcopy's bandwidth test or its suite."""
    if settings.tool not in GDRCOPY:
        return Refused(f"{settings.tool[:80]!r} is no test of gdrcopy that gdrtop knows")
    reason = _number("the GPU's number", settings.gpu_index) or between(
        "the size", settings.size_bytes, 4, 1 << 30
    )
    if reason:
        return Refused(reason)
    argv = [settings.tool, "-d", str(settings.gpu_index)]
    if settings.tool == "gdrcopy_copybw" and settings.size_bytes is not None:
        argv += ["-s", str(settings.size_bytes)]
    return command(tools, tuple(argv), settings.numa_node, (_PCI_ORDER,))


def nvbandwidth(settings: NvbandwidthSettings, tools: ToolFacts) -> Command | Refused:
    """The command of nvbandwidth."""
    odd = next((name for name in settings.tests if not _TEST_NAME.fullmatch(name)), None)
    if odd is not None or not settings.tests:
        return Refused("no test is named" if odd is None else f"{odd[:80]!r} is no name of a test")
    reason = (
        between("the buffer (MiB)", settings.buffer_mib, 1, 16_384)
        or between("the number of samples", settings.samples, 1, 1000)
        or _numbers(settings.gpus)
    )
    if reason:
        return Refused(reason)
    argv = ["nvbandwidth", "-t", *settings.tests]
    if settings.buffer_mib is not None:
        argv += ["-b", str(settings.buffer_mib)]
    if settings.samples is not None:
        argv += ["-i", str(settings.samples)]
    if settings.as_json:
        argv.append("-j")
    return command(tools, tuple(argv), None, _visible(settings.gpus))


def nccl_tests(settings: NcclSettings, tools: ToolFacts) -> Command | Refused:
    """The command of a collective; its GPUs are the visible ones, in that order."""
    odd = next((name for name in settings.devices if not is_rdma_device(name)), None)
    if odd is not None:
        return Refused(f"{odd[:80]!r} is no name of an RDMA device")
    if not settings.gpus:
        return Refused("no GPU is named")
    reason = (
        _numbers(settings.gpus)
        or between("the least size", settings.begin_bytes, 1, 1 << 40)
        or between("the greatest size", settings.end_bytes, settings.begin_bytes, 1 << 40)
        or between("the factor", settings.factor, 2, 1024)
        or between("the number of iterations", settings.iterations, 1, 1_000_000)
    )
    if settings.over_network and len(settings.gpus) < 2:
        reason = reason or "one GPU alone has nobody to send to: two are needed for the network"
    if reason:
        return Refused(reason)
    argv = (
        settings.tool,
        *("-b", str(settings.begin_bytes), "-e", str(settings.end_bytes), "-f", str(settings.factor)),
        *("-g", str(len(settings.gpus)), "-n", str(settings.iterations), "-c", str(int(settings.is_checked))),
    )
    environment = list(_visible(settings.gpus))
    if settings.over_network:
        environment += list(_OVER_NETWORK)
    if settings.devices:
        # "=" takes the names exactly: else mlx5_1 takes mlx5_10 as well.
        environment.append(("NCCL_IB_HCA", "=" + ",".join(settings.devices)))
    if settings.debug:
        environment.append(("NCCL_DEBUG", "INFO"))
    return command(tools, argv, None, tuple(environment))


def _visible(gpus: tuple[int, ...]) -> tuple[tuple[str, str], ...]:
    if not gpus:
        return (_PCI_ORDER,)
    return _PCI_ORDER, ("CUDA_VISIBLE_DEVICES", ",".join(str(gpu) for gpu in gpus))


def _number(name: str, number: int) -> str:
    return between(name, number, 0, 255)


def _numbers(gpus: tuple[int, ...]) -> str:
    if len(set(gpus)) != len(gpus):
        return "a GPU is named twice"
    return next((reason for gpu in gpus if (reason := _number("the GPU's number", gpu))), "")
