"""One test of perftest between a NIC and a GPU, or the host's memory."""

from __future__ import annotations

from dataclasses import replace

from probes.bandwidth.model.planned_test import Pair, PlannedTest
from probes.bandwidth.model.request import MemoryPath, Mode, Request
from probes.bandwidth.planning.defaults import better_nics_down, is_without_dmabuf, perftest_defaults
from probes.bandwidth.planning.duration import method_of
from probes.bandwidth.planning.perftest_ends import ends_of
from probes.bandwidth.tools.command import Refused
from probes.bandwidth.tools.samples import BY_DMABUF, BY_PEERMEM, HOST_MEMORY
from probes.base.unknown import Unknown
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.system.tools import ToolFacts
from probes.snapshot.examination import Examination

_DMABUF = {MemoryPath.BEST: None, MemoryPath.DMABUF: True, MemoryPath.PEERMEM: False}
_WORDS = {MemoryPath.HOST: HOST_MEMORY, MemoryPath.DMABUF: BY_DMABUF, MemoryPath.PEERMEM: BY_PEERMEM}


def title_of(examination: Examination, gpu: str | None, nic: str | None, path: MemoryPath) -> str:
    """What a test would be called, also where there is none."""
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
    """The test of one pair with one kind of memory; Refused with the reason where it cannot be run here."""
    tools = examination.tools
    if isinstance(tools, Unknown):
        return Refused(f"which tools are installed is not known: {tools}")
    with_gpu = path is not MemoryPath.HOST
    if with_gpu and gpu is None:
        return Refused("there is no GPU here")
    settings = perftest_defaults(examination, gpu if with_gpu else None, nic, _DMABUF.get(path))
    if isinstance(settings, Refused):
        return settings
    method = method_of(
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
    planned = ends_of(examination, request, method, tools)
    if isinstance(planned, Refused):
        return planned
    settings, far = planned.settings, planned.far
    is_loopback = request.setup is Mode.LOOPBACK and request.far_nic in (None, settings.device)
    memory = HOST_MEMORY if settings.gpu is None else BY_DMABUF if settings.gpu.dmabuf else BY_PEERMEM
    # A peer that comes to a server here has no name: its device would be taken for one of this node.
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
        seconds=method.seconds,
        time_limit_s=method.time_limit_s,
        end_after_s=method.end_after_s,
        tcp_port=settings.tcp_port if request.setup in (Mode.LOOPBACK, Mode.SERVER) else 0,
        for_peer=planned.for_peer,
        far=far if request.setup is Mode.LOOPBACK else None,
        notes=(
            *planned.notes,
            *_passed_over(examination, gpu, settings.device),
            *_other_path(tools, path, memory),
        ),
    )


def _passed_over(examination: Examination, gpu: str | None, nic: str) -> tuple[str, ...]:
    better = better_nics_down(examination.topology, gpu, nic)
    label = _label(examination, gpu)
    return tuple(f"{one} would serve {label} better, but no port of it is active" for one in better)


def _other_path(tools: ToolFacts, path: MemoryPath, memory: str) -> tuple[str, ...]:
    """That the node's own path could not be taken, for what is installed does not know it."""
    if path is not MemoryPath.BEST or memory != BY_PEERMEM or not is_without_dmabuf(tools):
        return ()
    told = "this perftest is built without DMA-BUF: measured by nvidia-peermem, whatever NCCL takes"
    return (told,)
