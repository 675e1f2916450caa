"""Take a live sample of the node, each second; slow sources are read less often."""

from __future__ import annotations

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.kernel.modules import ModuleFacts
from probes.facts.node import Node
from probes.host.protocol import Host
from probes.live.events import EventDetector
from probes.live.jobs import group
from probes.live.odd_one_out import OddOneOut
from probes.live.ports import PortReader
from probes.live.processes import ProcessReader
from probes.live.sample import GpuSample, LiveProcess, LiveSample
from probes.snapshot.rates import Reading


class LiveWatch:
    """The latest sample of a node; it asks its host only when it is called, from one thread."""

    def __init__(self) -> None:
        self._processes = ProcessReader()
        self._ports = PortReader()
        self._odd = OddOneOut()
        self._events = EventDetector()
        self.latest: LiveSample | None = None

    def sample(self, host: Host, node: Node, reading: Reading) -> LiveSample:
        """Return the sample that belongs to a reading taken just now."""
        ports = self._ports.read(host, node, reading)
        found = self._processes.read(host, node, reading)
        processes: Maybe[tuple[LiveProcess, ...]] = found.processes
        jobs = group(processes, ports)
        jobs = self._odd.update(jobs, processes, ports, node, reading.at)
        sample = LiveSample(
            at=reading.at,
            taken_at=host.wall_clock(),
            processes=processes,
            jobs=jobs,
            ports=ports,
            gpus=_gpus(node, reading),
            peermem=reading.peermem,
            modules=_modules(node),
            limits=found.limits,
        )
        self.latest = self._events.update(sample, host.kernel_messages())
        return self.latest


def _gpus(node: Node, reading: Reading) -> tuple[GpuSample, ...]:
    facts = node.gpus.gpus if isinstance(node.gpus, GpuFacts) else ()
    return tuple(
        GpuSample(
            gpu.bdf,
            gpu.index,
            reading.gpus
            if isinstance(reading.gpus, Unknown)
            else reading.gpus.get(gpu.bdf, Unknown(Reason.NOT_THERE, "NVML", "the GPU is not listed")),
        )
        for gpu in facts
    )


def _modules(node: Node) -> dict[str, str]:
    if not isinstance(node.modules, ModuleFacts):
        return {}
    modules = node.modules.modules.items()
    return {name: module.state.value for name, module in modules if not isinstance(module.state, Unknown)}
