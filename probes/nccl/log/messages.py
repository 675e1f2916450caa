"""The messages of a log, in bounded memory, and what each means here, given what the log says besides."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from probes.base.frozen import frozen
from probes.base.text import join_limited, leading_version, printable
from probes.messages.catalogue import catalogue, codes, explain
from probes.messages.message import Context, Found, Weight, is_version
from probes.nccl.log.facts import LogFacts, Mention, Place, Problem, Setting

# Texts of a log and how many lines have each, in bounded memory.

MOST_ROWS = 256


@dataclass
class Tally:
    """A row: what its first line says, and how many lines say so."""

    text: str
    first: Place
    last: Place
    detail: Any
    count: int = 1

    def mention(self) -> Mention:
        """Return the row as a fact."""
        return Mention(self.text, self.count, self.first, self.last)


class Table:
    """Texts by a key; the table ends at a limit."""

    def __init__(self) -> None:
        self.rows: dict[object, Tally] = {}
        self.left_out = 0  # lines of further texts

    def add(self, key: object, text: str, place: Place, detail: object = None) -> bool:
        """Count a text, for a line once; return False if the table is full."""
        row = self.rows.get(key)
        if row is not None:
            row.count += 1
            row.last = place
            return True
        if len(self.rows) >= MOST_ROWS:
            self.left_out += 1
            return False
        self.rows[key] = Tally(printable(text, 400).strip(), place, place, detail)
        return True

    def mentions(self) -> tuple[Mention, ...]:
        """Return the rows as facts."""
        return tuple(row.mention() for row in self.rows.values())

    def first(self) -> Mention | None:
        """Return the first row as a fact; None if there is none."""
        return next((row.mention() for row in self.rows.values()), None)


# What the error lines of a log mean: the catalogue of messages says it, given what the log says besides.

UNEXPLAINED = {
    "warning": "NCCL warning",
    "notice": "NCCL notice",
    "diagnostics": "NCCL's diagnostics report what to review",
}
"""The kinds of lines that the catalogue does not know, with their titles."""
UNKNOWN = "unknown"
"""The severity of these."""
_NOTES = (Weight.NOTE, Weight.HARMLESS)
_MOST_HOSTS = 4


@frozen
class ProblemLine:
    """A line of a message, or one that the catalogue does not know."""

    found: Found | None
    kind: str = "warning"  # of UNEXPLAINED
    is_notice: bool = False  # NCCL calls it no error


def problem_of(line: ProblemLine, context: Context, seen: Mention, ranks: tuple[str, ...]) -> Problem:
    """Return what a line means in its log."""
    if line.found is None:
        return Problem(line.kind, UNEXPLAINED[line.kind], "", "", seen, ranks, True, UNKNOWN)
    meaning = explain(line.found, context)
    title, severity = printable(meaning.title, 200), meaning.weight.value
    is_note = line.is_notice or meaning.weight in _NOTES
    if line.is_notice and meaning.weight not in _NOTES:
        severity = Weight.NOTE.value
    proves = meaning.proves.value
    return Problem(meaning.id, title, meaning.cause, meaning.fix, seen, ranks, is_note, severity, proves)


def context_of(
    versions: Iterable[Mention], settings: Iterable[Setting], nics: Iterable[Mention],
    beside: frozenset[str]
) -> Context:  # fmt: skip
    """Return what the log says besides a line; of several versions, the oldest counts."""
    numbers = [found for version in versions if (found := leading_version(version.text))]
    kinds = (("/RoCE", "roce"), ("/IB", "infiniband"))
    node = frozenset(word for suffix, word in kinds if any(nic.text.endswith(suffix) for nic in nics))
    values = {setting.name: setting.value for setting in settings}
    return Context(min(numbers, default=None), values, node, beside)


def unequal_mtu(mtus: Mapping[str, Mapping[str, Mention]], version: tuple[int, ...] | None) -> Problem | None:
    """Return the problem of nodes whose queue pairs differ in their MTU; host -> number of verbs -> lines.

    NCCL before 2.20.3 uses the smaller one; later, both ends can settle on different ones (NVIDIA/nccl#1524).
    """
    kinds = {frozenset(of_host) for of_host in mtus.values()}
    if len(kinds) < 2:
        return None
    is_shared = bool(frozenset.intersection(*kinds))  # some NICs of all nodes have the same
    table = codes()["ibv_mtu"]
    sizes = (
        f"{' and '.join(table[mtu].name for mtu in sorted(of_host) if mtu in table)} bytes on {host}"
        for host, of_host in sorted(mtus.items(), key=lambda row: sorted(row[1]))
    )
    seen = next(iter(next(iter(mtus.values())).values()))
    is_old = is_version("<2.20.3", version)
    return Problem(
        "mtu-differs",
        f"Nodes have different MTUs: {join_limited(sizes, _MOST_HOSTS)}",
        "This NCCL uses the smaller one." if is_old else "Both ends of a connection can then use different "
        "MTUs. Completion errors 1, 9 and 12, fatal events of a queue pair, or a hang may follow.",
        "Set the same MTU on the RDMA interfaces of all nodes and on the switches: 9000, or at least 4200.",
        seen,
        is_note=is_old,
        severity=(Weight.NOTE if is_old else Weight.WARNING if is_shared else Weight.CRITICAL).value,
    )  # fmt: skip


# The messages of a log: of many that are alike, only the first are looked up.

MOST_ALIKE = 1000  # alike, but for numbers, that are looked up; further ones are only counted
ALIKE_BYTES = 130  # of a message, which decide that it is like another one
_MOST_KINDS = 4096
_MOST_REPORTERS = 8
_NUMBERS = b"0123456789abcdef"  # decimal and hexadecimal
_DIGITS = re.compile(r"\d+")
_COMPLETED = re.compile(r"last completed (?:NCCL )?work: (-?\d{1,20})")  # of PyTorch's watchdog


@dataclass
class Alike:
    """Lines that differ only in numbers."""

    read: int = 0
    skipped: int = 0
    problem: object = None  # the key of their problem; None: its table is full
    file: str = ""  # of the last line that was skipped
    line: int = 0

    def added_to(self, seen: Mention) -> Mention:
        """Add the lines that were only counted."""
        last = Place(self.file, self.line)
        is_later = last.file != seen.last.file or last.line > seen.last.line
        return replace(seen, count=seen.count + self.skipped, last=last if is_later else seen.last)


class MessageTable:
    """What lines say that may tell of a problem."""

    def __init__(self) -> None:
        self.ids: set[str] = set()  # of the messages that were read
        self._table = Table()
        self._left_out = 0
        self._alike: dict[bytes, Alike] = {}
        self._newest: Alike | None = None
        self._nothing: set[bytes] = set()  # lines that are no message, but for their numbers
        self._reporters: dict[object, dict[str, None]] = {}
        self._slowest: tuple[int, str, Place] | None = None

    @property
    def left_out(self) -> int:
        """Lines beyond the limits of the tables."""
        return self._left_out + self._table.left_out

    def is_flood(self, text: bytes, file: str, line: int) -> bool:
        """Return whether too many lines like this one were read; they are only counted."""
        key = text[:ALIKE_BYTES].translate(None, _NUMBERS)
        alike = self._alike.get(key)
        if alike is None:
            if len(self._alike) >= _MOST_KINDS:
                self._left_out += 1
                return True
            alike = self._alike[key] = Alike()
        self._newest = alike
        if alike.read < MOST_ALIKE:
            alike.read += 1
            return False
        alike.skipped += 1
        alike.file, alike.line = file, line
        self._left_out += alike.problem is None
        return True

    def add(self, line: ProblemLine, text: str, place: Place, reporter: str = "") -> None:
        """Count a line, with who reports it."""
        kind, what = line.kind, text
        if line.found is not None:
            self.ids.add(line.found.message.id)
            meaning = explain(line.found)
            kind, what = meaning.id, meaning.title
        key = (kind, _DIGITS.sub("#", what)[:120])
        known = self._table.rows.get(key)
        is_again = known is not None and known.last == place  # the line has two words that gdrtop looks for
        is_listed = is_again or self._table.add(key, text, place, line)
        alike, self._newest = self._newest, None
        if alike is not None and is_listed:
            alike.problem = key
        if is_listed and reporter:
            reporters = self._reporters.setdefault(key, {})
            if len(reporters) < _MOST_REPORTERS:
                reporters[reporter] = None

    def ask(
        self,
        text: str,
        place: Place,
        reporter: str,
        weights: Collection[Weight],
        programs: Collection[str] = (),
    ) -> None:
        """Count a line that need not be a message, if it is one of these weights."""
        begin = text[:ALIKE_BYTES].encode("utf-8", "replace")
        alike = begin.translate(None, _NUMBERS)
        if alike in self._nothing:
            return
        found = catalogue().find(text)
        if found is not None and (not programs or found.message.program in programs):
            self.ids.add(found.message.id)
            is_said = not found.message.is_general and explain(found).weight in weights
        else:
            is_said = False
        if not is_said:
            if len(self._nothing) < _MOST_KINDS:
                self._nothing.add(alike)
        elif not self.is_flood(begin, place.file, place.line):
            self.add(ProblemLine(found), text, place, reporter)

    def of_torch(self, text: str, place: Place, rank: str) -> None:
        """Count a line of PyTorch."""
        completed = _COMPLETED.search(text)
        if completed is not None and rank:
            work = int(completed[1])
            if self._slowest is None or work < self._slowest[0]:
                self._slowest = (work, rank, place)
        self.ask(text, place, rank, tuple(Weight))

    def problems(self, context: Context) -> list[Problem]:
        """Return what the lines mean, in their order."""
        found: list[Problem] = []
        skipped: dict[object, list[Alike]] = {}
        for alike in self._alike.values():
            if alike.skipped:
                skipped.setdefault(alike.problem, []).append(alike)
        for key, row in self._table.rows.items():
            seen = row.mention()
            for alike in skipped.get(key, ()):
                seen = alike.added_to(seen)
            problem = problem_of(row.detail, context, seen, tuple(self._reporters.get(key, ())))
            if self._slowest is not None and _COMPLETED.search(seen.text):
                work, rank, place = self._slowest
                lowest = f"The lowest last completed work in the log is {work}, on {rank} ({place})."
                problem = replace(problem, cause=f"{problem.cause} {lowest}".strip())
            found.append(problem)
        names = dict.fromkeys(problem.seen.first.file for problem in found)
        files = {name: number for number, name in enumerate(names)}
        return sorted(found, key=lambda each: (files[each.seen.first.file], each.seen.first.line))


# What NCCL's own diagnostics print when a communicator is created.
#
# With NCCL_RUN_DIAGNOSTICS=1, NCCL 2.31 and later test P2P between GPUs, and 2.32.3 and later run ib_write_bw
# of perftest between neighboring nodes. Lines are `host:pid NCCL DIAG [OK] check: text` on standard output,
# whatever NCCL_DEBUG says; [INFO] marks what may need review. probes/messages/nccl-diagnostics.toml says what
# they mean. Sources: NVIDIA/nccl src/diagnostics.cc; its user guide, "Diagnostics".

SINCE_NETWORK = (2, 32, 3)
"""The first version whose diagnostics measure the network."""
DIAGNOSTICS_KIND = "diagnostics"
"""The kind of a line that gdrtop does not explain, and the begin of all others."""

_LINE = re.compile(r"(?:\[(?P<tag>[A-Z]{1,10})\] *)?(?P<text>.{0,1500})")
_COMMUNICATOR = re.compile(r" in comm 0x[0-9a-f]{1,16}$")
_HEADING = re.compile(r"=+ .{0,80} =+$")


@frozen
class DiagnosticResult:
    """What a line says: a result, or what needs review, with the rank that it is about."""

    text: str
    problem: ProblemLine | None = None
    rank: str = ""


def read_diagnostic(text: str) -> DiagnosticResult | None:
    """Return what follows `NCCL DIAG ` in a line; None for headings and empty lines."""
    match = _LINE.match(text)
    if match is None or _HEADING.match(match["text"]) or not match["text"].strip():
        return None
    said = _COMMUNICATOR.sub("", match["text"].strip())
    if match["tag"] in (None, "OK"):
        return DiagnosticResult(said)
    found = catalogue("nccl-diagnostics").find(said)
    if found is None:
        return DiagnosticResult(said, ProblemLine(None, DIAGNOSTICS_KIND))
    if found.message.weight == Weight.HARMLESS.value:
        return DiagnosticResult(said)
    host = found.values.get("host")
    rank = f"rank {found.values['rank']} ({host})" if host and "rank" in found.values else ""
    return DiagnosticResult(said, ProblemLine(found), rank)


# Problems that a test between the nodes can narrow down.
_BETWEEN_NODES = ("completion-", "watchdog-timeout", "watchdog-failure", "async-event", "connect-queue")
_MEASURED_NETWORKS = re.compile(r"(?:IB|IBext|SPCX|NCCL RDMA Plugin)(?:[_ ]|$)")


def is_recommended(facts: LogFacts) -> bool:
    """Return whether diagnostics help the next run: errors between nodes that this NCCL can measure."""
    versions = [leading_version(version.text) for version in facts.versions]
    if not versions or min(versions) < SINCE_NETWORK:
        return False
    kinds = [problem.kind for problem in facts.problems]
    networks = [network.text for network in facts.networks]
    return (
        not facts.diagnostics
        and not any(kind.startswith(DIAGNOSTICS_KIND) for kind in kinds)
        and any(kind.startswith(_BETWEEN_NODES) for kind in kinds)
        and bool(networks)
        and all(_MEASURED_NETWORKS.match(name) for name in networks)
        and facts.communicators.nodes != 1
    )
