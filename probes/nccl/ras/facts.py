"""Facts of a job as its RAS service reports them, and events: a process that is silent, dead or back."""

from __future__ import annotations

import re
from collections.abc import Iterator

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown

NOT_PRINTED = Unknown(Reason.NOT_THERE, "RAS report", "not printed")


@frozen
class RasProcess:
    """A process of the job. Its pid is that of its own PID namespace, its node the bootstrap address."""

    pid: int
    node: str
    gpus: tuple[int, ...] = ()  # CUDA's numbers, in the process
    nvml: tuple[int, ...] = ()  # NVML's numbers


@frozen
class RasRank:
    """A rank of a communicator, which need not be the rank in the job."""

    rank: int  # of the communicator
    process: Maybe[RasProcess]


@frozen
class RasSet:
    """Ranks of a communicator with the same value: a count, a status or an error."""

    value: str
    count: int  # number of ranks
    ranks: tuple[RasRank, ...] = ()  # RAS names only small sets


@frozen
class OperationCounts:
    """The operations of one type that the ranks have launched, which differ."""

    operation: str  # "AllReduce"; "collective" before NCCL 2.26: all types together
    sets: tuple[RasSet, ...]  # values are numbers

    @property
    def counts(self) -> tuple[int, ...]:
        """All counts, the highest first."""
        return tuple(sorted({int(counted.value) for counted in self.sets}, reverse=True))


@frozen
class Communicator:
    """A communicator in which something is wrong or differs; RAS names no others."""

    hash: str
    name: str  # "0-1": group and number, in this report only
    missing_count: int = 0
    missing: tuple[RasRank, ...] = ()
    counts: tuple[OperationCounts, ...] = ()
    statuses: tuple[RasSet, ...] = ()
    errors: tuple[RasSet, ...] = ()


@frozen
class CommunicatorGroup:
    """A row of the table of communicators of the same size and state."""

    number: int
    communicators: int
    nodes: int
    ranks_per_node: str  # "8", "7-8"
    ranks_per_communicator: int
    ranks: int  # GPUs in the group
    status: str  # the furthest of NOCOMM, INIT, RUNNING, FINALIZE, ABORT; UNKNOWN before 2.26
    errors: tuple[str, ...]  # INCOMPLETE, ERROR, MISMATCH


@frozen
class RasReport:
    """What a job's RAS service reports."""

    nccl: Maybe[str] = NOT_PRINTED
    cuda: Maybe[str] = NOT_PRINTED
    nodes: Maybe[int] = NOT_PRINTED
    processes: Maybe[int] = NOT_PRINTED
    gpus: Maybe[int] = NOT_PRINTED
    collected_seconds: Maybe[float] = NOT_PRINTED
    groups: tuple[CommunicatorGroup, ...] = ()
    missing_count: int = 0  # processes that have not answered
    missing: tuple[RasProcess, ...] = ()
    dead_count: int = 0
    dead: tuple[RasProcess, ...] = ()
    timeouts: int = 0
    communicators: tuple[Communicator, ...] = ()
    other: tuple[str, ...] = ()  # lines that are not understood
    is_complete: bool = False  # all sections came, and the last part was not cut

    @property
    def named(self) -> tuple[RasProcess, ...]:
        """Every process that the report names, each once."""
        ranks = [
            rank
            for communicator in self.communicators
            for rank in (*communicator.missing, *(r for s in _sets(communicator) for r in s.ranks))
        ]
        known = [rank.process for rank in ranks if isinstance(rank.process, RasProcess)]
        return tuple(dict.fromkeys((*self.missing, *self.dead, *known)))


def _sets(communicator: Communicator) -> Iterator[RasSet]:
    yield from communicator.statuses
    yield from communicator.errors
    for counts in communicator.counts:
        yield from counts.sets


_EVENT = re.compile(
    r"\[(?P<at>[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2})\] (?P<kind>PEER_[A-Z_]{1,40}):"
    r"(?: Process (?P<pid>[0-9]{1,10}) on node (?P<node>\S{1,64}) managing GPUs? (?P<gpus>[0-9][0-9,]{0,200})"
    r"(?: \(NVML (?P<nvml>[0-9][0-9,]{0,200})\))?)?(?P<details>.*)"
)
MEANINGS = {
    "PEER_NEW": "joined the job",
    "PEER_DEAD": "is considered dead: RAS gives up after 60 s and never queries it again",
    "PEER_UNRESPONSIVE": "does not respond to RAS",
    "PEER_DISCONNECTED": "closed its RAS connection; its process may have exited",
    "PEER_RECOVERED": "responds to RAS again",
    "PEER_KEEPALIVE_TIMEOUT": "has not responded to RAS for 20 s",
}
BAD = ("PEER_DEAD", "PEER_UNRESPONSIVE", "PEER_DISCONNECTED", "PEER_KEEPALIVE_TIMEOUT")


@frozen
class RasEvent:
    """One line of MONITOR."""

    at: str  # local time of the process that answers, "2026-11-22 01:20:57"
    kind: str  # "PEER_DEAD"
    process: Maybe[RasProcess]
    details: str

    @property
    def meaning(self) -> str:
        """What happened to the process; RAS's own words for a kind without an explanation."""
        return MEANINGS.get(self.kind, self.details or self.kind)


def process_of(match: re.Match[str]) -> RasProcess:
    """Return the process of a line that names pid, node, gpus and perhaps nvml."""
    gpus, nvml = _integers(match["gpus"]), _integers(match["nvml"] or "")
    return RasProcess(int(match["pid"]), printable(match["node"], 64), gpus, nvml or gpus)


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if 0 < len(number) < 10)[:64]


def parse_event(line: str) -> RasEvent | None:
    """Return the event of a line; None if it is none."""
    match = _EVENT.fullmatch(line[:1024].strip())
    if match is None:
        return None
    process: Maybe[RasProcess] = Unknown(Reason.NOT_THERE, "RAS event", "names no process")
    if match["pid"]:
        process = process_of(match)
    return RasEvent(match["at"], match["kind"], process, printable(match["details"].strip(), 200))
