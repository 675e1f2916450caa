"""Take a live sample of the node, each second; slow sources are read less often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from probes.base.latest import Latest
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.kernel.modules import ModuleFacts
from probes.facts.node import Node
from probes.facts.rdma.devices import RdmaFacts
from probes.host.answers import KernelMessage
from probes.host.protocol import Host
from probes.live.bus_bandwidth import BusBandwidth
from probes.live.events.conditions import Conditions
from probes.live.model.paced_source import Question, read_together
from probes.live.model.sample import (
    GpuSample,
    LiveEvent,
    LiveJob,
    LiveProcess,
    LiveSample,
    PortSample,
    failed,
)
from probes.live.odd_one_out import OddOneOut
from probes.live.ports import PortReader
from probes.live.processes.jobs import jobs_of
from probes.live.processes.processes import ProcessReader, ProcessSnapshot
from probes.live.ras.events import RasEvents
from probes.live.silence import Silence
from probes.snapshot.rates import Reading

if TYPE_CHECKING:
    from probes.live.events.detectors import EventDetector
    from probes.live.step_clock.job_steps import JobSteps

T = TypeVar("T")
_FAILED = Unknown(Reason.IO_ERROR, "gdrtop", "an error in gdrtop")


class LiveSampler:
    """The latest sample of a node; it asks its host only when it is called, from one thread.

    A part that fails leaves the others as they are, and one sentence in the sample's limits.
    """

    def __init__(self, ras: RasEvents | None = None, settles: bool = True) -> None:
        """With `settles`, what is odd has to last; without, one sample decides: there is no second one."""
        self._processes = ProcessReader()
        self._ports = PortReader()
        self._bus = BusBandwidth()
        self._odd = OddOneOut(settles)
        self._silence = Silence()
        self._steps = _step_clocks() if settles else None
        self._events = _detector() if settles else None
        self.ras = RasEvents() if ras is None else ras
        self._modules: Latest[dict[str, str]] = Latest()
        self._names: Latest[dict[str, str]] = Latest()  # of GPUs and NICs
        self._nic_names: Latest[dict[str, str]] = Latest()
        self._gpus_of_jobs: dict[str, tuple[str, ...]] = {}  # by the job's id
        self.latest: LiveSample | None = None

    def sample(self, host: Host, node: Node, reading: Reading) -> LiveSample:
        """Return the sample that belongs to a reading taken just now."""
        limits: list[str] = []
        modules = self._modules.get(lambda: _modules(node), objects=(node,))
        names = self._names.get(lambda: _names(node), objects=(node,))

        def part(what: str, read: Callable[[], T], otherwise: T) -> T:
            try:
                return read()
            except Exception as error:
                limits.append(failed(what, error))
                return otherwise

        # On a busy node the rest takes a while: the sample bears the time of the reading.
        taken_at = host.wall_clock()
        no_ports: tuple[PortSample, ...] = ()
        no_jobs: tuple[LiveJob, ...] = ()
        unseen: Maybe[tuple[KernelMessage, ...]] = ()
        nothing: tuple[Question, ...] = ()
        of_ports = part("the ports", lambda: self._ports.questions(host, node), nothing)
        of_processes = part("the processes", lambda: self._processes.questions(host, node, reading), nothing)
        of_pairs = part("packet numbers", lambda: self._silence.questions(host, node), nothing)
        read_together(host, reading.at, *of_ports, *of_processes, *of_pairs)
        ports = part("the ports", lambda: self._ports.read(reading), no_ports)
        found = part("the processes", lambda: self._processes.read(node, reading), ProcessSnapshot(_FAILED))
        processes = part(
            "NCCL's inspector files",
            lambda: self._bus.update(host, node, found.processes, reading.at),
            found.processes,
        )
        facts = node.gpus.gpus if isinstance(node.gpus, GpuFacts) else ()
        live = reading.gpus
        absent = Unknown(Reason.NOT_THERE, "NVML", "the GPU is not listed")
        gpus = tuple(
            GpuSample(gpu.bdf, gpu.index, live if isinstance(live, Unknown) else live.get(gpu.bdf, absent))
            for gpu in facts
        )
        jobs = part("the jobs", lambda: jobs_of(processes, ports), no_jobs)
        jobs = part(
            "the odd one out",
            lambda: self._odd.update(jobs, processes, ports, node, reading.at, gpus, not found.missing),
            jobs,
        )
        seen = (found.processes, ports, gpus, reading.at, found.kernel_clients)
        jobs = part("silent jobs", lambda: self._silence.update(jobs, *seen), jobs)
        jobs = part("the GPUs of jobs", lambda: self._with_gpus(jobs, processes), jobs)
        jobs = part("the slowest ranks", lambda: self._bus.with_slowest(jobs, host.wall_clock()), jobs)
        if (steps := self._steps) is not None:
            at = reading.at
            jobs = part("the step clock", lambda: steps.update(host, node, jobs, ports, at, taken_at), jobs)
        if self._events is not None:
            unseen = part("kernel messages", host.kernel_messages, unseen)
        sample = LiveSample(
            at=reading.at,
            taken_at=taken_at,
            nic_names=self._nic_names.get(lambda: _nic_names(node), objects=(node,)),
            processes=processes,
            jobs=jobs,
            ports=ports,
            gpus=gpus,
            peermem=reading.peermem,
            modules=modules,
            limits=(*found.limits, *limits),
            missing=found.missing,
            kernel_clients=found.kernel_clients,
            no_ports="" if ports else _no_ports(node),
            no_gpus="" if gpus else _no_gpus(node),
        )
        if self._events is None:
            return part("what lasts", lambda: replace(sample, watched=Conditions().update(sample)), sample)
        detector = self._events
        sample = part("events", lambda: detector.update(sample, unseen, names), sample)
        no_events: list[LiveEvent] = []
        followed = part("RAS events", lambda: self.ras.update(host, sample), no_events)
        self.latest = replace(sample, events=(*sample.events, *followed)) if followed else sample
        return self.latest

    def _with_gpus(
        self, jobs: tuple[LiveJob, ...], processes: Maybe[tuple[LiveProcess, ...]]
    ) -> tuple[LiveJob, ...]:
        """Return the jobs with their GPUs; one that NVML no longer shows stays with the job that used it."""
        now: dict[str, list[str]] = {job.id: [] for job in jobs}
        for process in () if isinstance(processes, Unknown) else processes:
            if process.job in now:
                now[process.job].extend(process.gpus)
        taken = {gpu for gpus in now.values() for gpu in gpus}
        for name, gpus in now.items():
            gpus.extend(gpu for gpu in self._gpus_of_jobs.get(name, ()) if gpu not in taken)
        self._gpus_of_jobs = {name: tuple(dict.fromkeys(gpus)) for name, gpus in now.items()}
        return tuple(replace(job, gpus=self._gpus_of_jobs[job.id]) for job in jobs)


def _step_clocks() -> JobSteps:
    from probes.live.step_clock.job_steps import JobSteps

    return JobSteps()


def _detector() -> EventDetector:
    from probes.live.events.detectors import EventDetector  # a single sample has no events

    return EventDetector()


def _names(node: Node) -> dict[str, str]:
    gpus = node.gpus.gpus if isinstance(node.gpus, GpuFacts) else ()
    named = {gpu.bdf: f"GPU {gpu.index}" for gpu in gpus if not isinstance(gpu.index, Unknown)}
    return named | _nic_names(node)


def _nic_names(node: Node) -> dict[str, str]:
    """Return the names of the RDMA devices by BDF; the first one of a function that has several."""
    nics = node.rdma.devices if isinstance(node.rdma, RdmaFacts) else ()
    return {nic.bdf: nic.name for nic in reversed(nics) if not isinstance(nic.bdf, Unknown)}


def _no_ports(node: Node) -> str:
    rdma = node.rdma
    if isinstance(rdma, Unknown):
        is_missing = rdma.reason is Reason.NOT_THERE
        return "RDMA is not loaded on this node." if is_missing else f"RDMA devices are unknown ({rdma})."
    if rdma.devices:
        return "The RDMA ports could not be read."
    if rdma.devices_elsewhere:
        return "The RDMA devices are in another network namespace."
    return "This node has no RDMA device."


def _no_gpus(node: Node) -> str:
    if isinstance(node.gpus, Unknown):
        return f"GPUs are unknown ({node.gpus})."
    others = "" if isinstance(node.pci, Unknown) else node.pci.other_gpus
    return f"No NVIDIA GPU; this node has {others}." if others else "No NVIDIA GPU."


def _modules(node: Node) -> dict[str, str]:
    if not isinstance(node.modules, ModuleFacts):
        return {}
    modules = node.modules.modules.items()
    return {name: module.state.value for name, module in modules if not isinstance(module.state, Unknown)}
