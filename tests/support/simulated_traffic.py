"""Traffic of simulated jobs through one NIC, and its exact counter, which is read a bit late."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from random import Random

LINE = 50e9  # bytes a second: 400 Gb/s
Piece = tuple[float, float]  # seconds, bytes a second
Reading = tuple[float, float]  # seconds, bytes


def steps(
    random: Random,
    period: float,
    network: float = 0.25,
    jitter: float = 0.01,
    rate: float = LINE,
    rest: float = 0.0,
) -> Iterator[Piece]:
    """Yield steps that end with a burst: `network` is its share of the step."""
    while True:
        length = period * max(0.2, random.gauss(1, jitter))
        yield length * (1 - network), rest
        yield length * network, rate


def buckets(random: Random, period: float) -> Iterator[Piece]:
    """Yield steps whose backward pass sends eight overlapping buckets in its 40 %."""
    while True:
        length = period * random.gauss(1, 0.01)
        yield length * 0.6, 0.0
        for _ in range(8):
            yield length * 0.05 * 0.75, LINE * random.uniform(0.7, 1.0)
            yield length * 0.05 * 0.25, LINE * random.uniform(0.2, 0.5)


def pipeline(random: Random, period: float, between: float) -> Iterator[Piece]:
    """Yield steps of eight micro-batches, each with a transfer, and an all-reduce at the end."""
    while True:
        length = period * random.gauss(1, 0.01)
        for _ in range(8):
            yield length * 0.8 / 8 * 0.7, 0.0
            yield length * 0.8 / 8 * 0.3, LINE * between
        yield length * 0.2, LINE


def interrupted(
    random: Random, pieces: Iterator[Piece], every: int, pause: float, each: int = 2, shorter: float = 0.0
) -> Iterator[Piece]:
    """Yield steps with a pause after so many of them: a checkpoint, or `shorter` steps of an evaluation."""
    for number, piece in enumerate(pieces, 1):
        yield piece
        if number % (every * each):
            continue
        if shorter:
            for _ in range(20):
                length = shorter * random.gauss(1, 0.02)
                yield length * 0.9, 0.0
                yield length * 0.1, LINE * 0.3
        else:
            yield pause, 0.02 * LINE


def poisson(random: Random) -> Iterator[Piece]:
    """Yield bursts that come at random."""
    while True:
        yield random.expovariate(1 / 3.0), 0.0
        yield random.uniform(0.2, 1.5), LINE


def wandering(random: Random) -> Iterator[Piece]:
    """Yield a rate that follows the one before (AR(1))."""
    level = 0.0
    while True:
        level = 0.95 * level + random.gauss(0, 0.3)
        yield 0.2, LINE * min(1.0, max(0.0, 0.5 + 0.25 * level))


def constant(random: Random) -> Iterator[Piece]:
    """Yield a steady rate, as of a benchmark."""
    while True:
        yield 1.0, LINE * random.uniform(0.97, 1.0)


def by_hand(random: Random) -> Iterator[Piece]:
    """Yield what a person starts now and then."""
    while True:
        yield random.uniform(5, 60), 0.0
        yield random.uniform(1, 20), LINE * random.uniform(0.1, 0.9)


def reinforcement(random: Random) -> Iterator[Piece]:
    """Yield rollouts of random length, each followed by some updates of 2.2 s."""
    while True:
        yield random.uniform(8, 25), 0.0
        update = steps(random, 2.2, 0.3)
        for _ in range(2 * random.randint(4, 9)):
            yield next(update)


def beside(pieces: Iterator[Piece], share: float, random: Random) -> Iterator[Piece]:
    """Yield the traffic of a job and of a steady other program at a share of line rate."""
    for seconds, rate in pieces:
        yield seconds, rate * (1 - share) + LINE * share * random.uniform(0.9, 1.1)


def until(seconds: float, first: Iterator[Piece], then: Iterator[Piece]) -> Iterator[Piece]:
    """Yield one traffic for so many seconds, and then another one."""
    left = seconds
    for piece in first:
        yield piece
        left -= piece[0]
        if left <= 0:
            break
    yield from then


def readings(
    pieces: Iterator[Piece], seconds: float, random: Random, interval: float = 0.1, begin: float = 0.0
) -> list[Reading]:
    """Return (seconds, bytes) of a counter that is read for so many seconds, each time up to 3 ms late."""
    found: list[Reading] = []
    at = total = 0.0
    length, rate = next(pieces)
    end = length
    source = chain(pieces, repeat((1e9, 0.0)))
    for number in range(int(seconds / interval) + 1):
        now = number * interval + random.uniform(0, 0.003)
        while end <= now:
            total += (end - at) * rate
            at = end
            length, rate = next(source)
            end += length
        total += (now - at) * rate
        at = now
        found.append((begin + now, float(int(total))))
    return found
