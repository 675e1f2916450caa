"""nvbandwidth's output: against an independent reading, and never an exception."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.bandwidth.model.samples import Fact, Sample, parse_number
from probes.bandwidth.tools.failures import Failure
from probes.bandwidth.tools.nvbandwidth import NvbandwidthOutput
from tests.support.machines import machine_file, machine_files

FILES = machine_files("bandwidth", "nvbandwidth-*")
MATRIX = """Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0       N/A     21.50
 1     21.25       N/A

SUM device_to_device_memcpy_read_ce 42.75
"""


def read(text: str) -> list[Sample | Fact | Failure]:
    output = NvbandwidthOutput()
    return [message for line in text.split("\n") for message in output.feed(line)]


def samples(text: str) -> list[Sample]:
    return [sample for sample in read(text) if isinstance(sample, Sample)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_sum_of_real_files_is_that_of_the_samples(path: Path) -> None:
    text = path.read_text()
    found = samples(text)
    for name, printed in re.findall(r"^SUM (\w+) ([\d.]+)$", text, re.M):
        named = [sample for sample in found if sample.what == name]
        cells = [
            sample.gbps or sample.latencies[0].microseconds * 8000
            for sample in named
            if sample.variant != "sum"
        ]
        total = [
            sample.gbps or sample.latencies[0].microseconds * 8000
            for sample in named
            if sample.variant == "sum"
        ]
        assert total == [pytest.approx(float(printed) * 8)]
        assert sum(cells) == pytest.approx(float(printed) * 8, abs=0.2)


def test_copies_inside_a_gpu_have_one_row() -> None:
    text = """Running device_local_copy.
memcpy local GPU(column) bandwidth (GB/s)
           0         1
 0   1250.50   1249.25

SUM device_local_copy 2499.75
"""
    found = [(sample.variant, sample.gbps) for sample in samples(text)]
    assert found == [("GPU 0", 10004.0), ("GPU 1", 9994.0), ("sum", 19998.0)]


@given(st.floats(min_value=0, allow_nan=False, allow_infinity=False))
def test_every_number_that_json_can_write_is_read(number: float) -> None:
    assert parse_number(json.dumps(number)) == number


def test_the_pairs_of_a_real_matrix() -> None:
    found = samples(machine_file("bandwidth/nvbandwidth-readme-now.txt").read_text())
    assert len(found) == 8 * 7
    assert {sample.variant: sample.gbps for sample in found}["GPU 6 ← GPU 0"] == pytest.approx(274.89 * 8)


def test_a_pair_that_is_not_measured_is_no_sample() -> None:
    assert [(sample.variant, sample.gbps) for sample in samples(MATRIX)] == [
        ("GPU 0 → GPU 1", 172.0),
        ("GPU 1 → GPU 0", 170.0),
        ("sum", 342.0),
    ]


def test_a_matrix_without_what_it_is_of() -> None:
    assert samples(MATRIX.split("\n", 2)[2]) == []


def test_latencies_are_no_bandwidth() -> None:
    text = machine_file("bandwidth/nvbandwidth-superbench.log").read_text()
    latency = [
        sample
        for sample in samples(text)
        if sample.what == "host_device_latency_sm" and sample.variant != "sum"
    ]
    assert [sample.gbps for sample in latency] == [None]
    assert [sample.latencies[0].microseconds for sample in latency] == [pytest.approx(0.77258)]


@pytest.mark.slow
@given(st.lists(st.one_of(st.text(max_size=80), st.sampled_from(MATRIX.split("\n"))), max_size=40))
def test_no_text_crashes_it(lines: list[str]) -> None:
    for report in read("\n".join(lines)):
        assert report.raw.isprintable()
