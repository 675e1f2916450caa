"""Host memory, nvidia-peermem and DMA-BUF on one pair: what each gives against the others, and what it means.

Which path NCCL takes: DMA-BUF wherever GPU, driver and NIC have it, else nvidia-peermem; its own buffers do
not fall back to nvidia-peermem when DMA-BUF fails (NCCL src/transport/net.cc, 2.30).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from probes.bandwidth.model.planned_test import LeftOut
from probes.bandwidth.model.rating import LIKE_HOST, Rating
from probes.bandwidth.model.request import Mode
from probes.bandwidth.model.result import Ending, Result
from probes.bandwidth.results.against_earlier import gbps_text, headline_text, latency_us
from probes.bandwidth.results.memory_path import is_as_requested, memory_used, mismatch_evidence
from probes.bandwidth.tools.samples import BY_DMABUF, BY_PEERMEM, HOST_MEMORY

_ARROW = " → "
# What NCCL, too, asks before it takes DMA-BUF: the GPU's attribute, and EOPNOTSUPP or EPROTONOSUPPORT of the
# NIC (src/init.cc dmaBufSupported, src/transport/net_ib/gdr.cc).
_NOT_OFFERED = re.compile(r"DMA-BUF is not supported on this GPU|Couldn't allocate MR with error=(?:93|95)\b")
_DOCTOR = "gdrtop check looks for its causes: ACS redirects, IOMMU, slow links"


@dataclass(frozen=True)
class _Pair:
    """What was measured over one NIC with one GPU."""

    title: str  # "GPU0 → mlx5_0"
    host: Result | None
    paths: tuple[Result, ...]  # the GPU's memory, in the order measured
    others: tuple[Result, ...]  # of other memory than was asked for: nothing is proven by them


def conclusions(results: Sequence[Result], left_out: Sequence[LeftOut] = ()) -> tuple[str, ...]:
    """What a comparison of memories means, sentences an admin can act on; () where nothing was compared."""
    pairs = [pair for pair in _pairs(results) if _is_comparison(pair, left_out)]
    told: list[str] = []
    for pair in pairs:
        sentences = [*(_of_other(one) for one in pair.others), *_of_paths(pair), *_between_paths(pair)]
        told += [f"{pair.title}: {one}" if len(pairs) > 1 else one for one in sentences]
    unmeasured = _without_gpu_memory(results, left_out)
    told += unmeasured
    if pairs or unmeasured:
        told += _reasons(left_out)
    return tuple(dict.fromkeys(told))


def _without_gpu_memory(results: Sequence[Result], left_out: Sequence[LeftOut]) -> list[str]:
    """Of NICs whose host memory alone was measured: that says nothing about any GPU."""
    done = [one for one in results if one.ending is Ending.DONE]
    measured = {one.pair.nic for one in done if one.memory != HOST_MEMORY}
    lost = {one.path.rpartition(_ARROW)[2] for one in left_out if _ARROW in one.path} - measured
    return [
        f"no GPU's memory was measured over {one.pair.nic}: host memory ({headline_text(one)}) says"
        " nothing about GPUDirect RDMA"
        for one in done
        if one.memory == HOST_MEMORY and one.pair.nic in lost
    ]


def _reasons(left_out: Sequence[LeftOut]) -> list[str]:
    """Why tests were left out; those with the same reason in one sentence."""
    titles: dict[str, list[str]] = {}
    for one in left_out:
        titles.setdefault(one.reason, []).append(one.title)
    told = []
    for reason, named in titles.items():
        *first, last = named if len(named) < 3 else (*named[:2], f"{len(named) - 2} more")
        names = f"{', '.join(first)} and {last} were" if first else f"{last} was"
        told.append(f"{names} left out: {reason}")
    return told


def _is_comparison(pair: _Pair, left_out: Sequence[LeftOut]) -> bool:
    of_pair = any(one.path == pair.title for one in left_out)
    of_gpu = len(pair.paths) + len(pair.others)
    return of_gpu + (pair.host is not None) > 1 or (of_gpu > 0 and of_pair)


def _pairs(results: Sequence[Result]) -> list[_Pair]:
    measured = [one for one in results if one.memory and one.ending is not Ending.CANCELLED]
    hosts = {_way(one): one for one in measured if one.memory == HOST_MEMORY}
    found: dict[tuple[object, ...], list[Result]] = {}
    for one in measured:
        if one.memory != HOST_MEMORY:
            found.setdefault((one.pair.gpu_label, _way(one)), []).append(one)
    return [
        _Pair(
            some[0].path,
            hosts.get(_way(some[0])),
            tuple(one for one in some if _is_of_path(one)),
            tuple(one for one in some if not _is_of_path(one)),
        )
        for some in found.values()
    ]


def _is_of_path(one: Result) -> bool:
    """A test that failed is one of the path that was asked for, whatever it had said by then."""
    return one.ending is not Ending.DONE or is_as_requested(one)


def _way(one: Result) -> tuple[object, ...]:
    """What host memory and GPU memory must have in common to be compared."""
    pair = (one.pair.nic, one.pair.port, one.pair.far_nic, one.pair.peer)
    return (*pair, one.tool, one.setup, one.size_bytes, one.queue_pairs, one.is_bidirectional)


def _of_paths(pair: _Pair) -> list[str]:
    """Each path against host memory and the line; those that say the same are told in one."""
    told: list[str] = []
    host = pair.host
    if host is not None and host.ending is Ending.FAILED:
        told.append(
            f"host memory failed on {host.pair.nic} too ({host.trouble}): first mend that, it has nothing to"
            " do with the GPU"
        )
    for one in pair.paths:
        if one.ending is Ending.DONE:
            sentence = _latency(one, host) if one.gbps is None else _bandwidth(one, host)
            if sentence:
                told.append(sentence)
    return told


def _of_other(one: Result) -> str:
    return (
        f"{one.memory} was not measured: {mismatch_evidence(one)}. Its {headline_text(one) or 'figure'} is"
        f" that of {memory_used(one)} and proves nothing about {one.memory}"
    )


def _bandwidth(one: Result, host: Result | None) -> str:
    assert one.gbps is not None
    gpu, nic = one.pair.gpu_label or "the GPU", one.pair.nic
    near = one.judgement.verdict is Rating.NEAR
    works = f"GPUDirect RDMA by {one.memory} works: {nic} reaches the memory of {gpu} at {_of_line(one)}"
    if host is None or host.ending is not Ending.DONE or not host.gbps:
        if near:
            return works
        return (
            f"by {one.memory} {_of_line(one)}; host memory, which would tell whose fault it is, has no figure"
        )
    share, theirs = one.gbps / host.gbps, gbps_text(host.gbps)
    if near:
        slower = f", {100 * (1 - share):.0f} % less than host memory ({theirs})" if share < LIKE_HOST else ""
        return works + (slower or f", as fast as host memory ({theirs})")
    if share < LIKE_HOST:
        notes = one.judgement.why.partition("; ")[2] if one.judgement.verdict is Rating.BELOW else ""
        because = f" ({notes})" if notes else ""
        return (
            f"the way between {nic} and {gpu} limits{because}: by {one.memory} {gbps_text(one.gbps)}, host"
            f" memory on the same NIC {theirs}. {_DOCTOR}"
        )
    if host.judgement.verdict is Rating.NEAR:
        return f"{works}, as fast as host memory ({theirs})"
    if one.judgement.verdict is Rating.UNKNOWN:
        return (
            f"by {one.memory} {gpu} is as fast as host memory ({gbps_text(one.gbps)}, {theirs}); whether"
            f" that is near the line is not known: {one.judgement.why}"
        )
    if share * LIKE_HOST > 1:
        return (
            f"host memory ({theirs}) is slower than {gpu} by {one.memory} ({gbps_text(one.gbps)}): GPUDirect"
            " RDMA is not what limits; look at the NUMA node that the host's memory is of"
        )
    return (
        f"by {one.memory} {gpu} is as slow as host memory ({gbps_text(one.gbps)}, {theirs}): the way to the"
        f" GPU is not what limits. {_common_cause(one)}"
    )


def _common_cause(one: Result) -> str:
    """Where to look, when host memory is as slow as the GPU's."""
    if one.setup == Mode.LOOPBACK.value and not one.pair.far_nic:
        return (
            f"In loopback all data crosses the PCIe link of {one.pair.nic} out and back in, and host memory"
            " is bound by that as well: test against another node before the NIC or the network is blamed"
        )
    if one.setup == Mode.LOOPBACK.value:
        return (
            f"Look at {one.pair.nic} and {one.pair.far_nic}: PCIe link, MTU, error counters, the way between"
        )
    return (
        f"Look at {one.pair.nic}, the network and the far side: PCIe link, MTU, congestion, error counters;"
        " a test in loopback tells whether this node alone reaches more"
    )


def _of_line(one: Result) -> str:
    return one.judgement.words or headline_text(one)


def _latency(one: Result, host: Result | None) -> str:
    mine = latency_us(one.figure)
    theirs = None if host is None else latency_us(host.figure)
    if mine is None or theirs is None:
        return ""
    return (
        f"by {one.memory} a message takes {mine:.2f} µs, with host memory {theirs:.2f} µs: the difference is"
        " the way to the GPU"
    )


def _between_paths(pair: _Pair) -> list[str]:
    paths = {one.memory: one for one in pair.paths}
    dmabuf, peermem = paths.get(BY_DMABUF), paths.get(BY_PEERMEM)
    if dmabuf is None or peermem is None:
        failed = [one for one in pair.paths if one.ending is Ending.FAILED]
        return [f"{one.memory} failed: {one.trouble}" for one in failed]
    endings = (dmabuf.ending, peermem.ending)
    if endings == (Ending.FAILED, Ending.DONE) and _NOT_OFFERED.search(dmabuf.trouble_raw):
        return [
            f"this node offers no DMA-BUF for this pair ({dmabuf.trouble}); NCCL sees that as well and takes"
            " nvidia-peermem, which works"
        ]
    if endings == (Ending.FAILED, Ending.DONE):
        return [
            f"DMA-BUF failed ({dmabuf.trouble}) and nvidia-peermem works: NCCL takes DMA-BUF where the driver"
            " and the NIC offer it and then fails as well; NCCL_DMABUF_ENABLE=0 makes it take nvidia-peermem"
        ]
    if endings == (Ending.DONE, Ending.FAILED):
        return [
            f"nvidia-peermem failed ({peermem.trouble}) and DMA-BUF works: NCCL from 2.13.4 on takes DMA-BUF"
            " by itself and needs no nvidia-peermem; only what knows no DMA-BUF will miss it"
        ]
    if endings == (Ending.FAILED, Ending.FAILED):
        return [
            f"neither path works: DMA-BUF: {dmabuf.trouble}; nvidia-peermem: {peermem.trouble}. NCCL copies"
            " through host memory, or fails. gdrtop check tells what is missing"
        ]
    if not dmabuf.gbps or not peermem.gbps:
        return []
    share = dmabuf.gbps / peermem.gbps
    figures = f"{gbps_text(dmabuf.gbps)} and {gbps_text(peermem.gbps)}"
    if LIKE_HOST <= share <= 1 / LIKE_HOST:
        return [f"DMA-BUF and nvidia-peermem carry the same ({figures}): either will do, NCCL takes DMA-BUF"]
    if share < 1:
        return [
            f"DMA-BUF carries {100 * (1 - share):.0f} % less than nvidia-peermem ({figures}): NCCL takes"
            " DMA-BUF; NCCL_DMABUF_ENABLE=0 makes it take nvidia-peermem. Same way on the bus, so look at the"
            " driver and the IOMMU"
        ]
    return [
        f"nvidia-peermem carries {100 * (1 - 1 / share):.0f} % less than DMA-BUF ({figures}): NCCL takes"
        " DMA-BUF by itself from 2.13.4 on"
    ]
