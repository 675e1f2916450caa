"""Speeds between pairs of nodes, as a test wants them."""

from collections.abc import Callable, Iterable

from probes.base.unknown import Maybe, Reason, Unknown
from probes.fleet.attribution import PairEnd, PairMemory, PairResult
from probes.fleet.pairs import Round

FAILED = Unknown(Reason.IO_ERROR, "", "Couldn't connect")
Speed = Callable[[str, str, int, PairMemory], Maybe[float]]


def measure(
    rounds: Iterable[Round], speed: Speed, rails: int = 2, memories: Iterable[PairMemory] = PairMemory
) -> list[PairResult]:
    return [
        PairResult(
            PairEnd(pair.server, f"mlx5_{rail}"),
            PairEnd(pair.client, f"mlx5_{rail}"),
            rail,
            memory,
            speed(pair.server, pair.client, rail, memory),
            400.0,
        )
        for pairs in rounds
        for pair in pairs
        for rail in range(rails)
        for memory in memories
    ]


def names(count: int) -> list[str]:
    return [f"gpu{number}" for number in range(count)]
