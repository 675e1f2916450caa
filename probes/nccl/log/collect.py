"""Collect what the lines say, in bounded memory: totals are complete, tables end at a limit."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from probes.base.text import printable
from probes.nccl.log.distances import distance_word, version_numbers
from probes.nccl.log.facts import (
    Capability,
    Channels,
    Communicators,
    Distance,
    LogFacts,
    LogFile,
    Mention,
    Place,
    Problem,
    Rank,
    Rings,
    Setting,
)
from probes.nccl.log.grammar import NETWORK_PATH, Kind, devices_in, parse
from probes.nccl.log.prefix import Header, before_next_header
from probes.nccl.log.problems import Explanation, explain_torch, explain_warning
from probes.nccl.log.variables import MEANINGS

MOST_RANKS = 4096
MOST_ROWS = 256  # of every other table
MOST_EXPLAINED = 50_000  # warnings that are looked up; further ones are only counted
_MOST_DEVICES = 16
_MOST_REPORTERS = 8
_DIGITS = re.compile(r"\d+")
_CHANNEL_START = re.compile(r"NCCL INFO (?:Channel|CollNet) \d[^\r\n]{0,80}\[(send|receive)\]")
_TORCH_RANK = re.compile(r"\[rank(\d{1,9})\]|\bRank (\d{1,9})\]")
_COMPLETED = re.compile(r"last completed work: (-?\d{1,20})")
_RankKey = tuple[str, int, int]


@dataclass
class _Tally:
    text: str
    first: Place
    last: Place
    count: int = 1

    def mention(self) -> Mention:
        return Mention(self.text, self.count, self.first, self.last)


@dataclass
class _Rank:
    rank: int | None = None
    world: int = 0  # of the communicator that the rank is of
    counts: dict[tuple[str, str], int] = field(default_factory=dict)  # direction, path
    devices: dict[str, None] = field(default_factory=dict)
    pxn: int = 0
    shared: int = 0
    c2c_pci: int = 0
    first_staged: Place | None = None
    first_gdr: Place | None = None

    def channels(self, direction: str) -> Channels:
        return Channels(*(self.counts.get((direction, path), 0) for path in ("gdr", "staged", "unknown")))

    def merge(self, other: _Rank) -> None:
        if other.world > self.world or self.rank is None:
            self.rank, self.world = other.rank, other.world
        for key, count in other.counts.items():
            self.counts[key] = self.counts.get(key, 0) + count
        self.devices.update(other.devices)
        self.pxn += other.pxn
        self.shared += other.shared
        self.c2c_pci += other.c2c_pci
        self.first_staged = self.first_staged or other.first_staged
        self.first_gdr = self.first_gdr or other.first_gdr


class Collector:
    """What the lines read so far say."""

    def __init__(self) -> None:
        self.nccl_lines = 0
        self._cut = 0
        self._left_out = 0
        self._explained = 0
        self._slowest: tuple[int, str, Place] | None = None  # last completed work
        self._tables: dict[str, dict[object, _Tally]] = {}
        self._details: dict[tuple[str, object], object] = {}
        self._reporters: dict[object, dict[str, None]] = {}
        self._ranks: dict[_RankKey, _Rank] = {}
        self._more_ranks = False
        self._totals = _Rank()
        self._local = 0
        self._rings = Rings()
        self._comms = Communicators()
        self._takers: dict[Kind, Callable[[re.Match[str], Place, Header | None, bool], None]] = {
            Kind.CHANNEL: self._channel,
            Kind.COLLNET: self._collnet,
            Kind.CAPABILITY: self._capability,
            Kind.DISTANCE: self._distance,
            Kind.RINGS: self._ring,
            Kind.NETWORK: self._network,
            Kind.DMABUF: self._dmabuf,
            Kind.SETTING: self._setting,
            Kind.COMMUNICATOR: self._communicator,
            Kind.INIT: self._init,
            Kind.USING: self._using,
            Kind.NO_DEVICE: self._no_device,
            Kind.PLUGIN: self._plugin,
            Kind.NVLS: self._nvls,
            Kind.VERSION: self._version,
            Kind.WARNING: self._warning,
            Kind.TORCH: self._torch,
        }

    def take(self, text: str, place: Place, header: Header | None, is_whole: bool) -> None:
        """Read a line from its word "NCCL" on; `is_whole`: its end is there."""
        self.nccl_lines += 1
        if self._explained >= MOST_EXPLAINED and text.startswith("NCCL WARN"):
            self._left_out += 1
            return
        message = text
        if not text.startswith(("NCCL INFO Channel", "NCCL INFO CollNet")):  # which read their own end
            message = before_next_header(text)
            is_whole = is_whole and len(message) == len(text)
        said = parse(message)
        if said is None:
            self._unparsed(text, place, header, is_whole)
            return
        kind, match = said
        self._takers[kind](match, place, header, is_whole)

    def facts(self, files: tuple[LogFile, ...]) -> LogFacts:
        """Return all that was read."""
        versions = self._mentions("version")
        return LogFacts(
            files=files,
            nccl_lines=self.nccl_lines,
            cut_lines=self._cut,
            versions=versions,
            networks=self._mentions("network"),
            plugins=self._mentions("plugin"),
            nics=self._mentions("nic"),
            no_device=next(iter(self._mentions("no-device")), None),
            capabilities=self._capabilities(),
            distances=self._distances(versions),
            dmabuf=next(iter(self._mentions("dmabuf")), None),
            nvls=self._mentions("nvls"),
            rings=self._rings,
            communicators=self._comms,
            settings=self._settings(),
            problems=self._problems(),
            ranks=self._all_ranks(),
            more_ranks=self._more_ranks,
            send=self._totals.channels("send"),
            receive=self._totals.channels("receive"),
            local_channels=self._local,
            left_out=self._left_out,
        )

    # Tables

    def _tally(self, table: str, key: object, text: str, place: Place, detail: object = None) -> bool:
        """Count a text; return False if its table is full."""
        rows = self._tables.setdefault(table, {})
        row = rows.get(key)
        if row is not None:
            row.count += 1
            row.last = place
            return True
        if len(rows) >= MOST_ROWS:
            self._left_out += 1
            return False
        rows[key] = _Tally(printable(text, 400).strip(), place, place)
        self._details[table, key] = detail
        return True

    def _mentions(self, table: str) -> tuple[Mention, ...]:
        return tuple(row.mention() for row in self._tables.get(table, {}).values())

    def _rows(self, table: str) -> list[tuple[object, object, Mention]]:
        return [
            (key, self._details[table, key], row.mention())
            for key, row in self._tables.get(table, {}).items()
        ]

    # Channels

    def _rank_of(self, header: Header | None, rank: int | None) -> _Rank | None:
        key = ("", -1, -1 if rank is None else rank)
        if header is not None:
            key = (header.host, header.pid, header.device)
        found = self._ranks.get(key)
        if found is None:
            if len(self._ranks) >= MOST_RANKS:
                self._more_ranks = True
                return None
            found = self._ranks[key] = _Rank()
        if rank is not None and found.rank is None:
            found.rank = rank
        return found

    def _channel(self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool) -> None:
        sender, receiver, direction, path = match.groups()
        if direction is None:
            self._local += 1
            return
        rank = int(sender if direction == "send" else receiver)
        self._network_path(path, rank, direction, place, header, is_whole)

    def _collnet(self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool) -> None:
        rank, direction, path = match.groups()
        self._network_path(path, int(rank), direction, place, header, is_whole)

    def _network_path(
        self, path: str, rank: int, direction: str, place: Place, header: Header | None, is_whole: bool
    ) -> None:
        match = NETWORK_PATH.match(path)
        one = self._rank_of(header, rank)
        counted = [each for each in (self._totals, one) if each is not None]
        if match is None:
            self._cut += 1
            self._count(counted, direction, "unknown", place)
            return
        network, number, proxy, gdr, pci, shared, rest = match.groups()
        is_clean = is_whole and not rest.strip()
        if not is_clean:
            self._cut += 1
        # Without its end, a line that has no /GDRDMA yet shows nothing.
        self._count(counted, direction, "gdr" if gdr else "staged" if is_clean else "unknown", place)
        for each in counted:
            each.pxn += proxy is not None
            each.shared += shared is not None
            each.c2c_pci += pci is not None
            if is_clean and len(each.devices) < _MOST_DEVICES:
                each.devices[printable(f"{network}/{number}", 80)] = None

    @staticmethod
    def _count(counted: list[_Rank], direction: str, path: str, place: Place) -> None:
        for each in counted:
            each.counts[direction, path] = each.counts.get((direction, path), 0) + 1
            if path == "gdr":
                each.first_gdr = each.first_gdr or place
            elif path == "staged":
                each.first_staged = each.first_staged or place

    def _unparsed(self, text: str, place: Place, header: Header | None, is_whole: bool) -> None:
        """Count a channel line that ends before its path; it is a network channel with an unknown path."""
        match = _CHANNEL_START.match(text)
        if match is not None:
            self._cut += 1
            self._count([self._totals], match[1], "unknown", place)
        elif not is_whole:
            self._cut += 1

    def _all_ranks(self) -> tuple[Rank, ...]:
        merged: dict[_RankKey, _Rank] = {}
        by_pid: dict[tuple[int, int], list[str]] = {}
        for host, pid, device in self._ranks:
            by_pid.setdefault((pid, device), []).append(host)
        for (host, pid, device), rank in self._ranks.items():
            # In glued lines the end of another line stands directly before the host's name.
            own = min((name for name in by_pid[pid, device] if host.endswith(name)), key=len)
            merged.setdefault((own, pid, device), _Rank()).merge(rank)
        return tuple(
            Rank(
                host=host,
                pid=None if pid < 0 else pid,
                device=None if pid < 0 else device,
                rank=rank.rank,
                send=rank.channels("send"),
                receive=rank.channels("receive"),
                devices=tuple(rank.devices),
                pxn=rank.pxn,
                shared=rank.shared,
                c2c_pci=rank.c2c_pci,
                first_staged=rank.first_staged,
                first_gdr=rank.first_gdr,
            )
            for (host, pid, device), rank in merged.items()
        )

    # Other lines

    def _capability(self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool) -> None:
        network, state, number, name = match.groups()
        key = (network, state, int(number), name)
        self._tally("capability", key, match[0], place, key)

    def _capabilities(self) -> tuple[Capability, ...]:
        found = []
        for _, detail, seen in self._rows("capability"):
            assert isinstance(detail, tuple)
            network, state, number, name = detail
            shown = printable(network, 64), printable(name, 200)
            found.append(Capability(shown[0], number, shown[1], state == "Enabled", seen))
        return tuple(found)

    def _distance(self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool) -> None:
        state, gpu, nic, gpu_id, nic_id, distance, limit, read = match.groups()
        key = (state, gpu or gpu_id, nic or nic_id, int(distance), int(limit), read)
        self._tally("distance", key, match[0], place, key)

    def _distances(self, versions: tuple[Mention, ...]) -> tuple[Distance, ...]:
        numbers = {version_numbers(version.text) for version in versions}
        version = numbers.pop() if len(numbers) == 1 else None
        found = []
        for _, detail, seen in self._rows("distance"):
            assert isinstance(detail, tuple)
            state, gpu, nic, distance, limit, read = detail
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

    def _dmabuf(self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool) -> None:
        self._tally("dmabuf", "", match[0], place)

    def _setting(self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool) -> None:
        if not is_whole:
            self._cut += 1
            return
        name, value = match[1], match[2].strip()
        number = value.removesuffix(".")
        value = printable(number if number.lstrip("-").isdecimal() else value, 200)
        self._tally("setting", (name, value), match[0], place, (name, value))

    def _settings(self) -> tuple[Setting, ...]:
        found = []
        for _, detail, seen in self._rows("setting"):
            assert isinstance(detail, tuple)
            name, value = detail
            found.append(Setting(name, value, MEANINGS.get(name, ""), seen))
        return tuple(found)

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
            started=comms.started + started,
            completed=comms.completed + completed,
        )
        rank = self._rank_of(header, int(match[1]))
        if rank is not None and size > rank.world:
            rank.rank, rank.world = int(match[1]), size

    def _using(self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool) -> None:
        devices = devices_in(match[2]) if match[1] == "IB" else []
        for name in devices if is_whole else devices[:-1]:
            self._tally("nic", name, name, place)

    def _no_device(self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool) -> None:
        self._tally("no-device", "", match[0], place)

    def _plugin(self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool) -> None:
        self._tally("plugin", _DIGITS.sub("#", match[1]), match[1], place)

    def _nvls(self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool) -> None:
        self._tally("nvls", _DIGITS.sub("#", match[1]), match[1], place)

    def _version(self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool) -> None:
        if is_whole or version_numbers(match[1]):
            self._tally("version", match[1], match[1], place)

    # Errors

    def _warning(self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool) -> None:
        self._problem(explain_warning, match.string.removeprefix("NCCL WARN "), place, header)

    def _torch(self, match: re.Match[str], place: Place, header: Header | None, is_whole: bool) -> None:
        said = _TORCH_RANK.search(match.string)
        rank = "" if said is None else f"rank {said[1] or said[2]}"
        completed = _COMPLETED.search(match.string)
        if completed is not None and rank:
            work = int(completed[1])
            if self._slowest is None or work < self._slowest[0]:
                self._slowest = (work, rank, place)
        self._problem(explain_torch, match.string, place, header, rank)

    def _problem(
        self,
        explain: Callable[[str], Explanation | None],
        text: str,
        place: Place,
        header: Header | None,
        reporter: str = "",
    ) -> None:
        if self._explained >= MOST_EXPLAINED:
            self._left_out += 1
            return
        self._explained += 1
        explanation = explain(text)
        if explanation is None:
            return
        what = text if explanation.kind == "warning" else explanation.title
        key = (explanation.kind, _DIGITS.sub("#", what)[:120])
        if header is not None:
            reporter = f"{header.host}:{header.pid}[{header.device}]"
        if self._tally("problem", key, text, place, explanation) and reporter:
            reporters = self._reporters.setdefault(key, {})
            if len(reporters) < _MOST_REPORTERS:
                reporters[reporter] = None

    def _problems(self) -> tuple[Problem, ...]:
        found = []
        for key, detail, seen in self._rows("problem"):
            assert isinstance(detail, Explanation)
            ranks = tuple(self._reporters.get(key, ()))
            title, cause = printable(detail.title, 200), detail.cause
            if detail.kind == "watchdog-failure" and self._slowest is not None:
                work, rank, place = self._slowest
                cause = f"{cause} The lowest last completed work in the log is {work}, of {rank} ({place})."
            found.append(Problem(detail.kind, title, cause, detail.fix, seen, ranks))
        return tuple(found)
