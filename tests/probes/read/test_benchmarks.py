"""What pasted outputs of benchmarks say: figures, the path that they prove, and what is slow."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.messages.message import Proof, Weight
from probes.read.reading import Reading, Statement
from probes.read.text import TextReader
from probes.snapshot.examination import Examination
from tests.support.bandwidth_nodes import node
from tests.support.machines import machine_file, machine_files
from tests.support.read_texts import found_in, serious_in


def read(text: str, on: Examination | None = None) -> Reading:
    reader = TextReader(on)
    reader.begin("text")
    reader.feed(text.encode())
    reader.end()
    return reader.reading()


def results(text: str, on: Examination | None = None) -> list[Statement]:
    return [statement for statement in read(text, on).statements if statement.id.endswith("-result")]


CUDA = """\
initializing CUDA
creating CUDA Ctx
allocated GPU buffer of a 131072 address at 0x7f5a for type CUDA_MEM_DEVICE
"""
HEAD = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
 Mtu             : 4096[B]
---------------------------------------------------------------------------------------
 local address: LID 0x02 QPN 0x0032 PSN 0x5f2841
 remote address: LID 0x01 QPN 0x003a PSN 0xab3a5e
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
"""
ROW = " 65536      5000             {gbps}             {gbps}               0.180000\n"


def perftest(gbps: float, before: str = "") -> str:
    return f"{before}{HEAD}{ROW.format(gbps=gbps)}"


def nccl(hosts: tuple[str, ...], gpus: int, busbw: float = 250.0, wrong: int = 0) -> str:
    ranks = [(host, gpu) for host in hosts for gpu in range(gpus)]
    lines = [
        "# nThread 1 nGpus 1 minBytes 268435456 maxBytes 268435456 step: 2(factor) warmup iters: 5",
        "# Using devices",
        *(
            f"#  Rank {rank:2} Group  0 Pid {100 + rank:6} on {host:>10} device {gpu:2} [0x1b] NVIDIA H100"
            for rank, (host, gpu) in enumerate(ranks)
        ),
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
        "     time   algbw   busbw  #wrong",
        f"   268435456      67108864     float     sum      -1   1000.0  140.00  {busbw}       {wrong}"
        f"   1000.0  140.00  {busbw}       {wrong}",
        f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}",
    ]
    return "\n".join(lines) + "\n"


def test_gpu_memory_that_a_nic_carried_proves_the_path() -> None:
    reading = read(perftest(376.0, CUDA))
    assert reading.proven.path == "gdr"
    (result,) = results(perftest(376.0, CUDA))
    assert result.title == (
        "RDMA_Write over mlx5_0 reaches 376 Gb/s (47.0 GB/s) with GPU memory (nvidia-peermem) and"
        " 64 KiB messages"
    )
    assert "94 % of a 400 Gb/s port" in result.cause


@pytest.mark.parametrize("before", ["", CUDA.replace("CUDA_MEM_DEVICE", "CUDA_MEM_MANAGED")])
def test_a_table_without_a_gpu_buffer_proves_nothing(before: str) -> None:
    text = perftest(376.0, before)
    assert read(text).proven.path != "gdr"
    assert "Unless the beginning of the output was left out" in results(text)[0].cause


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("ib_write_bw -d mlx5_0 --use_cuda=0 node2", "too old to know the option"),
        ("ib_write_bw -d mlx5_0 node2", "asks for host memory"),
    ],
)
def test_the_command_says_what_the_table_does_not(command: str, told: str) -> None:
    text = f"$ {command}\n{perftest(376.0)}"
    assert told in results(text)[0].cause
    assert read(text).proven.path == "unknown"


def test_the_command_names_the_collective() -> None:
    (result,) = results(f"$ mpirun -np 16 ./build/all_gather_perf -b 8\n{nccl(('a', 'b'), 8)}")
    assert result.title.startswith("all_gather reaches")


def test_memory_of_an_amd_gpu_is_gpu_memory() -> None:
    text = perftest(
        376.0, "Using ROCm Device with ID: 0, Name: MI300X\nallocated 131072 bytes of GPU buffer at 0x7f\n"
    )
    (result,) = results(text)
    assert read(text).proven.path == "gdr"
    assert "nvidia" not in result.title


def test_a_table_alone_is_no_proof_even_where_nothing_was_sent() -> None:
    text = perftest(0.0, CUDA).replace("0.180000", "0.000000").replace(" 5000 ", " 0 ")
    (result,) = results(text)
    assert (result.weight, read(text).proven.path) == (Weight.CRITICAL, "unknown")


def test_gpu_memory_that_is_slower_than_host_memory_is_a_warning() -> None:
    slow, host = perftest(92.0, CUDA), perftest(184.0)
    (result,) = [each for each in results(slow + host) if each.weight is Weight.WARNING]
    assert "Host memory reaches 184 Gb/s" in result.cause
    assert not [each for each in results(perftest(183.0, CUDA) + host) if each.weight is Weight.WARNING]


MR_FAILED = "Couldn't allocate MR with error=14\nfailed to create mr\n Couldn't create IB resources\n"


@pytest.mark.parametrize(
    ("before", "told", "proves"),
    [
        ("", "With GPU memory, nvidia_peermem does not handle it", Proof.NOTHING),
        (CUDA, "this test is the wrong one", Proof.NOTHING),
        (
            f"{CUDA}using DMA-BUF for GPU buffer address at 0x7f\n",
            "could not be mapped for the NIC",
            Proof.NOTHING,
        ),
        (
            f"[pid = 1, dev = 0] device name = [NVIDIA GeForce RTX 3090]\n{CUDA}",
            "only on data center and professional GPUs",
            Proof.NO_GDR,
        ),
        (f"[pid = 1, dev = 0] device name = [NVIDIA A30-8C]\n{CUDA}", "has to own all memory", Proof.NOTHING),
    ],
)
def test_the_memory_decides_why_it_cannot_be_registered(before: str, told: str, proves: Proof) -> None:
    found = found_in(before + MR_FAILED)
    statement = found["perftest-register-memory"]
    assert told in f"{statement.title} {statement.cause} {statement.fix}"
    assert (statement.weight, statement.proves) == (Weight.CRITICAL, proves)
    assert found["perftest-resources"].weight is Weight.FOLLOWS


def test_an_empty_gid_is_the_cause_of_a_queue_pair_that_cannot_connect() -> None:
    failed = "Failed to modify QP 59 to RTR\n Unable to Connect the HCA's through the link\n"
    assert serious_in(failed) == {"perftest-connect-qp"}
    assert serious_in(f" GID: {':'.join(['00'] * 16)}\n{failed}") == {"perftest-gid-empty"}


@pytest.mark.parametrize(
    "status",
    [
        "Failed status 5: wr_id 0 syndrom 0xf9",
        "Failed status-Work Request Flushed Error (5): wr_id 0 syndrom 0xf9",
    ],
)
def test_a_flushed_message_only_follows(status: str) -> None:
    assert not serious_in(f" Completion with error at client\n {status}\n")


def test_on_a_node_the_limit_of_the_path_decides() -> None:
    here = node("hgx-h100")
    gpu = here.topology.gpus[0].id
    before = f"CUDA device 0: PCIe address is {gpu[-7:-2].upper()}\nPicking device No. 0\n"
    for memory in ("", CUDA.replace("creating", f"{before}creating")):
        (near,) = results(perftest(376.0, memory), here)
        assert (near.weight, "376 of 400 Gb/s, 94 % on this node" in near.cause) == (Weight.NOTE, True)
        (slow,) = results(perftest(200.0, memory), here)
        assert slow.weight is Weight.WARNING
        assert "could carry more" in slow.cause
    (unknown,) = results(perftest(200.0).replace("mlx5_0", "mlx5_77"), here)
    assert unknown.weight is Weight.NOTE


def test_seconds_without_data_are_told() -> None:
    rows = "".join(ROW.format(gbps=gbps) for gbps in (100.0, 190.0, 190.0, 12.0, 190.0, 190.0))
    (result,) = results(HEAD + rows)
    assert result.weight is Weight.WARNING
    assert "less than half the median" in result.cause


def test_collectives_of_one_node_say_nothing_about_nics() -> None:
    (result,) = results(nccl(("a",), 8))
    assert result.title.endswith("on 8 GPUs of 1 node")
    assert "nothing about GPUDirect RDMA" in result.cause


def test_collectives_between_nodes_are_told_as_the_rate_of_a_nic() -> None:
    text = f"# Collective test starting: all_reduce_perf\n{nccl(('a', 'b'), 8)}"
    (result,) = results(text)
    assert "133 Gb/s between nodes for each GPU" in result.cause  # 250 GB/s / 15
    (slow,) = results(text.replace("250.0", "5.0"))
    assert "often TCP" in slow.cause


def test_runs_of_one_size_each_are_told_by_the_fastest() -> None:
    (result,) = results("".join(nccl(("a", "b"), 8, busbw=busbw) for busbw in (1.0, 250.0, 249.0)))
    assert "250 GB/s" in result.title
    assert "133 Gb/s between nodes for each GPU" in result.cause


def test_wrong_values_are_critical() -> None:
    assert any(result.weight is Weight.CRITICAL for result in results(nccl(("a", "b"), 1, wrong=3)))


def test_one_rank_has_no_bus_bandwidth() -> None:
    (result,) = results(nccl(("a",), 1, busbw=0.0))
    assert (result.weight, "by definition" in result.title) == (Weight.HARMLESS, True)


def test_processes_that_do_not_know_of_each_other_lack_mpi() -> None:
    alone = [nccl((host,), 1, busbw=0.0) for host in ("a", "b")]
    assert all("built without MPI" in result.cause for result in results("".join(alone)))
    heads, rows = zip(*(text.split("#       size") for text in alone), strict=True)
    (result,) = results("".join(heads) + "".join(f"#       size{row}" for row in rows[:1]))
    assert (result.weight, "make MPI=1" in result.fix) == (Weight.CRITICAL, True)


def test_rows_that_nccl_cut_are_told() -> None:
    text = nccl(("a",), 8).replace(
        "sum      -1   1000.0", "sum      -1a:1:2 [0] NCCL INFO AllReduce: opCount"
    )
    (result,) = results(text)
    assert "NCCL_DEBUG_FILE" in result.fix


def test_headings_that_markdown_took_are_read() -> None:
    (result,) = results("\n".join(line.replace("#", "", 1) for line in nccl(("a",), 8).split("\n")))
    assert "250 GB/s" in result.title


def test_a_gpu_that_copies_slower_than_the_others() -> None:
    text = """Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1         2         3
 0     55.10     55.20     13.10     55.00

SUM host_to_device_memcpy_ce 178.40
"""
    (result,) = results(text)
    assert result.weight is Weight.WARNING
    assert "CPU 0 → GPU 2" in result.cause


@pytest.mark.parametrize("path", machine_files("bandwidth", "*"), ids=lambda path: path.name)
def test_real_outputs_have_results(path: object) -> None:
    text = machine_file(f"bandwidth/{getattr(path, 'name', '')}").read_text()
    if "copylat-2" not in str(path) and "suite" not in str(path):
        assert results(text)


@pytest.mark.parametrize("name", ["moc-bm-gpu-write_bw-client.log", "dgx-spark-ib_write_bw.txt"])
def test_real_perftest(name: str) -> None:
    assert results(machine_file(f"perftest/{name}").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        lambda count: HEAD + ROW.format(gbps=100.0) * count,
        lambda count: "".join(perftest(100.0 + number, CUDA) for number in range(count // 30)),
        lambda count: "".join(nccl(("a", "b"), 8, busbw=number) for number in range(count // 30)),
    ],
)
def test_the_time_grows_with_the_number_of_rows(text: Callable[[int], str]) -> None:
    def cost(count: int) -> float:
        began = time.thread_time()
        read(text(count))
        return time.thread_time() - began

    assert cost(24_000) < 10 * max(cost(6_000), 0.1)


_PIECES = st.sampled_from(
    [
        *CUDA.splitlines(),
        *HEAD.splitlines(),
        ROW.format(gbps=1.0),
        *nccl(("a", "b"), 2).splitlines(),
        "GPU id:0; name: H100",
        "write BW: 9000.0MB/s",
        "Running host_to_device_memcpy_ce.",
        " 0     N/A   5.0",
        "SUM host_to_device_memcpy_ce 1",
    ]
)


@given(st.lists(_PIECES | st.text(max_size=60), max_size=60))
def test_torn_outputs_are_read_or_unknown(lines: list[str]) -> None:
    reading = read("\n".join(lines))
    assert reading.unread <= reading.lines
    assert all(statement.title.isprintable() for statement in reading.statements)
