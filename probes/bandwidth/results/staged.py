"""What traffic costs without GPUDirect RDMA: NCCL's staged path compared with its direct one, or its parts.

NCCL sends small messages through host memory in any case: the buffers of its LL protocol are there, with and
without GPUDirect RDMA (src/transport/net.cc). Both runs send the same sizes equally often, so their CPU times
are of the same data; NCCL's threads poll, which is part of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from probes.bandwidth.model.rating import LIKE_HOST, short_gbps
from probes.bandwidth.model.result import Ending, Result
from probes.bandwidth.model.samples import HOST_MEMORY, STAGED
from probes.bandwidth.planning.single_process import COPIES
from probes.bandwidth.results.against_earlier import gbps_text, headline_text
from probes.bandwidth.results.memory_path import is_as_requested, mismatch_evidence, nic_routes, staged_routes
from probes.base.text import plural
from probes.facts.system.tool_names import PERFTEST

CHECK_FOR_CAUSES = "gdrtop check looks for the causes: ACS redirects, IOMMU, slow links"


def staging_conclusions(results: Sequence[Result]) -> tuple[str, ...]:
    """Return what the staged results mean, in sentences; () if no staged path was measured."""
    sentences = []
    for staged in results:
        if staged.memory == STAGED and staged.ending is not Ending.CANCELED:
            sentences += _with_direct(staged, _direct_of(staged, results))
    return (*sentences, *_parts(results))


def staging_figures(results: Sequence[Result]) -> str:
    """Return "staged 142 of 371 Gb/s, 2.6× slower"; "" unless both paths were measured."""
    for staged in results:
        direct = _direct_of(staged, results) if staged.memory == STAGED else None
        if direct is not None and _is_measured(staged) and _is_measured(direct):
            return _bandwidth(staged, direct)
    return ""


def _direct_of(staged: Result, results: Sequence[Result]) -> Result | None:
    """Return the same collective over the same NICs, as NCCL runs it by itself."""
    key = replace(staged, title=staged.title.removesuffix(f", {STAGED}"), memory="").key
    return next((other for other in results if other.over_network and other.key == key), None)


def _is_measured(result: Result) -> bool:
    return result.ending is Ending.DONE and is_as_requested(result) and bool(result.gbps)


def _with_direct(staged: Result, direct: Result | None) -> list[str]:
    if staged.ending is Ending.FAILED:
        has_both = direct is not None and direct.ending is Ending.FAILED
        both = ", as with GPUDirect RDMA: the cause is not the path to the GPU" if has_both else ""
        return [f"the staged path was not measured: {staged.tool} failed ({staged.failure}){both}"]
    if not is_as_requested(staged):
        return [f"the staged path was not measured: {mismatch_evidence(staged)}"]
    if direct is None or direct.ending is Ending.CANCELED:
        return [
            f"NCCL reaches {headline_text(staged)} without GPUDirect RDMA; --memory compare measures both"
        ]
    if direct.ending is Ending.FAILED:
        return [
            f"with GPUDirect RDMA {direct.tool} failed ({direct.failure}); staged, it works"
            f" ({headline_text(staged)}): the fault is on the path between NIC and GPU. {CHECK_FOR_CAUSES}"
        ]
    if not is_as_requested(direct):
        return [
            "the gain from GPUDirect RDMA was not measured, because NCCL by itself did not use it"
            f" ({mismatch_evidence(direct)})"
        ]
    figures = _bandwidth(staged, direct)
    sentences = [f"{staged.tool} without GPUDirect RDMA: {figures}" if figures else ""]
    if _is_slower(direct, staged):
        sentences.append(f"GPUDirect RDMA is slower than copies through host memory. {CHECK_FOR_CAUSES}")
    if staged_routes(direct):
        routes = f"{len(staged_routes(direct))} of {plural(len(nic_routes(direct)), 'route')}"
        sentences.append(f"NCCL itself staged on {routes}, so GPUDirect RDMA can save more than this shows")
    return list(filter(None, [*sentences, _latency(staged, direct), _cpu(staged, direct)]))


def _bandwidth(staged: Result, direct: Result) -> str:
    if not staged.gbps or not direct.gbps:
        return ""
    figures = f"staged {short_gbps(staged.gbps)} of {short_gbps(direct.gbps)} Gb/s"
    if _is_slower(staged, direct):
        return f"{figures}, {direct.gbps / staged.gbps:.1f}× slower"
    return f"{figures}, {'faster' if _is_slower(direct, staged) else 'equally fast'}"


def _is_slower(result: Result, other: Result) -> bool:
    return (result.gbps or 0.0) < LIKE_HOST * (other.gbps or 0.0)


def _latency(staged: Result, direct: Result) -> str:
    """Compare the smallest size that both measured."""
    ours, theirs = _times(staged), _times(direct)
    size = min(ours.keys() & theirs.keys(), default=None)
    if size is None:
        return ""
    message = f"a message of {plural(size, 'byte')} takes"
    if LIKE_HOST <= ours[size] / theirs[size] <= 1 / LIKE_HOST:
        return f"{message} {ours[size]:.0f} µs in both cases: NCCL sends small messages through host memory"
    return f"{message} {ours[size]:.0f} instead of {theirs[size]:.0f} µs"


def _times(result: Result) -> dict[int, float]:
    """Return the least time of each size, in microseconds."""
    rows = sorted((row.time_us, row.size_bytes) for row in result.samples if row.time_us and row.size_bytes)
    return {size: time for time, size in reversed(rows)}


def _cpu(staged: Result, direct: Result) -> str:
    ours, theirs = staged.cpu_seconds, direct.cpu_seconds
    if ours is None or theirs is None:
        return ""
    cores = f"{staged.cpu_cores or 0.0:.1f} instead of {direct.cpu_cores or 0.0:.1f} cores"
    return f"the same data takes {ours:.0f} instead of {theirs:.0f} s of CPU time ({cores})"


def _parts(results: Sequence[Result]) -> list[str]:
    """Return the limit that the slower part sets, if both parts were measured."""
    done = [result for result in results if result.ending is Ending.DONE and result.gbps]
    copy = next((result for result in done if result.tool == COPIES), None)
    nic = next((result for result in done if result.tool in PERFTEST and result.memory == HOST_MEMORY), None)
    if copy is None or nic is None:
        return []
    least = min(copy.gbps or 0.0, nic.gbps or 0.0)
    return [
        f"staged traffic of {copy.pair.gpu_label} over {nic.pair.nic} can reach at most {gbps_text(least)}:"
        f" copies between GPU and host memory alone reach {headline_text(copy)}, and the NIC with host"
        f" memory alone {headline_text(nic)}. The whole path, its latency and its CPU time were not measured"
    ]
