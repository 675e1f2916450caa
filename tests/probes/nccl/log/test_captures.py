"""The verdict on each real log, argued."""

# ruff: noqa: E501 - long lines are quoted whole

import pytest

from probes.nccl.log.facts import Channels, LogFacts, LogVerdict, State
from probes.nccl.log.verdict import verdict_of
from tests.support.machines import machine_file, machine_files
from tests.support.nccl_logs import read

# file -> state, begin of the text, words of a reason, and why that is right
EXPECTED = {
    # No network channel: two GPUs of one node. "GDR 1" stands there, although the HCAs are Disabled.
    "a100pcie-cx6dx-roce-gdr-disabled.log": (State.UNKNOWN, "unknown: no channel uses the network", "GDR 1"),
    # 32 sends and 32 receives with /GDRDMA; the pods' mpirun tags are before each line.
    "aws-p4d-efa-2node-nccl.log": (State.ALL, "64 of 64 channels on 16 of 16 ranks", ""),
    # An excerpt of three lines: 2.26 connects late.
    "aws-p5-fsdp-nccl-excerpt.log": (State.UNKNOWN, "not known yet", "first collective"),
    # One line of settings.
    "gke-a3high-tcpx.log": (State.UNKNOWN, "not known yet", "too terse"),
    # Only the error.
    "ib-error12-completion.log": (State.UNKNOWN, "not known yet", "too terse"),
    # Omni-Path by verbs: no channel has /GDRDMA, and 2.10 writes no line that says why.
    "jeanzay-a100-omnipath.log": (State.NONE, "0 of 40 channels on 0 of 10 ranks", "does not say why"),
    # Every `via NET/` line is Socket. The HCAs that are Disabled are network interfaces.
    "moc-h100-4nic-tcp-2nodes.log": (State.NONE, "0 of 28 channels on 0 of 4 ranks", "TCP sockets"),
    # 16 times NET/IB/1 without /GDRDMA, the only HCA is Disabled, and no line says that DMA-BUF is available.
    "moc-h100-roce-gdr-disabled.log": (State.NONE, "0 of 16 channels on 0 of 2 ranks", "disabled for mlx5_2"),
    # Two communicators of four ranks; two of them have network channels, one by PXN.
    "moc-h100-roce-gdr-enabled.log": (State.ALL, "16 of 16 channels on 2 of 2 ranks", ""),
    # GDR read is off: receives have it, sends do not. One receive is cut off inside its /GDRDMA, which shows enough.
    "moc-ocp-gdr-noread-ncclsubsys.log": (State.PARTLY, "8 of 18 channels on 1 of 3 ranks", "Only receiving"),
    # Not a log of NCCL: times only.
    "moc-ocp-gdr-withread-dmabuf.txt": (State.UNKNOWN, "unknown: not an NCCL log", "NCCL_DEBUG=INFO"),
    # NET/IB without /GDRDMA in both directions, and both HCAs are Disabled under each of their numbers.
    "v100-2node-roce-25g.log": (State.NONE, "0 of 16 channels on 0 of 4 ranks", "disabled for mlx5_0, mlx5_2"),
}  # fmt: skip


def capture(name: str) -> tuple[LogFacts, LogVerdict]:
    facts = read(machine_file(f"nccl_logs/{name}").read_bytes(), name)
    return facts, verdict_of(facts)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_verdict_is_what_the_lines_show(name: str) -> None:
    state, text, reason = EXPECTED[name]
    _, answer = capture(name)
    assert answer.state is state
    assert answer.text.startswith(text)
    assert reason in " / ".join(each.text for each in answer.reasons)


def test_no_capture_is_forgotten() -> None:
    names = {path.name for path in machine_files("nccl_logs", "*")}
    assert names <= set(EXPECTED)


def test_the_counts_are_those_of_grep() -> None:
    """Every whole `via NET/` line is counted, and nothing else."""
    for path in machine_files("nccl_logs", "*.log"):
        channels = read(path.read_bytes()).channels
        content = path.read_text(errors="replace")
        assert channels.total == content.count("] via NET/")
        assert channels.gdr == content.count("/GD")


def test_glued_hosts_are_no_further_ranks() -> None:
    facts, _ = capture("moc-ocp-gdr-noread-ncclsubsys.log")
    assert {rank.host for rank in facts.ranks} == {"moc-r4pcc04u25"}
    assert facts.receive == Channels(gdr=8)
    assert facts.cut_lines


def test_reasons_name_lines_that_say_so() -> None:
    for name in EXPECTED:
        path = machine_file(f"nccl_logs/{name}")
        lines = path.read_bytes().split(b"\n")
        _, answer = capture(name)
        for reason in answer.reasons:
            for place in reason.places:
                assert b"NCCL" in lines[place.line - 1]


def test_the_slowest_rank_is_named_and_a_line_counts_once() -> None:
    failed = "[rank{0}]:[E1 ProcessGroupNCCL.cpp:1] [PG ID 0 Rank {0}] failure detected by watchdog at work sequence"
    failed += " id: {1} PG status: last enqueued work: 15, last completed work: {1}\n"
    error = (
        "[rank3]: DistBackendError: NCCL error in: /c10d/ProcessGroupNCCL.cpp:3356, remote process exited\n"
    )
    failure, other = read(failed.format(3, 9) + failed.format(5, 7) + error).problems
    assert failure.ranks == ("rank 3", "rank 5")
    assert "is 7, on rank 5 (log:2)" in failure.cause
    assert (other.kind, other.seen.count) == ("torch-error", 1)


def test_the_watchdog_of_pytorch_is_explained() -> None:
    facts = read(machine_file("live/pytorch/watchdog-lines.txt").read_bytes())
    titles = [problem.title for problem in facts.problems]
    assert "PyTorch: rank 118 timed out in ALLREDUCE" in titles
    failure = next(problem for problem in facts.problems if problem.kind == "watchdog-failure")
    assert failure.ranks == ("rank 118",)
    assert "2398458, on rank 118" in failure.cause
