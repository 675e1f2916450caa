"""Lines of NCCL_RUN_DIAGNOSTICS=1, as NCCL 2.31 and 2.32 print them."""

import pytest

from probes.nccl.log.facts import LogFacts
from probes.nccl.log.verdict import verdict_of
from tests.support.nccl_logs import WARNING, info, read
from widgets.base.lines import plain
from widgets.nccl.log import draw

DIAG = "h100-01:41003 NCCL DIAG "
PAIR = (
    "net bw: mode=same server_rank=3 server_host=h100-01 server_device=mlx5_3 client_rank=11 "
    "client_host=h100-02 client_device=mlx5_3 "
)
PEERS = (
    "srcRank=2 srcCudaDev=2 srcNvmlDev=2 dstRank=3 dstCudaDev=3 dstNvmlDev=3 path=PIX handle=CUMEM_POSIX_FD "
)
TIMEOUT = (
    f"{WARNING}NET/IB: Got completion from peer 10.0.0.2<41> with status=12 opcode=0 len=0 vendor err 129\n"
)


def shown(facts: LogFacts) -> str:
    return " ".join(plain(line) for line in draw(facts, verdict_of(facts), 400))


def test_results_are_listed_and_headings_are_not() -> None:
    facts = read(
        f"{DIAG}=== NCCL Diagnostics ===\n"
        f"{DIAG}[OK]   p2p: verified P2P access in both directions between every GPU pair (2 peer accesses)\n"
        f"{DIAG}[OK] net bw: 381.2/388.0/390.1 Gbit/s min/median/max same-nic bw (across 16 ranks) "
        "in comm 0x8f2a\n"
        f"{DIAG}[OK]   p2p: all 56 directed GPU P2P edges verified (skipped indirect=2)\n"
        "NCCL DIAG NCCL diagnostics completed in 245.3 ms across 16 ranks\n"
    )
    assert not facts.problems
    assert [mention.text.partition(":")[0] for mention in facts.diagnostics[:2]] == ["p2p", "net bw"]
    assert facts.diagnostics[2].text.startswith("p2p: all 56 directed")
    assert facts.diagnostics[1].text.endswith("(across 16 ranks)")
    assert "381.2/388.0/390.1 Gbit/s" in shown(facts)


@pytest.mark.parametrize(
    ("line", "title", "words"),
    [
        (f"{PAIR}memory=cuda+dmabuf tool run timed out in comm 0x1",
         "NCCL's bandwidth test between h100-02 and h100-01 failed: tool run timed out", "from GPU memory"),
        (f"{PAIR}tool run failed in comm 0x1",
         "NCCL's bandwidth test between h100-02 and h100-01 failed: tool run failed", "TCP ports 10000"),
        (f"p2p: write mismatch {PEERS}expected=0x1 got=0x0 verify=0x0; check the affected pair",
         "P2P from rank 2 to rank 3 delivered wrong data (PIX)", "wrong results"),
        (f"p2p: peer-memory import failed {PEERS}reason=import; check CUDA IPC support",
         "P2P from rank 2 to rank 3: peer-memory import failed", "what to inspect"),
        ("p2p: 54/56 directed GPU P2P edges verified",
         "P2P between GPUs failed: 54 of 56 accesses passed", "name the pairs"),
        ("p2p: 4/6 directed GPU P2P edges verified (skipped indirect=3)",
         "P2P between GPUs failed: 4 of 6 accesses passed", "name the pairs"),
        ("p2p: only 52/56 GPU-to-GPU peer accesses passed verification",
         "P2P between GPUs failed: 52 of 56 accesses passed", "name the pairs"),
    ],
)  # fmt: skip
def test_a_failure_is_explained(line: str, title: str, words: str) -> None:
    (problem,) = read(f"{DIAG}[INFO] {line}\n").problems
    assert problem.title == title
    assert words in problem.cause + problem.fix
    assert not problem.is_note


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ("net bw: required external tool missing in comm 0x1", "ib_write_bw is missing"),
        (f"{PAIR}memory=host tool missing in comm 0x1", "NCCL could not measure between h100-02 and h100-01"),
        (
            "net bw: failed: selected network plugin does not support IB in comm 0x1",
            "no network of this kind",
        ),
        ("net bw: setup failed on rank 9 in comm 0x1", "rank 9 was not ready"),
        ("net bw: cannot select a local network device in comm 0x1", "could not measure the network"),
        (
            "net bw: test unable to complete in allocated time; ran 1 of 2 test phases in comm 0x1",
            "after 1 of 2",
        ),
        (
            "net bw: net devices are shared across ranks, concurrent use can lower the bandwidth",
            "every NIC alone",
        ),
        (
            "net bw: same-nic rank 5 (h100-01): 390.2 Gbit/s, >30% off median 198.1 Gbit/s in comm 0x1",
            "A rank is faster than the others in NCCL's bandwidth test: 390.2, median 198.1 Gb/s",
        ),
        ("IOMMU: translates DMA in comm 0x1", "report what to review"),
    ],
)
def test_what_was_not_tested_is_no_error(line: str, title: str) -> None:
    facts = read(f"{DIAG}[INFO] {line}\n")
    (problem,) = facts.problems
    assert title in problem.title
    assert problem.is_note


def test_ranks_of_a_slow_pair_are_named_together() -> None:
    (problem,) = read(
        "".join(
            f"{DIAG}[INFO] net bw: same-nic rank {rank} ({host}): 180.2 Gbit/s, >30% off median 388.1 Gbit/s "
            "in comm 0x1\n"
            for rank, host in ((5, "h100-01"), (13, "h100-02"))
        )
    ).problems
    assert problem.title.endswith("180.2 of 388.1 Gb/s")
    assert problem.ranks == ("rank 5 (h100-01)", "rank 13 (h100-02)")


@pytest.mark.parametrize(
    ("version", "network", "said", "is_recommended"),
    [
        ("2.32.3+cuda13.1", "IB", TIMEOUT, True),
        ("2.32.3+cuda13.1", "IBext_v11", TIMEOUT, True),
        ("2.32.3+cuda13.1", "AWS Libfabric", TIMEOUT, False),  # not measured
        ("2.31.2+cuda13.1", "IB", TIMEOUT, False),  # tests P2P alone
        ("2.32.3+cuda13.1", "IB", "", False),
        ("2.32.3+cuda13.1", "IB", f"{TIMEOUT}{DIAG}[OK] net bw: skipped (single host)\n", False),
    ],
)
def test_diagnostics_are_recommended_where_they_help(
    version: str, network: str, said: str, is_recommended: bool
) -> None:
    facts = read(f"NCCL version {version}\n{info(f'Using network {network}')}{said}")
    assert ("NCCL_RUN_DIAGNOSTICS=1" in shown(facts)) is is_recommended
