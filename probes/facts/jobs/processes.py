"""Processes that use GPUs or RDMA devices: program, CPU and memory use, limits, settings, libraries.

Sources: /proc (proc(5)) and, for user, CPU, memory and CPU affinity, Host.process_usage. Open device files
are read from /proc, because psutil lists only regular files. Only the owner and root can read a process's
open files, environment and maps; every user can read its command line, cgroup, limits and status. The
environment is the one that the process was started with, without variables that a program sets later
(os.environ in Python).
"""

from __future__ import annotations

import posixpath
import re
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache

from probes.base.frozen import frozen
from probes.base.grouping import grouped
from probes.base.text import join_limited, plural, printable
from probes.base.unknown import ABSENT, Maybe, Reason, Unknown, known, map_known
from probes.facts.jobs import process_files
from probes.facts.jobs.nccl_conf import NCCL_CONF, NcclConf, read_nccl_conf
from probes.facts.jobs.process_files import MappedLibrary
from probes.facts.system.limits import MemlockLimit, parse_limits
from probes.host.probe_thread import start_probe
from probes.host.protocol import Host
from probes.host.usage import ProcessUsage

MAX_PROCESSES = 256  # read completely
_MAX_SCANNED = 32768
_MAX_OPEN_FILES = 512  # per process; devices are opened early and have low numbers
_MAPS_LIMIT_BYTES = 16 << 20
_ENVIRONMENT_LIMIT_BYTES = 4 << 20  # ARG_MAX
_COMMAND_LIMIT_BYTES = 256 << 10  # of training scripts with hundreds of options
_PIDS_NAMED = 3
_PF_KTHREAD = 0x00200000  # include/linux/sched.h
_LONGEST_PATH = 1024
MEMORY_SECONDS = 1.0  # for what waits for the lock of a process's memory
_ALL_MEMORY_SECONDS = 2.0  # for all processes with such a lock that hangs
_LEAST_SECONDS = 0.05
_USAGE_SECONDS = 3.0  # a directory service that is down must not hold up the rest
_NOT_READ = Unknown(Reason.NOT_RECORDED)
_MOST_TITLED = 4  # ancestors: a launcher, and the core of an engine
_OVERWRITTEN = "the program has written its title over it"
_NO_JOB = Unknown(Reason.NOT_RECORDED, "", "not read, because other jobs do not count")


@frozen
class Process:
    """One process that has a GPU or an RDMA device open, or that NVML lists."""

    pid: int
    comm: Maybe[str]
    uid: Maybe[int]  # effective
    state: Maybe[str]  # "R", "S", "D", "Z", …
    gpu_files: Maybe[tuple[str, ...]]  # "/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"
    uverbs_files: Maybe[tuple[str, ...]]  # "/dev/infiniband/uverbs0"
    memlock: Maybe[MemlockLimit]
    ipc_lock: Maybe[bool]  # CAP_IPC_LOCK is effective: no memlock limit applies
    environment: Maybe[dict[str, str]]  # only variables of FAMILIES and SINGLES
    libraries: Maybe[tuple[MappedLibrary, ...]]
    rdma_nodes: Maybe[tuple[str, ...]]  # /dev/infiniband as the process sees it; NOT_THERE: not passed in
    nccl_conf: Maybe[NcclConf]  # /etc/nccl.conf as the process sees it
    user_conf: Maybe[NcclConf] = _NOT_READ  # NCCL_CONF_FILE or ~/.nccl.conf as the process sees it
    user_conf_path: str = ""
    is_ours: bool = False  # a descendant of this gdrtop
    program: Maybe[str] = _NOT_READ  # "train.py": an interpreter's script or module, else the program
    user: Maybe[str] = _NOT_READ
    usage: Maybe[ProcessUsage] = _NOT_READ  # CPU, memory, CPU affinity
    stack: Maybe[float] = _NOT_READ  # the soft limit of the stack in bytes; math.inf: unlimited
    environment_pid: int = 0  # of an ancestor, if a title stands where its own environment was
    # What its command line, or an ancestor's where it has a title, says about KV caches: see process_files.
    serving_options: Mapping[str, str] = field(default_factory=dict)
    job: str = ""  # "Slurm job 4711", "pod 1b2c3d4e", "container 3f4e5d6c7b8a"; "": none known


@frozen
class ProcessFacts:
    """The processes by pid, and how many could not be read."""

    processes: tuple[Process, ...]
    hidden: Maybe[int]  # programs of other users whose open files only root may read; unknown with hidepid
    left_out: int  # users of these devices beyond MAX_PROCESSES
    nccl_conf: Maybe[NcclConf]  # the node's own /etc/nccl.conf
    taken_at: float = 0.0  # seconds since 1970, the host's clock
    unread: Unknown | None = None  # of a program that not even root could read
    new_jobs_nccl: tuple[int, ...] = ()  # the version that jobs which start next will use, if it was stated
    has_jobs: bool = True  # False: judged as if none of the processes were a job

    def variables(self, names: Collection[str]) -> frozenset[tuple[str, str]]:
        """Return these variables with their values, as any process or the node's nccl.conf sets them."""
        confs = (
            self.nccl_conf,
            *(conf for each in self.processes for conf in (each.nccl_conf, each.user_conf)),
        )
        values = [conf.values for conf in confs if not isinstance(conf, Unknown)]
        values += [known(process.environment, {}) for process in self.processes]
        return frozenset((name, found[name]) for found in values for name in names if name in found)

    @property
    def not_read(self) -> str:
        """How many programs of other users could not be read, and why; "": none."""
        if isinstance(self.hidden, Unknown):
            return f"other processes are unknown: {self.hidden}"
        if not self.hidden:
            return ""
        why = "needs root" if self.unread is None else self.unread.detail or self.unread.reason.value
        return f"{plural(self.hidden, 'other process', 'other processes')} could not be read ({why})"


_GPU_FILE = re.compile(r"/dev/nvidia(?:\d{1,4}|ctl|-uvm)")
_UVERBS_FILE = re.compile(r"/dev/infiniband/uverbs\d{1,4}")
_TITLE = re.compile(rb"[A-Za-z]{1,32}::")  # setproctitle(3) of vLLM and SGLang: "VLLM::Worker_TP0"
_MOST_STARTERS = 3  # a worker, its engine and the server
_MAX_ANCESTORS = 16  # a benchmark process is below its supervisor, which gdrtop has started
_PC_VERSION = re.compile(r"^Version: ?([0-9][0-9.]{0,30})", re.M)
_PC_LIMIT_BYTES = 4096
# Library -> its directory in a Python package, and the package's metadata beside it.
_WHEEL_VERSION = r"-(?P<version>[0-9][0-9a-z.]{0,30})\.dist-info"
_WHEELS = {
    "libnccl": ("/nvidia/nccl/lib/", re.compile(rf"nvidia_nccl_cu\d{{1,3}}{_WHEEL_VERSION}")),
    # nvidia/cuda_runtime/lib/ up to CUDA 12, nvidia/cu13/lib/ from 13 on.
    "libcudart": ("/nvidia/cu", re.compile(rf"nvidia_cuda_runtime(?:_cu\d{{1,3}})?{_WHEEL_VERSION}")),
    "mooncake/engine": (
        "/mooncake/",
        re.compile(rf"mooncake_transfer_engine(?:_\w{{1,20}})?{_WHEEL_VERSION}"),
    ),
    "libplugin_UCX": ("/.nixl_cu", re.compile(rf"nixl_cu\d{{1,3}}{_WHEEL_VERSION}")),
}


def probe(host: Host, also: Iterable[int] = (), with_jobs: bool = True) -> Maybe[ProcessFacts]:
    """Read the open files of every process, and everything else of those with a GPU or RDMA device.

    `also`: pids to read in any case, such as those that NVML lists. Without jobs, nothing is read that only
    matters for one: settings, libraries, and what is in its memory. NOT_THERE: no /proc.
    """
    names = host.names("/proc")
    if isinstance(names, Unknown):
        return names
    pids = sorted(int(name) for name in names if re.fullmatch(r"[1-9][0-9]{0,9}", name))
    # gdrtop itself has the same files open for NVML and the verbs probe, but it is no job.
    own = known(host.link("/proc/self"), "")
    wanted = set(also)
    scanned = sorted({*pids[:_MAX_SCANNED], *wanted.intersection(pids)})
    found: list[tuple[int, Maybe[tuple[str, ...]]]] = []
    hidden = 0
    unread: Unknown | None = None
    for pid in scanned:
        if str(pid) == own:
            continue
        files = _device_files(host, pid)
        if isinstance(files, Unknown):
            if files.reason is Reason.NOT_THERE:  # the process has ended
                continue
            hidden += _is_program(host, pid)
            if files.reason is not Reason.NEEDS_ROOT:
                unread = files
            if pid in wanted:
                found.append((pid, files))
        elif files or pid in wanted:
            found.append((pid, files))
    found_pids = [pid for pid, _ in found[:MAX_PROCESSES]]
    usages = _usages(host, found_pids) if found else {}
    patience = _Patience()
    read = [
        _process(host, pid, files, own, usages[pid], patience if with_jobs else None)
        for pid, files in found[:MAX_PROCESSES]
    ]
    return ProcessFacts(
        processes=tuple(process for process in read if not _has_ended(host, process)),
        hidden=hidden if 1 in pids else _without_first(host),
        left_out=max(0, len(found) - MAX_PROCESSES),
        nccl_conf=read_nccl_conf(host),
        taken_at=host.wall_clock(),
        unread=unread,
        has_jobs=with_jobs,
    )


def _has_ended(host: Host, process: Process) -> bool:
    """Return whether a process has ended while it was read: half of it would make checks of jobs unknown."""
    for fact in (process.environment, process.libraries):
        if isinstance(fact, Unknown) and fact.reason is Reason.NOT_THERE:
            status = host.read(f"/proc/{process.pid}/status")
            return isinstance(status, Unknown) and status.reason is Reason.NOT_THERE
    return False


def read_process(host: Host, pid: int) -> Maybe[Process]:
    """Read one process, without its usage; NOT_THERE: it has ended or is not visible."""
    status = host.read(f"/proc/{pid}/status")
    if isinstance(status, Unknown):
        return status
    own = known(host.link("/proc/self"), "")
    return _process(host, pid, _device_files(host, pid), own, _NOT_READ, _Patience())


def busy_cpus(processes: Iterable[Process], taken_at: float) -> float | None:
    """Return the CPUs that processes have kept busy on average since they started; None: unknown."""
    total = 0.0
    for process in processes:
        usage = process.usage
        if isinstance(usage, Unknown) or isinstance(usage.cpu_seconds, Unknown):
            return None
        if isinstance(usage.started_at, Unknown) or usage.started_at >= taken_at:
            return None
        total += usage.cpu_seconds / (taken_at - usage.started_at)
    return total


def name_of(process: Process) -> str:
    """Return the process as shown to an admin: "train.py (alice, Slurm job 4711, pid 43001)"."""
    return _named((process,))


def names_of(processes: Iterable[Process]) -> str:
    """Return processes, grouped by program, user and job: "train.py (alice, pids 41, 42)"."""
    return join_limited(map(_named, groups_of(processes)), _PIDS_NAMED, "programs")


def groups_of(processes: Iterable[Process]) -> list[list[Process]]:
    """Return processes grouped by program, user and job."""
    groups = grouped(((program_of(process), user_of(process), process.job), process) for process in processes)
    return list(groups.values())


def job_name(process: Process, *more: str) -> str:
    """Return the job that a process belongs to, as shown to an admin: "train.py (alice, Slurm job 4711)"."""
    about = ", ".join(part for part in (user_of(process), process.job, *more) if part)
    return f"{program_of(process)} ({about})" if about else program_of(process)


def _named(group: Sequence[Process]) -> str:
    pids = join_limited((str(process.pid) for process in group), _PIDS_NAMED)
    return job_name(group[0], f"pid{'s' * (len(group) > 1)} {pids}")


def program_of(process: Process) -> str:
    """Return the program's name, "train.py"; "process" if it is unknown."""
    return known(process.program, "") or known(process.comm, "") or "process"


def user_of(process: Process) -> str:
    """Return the user's name, else the uid: "uid 1000"; "" if both are unknown."""
    if not isinstance(process.user, Unknown):
        return process.user
    return "" if isinstance(process.uid, Unknown) else f"uid {process.uid}"


def _without_first(host: Host) -> Unknown:
    """Return why process 1, and possibly others, are missing: /proc is mounted with hidepid."""
    if host.origin.is_running and not host.is_root():
        return Unknown(Reason.NEEDS_ROOT, "/proc", "hidepid hides the processes of other users")
    return Unknown(Reason.NOT_RECORDED, "/proc", "process 1 is missing, so others may be missing too")


def _is_program(host: Host, pid: int) -> bool:
    """Return whether this is a program and no thread of the kernel: those have no command line.

    Reading one waits for the lock of the process's memory, which reading its flags does not.
    """
    stat = host.read(f"/proc/{pid}/stat")
    fields = [] if isinstance(stat, Unknown) else stat.rpartition(")")[2].split()[:7]
    if len(fields) == 7 and fields[6].isdecimal():
        return fields[0] not in "ZX" and not int(fields[6]) & _PF_KTHREAD
    cmdline = host.read_bytes(f"/proc/{pid}/cmdline", 4096)
    return bool(cmdline) if not isinstance(cmdline, Unknown) else cmdline.reason is not Reason.NOT_THERE


# Hundreds of ranks have hundreds of the same files open.
_is_gpu_file = lru_cache(1024)(_GPU_FILE.fullmatch)
_is_uverbs_file = lru_cache(1024)(_UVERBS_FILE.fullmatch)


def _device_files(host: Host, pid: int) -> Maybe[tuple[str, ...]]:
    """Return the GPU and RDMA device files that a process has open, each once."""
    directory = f"/proc/{pid}/fd"
    names = host.names(directory)
    if names == ():  # the first thread has ended, if not the process: ask another one
        threads = [task for task in known(host.names(f"/proc/{pid}/task"), ()) if task != str(pid)]
        if threads:
            directory = f"/proc/{pid}/task/{threads[-1]}/fd"
            names = host.names(directory)
    if isinstance(names, Unknown):
        return names
    found: dict[str, None] = {}
    for number in sorted((name for name in names if name.isdecimal()), key=len)[:_MAX_OPEN_FILES]:
        target = host.link(f"{directory}/{number}")
        if isinstance(target, Unknown):
            # Recordings leave out links to other files (_is_other_file of their redaction).
            if target.reason not in ABSENT:
                return target
        elif target.startswith("/dev/") and (_is_gpu_file(target) or _is_uverbs_file(target)):
            found[sys.intern(target)] = None  # hundreds of ranks have the same NICs open
    return tuple(sorted(found))


def _usages(host: Host, pids: Sequence[int]) -> Mapping[int, Maybe[ProcessUsage]]:
    """Read CPU and memory use in a thread: looking up a user hangs if the directory service is down."""
    answers = start_probe(host, "process usage", lambda: host.process_usage(pids)).answer(_USAGE_SECONDS)
    if isinstance(answers, Unknown):
        return dict.fromkeys(pids, answers)
    missing = Unknown(Reason.TIMED_OUT, "process usage", "the previous check is still running")
    return {pid: answers.get(pid, missing) for pid in pids}


class _Patience:
    """How long to wait for the memory of processes: for one that hangs a second, for many of them two."""

    def __init__(self) -> None:
        self._left = _ALL_MEMORY_SECONDS

    def read(self, host: Host, pid: int) -> tuple[Maybe[bytes], Maybe[bytes], Maybe[bytes]]:
        """Return environment, mapped files and command line, in a thread.

        The kernel reads them under the lock of the process's memory, which a page fault that hangs holds.
        While the thread waits, `start_probe` returns it again at once, and the kernel does not reuse the pid.
        """
        began = time.monotonic()
        seconds = max(_LEAST_SECONDS, min(MEMORY_SECONDS, self._left))
        found = start_probe(host, f"memory of process {pid}", lambda: _memory(host, pid)).answer(seconds)
        if not isinstance(found, Unknown):
            return found
        self._left -= time.monotonic() - began
        return found, found, found


def _memory(host: Host, pid: int) -> tuple[Maybe[bytes], Maybe[bytes], Maybe[bytes]]:
    base = f"/proc/{pid}"
    environ = host.read_bytes(f"{base}/environ", _ENVIRONMENT_LIMIT_BYTES)
    maps = host.read_bytes(f"{base}/maps", _MAPS_LIMIT_BYTES)
    return environ, maps, host.read_bytes(f"{base}/cmdline", _COMMAND_LIMIT_BYTES)


def _inherited(host: Host, pid: int, parent: Maybe[int], patience: _Patience) -> tuple[Maybe[bytes], int]:
    """Return the environment of the nearest ancestor that has not overwritten its own, and its pid."""
    overwritten = Unknown(Reason.NOT_RECORDED, f"/proc/{pid}/environ", _OVERWRITTEN)
    for _ in range(_MOST_TITLED):
        if isinstance(parent, Unknown) or parent <= 1:
            break
        environ = patience.read(host, parent)[0]
        if isinstance(environ, Unknown):
            break
        if not process_files.is_overwritten(environ):
            return environ, parent
        status = map_known(host.read(f"/proc/{parent}/status"), process_files.parse_status)
        parent = map_known(status, lambda found: found.parent)
    return overwritten, pid


def read_environ(host: Host, pid: int) -> Maybe[bytes]:
    """Return the environment that a process was started with; TIMED_OUT: the lock of its memory hangs."""
    return _Patience().read(host, pid)[0]


def _process(
    host: Host,
    pid: int,
    files: Maybe[tuple[str, ...]],
    own: str,
    usage: Maybe[ProcessUsage],
    patience: _Patience | None,
) -> Process:
    """Read a process; without `patience` only what does not depend on its being a job."""
    base = f"/proc/{pid}"
    memory: tuple[Maybe[bytes], Maybe[bytes], Maybe[bytes]] = (_NO_JOB, _NO_JOB, _NO_JOB)
    environ, maps, cmdline = memory if patience is None else patience.read(host, pid)
    fields = map_known(host.read(f"{base}/status"), process_files.parse_status)
    environment_pid = pid
    if patience is not None and process_files.is_overwritten(known(environ, b"")):
        parent = map_known(fields, lambda found: found.parent)
        environ, environment_pid = _inherited(host, pid, parent, patience)
    limits = host.read(f"{base}/limits")
    stack = map_known(limits, lambda text: parse_limits(text, "Max stack size"))
    environment = map_known(environ, process_files.parse_environment)
    mapped = map_known(maps, process_files.parse_maps)
    cgroup = known(host.read(f"{base}/cgroup"), "")
    nodes = host.names(f"{base}/root/dev/infiniband")
    conf_path = "" if isinstance(environ, Unknown) else user_conf_path(pid, environ, known(environment, {}))
    no_home = Unknown(Reason.NOT_THERE, "~/.nccl.conf", "the process has no HOME")
    no_conf = environ if isinstance(environ, Unknown) else no_home
    return Process(
        pid=pid,
        comm=map_known(host.read(f"{base}/comm", 4096), lambda comm: printable(comm, 32)),
        uid=map_known(fields, lambda found: found.uid),
        state=map_known(fields, lambda found: found.state),
        gpu_files=map_known(files, lambda found: tuple(filter(_is_gpu_file, found))),
        uverbs_files=map_known(files, lambda found: tuple(filter(_is_uverbs_file, found))),
        memlock=map_known(limits, parse_limits),
        ipc_lock=map_known(fields, lambda found: found.ipc_lock),
        environment=environment,
        environment_pid=environment_pid,
        libraries=map_known(mapped, lambda found: tuple(_with_version(host, pid, each) for each in found)),
        rdma_nodes=map_known(
            nodes, lambda names: tuple(sys.intern(printable(name, 64)) for name in names[:256])
        ),
        nccl_conf=_NO_JOB if patience is None else read_nccl_conf(host, f"{base}/root{NCCL_CONF}"),
        user_conf=read_nccl_conf(host, conf_path) if conf_path else no_conf,
        user_conf_path=printable(conf_path, 256),
        is_ours=not isinstance(fields, Unknown) and _is_below(host, fields.parent, own),
        program=map_known(cmdline, process_files.parse_program),
        user=map_known(usage, lambda found: found.user),
        usage=usage,
        stack=map_known(stack, lambda limit: limit.soft_bytes),
        serving_options=_serving_options(host, known(cmdline, b""), known(fields, None)),
        job=process_files.parse_job(cgroup, known(environment, {}).get("SLURM_JOB_ID", "")),
    )


def _serving_options(host: Host, cmdline: bytes, status: process_files.Status | None) -> dict[str, str]:
    """Return the options of a process; the workers of vLLM and SGLang have a title instead of their words."""
    options = process_files.parse_serving_options(cmdline)
    is_title = _TITLE.match(cmdline) is not None
    for _ in range(_MOST_STARTERS if is_title and not options else 0):
        if status is None or isinstance(status.parent, Unknown) or status.parent <= 1:
            break
        base = f"/proc/{status.parent}"
        words = host.read_bytes(f"{base}/cmdline", _COMMAND_LIMIT_BYTES)
        if options := process_files.parse_serving_options(known(words, b"")):
            break
        status = known(map_known(host.read(f"{base}/status"), process_files.parse_status), None)
    return options


def _is_below(host: Host, parent: Maybe[int], own: str) -> bool:
    """Return whether process `own` is the parent or a further ancestor."""
    for _ in range(_MAX_ANCESTORS):
        if isinstance(parent, Unknown) or parent <= 1:
            return False
        if str(parent) == own:
            return True
        status = host.read(f"/proc/{parent}/status")
        parent = status if isinstance(status, Unknown) else process_files.parse_status(status).parent
    return False


def user_conf_path(pid: int, environ: bytes, environment: Mapping[str, str]) -> str:
    """Return where a process has its user's nccl.conf; "": it has no home directory.

    NCCL takes the home directory from the user database, which a process's HOME nearly always repeats.
    """
    named = environment.get("NCCL_CONF_FILE", "")
    home = next((line[5:] for line in environ.split(b"\0") if line.startswith(b"HOME=/")), b"")
    path = named or (f"{home.decode('utf-8', 'replace')}/.nccl.conf" if home else "")
    if not path or not path.isprintable() or len(path) > _LONGEST_PATH:
        return ""
    inside = posixpath.normpath(path)
    return f"/proc/{pid}/root{inside}" if inside.startswith("/") else f"/proc/{pid}/cwd/{inside}"


def _with_version(host: Host, pid: int, library: MappedLibrary) -> MappedLibrary:
    """Add an unknown version of a library in a Python package (…/site-packages/nvidia/nccl/lib/).

    That of UCX is in the file for pkg-config that it installs beside its library.
    """
    if not isinstance(library.version, Unknown):
        return library
    if library.name == "libucp":
        path = f"/proc/{pid}/root{posixpath.dirname(library.path)}/pkgconfig/ucx.pc"
        found = _PC_VERSION.search(known(host.read(path, _PC_LIMIT_BYTES), ""))
        return library if found is None else MappedLibrary(library.name, library.path, found[1])
    directory, wheel = _WHEELS.get(library.name, ("", None))
    site, inside, _ = library.path.partition(directory) if directory else ("", "", "")
    if wheel is None or not inside:
        return library
    for name in known(host.names(f"/proc/{pid}/root{site}"), ()):
        match = wheel.fullmatch(name)
        if match:
            return MappedLibrary(library.name, library.path, match["version"])
    return library
