"""Where the NCCL jobs on a node write their logs, and the beginning and the end of these logs.

Sources: /proc/PID/fd/1 and 2, environment and nccl.conf of the processes, `scontrol show job`. NCCL expands
%h to the host name up to its first dot and %p to the pid as the process sees it (src/debug.cc).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import ABSENT, Maybe, Reason, Unknown, known, map_known
from probes.facts.jobs.processes import Process
from probes.host.protocol import FileRange, Host, of_user
from probes.live.model.sample import GDR_WORDS, WITHOUT_GDR, LiveJob, LiveProcess, LiveSample, Role
from probes.live.processes.jobs import COMMAND_SECONDS, SLURM_JOB
from probes.nccl.log.facts import JobLogReading, RankPath

if TYPE_CHECKING:  # imported on first use: most nodes that are checked have no job
    from probes.nccl.log.collect import Collector


NEXT_RUN = (
    ("NCCL_DEBUG=INFO", "NCCL reports version, networks, channels and errors."),
    ("NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH,ENV", "Only the parts that show the path of each channel, and why."),
    ("NCCL_DEBUG_FILE=/tmp/nccl.%h.%p.log", "One file per process (%h: host, %p: pid), so lines do not mix."),
)
"""What to set for the next run, and why."""
_MOST_PROCESSES = 64  # of a job
_MOST_JOBS = 32
_MOST_SEARCHED, _MOST_OPEN = 8, 1024  # processes, files of each
NO_LOG_FILES = ("/dev/", "/proc/", "/sys/")  # /dev/stdout is what the process has as fd 1


@frozen
class LogPath:
    """A file of a log."""

    path: str  # to read it by: "/proc/41003/fd/1"
    shown: str  # "/home/alice/slurm-4711.out"
    size_bytes: int
    user: Maybe[int] | None = None  # whose file it has to be, if not root's; None: the admin has named it

    def part(self, host: Host, offset: int, limit: int) -> Maybe[FileRange]:
        """Return a part of the file as long as it belongs to that user."""
        return of_user(host.read_range(self.path, offset, limit), self.user, self.shown)


@frozen
class JobLog:
    """The files that the processes of a job write to in one way."""

    job: str  # id of the LiveJob; "": a file that the user named
    name: str  # of the job
    source: str  # "stdout", "NCCL_DEBUG_FILE", "Slurm output file"
    files: tuple[LogPath, ...]

    @property
    def key(self) -> str:
        """What tells it from other logs."""
        return f"{self.job} {self.source} {self.files[0].path if not self.job else ''}"

    @property
    def paths(self) -> tuple[str, ...]:
        """What to read."""
        return tuple(file.path for file in self.files)

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(file.size_bytes for file in self.files)


@frozen
class FoundLogs:
    """The logs of all jobs, and why others were not found, one sentence each."""

    logs: tuple[JobLog, ...] = ()
    missing: tuple[str, ...] = ()
    jobs: Maybe[int] = 0  # that use NCCL
    need_root: frozenset[str] = frozenset()  # ids of jobs with a log that only root may see


def find_logs(host: Host, sample: LiveSample | None) -> FoundLogs:
    """Find the logs of the jobs in a sample that use NCCL; nothing is opened."""
    if sample is None:
        return FoundLogs()
    if isinstance(sample.processes, Unknown):
        return FoundLogs(jobs=sample.processes)
    return find_logs_of(host, sample.processes, [job for job in sample.jobs if job.role is Role.NCCL])


def find_logs_of(
    host: Host, members: Iterable[LiveProcess], jobs: Sequence[LiveJob], with_scheduler: bool = True
) -> FoundLogs:
    """Find the logs of these jobs; `with_scheduler`: also ask Slurm, which can take seconds."""
    processes = {process.pid: process for process in members}
    logs: list[JobLog] = []
    missing: list[str] = []
    need_root: set[str] = set()
    for job in jobs[:_MOST_JOBS]:
        search = _Search(host, job, [processes[pid] for pid in job.pids if pid in processes])
        search.find(with_scheduler)
        logs.extend(search.logs)
        missing.extend(search.sentences())
        if search.needs_root:
            need_root.add(job.id)
    return FoundLogs(tuple(logs), tuple(missing), len(jobs), frozenset(need_root))


def writers_of(host: Host, processes: Iterable[LiveProcess]) -> dict[int, frozenset[str]]:
    """Return the pids that NCCL's lines of these processes begin with, and the host names that go with each.

    A container has pids and mostly a host name of its own. No host name: none could be read.
    """
    writers: dict[int, frozenset[str]] = {}
    for process in processes:
        hosts = frozenset(name for name in _host_names(host, process.pid) if name)
        pid = own_pid(host, process.pid)
        writers[pid] = writers.get(pid, frozenset()) | hosts
    return writers


class _Search:
    def __init__(self, host: Host, job: LiveJob, processes: Iterable[LiveProcess]) -> None:
        self._host, self._job = host, job
        self._processes = tuple(processes)[:_MOST_PROCESSES]
        self._seen: set[str] = set()  # files by identity
        self._missing: dict[str, str] = {}  # what -> why
        self.logs: list[JobLog] = []
        self.needs_root = False

    def find(self, with_scheduler: bool) -> None:
        """Find all, the most telling first."""
        self._add("NCCL_DEBUG_FILE", self._debug_files())
        if _level(self._processes) in ("", None):  # the program may have set NCCL's variables itself
            self._add("open file", self._open_files())
        self._add("stdout", self._streams("stdout", 1))
        self._add("stderr", self._streams("stderr", 2))
        if with_scheduler:
            self._add("Slurm output file", self._slurm_file())

    def sentences(self) -> list[str]:
        words = [f"{what} {why}" for what, why in self._missing.items()]
        found = [f"{self._job.name}: {'; '.join(words)}."] if words else []
        level = _level(self._processes)
        if level is not None and level.upper() not in ("INFO", "TRACE"):
            is_set = f"NCCL_DEBUG is {level}" if level else "NCCL_DEBUG is not set"
            found.append(f"{self._job.name}: {is_set}, so NCCL may not report its channels.")
        return found

    def _add(self, source: str, files: Iterable[LogPath]) -> None:
        if kept := tuple(files):
            self.logs.append(JobLog(self._job.id, self._job.name, source, kept))

    def _file(self, path: str, shown: str, what: str, process: LiveProcess) -> LogPath | None:
        """Return a file of a process that was not seen before, or note why there is none."""
        user = process.process.uid
        found = LogPath(path, shown, 0, user).part(self._host, 0, 0)
        if isinstance(found, Unknown):
            self._note(what, found)
            return None
        if found.file in self._seen:
            return None
        self._seen.add(found.file)
        if shown.startswith("/") and not shown.startswith(NO_LOG_FILES):
            by_name = self._host.read_range(shown, 0, 0)  # stays readable when the process has ended
            if not isinstance(by_name, Unknown) and by_name.file == found.file:
                path = shown
        return LogPath(path, printable(shown, 1024), found.size_bytes, user)

    def _note(self, what: str, why: Unknown) -> None:
        self.needs_root |= why.reason is Reason.NEEDS_ROOT
        self._missing.setdefault(what, _phrase(why))

    def _streams(self, name: str, number: int) -> Iterable[LogPath]:
        for process in self._processes:
            path = f"/proc/{process.pid}/fd/{number}"
            target = self._host.link(path)
            if isinstance(target, Unknown):
                self._note(name, target)
                continue
            if (file := self._file(path, target, name, process)) is not None:
                yield file

    def _debug_files(self) -> Iterable[LogPath]:
        for process in self._processes:
            pattern = setting(process.process, "NCCL_DEBUG_FILE")
            if isinstance(pattern, Unknown):
                if pattern.reason is not Reason.NOT_THERE:
                    self._note("NCCL_DEBUG_FILE", pattern)
                continue
            if not pattern or pattern.startswith(NO_LOG_FILES):
                continue
            directory = "root" if pattern.startswith("/") else "cwd/"
            names = _expanded(self._host, process.pid, pattern)
            for name in names:
                path = f"/proc/{process.pid}/{directory}{name}"
                if name != names[-1] and isinstance(self._host.read_range(path, 0, 0), Unknown):
                    continue
                file = self._file(path, name, f"NCCL_DEBUG_FILE {printable(name, 200)}", process)
                if file is not None:
                    yield file
                break

    def _open_files(self) -> Iterable[LogPath]:
        """Return the files with "nccl" in their names that the first processes have open.

        A program that sets NCCL_DEBUG_FILE itself does not show it in /proc/PID/environ.
        """
        for process in self._processes[:_MOST_SEARCHED]:
            directory = f"/proc/{process.pid}/fd"
            for number in known(self._host.names(directory), ())[:_MOST_OPEN]:
                if number in ("0", "1", "2"):  # stdout and stderr are logs of their own
                    continue
                target = known(self._host.link(f"{directory}/{number}"), "")
                is_path = target.startswith("/") and not target.startswith(NO_LOG_FILES)
                if not is_path or "nccl" not in target.rpartition("/")[2].lower():
                    continue
                file = self._file(f"{directory}/{number}", target, "open file", process)
                if file is not None:
                    yield file

    def _slurm_file(self) -> Iterable[LogPath]:
        names = {process.process.job for process in self._processes}
        match = SLURM_JOB.fullmatch(names.pop()) if len(names) == 1 else None
        if match is None:
            return
        output = self._host.run(("scontrol", "--oneliner", "show", "job", match[1]), COMMAND_SECONDS)
        path = "" if isinstance(output, Unknown) else parse_output_file(output.stdout)
        if path.startswith("/") and not path.startswith(NO_LOG_FILES):
            file = self._file(path, path, f"Slurm output file {printable(path, 200)}", self._processes[0])
            if file is not None:
                yield file


def setting(process: Process, name: str) -> Maybe[str]:
    """Return a variable as NCCL reads it: from the environment, the user's nccl.conf or /etc/nccl.conf."""
    user = map_known(process.user_conf, lambda conf: conf.values)
    user = {} if isinstance(user, Unknown) and user.reason in ABSENT else user
    of_node = map_known(process.nccl_conf, lambda conf: conf.values)
    for values in (process.environment, user, of_node):
        if isinstance(values, Unknown):
            return values
        if name in values:
            return values[name]
    return Unknown(Reason.NOT_THERE, name)


def _level(processes: Iterable[LiveProcess]) -> str | None:
    """Return NCCL_DEBUG of the first process whose settings can be read; "": not set."""
    for process in processes:
        level = setting(process.process, "NCCL_DEBUG")
        if not isinstance(level, Unknown):
            return level.strip()
        if level.reason is Reason.NOT_THERE:
            return ""
    return None


def _phrase(why: Unknown) -> str:
    """Return why a file cannot be read, to stand after its name."""
    if why.reason is Reason.MALFORMED and why.detail.endswith(", not a file"):
        return f"is {why.detail.removesuffix(', not a file')}"
    if why.reason is Reason.OTHER_OWNER:
        return why.detail
    return "does not exist" if why.reason is Reason.NOT_THERE else f"unknown ({why})"


def _expanded(host: Host, pid: int, pattern: str) -> list[str]:
    """Return the file names that a pattern can mean: a container may have its own host name."""
    hosts = _host_names(host, pid) if "%h" in pattern else [""]
    inner = str(own_pid(host, pid)) if "%p" in pattern else ""
    names: dict[str, None] = {}
    for name in hosts:
        if name or len(hosts) == 1:
            values = {"%%": "%", "%h": name, "%p": inner}
            names["".join(values.get(part, part) for part in re.split("(%[%hp])", pattern))] = None
    return list(names)


def _host_names(host: Host, pid: int) -> list[str]:
    """Return the host name in the process's container, and that of the node."""
    found = host.read_range(f"/proc/{pid}/root/etc/hostname", 0, 4096)  # a container may have anything there
    inner = "" if isinstance(found, Unknown) else found.content.decode("utf-8", "replace")
    names = inner, known(host.read("/proc/sys/kernel/hostname", 4096), "")
    return [name.strip().partition("\n")[0].partition(".")[0] for name in names]


def own_pid(host: Host, pid: int) -> int:
    """Return the pid in the process's own namespace, the last one of NSpid in /proc/PID/status."""
    status = known(host.read(f"/proc/{pid}/status"), "")
    match = re.search(r"^NSpid:[ \t0-9]*[ \t]([0-9]{1,10})$", status, re.M)
    return int(match[1]) if match else pid


def parse_output_file(text: str) -> str:
    """Return StdOut of a job from `scontrol --oneliner show job`; "" if there is none."""
    match = re.search(r" StdOut=(/.{1,1024}?)(?: [A-Z][A-Za-z]{1,30}=|[ \t]*$)", text, re.M)
    return match[1] if match else ""


# Read the beginning and the end of the NCCL logs of running jobs, in bounded time and memory.
#
# NCCL reports version, networks and channels when a communicator connects, and errors at the end. A file can
# have lines of earlier runs and of other nodes, so only lines that begin with host name and pid of a process
# that runs here count.

BEGIN_BYTES = 4 << 20  # of a file
END_BYTES = 1 << 20
JOB_BYTES = 16 << 20  # of all files of a job
JOB_SECONDS = 1.0
ALL_SECONDS = 2.0
_PIECE_BYTES = 1 << 18
_FED_BYTES = 1 << 16  # between two looks at the clock
_MOST_READERS = 256  # of a job, whose lines are looked for


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
        collector = Collector(writers_of(host, members[:_MOST_READERS]))
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
