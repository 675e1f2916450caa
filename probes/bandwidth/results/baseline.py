"""The baseline of a machine type: what becomes one, and where there is one for another type only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from probes.bandwidth.model.rating import Verdict
from probes.bandwidth.model.result import Ending, Result
from probes.bandwidth.results.memory_path import is_measured
from probes.bandwidth.tools.command import Refused


@dataclass(frozen=True)
class Baseline:
    """What nodes of a type are expected to give."""

    machine: str
    results: tuple[Result, ...]


def baseline_with(results: Iterable[Result], before: Callable[[str], Iterable[Result]]) -> Baseline | Refused:
    """The baseline of these results' machine type with them in it; `before` has that of a type until now.

    A test that it has already is replaced, the others stay.
    """
    done = tuple(filter(is_measured, results))
    if not done:
        return Refused("nothing was measured that could be a baseline")
    machine = done[0].machine
    merged = {one.key: one for one in (*before(machine), *done)}
    return Baseline(machine, tuple(merged.values()))


def doubtful(results: Iterable[Result]) -> tuple[Result, ...]:
    """Those that are below what their way can carry: no baseline unless somebody says so."""
    return tuple(
        one for one in results if one.ending is Ending.DONE and one.judgement.verdict is Verdict.BELOW
    )


def of_other_type(machine: str, types: Sequence[str]) -> str:
    """That one of these types is the same product and not this type; "" where none is.

    A GPU or a port that is gone makes another type: exactly the node that is to be compared.
    """
    like = sorted(one for one in types if one != machine and product_of(one) == product_of(machine))
    if not like:
        return ""
    more = f" (and {len(like) - 1} more)" if len(like) > 1 else ""
    return f"there is a baseline for {like[0]}{more}, not for this type: {machine}"


def product_of(machine: str) -> str:
    """The first part of a machine type: machine_type.py puts the product there."""
    return machine.partition(", ")[0]
