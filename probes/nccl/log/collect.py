"""Collect what the lines say, in bounded memory: totals are complete, tables end at a limit."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from probes.base.text import printable
from probes.messages.catalogue import catalogue, explain
from probes.messages.message import Context, Weight, version_numbers
from probes.nccl.log.channels import SINGLE, ChannelLine, ChannelTable, Count
from probes.nccl.log.diagnostics import read_diagnostic
from probes.nccl.log.facts import (
    Capability,
    Communicators,
    Distance,
    LogFacts,
    LogFile,
    Mention,
    Place,
    Problem,
    Rings,
    Setting,
)
from probes.nccl.log.grammar import (
    REPEATED,
    Header,
    Kind,
    before_next_header,
    devices_in,
    distance_word,
    parse,
)
from probes.nccl.log.problems import ProblemLine, context_of, problem_of, unequal_mtu
from probes.nccl.variables.catalogue import meaning_of


def with_skipped(seen: Mention, alike: Alike) -> Mention:
    """Add the lines that were only counted."""
    last = Place(alike.file, alike.line)
    is_later = last.file != seen.last.file or last.line > seen.last.line
    return replace(seen, count=seen.count + alike.skipped, last=last if is_later else seen.last)


@dataclass
class Alike:
    """Lines that differ only in numbers."""

    read: int = 0
    skipped: int = 0
    problem: object = None  # the key of their problem; None: its table is full
    file: str = ""  # of the last line that was skipped
    line: int = 0


@dataclass
class Tally:
    """A row: what its first line says, and how many lines say so."""

    text: str
    first: Place
    last: Place
    detail: object
    count: int = 1

    def mention(self) -> Mention:
        """Return the row as a fact."""
        return Mention(self.text, self.count, self.first, self.last)


MOST_ROWS = 256  # of every other table
MOST_ALIKE = 1000  # warnings alike, but for numbers, that are looked up; further ones are only counted
ALIKE_BYTES = 130  # of a warning, which decide that it is like another one
_MOST_KINDS = 4096  # of warnings
_MOST_CHANNEL_LINES = 1 << 15  # that differ in more than the channel: 8 of each of MOST_RANKS
_MOST_REPORTERS = 8
_OTHER_PROGRAMS = frozenset(("libfabric", "rdma-core", "SHARP", "UCC", "UCX"))
_MESSAGES_OF_TABLES = ("nccl-no-ib-device", "no-verbs")
_AT_INFO = (Weight.CRITICAL, Weight.WARNING, Weight.NOTE)  # what NCCL calls INFO and is worth a line
_NUMBERS = b"0123456789abcdef"  # decimal and hexadecimal
_CHANNELS = ("NCCL INFO Channel", "NCCL INFO CollNet", "NCCL INFO Ring")
_DIGITS = re.compile(r"\d+")
_TORCH_RANK = re.compile(r"\[rank(\d{1,9})\]|\bRank (\d{1,9})\]")
_COMPLETED = re.compile(r"last completed (?:NCCL )?work: (-?\d{1,20})")


class Collector:
    """What the lines read so far say.

    `writers`: pids and the host names that go with each; only their lines count. A line without a prefix
    counts after the first line of one of them in the same file. None: all lines count.
    """

    def __init__(self, writers: Mapping[int, frozenset[str]] | None = None) -> None:
        self._writers = writers
        self._has_begun = writers is None
        self.other_lines = 0  # of other writers
        self.nccl_lines = 0
        self._cut = 0
        self._left_out = 0
        self._alike: dict[bytes, Alike] = {}
        self._newest_alike: Alike | None = None
        self._messages: set[str] = set()  # ids of those that were read
        self._nothing: set[bytes] = set()  # lines that are no message, but for their numbers
        self._slowest: tuple[int, str, Place] | None = None  # last completed work
        self._tables: dict[str, dict[object, Tally]] = {}
        self._reporters: dict[object, dict[str, None]] = {}
        self._channels = ChannelTable()
        self._rings = Rings()
        self._comms = Communicators()
        self.channel_lines: dict[tuple[bytes, bytes], ChannelLine] = {}
        self._repeats = 1  # that the line stands for
        self._takers: dict[Kind, Callable[[re.Match[str], Place, Header | None, bool], None]] = {
            Kind.CAPABILITY: self._capability,
            Kind.DISTANCE: self._distance,
            Kind.RINGS: self._ring,
            Kind.NETWORK: self._network,
            Kind.DMABUF: partial(self._mention, "dmabuf"),
            Kind.SETTING: self._setting,
            Kind.COMMUNICATOR: self._communicator,
            Kind.INIT: self._init,
            Kind.USING: self._using,
            Kind.NO_DEVICE: partial(self._mention, "nccl-no-ib-device"),
            Kind.NO_VERBS: partial(self._mention, "no-verbs"),
            Kind.QUEUE_PAIR: self._queue_pair,
            Kind.PLUGIN: self._plugin,
            Kind.NVLS: partial(self._numbered, "nvls"),
            Kind.VERSION: self._version,
            Kind.WARNING: self._warning,
            Kind.MESSAGE: self._message,
            Kind.NOTICE: self._notice,
            Kind.DIAGNOSTIC: self._diagnostic,
            Kind.TORCH: self._torch,
        }

    def skips(self, warning: bytes, file: str, line: int) -> bool:
        """Return whether too many warnings that begin like this one were read; it is only counted then.

        `warning`: at most ALIKE_BYTES.
        """
        if not self._is_flood(warning, file, line):
            return False
        self.nccl_lines += 1
        return True

    def take(self, text: str, place: Place, header: Header | None, is_whole: bool, lines: int = 1) -> None:
        """Read a line from its word "NCCL" on; `is_whole`: its end is there; `lines`: how many are equal."""
        if not self._counts(header):
            self.other_lines += lines
            return
        self.nccl_lines += lines
        self._repeats = 1
        if "x across cluster]" in text and (repeated := REPEATED.search(text)):
            self._repeats = max(1, int(repeated[1]))
            text = text[: repeated.start()]
        message = text
        if not text.startswith(_CHANNELS):  # which read their own end
            message = before_next_header(text)
            is_whole = is_whole and len(message) == len(text)
        said = parse(message)
        if said is None:
            self._channels.unparsed(text, place, header, is_whole)
            return
        kind, match = said
        if kind in (Kind.CHANNEL, Kind.COLLNET):
            count = SINGLE if lines == self._repeats == 1 else Count(lines, self._repeats)
            take = self._channels.channel if kind is Kind.CHANNEL else self._channels.collnet
            take(match, place, header, is_whole, count)
        else:
            self._takers[kind](match, place, header, is_whole)

    def remember(self, key: tuple[bytes, bytes], line: ChannelLine) -> None:
        """Let the reader only count lines with the same writer and text; a full table begins again."""
        if len(self.channel_lines) >= _MOST_CHANNEL_LINES:
            self._take_counted()
            self.channel_lines.clear()
        self.channel_lines[key] = line

    def _take_counted(self) -> None:
        for line in self.channel_lines.values():
            if line.count:
                self.take(line.text, line.place, line.header, True, line.count)
                line.count = 0

    def begin_file(self) -> None:
        """Begin another file, in which no writer was seen yet."""
        self._take_counted()
        self.channel_lines.clear()
        self._has_begun = self._writers is None

    def _counts(self, header: Header | None) -> bool:
        if self._writers is None or header is None:
            return self._has_begun
        hosts = self._writers.get(header.pid)
        if hosts is None:
            return False
        # In glued lines the end of another line stands directly before the host's name.
        is_own = not hosts or header.host in hosts or (header.is_glued and header.host.endswith(tuple(hosts)))
        self._has_begun |= is_own
        return is_own

    def facts(self, files: tuple[LogFile, ...]) -> LogFacts:
        """Return all that was read."""
        self._take_counted()
        versions, settings = self._mentions("version"), self._settings()
        networks, nics = self._mentions("network"), self._mentions("nic")
        beside = self._messages | {name for name in _MESSAGES_OF_TABLES if name in self._tables}
        problems = self._problems(context_of(versions, settings, networks, nics, frozenset(beside)))
        return LogFacts(
            files=files,
            nccl_lines=self.nccl_lines,
            cut_lines=self._cut + self._channels.cut,
            versions=versions,
            networks=networks,
            plugins=self._mentions("plugin"),
            nics=nics,
            no_device=next(iter(self._mentions("nccl-no-ib-device")), None),
            no_verbs=next(iter(self._mentions("no-verbs")), None),
            capabilities=self._capabilities(),
            distances=self._distances(versions),
            dmabuf=next(iter(self._mentions("dmabuf")), None),
            nvls=self._mentions("nvls"),
            diagnostics=self._mentions("diagnostics"),
            rings=self._rings,
            communicators=self._comms,
            settings=settings,
            problems=problems,
            ranks=self._channels.all_ranks(),
            more_ranks=self._channels.more_ranks,
            send=self._channels.totals.channels("send"),
            receive=self._channels.totals.channels("receive"),
            flushes=dict(self._channels.flushes),
            local_channels=self._channels.local,
            nvlink_channels=self._channels.nvlink,
            repeated_channels=self._channels.repeated,
            first_unknown=self._channels.totals.first_unknown,
            left_out=self._left_out,
        )

    # Tables

    def _tally(self, table: str, key: object, text: str, place: Place, detail: object = None) -> bool:
        """Count a text; return False if its table is full."""
        rows = self._tables.setdefault(table, {})
        row = rows.get(key)
        if row is not None:
            if table == "problem" and row.last == place:  # the line has two words that gdrtop looks for
                return True
            row.count += 1
            row.last = place
            return True
        if len(rows) >= MOST_ROWS:
            self._left_out += 1
            return False
        rows[key] = Tally(printable(text, 400).strip(), place, place, detail)
        return True

    def _mentions(self, table: str) -> tuple[Mention, ...]:
        return tuple(row.mention() for row in self._tables.get(table, {}).values())

    def _rows(self, table: str) -> list[tuple[object, Any, Mention]]:
        return [(key, row.detail, row.mention()) for key, row in self._tables.get(table, {}).items()]

    # Other lines

    def _capability(self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool) -> None:
        network, state, number, name = match.groups()
        key = (network, state, int(number), name)
        self._tally("capability", key, match[0], place, key)

    def _capabilities(self) -> tuple[Capability, ...]:
        found = []
        for _, (network, state, number, name), seen in self._rows("capability"):
            shown = printable(network, 64), printable(name, 200)
            found.append(Capability(shown[0], number, shown[1], state == "Enabled", seen))
        return tuple(found)

    def _distance(self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool) -> None:
        state, gpu, nic, gpu_id, nic_id, distance, limit, read = match.groups()
        key = (state, gpu or gpu_id, nic or nic_id, int(distance), int(limit), read)
        self._tally("distance", key, match[0], place, key)

    def _distances(self, versions: tuple[Mention, ...]) -> tuple[Distance, ...]:
        numbers = {version_numbers(version.text) for version in versions}
        version = numbers.pop() if len(numbers) == 1 and () not in numbers else None
        found = []
        for _, (state, gpu, nic, distance, limit, read), seen in self._rows("distance"):
            words = None
            if version is not None:
                pair = distance_word(version, distance), distance_word(version, limit)
                words = (pair[0], pair[1]) if pair[0] is not None and pair[1] is not None else None
            reads = None if read is None else read == "1"
            found.append(Distance(state == "Enabled", gpu, nic, distance, limit, words, reads, seen))
        return tuple(found)

    def _ring(self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool) -> None:
        rings = self._rings
        no_gdr = match[2] == "0"
        self._rings = replace(
            rings,
            connected=rings.connected + 1,
            gdr=rings.gdr + (match[2] == "1"),
            no_gdr=rings.no_gdr + no_gdr,
            first_no_gdr=rings.first_no_gdr or (place if no_gdr else None),
        )

    def _network(self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool) -> None:
        if is_whole:
            name = match[1].strip()
            self._tally("network", name, name, place)

    def _mention(
        self, table: str, match: re.Match[str], place: Place, header: Header | None, is_whole: bool
    ) -> None:
        self._tally(table, "", match[0], place)

    def _setting(self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool) -> None:
        if not is_whole:
            self._cut += 1
            return
        name, value = match[1], match[2].strip()
        number = value.removesuffix(".")
        value = printable(number if number.lstrip("-").isdecimal() else value, 200)
        self._tally("setting", (name, value), match[0], place, (name, value))

    def _settings(self) -> tuple[Setting, ...]:
        rows = self._rows("setting")
        return tuple(Setting(name, value, meaning_of(name, value), seen) for _, (name, value), seen in rows)

    def _communicator(
        self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool
    ) -> None:
        comms = self._comms
        largest, nodes = max(comms.largest, int(match[2])), max(comms.nodes, int(match[3]))
        self._comms = replace(comms, largest=largest, nodes=nodes)

    def _init(self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool) -> None:
        comms, size = self._comms, int(match[2])
        started, completed = match[3] == "START", match[3] == "COMPLETE"
        self._comms = replace(
            comms,
            largest=max(comms.largest, size),
            started=comms.started + started * self._repeats,
            completed=comms.completed + completed * self._repeats,
        )
        rank = self._channels.rank_of(header, int(match[1]))
        if rank is not None and size > rank.world:
            rank.rank, rank.world = int(match[1]), size

    def _using(self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool) -> None:
        devices = devices_in(match[2]) if match[1] == "IB" else []
        for name in devices if is_whole else devices[:-1]:
            self._tally("nic", name, name, place)

    def _numbered(
        self, table: str, match: re.Match[str], place: Place, header: Header | None, is_whole: bool
    ) -> None:
        """Count a text with others that differ only in their numbers."""
        self._tally(table, _DIGITS.sub("#", match[1]), match[1], place)

    def _version(self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool) -> None:
        if is_whole or version_numbers(match[1]):
            self._tally("version", match[1], match[1], place)

    def _queue_pair(self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool) -> None:
        if header is not None:
            self._tally("mtu", (header.host, match[1]), match[0], place, (header.host, match[1]))

    # Messages

    def _warning(self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool) -> None:
        source = "" if header is None else header.source
        text = match.string.removeprefix("NCCL WARN ")
        self._problem(ProblemLine(catalogue().find(f"{source} NCCL WARN {text}")), text, place, header)

    def _notice(self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool) -> None:
        text = match.string.removeprefix("NCCL ATTN ")
        self._problem(ProblemLine(catalogue().find(text), "notice", is_notice=True), text, place, header)

    def _plugin(self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool) -> None:
        self._numbered("plugin", match, place, header, is_whole)
        self._asked(match[0], place, header, _AT_INFO[:2])

    def _message(self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool) -> None:
        self._asked(match[0], place, header, _AT_INFO)

    def other(self, text: str, place: Place, version: str | None = None) -> None:
        """Read a line of another library, or RCCL's version."""
        if not self._has_begun:
            return
        if version is not None:
            self._tally("version", version, version, place)
        else:
            self._asked(text, place, None, _AT_INFO, _OTHER_PROGRAMS)

    def _asked(
        self,
        text: str,
        place: Place,
        header: Header | None,
        weights: tuple[Weight, ...],
        programs: frozenset[str] = frozenset(),
    ) -> None:
        """Ask what a line means that need not mean anything."""
        begin = text[:ALIKE_BYTES].encode("utf-8", "replace")
        alike = begin.translate(None, _NUMBERS)
        if alike in self._nothing:
            return
        found = catalogue().find(text)
        if found is not None and found.message.is_general:
            found = None
        if found is None or (programs and found.message.program not in programs):
            is_said = False
        else:
            is_said = explain(found).weight in weights
        if is_said and not self._is_flood(begin, place.file, place.line):
            self._problem(ProblemLine(found), text, place, header)
        elif not is_said and len(self._nothing) < _MOST_KINDS:
            self._nothing.add(alike)

    def _diagnostic(self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool) -> None:
        result = read_diagnostic(match[1])
        if result is None:
            return
        if result.problem is None:
            self._tally("diagnostics", _DIGITS.sub("#", result.text), result.text, place)
        else:
            self._problem(result.problem, result.text, place, header, result.rank)

    def _torch(self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool) -> None:
        said = _TORCH_RANK.search(match.string)
        rank = "" if said is None else f"rank {said[1] or said[2]}"
        completed = _COMPLETED.search(match.string)
        if completed is not None and rank:
            work = int(completed[1])
            if self._slowest is None or work < self._slowest[0]:
                self._slowest = (work, rank, place)
        begin = match.string[:ALIKE_BYTES].encode("utf-8", "replace")
        found = catalogue().find(match.string)
        if found is not None and not self._is_flood(begin, place.file, place.line):
            self._problem(ProblemLine(found), match.string, place, header, rank)

    def _is_flood(self, text: bytes, file: str, line: int) -> bool:
        """Return whether too many lines like this one were read; they are only counted."""
        key = text.translate(None, _NUMBERS)
        alike = self._alike.get(key)
        if alike is None:
            if len(self._alike) >= _MOST_KINDS:
                self._left_out += 1
                return True
            alike = self._alike[key] = Alike()
        self._newest_alike = alike
        if alike.read < MOST_ALIKE:
            alike.read += 1
            return False
        alike.skipped += 1
        alike.file, alike.line = file, line
        self._left_out += alike.problem is None
        return True

    def _problem(
        self, line: ProblemLine, text: str, place: Place, header: Header | None, reporter: str = ""
    ) -> None:
        kind, what = line.kind, text
        if line.found is not None:
            self._messages.add(line.found.message.id)
            meaning = explain(line.found)
            kind, what = meaning.id, meaning.title
        key = (kind, _DIGITS.sub("#", what)[:120])
        if header is not None:
            reporter = f"{header.host}:{header.pid}[{header.device}]"
        is_listed = self._tally("problem", key, text, place, line)
        alike, self._newest_alike = self._newest_alike, None
        if alike is not None and is_listed:
            alike.problem = key
        if is_listed and reporter:
            reporters = self._reporters.setdefault(key, {})
            if len(reporters) < _MOST_REPORTERS:
                reporters[reporter] = None

    def _problems(self, context: Context) -> tuple[Problem, ...]:
        mtus: dict[str, dict[str, Mention]] = {}
        for _, (host, mtu), seen in self._rows("mtu"):
            mtus.setdefault(host, {})[mtu] = seen
        unequal = unequal_mtu(mtus, context.version)
        found: list[Problem] = []
        skipped: dict[object, list[Alike]] = {}
        for alike in self._alike.values():
            if alike.skipped:
                skipped.setdefault(alike.problem, []).append(alike)
        for key, line, seen in self._rows("problem"):
            for alike in skipped.get(key, ()):
                seen = with_skipped(seen, alike)
            problem = problem_of(line, context, seen, tuple(self._reporters.get(key, ())))
            if self._slowest is not None and _COMPLETED.search(seen.text):
                work, rank, place = self._slowest
                lowest = f"The lowest last completed work in the log is {work}, on {rank} ({place})."
                problem = replace(problem, cause=f"{problem.cause} {lowest}".strip())
            found.append(problem)
        files = {
            name: number for number, name in enumerate(dict.fromkeys(each.seen.first.file for each in found))
        }
        found.sort(key=lambda each: (files[each.seen.first.file], each.seen.first.line))
        return (*found,) if unequal is None else (unequal, *found)
