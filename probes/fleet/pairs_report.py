"""Everything that a run between pairs of nodes has shown."""

from __future__ import annotations

from collections.abc import Mapping

from probes.base.frozen import frozen
from probes.base.unknown import Unknown
from probes.fleet.attribution import Attribution, PairResult, slow_tests
from probes.fleet.leaves import RailLeaves


@frozen
class PairsReport:
    """The results and what follows from them."""

    nodes: tuple[str, ...]  # that took part
    results: tuple[PairResult, ...]
    attribution: Attribution
    left_out: Mapping[str, str]  # nodes that took no part, and why
    rails_left_out: Mapping[str, str]  # "gpu3 rail 1, GPU memory", and why
    leaves: tuple[RailLeaves, ...]

    @property
    def rails(self) -> tuple[int, ...]:
        """The rails that were measured."""
        return tuple(sorted({result.rail for result in self.results}))

    @property
    def failed(self) -> int:
        """The number of tests without a result."""
        return sum(isinstance(result.gbps, Unknown) for result in self.results)

    @property
    def bad(self) -> tuple[PairResult, ...]:
        """The slow and the failed tests, worst first."""
        return slow_tests(self.results, self.attribution.references)

    @property
    def misplaced(self) -> tuple[RailLeaves, ...]:
        """The rails of which a node ends at another leaf than the others."""
        return tuple(rail for rail in self.leaves if rail.elsewhere)
