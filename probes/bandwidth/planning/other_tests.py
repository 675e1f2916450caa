"""One test of gdrcopy, nvbandwidth or nccl-tests: a single process on this node."""

from __future__ import annotations

from dataclasses import replace

from probes.bandwidth.model.limits import Limit, of_gpu
from probes.bandwidth.model.meaning import Settings, purpose
from probes.bandwidth.model.planned_test import Pair, PlannedProcess, PlannedTest
from probes.bandwidth.model.request import Mode, Request
from probes.bandwidth.tools.command import Command, Refused
from probes.bandwidth.tools.numa_binding import bound_to
from probes.bandwidth.tools.other_commands import (
    GdrcopySettings,
    NcclSettings,
    NvbandwidthSettings,
    gdrcopy,
    nccl_tests,
    nvbandwidth,
)
from probes.base.unknown import Unknown, known
from probes.facts.gpu.gpus import Gpu
from probes.snapshot.examination import Examination

_TIME_LIMIT_SECONDS = 600.0


def gdrcopy_test(examination: Examination, request: Request, gpu: Gpu) -> PlannedTest | Refused:
    """The CPU's reach into one GPU."""
    tools = examination.tools
    if isinstance(tools, Unknown):
        return Refused(f"which tools are installed is not known: {tools}")
    # The CPU that copies belongs beside the GPU.
    numa_node, notes = bound_to(examination, known(gpu.numa_node, None) if request.binds else None)
    settings = GdrcopySettings(gpu.index, request.tool, request.size_bytes, numa_node)
    planned = _planned(
        f"GPU{gpu.index} · {request.tool}", settings, gdrcopy(settings, tools), (gpu,), 10.0, examination
    )
    return planned if isinstance(planned, Refused) else replace(planned, notes=notes)


def nvbandwidth_test(examination: Examination, gpu: Gpu) -> PlannedTest | Refused:
    """CUDA's copies between the host and one GPU."""
    tools = examination.tools
    if isinstance(tools, Unknown):
        return Refused(f"which tools are installed is not known: {tools}")
    settings = NvbandwidthSettings(gpus=(gpu.index,))
    return _planned(
        f"GPU{gpu.index} · nvbandwidth", settings, nvbandwidth(settings, tools), (gpu,), 15.0, examination
    )


def nccl_test(examination: Examination, request: Request, gpus: tuple[Gpu, ...]) -> PlannedTest | Refused:
    """A collective over these GPUs, in one process."""
    tools = examination.tools
    if isinstance(tools, Unknown):
        return Refused(f"which tools are installed is not known: {tools}")
    devices = (request.nic,) if request.nic is not None and request.over_network else ()
    settings = NcclSettings(
        tuple(gpu.index for gpu in gpus), request.tool, over_network=request.over_network, devices=devices
    )
    where = "over the NICs" if request.over_network else "inside this node"
    where = f"over {request.nic}" if devices else where
    title = f"{len(gpus)} GPUs · {request.tool} {where}"
    return _planned(title, settings, nccl_tests(settings, tools), gpus, 25.0, examination)


def _planned(
    title: str,
    settings: Settings,
    command: Command | Refused,
    gpus: tuple[Gpu, ...],
    seconds: float,
    examination: Examination,
) -> PlannedTest | Refused:
    if isinstance(command, Refused):
        return command
    one = gpus[0] if len(gpus) == 1 else None
    label = f"GPU{one.index}" if one else ",".join(f"GPU{gpu.index}" for gpu in gpus)
    # What a collective can reach at most is the algorithm's matter; the CPU's copies are bound by the CPU.
    limit = of_gpu(examination, one.bdf) if one and isinstance(settings, NvbandwidthSettings) else Limit(())
    return PlannedTest(
        title=title,
        settings=settings,
        setup=Mode.LOOPBACK,
        pair=Pair(gpu=one.bdf if one else "", gpu_label=label),
        memory="",
        processes=(PlannedProcess(command.tool, command),),
        limit=limit,
        purpose=purpose(settings),
        seconds=seconds,
        time_limit_s=_TIME_LIMIT_SECONDS,
    )
