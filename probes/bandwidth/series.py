"""From a wish to the tests that this node can run, and the reasons for those that it cannot."""

from __future__ import annotations

from probes.bandwidth.choice import GDRCOPY, NCCL_TESTS, NVBANDWIDTH, TEST_TOOLS, Choice, MemoryPath, Scope
from probes.bandwidth.commands import Refused
from probes.bandwidth.defaults import active_port, nearest_nic
from probes.bandwidth.getting import with_way_to_get
from probes.bandwidth.other_tests import gdrcopy_test, nccl_test, nvbandwidth_test
from probes.bandwidth.perftest_test import perftest_test, wish_title
from probes.bandwidth.planned import LeftOut, PlannedTest, Series
from probes.examination import Examination
from probes.gpus import Gpu, GpuFacts
from probes.rdma import RdmaDevice, RdmaFacts
from probes.tools import PERFTEST
from probes.unknown import Unknown

_MEMORY_PATHS = (MemoryPath.HOST, MemoryPath.PEERMEM, MemoryPath.DMABUF)


def series_of(examination: Examination, choice: Choice, tcp_port: int) -> Series | Refused:
    """All tests of a wish, `tcp_port` being free here; Refused where not one of them can be run."""
    if choice.tool not in TEST_TOOLS:
        return Refused(f"{choice.tool[:80]!r} is no test that gdrtop knows")
    if choice.tool in PERFTEST:
        pairs = _pairs(examination, choice)
        if isinstance(pairs, Refused):
            return pairs
        paths = _MEMORY_PATHS if choice.memory is MemoryPath.COMPARE else (choice.memory,)
        planned: list[tuple[str, PlannedTest | Refused]] = [
            (
                wish_title(examination, gpu, nic, path),
                perftest_test(examination, choice, gpu, nic, path, tcp_port),
            )
            for gpu, nic in pairs
            for path in paths
            if gpu or path is MemoryPath.HOST
        ]
        if not planned:
            return Refused("there is no GPU here; host memory can be measured (--memory host)")
    else:
        gpus = _gpus(examination, choice)
        if isinstance(gpus, Refused):
            return gpus
        planned = _others(examination, choice, gpus)
    tests = tuple(one for _, one in planned if isinstance(one, PlannedTest))
    left_out = tuple(
        LeftOut(title, with_way_to_get(examination, choice.tool, one.reason))
        for title, one in planned
        if isinstance(one, Refused)
    )
    if not tests:
        return Refused(left_out[0].reason)
    title = tests[0].title if len(tests) == 1 else f"{_scope(choice)}: {len(tests)} tests"
    return Series(title, tests, left_out)


def _scope(choice: Choice) -> str:
    if choice.scope is Scope.MATRIX:
        return "every GPU with every NIC"
    if choice.scope is Scope.SWEEP:
        return "every GPU with its best NIC"
    return "host memory, nvidia-peermem, DMA-BUF"


def _others(
    examination: Examination, choice: Choice, gpus: tuple[Gpu, ...]
) -> list[tuple[str, PlannedTest | Refused]]:
    if choice.tool in NCCL_TESTS:
        return [(choice.tool, nccl_test(examination, choice, gpus))]
    if choice.tool in GDRCOPY:
        return [(f"GPU{gpu.index}", gdrcopy_test(examination, choice, gpu)) for gpu in gpus]
    assert choice.tool == NVBANDWIDTH
    return [(f"GPU{gpu.index}", nvbandwidth_test(examination, gpu)) for gpu in gpus]


def _all_gpus(examination: Examination) -> tuple[Gpu, ...] | Refused:
    facts = examination.node.gpus
    return facts.gpus if isinstance(facts, GpuFacts) else Refused(f"the GPUs are not known: {facts}")


def _gpus(examination: Examination, choice: Choice) -> tuple[Gpu, ...] | Refused:
    """The GPUs of a test without a NIC: the one chosen, else all for a collective or a sweep."""
    gpus = _all_gpus(examination)
    if isinstance(gpus, Refused):
        return gpus
    if choice.gpu is not None:
        chosen = tuple(gpu for gpu in gpus if gpu.bdf == choice.gpu)
        return chosen or Refused(f"there is no GPU {choice.gpu[:40]}")
    if not gpus:
        return Refused("there is no GPU here")
    return gpus if choice.tool in NCCL_TESTS or choice.scope is not Scope.PAIR else gpus[:1]


def _pairs(examination: Examination, choice: Choice) -> list[tuple[str | None, str | None]] | Refused:
    """(GPU's BDF, RDMA device) of every test; None for the GPU where there is none."""
    devices = _active(examination)
    if isinstance(devices, Refused):
        return devices
    gpus = _all_gpus(examination)
    bdfs: list[str] = [] if isinstance(gpus, Refused) else [gpu.bdf for gpu in gpus]
    if isinstance(gpus, Refused) and choice.memory is not MemoryPath.HOST:
        return gpus
    if choice.scope is Scope.PAIR:
        if choice.nic is not None and choice.gpu is None and choice.memory is MemoryPath.HOST:
            return [(None, choice.nic)]
        gpu = choice.gpu or next(iter(bdfs), None)
        nic = choice.nic or (nearest_nic(examination.topology, gpu) if gpu else None)
        return [(gpu, nic or next((device.name for device in devices), None))]
    if not bdfs or choice.memory is MemoryPath.HOST:
        return [(None, device.name) for device in devices]
    if choice.scope is Scope.SWEEP:
        return [(gpu, choice.nic or nearest_nic(examination.topology, gpu)) for gpu in bdfs]
    return [(gpu, device.name) for gpu in bdfs for device in devices]


def _active(examination: Examination) -> list[RdmaDevice] | Refused:
    rdma = examination.node.rdma
    if not isinstance(rdma, RdmaFacts):
        return Refused(f"the RDMA devices are not known: {rdma}")
    devices = [one for one in rdma.devices if active_port(one) is not None and not _is_guests(one)]
    return devices or Refused("no port of an RDMA device is active here: see the doctor")


def _is_guests(device: RdmaDevice) -> bool:
    """A software device, on no PCI function, is nobody's NIC."""
    return isinstance(device.bdf, Unknown)
