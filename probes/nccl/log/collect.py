"""Collect what the lines say, in bounded memory: totals are complete, tables end at a limit."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from probes.base.text import leading_version, printable
from probes.messages.catalogue import catalogue
from probes.messages.message import Context, Weight
from probes.nccl.log.channels import ChannelLine, ChannelTable, Line
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
from probes.nccl.log.messages import (
    MessageTable,
    ProblemLine,
    Table,
    context_of,
    read_diagnostic,
    unequal_mtu,
)
from probes.nccl.variables.catalogue import meaning_of

_MOST_CHANNEL_LINES = 1 << 15  # that differ in more than the channel: 8 of each of MOST_RANKS
_OTHER_PROGRAMS = frozenset(("libfabric", "rdma-core", "SHARP", "UCC", "UCX"))
_MESSAGES_OF_TABLES = ("nccl-no-ib-device", "no-verbs")
_AT_INFO = (Weight.CRITICAL, Weight.WARNING, Weight.NOTE)  # what NCCL calls INFO and is worth a line
_CHANNELS = ("NCCL INFO Channel", "NCCL INFO CollNet", "NCCL INFO Ring")
_DIGITS = re.compile(r"\d+")
_AFTER_RANK = re.compile(r"(?:\[rank(\d{1,9})\]:)?\s*(\S.{0,1500})")
_TORCH_RANK = re.compile(r"\[rank(\d{1,9})\]|\bRank (\d{1,9})\]")


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
        self._tables: defaultdict[str, Table] = defaultdict(Table)
        self._messages = MessageTable()
        self._channels = ChannelTable()
        self._rings = Rings()
        self._comms = Communicators()
        self.channel_lines: dict[tuple[bytes, bytes], ChannelLine] = {}
        self._takers: dict[Kind, Callable[[Line], None]] = {
            Kind.CHANNEL: self._channels.channel,
            Kind.COLLNET: self._channels.collnet,
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
            Kind.WARNING: partial(self._warning, False),
            Kind.MESSAGE: self._message,
            Kind.NOTICE: partial(self._warning, True),
            Kind.DIAGNOSTIC: self._diagnostic,
            Kind.TORCH: self._torch,
        }

    def skips(self, warning: bytes, file: str, line: int) -> bool:
        """Return whether too many warnings that begin like this one were read; it is only counted then.

        `warning`: at most ALIKE_BYTES.
        """
        if not self._messages.is_flood(warning, file, line):
            return False
        self.nccl_lines += 1
        return True

    def take(self, text: str, place: Place, header: Header | None, is_whole: bool, lines: int = 1) -> None:
        """Read a line from its word "NCCL" on; `is_whole`: its end is there; `lines`: how many are equal."""
        if not self._counts(header):
            self.other_lines += lines
            return
        self.nccl_lines += lines
        repeats = 1
        if "x across cluster]" in text and (repeated := REPEATED.search(text)):
            repeats = max(1, int(repeated[1]))
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
        self._takers[kind](Line(match, place, header, is_whole, lines, repeats))

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
        beside = self._messages.ids | {name for name in _MESSAGES_OF_TABLES if self._tables[name].rows}
        problems = self._problems(context_of(versions, settings, nics, frozenset(beside)))
        return LogFacts(
            files=files,
            nccl_lines=self.nccl_lines,
            cut_lines=self._cut + self._channels.cut,
            versions=versions,
            networks=networks,
            plugins=self._mentions("plugin"),
            nics=nics,
            no_device=self._tables["nccl-no-ib-device"].first(),
            no_verbs=self._tables["no-verbs"].first(),
            capabilities=self._capabilities(),
            distances=self._distances(versions),
            dmabuf=self._tables["dmabuf"].first(),
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
            first_unknown=self._channels.totals.firsts.get("unknown"),
            left_out=self._messages.left_out + sum(table.left_out for table in self._tables.values()),
        )

    # Other lines

    def _mentions(self, table: str) -> tuple[Mention, ...]:
        return self._tables[table].mentions()

    def _capability(self, line: Line) -> None:
        network, state, number, name = line.match.groups()
        key = (network, state, int(number), name)
        self._tables["capability"].add(key, line.match[0], line.place, key)

    def _capabilities(self) -> tuple[Capability, ...]:
        found = []
        for row in self._tables["capability"].rows.values():
            network, state, number, name = row.detail
            shown = printable(network, 64), printable(name, 200)
            found.append(Capability(shown[0], number, shown[1], state != "Disabled", row.mention()))
        return tuple(found)

    def _distance(self, line: Line) -> None:
        state, gpu, nic, gpu_id, nic_id, distance, limit, read = line.match.groups()
        key = (state, gpu or gpu_id, nic or nic_id, int(distance), int(limit), read)
        self._tables["distance"].add(key, line.match[0], line.place, key)

    def _distances(self, versions: tuple[Mention, ...]) -> tuple[Distance, ...]:
        numbers = {leading_version(version.text) for version in versions}
        version = numbers.pop() if len(numbers) == 1 and () not in numbers else None
        found = []
        for row in self._tables["distance"].rows.values():
            state, gpu, nic, distance, limit, read = row.detail
            words = None
            if version is not None:
                pair = distance_word(version, distance), distance_word(version, limit)
                words = (pair[0], pair[1]) if pair[0] is not None and pair[1] is not None else None
            reads = None if read is None else read == "1"
            found.append(Distance(state == "Enabled", gpu, nic, distance, limit, words, reads, row.mention()))
        return tuple(found)

    def _ring(self, line: Line) -> None:
        rings = self._rings
        no_gdr = line.match[2] == "0"
        self._rings = replace(
            rings,
            connected=rings.connected + 1,
            gdr=rings.gdr + (line.match[2] == "1"),
            no_gdr=rings.no_gdr + no_gdr,
            first_no_gdr=rings.first_no_gdr or (line.place if no_gdr else None),
        )

    def _network(self, line: Line) -> None:
        if line.is_whole:
            name = line.match[1].strip()
            self._tables["network"].add(name, name, line.place)

    def _mention(self, table: str, line: Line) -> None:
        self._tables[table].add("", line.match[0], line.place)

    def _setting(self, line: Line) -> None:
        if not line.is_whole:
            self._cut += 1
            return
        name, value = line.match[1], line.match[2].strip()
        number = value.removesuffix(".")
        value = printable(number if number.lstrip("-").isdecimal() else value, 200)
        self._tables["setting"].add((name, value), line.match[0], line.place, (name, value))

    def _settings(self) -> tuple[Setting, ...]:
        found = []
        for row in self._tables["setting"].rows.values():
            name, value = row.detail
            found.append(Setting(name, value, meaning_of(name, value), row.mention()))
        return tuple(found)

    def _communicator(self, line: Line) -> None:
        comms = self._comms
        largest, nodes = max(comms.largest, int(line.match[2])), max(comms.nodes, int(line.match[3]))
        self._comms = replace(comms, largest=largest, nodes=nodes)

    def _init(self, line: Line) -> None:
        comms, size = self._comms, int(line.match[2])
        started, completed = line.match[3] == "START", line.match[3] == "COMPLETE"
        self._comms = replace(
            comms,
            largest=max(comms.largest, size),
            started=comms.started + started * line.repeats,
            completed=comms.completed + completed * line.repeats,
        )
        rank = self._channels.rank_of(line.header, int(line.match[1]))
        if rank is not None and size > rank.world:
            rank.rank, rank.world = int(line.match[1]), size

    def _using(self, line: Line) -> None:
        devices = devices_in(line.match[2]) if line.match[1] == "IB" else []
        for name in devices if line.is_whole else devices[:-1]:
            self._tables["nic"].add(name, name, line.place)

    def _numbered(self, table: str, line: Line) -> None:
        """Count a text with others that differ only in their numbers."""
        self._tables[table].add(_DIGITS.sub("#", line.match[1]), line.match[1], line.place)

    def _version(self, line: Line) -> None:
        if line.is_whole or leading_version(line.match[1]):
            self._tables["version"].add(line.match[1], line.match[1], line.place)

    def _queue_pair(self, line: Line) -> None:
        if line.header is not None:
            key = (line.header.host, line.match[1])
            self._tables["mtu"].add(key, line.match[0], line.place, key)

    # Messages

    def _warning(self, is_notice: bool, line: Line) -> None:
        # Some messages are known by the source that wrote them.
        source = "" if line.header is None else f"{line.header.source} "
        found = catalogue().find(f"{source}{line.match.string}")
        said = ProblemLine(found, "notice" if is_notice else "warning", is_notice)
        self._messages.add(said, line.match.string[len("NCCL WARN ") :], line.place, line.reporter)

    def _plugin(self, line: Line) -> None:
        self._numbered("plugin", line)
        self._messages.ask(line.match[0], line.place, line.reporter, _AT_INFO[:2])

    def _message(self, line: Line) -> None:
        self._messages.ask(line.match[0], line.place, line.reporter, _AT_INFO)

    def other(self, text: str, place: Place, version: str | None = None) -> None:
        """Read a line of another library, or RCCL's version."""
        if not self._has_begun:
            return
        if version is not None:
            self._tables["version"].add(version, version, place)
        else:
            self._messages.ask(text, place, "", _AT_INFO, _OTHER_PROGRAMS)

    def last_error(self, text: str, place: Place) -> None:
        """Read the line after “Last error:” as the WARN that it repeats."""
        match = _AFTER_RANK.match(text)
        if self._has_begun and match is not None and "NCCL WARN " not in text:
            found = catalogue().find(match[2])
            self._messages.add(ProblemLine(found), match[2], place, f"rank {match[1]}" if match[1] else "")

    def _diagnostic(self, line: Line) -> None:
        result = read_diagnostic(line.match[1])
        if result is None:
            return
        if result.problem is None:
            self._tables["diagnostics"].add(_DIGITS.sub("#", result.text), result.text, line.place)
        else:
            self._messages.add(result.problem, result.text, line.place, line.reporter or result.rank)

    def _torch(self, line: Line) -> None:
        said = _TORCH_RANK.search(line.match.string)
        rank = "" if said is None else f"rank {said[1] or said[2]}"
        self._messages.of_torch(line.match.string, line.place, line.reporter or rank)

    def _problems(self, context: Context) -> tuple[Problem, ...]:
        mtus: dict[str, dict[str, Mention]] = {}
        for row in self._tables["mtu"].rows.values():
            host, mtu = row.detail
            mtus.setdefault(host, {})[mtu] = row.mention()
        unequal = unequal_mtu(mtus, context.version)
        found = self._messages.problems(context)
        return (*found,) if unequal is None else (unequal, *found)
