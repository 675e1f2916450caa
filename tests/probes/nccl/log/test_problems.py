"""What the messages of a log mean, given what else stands in it."""

# ruff: noqa: E501 - long lines are quoted whole

from __future__ import annotations

import pytest

from probes.nccl.log.facts import Problem, State
from probes.nccl.log.reader import LogReader
from probes.nccl.log.verdict import verdict_of
from tests.support.nccl_logs import WARNING, channel, info, read, verdict
from widgets.base.lines import plain
from widgets.nccl.log import draw

OPEN = f"{WARNING}Call to ibv_open_device failed\n{WARNING}NET/IB : Unable to open device mlx5_bond_0\n"
SOCKETS = info("NET/IB : No device found.", "Using network Socket", channel(gdr=False, network="Socket/0"))
RETRY = (
    f"{WARNING}NET/IB: Got completion from peer 10.0.0.2<4> with status=12 opcode=0 len=0 vendor err 129\n"
)
INVALID = f"{WARNING}Call to ibv_modify_qp failed with error Invalid argument\n"


def problems(log: str) -> list[Problem]:
    return list(read(log).problems)


def shown(log: str, width: int = 400) -> str:
    facts = read(log)
    return "\n".join(plain(line) for line in draw(facts, verdict_of(facts), width))


def test_a_message_that_gdrtop_does_not_know_is_a_note() -> None:
    (problem,) = problems(f"{WARNING}something new\n")
    assert (problem.title, problem.severity, problem.is_note) == ("NCCL warning", "unknown", True)
    assert "✗" not in shown(f"{WARNING}something new\n")


def test_what_follows_from_an_error_stands_apart_and_is_no_reason() -> None:
    follows = f"{WARNING}[Proxy Service 3] Failed to execute operation Connect from rank 3, retcode 2\n"
    log = (
        info("NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>", "Using network IB") + follows + RETRY
    )
    facts = read(log)
    assert [problem.severity for problem in facts.problems] == ["follows", "critical"]
    assert facts.first_fatal is not None
    assert facts.first_fatal.kind == "completion-12"
    text = shown(log)
    assert (
        text.index("Completion error 12") < text.index("Follows from an error") < text.index("proxy thread")
    )


@pytest.mark.parametrize(
    "message",
    [
        "[Proxy Service 3] Failed to execute operation Close from rank 3, retcode 3",
        "[Service thread] Accept failed Resource temporarily unavailable",
        "[Service thread] Could not receive type from localRank 3, res=3, closed=1",
        "Cannot initialize CollNet, using point-to-point network instead",
    ],
)
def test_the_end_of_a_good_job_has_no_errors(message: str) -> None:
    text = shown(info(channel()) + f"{WARNING}{message}\n")
    assert "Notes" in text
    assert "✗" not in text


def test_a_nic_without_data_direct_is_not_worth_a_line() -> None:
    """NCCL 2.27 prints it for each ConnectX-7, at INFO (NVIDIA/nccl#1866)."""
    asked = "Call to mlx5dv_get_data_direct_sysfs_path failed with error No such device errno 19"
    assert not problems(info(asked, channel()))


@pytest.mark.parametrize(
    ("number", "words"), [("802 'system not yet initialized'", "Fabric"), ("2 'out of memory'", "memory")]
)
def test_a_cuda_failure_is_explained_by_its_number(number: str, words: str) -> None:
    (problem,) = problems(f"{WARNING}Cuda failure {number}\n")
    assert problem.kind == "cuda-failure"
    assert words in problem.cause


@pytest.mark.parametrize("number", range(1, 24))
def test_every_completion_error_has_a_cause_and_a_fix(number: int) -> None:
    line = f"NET/IB: Got completion from peer 10.0.0.2<4> with status={number} opcode=0 len=0 vendor err 0"
    (problem,) = problems(f"{WARNING}{line}\n")
    assert problem.kind == f"completion-{number}"
    assert problem.cause
    assert problem.fix


def test_the_advice_depends_on_the_version_and_the_settings() -> None:
    index = info("NCCL_IB_GID_INDEX set by environment to 7.")
    old, new = (f"NCCL version {version}+cuda12.4\n{index}{INVALID}" for version in ("2.13.4", "2.26.2"))
    assert "before 2.21 cannot select the GID" in problems(old)[0].fix
    assert "Remove NCCL_IB_GID_INDEX" in problems(new)[0].fix


@pytest.mark.parametrize(
    ("local", "remote", "words"),
    [
        ("::ffff:10.0.8.94", "fe80::4ebb:47ff:fe00:12", "The peer's port has no IPv4 address"),
        ("fe80::4ebb:47ff:fe00:12", "::ffff:10.0.8.94", "This port, mlx5_0:1, has no IPv4 address"),
        ("::ffff:10.0.8.94", "::", "The peer sent an empty GID"),
    ],
)
def test_both_gids_of_a_connection_that_failed_are_read(local: str, remote: str, words: str) -> None:
    line = (
        "Call to ibv_modify_qp failed with 22 Invalid argument, on dev mlx5_0:1, curr state INIT, next state RTR, "
        f"local GID index 3, local GID {local}, remote GID {remote}"
    )
    assert words in problems(f"{WARNING}{line}\n")[0].cause


def test_a_device_that_cannot_be_opened_is_why_nccl_uses_sockets() -> None:
    reasons = [reason.text for reason in verdict(OPEN + SOCKETS).reasons]
    assert reasons[1:] == ["NCCL cannot open the RDMA device mlx5_bond_0"]


def test_an_error_after_sockets_were_chosen_is_not_why() -> None:
    refused = f"{WARNING}socketPollConnect: connect to 10.0.0.2<4> returned Connection refused, exceeded error retry count (35)\n"
    reasons = [reason.text for reason in verdict(SOCKETS + refused).reasons]
    assert "NCCL found no InfiniBand or RoCE device" in reasons


def test_a_log_that_ends_with_an_error_is_not_called_terse() -> None:
    log = info("NCCL_NET set by environment to IB", "NET/IB : No device found.")
    answer = verdict(f"{log}{WARNING}Failed to initialize any NET plugin\n")
    assert answer.state is State.UNKNOWN
    (reason,) = answer.reasons
    assert reason.text.endswith("NCCL has no network at all")
    assert str(reason.places[0]) == "log:3"


def test_why_a_plugin_could_not_be_loaded_is_an_error() -> None:
    """AI-Hypercomputer/gpu-recipes#5; NCCL says it at INFO."""
    loaded = "libc.so.6: version `GLIBC_2.32' not found (required by /usr/lib64/libnccl-net.so)"
    log = info(f"NET/Plugin: Plugin load returned 2 : {loaded} : when loading libnccl-net.so")
    first, second = problems(f"{log}{WARNING}Error: network gIB not found.\n")
    assert "GLIBC_2.32" in first.title
    assert "too old" in second.cause


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ("libibverbs: Warning: no userspace device-specific driver found for mlx5_0", "mlx5_0"),
        (
            "libfabric:462:1673041636:efa:core:rxr_info_to_rxr():506<warn> FI_HMEM capability requires RDMA, which "
            "this device does not support.",
            "no RDMA",
        ),
        ("[n1:0:174 - tree_ops.c:314][2024-05-31 02:30:21] ERROR Failed to lock SAT tree(ID:0x208. ret:0x4)", "SHARP"),
    ],
)  # fmt: skip
def test_lines_of_other_libraries_are_read(line: str, title: str) -> None:
    facts = read(f"{line}\n{info(channel())}")
    assert [title in problem.title for problem in facts.problems] == [True]
    assert facts.nccl_lines == 1
    assert not read(f"{line.replace('ERROR', 'DEBUG').replace('lib', 'my')}\n{info(channel())}").problems


def test_problems_stand_in_the_order_of_their_lines() -> None:
    verbs = "libibverbs: Warning: no userspace device-specific driver found for mlx5_0\n"
    assert [problem.seen.first.line for problem in problems(RETRY + verbs + INVALID)] == [1, 2, 3]


def queue_pair(host: str, mtu: int) -> str:
    return info(f"NET/IB: NCCL Dev 0 IbDev 0 Port 1 qpn 58 mtu {mtu} GID 3 (0/A10B0A0AFFFF0000)").replace(
        "node1", host
    )


def test_nodes_with_different_mtus_are_named_first() -> None:
    """NVIDIA/nccl#1524."""
    log = queue_pair("node2", 3) + queue_pair("node4", 5) * 2 + RETRY
    first, _ = problems(log)
    assert first.title == "Nodes have different MTUs: 1024 bytes on node2, 4096 bytes on node4"
    assert (first.severity, first.seen.first.line) == ("critical", 1)
    (old, _) = problems(f"NCCL version 2.19.3+cuda12.2\n{log}")
    assert (old.severity, old.is_note) == ("note", True)
    assert len(problems(queue_pair("node2", 5) + queue_pair("node4", 5) + RETRY)) == 1
    mixed, _ = problems(f"{log}{queue_pair('node2', 5)}")
    assert (mixed.severity, "1024 and 4096 bytes on node2" in mixed.title) == ("warning", True)


@pytest.mark.parametrize(
    "line",
    [
        "Timeout at NCCL work: 2070, last enqueued NCCL work: 2082, last completed NCCL work: 2069.",
        "failure detected by watchdog at work sequence id: 2070 PG status: last enqueued work: 2082, last completed work: 2069",
    ],
)
def test_the_lowest_completed_work_is_named_in_all_versions_of_pytorch(line: str) -> None:
    begin = "[rank{}]:[E909 09:55:46.996 ProcessGroupNCCL.cpp:1709] [PG 0 (default_pg) Rank {}] "
    log = f"{begin.format(3, 3)}{line}\n{begin.format(5, 5)}{line.replace('2069', '2068')}\n"
    assert "is 2068, on rank 5" in problems(log)[0].cause


def test_a_timeout_without_the_name_of_its_source_is_read() -> None:
    """As a terminal program draws it in a frame, or as the text of an exception."""
    line = (
        "│ [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, "
        "NumelOut=1, Timeout(ms)=600000) ran for 600015 milliseconds before timing out. │\n"
    )
    assert [problem.kind for problem in problems(line)] == ["watchdog-timeout"]


def test_a_setting_is_explained_by_its_own_value() -> None:
    off = shown(info("NCCL_IB_DISABLE set by environment to 0.", channel()))
    on = shown(info("NCCL_IB_DISABLE set by environment to 1.", channel()))
    assert "TCP sockets" in on
    assert "TCP sockets" not in off


@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
@pytest.mark.parametrize("size", [1 << 16, 1])
def test_last_error_of_nccl_in_an_exception_of_pytorch_is_read_as_its_warning(prefix: str, size: int) -> None:
    lines = (
        "torch.distributed.DistBackendError: NCCL error in: ../c10d/NCCLUtils.hpp:268, unhandled system error"
        " (run with NCCL_DEBUG=INFO for details), NCCL version 2.25.1",
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
        "Last error:",
        "Error while creating shared memory segment /dev/shm/nccl-x (size 96), error: No space left on device",
    )
    reader = LogReader()
    reader.begin("log")
    data = "".join(f"{prefix}{line}\n" for line in lines).encode()
    for start in range(0, len(data), size):
        reader.feed(data[start : start + size])
    reader.end()
    (said,) = (problem for problem in reader.facts().problems if "/dev/shm" in problem.title)
    assert said.seen.first.line == 4
    assert said.ranks == (("rank 3",) if prefix else ())
