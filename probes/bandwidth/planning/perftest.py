"""Plan one test of perftest between a NIC and GPU or host memory."""

from __future__ import annotations

from dataclasses import replace

from probes.bandwidth.model.command import Refused
from probes.bandwidth.model.planned_test import Pair, PlannedTest
from probes.bandwidth.model.request import MemoryPath, Mode, Request
from probes.bandwidth.model.samples import BY_DMABUF, BY_PEERMEM, HOST_MEMORY
from probes.bandwidth.planning.defaults import (
    better_nics_down,
    is_without_dmabuf,
    perftest_defaults,
    with_duration,
)
from probes.bandwidth.planning.perftest_ends import ends_of
from probes.base.unknown import Unknown
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.system.tools import ToolFacts
from probes.snapshot.examination import Examination

_DMABUF = {MemoryPath.BEST: None, MemoryPath.DMABUF: True, MemoryPath.PEERMEM: False}
_WORDS = {MemoryPath.HOST: HOST_MEMORY, MemoryPath.DMABUF: BY_DMABUF, MemoryPath.PEERMEM: BY_PEERMEM}


def title_of(examination: Examination, gpu: str | None, nic: str | None, path: MemoryPath) -> str:
    """Return the title of a test, also of one that cannot run."""
    return _title(_label(examination, gpu), nic or "no NIC", _WORDS.get(path, "GPU memory"))


def _title(gpu: str, nic: str, memory: str) -> str:
    return f"{gpu} → {nic} · {memory}" if gpu else f"{nic} · {memory}"


def _label(examination: Examination, gpu: str | None) -> str:
    facts = examination.node.gpus
    cards = facts.gpus if isinstance(facts, GpuFacts) else ()
    return next((f"GPU{card.index}" for card in cards if card.bdf == gpu), gpu or "")


def perftest_test(
    examination: Examination,
    request: Request,
    gpu: str | None,
    nic: str | None,
    path: MemoryPath,
    tcp_port: int,
) -> PlannedTest | Refused:
    """Return the test of one pair with one kind of memory, or why it cannot run on this node."""
    tools = examination.tools
    if isinstance(tools, Unknown):
        return Refused(f"the installed tools are unknown: {tools}")
    with_gpu = path is not MemoryPath.HOST
    if with_gpu and gpu is None:
        return Refused("this node has no GPU")
    settings = perftest_defaults(examination, gpu if with_gpu else None, nic, _DMABUF.get(path))
    if isinstance(settings, Refused):
        return settings
    timed = with_duration(
        request,
        replace(
            settings,
            tool=request.tool,
            queue_pairs=request.queue_pairs,
            is_bidirectional=request.is_bidirectional,
            tcp_port=request.tcp_port or tcp_port,
            numa_node=settings.numa_node if request.binds else None,
        ),
    )
    planned = ends_of(examination, request, timed, tools)
    if isinstance(planned, Refused):
        return planned
    settings, far = planned.settings, planned.far
    is_loopback = request.setup is Mode.LOOPBACK and request.far_nic in (None, settings.device)
    memory = HOST_MEMORY if settings.gpu is None else BY_DMABUF if settings.gpu.dmabuf else BY_PEERMEM
    # A client of a server here has no name: its device would be taken for one of this node.
    far_nic = "" if request.setup is Mode.SERVER else request.far_nic or ""
    label = _label(examination, gpu) if with_gpu else ""
    between = settings.device
    if far is not None:
        far_label = _label(examination, far.gpu.bdf) if far.gpu else ""
        between += f" → {far.device}" + (f" → {far_label}" if far_label else "")
    return PlannedTest(
        title=_title(label, between, memory),
        settings=settings,
        setup=request.setup,
        pair=Pair(
            gpu=(gpu or "") if with_gpu else "",
            gpu_label=label,
            nic=settings.device,
            port=settings.port,
            far_nic="" if far_nic == settings.device and not request.peer else far_nic,
            peer="" if request.setup is Mode.LOOPBACK else request.peer,
        ),
        memory=memory,
        processes=planned.processes,
        limit=planned.limit,
        purpose=settings.purpose(is_loopback),
        seconds=timed.seconds,
        time_limit_s=timed.time_limit_s,
        end_after_s=timed.end_after_s,
        tcp_port=settings.tcp_port if request.setup in (Mode.LOOPBACK, Mode.SERVER) else 0,
        for_peer=planned.for_peer,
        far=far if request.setup is Mode.LOOPBACK else None,
        notes=(
            *planned.notes,
            *_nics_down(examination, gpu, settings.device),
            *_other_path(tools, path, memory),
        ),
    )


def _nics_down(examination: Examination, gpu: str | None, nic: str) -> tuple[str, ...]:
    better = better_nics_down(examination.topology, gpu, nic)
    label = _label(examination, gpu)
    return tuple(f"{name} is a better NIC for {label}, but has no active port" for name in better)


def _other_path(tools: ToolFacts, path: MemoryPath, memory: str) -> tuple[str, ...]:
    """Return a note if the installed perftest cannot use the node's own path."""
    if path is not MemoryPath.BEST or memory != BY_PEERMEM or not is_without_dmabuf(tools):
        return ()
    return ("this perftest is built without DMA-BUF, so the test uses nvidia-peermem, whatever NCCL uses",)
