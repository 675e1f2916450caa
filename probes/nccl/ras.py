"""The text answers of NCCL's RAS service: the report, of NCCL 2.24 to 2.32 (src/ras/client_support.cc).

And the answer to DIAGNOSTICS, which NCCL 2.31 and later give. A line of it is
`host:pid NCCL DIAG [OK] check: text`; [INFO] marks what may need attention (NVIDIA's NCCL user guide,
"Diagnostics" and "RAS").

The answers come from a process of any user: any text is accepted, lines that are not understood are kept, and
everything is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown

# Facts of a job as its RAS service reports them, and events: a process that is silent, dead or back.

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


MAX_ITEMS = 4096  # of each list
_MAX_LINE = 400

_VERSION = re.compile(r"NCCL version (?P<nccl>\S{1,40}) compiled with CUDA (?P<cuda>\S{1,20})")
_NUMBERS = re.compile(r"\s*[0-9]{1,9}(?:\s+[0-9]{1,9})*\s*")
_COLLECTED = re.compile(r"Communicators\.\.\.(?: \((?P<seconds>[0-9]{1,6}(?:\.[0-9]{1,6})?)s\))?\s*")
_GROUP = re.compile(
    r"\s*(?P<number>[0-9]{1,9})\s+(?P<comms>[0-9]{1,9})\s+(?P<nodes>[0-9]{1,9})\s+(?P<per_node>[0-9-]{1,19})"
    r"\s+(?P<size>[0-9]{1,9})\s+(?P<ranks>[0-9]{1,9})\s+(?P<status>[A-Z]{1,16})\s+(?P<errors>[A-Z,]{1,64})\s*"
)
_HEADING = re.compile(
    r"#(?P<name>[0-9]{1,9}-[0-9]{1,9}) \((?P<hash>[0-9a-fA-F]{1,32})\) (?P<kind>[A-Z]{1,16})\s*"
)
_GPUS = r"GPUs? (?P<gpus>[0-9][0-9,]{0,200})(?: \(NVML (?P<nvml>[0-9][0-9,]{0,200})\))?"
_PROCESS = re.compile(rf"\s+Process (?P<pid>[0-9]{{1,10}}) on node (?P<node>\S{{0,64}}) managing {_GPUS}\s*")
_RANK = re.compile(
    rf"\s+Rank (?P<rank>[0-9]{{1,9}}) (?P<what>.{{0,80}}?)-- (?:{_GPUS} managed by process"
    r" (?P<pid>[0-9]{1,10}) on node (?P<node>\S{0,64})|\[process information not found\])\s*"
)
_RANKS = re.compile(r"\s+(?P<count>[0-9]{1,9}) ranks (?P<what>.{1,80}?)\s*")
_MISSING_RANK = re.compile(r"\s+The missing ranks?: (?P<ranks>[0-9, ]{1,200})")  # before 2.25
_MISSING = re.compile(
    r"\s+Missing communicator data from (?P<count>[0-9]{1,9}) (?P<what>ranks?|job process(?:es)?)\s*"
)
_DEAD = re.compile(r"\s+(?P<count>[0-9]{1,9}) job process(?:es are| is) considered dead.{0,80}")
_TIMEOUTS = re.compile(r"\s+Encountered (?P<count>[0-9]{1,9}) communication timeouts?.{0,80}")
_ERRORS = re.compile(r"\s+(?P<kind>Initialization|Asynchronous) errors? on [0-9]{1,9} ranks?\s*")
_DIFFERENT = re.compile(
    r"\s+Communicator ranks have different (?P<what>status|[A-Za-z]{1,32} operation counts)\s*"
)
_LAUNCHED = re.compile(
    r"ha(?:s|ve) (?:launched up to operation (?P<count>[0-9]{1,19})|(?P<none>not launched any operations))"
)
_STATUS = re.compile(r"ha(?:s|ve) status (?P<status>[A-Z]{1,16})")
_REPORTED = re.compile(r"reported (?P<error>.{1,60})")
_RULE = re.compile(r"\s*=+\s*")


def parse_report(text: str) -> RasReport:
    """Return the report; what is not understood is in `other`."""
    parser = _Parser()
    for line in text.split("\n"):
        parser.add(line[:_MAX_LINE].rstrip("\r"))
    return parser.report(text)


@dataclass
class _Part:
    """A communicator that is being read; sections after each other add to the same one."""

    communicator: Communicator
    sets: list[tuple[str, RasSet]] = field(default_factory=list)  # with its kind: "AllReduce", "status", …


class _Parser:
    def __init__(self) -> None:
        self._report = RasReport()
        self._section = ""
        self._table = ""  # the header line of the job summary above the next row
        self._heading = ""  # INCOMPLETE, DEAD, TIMEOUT, MISMATCH, ERROR
        self._parts: dict[str, _Part] = {}
        self._part: _Part | None = None
        self._kind = ""  # of the sets that follow
        self._sections: set[str] = set()

    def report(self, text: str) -> RasReport:
        """Return what was read; NCCL ends every part with an empty line, except a list of statuses."""
        is_whole = text.endswith("\n\n") or (text.endswith("\n") and self._kind == "status")
        complete = is_whole and {"Communicators", "Errors", "Warnings"} <= self._sections
        communicators = tuple(_finished(part) for part in self._parts.values())
        return replace(self._report, communicators=communicators, is_complete=complete)

    def add(self, line: str) -> None:
        if not line.strip() or _RULE.fullmatch(line):
            return
        if self._head(line) or self._row(line) or self._titled(line) or self._detail(line):
            return
        self._append("other", printable(line.strip(), _MAX_LINE))

    def _append(self, name: str, item: object) -> None:
        """Add an item to a list of the report."""
        if len(items := getattr(self._report, name)) < MAX_ITEMS:
            self._set(name, (*items, item))

    def _set(self, name: str, value: Any) -> None:
        self._report = replace(self._report, **{name: value})

    def _head(self, line: str) -> bool:
        if match := _VERSION.match(line):
            self._set("nccl", printable(match["nccl"], 40))
            self._set("cuda", printable(match["cuda"], 20))
        elif line.startswith("CUDA runtime version"):
            pass
        elif line.strip() in ("Job summary", "Errors", "Warnings"):
            self._section = line.strip()
            self._sections.add(self._section)
            self._heading, self._part = "", None
        elif match := _COLLECTED.fullmatch(line):
            self._section = "Communicators"
            self._sections.add(self._section)
            if match["seconds"]:
                self._set("collected_seconds", float(match["seconds"]))
        else:
            return False
        return True

    def _row(self, line: str) -> bool:
        if self._section == "Job summary":
            if not _NUMBERS.fullmatch(line):
                is_header = any(word in line for word in ("(total)", "Processes", "per node", "per process"))
                if is_header:
                    self._table = line
                return is_header
            numbers = [int(text) for text in line.split()]
            # Three shapes; the last row below "(total)" has the sums.
            if "(total)" in self._table and len(numbers) in (3, 5):
                nodes, (processes, gpus) = numbers[0], numbers[-2:]
                self._report = replace(self._report, nodes=nodes, processes=processes, gpus=gpus)
            return True
        if self._section == "Communicators":
            if match := _GROUP.fullmatch(line):
                self._add_group(match)
                return True
            return line.split()[:1] in (["Group"], ["#"]) or line.startswith("No communicator data")
        return False

    def _add_group(self, match: re.Match[str]) -> None:
        number, comms, nodes, size, ranks = map(int, match.group("number", "comms", "nodes", "size", "ranks"))
        errors = tuple(word for word in match["errors"].split(",") if word and word != "OK")
        about = (match["per_node"], size, ranks, match["status"], errors)
        self._append("groups", CommunicatorGroup(number, comms, nodes, *about))

    def _titled(self, line: str) -> bool:
        if self._section not in ("Errors", "Warnings"):
            return False
        if match := _HEADING.fullmatch(line):
            key = match["hash"].lower()
            self._heading, self._kind = match["kind"], ""
            self._part = self._parts.get(key)
            if self._part is None and len(self._parts) < MAX_ITEMS:
                self._part = self._parts[key] = _Part(Communicator(key, match["name"]))
            return True
        if line.strip() in ("INCOMPLETE", "DEAD", "TIMEOUT"):
            self._heading, self._part = line.strip(), None
            return True
        return False

    def _detail(self, line: str) -> bool:
        if not self._heading:
            return False
        if self._part is not None:
            return self._of_communicator(self._part, line)
        if match := _PROCESS.fullmatch(line):
            if name := {"DEAD": "dead", "INCOMPLETE": "missing"}.get(self._heading):
                self._append(name, process_of(match))
            return True
        for pattern, name in ((_MISSING, "missing_count"), (_DEAD, "dead_count"), (_TIMEOUTS, "timeouts")):
            if match := pattern.fullmatch(line):
                self._set(name, int(match["count"]))
                return True
        return False

    def _of_communicator(self, part: _Part, line: str) -> bool:
        communicator = part.communicator
        if match := _DIFFERENT.fullmatch(line):
            self._kind = match["what"].removesuffix(" operation counts")
        elif match := _ERRORS.fullmatch(line):
            self._kind = "error"
        elif match := _MISSING.fullmatch(line):
            part.communicator = replace(communicator, missing_count=int(match["count"]))
        elif match := _MISSING_RANK.fullmatch(line):
            numbers = [int(text) for text in re.findall(r"[0-9]{1,9}", match["ranks"])]
            missing = tuple(RasRank(number, NOT_PRINTED) for number in numbers)
            part.communicator = replace(communicator, missing=(*communicator.missing, *missing)[:MAX_ITEMS])
        elif match := _RANK.fullmatch(line):
            self._add_rank(part, match)
        elif match := _RANKS.fullmatch(line):
            value = _value(match["what"])
            if value is None:
                return False
            if len(part.sets) < MAX_ITEMS:
                part.sets.append((self._kind, RasSet(value, int(match["count"]))))
        else:
            return False
        return True

    def _add_rank(self, part: _Part, match: re.Match[str]) -> None:
        process: Maybe[RasProcess] = process_of(match) if match["pid"] else NOT_PRINTED
        rank = RasRank(int(match["rank"]), process)
        value = _value(match["what"].strip())
        if value is not None:
            if len(part.sets) < MAX_ITEMS:
                part.sets.append((self._kind, RasSet(value, 1, (rank,))))
        elif self._heading == "INCOMPLETE":
            communicator = part.communicator
            part.communicator = replace(communicator, missing=(*communicator.missing, rank)[:MAX_ITEMS])
        elif part.sets and part.sets[-1][0] == self._kind:
            kind, last = part.sets[-1]
            if len(last.ranks) < min(last.count, MAX_ITEMS):
                part.sets[-1] = kind, replace(last, ranks=(*last.ranks, rank))


def _finished(part: _Part) -> Communicator:
    by_operation: dict[str, list[RasSet]] = {}
    for kind, counted in part.sets:
        if kind not in ("", "status", "error") and counted.value.isdecimal():
            by_operation.setdefault(kind, []).append(counted)
    return replace(
        part.communicator,
        counts=tuple(OperationCounts(name, tuple(sets)) for name, sets in by_operation.items()),
        statuses=tuple(counted for kind, counted in part.sets if kind == "status"),
        errors=tuple(counted for kind, counted in part.sets if kind == "error"),
    )


def _value(what: str) -> str | None:
    """Return the count, status or error in the middle of a line; None: there is none."""
    if match := _LAUNCHED.fullmatch(what):
        return "0" if match["none"] else str(int(match["count"]))
    match = _STATUS.fullmatch(what) or _REPORTED.fullmatch(what)
    return printable(match[1], 60) if match else None


MAX_LINES = 500
_LINE = re.compile(
    r"(?:(?P<host>[^\s:]{1,255}):(?P<pid>[0-9]{1,10}) )?NCCL DIAG "
    r"(?:\[(?P<tag>[A-Z]{1,10})\] +)?(?P<text>.{0,1000})"
)


@frozen
class DiagnosticLine:
    """What one check of one process says."""

    is_ok: bool
    text: str  # "IOMMU: …"
    process: str = ""  # "h100-01:41003"; "": not named


@frozen
class Diagnostics:
    """All results, in the order of the answer."""

    lines: tuple[DiagnosticLine, ...] = ()
    other: tuple[str, ...] = ()  # headings, and what was not understood
    left_out: int = 0  # lines beyond the limit

    @property
    def to_review(self) -> tuple[DiagnosticLine, ...]:
        """The results that are not OK."""
        return tuple(line for line in self.lines if not line.is_ok)


def parse_diagnostics(text: str) -> Diagnostics:
    """Return the results; a line without a tag is kept as it is."""
    lines: list[DiagnosticLine] = []
    other: list[str] = []
    given = [line.strip() for line in text.split("\n") if line.strip()]
    for line in given[:MAX_LINES]:
        match = _LINE.match(line)
        if match is None or not match["tag"]:
            other.append(printable(line if match is None else match["text"], 400))
            continue
        process = f"{match['host']}:{match['pid']}" if match["host"] else ""
        said = printable(match["text"].strip(), 400)
        lines.append(DiagnosticLine(match["tag"] == "OK", said, printable(process, 280)))
    return Diagnostics(tuple(lines), tuple(other), max(0, len(given) - MAX_LINES))
