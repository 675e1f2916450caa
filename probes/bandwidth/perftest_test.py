"""One test of perftest: its two ends, wherever they are."""

from __future__ import annotations

from dataclasses import replace

from probes.bandwidth.choice import Choice, MemoryPath, Setup
from probes.bandwidth.commands import Command, Refused
from probes.bandwidth.defaults import better_but_down, gpu_memory, lacks_dmabuf, perftest_defaults
from probes.bandwidth.far_end import by_ssh, host_of
from probes.bandwidth.limits import Limit, of_both_ends, of_test
from probes.bandwidth.method import Method, method_of
from probes.bandwidth.perftest_command import LOCALHOST, PerftestSettings, loopback, perftest
from probes.bandwidth.planned import End, Pair, PlannedTest
from probes.bandwidth.purpose import purpose
from probes.bandwidth.samples import BY_DMABUF, BY_PEERMEM, HOST_MEMORY
from probes.examination import Examination
from probes.gpus import GpuFacts
from probes.tools import ToolFacts
from probes.unknown import Unknown

_DMABUF = {MemoryPath.BEST: None, MemoryPath.DMABUF: True, MemoryPath.PEERMEM: False}
_WORDS = {MemoryPath.HOST: HOST_MEMORY, MemoryPath.DMABUF: BY_DMABUF, MemoryPath.PEERMEM: BY_PEERMEM}


def wish_title(examination: Examination, gpu: str | None, nic: str | None, path: MemoryPath) -> str:
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
    choice: Choice,
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
    settings, notes = _bound(settings, tools)
    method = method_of(
        choice,
        replace(
            settings,
            tool=choice.tool,
            queue_pairs=choice.queue_pairs,
            is_bidirectional=choice.is_bidirectional,
            tcp_port=choice.tcp_port or tcp_port,
        ),
    )
    planned = _ends(examination, choice, method, tools)
    if isinstance(planned, Refused):
        return planned
    ends, limit, for_peer, far = planned
    settings = method.settings
    is_loopback = choice.setup is Setup.LOOPBACK and choice.far_nic in (None, settings.device)
    memory = HOST_MEMORY if settings.gpu is None else BY_DMABUF if settings.gpu.dmabuf else BY_PEERMEM
    far_nic = choice.far_nic or ""
    label = _label(examination, gpu) if with_gpu else ""
    between = settings.device
    if far is not None:
        far_label = _label(examination, far.gpu.bdf) if far.gpu else ""
        between += f" → {far.device}" + (f" → {far_label}" if far_label else "")
    return PlannedTest(
        title=_title(label, between, memory),
        settings=settings,
        setup=choice.setup,
        pair=Pair(
            gpu=(gpu or "") if with_gpu else "",
            gpu_label=label,
            nic=settings.device,
            port=settings.port,
            far_nic="" if far_nic == settings.device and not choice.peer else far_nic,
            peer="" if choice.setup is Setup.LOOPBACK else choice.peer,
        ),
        memory=memory,
        ends=ends,
        limit=limit,
        purpose=purpose(settings, is_loopback),
        seconds=method.seconds,
        time_limit_s=method.time_limit_s,
        end_after_s=method.end_after_s,
        tcp_port=settings.tcp_port if choice.setup in (Setup.LOOPBACK, Setup.SERVER) else 0,
        for_peer=for_peer,
        far=far,
        notes=(*notes, *_passed_over(examination, gpu, settings.device), *_other_path(tools, path, memory)),
    )


def _bound(settings: PerftestSettings, tools: ToolFacts) -> tuple[PerftestSettings, tuple[str, ...]]:
    """Bound to the NIC's NUMA node where numactl is there; else not, and told."""
    if settings.numa_node is None or not isinstance(tools.paths.get("numactl"), Unknown):
        return settings, ()
    told = f"not bound to NUMA node {settings.numa_node}, for numactl is not installed: figures may vary"
    return replace(settings, numa_node=None), (told,)


def _passed_over(examination: Examination, gpu: str | None, nic: str) -> tuple[str, ...]:
    better = better_but_down(examination.topology, gpu, nic)
    label = _label(examination, gpu)
    return tuple(f"{one} would serve {label} better, but no port of it is active" for one in better)


def _other_path(tools: ToolFacts, path: MemoryPath, memory: str) -> tuple[str, ...]:
    """That the node's own path could not be taken, for what is installed does not know it."""
    if path is not MemoryPath.BEST or memory != BY_PEERMEM or not lacks_dmabuf(tools):
        return ()
    told = "this perftest is built without DMA-BUF: measured by nvidia-peermem, whatever NCCL takes"
    return (told,)


_Ends = tuple[tuple[End, ...], Limit, tuple[str, ...], PerftestSettings | None]


def _ends(examination: Examination, choice: Choice, method: Method, tools: ToolFacts) -> _Ends | Refused:
    settings = method.settings
    if choice.setup is Setup.LOOPBACK:
        return _loopback(examination, choice, settings, tools)
    limit = of_test(examination, settings)
    if choice.setup is Setup.SERVER:
        waits = perftest(settings, tools)
        asks = perftest(settings, tools, LOCALHOST)
        if isinstance(waits, Refused):
            return waits
        for_peer = () if isinstance(asks, Refused) else asks.argv[:-1]  # this node's name is put behind it
        return (End("server", waits),), limit, for_peer, None
    host = host_of(choice.peer)
    if host is None:
        told = "no peer is named" if not choice.peer else f"{choice.peer[:80]!r} is no host name or address"
        return Refused(told)
    # The peer is taken for a node of the same type: same device, GPU and GID index.
    far = perftest(replace(settings, device=choice.far_nic or settings.device), tools)
    asks = perftest(settings, tools, host)
    if isinstance(far, Refused):
        return far
    if isinstance(asks, Refused):
        return asks
    if choice.setup is Setup.CLIENT:
        return (End("client", asks),), limit, far.argv, None
    there: Command | Refused = by_ssh(choice.peer, far, method.time_limit_s)
    if isinstance(there, Refused):
        return there
    return (End("server", there, choice.peer), End("client", asks)), limit, (), None


def _loopback(
    examination: Examination, choice: Choice, settings: PerftestSettings, tools: ToolFacts
) -> _Ends | Refused:
    far = settings
    if choice.far_nic not in (None, settings.device):
        other = perftest_defaults(examination, None, choice.far_nic)
        if isinstance(other, Refused):
            return other
        numa_node = None if settings.numa_node is None else other.numa_node
        far = replace(
            settings, device=other.device, port=other.port, gid_index=other.gid_index, numa_node=numa_node
        )
        if settings.gpu is not None:
            far = _nearest_gpu(examination, far)
    both = loopback(settings, tools, far)
    if isinstance(both, Refused):
        return both
    limit = of_test(examination, settings, is_loopback=far is settings)
    if far is not settings:
        limit = of_both_ends(limit, of_test(examination, far), settings.is_bidirectional)
    ends = End("server", both[0]), End("client", both[1])
    return ends, limit, (), None if far is settings else far


def _nearest_gpu(examination: Examination, far: PerftestSettings) -> PerftestSettings:
    """The far device's own GPU, where it is another one's best NIC; else the same GPU at both ends."""
    assert far.gpu is not None
    facts = examination.node.gpus
    for card in facts.gpus if isinstance(facts, GpuFacts) else ():
        if card.bdf != far.gpu.bdf and far.device in examination.topology.best_nics.get(card.bdf, ())[:1]:
            memory = gpu_memory(examination, card, far.device, far.gpu.dmabuf)
            return far if isinstance(memory, Refused) else replace(far, gpu=memory)
    return far
