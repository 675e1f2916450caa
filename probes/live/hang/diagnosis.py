"""The suspect of a hanging job, from all sources, the surest first; its threads that hang in the kernel.

Waiting ranks all look alike, so the rank that differs from its peers is the suspect, not the one that is
idle.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial

from probes.base.evidence import Severity
from probes.base.frozen import frozen
from probes.base.text import minutes, plural, printable
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.host.probe_thread import RunningProbe
from probes.host.protocol import Host
from probes.host.usage import parse_stat
from probes.live.hang.dump_files import FoundDumps
from probes.live.hang.ranks import NOT_READ, RankState, different_rank
from probes.live.model.activity import SILENT_SECONDS
from probes.live.model.sample import LiveJob
from probes.live.ras.findings import RasFinding
from probes.live.silence import PairMotion
from probes.nccl.flight_recorder.verdict import Cause, DumpVerdict, ranks_text
from probes.nccl.log.facts import JobLogReading
from probes.queries.finding import Finding
from probes.snapshot.condition import ERRORS_RISING, FLAPPING, RANK_ENDED, STOPPED, Condition

# Threads of a job that wait in the kernel and cannot be interrupted (state D), and for what.
#
# Sources: proc(5). `wchan` needs ptrace access and `stack` root; a read of either can itself block, so it
# runs in a probe's thread. A thread is in state D for a moment all the time, so only one that is still there
# some seconds later counts.

_SCAN_SECONDS = 2.0
_READ_SECONDS = 1.0
_MOST_THREADS = 512  # of a process
_MOST_BLOCKED = 8  # whose stacks are read
_FRAME = re.compile(r"\[<[0-9a-fx]+>\]\s+([A-Za-z0-9_.]{1,80})")
# Frames and what the thread waits for (kernel-open/nvidia/os-interface.c; mm/filemap.c, net/sunrpc, lustre).
_MEANINGS = (
    (r"os_acquire_(?:rwlock_read|rwlock_write|semaphore|mutex)", "a lock of the NVIDIA driver", True),
    (r"uvm_", "nvidia-uvm", True),
    (r"nv_dma_buf_|dma_resv_|ib_umem_dmabuf_", "the registration of GPU memory (DMA-BUF)", True),
    (r"nvidia_p2p_|nv_mem_", "the registration of GPU memory (nvidia-peermem)", True),
    (r"nv_|nvidia", "the NVIDIA driver", True),
    (r"folio_wait_bit|rpc_wait_bit_killable|ptlrpc_|nfs_", "storage", False),
)


@frozen
class BlockedThread:
    """A thread in state D."""

    pid: int
    thread: int
    name: str
    frames: Maybe[tuple[str, ...]]  # functions of the kernel, the innermost first
    waits_for: str  # "a lock of the NVIDIA driver"; "": not known
    is_driver: bool  # the NVIDIA driver or RDMA, not storage
    node: str = ""  # of a job on several nodes

    @property
    def sentence(self) -> str:
        """What it does, without a period."""
        name = f"thread {self.thread} ({self.name}) of pid {self.pid}"
        if self.waits_for:
            return f"{name} waits in the kernel for {self.waits_for}"
        if isinstance(self.frames, Unknown):
            return f"{name} waits in the kernel, for what is unknown ({self.frames})"
        return f"{name} waits in the kernel in {', '.join(self.frames[:3])}"


def threads_in_kernel(host: Host, pids: Iterable[int]) -> Maybe[frozenset[tuple[int, int]]]:
    """Return the pid and thread id of all threads in state D, in bounded time; unknown: none is readable."""
    found: set[tuple[int, int]] = set()
    why: Unknown | None = Unknown(Reason.NOT_THERE, "/proc/PID/task")
    until = time.monotonic() + _SCAN_SECONDS
    for pid in pids:
        threads = known(host.names(f"/proc/{pid}/task"), ())
        for thread in [name for name in threads if name.isdecimal()][:_MOST_THREADS]:
            if time.monotonic() >= until:
                return frozenset(found)
            stat = map_known(host.read(f"/proc/{pid}/task/{thread}/stat"), parse_stat)
            if isinstance(stat, Unknown):
                why = why if why is None else stat
                continue
            why = None
            if stat.state == "D":
                found.add((pid, int(thread)))
    return frozenset(found) if why is None else why


def read_blocked(host: Host, threads: Iterable[tuple[int, int]]) -> tuple[BlockedThread, ...]:
    """Return what these threads wait for."""
    found = []
    for pid, thread in sorted(threads)[:_MOST_BLOCKED]:
        base = f"/proc/{pid}/task/{thread}"
        probe = RunningProbe(host, f"{base}/stack", partial(_frames, host, base))
        probe.start()
        frames = probe.answer(_READ_SECONDS)
        name = printable(known(host.read(f"{base}/comm"), "?"), 16)
        found.append(BlockedThread(pid, thread, name, frames, *meaning_of(known(frames, ()))))
    return tuple(found)


def _frames(host: Host, base: str) -> Maybe[tuple[str, ...]]:
    stack = host.read(f"{base}/stack")
    if not isinstance(stack, Unknown):
        return tuple(_FRAME.findall(stack)[:32])
    channel = host.read(f"{base}/wchan")
    if isinstance(channel, Unknown) or channel in ("", "0"):
        return stack
    return (printable(channel, 80),)


def meaning_of(frames: Sequence[str]) -> tuple[str, bool]:
    """Return what a stack waits for, and whether that is a driver on the data path; "" if it is not known."""
    for pattern, meaning, is_driver in _MEANINGS:
        if any(re.match(pattern, frame) for frame in frames):
            return meaning, is_driver
    return "", False


_HARDWARE = ("xid-", "sxid-", "gpu-missing-from-nvml", "gpu-recovery-action", "task-hung-in-driver")
_PORTS = ("ib-port-", "link-layer-wrong", FLAPPING, ERRORS_RISING)
_PROBLEMS = 3  # of a log
_LEAST_RANKS = 4  # to see a gap in their numbers
_NOW = ("processes", "RAS")  # what is sure of these is so at this moment, whatever moved seconds before
_LATE = ("queue pairs", "threads", "NCCL log")  # less than what a comparison of the ranks shows


class Motion(Enum):
    """Whether the job moves data; the value is stable and stands in JSON."""

    MOVES = "moves"
    SILENT = "silent"
    UNKNOWN = "unknown"


@frozen
class Clue:
    """One thing that a source says, with the suspect that it names and the next command."""

    source: str  # "processes", "hardware", "threads", "RAS", "flight recorder", "ranks", …
    text: str  # one sentence without a period
    suspects: tuple[str, ...] = ()  # "rank 3", "GPU 0000:18:00.0", "mlx5_3"; (): it names none
    is_sure: bool = False  # the source names the cause, not only what differs
    next_step: str = ""  # a command, or what to do


@frozen
class SourceState:
    """A source, and what became of it: read, or why not."""

    name: str
    text: str


@frozen
class HangFacts:
    """All that was read about one job."""

    job: LiveJob
    seconds: float  # watched
    silence: Maybe[float]  # seconds without traffic on any NIC of the job; 0: data moves
    ranks: tuple[RankState, ...]
    conditions: tuple[Condition, ...] = ()  # of this job
    findings: tuple[Finding, ...] = ()  # of the node
    others: frozenset[str] = frozenset()  # GPUs and NICs that other jobs use
    threads: tuple[BlockedThread, ...] = ()
    ras: tuple[RasFinding, ...] = ()
    dumps: FoundDumps = FoundDumps()
    dump_verdict: DumpVerdict | None = None
    log: JobLogReading | None = None
    packets: Maybe[Mapping[int, PairMotion]] = NOT_READ  # by pid
    sources: tuple[SourceState, ...] = ()
    summed_pairs: PairMotion | None = None  # of several nodes, whose pids repeat; None: those of `packets`
    mixes_pairs: bool = False  # `silence` leaves out nodes where only the job's queue pairs stand still
    unread: str = ""  # "on 2 nodes (2 more did not answer)"; "": all nodes were read

    @property
    def motion(self) -> Motion:
        """Whether data moves, by the job's own queue pairs, and by the rates of its NICs."""
        if self.pairs_are_still and self.seconds >= SILENT_SECONDS:
            return Motion.SILENT
        if isinstance(self.silence, Unknown):
            return Motion.MOVES if self.pairs_are_still is False else Motion.UNKNOWN
        return Motion.MOVES if self.silence < SILENT_SECONDS else Motion.SILENT

    @property
    def pairs(self) -> PairMotion:
        """The connected queue pairs of all ranks whose packet numbers are known."""
        if self.summed_pairs is not None:
            return self.summed_pairs
        packets = known(self.packets, {})
        found = [packets[rank.pid] for rank in self.ranks if rank.pid in packets]
        return PairMotion(sum(pair.connected for pair in found), sum(pair.moving for pair in found))

    @property
    def pairs_are_still(self) -> bool | None:
        """Whether none of the job's queue pairs has sent or received; None: not all are known."""
        connected = sum(rank.ready for rank in self.ranks)
        return self.pairs.are_still(connected, bool(self.unlisted))

    @property
    def unlisted(self) -> str:
        """What packet numbers leave out; "": nothing."""
        return next((rank.unlisted for rank in self.ranks if rank.unlisted), "")


@frozen
class Diagnosis:
    """The page."""

    facts: HangFacts
    headline: str
    suspects: tuple[str, ...]  # of the first clue that is sure, else of the first that names one
    is_sure: bool
    clues: tuple[Clue, ...]  # the surest first
    next_steps: tuple[str, ...]

    @property
    def exit_status(self) -> int:
        """0: data moves; 1: silent without a suspect; 2: a suspect; 3: unknown.

        A rank that only differs is no suspect while nodes have not answered: theirs may differ, too.
        """
        if self.suspects and (self.is_sure or not self.facts.unread):
            return 2
        if self.facts.motion is Motion.MOVES:
            return 0
        return 1 if self.facts.motion is Motion.SILENT and not self.facts.unread else 3


def diagnose(facts: HangFacts) -> Diagnosis:
    """Return the suspect, the evidence in the order of its weight, and what to do next."""
    return conclude(facts, tuple(_clues(facts)))


def conclude(facts: HangFacts, clues: tuple[Clue, ...]) -> Diagnosis:
    """Return the page of clues that are in the order of their weight.

    While data moves, or has a few seconds ago, only what is dead or does not respond now is a suspect.
    """
    is_moving = facts.motion is Motion.MOVES
    naming = [clue for clue in clues if clue.suspects]
    if is_moving:
        naming = [clue for clue in naming if clue.is_sure and clue.source in _NOW]
    named = next((clue for clue in naming if clue.is_sure), naming[0] if naming else None)
    steps = [clue.next_step for clue in clues if clue.next_step]
    if not any(clue.is_sure for clue in clues) and not is_moving:
        pids = " ".join(f"{rank.node} {rank.pid}".lstrip() for rank in facts.ranks[:8])
        steps.append(f"py-spy dump --pid PID shows where a rank waits (pids: {pids})")
    headline = ", ".join(filter(None, (facts.unread, _standstill(facts))))
    if is_moving:
        headline = "it moves data, so it does not hang in the network now"
        if named is not None:
            headline = f"it has moved data in the last {SILENT_SECONDS:.0f} s, but {named.text}"
    return Diagnosis(
        facts=facts,
        headline=headline,
        suspects=() if named is None else named.suspects,
        is_sure=named is not None and named.is_sure,
        clues=clues,
        next_steps=tuple(dict.fromkeys(steps)),
    )


def _standstill(facts: HangFacts) -> str:
    by_pairs = known(facts.silence, 0.0) < SILENT_SECONDS or (facts.mixes_pairs and facts.pairs_are_still)
    if facts.motion is Motion.SILENT and by_pairs:
        pairs = plural(facts.pairs.connected, "queue pair")
        beside = "" if isinstance(facts.silence, Unknown) else ", although its NICs carry traffic"
        text = f"none of its {pairs} has sent or received a packet for {minutes(facts.seconds)}"
        return f"{text}{beside}"
    if isinstance(facts.silence, Unknown) and facts.motion is Motion.UNKNOWN:
        return f"whether it moves data is unknown ({facts.silence})"
    silence = minutes(known(facts.silence, 0.0))
    if facts.mixes_pairs:
        where = "where they carry other traffic, its queue pairs have not either"
        return f"its NICs have moved no data for {silence}, and {where}"
    return f"no NIC of this job has moved data for {silence}"


def _clues(facts: HangFacts) -> Iterator[Clue]:
    """Yield the clues in the order of the page: what is dead first, what only differs last."""
    of_node, of_job = list(node_clues(facts, facts.motion)), list(job_clues(facts, "this node"))
    late = [clue for clue in of_node if clue.source in _LATE and not clue.is_sure]
    dead = [clue for clue in of_node if clue.source == "processes"]
    gaps = [clue for clue in of_job if clue.source == "processes"]
    yield from dead
    yield from gaps
    yield from (clue for clue in of_node if clue not in dead and clue not in late)
    yield from (clue for clue in of_job if clue not in gaps)
    yield from late


def node_clues(facts: HangFacts, motion: Motion) -> Iterator[Clue]:
    """Yield what the sources of one node say about its processes and devices; `motion`: of the whole job."""
    yield from _processes(facts)
    yield from _hardware(facts)
    yield from (_thread(thread, facts.ranks) for thread in facts.threads if thread.is_driver)
    for finding in facts.ras:
        # Unequal counts are normal while data moves.
        if finding.severity is not Severity.NOTE or motion is Motion.SILENT:
            pids = [] if finding.pid is None else [finding.pid]
            step = _stack(finding.pid) if finding.pid is not None else "gdrtop ras --verbose"
            is_sure = finding.pid is not None and finding.severity is not Severity.NOTE
            yield Clue("RAS", finding.text, _names(facts.ranks, pids), is_sure, step)
    yield from _queue_pairs(facts.ranks)
    yield from (_thread(thread, facts.ranks) for thread in facts.threads if not thread.is_driver)
    if facts.log is not None:
        for problem in [found for found in facts.log.facts.problems if found.is_cause][:_PROBLEMS]:
            text = f"{problem.title} ({plural(problem.seen.count, 'line')}, last in {problem.seen.last})"
            yield Clue("NCCL log", text, next_step=f"gdrtop nccl-log {problem.seen.last.file}")


def job_clues(facts: HangFacts, place: str) -> Iterator[Clue]:
    """Yield what a comparison of all ranks shows; `place`: where ranks are missing, "this node"."""
    yield from _gaps(facts.ranks, place)
    if facts.dump_verdict is not None:
        yield from _dumps(facts.dump_verdict, facts.ranks, facts.dumps.absent)
    if facts.motion is not Motion.MOVES and (different := different_rank(facts.ranks)) is not None:
        rank, how = different
        text = f"{rank.name} differs from its peers: {how}"
        yield Clue("ranks", text, (rank.name,), False, _stack(rank.pid))
    if facts.unlisted and facts.motion is not Motion.MOVES:
        # NVIDIA/nccl issue 2383: a lost packet leaves kernels that wait forever, and clean hw_counters.
        text = f"packets that are lost are {facts.unlisted}, so clean counters prove nothing"
        yield Clue("queue pairs", text, next_step="ethtool -S NETDEV, twice: does tx_prio0_bytes rise?")


def _processes(facts: HangFacts) -> Iterator[Clue]:
    pids = {rank.name: rank.pid for rank in facts.ranks}
    for condition in facts.conditions:
        if condition.check == STOPPED:
            stopped = " ".join(str(pids[name]) for name in condition.ranks if name in pids)
            yield Clue("processes", condition.text, condition.ranks, True, f"kill -CONT {stopped or 'PID'}")
        elif condition.check == RANK_ENDED:
            step = "Read the end of that rank's log, then restart the job"
            yield Clue("processes", condition.text, condition.ranks, True, step)
    for rank in facts.ranks:
        if known(rank.state, "") == "Z":
            text = f"{rank.name} (pid {rank.pid}) has exited, and its threads have not all ended"
            yield Clue("processes", text, (rank.name,), True, f"ls /proc/{rank.pid}/task")


def _gaps(ranks: Sequence[RankState], place: str) -> Iterator[Clue]:
    numbers = [rank.rank for rank in ranks if not isinstance(rank.rank, Unknown)]
    gone = sorted(set(range(min(numbers), max(numbers))) - set(numbers)) if numbers else []
    # With more gaps, the launcher has spread neighboring ranks over the nodes.
    if len(numbers) == len(ranks) >= _LEAST_RANKS and 0 < len(gone) <= 2:
        names = tuple(f"rank {rank}" for rank in gone)
        text = f"{ranks_text(gone)} {'has' if len(gone) == 1 else 'have'} no process on {place}"
        step = "Read the end of that rank's log: it has exited, or it runs on another node"
        yield Clue("processes", text, names, False, step)


def _hardware(facts: HangFacts) -> Iterator[Clue]:
    """Yield what is wrong with the job's own GPUs and NICs, and what a driver has reported.

    A rank whose GPU was lost may have exited: a GPU that no other job uses may have been its own.
    """
    devices = {device for rank in facts.ranks for device in (*rank.gpus, *rank.nics)} | set(facts.job.gpus)
    for finding in facts.findings:
        is_gpu, is_port = finding.id.startswith(_HARDWARE), finding.id.startswith(_PORTS)
        if not (is_gpu or is_port):
            continue
        own = tuple(device for device in finding.devices if device in devices)
        if is_gpu and not own:
            own = tuple(device for device in finding.devices if device not in facts.others)
        if finding.devices and not own:
            continue
        names = tuple(rank.name for rank in facts.ranks if set(own) & {*rank.gpus, *rank.nics})
        text = f"{finding.title}: {finding.cause}" if finding.cause else finding.title
        yield Clue("hardware", text.rstrip("."), names or own, is_gpu, f"gdrtop check {finding.id}")


def _thread(thread: BlockedThread, ranks: Sequence[RankState]) -> Clue:
    step = "dmesg -T | tail -50" if thread.is_driver else f"ls -l /proc/{thread.pid}/fd shows the open files"
    return Clue("threads", thread.sentence, _names(ranks, [thread.pid]), thread.is_driver, step)


def _dumps(verdict: DumpVerdict, ranks: Sequence[RankState], absent: Sequence[int]) -> Iterator[Clue]:
    pids = {rank.rank: rank.pid for rank in ranks if not isinstance(rank.rank, Unknown)}

    def step(numbers: Iterable[int]) -> str:
        here = [pids[number] for number in numbers if number in pids]
        return _stack(here[0]) if here else "Look at that rank on its own node"

    named = verdict.culprits
    for group in verdict.groups[:4]:
        blamed = [rank for rank in group.absent if rank in named]
        suspects = tuple(f"rank {rank}" for rank in blamed[:4])
        is_sure = group.cause in (Cause.NOT_ARRIVED, Cause.MISMATCH) and bool(blamed)
        yield Clue("flight recorder", group.sentence, suspects, is_sure, step(blamed) if blamed else "")
    if verdict.is_cycle:
        text = "ranks wait for each other: they call the process groups in a different order"
        yield Clue("flight recorder", text, next_step="Compare the order of collectives in the ranks' code")
    # Dumps of other nodes, and those that could not be read, are no sign.
    if not named and (suspected := [rank for rank in verdict.suspected if rank in absent]):
        text = f"{ranks_text(suspected)} has written no dump, and every group may wait for it"
        suspects = tuple(f"rank {rank}" for rank in suspected[:4])
        yield Clue("flight recorder", text, suspects, False, step(suspected))


def _queue_pairs(ranks: Sequence[RankState]) -> Iterator[Clue]:
    """Yield the ranks of which few queue pairs are connected while those of the others are."""
    if not any(rank.queue_pairs and rank.ready == rank.queue_pairs for rank in ranks):
        return
    for rank in ranks:
        if rank.queue_pairs and not rank.ready:
            text = f"{rank.name}: none of its {plural(rank.queue_pairs, 'queue pair')} is connected (RTS)"
            yield Clue("queue pairs", text, (rank.name,), False, "rdma resource show qp")


def _names(ranks: Sequence[RankState], pids: Iterable[int]) -> tuple[str, ...]:
    wanted = set(pids)
    return tuple(rank.name for rank in ranks if rank.pid in wanted)


def _stack(pid: int) -> str:
    return f"py-spy dump --pid {pid}"
