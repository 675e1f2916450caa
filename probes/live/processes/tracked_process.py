"""What is remembered of one process between samples."""

from __future__ import annotations

from dataclasses import replace

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.jobs.process_files import Stat
from probes.facts.jobs.processes import Process
from probes.host.usage import ProcessUsage
from probes.live.model.sample import LiveProcess, PathJudgment
from probes.live.processes.gdr_path import NodeEvidence, ProcessEvidence
from probes.live.processes.process_cache import Key
from probes.live.processes.roles import rank_of, world_size_of

_NOT_SHOWN = Unknown(Reason.TIMED_OUT, "/proc/PID/environ", "not read yet")


class TrackedProcess:
    """Its newest state and path, and the objects that were shown last."""

    def __init__(self, pid: int, first_seen: float, stat: Stat | None, read_at: float) -> None:
        self.pid = pid
        self.first_seen = first_seen
        self.stat = stat
        self.is_new = True
        self.cpu_percent: Maybe[float] = Unknown(Reason.NOT_RECORDED, f"/proc/{pid}/stat", "one sample only")
        self.path: PathJudgment | None = None
        self.judged_at = 0.0
        self.live: LiveProcess | None = None
        self.evidence: tuple[tuple[object, ...], ProcessEvidence] | None = None  # and what it was made of
        self.judged: tuple[ProcessEvidence, NodeEvidence, PathJudgment] | None = None
        self.made_of: tuple[object, ...] = ()  # what `live` was worked out from
        self.rank: Maybe[int] = _NOT_SHOWN
        self.world_size: Maybe[int] = _NOT_SHOWN
        self._cpu = (read_at, stat.cpu_seconds) if stat else None
        self._shown: Process | None = None
        self._facts: Process | None = None

    @property
    def key(self) -> Key:
        """The pid and the start time."""
        return self.pid, self.stat.started if self.stat else 0

    def update(self, stat: Stat, read_at: float) -> None:
        """Take a new reading of /proc/PID/stat; the share of a CPU is in whole percent, to change rarely."""
        self.is_new = False
        self.stat = stat
        if self._cpu is None or read_at < self._cpu[0]:
            self._cpu = read_at, stat.cpu_seconds
        elif read_at - self._cpu[0] >= 0.5:
            share = (stat.cpu_seconds - self._cpu[1]) / (read_at - self._cpu[0])
            self.cpu_percent = float(round(100 * max(0.0, share)))
            self._cpu = read_at, stat.cpu_seconds

    def shown(self, facts: Process, usage: Maybe[ProcessUsage]) -> Process:
        """Return the process with its usage, the previous object while that hardly changed."""
        before = self._shown
        if before is not None and facts is self._facts and not _differs(before.usage, usage):
            return before
        user = facts.user if isinstance(usage, Unknown) else usage.user
        if before is not None and isinstance(usage, Unknown) and facts is self._facts:
            return before
        if facts is not self._facts:
            self.rank, self.world_size = rank_of(facts), world_size_of(facts)
        self._facts = facts
        self._shown = replace(facts, usage=usage, user=user)
        return self._shown


def _differs(before: Maybe[ProcessUsage], now: Maybe[ProcessUsage]) -> bool:
    """Return whether something besides CPU seconds changed; memory by more than 5 %."""
    if isinstance(before, Unknown) or isinstance(now, Unknown):
        return before != now
    if (before.user, before.cpus) != (now.user, now.cpus):
        return True
    first, second = before.memory_bytes, now.memory_bytes
    if isinstance(first, Unknown) or isinstance(second, Unknown):
        return first != second
    return abs(first - second) * 20 > first
