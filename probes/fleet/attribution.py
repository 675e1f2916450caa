"""What slow pairs of nodes have in common: a NIC, a node, a rail, or nothing but the switches between them.

A pair never decides alone. The tests of one NIC are the row and column of the matrix of its rail: it is slow
if it has two or more partners and is slow with more than half of them. The worst one is taken first, and its
tests are not counted against its partners.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from statistics import median, median_high

from probes.bandwidth.model.expected import spark_least, spark_sign
from probes.bandwidth.results.percentiles import Standing, standing_of
from probes.base.frozen import frozen
from probes.base.grouping import grouped
from probes.base.unknown import Maybe, Unknown, known
from probes.fleet.rails import CableFault, RailLeaves, cable_faults
from probes.queries.ports import SPARK_NAME

SLOW_SHARE = 0.9
"""Below this share of the reference a test is slow, and its nodes are measured again."""
_LEAST_PARTNERS = 2
_MANY_SHARE, _MANY_TESTS = 0.25, 4  # from so many slow tests on without a common part, the network is slow
_MANY_NODES, _MOST_SHARE = 8, 1 / 3  # of so many nodes, no larger share has a fault of its own
_TOP = 0.9  # the quantile that stands for a path without competitors
_NEAR_LIMIT = 0.8  # of what ports and PCIe links allow; probes/bandwidth/model/expected.py has 0.9 and 0.82


class PairMemory(Enum):
    """The memory at both ends of a test."""

    HOST = "host"
    GPU = "gpu"

    @property
    def words(self) -> str:
        """Return "host memory" or "GPU memory"."""
        return "host memory" if self is PairMemory.HOST else "GPU memory"


@frozen
class PairEnd:
    """One end of a test."""

    node: str
    nic: str  # RDMA device


@frozen
class PairResult:
    """What one rail of a pair of nodes reached."""

    server: PairEnd
    client: PairEnd
    rail: int
    memory: PairMemory
    gbps: Maybe[float]  # unknown: the test failed
    limit_gbps: float | None = None  # nominal, of the slowest part at both ends; None: unknown

    @property
    def ends(self) -> tuple[PairEnd, PairEnd]:
        """Both ends."""
        return self.server, self.client


class Place(Enum):
    """Where the fault is."""

    NIC = "nic"
    NODE = "node"  # more than half of its NICs
    RAIL = "rail"  # one NIC of all nodes


@frozen
class Culprit:
    """A part whose tests are slow, or fail."""

    place: Place
    node: str  # "": all nodes
    rail: int | None  # None: several
    nic: str  # "" unless the place is a NIC
    memories: tuple[PairMemory, ...]
    only_gpu_memory: bool  # host memory was measured too, and is not slow
    gbps: float | None  # the median of its tests; None: all have failed
    reference_gbps: float | None  # what NICs reach; None: nothing was measured
    slow: int  # partners with which it is slow or fails
    partners: int
    failure: str = ""  # why a test failed; "": more of its tests are slow than failed


@frozen
class Crowd:
    """Many slow tests that have no node, NIC or rail in common."""

    memory: PairMemory
    slow: int
    tests: int
    gbps: float  # the median of the slow tests
    top_gbps: float  # what the fastest tests reach


@frozen
class BelowLimit:
    """Even the usual NIC is far below what the ports and PCIe links of the nodes allow."""

    memory: PairMemory
    gbps: float
    limit_gbps: float


@frozen
class SparkPair:
    """Two DGX Spark whose functions, all at the same time, carry less than a healthy pair."""

    server: str
    client: str
    gbps: float
    least_gbps: float
    sign: str  # what such a rate is a sign of; "": of nothing known


@frozen
class Attribution:
    """What the tests show together."""

    culprits: tuple[Culprit, ...]
    crowds: tuple[Crowd, ...]
    below_limit: tuple[BelowLimit, ...]
    unexplained: tuple[PairResult, ...]  # slow or failed, and no culprit or crowd explains them
    references: dict[PairMemory, float]
    """The median of what each NIC reaches with its best partner."""
    sparks: tuple[SparkPair, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether nothing is slow and nothing has failed."""
        return not (self.culprits or self.crowds or self.below_limit or self.unexplained or self.sparks)


def suspects(results: Sequence[PairResult]) -> tuple[str, ...]:
    """Return the nodes with a slow or failed test, by name: they are measured again with others."""
    references = _references(results)
    bad = (result for result in results if _is_bad(result, references.get(result.memory)))
    return tuple(sorted({end.node for result in bad for end in result.ends}))


def attribute(results: Sequence[PairResult], at_once: bool = True) -> Attribution:
    """Return what the slow and the failed tests have in common.

    `at_once`: all rails of a pair were measured at the same time.
    """
    references = _references(results)
    groups = grouped(((result.memory, result.rail), result) for result in results)
    several = len({rail for _, rail in groups}) > 1
    found: list[Culprit] = []
    left: dict[PairMemory, list[PairResult]] = {memory: [] for memory in PairMemory}
    bad: list[PairResult] = []
    for (memory, rail), group in sorted(groups.items(), key=lambda each: (each[0][0].value, each[0][1])):
        reference, own = references.get(memory), _reference(group)
        nodes = len({end.node for result in group for end in result.ends})
        is_slow_rail = several and nodes > _LEAST_PARTNERS and _is_slow(own, reference)
        if is_slow_rail:
            found.append(_part("", "", rail, memory, group, reference))
            reference = own  # a NIC that is slower than the rest of its rail has a fault of its own
        parts, rest = _slow_nics(group, reference)
        if nodes >= _MANY_NODES and len(parts) > _MOST_SHARE * nodes:
            parts, rest = [], group
        found += parts
        bad += [result for result in rest if _is_bad(result, reference)]
        left[memory] += [] if is_slow_rail else rest
    crowds = tuple(crowd for memory, rest in left.items() if (crowd := _crowd(rest, memory)) is not None)
    crowded = {crowd.memory for crowd in crowds}
    below_limit = []
    for memory, gbps in references.items():
        limits = [result.limit_gbps for result in results if result.memory is memory and result.limit_gbps]
        is_spark = memory is PairMemory.HOST and all(map(_is_of_sparks, results))
        if limits and gbps < _NEAR_LIMIT * median(limits) and not (is_spark and at_once):
            below_limit.append(BelowLimit(memory, gbps, median(limits)))
    return Attribution(
        culprits=_culprits(found, results),
        crowds=crowds,
        below_limit=tuple(below_limit),
        unexplained=tuple(
            result for result in bad if result.memory not in crowded or isinstance(result.gbps, Unknown)
        ),
        references=references,
        sparks=tuple(_slow_sparks(results)) if at_once else (),
    )


def _is_of_sparks(result: PairResult) -> bool:
    return all(SPARK_NAME.fullmatch(end.nic) for end in result.ends)


def _slow_sparks(results: Iterable[PairResult]) -> Iterator[SparkPair]:
    """Add up what each pair of DGX Spark carries; one function alone, or with a failure, says nothing."""
    own = (each for each in results if each.memory is PairMemory.HOST and _is_of_sparks(each))
    pairs = grouped(((each.server.node, each.client.node), each) for each in own)
    for (server, client), tests in pairs.items():
        rates = [test.gbps for test in tests if not isinstance(test.gbps, Unknown)]
        total, least = sum(rates), spark_least("both").least
        if len(rates) == len(tests) > 1 and total < least:
            of_each = {spark_sign("rail", gbps) for gbps in rates}
            sign = of_each.pop() if len(of_each) == 1 else ""
            yield SparkPair(server, client, total, least, sign or spark_sign("both", total))


def _best(results: Iterable[PairResult]) -> dict[tuple[PairEnd, int, PairMemory], float]:
    """Return what each NIC reaches with its best partner, by its end, rail and memory."""
    found: dict[tuple[PairEnd, int, PairMemory], float] = {}
    for result in results:
        for end in result.ends:
            test = end, result.rail, result.memory
            found[test] = max(found.get(test, 0.0), known(result.gbps, 0.0))
    return {test: gbps for test, gbps in found.items() if gbps}


def _references(results: Sequence[PairResult]) -> dict[PairMemory, float]:
    """Return what a NIC reaches with each memory."""
    by_memory = {memory: [each for each in results if each.memory is memory] for memory in PairMemory}
    found = {memory: _reference(of_memory) for memory, of_memory in by_memory.items()}
    return {memory: gbps for memory, gbps in found.items() if gbps is not None}


def _reference(results: Iterable[PairResult]) -> float | None:
    """Return the median of what each NIC reaches with its best partner; None if nothing was measured.

    Not of all tests: a slow NIC is measured more often than the others.
    """
    best: dict[tuple[str, int], float] = {}
    for result in results:
        if not isinstance(result.gbps, Unknown):
            for end in result.ends:
                key = end.node, result.rail
                best[key] = max(best.get(key, 0.0), result.gbps)
    return median_high(best.values()) if best else None


def _median(results: Iterable[PairResult]) -> float | None:
    figures = [result.gbps for result in results if not isinstance(result.gbps, Unknown)]
    return median(figures) if figures else None


def _is_slow(gbps: float | None, reference: float | None) -> bool:
    return gbps is not None and reference is not None and gbps < SLOW_SHARE * reference


def _is_bad(result: PairResult, reference: float | None) -> bool:
    return isinstance(result.gbps, Unknown) or _is_slow(result.gbps, reference)


# NICs


def _part(
    node: str, nic: str, rail: int, memory: PairMemory, tests: Sequence[PairResult], reference: float | None
) -> Culprit:
    failures = [result.gbps for result in tests if isinstance(result.gbps, Unknown)]
    bad = sum(_is_bad(result, reference) for result in tests)
    failure = (failures[0].detail or str(failures[0])) if 2 * len(failures) > bad else ""
    place, found = Place.NIC if node else Place.RAIL, _median(tests)
    return Culprit(place, node, rail, nic, (memory,), False, found, reference, bad, len(tests), failure)


def _slow_nics(
    group: Sequence[PairResult], reference: float | None
) -> tuple[list[Culprit], list[PairResult]]:
    """Return the slow NICs of one rail, worst first, and the tests of no slow NIC."""
    tests = grouped((end.node, number) for number, result in enumerate(group) for end in result.ends)
    is_bad = [_is_bad(result, reference) for result in group]
    total = {node: len(numbers) for node, numbers in tests.items()}
    bad = {node: sum(is_bad[number] for number in numbers) for node, numbers in tests.items()}
    removed: set[int] = set()
    parts: list[Culprit] = []
    while True:
        worst = max(
            (node for node in tests if bad[node] >= _LEAST_PARTNERS and 2 * bad[node] > total[node]),
            key=lambda node: (bad[node] / total[node], bad[node], node),
            default=None,
        )
        if worst is None:
            return parts, [result for number, result in enumerate(group) if number not in removed]
        own = [group[number] for number in tests[worst] if number not in removed]
        nic = next(end.nic for end in own[0].ends if end.node == worst)
        parts.append(_part(worst, nic, own[0].rail, own[0].memory, own, reference))
        for number in tests.pop(worst):
            if number not in removed:
                removed.add(number)
                for end in group[number].ends:
                    total[end.node] -= 1
                    bad[end.node] -= is_bad[number]


# What several parts have in common


def _culprits(parts: Sequence[Culprit], results: Sequence[PairResult]) -> tuple[Culprit, ...]:
    """Merge the NICs of a node, and the same place with both memories; worst first."""
    rails: dict[tuple[str, PairMemory], set[int]] = {}
    for result in results:
        for end in result.ends:
            rails.setdefault((end.node, result.memory), set()).add(result.rail)
    by_node = grouped(((part.node, part.memories[0]), part) for part in parts)
    places: dict[tuple[Place, str, int | None], list[Culprit]] = {}
    for (node, memory), own in by_node.items():
        is_node = node and len(own) > 1 and 2 * len(own) > len(rails[node, memory])
        for part in [_joined(own)] if is_node else own:
            places.setdefault((part.place, node, part.rail), []).append(part)
    with_host = any(result.memory is PairMemory.HOST for result in results)
    culprits = []
    for same in places.values():
        first = same[0] if len(same) == 1 else next(part for part in same if PairMemory.HOST in part.memories)
        memories = tuple(memory for memory in PairMemory if any(memory in part.memories for part in same))
        is_only_gpu = memories == (PairMemory.GPU,) and with_host
        culprits.append(replace(first, memories=memories, only_gpu_memory=is_only_gpu))
    order = (Place.RAIL, Place.NODE, Place.NIC)
    return tuple(sorted(culprits, key=lambda each: (order.index(each.place), each.gbps or 0.0, each.node)))


def _joined(parts: Sequence[Culprit]) -> Culprit:
    """Return the slow NICs of one node as one part: the most partners of a NIC, and the median figure."""
    figures = [part.gbps for part in parts if part.gbps is not None]
    worst = max(parts, key=lambda part: part.slow)
    return replace(
        parts[0],
        place=Place.NODE,
        rail=None,
        nic="",
        gbps=median(figures) if figures else None,
        slow=worst.slow,
        partners=worst.partners,
        failure=next((part.failure for part in parts if part.failure), "") if not figures else "",
    )


def _crowd(results: Sequence[PairResult], memory: PairMemory) -> Crowd | None:
    """Return the slow tests of nodes with several partners, if they are many and have no part in common."""
    partners: dict[str, set[str]] = {}
    for result in results:
        for end, other in (result.ends, result.ends[::-1]):
            partners.setdefault(end.node, set()).add(other.node)
    figures = sorted(
        result.gbps
        for result in results
        if not isinstance(result.gbps, Unknown)
        and all(len(partners[end.node]) >= _LEAST_PARTNERS for end in result.ends)
    )
    if len(figures) < _MANY_TESTS or len(partners) < _MANY_TESTS:
        return None
    top = figures[int(_TOP * (len(figures) - 1))]
    slow = [gbps for gbps in figures if gbps < SLOW_SHARE * top]
    if len(slow) < max(_MANY_TESTS, _MANY_SHARE * len(figures)):
        return None
    return Crowd(memory, len(slow), len(figures), median(slow), top)


@frozen
class PairsReport:
    """The results and what follows from them."""

    nodes: tuple[str, ...]  # that took part
    results: tuple[PairResult, ...]
    attribution: Attribution
    left_out: Mapping[str, str]  # nodes that took no part, and why
    rails_left_out: Mapping[str, str]  # "gpu3 rail 1, GPU memory", and why
    leaves: tuple[RailLeaves, ...]
    earlier: tuple[tuple[PairResult, ...], ...] = ()  # complete runs of the same, oldest first

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
        references = self.attribution.references
        bad = [result for result in self.results if _is_bad(result, references.get(result.memory))]
        return tuple(sorted(bad, key=lambda result: (known(result.gbps, -1.0), result.rail)))

    @property
    def standings(self) -> dict[tuple[PairEnd, int, PairMemory], tuple[float, Standing]]:
        """How what each NIC reaches with its best partner compares with earlier runs, and with its rail."""
        now, runs = _best(self.results), [_best(run) for run in self.earlier]
        rates = grouped((test[1:], gbps) for test, gbps in now.items())
        own = {test: [run[test] for run in (*runs, now) if test in run] for test in now}
        found = ((test, standing_of(own[test], rates[test[1:]])) for test in now)
        return {test: (now[test], standing) for test, standing in found if standing is not None}

    @property
    def cable_faults(self) -> tuple[CableFault, ...]:
        """The cables that end elsewhere than those of other nodes."""
        return cable_faults(self.leaves, lambda node, rail: f"rail {rail}")
