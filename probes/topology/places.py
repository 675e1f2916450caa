"""Which endpoints are at one place: paths from them to other places are alike, so one stands for all.

A node with 256 GPUs and 256 NICs has 65,000 pairs, but its 32 switches have 1,000.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from math import inf

from probes.base.unknown import Unknown, known
from probes.topology.endpoints import Endpoint
from probes.topology.graph import Parts
from probes.topology.hops import Branch, Routes
from probes.topology.nccl_paths import NcclPaths


class Places:
    """The places of endpoints, as numbers."""

    def __init__(self, ends: Mapping[str, Endpoint], parts: Parts, routes: Routes, nccl: NcclPaths) -> None:
        self._ends, self._parts, self._routes, self._nccl = ends, parts, routes, nccl

    @cached_property
    def by_end(self) -> dict[str, int]:
        """The place of each endpoint by its id.

        An endpoint has a place of its own if its place in a tree is unknown, if it shares its bus, or if no
        link above it reports what it carries at its best: then what it carries now decides.
        """
        numbers: dict[object, int] = {}
        return {end: numbers.setdefault(self._key(end), len(numbers)) for end in self._ends}

    @cached_property
    def _below(self) -> Counter[str]:
        """How many functions at which paths end are below each part of the trees."""
        functions = {function for end in self._ends for function in self._functions(end)}
        return Counter(part for bdf in functions for part in self._routes.branch(bdf).parts)

    def _functions(self, end: str) -> tuple[str, ...]:
        """Return the endpoint's own function, and the one at which its paths to GPUs end."""
        functions = known(self._ends[end].bdf, ""), known(self._ends[end].to_gpus, "")
        is_known = not isinstance(self._nccl.seat(end), Unknown)
        is_placed = all(self._parts.nodes.get(bdf, {}).get("root") for bdf in functions)
        return functions if is_known and is_placed else ()

    def _key(self, end: str) -> object:
        """Return everything on which its paths depend, but its own name and port."""
        functions, seat = self._functions(end), self._nccl.seat(end)
        if not functions or isinstance(seat, Unknown):
            return end
        branches = [(branch, self._shared(branch)) for branch in map(self._routes.branch, functions)]
        if any(shared == len(branch.parts) - 1 for branch, shared in branches):
            return end
        best = [branch.best_gbps[: max(1, shared)] for branch, shared in branches]
        if any(inf in gbps for gbps in best):
            return end
        parts = [(len(branch.parts), branch.parts[:shared]) for branch, shared in branches]
        numa = known(self._parts.nodes[functions[0]]["numa_node"], None)
        return seat.switches, seat.cpu, numa, *parts, *best

    def _shared(self, branch: Branch) -> int:
        """Return how many parts of a branch, from the top, are above other functions too."""
        return sum(self._below[part] > 1 for part in branch.parts)
