"""Read the beginning and the end of the NCCL logs of running jobs, in bounded time and memory.

NCCL reports version, networks and channels when a communicator connects, and errors at the end. A file can
have lines of earlier runs and of other nodes, so only lines that begin with host name and pid of a process
that runs here count.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.protocol import Host
from probes.live.model.sample import GDR_WORDS, WITHOUT_GDR, LiveJob, LiveProcess, Role
from probes.live.processes.job_logs import LogPath, find_logs_of, writers_of
from probes.nccl.log.job_log import JobLogReading, RankPath

if TYPE_CHECKING:  # imported on first use: most nodes that are checked have no job
    from probes.nccl.log.collect import Collector

BEGIN_BYTES = 4 << 20  # of a file
END_BYTES = 1 << 20
JOB_BYTES = 16 << 20  # of all files of a job
JOB_SECONDS = 1.0
ALL_SECONDS = 2.0
_PIECE_BYTES = 1 << 18
_FED_BYTES = 1 << 16  # between two looks at the clock
_MOST_PROCESSES = 256  # of a job, whose lines are looked for


def read_job_logs(
    host: Host, processes: Maybe[tuple[LiveProcess, ...]], jobs: tuple[LiveJob, ...]
) -> Maybe[tuple[JobLogReading, ...]]:
    """Return what the logs of all jobs that use NCCL say; one without a log says nothing."""
    if isinstance(processes, Unknown):
        return processes
    by_pid = {process.pid: process for process in processes}
    of_nccl = [job for job in jobs if job.role is Role.NCCL]
    if not of_nccl:
        return ()
    from probes.nccl.log.collect import Collector
    from probes.nccl.log.verdict import verdict_of

    probe = host.read_range(f"/proc/{of_nccl[0].pids[0]}/fd/1", 0, 0)
    if isinstance(probe, Unknown) and probe.reason is Reason.NOT_RECORDED:
        return probe
    found = find_logs_of(host, processes, of_nccl, with_scheduler=False)
    until = time.monotonic() + ALL_SECONDS
    readings = []
    for job in of_nccl:
        members = [by_pid[pid] for pid in job.pids if pid in by_pid]
        files = {file.path: file for log in found.logs if log.job == job.id for file in log.files}.values()
        collector = Collector(writers_of(host, members[:_MOST_PROCESSES]))
        reading = _JobReading(host, collector, min(until, time.monotonic() + JOB_SECONDS))
        for file in files:
            reading.read(file)
        facts = reading.reader.facts()
        readings.append(
            JobLogReading(
                job=job.id,
                name=job.name,
                ranks=tuple(_rank(process) for process in members if process.role is Role.NCCL),
                facts=facts,
                verdict=verdict_of(facts),
                files=tuple(file.shown for file in files),
                other_lines=reading.collector.other_lines,
                needs_root=job.id in found.need_root or reading.needs_root,
                is_partial=reading.is_partial,
            )
        )
    return tuple(readings)


def _rank(process: LiveProcess) -> RankPath:
    path = process.path
    uses_gdr = True if path.word in GDR_WORDS else False if path.word in WITHOUT_GDR else None
    gpus, nics = process.gpus, process.ready_nics
    return RankPath(process.pid, process.rank, gpus, nics, path.text, uses_gdr, path.is_likely)


class _JobReading:
    def __init__(self, host: Host, collector: Collector, until: float) -> None:
        from probes.nccl.log.reader import LogReader

        self._host, self._until = host, until
        self._left = JOB_BYTES
        self.collector = collector
        self.reader = LogReader(collector)
        self.needs_root = False
        self.is_partial = False

    def read(self, file: LogPath) -> None:
        """Read the beginning of a file, and its end as a part with lines of its own."""
        self.collector.begin_file()
        self.reader.begin(file.shown)
        begin = min(file.size_bytes, BEGIN_BYTES)
        rest = file.size_bytes - begin
        self.reader.end(self._feed(file, 0, begin))
        if not rest:
            return
        end = min(rest, END_BYTES)
        self.is_partial |= rest > end
        self.reader.begin(f"{file.shown} (last {end >> 10} KiB)")
        self.reader.end(self._feed(file, file.size_bytes - end, end))

    def _feed(self, file: LogPath, offset: int, count: int) -> str:
        """Read a part of a file; return why not all of it was read, or ""."""
        first, last = offset, offset + count
        while offset < last:
            if self._left <= 0 or time.monotonic() >= self._until:
                self.is_partial = True
                return ""
            part = file.part(self._host, offset, min(_PIECE_BYTES, last - offset, self._left))
            if isinstance(part, Unknown):
                self.needs_root |= part.reason is Reason.NEEDS_ROOT
                return str(part)
            if not part.content:
                return ""
            # The end of a file begins inside a line.
            begin = part.content.find(b"\n") + 1 if offset and offset == first else 0
            for start in range(begin, len(part.content), _FED_BYTES):
                self.reader.feed(part.content[start : start + _FED_BYTES])
                if time.monotonic() >= self._until:
                    break
            offset += len(part.content)
            self._left -= len(part.content)
        return ""
