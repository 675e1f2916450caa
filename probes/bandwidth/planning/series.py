"""Plan a series: the tests that this node can run, why not the others, and what they should reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from probes.bandwidth.model.command import Refused, bound_to
from probes.bandwidth.model.expected import (
    SPARK,
    TESTS,
    Expectation,
    ExpectedPair,
    ExpectedTable,
    parse_table,
    spark_least,
)
from probes.bandwidth.model.planned_series import LeftOut, Pair, PlannedProcess, PlannedTest, Series
from probes.bandwidth.model.rating import LARGE_FROM_BYTES
from probes.bandwidth.model.request import MemoryPath, Mode, Request, Scope
from probes.bandwidth.model.samples import GPU_PATHS, HOST_MEMORY, STAGED
from probes.bandwidth.planning.node_settings import (
    active_port,
    better_nics_down,
    most_bytes,
    nearest_nic,
    no_rdma,
)
from probes.bandwidth.planning.perftest import perftest_test, title_of
from probes.bandwidth.tools.nccl_tests import NcclSettings
from probes.bandwidth.tools.perftest import GPU_BUILD_HINT
from probes.bandwidth.tools.tool import LocalTool, tool_of
from probes.base.data_files import read_text
from probes.base.unknown import Unknown, known
from probes.facts.gpu.gpus import Gpu, GpuFacts
from probes.facts.pci.names import built_in_name
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts
from probes.facts.system.platform import PlatformFacts
from probes.facts.system.tool_names import NCCL_TESTS, TEST_TOOLS
from probes.queries.modules import impossible_by_design, plugin_only_driver
from probes.queries.pcie_paths import functions_of, is_gb10
from probes.queries.ports import SPARK_NAME, other_key_index
from probes.snapshot.examination import Examination
from probes.topology.nccl_paths import NEAR

# One test of a tool that is a single process on this node: gdrcopy, nvbandwidth, nccl-tests.
#
# And the parts of a GPU's staged path, for nodes on which NCCL cannot measure it as a whole. Each part is
# measured alone: copies between GPU and host memory, and the NIC with host memory. The staged path can reach
# at most what the slower part does. The parts show nothing about its latency and CPU time.

_TIME_LIMIT_SECONDS = 600.0
COPIES = "nvbandwidth"
"""gdrcopy copies by the CPU through BAR1, as nothing that stages does."""
_COPY_NOTE = "part of the staged path: the copy between GPU and host memory alone"
_NIC_NOTE = "part of the staged path: the NIC with host memory alone"


def local_test(
    examination: Examination, request: Request, tool: LocalTool, gpus: tuple[Gpu, ...]
) -> PlannedTest | Refused:
    """Return the test of these GPUs, or why it cannot run on this node."""
    gpu = gpus[0] if len(gpus) == 1 else None
    wanted_node = known(gpu.numa_node, None) if gpu and tool.binds_to_gpu and request.binds else None
    numa_node, notes = bound_to(examination, wanted_node)
    settings = tool.settings(request, gpus, numa_node)
    if isinstance(settings, NcclSettings):
        most = most_bytes(examination) or settings.end_bytes
        if most < settings.end_bytes:
            notes = (*notes, f"messages of up to {most >> 20} MiB: more could take the memory that is left")
        by_plugin = bool(plugin_only_driver(examination))
        key = _key_index(examination, settings)
        settings = replace(
            settings, end_bytes=min(most, settings.end_bytes), by_plugin=by_plugin, key_index=key
        )
    command = settings.command(examination.tools)
    if isinstance(command, Refused):
        return command
    label = ",".join(f"GPU{card.index}" for card in gpus)
    return PlannedTest(
        title=f"{label if tool.is_per_gpu else f'{len(gpus)} GPUs'} · {settings.title}",
        settings=settings,
        setup=Mode.LOOPBACK,
        pair=Pair(gpu=gpu.bdf if gpu else "", gpu_label=label),
        memory=settings.memory,
        processes=(PlannedProcess(command.tool, command),),
        limit=settings.limit(examination),
        purpose=settings.purpose(),
        seconds=settings.seconds,
        time_limit_s=_TIME_LIMIT_SECONDS,
        notes=notes,
    )


def _key_index(examination: Examination, settings: NcclSettings) -> int | None:
    """Return the index of a usable key if index 0 is not and all NICs of a test have the same other one."""
    devices = (settings.devices or examination.topology.nics_near_gpus) if settings.over_network else ()
    return other_key_index(examination, devices)


def staged_parts(
    examination: Examination, request: Request, gpu: Gpu, tcp_port: int
) -> list[tuple[str, PlannedTest]]:
    """Return the tests of both parts by title; [] unless both can run, since one alone says too little."""
    tool = tool_of(COPIES)
    assert isinstance(tool, LocalTool)
    copies = local_test(examination, Request(tool=COPIES, gpu=gpu.bdf), tool, (gpu,))
    nic = request.nic or nearest_nic(examination.topology, gpu.bdf)
    of_nic = Request(memory=MemoryPath.HOST, nic=nic)
    sending = perftest_test(examination, of_nic, None, nic, MemoryPath.HOST, tcp_port)
    if not isinstance(copies, PlannedTest) or not isinstance(sending, PlannedTest):
        return []
    parts = ((copies, _COPY_NOTE), (sending, _NIC_NOTE))
    return [(test.title, replace(test, notes=(note, *test.notes))) for test, note in parts]


_COMPARED = (MemoryPath.HOST, MemoryPath.PEERMEM, MemoryPath.DMABUF)
_COMPARED_BY_NCCL = (MemoryPath.BEST, MemoryPath.STAGED)
_Planned = list[tuple[str, PlannedTest | Refused]]  # by title


def plan_series(examination: Examination, request: Request, tcp_port: int) -> Series | Refused:
    """Return all tests of a request, or Refused if none of them can run; `tcp_port` is free on this node.

    Jobs use host memory where GPUDirect RDMA is impossible by design, so it is the best path there.
    """
    if request.tool not in TEST_TOOLS:
        return Refused(f"{request.tool[:80]!r} is not a test that gdrtop knows")
    if request.memory is MemoryPath.STAGED and request.tool not in NCCL_TESTS:
        return Refused(f"{request.tool} never copies through host memory: use nccl-tests (--test all-reduce)")
    tool = tool_of(request.tool)
    is_open = request.memory in (MemoryPath.BEST, MemoryPath.COMPARE) and not isinstance(tool, LocalTool)
    if is_open and impossible_by_design(examination) is not None:
        request = replace(request, memory=MemoryPath.HOST)
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
    """Plan a test of the chosen GPU, or of all of them for a collective or a sweep."""
    gpus = _all_gpus(examination)
    if isinstance(gpus, Refused):
        return gpus
    if not gpus:
        return Refused("this node has no GPU")
    if request.gpu is not None:
        gpus = tuple(gpu for gpu in gpus if gpu.bdf == request.gpu)
        if not gpus:
            return Refused(f"there is no GPU {request.gpu[:40]}")
    elif tool.is_per_gpu and request.scope is Scope.PAIR:
        gpus = gpus[:1]
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
        device
        for device in rdma.devices
        if active_port(device) is not None and not isinstance(device.bdf, Unknown)
    ]
    return devices or Refused(
        "no RDMA port is active; gdrtop check shows why. Tests without a NIC still work"
    )


def _idle_nics(examination: Examination) -> tuple[LeftOut, ...]:
    """Return the NICs without an active port; those that a GPU would use are missed."""
    topology = examination.topology
    used = ((gpu.id, nearest_nic(topology, gpu.id)) for gpu in topology.gpus)
    missed = {better for gpu, nic in used if nic for better in better_nics_down(topology, gpu, nic)}
    idle = []
    for device in examination.node.rdma_devices:
        # A device on no PCI function is software, and so no NIC.
        if active_port(device) is None and not isinstance(device.bdf, Unknown):
            states = ", ".join(f"port {port.number} is {port.state}" for port in device.ports)
            reason = f"no port is active ({states or 'it has no ports'})"
            idle.append(LeftOut(device.name, reason, device.name in missed))
    return tuple(idle)


# Which row of the tables of expected figures is for a test on this node.

_TOOLS = {f"ib_{test}_bw": test for test in TESTS}


@cache
def builtin_table() -> ExpectedTable:
    """Return gdrtop's own table."""
    return parse_table(read_text("probes.bandwidth", "expected.toml"))


def rows_of(site: ExpectedTable | None) -> tuple[ExpectedPair, ...]:
    """Return the rows in their order: the site's first."""
    if site is None:
        return builtin_table().rows
    return (*site.rows, *(builtin_table().rows if site.uses_builtin else ()))


def with_expected(
    examination: Examination, series: Series, rows: Sequence[ExpectedPair], note: str = ""
) -> Series:
    """Return the series with what each test should reach, and a note on each test."""
    more = (note,) if note else ()
    tests = (
        replace(test, expected=_expected(examination, test, rows), notes=(*test.notes, *more))
        for test in series.tests
    )
    return replace(series, tests=tuple(tests))


def _expected(
    examination: Examination, test: PlannedTest, rows: Sequence[ExpectedPair]
) -> Expectation | None:
    """Return what the first row that fits expects; None for tests that no table is about."""
    name, load = _TOOLS.get(test.tool), test.settings.load
    if name is None or load.is_bidirectional:
        return None
    if load.size_bytes is not None and load.size_bytes < LARGE_FROM_BYTES:
        return None
    if test.memory == HOST_MEMORY:
        return _expected_of_spark(examination, test) if name == "write" else None
    if test.memory not in GPU_PATHS:
        return None
    if not _is_near(examination, test.pair.gpu, test.pair.nic):
        return None
    models = _models(examination, test.pair.gpu, test.pair.nic)
    for row in rows:
        if name in row.tests and row.fits(*models):
            gbps = row.expected_gbps
            return Expectation(gbps, row.name, row.source) if gbps else None
    return None


def _expected_of_spark(examination: Examination, test: PlannedTest) -> Expectation | None:
    """Return what a function of a DGX Spark reaches from host memory, to another node."""
    if test.setup is Mode.LOOPBACK or not is_gb10(examination) or not SPARK_NAME.fullmatch(test.pair.nic):
        return None
    row = spark_least("rail")
    return Expectation(row.least, SPARK, row.source, row.measure)


def _is_near(examination: Examination, gpu: str, nic: str) -> bool:
    """Return whether the NIC is one of the GPU's nearest, below its switch or at its own CPU by C2C."""
    topology = examination.topology
    path = topology.paths.get((gpu, nic))
    nearest = topology.best_nics.get(gpu, ())
    if path is None or isinstance(path.nccl, Unknown) or not nearest:
        return False
    by_c2c = any(card.bdf == gpu and known(card.c2c_links, 0) for card in examination.node.known_gpus)
    return path.nccl == topology.paths[gpu, nearest[0]].nccl and (path.nccl in NEAR or by_c2c)


def _models(examination: Examination, gpu: str, nic: str) -> tuple[str, str, str]:
    """Return product, GPU model and NIC model; "" where unknown."""
    platform = examination.node.platform
    product = known(platform.product, "") if isinstance(platform, PlatformFacts) else ""
    model = next((card.name for card in examination.node.known_gpus if card.bdf == gpu), "")
    bdf = next((known(end.bdf, "") for end in examination.topology.nics if end.id == nic), "")
    function = functions_of(examination).get(bdf)
    if function is None:
        return product, model, ""
    return product, model, built_in_name(known(function.vendor_id, 0), known(function.device_id, 0))
