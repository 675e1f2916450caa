"""Which endpoints are at one place: paths from them to other places are alike, so one stands for all.

A node with 256 GPUs and 256 NICs has 65,000 pairs, but its 32 switches have 1,000.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import inf

from probes.base.unknown import Unknown, known
from probes.topology.endpoints import Endpoint
from probes.topology.hops import Branch, Routes
from probes.topology.nccl_paths import NcclPaths


class Places:
    """The places of endpoints, as numbers."""

    def __init__(self, ends: Mapping[str, Endpoint], routes: Routes, nccl: NcclPaths) -> None:
        self._ends, self._routes, self._nccl = ends, routes, nccl
        self._numbers: dict[object, int] = {}

    @cached_property
    def by_end(self) -> dict[str, int]:
        """The place of each endpoint by its id.

        An endpoint has a place of its own if its place in a tree is unknown, if it shares its bus, or if no
        link above it reports what it carries at its best: then what it carries now decides.
        """
        return {id: self._numbers.setdefault(self._key(id), len(self._numbers)) for id in self._ends}

    @cached_property
    def _below(self) -> Counter[str]:
        """How many functions at which paths end are below each part of the trees."""
        functions = {function for id in self._ends for function in self._functions(id)}
        parts = (self._routes.branch(bdf).parts for bdf in functions)
        return Counter(part for of_one in parts for part in of_one)

    def _functions(self, id: str) -> Sequence[str]:  # noqa: A002 - an endpoint's own word
        """Return the endpoint's own function, and the one at which its paths to GPUs end."""
        end = self._ends[id]
        functions = known(end.bdf, ""), known(end.to_gpus, "")
        is_placed = not isinstance(self._nccl.seat(id), Unknown) and all(map(self._routes.has, functions))
        return functions if is_placed else ()

    def _key(self, id: str) -> object:  # noqa: A002 - an endpoint's own word
        """Return everything on which its paths depend, but its own name and port."""
        functions, seat = self._functions(id), self._nccl.seat(id)
        if not functions or isinstance(seat, Unknown):
            return id
        branches = [self._routes.branch(bdf) for bdf in functions]
        shared = [self._shared(branch) for branch in branches]
        if any(len(branch.parts) - 1 == count for branch, count in zip(branches, shared, strict=True)):
            return id
        if any(inf in branch.best_gbps[: max(1, count)] for branch, count in zip(branches, shared, strict=True)):
            return id
        return (
            seat.switches,
            seat.cpu,
            known(self._routes.graph.nodes[functions[0]]["numa_node"], None),
            tuple(
                (branch.parts[:count], len(branch.parts), branch.best_gbps[: max(1, count)])
                for branch, count in zip(branches, shared, strict=True)
            ),
        )

    def _shared(self, branch: Branch) -> int:
        """Return how many parts of a branch, from the top, are above other functions too."""
        return sum(self._below[part] > 1 for part in branch.parts)
