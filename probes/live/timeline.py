"""The last hour of samples and events, in bounded memory."""

from __future__ import annotations

import pickle
import zlib
from collections import deque

from probes.base.frozen import frozen
from probes.live.model.sample import LiveEvent, LiveSample

KEPT_SECONDS = 3600.0
MAX_SAMPLES = 3600
MAX_EVENTS = 5000
MAX_BYTES = 32 << 20  # of compressed samples; the newest block and one read block are not compressed
_BLOCK = 16  # samples that are compressed together: neighbors are alike, and share unchanged parts
_LEAST_SECONDS = 0.75  # between any two samples; those in between are skipped, but their events are kept


@frozen
class _Block:
    number: int
    times: tuple[tuple[float, float], ...]  # (at, taken_at) of each sample
    data: bytes


class Timeline:
    """Samples by time, compressed, and their events."""

    def __init__(self) -> None:
        self._blocks: deque[_Block] = deque()
        self._newest: list[LiveSample] = []  # not yet a block
        self._events: deque[tuple[float, LiveEvent]] = deque(maxlen=MAX_EVENTS)
        self._compressed_bytes = 0
        self._numbered = 0
        self._times: tuple[float, ...] | None = None  # None: not yet put together since the last sample
        self._apart = _LEAST_SECONDS  # between two samples without events
        self._read: tuple[int, list[LiveSample]] | None = None  # the block that was read last

    def add(self, sample: LiveSample) -> None:
        """Append a sample, and drop those older than an hour.

        A sample that is older than the newest one comes from a recording that was rewound: it replaces all
        samples from its time on.
        """
        self._times = None
        newest = self._newest_at
        if newest is not None and sample.at <= newest:
            self._rewind(sample.at)
            newest = self._newest_at
        self._events.extend((sample.at, event) for event in sample.events)
        if newest is None or sample.at - newest >= (_LEAST_SECONDS if sample.events else self._apart):
            self._newest.append(sample)
        if len(self._newest) >= _BLOCK:
            times = tuple((sample.at, sample.taken_at) for sample in self._newest)
            data = zlib.compress(pickle.dumps(self._newest, pickle.HIGHEST_PROTOCOL), 1)
            self._numbered += 1
            self._blocks.append(_Block(self._numbered, times, data))
            self._compressed_bytes += len(data)
            self._newest = []
            # Of a node with hundreds of GPUs and NICs, an hour fits if its samples are further apart.
            self._apart = max(_LEAST_SECONDS, len(data) / len(times) * KEPT_SECONDS / MAX_BYTES)
        self._drop(sample.at - KEPT_SECONDS)

    def replace_newest(self, sample: LiveSample) -> None:
        """Keep this sample, which is of the same moment as the newest one."""
        if self._newest and self._newest[-1].at == sample.at:
            self._newest[-1] = sample

    @property
    def times(self) -> tuple[float, ...]:
        """The times of the samples, in seconds since 1970, oldest first."""
        if self._times is None:
            blocks = [taken_at for block in self._blocks for _, taken_at in block.times]
            self._times = (*blocks, *(sample.taken_at for sample in self._newest))
        return self._times

    @property
    def began_at(self) -> float:
        """The time of the oldest sample, in seconds since 1970; 0 if there is none."""
        if self._blocks:
            return self._blocks[0].times[0][1]
        return self._newest[0].taken_at if self._newest else 0.0

    @property
    def events(self) -> tuple[LiveEvent, ...]:
        """The events, oldest first."""
        return tuple(event for _, event in self._events)

    @property
    def size_bytes(self) -> int:
        """The memory that the compressed samples take."""
        return self._compressed_bytes

    def at(self, taken_at: float) -> LiveSample | None:
        """Return the newest sample up to this time; None if there is none."""
        # From the newest one backward, because the clock of a node may be set back.
        for sample in reversed(self._newest):
            if sample.taken_at <= taken_at:
                return sample
        for block in reversed(self._blocks):
            for place in range(len(block.times) - 1, -1, -1):
                if block.times[place][1] <= taken_at:
                    return self._samples_of(block)[place]
        return None

    @property
    def _newest_at(self) -> float | None:
        if self._newest:
            return self._newest[-1].at
        return self._blocks[-1].times[-1][0] if self._blocks else None

    def _samples_of(self, block: _Block) -> list[LiveSample]:
        if self._read is None or self._read[0] != block.number:
            # These bytes were never outside this object.
            self._read = (block.number, pickle.loads(zlib.decompress(block.data)))
        return self._read[1]

    def _drop(self, oldest: float) -> None:
        count = len(self._newest) + sum(len(block.times) for block in self._blocks)
        while self._blocks:
            block = self._blocks[0]
            is_full = count - len(block.times) >= MAX_SAMPLES or self._compressed_bytes > MAX_BYTES
            if block.times[-1][0] >= oldest and not is_full:
                break
            self._blocks.popleft()
            self._compressed_bytes -= len(block.data)
            count -= len(block.times)
        while self._events and self._events[0][0] < oldest:
            self._events.popleft()

    def _rewind(self, at: float) -> None:
        self._newest = [sample for sample in self._newest if sample.at < at]
        while not self._newest and self._blocks and self._blocks[-1].times[-1][0] >= at:
            block = self._blocks.pop()
            self._compressed_bytes -= len(block.data)
            self._newest = [sample for sample in self._samples_of(block) if sample.at < at]
            self._read = None
        while self._events and self._events[-1][0] >= at:
            self._events.pop()
