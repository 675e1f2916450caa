"""From a wish to the tests that this node can run, and the reasons for those that it cannot."""

from __future__ import annotations

from probes.bandwidth.model.planned_test import LeftOut, PlannedTest, Series
from probes.bandwidth.model.request import MemoryPath, Request, Scope
from probes.bandwidth.planning.defaults import active_port, better_nics_down, nearest_nic, no_rdma
from probes.bandwidth.planning.install_hints import with_way_to_get
from probes.bandwidth.planning.other_tests import gdrcopy_test, nccl_test, nvbandwidth_test
from probes.bandwidth.planning.perftest import perftest_test, wish_title
from probes.bandwidth.tools.command import Refused
from probes.base.unknown import Unknown
from probes.facts.gpu.gpus import Gpu, GpuFacts
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts
from probes.facts.system.tool_names import GDRCOPY, NCCL_TESTS, NVBANDWIDTH, PERFTEST, TEST_TOOLS
from probes.snapshot.examination import Examination

_MEMORY_PATHS = (MemoryPath.HOST, MemoryPath.PEERMEM, MemoryPath.DMABUF)


def plan_series(examination: Examination, request: Request, tcp_port: int) -> Series | Refused:
    """All tests of a wish, `tcp_port` being free here; Refused where not one of them can be run."""
    if request.tool not in TEST_TOOLS:
        return Refused(f"{request.tool[:80]!r} is no test that gdrtop knows")
    idle: tuple[LeftOut, ...] = ()
    if request.tool in PERFTEST:
        pairs = _pairs(examination, request)
        if isinstance(pairs, Refused):
            return pairs
        planned = _over_rdma(examination, request, pairs, tcp_port)
        if not planned:
            return Refused("there is no GPU here; host memory can be measured")
        idle = () if request.scope is Scope.PAIR or request.nic else _idle(examination)
    else:
        gpus = _gpus(examination, request)
        if isinstance(gpus, Refused):
            return gpus
        planned = _others(examination, request, gpus)
    tests = tuple(one for _, one in planned if isinstance(one, PlannedTest))
    left_out = tuple(
        LeftOut(title, with_way_to_get(examination, request.tool, one.reason))
        for title, one in planned
        if isinstance(one, Refused)
    )
    if not tests:
        return Refused(left_out[0].reason)
    title = tests[0].title if len(tests) == 1 else f"{_scope(request)}: {len(tests)} tests"
    return Series(title, tests, (*left_out, *idle))


def _over_rdma(
    examination: Examination, request: Request, pairs: list[tuple[str | None, str | None]], tcp_port: int
) -> list[tuple[str, PlannedTest | Refused]]:
    """Each pair by each memory; host memory, in which no GPU has a part, once a NIC."""
    paths = _MEMORY_PATHS if request.memory is MemoryPath.COMPARE else (request.memory,)
    planned: list[tuple[str, PlannedTest | Refused]] = []
    over_host_memory: set[str | None] = set()
    for gpu, nic in pairs:
        for path in paths:
            if path is MemoryPath.HOST:
                if nic in over_host_memory:
                    continue
                over_host_memory.add(nic)
            elif gpu is None:
                continue
            title = wish_title(examination, gpu if path is not MemoryPath.HOST else None, nic, path)
            planned.append((title, perftest_test(examination, request, gpu, nic, path, tcp_port)))
    return planned


def _scope(request: Request) -> str:
    if request.scope is Scope.PAIR:
        return "host memory, nvidia-peermem, DMA-BUF"
    nics = request.nic or ("its best NIC" if request.scope is Scope.SWEEP else "every NIC")
    if request.tool not in PERFTEST:
        return f"{request.tool} of every GPU"
    if request.memory is MemoryPath.HOST:
        return f"host memory over {request.nic or 'every NIC'}"
    return f"every GPU with {nics}"


def _others(
    examination: Examination, request: Request, gpus: tuple[Gpu, ...]
) -> list[tuple[str, PlannedTest | Refused]]:
    if request.tool in NCCL_TESTS:
        return [(request.tool, nccl_test(examination, request, gpus))]
    if request.tool in GDRCOPY:
        return [(f"GPU{gpu.index}", gdrcopy_test(examination, request, gpu)) for gpu in gpus]
    assert request.tool == NVBANDWIDTH
    return [(f"GPU{gpu.index}", nvbandwidth_test(examination, gpu)) for gpu in gpus]


def _all_gpus(examination: Examination) -> tuple[Gpu, ...] | Refused:
    facts = examination.node.gpus
    return facts.gpus if isinstance(facts, GpuFacts) else Refused(f"the GPUs are not known: {facts}")


def _gpus(examination: Examination, request: Request) -> tuple[Gpu, ...] | Refused:
    """The GPUs of a test without a NIC: the one chosen, else all for a collective or a sweep."""
    gpus = _all_gpus(examination)
    if isinstance(gpus, Refused):
        return gpus
    if request.gpu is not None:
        chosen = tuple(gpu for gpu in gpus if gpu.bdf == request.gpu)
        return chosen or Refused(f"there is no GPU {request.gpu[:40]}")
    if not gpus:
        return Refused("there is no GPU here")
    return gpus if request.tool in NCCL_TESTS or request.scope is not Scope.PAIR else gpus[:1]


def _pairs(examination: Examination, request: Request) -> list[tuple[str | None, str | None]] | Refused:
    """(GPU's BDF, RDMA device) of every test; None for the GPU where there is none."""
    devices = _active(examination)
    if isinstance(devices, Refused):
        return devices
    gpus = _all_gpus(examination)
    bdfs: list[str] = [] if isinstance(gpus, Refused) else [gpu.bdf for gpu in gpus]
    if isinstance(gpus, Refused) and request.memory is not MemoryPath.HOST:
        return gpus
    if request.scope is Scope.PAIR:
        if request.nic is not None and request.gpu is None and request.memory is MemoryPath.HOST:
            return [(None, request.nic)]
        gpu = request.gpu or next(iter(bdfs), None)
        nic = request.nic or (nearest_nic(examination.topology, gpu) if gpu else None)
        return [(gpu, nic or next((device.name for device in devices), None))]
    nics = [request.nic] if request.nic is not None else [device.name for device in devices]
    bdfs = [request.gpu] if request.gpu is not None else bdfs
    if not bdfs or request.memory is MemoryPath.HOST:
        return [(None, nic) for nic in nics]
    if request.scope is Scope.SWEEP:
        return [(gpu, request.nic or nearest_nic(examination.topology, gpu)) for gpu in bdfs]
    return [(gpu, nic) for gpu in bdfs for nic in nics]


def _active(examination: Examination) -> list[RdmaDevice] | Refused:
    rdma = examination.node.rdma
    if not isinstance(rdma, RdmaFacts):
        return no_rdma(rdma)
    devices = [one for one in rdma.devices if active_port(one) is not None and not _is_software(one)]
    return devices or Refused(
        "no port of an RDMA device is active here: the doctor says why (gdrtop check);"
        " gdrcopy, nvbandwidth and nccl-tests need none"
    )


def _idle(examination: Examination) -> tuple[LeftOut, ...]:
    """The NICs that no test is over, for no port is active; missed are those that a GPU would have."""
    topology, rdma = examination.topology, examination.node.rdma
    used = ((gpu.id, nearest_nic(topology, gpu.id)) for gpu in topology.gpus)
    missed = {better for gpu, nic in used if nic for better in better_nics_down(topology, gpu, nic)}
    return tuple(
        LeftOut(device.name, _states(device), device.name in missed)
        for device in (rdma.devices if isinstance(rdma, RdmaFacts) else ())
        if active_port(device) is None and not _is_software(device)
    )


def _states(device: RdmaDevice) -> str:
    states = ", ".join(f"port {port.number} is {port.state}" for port in device.ports)
    return f"no port is active ({states or 'it has none'})"


def _is_software(device: RdmaDevice) -> bool:
    """On no PCI function: nobody's NIC."""
    return isinstance(device.bdf, Unknown)
