"""Each form that a line has in one of 19 versions of NCCL is read."""

# ruff: noqa: E501 - long lines are quoted whole

import pytest

from probes.nccl.log.facts import Channels, State
from probes.nccl.log.verdict import verdict_of
from tests.support.nccl_logs import WARNING, info, read, verdict
from tests.support.nccl_versions import TAGS, completion, log_of, prefix, since
from widgets.base.lines import plain
from widgets.nccl.log import draw


@pytest.mark.parametrize("tag", TAGS)
def test_the_channels_of_every_version_are_counted(tag: str) -> None:
    facts = read(log_of(tag))
    assert facts.cut_lines == 0
    assert facts.send == Channels(gdr=2, staged=1)
    assert facts.receive == Channels(gdr=1)
    (rank,) = facts.ranks
    assert (rank.host, rank.pid, rank.device, rank.rank) == ("node1", 100, 0, 0)
    assert (rank.pxn, rank.shared) == (1, 1)
    assert rank.c2c_pci == (3 if since(tag, "2.26.2") else 0)
    assert rank.devices == ("IB/0", "IB/1")
    assert facts.local_channels == 1
    answer = verdict(log_of(tag))
    assert answer.state is State.PARTLY
    assert answer.text.startswith("3 of 4 channels on 0 of 1 rank ")


@pytest.mark.parametrize("tag", TAGS)
def test_the_other_lines_of_every_version_are_read(tag: str) -> None:
    facts = read(log_of(tag))
    assert [version.text for version in facts.versions] == [f"{tag}+cuda12.4"]
    assert [network.text for network in facts.networks] == ["IB"]
    assert [nic.text for nic in facts.nics] == ["[0] mlx5_0:1/IB", "[1] mlx5_1:1/IB"]
    assert [(capability.name, capability.is_enabled) for capability in facts.capabilities] == [
        ("mlx5_0", True)
    ]
    assert facts.dmabuf is not None
    assert {setting.name: setting.value for setting in facts.settings} == {
        "NCCL_NET_GDR_LEVEL": "PXB",
        "NCCL_IB_GID_INDEX": "3",
    }
    assert facts.communicators.largest == 16
    assert facts.communicators.completed == 1
    assert facts.communicators.nodes == (2 if since(tag, "2.20.5") else 0)
    assert facts.rings.connected == 1
    assert facts.rings.no_gdr == (1 if since(tag, "2.24.3") else 0)


@pytest.mark.parametrize("tag", TAGS)
def test_distances_have_the_words_of_their_version(tag: str) -> None:
    distances = read(log_of(tag)).distances
    if since(tag, "2.30.3"):
        assert not distances
        return
    far, near = distances
    # PIX PXB PXN PHB up to 2.26; 2.27.3 has P2C after PXN, later versions before it.
    word = {"2.27.3": "P2C"}.get(tag, "PXN" if since(tag, "2.27.5") else "PHB")
    assert (far.is_enabled, far.words) == (False, (word, "PXB"))
    assert (near.is_enabled, near.words, near.reads) == (True, ("PXB", "PXB"), True)


@pytest.mark.parametrize("tag", TAGS)
def test_a_completion_error_is_named_in_every_version(tag: str) -> None:
    (problem,) = read(f"{prefix(tag, 'WARN')}{completion(tag)}\n").problems
    assert problem.title == "Completion error 12 (IBV_WC_RETRY_EXC_ERR)"
    assert "129" in problem.cause
    assert "did not respond" in problem.cause
    assert problem.ranks == ("node1:100[0]",)
    assert problem.seen.first.line == 2  # a warning begins with an empty line


@pytest.mark.parametrize(
    ("message", "title"),
    [
        ("NET/IB : Got async event : port error", "RDMA event: port error"),
        ("NET/IB : mlx5_0:1 Got async event : port error", "RDMA event: port error"),
        ("NET/IB : mlx5_0:1 Got async error event: port error", "RDMA event: port error"),
        ("NET/IB : mlx5_0:1 async fatal event on QP: QP fatal error", "Fatal RDMA event on a QP: QP fatal error"),
        ("NET/IB : mlx5_0:1 Got non-fatal async event: port active(9)", "RDMA event: port active"),
        ("Call to ibv_modify_qp failed with error No data available errno 61", "ibv_modify_qp failed: No data available"),
        ("Call to ibv_reg_mr_iova2 failed with error Bad address", "ibv_reg_mr_iova2 failed: Bad address"),
        (
            "Call to ibv_reg_dmabuf_mr failed with error Operation not supported",
            "ibv_reg_dmabuf_mr failed: Operation not supported",
        ),
        ("ibv_post_send() failed with error Invalid argument, Bad WR 0x5", "ibv_post_send() failed: Invalid argument"),
        ("[Proxy Service 3] Failed to execute operation Connect from rank 3, retcode 2", "proxy thread failed in operation Connect"),
        ("NCCL version mismatch with remote peer 10.0.0.1<3> (local: 22400, remote 22300)", "different NCCL versions"),
        ("socketPollConnect to 10.0.0.1<3> failed with error Connection refused", "TCP connection"),
        ("NET/IB/GIN: Got completion from peer 10.0.0.2<4> with status=10 opcode=0 len=0 vendor err 136 (Recv) hca mlx5_0", "Completion error 10 (IBV_WC_REM_ACCESS_ERR)"),
        ("something new", "NCCL warning"),
    ],
)  # fmt: skip
def test_a_warning_has_a_title(message: str, title: str) -> None:
    (problem,) = read(f"{WARNING}{message}\n").problems
    assert title in problem.title


_QP = "curr state INIT, next state RTR, local GID index 3, local GID ::1, remote GID ::2"
_RANKS = "rank 1 and rank 0 both on CUDA device 1b000"
_MIXED = "Detected mixed local Net device counts across ranks (min 7, max 8). Set NCCL_IGNORE_NET_MISMATCH=1 to continue."
_MNNVL = "MNNVL (cliqueSize 8) is available but not working on this system. Check the IMEX configuration (nvidia-imex-ctl -N)."


@pytest.mark.parametrize(
    ("message", "title", "words"),
    [
        (f"Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_5:1, {_QP}",
         "ibv_modify_qp failed: Connection timed out, on dev mlx5_5:1", "NCCL_CROSS_NIC=0"),
        (f"Call to ibv_modify_qp failed with 22 Invalid argument, on dev mlx5_5:1, {_QP}",
         "ibv_modify_qp failed: Invalid argument, on dev mlx5_5:1", "NCCL_IB_GID_INDEX"),
        ("Error: failed to extend /dev/shm/nccl-aB3dE5 to 33030532 bytes, error: No space left on device (28)",
         "NCCL could not use shared memory in /dev/shm", "--shm-size"),
        ("Error while creating shared memory segment /dev/shm/nccl-aB3dE5 (size 33030528)",
         "NCCL could not use shared memory in /dev/shm", "--shm-size"),
        ("Call to posix_fallocate failed : No space left on device",
         "NCCL could not use shared memory in /dev/shm", "--shm-size"),
        (f"Duplicate GPU detected : {_RANKS}", "Two ranks use the same GPU", "CUDA_VISIBLE_DEVICES"),
        ("Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration.",
         "Two ranks use the same GPU", "CUDA_VISIBLE_DEVICES"),
        ("Bootstrap : no socket interface found", "NCCL found no network interface for TCP", "NCCL_SOCKET_IFNAME"),
        ("NET/IB : No IP interface found.", "NCCL found no network interface for TCP", "NCCL_SOCKET_IFNAME"),
        (_MIXED, "Ranks have different numbers of NICs: 7 to 8", "NCCL_IB_HCA"),
        (_MNNVL, "NVLink between nodes (MNNVL) does not work", "IMEX"),
        ("NET/IB : mlx5_0:1 async fatal event on QP (0x7f5e1c0a1b2c) qpn=4711 handle=12 send_cq=4294967295 recv_cq=4294967295"
         " state=6 sq_psn=16777215 rq_psn=16777215: local access violation work queue error",
         "Fatal RDMA event on a QP: local access violation work queue error", "kernel log"),
        ("NET/IB: read failed in ncclIbRoceGetVersionNum: Invalid argument",
         "NCCL could not read the type of a RoCE GID", "2.26.2"),
        # NVIDIA/nccl issue 2190, hiyouga/EasyR1 issue 505
        ("Error while attaching to shared memory segment /dev/shm/nccl-\u040c (size 0), error: No such file or directory (2)",
         "Two ranks allocate host memory in different ways", "NCCL_CUMEM_HOST_ENABLE=0"),
        ("NET/OFI * This error indicates that the security group on either this instance or the peer instance",
         "The EFA plugin suspects the security group", "in both directions"),
        ("NET/OFI Request 0x7f0 completed with error. RC: 113. Error: 15 (Unreachable remote - never received a response)",
         "An EFA peer never answered", "Likely"),
        ("NET/OFI Request 0x7f0 completed with error. RC: 5. Error: 13 (Unresponsive remote (was previously responsive))",
         "An EFA peer stopped answering", "not the cause"),
        ("NET/OFI GDR support reported to NCCL but then couldn't be configured on an endpoint.  Cannot continue.",
         "The EFA plugin could not configure GPUDirect RDMA", "dma-buf attach failed"),
        ("Unable to use GIN: Peermem is not supported, and device 0 does not support DMA-BUF.",
         "NCCL's device API (GIN) cannot register GPU memory", "nv_peer_mem"),
        ("Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401 'the operation cannot be"
         " performed in the present state'.", "NVLink SHARP (NVLS) does not work", "Fabric Manager"),
    ],
)  # fmt: skip
def test_an_error_at_startup_is_explained(message: str, title: str, words: str) -> None:
    (problem,) = read(f"{WARNING}{message}\n").problems
    assert problem.title == title
    assert words in problem.cause + problem.fix
    assert not problem.is_note


@pytest.mark.parametrize("failure", ["Cuda failure 1 'invalid argument'", "Cuda failure 'invalid argument'"])
def test_a_cuda_failure_of_nvls_is_explained_by_its_source(failure: str) -> None:
    warning = WARNING.replace("transport/net_ib.cc:1296", "transport/nvls.cc:254")
    (problem,) = read(f"{warning}{failure}\n").problems
    assert (problem.kind, "NCCL_NVLS_ENABLE=0" in problem.fix) == ("nvls", True)
    (other,) = read(f"{WARNING}{failure}\n").problems
    assert other.kind == "cuda-failure"


def test_a_call_that_is_retried_is_no_error() -> None:
    retry = f"Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_5:1, {_QP}, retrying 1/34 after 100 msec of sleep"
    assert not read(info(retry)).problems


@pytest.mark.parametrize(
    "line",
    [
        f"{WARNING}dlvsym failed on mlx5dv_get_data_direct_sysfs_path - undefined symbol version MLX5_1.25\n",
        info("dlvsym failed on mlx5dv_reg_dmabuf_mr - undefined symbol version MLX5_1.25"),
        info(
            "NET/IB : Failed to open mlx5dv symbols. Advance features like CX-8 Direct-NIC will be disabled."
        ),
        info("NET/IB: Unrecognized NCCL_IB_RAIL_POLICY=CX8, ignoring."),  # net_ib/init.cc of 2.32
        info(
            "NET/IB: rail policy was set to CX9 but the number of CX9 found (=7) is not a modulo of 8, ignoring."
        ),
        info(
            "cuMem host allocations do not appear to be working; falling back to a /dev/shm/ based implementation."
        ),
    ],
)
def test_what_nccl_gets_over_is_a_note(line: str) -> None:
    facts = read(line)
    assert [problem.is_note for problem in facts.problems] == [True]
    shown = "\n".join(plain(each) for each in draw(facts, verdict_of(facts), 100))
    assert "Notes" in shown
    assert not {"Errors", "✗"} & set(shown.split())


def test_pointers_of_nvls_are_not_listed() -> None:
    names = [f"NVLS comm 0x55aa{n}ff headRank {n} nHeads 8 buffSize 1 nvlsTotalSize 4" for n in range(8)]
    facts = read(info("NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)", *names))
    assert [nvl.text for nvl in facts.nvls] == [
        "NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)"
    ]


def test_failed_calls_of_2_19_to_2_27_are_also_info_lines() -> None:
    (problem,) = read(info("Call to ibv_reg_mr failed with error Cannot allocate memory errno 12")).problems
    assert problem.kind == "register-memory-limit"


def test_old_channel_lines_have_no_connection_number() -> None:
    facts = read(info("Channel 00 : 31[cb000] -> 0[7000] [receive] via NET/AWS Libfabric/1/GDRDMA"))
    assert facts.receive == Channels(gdr=1)
    assert facts.ranks[0].devices == ("AWS Libfabric/1",)


@pytest.mark.parametrize("peers", ["35 -> 34", "35[1b000] -> 34[2b000]"])
def test_channels_up_to_2_6_are_called_rings(peers: str) -> None:
    log = info(
        f"Ring 00 : {peers} [send] via NET/Socket/0",
        f"Ring 00 : {peers} [receive] via NET/IB/0/GDRDMA",
        "Ring 00 : 3[1] -> 2[0] via P2P/IPC",
        "Ring 00 : 0 -> 7 -> 6",
    )
    facts = read(log)
    assert (facts.send, facts.receive, facts.local_channels) == (Channels(staged=1), Channels(gdr=1), 1)
    assert (facts.nccl_lines, facts.cut_lines) == (3, 0)


@pytest.mark.parametrize(
    "path", ["/GDRDMA/flush=None", "/GDRDMA(PCI)/Shared/flush=C2c", "/GDRDMA/flush=Always"]
)
def test_receiving_channels_of_2_31_end_with_the_flush(path: str) -> None:
    facts = read(info(f"Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0{path}"))
    assert (facts.receive, facts.cut_lines) == (Channels(gdr=1), 0)
    assert facts.ranks[0].devices == ("IB/0",)
    assert facts.flushes == {path.partition("=")[2]: 1}


def test_the_log_shows_how_receives_are_flushed() -> None:
    path = "[receive] via NET/IB/0/GDRDMA"
    kinds = ("None", "None", "Always")
    log = info(*(f"Channel {n:02d}/0 : 8[0] -> 0[0] {path}/flush={kind}" for n, kind in enumerate(kinds)))
    facts = read(log)
    shown = "\n".join(plain(each) for each in draw(facts, verdict_of(facts), 100))
    assert "none (2), after every receive (1)" in shown


@pytest.mark.parametrize("function", ["", " (ncclTopoCheckNet)"])
def test_a_notice_of_2_32_is_never_an_error(function: str) -> None:
    """The form of src/debug.cc of 2.32, which calls ATTN "informational notices"."""
    head = f"[2026-11-09 19:28:01] node1:100:200 [0] graph/topo.cc:12{function} NCCL ATTN "
    facts = read(f"{head}Connection refused by peer\n{head}a text that gdrtop does not know\n")
    assert [(problem.title, problem.is_note) for problem in facts.problems] == [
        ("A TCP connection between ranks failed", True),
        ("NCCL notice", True),
    ]
    assert facts.problems[1].ranks == ("node1:100[0]",)
    shown = "\n".join(plain(each) for each in draw(facts, verdict_of(facts), 100))
    assert "Notes" in shown
    assert "✗" not in shown


def test_notices_are_counted_like_warnings() -> None:
    lines = "".join(f"node1:100:200 [0] a.cc:{n} NCCL ATTN notice {n}\n" for n in range(3000))
    (problem,) = read(lines).problems
    assert problem.seen.count == 3000


def test_collnet_channels_count() -> None:
    facts = read(
        info(
            "CollNet 00/0 : 3 [send] via COLLNET/SHARP/0/GDRDMA",
            "CollNet 00/0 : 3 [receive] via COLLNET/SHARP/0",
        )
    )
    assert facts.send == Channels(gdr=1)
    assert facts.receive == Channels(staged=1)
