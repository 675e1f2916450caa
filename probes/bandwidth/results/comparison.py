"""Compare host memory, nvidia-peermem and DMA-BUF on one pair, and say what the differences mean.

Which path NCCL uses: DMA-BUF if GPU, driver and NIC support it, else nvidia-peermem; its own buffers do not
fall back to nvidia-peermem when DMA-BUF fails (NCCL src/transport/net.cc, 2.30).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from probes.bandwidth.model.planned_series import LeftOut
from probes.bandwidth.model.rating import LIKE_HOST, Rating, short_gbps
from probes.bandwidth.model.request import Mode
from probes.bandwidth.model.result import (
    Ending,
    Result,
    is_as_requested,
    memory_used,
    mismatch_evidence,
    nic_routes,
    staged_routes,
)
from probes.bandwidth.model.samples import BY_DMABUF, BY_PEERMEM, HOST_MEMORY, STAGED
from probes.bandwidth.planning.series import COPIES
from probes.bandwidth.results.against_earlier import gbps_text, headline_text, latency_us
from probes.base.data_files import read_toml_once
from probes.base.frozen import frozen
from probes.base.text import plural
from probes.facts.system.tool_names import PERFTEST

# NCCL sends small messages through host memory in any case: the buffers of its LL protocol are there, with
# and without GPUDirect RDMA (src/transport/net.cc). Both runs send the same sizes equally often, so their CPU
# times are of the same data; NCCL's threads poll, which is part of them.
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
            return _staged_bandwidth(staged, direct)
    return ""


def _direct_of(staged: Result, results: Sequence[Result]) -> Result | None:
    """Return the same collective over the same NICs, as NCCL runs it by itself."""
    key = replace(staged, title=staged.title.removesuffix(f", {STAGED}"), memory="").key
    return next((other for other in results if other.over_network and other.key == key), None)


def _is_measured(result: Result) -> bool:
    return result.ending is Ending.DONE and is_as_requested(result) and bool(result.gbps)


def _said(name: str, **words: object) -> str:
    """Return a sentence of comparison.toml."""
    return str(read_toml_once(__package__, "comparison.toml")[name].format(**words))


def _with_direct(staged: Result, direct: Result | None) -> list[str]:
    if staged.ending is Ending.FAILED:
        has_both = direct is not None and direct.ending is Ending.FAILED
        both = _said("staged-both") if has_both else ""
        return [_said("staged-failed", tool=staged.tool, failed=staged.what_failed, both=both)]
    if not is_as_requested(staged):
        return [_said("staged-other", evidence=mismatch_evidence(staged))]
    figure = headline_text(staged)
    if direct is None or direct.ending is Ending.CANCELED:
        return [_said("staged-alone", figure=figure)]
    if direct.ending is Ending.FAILED:
        failed = {"tool": direct.tool, "failed": direct.what_failed}
        return [_said("staged-works", **failed, figure=figure, check=CHECK_FOR_CAUSES)]
    if not is_as_requested(direct):
        return [_said("gain-unknown", evidence=mismatch_evidence(direct))]
    figures = _staged_bandwidth(staged, direct)
    sentences = [f"{staged.tool} without GPUDirect RDMA: {figures}" if figures else ""]
    if _is_slower(direct, staged):
        sentences.append(f"GPUDirect RDMA is slower than copies through host memory. {CHECK_FOR_CAUSES}")
    if staged_routes(direct):
        routes = f"{len(staged_routes(direct))} of {plural(len(nic_routes(direct)), 'route')}"
        sentences.append(f"NCCL itself staged on {routes}, so GPUDirect RDMA can save more than this shows")
    return list(filter(None, [*sentences, _staged_latency(staged, direct), _staged_cpu(staged, direct)]))


def _staged_bandwidth(staged: Result, direct: Result) -> str:
    if not staged.gbps or not direct.gbps:
        return ""
    figures = f"staged {short_gbps(staged.gbps)} of {short_gbps(direct.gbps)} Gb/s"
    if _is_slower(staged, direct):
        return f"{figures}, {direct.gbps / staged.gbps:.1f}× slower"
    return f"{figures}, {'faster' if _is_slower(direct, staged) else 'equally fast'}"


def _is_slower(result: Result, other: Result) -> bool:
    return (result.gbps or 0.0) < LIKE_HOST * (other.gbps or 0.0)


def _staged_latency(staged: Result, direct: Result) -> str:
    """Compare the smallest size that both measured."""
    ours, theirs = _staged_times(staged), _staged_times(direct)
    size = min(ours.keys() & theirs.keys(), default=None)
    if size is None:
        return ""
    message = f"a message of {plural(size, 'byte')} takes"
    if LIKE_HOST <= ours[size] / theirs[size] <= 1 / LIKE_HOST:
        return f"{message} {ours[size]:.0f} µs in both cases: NCCL sends small messages through host memory"
    return f"{message} {ours[size]:.0f} instead of {theirs[size]:.0f} µs"


def _staged_times(result: Result) -> dict[int, float]:
    """Return the least time of each size, in microseconds."""
    rows = sorted((row.time_us, row.size_bytes) for row in result.samples if row.time_us and row.size_bytes)
    return {size: time for time, size in reversed(rows)}


def _staged_cpu(staged: Result, direct: Result) -> str:
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
    ends = {"gpu": copy.pair.gpu_label, "nic": nic.pair.nic, "least": gbps_text(least)}
    return [_said("staged-parts", **ends, copies=headline_text(copy), alone=headline_text(nic))]


_ARROW = " → "
_COMPARED = (HOST_MEMORY, BY_DMABUF, BY_PEERMEM)
# NCCL checks the same before it uses DMA-BUF: the GPU's attribute, and EOPNOTSUPP or EPROTONOSUPPORT of the
# NIC (src/init.cc dmaBufSupported, src/transport/net_ib/gdr.cc).
_UNSUPPORTED = re.compile(r"DMA-BUF is not supported on this GPU|Couldn't allocate MR with error=(?:93|95)\b")


@frozen
class _Pair:
    title: str  # "GPU0 → mlx5_0"
    host: Result | None
    paths: tuple[Result, ...]  # the GPU's memory, in the order measured
    others: tuple[Result, ...]  # with other memory than requested: they prove nothing


def conclusions(results: Sequence[Result], left_out: Sequence[LeftOut] = ()) -> tuple[str, ...]:
    """Return what a comparison of memories means, in sentences; () if nothing was compared."""
    paths = {test.path for test in left_out}
    pairs = []
    for pair in _pairs(results):
        count = len(pair.paths) + len(pair.others)
        if count + (pair.host is not None) > 1 or (count and pair.title in paths):
            pairs.append(pair)
    sentences: list[str] = []
    for pair in pairs:
        of_pair = [*map(_other_memory, pair.others), *_against_host(pair), *_between_paths(pair)]
        sentences += [f"{pair.title}: {sentence}" if len(pairs) > 1 else sentence for sentence in of_pair]
    unmeasured = _without_gpu_memory(results, left_out)
    sentences += unmeasured
    staged = staging_conclusions(results)
    sentences += staged
    if pairs or unmeasured or staged:
        sentences += _reasons(left_out)
    return tuple(dict.fromkeys(sentences))


def _without_gpu_memory(results: Sequence[Result], left_out: Sequence[LeftOut]) -> list[str]:
    done = [result for result in results if result.ending is Ending.DONE]
    measured = {result.pair.nic for result in done if result.memory != HOST_MEMORY}
    missing = {test.path.rpartition(_ARROW)[2] for test in left_out if _ARROW in test.path} - measured
    return [
        _said("no-gpu-memory", nic=result.pair.nic, figure=headline_text(result))
        for result in done
        if result.memory == HOST_MEMORY and result.pair.nic in missing
    ]


def _reasons(left_out: Sequence[LeftOut]) -> list[str]:
    titles: dict[str, list[str]] = {}
    for test in left_out:
        titles.setdefault(test.reason, []).append(test.title)
    sentences = []
    for reason, named in titles.items():
        *first, last = named if len(named) < 3 else (*named[:2], f"{len(named) - 2} more")
        names = f"{', '.join(first)} and {last} were" if first else f"{last} was"
        sentences.append(f"{names} skipped: {reason}")
    return sentences


def _pairs(results: Sequence[Result]) -> list[_Pair]:
    measured = [result for result in results if result.memory in _COMPARED]
    measured = [result for result in measured if result.ending is not Ending.CANCELED]
    hosts = {_setting(result): result for result in measured if result.memory == HOST_MEMORY}
    groups: dict[tuple[object, ...], list[Result]] = {}
    for result in measured:
        if result.memory != HOST_MEMORY:
            groups.setdefault((result.pair.gpu_label, _setting(result)), []).append(result)
    return [
        _Pair(
            group[0].path,
            hosts.get(_setting(group[0])),
            tuple(result for result in group if _is_of_path(result)),
            tuple(result for result in group if not _is_of_path(result)),
        )
        for group in groups.values()
    ]


def _is_of_path(result: Result) -> bool:
    """Return whether the result counts for the requested path; a failed test always does."""
    return result.ending is not Ending.DONE or is_as_requested(result)


def _setting(result: Result) -> tuple[object, ...]:
    """Return what results with host memory and GPU memory must have in common to be compared."""
    pair = (result.pair.nic, result.pair.port, result.pair.far_nic, result.pair.peer)
    load = (result.size_bytes, result.queue_pairs, result.is_bidirectional)
    return (*pair, result.tool, result.setup, *load)


def _against_host(pair: _Pair) -> list[str]:
    sentences: list[str] = []
    host = pair.host
    if host is not None and host.ending is Ending.FAILED:
        sentences.append(_said("host-failed", nic=host.pair.nic, failed=host.what_failed))
    for result in pair.paths:
        if result.ending is Ending.DONE:
            sentence = _latency(result, host) if result.gbps is None else _bandwidth(result, host)
            sentences += [sentence] if sentence else []
    return sentences


def _other_memory(result: Result) -> str:
    figure = headline_text(result)
    return _said(
        "other-memory",
        memory=result.memory,
        evidence=mismatch_evidence(result),
        figure=figure and f" ({figure})",
        used=memory_used(result),
    )


def _bandwidth(result: Result, host: Result | None) -> str:
    assert result.gbps is not None
    gpu, nic, memory = result.pair.gpu_label or "the GPU", result.pair.nic, result.memory
    figure, ours = result.judgment.words or headline_text(result), gbps_text(result.gbps)
    near = result.judgment.verdict is Rating.NEAR
    words = {"gpu": gpu, "nic": nic, "memory": memory, "ours": ours}
    works = _said("works", **words, figure=figure)
    if host is None or host.ending is not Ending.DONE or not host.gbps:
        if near:
            return works
        cause = result.judgment.open_findings or "without a result for host memory, the cause is unknown"
        return f"{memory} reaches {figure}; {cause}"
    share, theirs = result.gbps / host.gbps, gbps_text(host.gbps)
    words["theirs"] = theirs
    if near and share < LIKE_HOST:
        return f"{works}, {100 * (1 - share):.0f} % less than host memory ({theirs})"
    if near or (share >= LIKE_HOST and host.judgment.verdict is Rating.NEAR):
        return f"{works}, as fast as host memory ({theirs})"
    if share < LIKE_HOST:
        notes = result.judgment.why.partition("; ")[2] if result.judgment.verdict is Rating.BELOW else ""
        because = f" ({notes})" if notes else ""
        then = f"; {result.judgment.open_findings}" if result.judgment.findings else f". {CHECK_FOR_CAUSES}"
        return _said("path-limits", **words, because=because, then=then)
    if result.judgment.verdict is Rating.UNKNOWN:
        return _said("limit-unknown", **words, why=result.judgment.why)
    if share * LIKE_HOST > 1:
        return _said("host-is-slower", **words)
    return _said("like-host", **words, cause=_common_cause(result))


def _common_cause(result: Result) -> str:
    name = "between-nodes"
    if result.setup == Mode.LOOPBACK.value:
        name = "between-ports" if result.pair.far_nic else "in-loopback"
    return _said(name, nic=result.pair.nic, far_nic=result.pair.far_nic)


def _latency(result: Result, host: Result | None) -> str:
    mine = latency_us(result.figure)
    theirs = None if host is None else latency_us(host.figure)
    if mine is None or theirs is None:
        return ""
    return _said("latencies", ours=f"{mine:.2f}", theirs=f"{theirs:.2f}", memory=result.memory)


def _between_paths(pair: _Pair) -> list[str]:
    paths = {result.memory: result for result in pair.paths}
    dmabuf, peermem = paths.get(BY_DMABUF), paths.get(BY_PEERMEM)
    if dmabuf is None or peermem is None:
        failed = [result for result in pair.paths if result.ending is Ending.FAILED]
        return [f"{result.memory} failed: {result.what_failed}" for result in failed]
    is_broken = (dmabuf.ending is Ending.FAILED, peermem.ending is Ending.FAILED)
    if any(is_broken):
        name = {(True, True): "both-failed", (True, False): "dmabuf-failed"}.get(is_broken, "peermem-failed")
        if name == "dmabuf-failed" and _UNSUPPORTED.search(dmabuf.failure_line):
            name = "dmabuf-unsupported"
        return [_said(name, dmabuf=dmabuf.what_failed, peermem=peermem.what_failed)]
    if not dmabuf.gbps or not peermem.gbps:
        return []
    share = dmabuf.gbps / peermem.gbps
    name, slower = ("dmabuf-slower", share) if share < 1 else ("peermem-slower", 1 / share)
    if LIKE_HOST <= share <= 1 / LIKE_HOST:
        name = "equally-fast"
    figures = f"{gbps_text(dmabuf.gbps)} and {gbps_text(peermem.gbps)}"
    return [_said(name, figures=figures, percent=f"{100 * (1 - slower):.0f}")]
