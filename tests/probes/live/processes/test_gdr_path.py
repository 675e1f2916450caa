"""The path of a process: every case of the notes on registration sums, and every known way to err."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.rdma_resources import MemoryRegion, QueuePair, RdmaResources
from probes.live.model.sample import NicUse, PathWord, Role
from probes.live.processes.gdr_path import NodeEvidence, ProcessEvidence, judge, judge_memory, size_text
from probes.live.processes.ownership import RdmaUse, attribute, summed

KIB, MIB = 1 << 10, 1 << 20
VERBS = ("NCCL IbAsync  0", "NCCL Progress 0", "NCCL Service  0", "python3")
SOCKETS = ("NCCL Progress 0", "NCCL SockS 0 0", "python3")
NO_PINNED = Unknown(Reason.NOT_THERE, "/proc/42/status", "no VmPin")
NEEDS_ROOT = Unknown(Reason.NEEDS_ROOT, "/proc/42/status")
NODE = NodeEvidence(peermem_candidates=frozenset({42}), candidates_share_job=True)
RING = 96 * KIB
MLX5_0 = frozenset({"mlx5_0"})


def regions(*lengths: int, is_odp: bool = False, device: str = "mlx5_0") -> list[MemoryRegion]:
    return [MemoryRegion(device, number, length, 1, 42, "", is_odp) for number, length in enumerate(lengths)]


def use_of(
    own: list[MemoryRegion] | None = None,
    inherited: list[MemoryRegion] | None = None,
    pairs: int = 2,
    ready: int | None = None,
    queues: int = 2,
) -> RdmaUse:
    nic = NicUse("mlx5_0", pairs, pairs if ready is None else ready, 0, 0)
    return RdmaUse((nic,), summed(own or []), summed(inherited or []), queues, ("mlx5_0",))


def rank(use: Maybe[RdmaUse], pinned: Maybe[int] = 0, **changes: object) -> ProcessEvidence:
    """Evidence of an NCCL rank with a GPU."""
    evidence = ProcessEvidence(42, Role.NCCL, use, pinned, VERBS, True)
    return replace(evidence, **changes)  # type: ignore[arg-type]


def program(use: RdmaUse, pinned: Maybe[int] = 0, **changes: object) -> ProcessEvidence:
    """Evidence of a program that is not NCCL, without a GPU."""
    return replace(
        rank(use, pinned, role=Role.PERFTEST, threads=("ib_write_bw",), has_gpu=False),
        **changes,  # type: ignore[arg-type]
    )


HOST_RANK = rank(use_of(regions(*[4 * MIB] * 8, 512 * KIB)), 8 * 4 * MIB + 512 * KIB + 4 * RING)
DMABUF_RANK = rank(use_of(regions(*[4 * MIB] * 8, 512 * KIB)), 512 * KIB + 4 * RING)


@dataclass(frozen=True)
class Case:
    """A row: what is read, and the path as shown."""

    process: ProcessEvidence
    text: str
    node: NodeEvidence = NODE


# Registrations with a stub RDMA device on kernels 6.1, 6.12 and 7.3: lengths and VmPin as measured there,
# with two connected queue pairs added.
RESULTS = {
    "1-host": Case(program(use_of(regions(32 * MIB)), 32 * MIB), "host memory"),
    "1-host-of-nccl": Case(rank(use_of(regions(32 * MIB)), 32 * MIB), "staged"),
    "2-dmabuf": Case(rank(use_of(regions(64 * MIB)), 0), "likely GDR (DMA-BUF)"),
    "2b-part-of-a-dmabuf": Case(
        rank(use_of(regions(5001)), 0), "unknown: all its memory regions are smaller than 1 MiB"
    ),
    "2c-other-exporters": Case(
        program(use_of(regions(16 * MIB, 8 * MIB)), 0), "unknown: it has DMA-BUF regions but no GPU"
    ),
    "2d-not-pinned": Case(rank(use_of(regions(8 * MIB)), 0), "likely GDR (DMA-BUF)"),
    "2e-length-0": Case(
        rank(use_of(regions(0, 4 * MIB)), 4 * MIB),
        "unknown: the driver of mlx5_0 does not report the length of a region",
    ),
    "2e-length-0-of-bnxt_re": Case(
        rank(use_of(regions(0, 4 * MIB)), 4 * MIB),
        "likely GDR (DMA-BUF)",
        replace(NODE, drivers={"mlx5_0": "bnxt_en"}),
    ),
    "2f-both-kinds-0": Case(
        rank(use_of(regions(0, 0)), 4 * MIB),
        "unknown: the driver of mlx5_0 does not report the length of a region",
    ),
    "3-host-and-dmabuf": Case(rank(use_of(regions(32 * MIB, 64 * MIB)), 32 * MIB), "likely GDR (DMA-BUF)"),
    "4-buffer-twice": Case(program(use_of(regions(16 * MIB, 16 * MIB)), 32 * MIB), "host memory"),
    "4-dmabuf-twice": Case(rank(use_of(regions(4 * MIB, 4 * MIB)), 0), "likely GDR (DMA-BUF)"),
    "5-across-page-borders": Case(
        program(use_of(regions(*[2] * 100)), 800 * KIB),
        "unknown: all its memory regions are smaller than 1 MiB",
    ),
    "6-large-pages": Case(program(use_of(regions(16 * MIB, 3 * MIB + 17)), 19460 * KIB), "host memory"),
    "7-child-has-none": Case(program(use_of(), 0), "unknown: it has no memory region"),
    "7b-zombie": Case(
        rank(use_of(regions(16 * MIB)), NO_PINNED),
        "unknown: its pinned memory is not readable: it is exiting, or hidden (hidepid)",
    ),
    "7b-rest-without-owner": Case(
        program(use_of(regions(16 * MIB)), 16 * MIB),
        "unknown: 1 memory region on this node without a visible owner",
        replace(NODE, unowned_regions=1),
    ),
    "8-setuid": Case(program(use_of(regions(16 * MIB)), 16 * MIB), "host memory"),
    "9-odp-without-a-mark": Case(rank(use_of(regions(16 * MIB)), 0), "likely GDR (DMA-BUF)"),
    "9-odp-with-a-mark": Case(
        rank(use_of(regions(16 * MIB, is_odp=True)), 0), "unknown: it has no memory region"
    ),
    "9-implicit-odp": Case(rank(use_of(regions((1 << 64) - 1)), 0), "unknown: it has no memory region"),
    "10-everybody-else-in-a-pid-namespace": Case(
        HOST_RANK,
        "unknown: 12 memory regions on this node without a visible owner",
        replace(NODE, unowned_regions=12),
    ),
    "10c-exclusive-network-namespaces": Case(
        rank(RdmaUse(), 0),
        "unknown: its RDMA devices may be in another network namespace; root on the host can see them",
        replace(NODE, is_hidden=True),
    ),
    "11-killed": Case(rank(RdmaUse(), 0), "no NIC in use"),
    "12-other-thread": Case(rank(use_of(regions(16 * MIB)), 16 * MIB), "staged"),
    "12'-that-thread-ended": Case(rank(use_of([], regions(16 * MIB)), 16 * MIB), "likely staged"),
    "12'-that-thread-ended-dmabuf": Case(
        rank(use_of([], regions(16 * MIB)), 8 * MIB), "likely GDR (DMA-BUF)"
    ),
    "13-ring-hides-a-small-dmabuf": Case(
        rank(use_of(regions(4 * MIB, 128 * KIB), pairs=1, queues=1), 4 * MIB + 256 * KIB), "staged"
    ),
    "14-io_uring": Case(
        rank(use_of(regions(4 * MIB), pairs=1, queues=1), 6 * MIB),
        "unknown: 6 MiB is pinned, but not only by RDMA, which hides DMA-BUF",
    ),
    "15-exec-with-an-open-device": Case(
        program(use_of(regions(16 * MIB)), 0), "unknown: it has DMA-BUF regions but no GPU"
    ),
    "15-exec-of-a-gpu-program": Case(rank(use_of(regions(16 * MIB)), 0), "likely GDR (DMA-BUF)"),
    "16-hidepid": Case(
        rank(use_of(regions(16 * MIB)), Unknown(Reason.NOT_THERE, "/proc/42/status")),
        "unknown: its pinned memory is not readable: it is exiting, or hidden (hidepid)",
    ),
}

PEERMEM = replace(NODE, peermem_regions=96)
# What each evidence can prove, and where it errs: 2 registered minus pinned memory, 3 nvidia_peermem's
# refcnt, 4 nothing but pinned memory, 5 NCCL's socket threads.
TRAPS = {
    "2-proves-dmabuf": Case(DMABUF_RANK, "likely GDR (DMA-BUF)"),
    "2-old-kernel": Case(
        HOST_RANK, "unknown: kernel 5.14 does not list DMA-BUF regions", replace(NODE, kernel=(5, 14))
    ),
    "2-old-kernel-that-cannot-use-dmabuf": Case(
        HOST_RANK, "staged", replace(NODE, kernel=(5, 4), dmabuf_usable=False)
    ),
    "2-unknown-kernel": Case(
        HOST_RANK,
        "unknown: cannot read the kernel version (not there)",
        replace(NODE, kernel=Unknown(Reason.NOT_THERE, "/proc/version")),
    ),
    "2-implicit-odp-and-dmabuf": Case(
        rank(use_of(regions((1 << 64) - 1, 8 * MIB)), 0), "likely GDR (DMA-BUF)"
    ),
    "2-dmabuf-that-is-not-gpu-memory": Case(
        replace(DMABUF_RANK, has_gpu=False), "unknown: it has DMA-BUF regions but no GPU"
    ),
    "2-not-connected": Case(
        rank(use_of(regions(64 * MIB), ready=0), 0), "unknown: no queue pair is connected (RTS)"
    ),
    "2-no-queue-pair-listed": Case(
        rank(use_of(regions(64 * MIB), pairs=0), 0),
        "unknown: it registers GPU memory (DMA-BUF), but no listed queue pair has a peer",
    ),
    "2-changing": Case(
        replace(DMABUF_RANK, is_settled=False), "unknown: its memory regions changed while they were read"
    ),
    "2-bufinfo-and-one-candidate": Case(
        DMABUF_RANK, "GDR (DMA-BUF)", replace(NODE, dmabuf_attached=MLX5_0, dmabuf_candidates={42: MLX5_0})
    ),
    "2-bufinfo-and-one-candidate-on-another-nic": Case(
        DMABUF_RANK,
        "likely GDR (DMA-BUF)",
        replace(NODE, dmabuf_attached=frozenset({"mlx5_1"}), dmabuf_candidates={42: MLX5_0}),
    ),
    "2-bufinfo-and-candidates-on-nics-of-their-own": Case(
        DMABUF_RANK,
        "GDR (DMA-BUF)",
        replace(
            NODE,
            dmabuf_attached=frozenset({"mlx5_0", "mlx5_1"}),
            dmabuf_candidates={42: MLX5_0, 43: frozenset({"mlx5_1"})},
        ),
    ),
    "2-bufinfo-and-one-nic-of-two-is-shared": Case(
        DMABUF_RANK,
        "GDR (DMA-BUF)",
        replace(
            NODE,
            dmabuf_attached=frozenset({"mlx5_0", "mlx5_1"}),
            dmabuf_candidates={42: frozenset({"mlx5_0", "mlx5_1"}), 43: frozenset({"mlx5_1"})},
        ),
    ),
    "2-bufinfo-and-two-candidates": Case(
        DMABUF_RANK,
        "likely GDR (DMA-BUF)",
        replace(NODE, dmabuf_attached=MLX5_0, dmabuf_candidates={42: MLX5_0, 43: MLX5_0}),
    ),
    "2-bufinfo-says-no": Case(
        DMABUF_RANK,
        "likely GDR (DMA-BUF)",
        replace(NODE, dmabuf_attached=frozenset(), dmabuf_candidates={42: MLX5_0}),
    ),
    "3-only-candidate": Case(HOST_RANK, "GDR (peermem)", PEERMEM),
    "3-only-candidate-of-an-unknown-gpu": Case(
        replace(HOST_RANK, has_gpu=NEEDS_ROOT), "likely GDR (peermem)", PEERMEM
    ),
    "3-ranks-of-one-job": Case(
        HOST_RANK, "likely GDR (peermem)", replace(PEERMEM, peermem_candidates=frozenset(range(40, 48)))
    ),
    "3-several-jobs": Case(
        HOST_RANK,
        "unknown: one of 8 processes uses nvidia_peermem",
        replace(PEERMEM, peermem_candidates=frozenset(range(40, 48)), candidates_share_job=False),
    ),
    "3-fewer-regions-than-ranks": Case(
        HOST_RANK,
        "unknown: one of 8 processes uses nvidia_peermem",
        replace(PEERMEM, peermem_regions=1, peermem_candidates=frozenset(range(40, 48))),
    ),
    "3-rest-without-owner": Case(
        HOST_RANK,
        "unknown: nvidia_peermem is in use, but not all memory regions have a visible owner",
        replace(PEERMEM, unowned_regions=3),
    ),
    "3-other-namespaces": Case(
        HOST_RANK,
        "unknown: nvidia_peermem is in use, maybe by processes in another network namespace; "
        "root on the host can see them",
        replace(PEERMEM, is_hidden=True),
    ),
    "3-no-candidate-without-a-gpu": Case(
        program(use_of(regions(32 * MIB)), 32 * MIB),
        "host memory",
        replace(PEERMEM, peermem_candidates=frozenset({7})),
    ),
    "3-refcnt-not-readable": Case(
        HOST_RANK,
        "unknown: cannot tell whether nvidia_peermem is in use (I/O error)",
        replace(NODE, peermem_regions=Unknown(Reason.IO_ERROR, "refcnt")),
    ),
    "3-peermem-of-efa": Case(
        HOST_RANK,
        "unknown: efa_nv_peermem does not report its regions",
        replace(NODE, other_peermem=("efa_nv_peermem",)),
    ),
    "3-dmabuf-rank-beside-peermem": Case(DMABUF_RANK, "likely GDR (DMA-BUF)", PEERMEM),
    "4-staged": Case(HOST_RANK, "staged"),
    "4-not-nccl": Case(replace(HOST_RANK, role=Role.UCX), "host memory"),
    "4-another-library-has-the-queue-pairs": Case(
        replace(HOST_RANK, threads=("NCCL Service  0",)),
        "unknown: no NCCL IbAsync thread: another library may have the queue pairs",
    ),
    "4-a-network-plugin-has-the-queue-pairs": Case(
        replace(HOST_RANK, threads=("NCCL Service  0",), libraries=frozenset({"libnccl-net"})),
        "likely staged",
    ),
    "4-storage-library-beside-dmabuf": Case(
        rank(use_of(regions(8 << 30, *[4 * MIB] * 8)), (8 << 30) + 4 * RING), "likely GDR (DMA-BUF)"
    ),
    "4-gpu-not-known": Case(replace(HOST_RANK, has_gpu=NEEDS_ROOT), "likely staged"),
    "4-many-queues": Case(
        rank(
            use_of(regions(*[4 * MIB] * 64), pairs=32, queues=32), 64 * 4 * MIB + 64 * (QUARTER := 64 * KIB)
        ),
        "likely staged",
    ),
    "4-many-queues-and-few-regions": Case(
        rank(use_of(regions(*[4 * MIB] * 8), pairs=32, queues=32), 32 * MIB + 64 * QUARTER),
        "unknown: up to 12.0 MiB of its memory regions may be DMA-BUF",
    ),
    "4-many-queues-of-another-program": Case(
        program(use_of(regions(*[4 * MIB] * 64), pairs=32, queues=32), 64 * 4 * MIB + 64 * QUARTER),
        "unknown: up to 12.2 MiB of its memory regions may be DMA-BUF",
    ),
    "4-pinned-needs-root": Case(replace(HOST_RANK, pinned=NEEDS_ROOT), "unknown: needs root"),
    "5-sockets": Case(rank(RdmaUse(), 0, threads=SOCKETS), "TCP"),
    "5-sockets-and-an-idle-device": Case(
        rank(RdmaUse((NicUse("mlx5_0", 0, 0, 0, 0),), contexts=("mlx5_0",)), 0, threads=SOCKETS + VERBS),
        "TCP",
    ),
    "5-sockets-beside-another-library": Case(replace(HOST_RANK, threads=SOCKETS), "likely TCP"),
    "5-sockets-and-queue-pairs-of-nccl": Case(
        replace(HOST_RANK, threads=SOCKETS + VERBS), "unknown: NCCL has both socket and InfiniBand threads"
    ),
    "5-sockets-and-queue-pairs-without-owner": Case(
        rank(RdmaUse(), 0, threads=SOCKETS), "likely TCP", replace(NODE, unowned_queue_pairs=4)
    ),
    "5-sockets-without-a-list": Case(
        rank(Unknown(Reason.NOT_THERE, "RDMA netlink"), 0, threads=SOCKETS), "likely TCP"
    ),
    "no-list": Case(
        rank(Unknown(Reason.NOT_THERE, "RDMA netlink"), 0), "unknown: the kernel does not list RDMA resources"
    ),
    "no-queue-pairs-no-sockets": Case(rank(RdmaUse(), 0), "no NIC in use"),
    "queue-pairs-without-owner": Case(
        rank(RdmaUse(), 0),
        "unknown: some queue pairs on this node have no visible owner",
        replace(NODE, unowned_queue_pairs=4),
    ),
    "old-nccl-without-thread-names": Case(rank(RdmaUse(), 0, threads=("python3",)), "likely no NIC in use"),
    "threads-not-readable": Case(
        rank(RdmaUse(), 0, threads=NEEDS_ROOT), "unknown: cannot read its threads (needs root)"
    ),
    "nccl-plugin-without-queue-pairs": Case(
        rank(RdmaUse(), 0, libraries=frozenset({"libnccl-net-ofi"})),
        "unknown: NCCL uses a network plugin, whose connections are not visible",
    ),
    "nvshmem-with-queues-of-the-gpu": Case(
        rank(RdmaUse((NicUse("mlx5_0", 0, 0, 0, 0),), contexts=("mlx5_0",)), 0, gpu_may_post=True),
        "unknown: GPUs may post to DEVX queues, which the kernel does not list",
    ),
    "large-pages-of-arm": Case(
        rank(use_of(regions(*[MIB] * 20)), 20 * MIB),
        "unknown: up to 2.3 MiB of its memory regions may be DMA-BUF",
        replace(NODE, has_small_pages=False),
    ),
}


UD_PAIRS = RdmaResources(
    queue_pairs=tuple(QueuePair("mlx5_0", n, "UD", "RTS", 1, None, 1, 42) for n in (101, 102)),
    regions=(MemoryRegion("mlx5_0", 1, 40 << 30, 1, 42),),
)


def test_open_queue_pairs_of_ucx_do_not_show_that_it_uses_rdma() -> None:
    """UCX opens UD on every port, in RTS at once, while its RC pairs are made by DEVX (ucp_context.c)."""
    use = attribute(UD_PAIRS, {42: 42}, {42: ("mlx5_0",)}).uses[42]
    engine = ProcessEvidence(42, Role.UCX, use, 64 * MIB, ("async",), True)
    judged = judge(engine, replace(NODE, drivers={"mlx5_0": "mlx5_core"}))
    assert judged.text == "unknown: it registers GPU memory (DMA-BUF), but no listed queue pair has a peer"
    assert ("rdma resource show qp", "RC queue pairs are not listed (DEVX)") in {
        (each.source, each.value) for each in judged.evidence
    }
    assert "2 open without a peer" in judged.evidence[0].value
    assert judge_memory(engine, NODE).word is PathWord.DMABUF
    assert judge(replace(engine, role=Role.NCCL, threads=SOCKETS), NODE).text == "TCP"


def test_the_memory_is_judged_without_queue_pairs() -> None:
    none = attribute(replace(UD_PAIRS, queue_pairs=()), {42: 42}, {42: ("mlx5_0",)}).uses[42]
    host = ProcessEvidence(42, Role.UCX, none, 40 << 30, ("async",), True)
    node = replace(NODE, peermem_candidates=frozenset())
    assert judge(host, node).why == "it registers host memory only, but no listed queue pair has a peer"
    assert judge_memory(replace(host, is_settled=False), node).word is PathWord.UNKNOWN
    assert judge_memory(replace(host, use=RdmaUse()), node).word is PathWord.NO_NIC


@pytest.mark.parametrize("row", RESULTS)
def test_the_cases_seen_on_real_kernels(row: str) -> None:
    case = RESULTS[row]
    assert judge(case.process, case.node).text == case.text


@pytest.mark.parametrize("row", TRAPS)
def test_where_the_evidence_errs(row: str) -> None:
    case = TRAPS[row]
    assert judge(case.process, case.node).text == case.text


@pytest.mark.parametrize("case", [*RESULTS.values(), *TRAPS.values()], ids=[*RESULTS, *TRAPS])
def test_every_judgment_has_its_evidence(case: Case) -> None:
    path = judge(case.process, case.node)
    assert path.evidence
    assert (path.word is PathWord.UNKNOWN) == bool(path.why)


def test_the_evidence_names_sources_that_anyone_can_read() -> None:
    lines = {line.source: line.value for line in judge(DMABUF_RANK, NODE).evidence}
    assert lines == {
        "rdma resource show qp": "2 queue pairs, 2 in RTS: mlx5_0",
        "rdma resource show mr": "9 memory regions, 32.5 MiB",
        "/proc/42/status": "VmPin 896 KiB, 31.6 MiB less than the regions",
        "/proc/42/task/*/comm": "NCCL IbAsync  0, NCCL Progress 0, NCCL Service  0",
    }


def test_sizes_are_short() -> None:
    assert [size_text(count) for count in (0, 900, 4096, 1536 * KIB, 312 * MIB)] == [
        "0 bytes",
        "900 bytes",
        "4 KiB",
        "1.5 MiB",
        "312 MiB",
    ]


LENGTHS = st.lists(st.integers(0, 64 * MIB) | st.just((1 << 64) - 1), max_size=12)
MAYBE = st.sampled_from([True, False, Unknown(Reason.NEEDS_ROOT, "NVML")])
PROCESSES = st.builds(
    lambda own, inherited, pairs, ready, queues, pinned, threads, role, has_gpu: ProcessEvidence(
        42,
        role,
        use_of(regions(*own), regions(*inherited), pairs, min(ready, pairs), queues),
        pinned,
        threads,
        has_gpu,
    ),
    LENGTHS,
    LENGTHS,
    st.integers(0, 64),
    st.integers(0, 64),
    st.integers(0, 64),
    st.integers(0, 512 * MIB) | st.just(NO_PINNED),
    st.sampled_from([VERBS, SOCKETS, VERBS + SOCKETS, (), NEEDS_ROOT]),
    st.sampled_from(Role),
    MAYBE,
)
DEVICES = st.frozensets(st.sampled_from(["mlx5_0", "mlx5_1"]))
NODES = st.builds(
    NodeEvidence,
    peermem_regions=st.integers(0, 3) | st.just(Unknown(Reason.IO_ERROR, "refcnt")),
    peermem_candidates=st.frozensets(st.integers(40, 44)),
    candidates_share_job=st.booleans(),
    unowned_regions=st.integers(0, 2),
    unowned_queue_pairs=st.integers(0, 2),
    is_hidden=st.booleans(),
    kernel=st.sampled_from([(5, 4), (6, 8), Unknown(Reason.NOT_THERE, "kernel")]),
    dmabuf_usable=MAYBE,
    dmabuf_attached=DEVICES | st.just(NEEDS_ROOT),
    dmabuf_candidates=st.dictionaries(st.integers(41, 43), DEVICES),
    has_small_pages=st.booleans(),
    has_no_dmabuf=st.booleans(),
)


@pytest.mark.slow
@given(PROCESSES, NODES)
def test_a_path_is_never_more_certain_than_its_evidence(process: ProcessEvidence, node: NodeEvidence) -> None:
    path = judge(process, node)
    use = process.use
    assert isinstance(use, RdmaUse)
    no_lengths = use.own.without_length or use.inherited.without_length
    if path.word is PathWord.DMABUF:
        assert isinstance(process.pinned, int)
        assert use.own.bytes + use.inherited.bytes > process.pinned
        assert use.ready
        assert path.is_likely or (isinstance(node.dmabuf_attached, frozenset) and node.dmabuf_attached)
    assert path.is_likely is bool(path.doubt)
    if path.word in (PathWord.STAGED, PathWord.HOST_MEMORY):
        assert not node.unowned_regions
        assert isinstance(process.pinned, int)
        assert use.own.bytes + use.inherited.bytes - process.pinned < MIB
        assert not no_lengths
        assert not (node.peermem_regions and 42 in node.peermem_candidates)
    if path.word is PathWord.PEERMEM:
        assert isinstance(node.peermem_regions, int)
        assert node.peermem_regions > 0
        assert path.is_likely or node.peermem_candidates == {42}
    if path.word in (PathWord.TCP, PathWord.NO_NIC) and not path.is_likely:
        assert not use.queue_pairs
        assert not node.unowned_queue_pairs
    if path.word is not PathWord.UNKNOWN:
        assert not path.why


@pytest.mark.parametrize(
    ("node", "doubt"),
    [
        (NODE, "Root can settle it: /sys/kernel/debug/dma_buf/bufinfo"),
        (replace(NODE, dmabuf_attached=Unknown(Reason.NOT_THERE, "bufinfo")), "is debugfs mounted?"),
        (replace(NODE, dmabuf_attached=MLX5_0, unowned_regions=3), "Root on the host can settle it"),
        (replace(NODE, dmabuf_attached=MLX5_0, dmabuf_candidates={42: MLX5_0, 43: MLX5_0}), "whose they are"),
    ],
)
def test_a_likely_path_says_what_would_settle_it(node: NodeEvidence, doubt: str) -> None:
    assert doubt in judge(DMABUF_RANK, node).doubt


def test_a_nic_that_is_listed_has_no_process_in_another_namespace() -> None:
    node = replace(NODE, dmabuf_attached=MLX5_0, dmabuf_candidates={42: MLX5_0}, is_hidden=True)
    assert judge(DMABUF_RANK, node).text == "GDR (DMA-BUF)"


LACK = "DMA-BUF needs the open kernel modules"
UNPROVEN = "unknown: its regions look like DMA-BUF, which this node cannot use"
WITH_REGIONS = replace(
    DMABUF_RANK, use=replace(use_of(regions(*[4 * MIB] * 8, 512 * KIB)), nics=(NicUse("mlx5_0", 2, 2, 9, 0),))
)


@pytest.mark.parametrize(
    ("attached", "others", "text", "trusts"),
    [
        (NEEDS_ROOT, {}, UNPROVEN, "requirement"),
        (
            frozenset(),
            {},
            "unknown: its regions look like DMA-BUF, which this node cannot use",
            "requirement",
        ),
        (MLX5_0, {}, "GDR (DMA-BUF)", "use"),
        (MLX5_0, {43: MLX5_0}, "likely GDR (DMA-BUF)", "use"),
    ],
)
def test_a_path_that_the_node_cannot_have_says_which_fact_is_trusted(
    attached: Maybe[frozenset[str]], others: dict[int, frozenset[str]], text: str, trusts: str
) -> None:
    """A NIC that is attached to GPU memory proves the path; regions beyond VmPin alone do not."""
    candidates = {42: MLX5_0, **others}
    without = replace(
        NODE, no_dmabuf={"mlx5_0": LACK}, dmabuf_attached=attached, dmabuf_candidates=candidates
    )
    path = judge(WITH_REGIONS, without)
    assert path.text == text
    assert LACK in path.contradiction
    assert f"gdrtop trusts the {trusts}" in path.contradiction
    assert any(line.value == LACK for line in path.evidence)
    other_nic = replace(without, no_dmabuf={"mlx5_1": LACK})
    assert not judge(WITH_REGIONS, other_nic).contradiction


def test_a_refcnt_proves_nvidia_peermem_against_its_requirements() -> None:
    node = replace(NODE, peermem_regions=9, no_peermem="nvidia_peermem needs OFED")
    path = judge(HOST_RANK, node)
    assert path.word is PathWord.PEERMEM
    assert "nvidia_peermem needs OFED. gdrtop trusts the use" in path.contradiction
    assert not judge(HOST_RANK, replace(node, no_peermem="")).contradiction
