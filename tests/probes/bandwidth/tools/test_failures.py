"""Failures of tests in words that an admin can act on."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.bandwidth.model.samples import BY_DMABUF
from probes.bandwidth.tools.failures import Failure, failures_in
from probes.messages.catalogue import catalogue
from tests.support.failures import MESSAGES, explain
from tests.support.machines import machine_file

CUDA = (
    "initializing CUDA",
    "creating CUDA Ctx",
    "allocated GPU buffer of a 16777216 address at 0x594 for type …",
)
DMABUF = (*CUDA, "using DMA-BUF for GPU buffer address at 0x7f aligned at 0x7f with aligned size 131072")
END = ("failed to create mr", "Failed to create MR", " Couldn't create IB resources")


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ((*CUDA, "Couldn't allocate MR with error=14", *END), "nvidia_peermem does not handle"),
        # Of a pipe, stderr comes before what stands in stdout's buffer.
        (("Couldn't allocate MR with error=14", *END, *CUDA), "nvidia_peermem does not handle"),
        ((*CUDA, "Couldn't allocate MR", *END), "nvidia_peermem is not loaded"),
        (
            (*DMABUF, "Couldn't allocate MR with error=95", "OFED stack does not support DMA-BUF"),
            "kernel 5.12",
        ),
        ((*DMABUF, "Couldn't allocate MR with error=93"), "cannot register DMA-BUF"),
        ((*DMABUF, "Couldn't allocate MR with error=22"), "not mapped over PCIe"),
        ((*CUDA, "Couldn't allocate MR with error=12"), "BAR1 is full"),
        (("Couldn't allocate MR with error=12",), "ulimit -l"),
        ((*DMABUF, "Couldn't allocate MR with error=12"), "no resources left"),
        (("Couldn't allocate MR with error=77",), "errno 77"),
        ((" Unsupported memory type", " Parser function exited with Error"), "built without CUDA"),
        (("ib_write_bw: unrecognized option '--use_cuda=0'",), "built without CUDA"),
        (("ib_write_bw: unrecognized option '--use_cuda_bus_id=0000:1b:00.0'",), "built without CUDA"),
        (("ib_write_bw: unrecognized option '--use_cuda_dmabuf'",), "built without DMA-BUF"),
        (("ib_write_bw: unrecognized option '--out_jso'",), "'--out_jso'"),
        (("DMABUF requested but not supported in this build",), "built without DMA-BUF"),
        (("CUDA DMA-BUF cannot be used without CUDA",), "before --use_cuda_dmabuf"),
        (("DMA-BUF is not supported on this GPU",), "open kernel modules"),
        (("cuInit(0) returned 802", "Couldn't init GPU context: 1"), "Fabric Manager"),
        (("No such device ID (9) exists in system",), "no CUDA device 9"),
        (("IB device mlx5_9 not found", " Unable to find the Infiniband/RoCE device"), "mlx5_9"),
        ((" Port number 1 state is Down", " Couldn't set the link layer"), "port 1 of the NIC is Down"),
        (("Failed to modify QP 59 to RTR", " Unable to Connect the HCA's through the link"), "GID index"),
        (("Couldn't connect to node7:18515", " Unable to init the socket connection"), "node7:18515"),
        ((" num of Qps should be between 1 and 16384", " Parser function exited with Error"), "1 and 16384"),
        (("Duration mode currently doesn't support running on all sizes.",), "options together"),
        (("Failed to modify QP to RTS",), "GID index"),
        (("Couldn't listen to port 18515",), "TCP port is in use"),
        (("ERRNO: Address already in use.",), "TCP port is in use"),
        (("Unexpected CM event bl blka 8", " Unable to perform rdma_client function"), "refused"),
        ((" Completion with error at client", " Failed status 12: wr_id 0 syndrom 0x81"), "did not respond"),
        ((" Failed status 5: wr_id 0 syndrom 0xf9", " Failed status 4: wr_id 0 syndrom 0x51"), "ACS"),
        (("root@node2: Permission denied (publickey,password).",), "SSH login to root@node2"),
        (("Host key verification failed.",), "log in once by hand"),
        (("ssh: Could not resolve hostname node9: Name or service not known",), "cannot resolve"),
        (("ssh: connect to host node2 port 22: Connection refused",), "port 22: Connection refused"),
        (("timeout: failed to run command ‘ib_write_bw’: No such file or directory",), "ib_write_bw is not"),
        (("stdbuf: failed to run command 'ib_write_bw': No such file or directory",), "ib_write_bw is not"),
        (("env: ‘numactl’: No such file or directory",), "numactl is not installed on that node"),
        (("bash: line 1: timeout: command not found",), "timeout is not installed"),
        (("numactl: execution of `ib_write_bw': No such file or directory",), "ib_write_bw is not installed"),
        (("Couldn't listen to port 18515",), "another port (--port)"),
        ((" Unable to init the socket connection",), "another port (--port)"),
        (("gdr_open error: Is gdrdrv driver installed and loaded?",), "gdrdrv is not loaded"),
        (("This GPU does not support GPUDirect RDMA.",), "GeForce"),
        (
            ("node7: Test NCCL failure common.cu:958 'unhandled system error (run with …) / '",),
            "unhandled system error",
        ),
        (("node7: Test CUDA failure common.cu:891 'out of memory'",), "memory is used up"),
        (("# Out of bounds values : 12 FAILED",), "12 values were wrong"),
    ],
)
def test_lines(lines: tuple[str, ...], told: str) -> None:
    failure = explain(lines, 1)
    assert failure is not None
    assert told in failure.text
    assert failure.raw


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (("set_mempolicy: Operation not permitted", "setting membind: Operation not permitted"), "SYS_NICE"),
        (("sched_setaffinity: Operation not permitted",), "SYS_NICE"),
        (("set_mempolicy: Invalid argument", "setting membind: Invalid argument"), "NUMA node's memory"),
        (
            (
                "numa_sched_setaffinity_v2_int() failed: Invalid argument",
                "sched_setaffinity: Invalid argument",
            ),
            "cannot use the NUMA node's CPUs",
        ),
        (("libnuma: Warning: node argument 1 is out of range", ""), "cannot use NUMA node 1."),
        (("<1> is invalid", "usage: numactl [--all | -a] [--balancing | -b]"), "cannot use NUMA node 1."),
        (("libnuma: Warning: node 1 not allowed",), "cannot use NUMA node 1."),
        (("numactl: This system does not support NUMA policy",), "NUMA policy is unavailable"),
        (("bash: line 1: numactl: command not found",), "numactl is not installed"),
        (
            ("timeout: failed to run command ‘numactl’: No such file or directory",),
            "numactl is not installed",
        ),
    ],
)
def test_numactls_own_lines_name_the_reason_and_how_to_do_without(lines: tuple[str, ...], told: str) -> None:
    failure = explain(lines, 1)
    assert failure is not None
    assert told in failure.text
    assert "--no-bind" in failure.text
    assert "it needs root" not in failure.text


def test_options_are_named_as_gdrtop_has_them() -> None:
    """perftest's long options are those of gdrtop bench where both have them: --port, --size."""
    programs = r"ulimit|nvidia-smi|ls|ss|uname|mpirun|ibv_devinfo|ethtool|mlxconfig|mlnx_qos|cpupower [\w-]+"
    programs += r"|mlxlink|lspci|ldconfig|grep|ip"
    others = re.compile(rf"\b(?:{programs})(?: -\w+(?: \w+)?)+")
    own = re.compile(r"(?<![\w-])-[a-zA-Z]\b|--use_cuda_dmabuf\)")
    wrong = []
    for message in catalogue("perftest", "system").messages:
        for row in (message, *message.cases):
            texts = [others.sub("", text) for text in (row.title, row.cause, row.fix) if text]
            wrong += [message.id for text in texts if own.search(text)]
    assert not wrong


def test_what_was_asked_for_decides_where_the_lines_do_not() -> None:
    line = "Couldn't allocate MR with error=14"
    unsure = explain((line,), 1)
    assert unsure is not None
    assert "With GPU memory" in unsure.text
    asked = explain((line,), 1, BY_DMABUF)
    assert asked is not None
    assert asked.text.startswith("the DMA-BUF of the GPU memory could not be mapped for the NIC (EFAULT)")


def test_no_room_with_dmabuf_is_no_matter_of_locked_memory() -> None:
    """The kernel counts no pages of a dma-buf as locked."""
    failure = explain((*DMABUF, "Couldn't allocate MR with error=12"), 1)
    assert failure is not None
    assert "BAR1" in failure.text
    assert "ulimit" not in failure.text


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (-11, "crashed"),
        (139, "crashed"),
        (-2, "interrupted"),
        (127, "not found"),
        (3, "status 3"),
        (137, "killed"),
    ],
)
def test_only_a_status(status: int, told: str) -> None:
    failure = explain(("nothing known",), status)
    assert failure is not None
    assert told in failure.text


def test_a_good_end() -> None:
    assert explain(("# Out of bounds values : 0 OK",), 0) is None
    assert explain(("NCCL WARN something old", ""), 0) is None
    assert explain((), None) is None
    wrong = explain(("# Out of bounds values : 3 FAILED",), 0)
    assert wrong is not None


def test_a_long_log_keeps_its_first_error() -> None:
    failure = explain(["IB device mlx5_9 not found", *["nothing"] * 100_000], 1)
    assert failure is not None
    assert "mlx5_9" in failure.text


def test_real_failures() -> None:
    lines = machine_file("perftest/moc-bm-gpu-socket-init-fail.log").read_text().splitlines()
    failure = explain(lines, 1)
    assert failure is not None
    assert "no server listens on this port" in failure.text
    lines = machine_file("perftest/gke-h200-rdma-write_bw.txt").read_text().splitlines()
    failure = explain(lines, 1)
    assert failure is not None
    assert "same sizes" in failure.text


def test_sentences_are_one_line_without_a_full_stop() -> None:
    for message in catalogue(*MESSAGES).messages:
        for sample in message.samples:
            for failure in failures_in(sample, MESSAGES):
                assert isinstance(failure, Failure)
                told = failure.text
                assert told == told.strip()
                assert not told.endswith(".")
                assert told.isprintable()


_WORDS = st.sampled_from(
    [
        "Couldn't allocate MR with error=",
        "99999",
        "Failed status ",
        "99:",
        "{a}",
        "option '",
        "'",
        "NCCL WARN ",
        "\x1b[2J",
    ]
)


@pytest.mark.slow
@given(
    st.lists(st.one_of(st.text(max_size=200), st.lists(_WORDS).map("".join)), max_size=20),
    st.integers(-70, 300),
)
def test_no_text_crashes_it(lines: list[str], status: int) -> None:
    failure = explain(lines, status)
    assert status == 0 or failure is not None
    assert failure is None or (failure.text + failure.raw).isprintable()
    for line in lines:
        failures_in(line, MESSAGES)
