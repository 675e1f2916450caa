"""nvbandwidth's output as text and as JSON: against an independent reading, and never an exception."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.bandwidth.model.samples import About, Fact, Sample, parse_number
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
CASE = {
    "name": "host_to_device_memcpy_ce",
    "status": "Passed",
    "bandwidth_description": "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)",
    "bandwidth_matrix": [["55.25", "N/A"]],
    "sum": 55.25,
}


def read(text: str) -> list[Sample | Fact | Failure]:
    output = NvbandwidthOutput()
    return [message for line in text.split("\n") for message in output.feed(line)]


def samples(text: str) -> list[Sample]:
    return [sample for sample in read(text) if isinstance(sample, Sample)]


def document(*cases: object, **more: object) -> str:
    root = {"CUDA Runtime Version": 12080, "version": "v0.8", "testcases": list(cases), **more}
    return json.dumps({"nvbandwidth": root}, indent="\t")


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


def test_a_sum_in_json_has_all_digits_of_a_double() -> None:
    (total,) = [
        sample for sample in samples(document({**CASE, "sum": 225.50828814500002})) if sample.variant == "sum"
    ]
    assert total.gbps == pytest.approx(225.50828814500002 * 8)


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


def test_a_brace_among_text_is_no_document() -> None:
    assert len(samples(MATRIX.replace("\n 1 ", "\n{ stray\n 1 "))) == 3


def test_latencies_are_no_bandwidth() -> None:
    text = machine_file("bandwidth/nvbandwidth-superbench.log").read_text()
    latency = [
        sample
        for sample in samples(text)
        if sample.what == "host_device_latency_sm" and sample.variant != "sum"
    ]
    assert [sample.gbps for sample in latency] == [None]
    assert [sample.latencies[0].microseconds for sample in latency] == [pytest.approx(0.77258)]


@pytest.mark.parametrize("indent", [None, 3])
def test_json(indent: int | None) -> None:
    text = json.dumps(json.loads(document(CASE)), indent=indent)
    assert [(sample.variant, sample.gbps) for sample in samples(text)] == [
        ("CPU 0 → GPU 0", 442.0),
        ("sum", 442.0),
    ]


def test_json_that_did_not_pass() -> None:
    waived, failed = {"name": "a", "status": "Waived"}, {"name": "b", "status": "Error", "error": "no peers"}
    told = read(document(waived, failed))
    assert [fact.value for fact in told if isinstance(fact, Fact) and fact.about is About.WAIVED] == ["a"]
    assert [failure.text for failure in told if isinstance(failure, Failure)] == ["nvbandwidth: b: no peers"]
    (trouble,) = (
        failure for failure in read(document(error="CUDA_ERROR_NO_DEVICE")) if isinstance(failure, Failure)
    )
    assert "CUDA_ERROR_NO_DEVICE" in trouble.text


@pytest.mark.parametrize(
    "text", ["{}", "{", "{\n]\n}", '{"nvbandwidth": 1}', '{"nvbandwidth": {"testcases": [1]}}']
)
def test_json_of_others(text: str) -> None:
    assert samples(text) == []


def test_json_without_end_takes_bounded_memory_and_time() -> None:
    output = NvbandwidthOutput()
    output.feed("{" * 100_000)
    for _ in range(100):
        output.feed("[" * 100_000)
    assert [type(message) for message in output.feed("}")] == [Failure]


_JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.floats(), st.text(max_size=20), st.sampled_from(["Passed", "1e999"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from([*CASE, "nvbandwidth", "testcases", "error", "version"]), inner, max_size=6
        ),
    ),
    max_leaves=20,
)


@pytest.mark.slow
@given(_JSON)
def test_no_document_crashes_it(value: object) -> None:
    for text in (
        document(value),
        json.dumps({"nvbandwidth": value}),
        document({**CASE, "bandwidth_matrix": value}),
    ):
        for report in read(text):
            assert report.raw.isprintable()


@pytest.mark.slow
@given(
    st.lists(
        st.one_of(st.text(max_size=80), st.sampled_from((MATRIX + document(CASE)).split("\n"))), max_size=40
    )
)
def test_no_text_crashes_it(lines: list[str]) -> None:
    for report in read("\n".join(lines)):
        assert report.raw.isprintable()
