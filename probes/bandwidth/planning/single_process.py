"""One test of a tool that is a single process on this node: gdrcopy, nvbandwidth, nccl-tests.

And the parts of a GPU's staged path, for nodes on which NCCL cannot measure it as a whole. Each part is
measured alone: copies between GPU and host memory, and the NIC with host memory. The staged path can reach at
most what the slower part does. The parts show nothing about its latency and CPU time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from probes.bandwidth.model.command import Refused, bound_to
from probes.bandwidth.model.planned_series import Pair, PlannedProcess, PlannedTest
from probes.bandwidth.model.request import MemoryPath, Mode, Request
from probes.bandwidth.planning.node_settings import nearest_nic
from probes.bandwidth.planning.perftest import perftest_test
from probes.bandwidth.tools.nccl_tests import NcclSettings
from probes.bandwidth.tools.tool import LocalTool, tool_of
from probes.base.unknown import Unknown, known
from probes.facts.gpu.gpus import Gpu
from probes.queries.modules import plugin_only_driver
from probes.snapshot.examination import Examination

_TIME_LIMIT_SECONDS = 600.0
COPIES = "nvbandwidth"
"""gdrcopy copies by the CPU through BAR1, as nothing that stages does."""
_COPY_NOTE = "part of the staged path: the copy between GPU and host memory alone"
_NIC_NOTE = "part of the staged path: the NIC with host memory alone"


def local_test(
    examination: Examination, request: Request, tool: LocalTool, gpus: tuple[Gpu, ...]
) -> PlannedTest | Refused:
    """Return the test of these GPUs, or why it cannot run on this node."""
    tools = examination.tools
    if isinstance(tools, Unknown):
        return Refused(f"cannot tell which tools are installed: {tools}")
    gpu = gpus[0] if len(gpus) == 1 else None
    wanted_node = known(gpu.numa_node, None) if gpu and tool.binds_to_gpu and request.binds else None
    numa_node, notes = bound_to(examination, wanted_node)
    settings = tool.settings(request, gpus, numa_node)
    if isinstance(settings, NcclSettings) and plugin_only_driver(examination):
        settings = replace(settings, by_plugin=True)
    command = settings.command(tools)
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


def with_variables(
    examination: Examination, test: PlannedTest, variables: Mapping[str, str]
) -> PlannedTest | Refused:
    """Return a test of nccl-tests with further variables."""
    assert isinstance(test.settings, NcclSettings)
    tools = examination.tools
    settings = replace(test.settings, variables=tuple(sorted(variables.items())))
    if isinstance(tools, Unknown):
        return Refused(f"cannot tell which tools are installed: {tools}")
    command = settings.command(tools)
    if isinstance(command, Refused):
        return command
    return replace(
        test,
        title=f"{test.title.partition(' · ')[0]} · {settings.title}",
        settings=settings,
        processes=(PlannedProcess(command.tool, command),),
    )


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
