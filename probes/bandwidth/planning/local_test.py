"""One test of a tool that is a single process on this node: gdrcopy, nvbandwidth, nccl-tests."""

from __future__ import annotations

from dataclasses import replace

from probes.bandwidth.model.command import Refused
from probes.bandwidth.model.planned_test import Pair, PlannedProcess, PlannedTest
from probes.bandwidth.model.request import Mode, Request
from probes.bandwidth.tools.nccl_tests import NcclSettings
from probes.bandwidth.tools.numa_binding import bound_to
from probes.bandwidth.tools.tool import LocalTool
from probes.base.unknown import Unknown, known
from probes.facts.gpu.gpus import Gpu
from probes.queries.modules import plugin_only_driver
from probes.snapshot.examination import Examination

_TIME_LIMIT_SECONDS = 600.0


def local_test(
    examination: Examination, request: Request, tool: LocalTool, gpus: tuple[Gpu, ...]
) -> PlannedTest | Refused:
    """Return the test of these GPUs, or why it cannot run on this node."""
    tools = examination.tools
    if isinstance(tools, Unknown):
        return Refused(f"the installed tools are unknown: {tools}")
    gpu = gpus[0] if len(gpus) == 1 else None
    wanted_node = known(gpu.numa_node, None) if gpu and tool.binds_to_gpu and request.binds else None
    numa_node, notes = bound_to(examination, wanted_node)
    settings = tool.settings(request, gpus, numa_node)
    if isinstance(settings, NcclSettings) and plugin_only_driver(examination):
        settings = replace(settings, by_plugin=True)
    command = settings.command(tools)
    if isinstance(command, Refused):
        return command
    label = ",".join(f"GPU{each.index}" for each in gpus)
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
