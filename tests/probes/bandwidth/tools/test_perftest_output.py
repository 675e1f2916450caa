"""perftest's output: against an independent reading of real files, and never an exception."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.bandwidth.model.samples import (
    BY_DMABUF,
    BY_PEERMEM,
    GPU_MEMORY,
    HOST_MEMORY,
    INTEGRATED_MEMORY,
    About,
    Fact,
    Latency,
    Sample,
)
from probes.bandwidth.tools.failures import Failure
from probes.bandwidth.tools.perftest import PerftestOutput
from tests.support.machines import machine_file, machine_files

FILES = machine_files("perftest", "*")
LINE = "-" * 87
TABLE = f"""{LINE}
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
 Number of qps   : 4\t\tTransport type : IB
 Mtu             : 4096[B]
 Link type       : IB
{LINE}
 local address: LID 0x01 QPN 0x0032 PSN 0x5f2841 RKey 0x002440 VAddr 0x007f2e5f64b000
 remote address: LID 0x01 QPN 0x0032 PSN 0x5f2841 RKey 0x002440 VAddr 0x007f2e5f64b000
{LINE}
 #bytes     #iterations    BW peak[UNIT]    BW average[UNIT]   MsgRate[Mpps]
 65536      5000             12000.00            11000.00            0.176000
{LINE}
"""


def read(text: str) -> list[Sample | Fact | Failure]:
    output = PerftestOutput()
    return [message for line in text.splitlines() for message in output.feed(line)]


def samples(text: str) -> list[Sample]:
    return [sample for sample in read(text) if isinstance(sample, Sample)]


def facts(text: str) -> dict[About, str]:
    return {fact.about: fact.value for fact in read(text) if isinstance(fact, Fact)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_row_of_real_files(path: Path) -> None:
    text = path.read_text()
    unit = 8 * 1024 * 1024 / 1e9 if "[MB/sec]" in text else 1.0
    found = samples(text)
    if "_lat" in path.name:
        rows = re.findall(r"^ (\d+) +(\d+)\s+([\d.]+)\s+([\d.]+)\s+[\d.]+\s+([\d.]+)", text, re.M)
        read_rows = [
            (sample.size_bytes, sample.iterations, *(latency.microseconds for latency in sample.latencies))
            for sample in found
        ]
        wanted = [(int(size), int(count), float(a), float(b)) for size, count, a, b, _ in rows]
        assert [row[:4] for row in read_rows] == wanted
        assert [row[5] for row in read_rows] == [float(row[4]) for row in rows]
        return
    rows = re.findall(r"^ (\d+) +(\d+) +([\d.]+) +([\d.]+)\s+([\d.]+)\s*$", text, re.M)
    assert [(sample.size_bytes, sample.iterations) for sample in found] == [
        (int(a), int(b)) for a, b, *_ in rows
    ]
    assert [sample.gbps for sample in found] == [pytest.approx(float(row[3]) * unit) for row in rows]
    assert [sample.messages_per_second for sample in found] == [
        pytest.approx(float(row[4]) * 1e6) for row in rows
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_header_of_real_files(path: Path) -> None:
    text = path.read_text()
    told = facts(text)
    device = re.search(r"Device +: (\S+)", text)
    assert told.get(About.DEVICE) == (device and device[1])
    if device is None:
        return
    assert told[About.MEMORY] == (GPU_MEMORY if "CUDA device 0:" in text else HOST_MEMORY)
    assert told.get(About.REGISTERED) == (BY_DMABUF if "ibv_reg_dmabuf_mr" in text else None)
    gid = re.search(r"GID index +: (\d+)", text)
    assert told.get(About.GID_INDEX) == (gid and gid[1])


def test_the_bandwidth_agrees_with_the_message_rate() -> None:
    """Whatever the unit, size × messages a second is the bandwidth: two columns of one row."""
    for path in FILES:
        for sample in samples(path.read_text()):
            if sample.gbps and sample.gbps > 10:
                assert sample.size_bytes is not None
                assert sample.messages_per_second is not None
                assert sample.gbps == pytest.approx(
                    sample.size_bytes * sample.messages_per_second * 8 / 1e9, rel=0.01
                )


def test_the_server_of_a_loopback_is_a_second_run() -> None:
    path = machine_file("perftest/superbench-ib_loopback-8M.log")
    assert [sample.gbps for sample in samples(path.read_text())] == [pytest.approx(201.80, abs=0.01)] * 2


@pytest.mark.parametrize(
    ("unit", "gbps"), [("MB/sec", 92.27), ("MiB/sec", 92.27), ("Gb/sec", 11000.0), ("GB/sec", None)]
)
def test_units(unit: str, gbps: float | None) -> None:
    """MB of old versions are MiB; a unit that is not known is no number."""
    (sample,) = samples(TABLE.replace("UNIT", unit))
    assert sample.gbps == (None if gbps is None else pytest.approx(gbps, abs=0.01))


def test_no_peak_is_not_a_peak_of_zero() -> None:
    text = TABLE.replace("UNIT", "Gb/sec").replace("12000.00", "0.00")
    assert samples(text)[0].peak_gbps is None
    assert samples("WARNING: BW peak won't be measured in this run.\n" + text)[0].peak_gbps is None


def test_the_first_second_without_a_clock_is_no_sample() -> None:
    # perftest 6.06 with --run_infinitely, seen in the virtual node; a slow test of small messages is one.
    table = TABLE.replace("UNIT", "Gb/sec")
    row = table.splitlines()[-2]
    assert not samples(
        table.replace(row, " 65536      314           0.000000            0.000000            0.000000")
    )
    assert samples(
        table.replace(row, " 2          1000           0.00                0.00                0.001000")
    )


def test_a_row_without_its_header_is_no_sample() -> None:
    assert samples(" 65536      5000             12000.00            11000.00            0.176000") == []


@pytest.mark.parametrize("number", ["nan", "-nan", "inf", "-1.00", "1e999", "٣", ""])
def test_what_is_no_number_is_no_sample(number: str) -> None:
    assert samples(TABLE.replace("UNIT", "Gb/sec").replace("11000.00", number)) == []


def test_bidirectional() -> None:
    text = TABLE.replace("UNIT", "Gb/sec")
    assert not samples(text)[0].is_bidirectional
    assert samples(text.replace("Write BW", "Write Bidirectional BW"))[0].is_bidirectional


def test_cpu_utilisation_behind() -> None:
    text = TABLE.replace("UNIT", "Gb/sec").replace("[Mpps]", "[Mpps]    CPU_Util[%]")
    assert samples(text) == []
    assert samples(text.replace("0.176000", "0.176000\t    3.20"))[0].gbps == 11000.0


def test_latency_of_a_duration() -> None:
    text = (
        "                    RDMA_Read Latency Test\n"
        " #bytes        #iterations       t_avg[usec]    tps average\n"
        " 2       1234567            2.43           411522.63\n"
    )
    (sample,) = samples(text)
    assert sample.latencies == (Latency("average", 2.43),)
    assert sample.messages_per_second == 411522.63


def test_gpu_memory_that_is_not_said_to_be_dmabuf_is_peermem() -> None:
    cuda = (
        "initializing CUDA\nallocated GPU buffer of a 131072 address at 0x6b8c50 for type CUDA_MEM_DEVICE\n"
    )
    assert facts(TABLE)[About.MEMORY] == HOST_MEMORY
    assert facts(cuda + TABLE)[About.REGISTERED] == BY_PEERMEM
    newest = cuda + "Calling ibv_reg_mr_ex with dmabuf(offset=0, size=131072, addr=0x7f, fd=58) for QP #0\n"
    assert facts(newest + TABLE)[About.REGISTERED] == BY_DMABUF
    assert facts(cuda + TABLE + "destroying current CUDA Ctx\n" + TABLE)[About.MEMORY] == HOST_MEMORY


def test_an_integrated_gpu_measures_host_memory() -> None:
    cuda = "initializing CUDA\nCUDA device integrated: 1\nallocated GPU buffer address at 0x7ffd\n"
    assert facts(cuda + TABLE)[About.MEMORY] == INTEGRATED_MEMORY


def test_the_server_waits() -> None:
    assert facts("* Waiting for client to connect... *") == {About.PHASE: "waiting for the client"}


_LINES = st.one_of(
    st.text(max_size=120),
    st.sampled_from(TABLE.splitlines()),
    st.lists(
        st.sampled_from(
            ["#bytes", "65536", "1e400", ":", "[Gb/sec]", "Couldn't allocate MR with error=", "²"]
        )
    ).map(" ".join),
)


@pytest.mark.slow
@given(st.lists(_LINES, max_size=40))
def test_no_text_crashes_it(lines: list[str]) -> None:
    output = PerftestOutput()
    for line in lines:
        for report in output.feed(line):
            assert report.raw.isprintable()


@pytest.mark.slow
@given(st.data())
def test_cut_and_interleaved_real_output(data: st.DataObject) -> None:
    """What is read of a cut and mixed text is only what stands there: no line makes a sample of others."""
    if not FILES:
        pytest.skip("no files")
    a, b = (data.draw(st.sampled_from(FILES)).read_text() for _ in range(2))
    start = data.draw(st.integers(0, len(a)))
    mixed = a[start : start + 3000].splitlines() + b[: data.draw(st.integers(0, 3000))].splitlines()
    for sample in samples("\n".join(data.draw(st.permutations(mixed)))):
        assert str(sample.size_bytes) in sample.raw
        assert str(sample.iterations) in sample.raw


def test_a_line_without_end() -> None:
    assert read("9" * 10_000_000) == []
    assert all(len(report.raw) < 500 for report in read("Couldn't allocate MR" + "x" * 1_000_000))
