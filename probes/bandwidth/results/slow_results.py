"""The newest slow results of a node's bandwidth tests, as conditions of the node.

Slow is what the test's own rating calls slow (rating.py); no other threshold applies here.
"""

from __future__ import annotations

from collections.abc import Iterable

from probes.bandwidth.model.rating import Rating
from probes.bandwidth.model.result import Result
from probes.bandwidth.model.samples import BY_DMABUF, BY_PEERMEM
from probes.bandwidth.results.against_earlier import local_time
from probes.bandwidth.results.memory_path import is_measured
from probes.base.evidence import Evidence
from probes.base.origin import Origin, origin_word
from probes.base.unknown import known
from probes.facts.system.platform import PlatformFacts
from probes.snapshot.condition import BELOW_LIMIT, Condition
from probes.topology.paths import Topology

_GPU_MEMORY = (BY_DMABUF, BY_PEERMEM)


def slow_results(
    results: Iterable[Result], topology: Topology, origin: Origin, booted_at: float
) -> tuple[Condition, ...]:
    """Return the newest result of each test of GPU memory over a near NIC, if it is slow.

    Results of other nodes, of other origins and from before the boot do not count, nor do pairs that NCCL
    does not use: a path through the CPU is slow by design. `origin`: of the
    host, which a redacted node does not have; `booted_at`: seconds since 1970.
    """
    platform = topology.node.platform
    name = known(platform.hostname, "") if isinstance(platform, PlatformFacts) else ""
    own = name, origin_word(origin)
    newest: dict[tuple[object, ...], Result] = {}
    for result in results:
        if (result.node, result.origin) != own or result.taken_at < booted_at or not _is_judged(result):
            continue
        pair = result.pair
        ends = pair.gpu, pair.nic, pair.port, pair.far_nic
        key = *ends, result.setup, result.tool, result.is_bidirectional, result.memory
        if key not in newest or newest[key].taken_at <= result.taken_at:
            newest[key] = result
    slow = [result for result in newest.values() if result.judgment.is_slow]
    return tuple(
        _condition(result)
        for result in slow
        if result.pair.nic in topology.near_nics.get(result.pair.gpu, {})
    )


def _is_judged(result: Result) -> bool:
    """Return whether the result says how fast the NIC accesses GPU memory."""
    is_of_gpu = bool(result.pair.gpu and result.pair.nic) and result.memory in _GPU_MEMORY
    return is_of_gpu and is_measured(result) and result.judgment.verdict is not Rating.UNKNOWN


def _condition(result: Result) -> Condition:
    pair, judgment = result.pair, result.judgment
    reached, _, share = judgment.words.rpartition(", ")
    far = pair.far_nic if not pair.peer else ""  # a peer's NIC is not a device of this node
    between = f"{pair.gpu_label} to {pair.nic}" + (f" and {far}" if far else "")
    return Condition(
        check=BELOW_LIMIT,
        subject=f"{between} {result.tool} {result.memory}",
        text=f"{between} reached {reached} ({share} of the limit) with {result.memory}",
        since=result.taken_at,
        evidence=(
            Evidence(
                f"{result.tool}, {local_time(result.taken_at)}",
                "; ".join(filter(None, (judgment.words, judgment.why))),
            ),
        ),
        devices=tuple(filter(None, (pair.gpu, pair.nic, far))),
    )
