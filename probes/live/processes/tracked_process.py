"""One process between samples: its role, rank and path, and how it was shown last."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from probes.base.latest import Latest
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.jobs.process_files import RANKS, WORLD_SIZES, has_initialized_nvshmem
from probes.facts.jobs.processes import Process, program_of, read_process
from probes.host.probe_thread import start_probe
from probes.host.protocol import Host
from probes.host.usage import ProcessUsage, Stat
from probes.live.model.sample import LiveProcess, NicUse, PathJudgment, Role
from probes.live.model.transfer import Serving, ServingRole, TransferPath, TransferWord
from probes.live.processes.fall_backs import Situation
from probes.live.processes.gdr_path import (
    NodeEvidence,
    ProcessEvidence,
    has_verbs_thread,
    judge,
    judge_memory,
)
from probes.live.processes.moved_bytes import ENGINE_PORTS, Engine, Moved
from probes.live.processes.node_evidence import is_far
from probes.live.processes.ownership import RdmaUse, with_used_pairs
from probes.live.processes.serving import SIDE_CHANNEL, api_port, engine_of, serving_of
from probes.live.processes.transfer_path import (
    Setting,
    judge_transfer,
    path_with,
    role_by_traffic,
    with_traffic,
)
from probes.queries.queue_pair_makers import may_post_by_gpu, own_queues

Key = tuple[int, int]  # pid and start time: the kernel uses pids again
KEPT_SECONDS = 10.0  # a path stays, at most this long, while the regions change in every reading
NO_USE = RdmaUse()
_NOT_SHOWN = Unknown(Reason.TIMED_OUT, "/proc/PID/environ", "not read yet")
_SHARED_RANK = Unknown(Reason.NOT_THERE, "/proc/PID/environ", "several processes have the same rank")


class Answers(NamedTuple):
    """What the sources answered about a process in one sample."""

    process: Process
    threads: Maybe[tuple[str, ...]]
    use: Maybe[RdmaUse]
    pinned: Maybe[int]
    is_settled: bool  # its regions did not change while they were read
    has_gpu: Maybe[bool]
    gpus: tuple[str, ...]  # BDFs, by NVML


class Membership(NamedTuple):
    """The job of a process."""

    job: str  # id of the LiveJob
    name: str  # "Slurm job 4711 (llama)"
    shares_rank: bool  # another process of the job has the same rank, which is then that of their parent


class WatchedEngine(NamedTuple):
    """What is known of an engine's transfers besides the process itself."""

    moved: Moved | None  # None: read once only
    nvlinks: Maybe[int]  # active NVLinks of its GPUs: those of the GPU with the fewest
    is_infiniband: bool  # ports of its NICs are InfiniBand, which count IPoIB, too


class TrackedProcess:
    """Its newest state and path.

    Most processes do the same in each sample. So each step is done again only if what it is made from has
    changed, and a process that did not change is the same object: detectors and drawings rely on that.
    """

    def __init__(self, pid: int, first_seen: float, stat: Stat | None, read_at: float) -> None:
        self.pid = pid
        self.first_seen = first_seen
        self.stat = stat
        self.is_new = True
        self.rank: Maybe[int] = _NOT_SHOWN
        self._world_size: Maybe[int] = _NOT_SHOWN
        self._cpu = (read_at, stat.cpu_seconds) if stat else None
        self._cpu_percent: Maybe[float] = Unknown(Reason.NOT_RECORDED, f"/proc/{pid}/stat", "one sample only")
        self._facts: Process | None = None
        self._process: Process | None = None  # the facts with the usage
        self._evidence: Latest[ProcessEvidence] = Latest()
        self._judged: Latest[PathJudgment] = Latest()
        self._path: PathJudgment | None = None  # judged when the regions were settled
        self._settled_at = 0.0
        self._named: Latest[Process] = Latest()  # with the name of its job
        self._serving: Latest[tuple[Serving | None]] = Latest()
        self._memory: Latest[PathJudgment] = Latest()
        self._decided: Latest[PathJudgment] = Latest()
        self._transfer: Latest[TransferPath] = Latest(keeps_equal=True)
        self._last_transfer: TransferPath | None = None  # when bytes last moved
        self._nics: Latest[tuple[NicUse, ...]] = Latest()
        self._serving_shown: Latest[Serving] = Latest()
        self._shown_role: ServingRole | None = None  # by the direction of its traffic
        self._judged_moved: Moved | None = None
        self._readings = 0  # that showed the word of that transfer
        self._carried: PathJudgment | None = None  # the path of that transfer
        self._live: Latest[LiveProcess] = Latest(keeps_equal=True)

    @property
    def key(self) -> Key:
        """The pid and the start time."""
        return self.pid, self.stat.started if self.stat else 0

    @property
    def parent(self) -> int:
        """The parent's pid; 0 if it is unknown."""
        return self.stat.parent if self.stat else 0

    def update(self, stat: Stat, read_at: float) -> None:
        """Take a new reading of /proc/PID/stat; the share of a CPU is in whole percent, to change rarely."""
        self.is_new = False
        self.stat = stat
        if self._cpu is None or read_at < self._cpu[0]:
            self._cpu = read_at, stat.cpu_seconds
        elif read_at - self._cpu[0] >= 0.5:
            share = (stat.cpu_seconds - self._cpu[1]) / (read_at - self._cpu[0])
            self._cpu_percent = float(round(100 * max(0.0, share)))
            self._cpu = read_at, stat.cpu_seconds

    def with_usage(self, facts: Process, usage: Maybe[ProcessUsage]) -> Process:
        """Return the process with its usage, the previous object while that hardly changed."""
        before = self._process
        if before is not None and facts is self._facts:
            if isinstance(usage, Unknown) or not _differs(before.usage, usage):
                return before
        else:
            self._facts = facts
            self.rank = rank_of(facts)
            self._world_size = _number(facts, WORLD_SIZES, "no variable gives the number of ranks")
        user = facts.user if isinstance(usage, Unknown) else usage.user
        self._process = replace(facts, usage=usage, user=user)
        return self._process

    def engine(self, answers: Answers) -> Engine | None:
        """Return the process as an engine whose transfers are watched; None: it moves no KV caches."""
        process, has_rdma = answers.process, bool(known(answers.use, NO_USE).nics)
        (serving,) = self._serving.get(
            lambda: (serving_of(process, role_of(process, answers.threads, has_rdma)),),
            objects=(process, answers.threads),
            values=has_rdma,
        )
        if serving is None:
            return None
        if isinstance(serving.engine, Unknown) and serving.engine.reason is Reason.NOT_THERE:
            return None
        use = known(answers.use, NO_USE)
        port = known(process.environment, {}).get(SIDE_CHANNEL, "")
        ports = ENGINE_PORTS | ({int(port)} if re.fullmatch(r"[0-9]{1,5}", port) else set())
        group = self.parent if self.parent > 1 else self.pid
        return Engine(self.pid, process.uid, use.contexts, answers.gpus, group, api_port(process), ports)

    def live(
        self,
        answers: Answers,
        membership: Membership,
        node: NodeEvidence,
        now: float,
        watched: WatchedEngine | None = None,
    ) -> LiveProcess:
        """Return the process as the sample shows it, the same object as before if nothing changed.

        `engine` was asked before.
        """
        evidence = self._evidence.get(
            lambda: _evidence(self.pid, answers, node), values=(answers, node.numa_nodes)
        )
        path = self._path_now(evidence, node, now)
        serving, transfer = (self._serving.value or (None,))[0], None
        if watched is not None and watched.moved is not None:
            transfer = self._transfer_now(watched, answers.process, evidence, node)
            if serving is not None:
                serving = self._serving_role(serving, transfer, watched.moved)
            path = self._path_with(path, transfer, evidence.role)
        state = self.stat.state if self.stat else answers.process.state
        # The evidence is another object whenever the answers differ: they need no second comparison.
        return self._live.get(
            lambda: self._make(answers, membership, evidence, path, state, serving, transfer),
            objects=(evidence, path, serving, transfer),
            values=(membership, state, self._cpu_percent),
        )

    def _path_now(self, evidence: ProcessEvidence, node: NodeEvidence, now: float) -> PathJudgment:
        """Return the path; while regions come and go, they prove nothing, and the last path stays a while."""
        is_recent = 0 <= now - self._settled_at <= KEPT_SECONDS
        if not evidence.is_settled and self._path is not None and is_recent:
            return self._path
        path = self._judged.get(lambda: judge(evidence, node), objects=(evidence, node))
        if evidence.is_settled:
            self._path, self._settled_at = path, now
        return path

    def _transfer_now(
        self, watched: WatchedEngine, process: Process, evidence: ProcessEvidence, node: NodeEvidence
    ) -> TransferPath:
        """Return what moves its bytes, by the newest two readings."""
        moved = watched.moved
        assert moved is not None
        memory = self._memory.get(lambda: judge_memory(evidence, node), objects=(evidence, node))
        has_nccl = evidence.role is Role.NCCL
        engine = engine_of(process, evidence.role)
        situation = Situation(
            process=process,
            is_ucx=engine is not None and engine.is_ucx,
            has_nics=bool(node.drivers),
            nvlinks=watched.nvlinks,
            has_neighbor=moved.has_neighbor,
            has_other_pids=moved.has_other_pids,
        )
        setting = Setting(
            memory=memory,
            has_nccl=has_nccl,
            spans_nodes=has_nccl and has_verbs_thread(evidence),
            situation=situation,
            last=self._last_transfer,
            is_infiniband=watched.is_infiniband,
        )
        found = self._transfer.get(lambda: judge_transfer(moved, setting), objects=(moved, memory, process))
        if not found.is_moving:
            return found
        before, self._last_transfer = self._last_transfer, found
        if moved is not self._judged_moved:
            is_same = before is not None and before.word is found.word
            self._readings = self._readings + 1 if is_same else 1
            self._judged_moved = moved
        if found.readings != self._readings:
            self._last_transfer = replace(found, readings=self._readings)
        return self._last_transfer

    def _nics_now(self, nics: tuple[NicUse, ...], transfer: TransferPath) -> tuple[NicUse, ...]:
        about = transfer.lasting, transfer.nics
        return self._nics.get(lambda: with_traffic(nics, transfer), objects=(nics,), values=about)

    def _serving_role(self, serving: Serving, transfer: TransferPath, moved: Moved) -> Serving:
        """Return the serving with the role that traffic shows, or last showed."""
        role = role_by_traffic(transfer, moved)
        self._shown_role = self._shown_role if role is None else role
        shown = self._shown_role
        if shown is None or not isinstance(serving.role, Unknown):
            return serving
        return self._serving_shown.get(
            lambda: replace(serving, role=shown, is_role_likely=True), objects=(serving,), values=shown
        )

    def _path_with(self, path: PathJudgment, transfer: TransferPath, role: Role) -> PathJudgment:
        """Return the path that its transfers show; between two of them it stays."""
        if transfer.word is TransferWord.IDLE and self._carried is not None:
            return self._carried
        found = self._decided.get(lambda: path_with(path, transfer, role), objects=(path, transfer))
        if found is not path:
            self._carried = found
        return found

    def _make(
        self,
        answers: Answers,
        membership: Membership,
        evidence: ProcessEvidence,
        path: PathJudgment,
        state: Maybe[str],
        serving: Serving | None,
        transfer: TransferPath | None,
    ) -> LiveProcess:
        process, name = answers.process, membership.name
        if name != process.job:
            process = self._named.get(
                lambda: replace(answers.process, job=name), objects=(process,), values=name
            )
        use = known(evidence.use, NO_USE)
        rank, world_size = self.rank, self._world_size
        if membership.shares_rank and not isinstance(rank, Unknown):
            rank = world_size = _SHARED_RANK
        return LiveProcess(
            pid=self.pid,
            process=process,
            role=evidence.role,
            job=membership.job,
            rank=rank,
            world_size=world_size,
            gpus=answers.gpus,
            nics=use.nics if transfer is None else self._nics_now(use.nics, transfer),
            registered_bytes=use.own.bytes + use.inherited.bytes,
            pinned_bytes=answers.pinned,
            threads=answers.threads,
            state=state,
            cpu_percent=self._cpu_percent,
            path=path,
            is_listed=not isinstance(answers.use, Unknown),
            serving=serving,
            transfer=transfer,
        )


def _evidence(pid: int, answers: Answers, node: NodeEvidence) -> ProcessEvidence:
    process = answers.process
    role = role_of(process, answers.threads, bool(known(answers.use, NO_USE).nics))
    found = map_known(answers.use, lambda use: with_used_pairs(use, role, process.libraries))
    use = known(found, NO_USE)
    own = (found, answers.pinned, answers.threads, answers.has_gpu, answers.is_settled)
    libraries = frozenset(library.name for library in known(answers.process.libraries, ()))
    far = is_far(node.numa_nodes, answers.gpus, use)
    may_post = may_post_by_gpu(own_queues(process, answers.threads))
    return ProcessEvidence(pid, role, *own, libraries, far, may_post)


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


_PERFTEST = re.compile(r"(?:ib|raw_ethernet)_(?:write|read|send|atomic|burst|fs)_?(?:bw|lat|rate)?")
# Storage programs with queue pairs of their own; clients in the kernel (Lustre, NFS) have no process.
_STORAGE = re.compile(
    r"mmfsd|weka(?:node|fs|nodes?)?|beegfs-[a-z]{1,16}|daos_[a-z]{1,16}|ceph-(?:osd|mon|mds|fuse)|nvmf_tgt"
    r"|spdk_tgt|iscsi_tgt|reactor_[0-9]{1,4}|io_engine|glusterfs[a-z]{0,2}|pvfs2-[a-z]{1,12}|orangefs|xrootd"
    r"|vast[a-z-]{0,12}|lightbits|gds_[a-z]{1,12}"
)
_LARGEST_RANK = 10_000_000


def role_of(process: Process, threads: Maybe[tuple[str, ...]], has_rdma: bool) -> Role:
    """Return the role: by the program's name, then by NCCL's threads, then by the libraries it maps."""
    names = {program_of(process), known(process.comm, "")}
    if any(_PERFTEST.fullmatch(name) for name in names):
        return Role.PERFTEST
    if any(_STORAGE.fullmatch(name) for name in names):
        return Role.STORAGE
    if any(name.startswith("NCCL ") for name in known(threads, ())):
        return Role.NCCL
    if has_initialized_nvshmem(process.libraries):
        return Role.NVSHMEM
    libraries = {library.name for library in known(process.libraries, ())}
    # PyTorch maps both libraries. NCCL ≥ 2.14 names its threads, so without these the process uses UCX.
    if has_rdma and "libucp" in libraries and not isinstance(threads, Unknown):
        return Role.UCX
    if "libnccl" in libraries:
        return Role.NCCL
    if "libucp" in libraries:
        return Role.UCX
    return Role.OTHER if has_rdma else Role.GPU


def rank_of(process: Process) -> Maybe[int]:
    """Return the rank among the processes of all nodes."""
    return _number(process, RANKS, "no variable gives the rank")


def _number(process: Process, names: Sequence[str], missing: str) -> Maybe[int]:
    environment = process.environment
    if isinstance(environment, Unknown):
        return environment
    for name in names:
        value = environment.get(name, "")
        if re.fullmatch(r"[0-9]{1,8}", value) and int(value) <= _LARGEST_RANK:
            return int(value)
    return Unknown(Reason.NOT_THERE, f"/proc/{process.pid}/environ", missing)


WORKERS = 4  # threads; a process whose files hang keeps one of them busy
PATIENCE_SECONDS = 0.3  # for all new processes of one sample


class ProcessCache:
    """Read programs, environments and libraries in threads, so that a hung process delays only itself."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._read: dict[Key, Maybe[Process]] = {}
        self._queue: deque[Key] = deque()
        self._asked: set[Key] = set()

    def update(self, host: Host, keys: Iterable[Key]) -> None:
        """Read the new ones of these processes, and forget all others."""
        wanted = set(keys)
        for key in set(self._asked) - wanted:
            self._asked.discard(key)
            self._read.pop(key, None)
        new = sorted(wanted - self._asked)
        self._queue.extend(new)
        self._asked.update(new)
        if not self._queue:
            return
        until = self._clock() + PATIENCE_SECONDS
        workers = [
            start_probe(host, f"live processes {number}", lambda: self._work(host))
            for number in range(min(WORKERS, len(self._queue)))
        ]
        for worker in workers:
            worker.wait(max(0.0, until - self._clock()))

    def get(self, key: Key) -> Maybe[Process]:
        """Return the process; TIMED_OUT: not read yet."""
        found = self._read.get(key)
        return Unknown(Reason.TIMED_OUT, f"/proc/{key[0]}", "not read yet") if found is None else found

    @property
    def unread(self) -> int:
        """How many processes have no answer yet."""
        return len(self._asked) - len(self._read)

    def _work(self, host: Host) -> Maybe[None]:
        while self._queue:
            try:
                key = self._queue.popleft()
            except IndexError:  # another worker was faster
                break
            if key not in self._asked:
                continue
            try:
                process = read_process(host, key[0])
            except Exception as error:  # untrusted files must not end the worker
                process = Unknown(Reason.MALFORMED, f"/proc/{key[0]}", type(error).__name__)
            if key in self._asked:
                self._read[key] = process
        return None
