"""The output of nccl-tests, new and old: against an independent reading, and never an exception."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.bandwidth.model.samples import About, Fact, Sample
from probes.bandwidth.tools.failures import Failure
from probes.bandwidth.tools.nccl_tests import NcclTestsOutput
from tests.support.machines import machine_file, machine_files

FILES = machine_files("bandwidth", "ncclt-*")
HEADER = "#       size         count      type   redop    root" + "     time   algbw   busbw  #wrong" * 2
ROW = "  1048576   262144   float   sum   -1  1e+05  12.50  20.00  {wrong}  9.9e+04  12.60  20.10  {wrong}"


def read(text: str, what: str = "") -> list[Sample | Fact | Failure]:
    output = NcclTestsOutput(what)
    return [message for line in text.splitlines() for message in output.feed(line)]


def samples(text: str) -> list[Sample]:
    return [sample for sample in read(text) if isinstance(sample, Sample)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_row_of_real_files(path: Path) -> None:
    text = path.read_text()
    group = r"\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(?:N/A|\d+)"
    wanted = []
    for line in text.splitlines():
        row = re.match(rf"\s*(\d+)\s+\d+\s+(?:float|double)\b.*?{group}(?:{group})?\s*$", line)
        if row:
            wanted.append((int(row[1]), *(float(row[n]) for n in (2, 3, 4))))
            if row[5]:
                wanted.append((int(row[1]), *(float(row[n]) for n in (5, 6, 7))))
    found = [sample for sample in samples(text) if sample.variant != "average"]
    assert len(found) == len(wanted) > 0
    for row_sample, (size, time, algorithm, bus) in zip(found, wanted, strict=True):
        assert (row_sample.size_bytes, row_sample.time_us) == (size, time)
        assert row_sample.gbps == pytest.approx(algorithm * 8)
        assert row_sample.bus_gbps == pytest.approx(bus * 8)
    averages = [float(number) * 8 for number in re.findall(r"Avg bus bandwidth +: ([\d.]+)", text)]
    assert [sample.bus_gbps for sample in samples(text) if sample.variant == "average"] == [
        pytest.approx(number) for number in averages
    ]


def test_the_average_is_that_of_the_rows() -> None:
    found = samples(machine_file("bandwidth/ncclt-oci-troubleshoot.txt").read_text())
    rows = [sample.bus_gbps or 0.0 for sample in found if sample.variant != "average"]
    assert found[-1].bus_gbps == pytest.approx(sum(rows) / len(rows), rel=0.001)


def test_only_out_of_place() -> None:
    """That program printed one group of columns below a header of two."""
    found = samples(machine_file("bandwidth/ncclt-4hosts.txt").read_text())
    assert {sample.variant for sample in found} == {"out-of-place", "average"}


def test_a_run_that_broke_off_has_no_end() -> None:
    told = read(machine_file("bandwidth/ncclt-pair-002-008-failed.log").read_text())
    facts = [(fact.about, fact.value) for fact in told if isinstance(fact, Fact)]
    tests = [value for about, value in facts if about is About.TEST]
    ends = [value for about, value in facts if (about, value) == (About.PHASE, "done")]
    assert (tests, len(ends)) == (["alltoall", "sendrecv"], 1)


def test_exponents_and_wrong_elements() -> None:
    text = f"{HEADER}\n{ROW.format(wrong='0')}"
    assert [(sample.time_us, sample.wrong) for sample in samples(text)] == [(100_000.0, 0), (99_000.0, 0)]
    assert [sample.wrong for sample in samples(text.replace(" 0 ", " N/A "))] == [None, 0]
    told = read(f"{HEADER}\n{ROW.format(wrong='1e+05')}")
    assert [failure.text for failure in told if isinstance(failure, Failure)] == [
        "100000 elements of a 1048576-byte message were wrong: data was corrupted"
    ]


def test_more_columns() -> None:
    """With -I each group has more columns; what is known keeps its place."""
    header = HEADER.replace("#wrong", "#wrong i_min i_max i_p99 i_cv%")
    found = samples(f"{header}\n{ROW.format(wrong='0 1.0 2.0 3.0 0.5')}")
    assert [(sample.variant, sample.gbps) for sample in found] == [
        ("out-of-place", 100.0),
        ("in-place", 100.8),
    ]


def test_a_column_behind_the_groups() -> None:
    """The all_reduce_perf of DCGM's plugin adds #iters at the end."""
    found = samples(f"{HEADER}  #iters\n{ROW.format(wrong='0')}      20")
    assert [(sample.variant, sample.gbps, sample.wrong) for sample in found] == [
        ("out-of-place", 100.0, 0),
        ("in-place", 100.8, 0),
    ]


@pytest.mark.parametrize("time", ["time", "cputime"])
@pytest.mark.parametrize("more", ["", "#wrong i_min i_max i_p99 i_cv%"])
def test_cpu_times_and_timestamps(time: str, more: str) -> None:
    """With -C a row has the CPU's time, which is not that of the collective; with -S it ends with a date."""
    header = HEADER.replace("time", time).replace("#wrong", more or "#wrong")
    row = ROW.format(wrong="0 1.0 2.0 3.0 0.5" if more else "0")
    found = samples(f"{header}           timestamp\n{row}  2026-07-09 16:03:21")
    took = (100_000.0, 99_000.0) if time == "time" else (None, None)
    assert [(sample.variant, sample.gbps) for sample in found] == [
        ("out-of-place", 100.0),
        ("in-place", 100.8),
    ]
    assert tuple(sample.time_us for sample in found) == took


@pytest.mark.parametrize(
    "text", [ROW.format(wrong="0"), f"{HEADER}\n1048576 262144 float", f"{HEADER}\n1 2 3"]
)
def test_what_is_no_row(text: str) -> None:
    assert samples(text) == []


def test_the_route_is_told_once() -> None:
    line = "node7:1:1 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA"
    told = read(f"{line}\n{line}/flush=None\n{line.replace('/GDRDMA', '')}")
    assert [fact.value for fact in told if isinstance(fact, Fact)] == ["NET/IB/0/GDRDMA", "NET/IB/0"]


def test_ranks() -> None:
    told = read(machine_file("bandwidth/ncclt-pair-001-002.log").read_text())
    ranks = [fact.value for fact in told if isinstance(fact, Fact) and fact.about is About.RANK]
    assert ranks[0] == "0: cnode2-001 device 0 0000:1b:00 NVIDIA H100 80GB HBM3"


_KNOWN = st.sampled_from([HEADER, ROW] + [line for path in FILES for line in path.read_text().splitlines()])
_FIELDS = st.lists(
    st.sampled_from(["8", "float", "sum", "-1", "0.01", "N/A", "nan", "1e+05", "time", "#"])
).map(" ".join)


@pytest.mark.slow
@given(st.lists(st.one_of(st.text(max_size=100), _KNOWN, _FIELDS, st.just(HEADER)), max_size=40))
def test_no_text_crashes_it(lines: list[str]) -> None:
    for sample in read("\n".join(lines)):
        assert sample.raw.isprintable()
        if isinstance(sample, Sample) and sample.size_bytes is not None:
            assert str(sample.size_bytes) in sample.raw
