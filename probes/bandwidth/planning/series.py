"""Plan a series: from a request to the tests that this node can run, and why it cannot run the others."""

from __future__ import annotations

from dataclasses import replace

from probes.bandwidth.model.command import Refused
from probes.bandwidth.model.planned_series import LeftOut, PlannedTest, Series
from probes.bandwidth.model.request import MemoryPath, Request, Scope
from probes.bandwidth.model.samples import STAGED
from probes.bandwidth.planning.node_settings import active_port, better_nics_down, nearest_nic, no_rdma
from probes.bandwidth.planning.perftest import perftest_test, title_of
from probes.bandwidth.planning.single_process import local_test, staged_parts
from probes.bandwidth.tools.perftest import GPU_BUILD_HINT
from probes.bandwidth.tools.tool import LocalTool, tool_of
from probes.base.unknown import Unknown
from probes.facts.gpu.gpus import Gpu, GpuFacts
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts
from probes.facts.system.tool_names import NCCL_TESTS, TEST_TOOLS
from probes.snapshot.examination import Examination

_COMPARED = (MemoryPath.HOST, MemoryPath.PEERMEM, MemoryPath.DMABUF)
_COMPARED_BY_NCCL = (MemoryPath.BEST, MemoryPath.STAGED)
_Planned = list[tuple[str, PlannedTest | Refused]]  # by title


def plan_series(examination: Examination, request: Request, tcp_port: int) -> Series | Refused:
    """Return all tests of a request, or Refused if none of them can run; `tcp_port` is free on this node."""
    if request.tool not in TEST_TOOLS:
        return Refused(f"{request.tool[:80]!r} is not a test that gdrtop knows")
    if request.memory is MemoryPath.STAGED and request.tool not in NCCL_TESTS:
        return Refused(f"{request.tool} never copies through host memory: use nccl-tests (--test all-reduce)")
    tool = tool_of(request.tool)
    idle: tuple[LeftOut, ...] = ()
    if isinstance(tool, LocalTool):
        planned = _local_tests(examination, request, tool, tcp_port)
    else:
        planned = _rdma_tests(examination, request, tcp_port)
        idle = () if request.scope is Scope.PAIR or request.nic else _idle_nics(examination)
    if isinstance(planned, Refused):
        return planned
    tests = tuple(test for _, test in planned if isinstance(test, PlannedTest))
    left_out = tuple(
        LeftOut(title, _with_install_hint(examination, request.tool, test.reason))
        for title, test in planned
        if isinstance(test, Refused)
    )
    if not tests:
        return Refused(left_out[0].reason)
    is_local = isinstance(tool, LocalTool)
    title = tests[0].title if len(tests) == 1 else f"{_scope_title(request, is_local)}: {len(tests)} tests"
    return Series(title, tests, (*left_out, *idle))


def _with_install_hint(examination: Examination, program: str, reason: str) -> str:
    if f"{program} is not installed" in reason:
        return f"{reason}; {tool_of(program).install_hint(examination)}"
    if "built without CUDA" in reason or "built without DMA-BUF" in reason:
        return f"{reason}; {GPU_BUILD_HINT}"
    return reason


def _scope_title(request: Request, is_local: bool) -> str:
    if is_local and request.memory in (MemoryPath.STAGED, MemoryPath.COMPARE):
        return "staged path"
    if request.scope is Scope.PAIR:
        return "host memory, nvidia-peermem, DMA-BUF"
    if is_local:
        return f"{request.tool} on every GPU"
    if request.memory is MemoryPath.HOST:
        return f"host memory over {request.nic or 'every NIC'}"
    nics = request.nic or ("its best NIC" if request.scope is Scope.SWEEP else "every NIC")
    return f"every GPU with {nics}"


# Tools without a NIC


def _local_tests(
    examination: Examination, request: Request, tool: LocalTool, tcp_port: int
) -> _Planned | Refused:
    gpus = _chosen_gpus(examination, request, tool)
    if isinstance(gpus, Refused):
        return gpus
    if not tool.is_per_gpu:
        return _collectives(examination, request, tool, gpus, tcp_port)
    return [(f"GPU{gpu.index}", local_test(examination, request, tool, (gpu,))) for gpu in gpus]


def _collectives(
    examination: Examination, request: Request, tool: LocalTool, gpus: tuple[Gpu, ...], tcp_port: int
) -> _Planned:
    """Plan a collective with each path over the NICs, or once; if it cannot run staged, the parts of that."""
    paths = _COMPARED_BY_NCCL if request.memory is MemoryPath.COMPARE else (request.memory,)
    is_over_network = request.over_network or MemoryPath.STAGED in paths
    planned: _Planned = []
    for path in paths:
        of_path = replace(request, memory=path, over_network=is_over_network)
        title = f"{request.tool}, {STAGED}" if path is MemoryPath.STAGED else request.tool
        planned.append((title, local_test(examination, of_path, tool, gpus)))
    if MemoryPath.STAGED in paths and all(isinstance(test, Refused) for _, test in planned):
        planned += staged_parts(examination, request, gpus[0], tcp_port)
    return planned


def _chosen_gpus(examination: Examination, request: Request, tool: LocalTool) -> tuple[Gpu, ...] | Refused:
    """Return the chosen GPU, or all of them for a collective or a sweep."""
    gpus = _all_gpus(examination)
    if isinstance(gpus, Refused):
        return gpus
    if request.gpu is not None:
        chosen = tuple(gpu for gpu in gpus if gpu.bdf == request.gpu)
        return chosen or Refused(f"there is no GPU {request.gpu[:40]}")
    if not gpus:
        return Refused("this node has no GPU")
    return gpus if not tool.is_per_gpu or request.scope is not Scope.PAIR else gpus[:1]


def _all_gpus(examination: Examination) -> tuple[Gpu, ...] | Refused:
    facts = examination.node.gpus
    return facts.gpus if isinstance(facts, GpuFacts) else Refused(f"the GPUs are unknown: {facts}")


# Tests over RDMA


def _rdma_tests(examination: Examination, request: Request, tcp_port: int) -> _Planned | Refused:
    """Plan each pair with each kind of memory; host memory, where the GPU does not matter, once a NIC."""
    pairs = _pairs(examination, request)
    if isinstance(pairs, Refused):
        return pairs
    paths = _COMPARED if request.memory is MemoryPath.COMPARE else (request.memory,)
    planned: _Planned = []
    nics_with_host_memory: set[str | None] = set()
    for gpu, nic in pairs:
        for path in paths:
            if path is MemoryPath.HOST:
                if nic in nics_with_host_memory:
                    continue
                nics_with_host_memory.add(nic)
            elif gpu is None:
                continue
            title = title_of(examination, gpu if path is not MemoryPath.HOST else None, nic, path)
            planned.append((title, perftest_test(examination, request, gpu, nic, path, tcp_port)))
    return planned or Refused("this node has no GPU; host memory can be measured")


def _pairs(examination: Examination, request: Request) -> list[tuple[str | None, str | None]] | Refused:
    """Return (GPU's BDF, RDMA device) of every test; the GPU is None if there is none."""
    devices = _active_devices(examination)
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


def _active_devices(examination: Examination) -> list[RdmaDevice] | Refused:
    rdma = examination.node.rdma
    if not isinstance(rdma, RdmaFacts):
        return no_rdma(rdma)
    devices = [
        device for device in rdma.devices if active_port(device) is not None and not _is_software(device)
    ]
    return devices or Refused(
        "no RDMA port is active; gdrtop check shows why. Tests without a NIC still work"
    )


def _idle_nics(examination: Examination) -> tuple[LeftOut, ...]:
    """Return the NICs without an active port; those that a GPU would use are missed."""
    topology, rdma = examination.topology, examination.node.rdma
    used = ((gpu.id, nearest_nic(topology, gpu.id)) for gpu in topology.gpus)
    missed = {better for gpu, nic in used if nic for better in better_nics_down(topology, gpu, nic)}
    idle = []
    for device in rdma.devices if isinstance(rdma, RdmaFacts) else ():
        if active_port(device) is None and not _is_software(device):
            states = ", ".join(f"port {port.number} is {port.state}" for port in device.ports)
            reason = f"no port is active ({states or 'it has no ports'})"
            idle.append(LeftOut(device.name, reason, device.name in missed))
    return tuple(idle)


def _is_software(device: RdmaDevice) -> bool:
    """Return whether the device is on no PCI function, and so not a NIC."""
    return isinstance(device.bdf, Unknown)
