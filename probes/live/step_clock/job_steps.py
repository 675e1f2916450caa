"""The step clock of each job on the node, on one of its NICs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.node import Node
from probes.facts.rdma.devices import ACTIVE
from probes.host.protocol import Host
from probes.live.model.activity import moves_data
from probes.live.model.sample import STEP_ROLES, JobStep, LiveJob, LiveSample, PortSample
from probes.live.step_clock.clock import StepClock
from probes.snapshot.rates import byte_files

MOST_JOBS = 4  # that are read ten times a second
_ABSENT_SECONDS = 60.0  # after which a job that is not seen on its NIC has left it
_IDLE = Unknown(Reason.NOT_THERE, "step clock", "no NIC of the job is busy, or other jobs use it too")
_TOO_MANY = Unknown(Reason.NOT_RECORDED, "step clock", f"only {MOST_JOBS} jobs are watched")


@dataclass
class _Watched:
    pids: frozenset[int]
    clock: StepClock
    port: tuple[str, int]  # device and number
    unit: int  # bytes
    seen_at: float  # when the job was last seen on the NIC


class JobSteps:
    """Watch one busy port of each job, of a NIC that no other job uses."""

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}  # by the job's id
        self._at = 0.0

    def update(self, host: Host, node: Node, sample: LiveSample) -> tuple[LiveJob, ...]:
        """Return the jobs with their steps."""
        at = sample.at
        if at < self._at:  # a recording was rewound
            self._watched.clear()
        self._at = at
        self._watched = {
            name: watched
            for name, watched in self._watched.items()
            if at - watched.seen_at <= _ABSENT_SECONDS
        }
        active = {(port.device, port.port): port for port in sample.ports if port.state == ACTIVE}
        found = []
        for job in sample.jobs:
            if job.role in STEP_ROLES:
                own = {place: port for place, port in active.items() if place[0] in job.own_nics}
                step = self._step(host, node, job, own, sample.taken_at)
                job = replace(job, step=step)
            found.append(job)
        return tuple(found)

    def _step(
        self, host: Host, node: Node, job: LiveJob, own: Mapping[tuple[str, int], PortSample], wall: float
    ) -> Maybe[JobStep]:
        pids, watched = frozenset(job.pids), self._watched.get(job.id)
        if watched is not None and pids.isdisjoint(watched.pids):
            watched = None  # the job was started again
        busy = [port for port in own.values() if moves_data(port)]
        is_idle = watched is not None and moves_data(own.get(watched.port)) is False
        if watched is None or (busy and is_idle and not watched.clock.is_followed):
            if not busy:
                return _IDLE
            if len(self._watched.keys() - {job.id}) >= MOST_JOBS:
                return _TOO_MANY
            port = max(busy, key=lambda port: known(port.sent_gbps, 0.0) + known(port.received_gbps, 0.0))
            files, unit = _files(host, node, port)
            if not files:
                return Unknown(Reason.FILE_MISSING, "step clock", f"{port.device} counts no bytes")
            watched = _Watched(pids, StepClock(port.device, files), (port.device, port.port), unit, self._at)
        watched.pids = pids
        if watched.port in own:  # a node that answers late may miss it for a moment
            watched.seen_at = self._at
        self._watched[job.id] = watched
        clock, unit = watched.clock, watched.unit
        readings = host.counter_readings(clock.files, clock.interval(self._at))
        if isinstance(readings, Unknown):
            return readings
        return clock.update([(at, float(count * unit)) for at, count in readings], self._at, wall)


def _files(host: Host, node: Node, watched: PortSample) -> tuple[tuple[str, ...], int]:
    for device in node.rdma_devices:
        for port in device.ports:
            if (device.name, port.number) == (watched.device, watched.port):
                return byte_files(host, device, port)
    return (), 1
