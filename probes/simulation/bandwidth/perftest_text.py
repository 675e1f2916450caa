"""What perftest prints: that of the version of 2025, and its rows as time passes.

probes/bandwidth/tools/perftest.py names the sources.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from probes.bandwidth.tools.perftest_command import PerftestSettings
from probes.base.frozen import frozen
from probes.simulation.bandwidth import speeds
from probes.simulation.bandwidth.playback import NEVER, Line, printed

RULE = "-" * 87
WAITING = printed("perftest", "waiting")
NOT_CONNECTED = printed("perftest", "not-connected")
PEER_GONE = printed("perftest", "peer-gone")
_VERBS = {"write": "RDMA_Write", "read": "RDMA_Read"}
_LATENCIES = (0.985, 1.9, 0.993, 1.0, 0.03, 1.045, 1.9)  # of the average, in the order of the columns
_ALL_SIZES_SECONDS = (0.16, 0.28)  # that a row takes, at least and at most
_LEAST_SECONDS, _MOST_SECONDS = 0.1, 86_400.0
_PEAK = 1.004


@frozen
class UsedPort:
    """The NIC and port of one end."""

    device: str
    is_infiniband: bool
    mtu_bytes: int
    gid_index: int | None = None  # RoCE
    is_addressed: bool = True  # False: RoCE, and its GID is empty
    has_key: bool = True  # False: InfiniBand, and no full member's partition key is at the index


def verb_of(settings: PerftestSettings) -> str:
    """Return "write" or "read"."""
    return settings.tool.split("_")[1]


def head(settings: PerftestSettings, port: UsedPort, number: int) -> tuple[str, ...]:
    """Return the test's name and settings, and this end's address; `number` belongs to the process."""
    kind = "Latency" if settings.is_latency else "Bidirectional BW" if settings.is_bidirectional else "BW"
    lines = printed(
        "perftest",
        "head",
        title=f"{_VERBS[verb_of(settings)]} {kind}",
        device=port.device,
        queue_pairs=settings.queue_pairs,
        mtu=port.mtu_bytes,
        link="IB" if port.is_infiniband else "Ethernet",
        gid="" if port.gid_index is None else f" GID index       : {port.gid_index}\n",
    )
    return (*lines, *addresses("local", settings, number))


def addresses(which: str, settings: PerftestSettings, number: int) -> tuple[str, ...]:
    """Return the lines of one end, "local" or "remote", one for each queue pair."""
    packet = number * 97 % (1 << 24)
    pairs = (number % 0x1000 + pair for pair in range(settings.queue_pairs))
    return tuple(
        line
        for pair in pairs
        for line in printed("perftest", "address", which=which, pair=pair, packet=packet)
    )


def columns(settings: PerftestSettings) -> tuple[str, ...]:
    """Return the table's header."""
    return printed("perftest", "latency-columns" if settings.is_latency else "bandwidth-columns")


def bandwidth_row(size: int, iterations: int, peak_gbps: float, gbps: float) -> str:
    """Return one row; of both directions together if the test is bidirectional."""
    part, rate = "slow-row" if gbps < 0.1 else "bandwidth-row", gbps * 1e9 / 8 / size / 1e6
    figures = {"peak": peak_gbps, "gbps": gbps, "rate": rate}
    return printed("perftest", part, size=size, iterations=iterations, **figures)[0]


def latency_row(size: int, iterations: int, average_us: float) -> str:
    """Return one row of latencies around an average."""
    times = "        ".join(f"{average_us * share:<7.2f}" for share in _LATENCIES)
    return printed("perftest", "latency-row", size=size, iterations=iterations, times=times)[0]


@frozen
class Measurement:
    """One test between two ends from its first message on."""

    settings: PerftestSettings
    since: float
    sustained_gbps: float  # of large messages; of both directions if it is bidirectional
    latency_us: float  # of the smallest message
    seed: int

    def rows(self) -> Iterator[Line]:
        """Yield every row when it is measured; endlessly if the test is endless."""
        if self.settings.is_endless:
            seconds = float(self.settings.duration_s or 5)
            for number in count(1):
                yield self._row(self._sizes[0], self.since + number * seconds, seconds)
        for size, since, until in self._steps():
            yield self._row(size, until, until - since)

    def last_row(self) -> Iterator[Line]:
        """Yield what a server prints that only is written to or read from: the last row, if any."""
        if not self.settings.is_endless and not self.settings.is_latency:
            size, since, until = list(self._steps())[-1]
            yield self._row(size, until, until - since)

    @property
    def ends_at(self) -> float:
        """The moment of the last row."""
        return NEVER if self.settings.is_endless else list(self._steps())[-1][2]

    def flows(self) -> Iterator[tuple[float, float, float]]:
        """Yield since, until and Gb/s of each step."""
        if self.settings.is_endless:
            yield self.since, NEVER, self._gbps(self._sizes[0])
            return
        for size, since, until in self._steps():
            yield since, until, self._gbps(size)

    @property
    def _sizes(self) -> tuple[int, ...]:
        if self.settings.all_sizes:
            return tuple(1 << power for power in range(1, 24))
        return (self.settings.size_bytes or (2 if self.settings.is_latency else 65536),)

    @property
    def _iterations(self) -> int:
        return self.settings.iterations or (5000 if self.settings.tool == "ib_write_bw" else 1000)

    def _steps(self) -> Iterator[tuple[int, float, float]]:
        """Yield size, since and until of each row."""
        at = self.since
        for size in self._sizes:
            seconds = float(self.settings.duration_s or self._seconds(size))
            yield size, at, at + seconds
            at += seconds

    def _seconds(self, size: int) -> float:
        message = self._latency(size) / 1e6
        if not self.settings.is_latency:
            message = size * 8 / (self._gbps(size) * 1e9)
        seconds = message * self._iterations * self.settings.queue_pairs
        is_short = self.settings.all_sizes and self.settings.iterations is None
        least, most = _ALL_SIZES_SECONDS if is_short else (_LEAST_SECONDS, _MOST_SECONDS)
        return min(max(seconds, least), most)

    def _gbps(self, size: int) -> float:
        if self.settings.is_latency:
            return size * 8 / (self._latency(size) * 1e3)
        return speeds.of_size(size, self.sustained_gbps, self.settings.queue_pairs)

    def _latency(self, size: int) -> float:
        return self.latency_us + size * 8 / (self.sustained_gbps * 1e3)

    def _row(self, size: int, at: float, seconds: float) -> Line:
        settings = self.settings
        what = f"{settings.tool} {settings.device} {size}"
        if settings.is_latency:
            average = speeds.jittered(self._latency(size), self.seed, what, at)
            return Line(at, latency_row(size, self._iterations, average))
        gbps = speeds.jittered(self._gbps(size), self.seed, what, at)
        messages = self._iterations * settings.queue_pairs
        if settings.duration_s:
            messages = int(gbps * 1e9 / 8 / size * seconds)
        peak = 0.0 if settings.duration_s else gbps * _PEAK
        return Line(at, bandwidth_row(size, messages, peak, gbps))
