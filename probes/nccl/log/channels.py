"""Count the network channels of each rank."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from probes.base.text import printable
from probes.nccl.log.facts import Channels, Place, Rank
from probes.nccl.log.grammar import NETWORK_PATH, TORN_INIT, Header

MOST_RANKS = 4096
_MOST_DEVICES = 16
_MOST_FLUSHES = 8  # NCCL has three kinds
_CHANNEL_START = re.compile(r"NCCL INFO (?:Channel|CollNet|Ring) \d[^\r\n]{0,80}\[(send|receive)\]")
_PATH_ENDS = re.compile(r"$|[\s\"'`,;|\\<>(){}\[\]]")
"""What ends a path, as in JSON, CSV and HTML; RCCL goes on after a blank. A torn line goes on with a word."""
_ACROSS_NODES = "P2P/MNNVL"
_RankKey = tuple[str, int, int]


class Line(NamedTuple):
    """A line of which a pattern was found."""

    match: re.Match[str]
    place: Place
    header: Header | None
    is_whole: bool  # its end is there
    lines: int = 1  # for how many equal ones it stands
    repeats: int = 1  # each, by Ray's mark: "[repeated 7x across cluster]"

    @property
    def reporter(self) -> str:
        """The GPU's process that wrote it; "" if it does not say so."""
        return "" if self.header is None else f"{self.header.host}:{self.header.pid}[{self.header.device}]"


@dataclass
class ChannelLine:
    """A line of a channel that was read, and how many since differ only in the number of the channel."""

    text: str
    place: Place
    header: Header
    count: int = 0


@dataclass
class RankCounts:
    """What is counted of one rank, or of all."""

    is_named: bool = False  # its host is certain
    rank: int | None = None
    world: int = 0  # of the communicator that the rank is of
    counts: dict[tuple[str, str], int] = field(default_factory=dict)  # direction, path
    devices: dict[str, None] = field(default_factory=dict)
    pxn: int = 0
    shared: int = 0
    c2c_pci: int = 0
    firsts: dict[str, Place] = field(default_factory=dict)  # by path

    def channels(self, direction: str) -> Channels:
        """Return the channels of a direction."""
        return Channels(*(self.counts.get((direction, path), 0) for path in ("gdr", "staged", "unknown")))

    def merge(self, other: RankCounts) -> None:
        """Add the counts of the same rank."""
        if other.world > self.world or self.rank is None:
            self.rank, self.world = other.rank, other.world
        for key, count in other.counts.items():
            self.counts[key] = self.counts.get(key, 0) + count
        self.devices.update(other.devices)
        self.pxn += other.pxn
        self.shared += other.shared
        self.c2c_pci += other.c2c_pci
        self.firsts = {**other.firsts, **self.firsts}


class ChannelTable:
    """The channels of all ranks; the table of ranks ends at a limit, the totals do not."""

    def __init__(self) -> None:
        self.totals = RankCounts()
        self.local = 0  # inside nodes
        self.nvlink = 0  # of an NVLink domain that may span nodes
        self.flushes: dict[str, int] = {}  # after a receive, by kind
        self.cut = 0  # lines
        self.repeated = 0  # network channels whose lines Ray left out
        self.more_ranks = False
        self._ranks: dict[_RankKey, RankCounts] = {}

    def rank_of(self, header: Header | None, rank: int | None) -> RankCounts | None:
        """Return the counts of the rank that wrote a line; None if the table is full."""
        key = ("", -1, -1 if rank is None else rank)
        if header is not None:
            key = (header.host, header.pid, header.device)
        found = self._ranks.get(key)
        if found is None:
            if len(self._ranks) >= MOST_RANKS:
                self.more_ranks = True
                return None
            found = self._ranks[key] = RankCounts()
        if rank is not None and found.rank is None:
            found.rank = rank
        found.is_named |= header is not None and not header.is_glued
        return found

    def channel(self, line: Line) -> None:
        """Count a line with a channel."""
        sender, receiver, direction, path = line.match.groups()
        if direction is None and not path.startswith("NET/"):
            if path.startswith(_ACROSS_NODES):
                self.nvlink += line.lines * line.repeats
            else:
                self.local += line.lines * line.repeats
            return
        rank = int(receiver if direction == "receive" else sender)
        self._network_path(path, rank, direction or "send", line)

    def collnet(self, line: Line) -> None:
        """Count a line with a channel of CollNet."""
        rank, direction, path = line.match.groups()
        self._network_path(path, int(rank), direction, line)

    def _network_path(self, path: str, rank: int, direction: str, line: Line) -> None:
        match, lines, place = NETWORK_PATH.match(path), line.lines, line.place
        counted_rank = self.rank_of(line.header, rank)
        counted = [each for each in (self.totals, counted_rank) if each is not None]
        if line.repeats > 1:
            # Ray takes lines for equal that differ in words with digits, thus also in rank, network and path.
            self.repeated += (line.repeats - 1) * lines
            self._count([self.totals], direction, "unknown", place, (line.repeats - 1) * lines)
        if match is None:
            self.cut += lines
            self._count(counted, direction, "unknown", place, lines)
            return
        network, number, proxy, gdr, pci, shared, flush, rest = match.groups()
        is_clean = (line.is_whole and not rest.strip()) or bool(rest and _PATH_ENDS.match(rest))
        if not is_clean:
            self.cut += lines
        # Without its end, a line shows nothing, unless what follows the number has begun.
        is_gdr = gdr is not None or rest.startswith("/GD")
        kind = "gdr" if is_gdr else "staged" if is_clean else "unknown"
        self._count(counted, direction, kind, place, lines)
        if flush is not None and (flush in self.flushes or len(self.flushes) < _MOST_FLUSHES):
            self.flushes[flush] = self.flushes.get(flush, 0) + lines
        for each in counted:
            each.pxn += lines * (proxy is not None)
            each.shared += lines * (shared is not None)
            each.c2c_pci += lines * (pci is not None)
            if is_clean and len(each.devices) < _MOST_DEVICES:
                each.devices[printable(f"{network}/{number}", 80)] = None

    @staticmethod
    def _count(counted: list[RankCounts], direction: str, path: str, place: Place, lines: int) -> None:
        for each in counted:
            each.counts[direction, path] = each.counts.get((direction, path), 0) + lines
            each.firsts.setdefault(path, place)

    def unparsed(self, text: str, place: Place, header: Header | None, is_whole: bool) -> None:
        """Count a channel line that ends before its path; it is a network channel with an unknown path."""
        match = _CHANNEL_START.match(text)
        if match is not None:
            self.cut += 1
            self._count([self.totals], match[1], "unknown", place, 1)
        elif not is_whole or TORN_INIT.match(text):
            self.cut += 1

    def all_ranks(self) -> tuple[Rank, ...]:
        """Return the ranks, in the order of their first lines."""
        merged: dict[_RankKey, RankCounts] = {}
        by_pid: dict[tuple[int, int], list[str]] = {}
        for host, pid, device in self._ranks:
            by_pid.setdefault((pid, device), []).append(host)
        for (host, pid, device), rank in self._ranks.items():
            # In glued lines the end of another line stands directly before the host's name.
            others = [] if rank.is_named else by_pid[pid, device]
            own = min((name for name in (host, *others) if host.endswith(name)), key=len)
            merged.setdefault((own, pid, device), RankCounts()).merge(rank)
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
                first_staged=rank.firsts.get("staged"),
                first_gdr=rank.firsts.get("gdr"),
            )
            for (host, pid, device), rank in merged.items()
        )
