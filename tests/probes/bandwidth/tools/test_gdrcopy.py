"""gdrcopy's output, old and new: against an independent reading, and never an exception."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.bandwidth.model.samples import Fact, Sample
from probes.bandwidth.tools.failures import Failure
from probes.bandwidth.tools.gdrcopy import GdrcopyOutput
from tests.support.machines import machine_file, machine_files

FILES = machine_files("bandwidth", "gdrcopy-*")
BEGIN = "selecting device 0\nwriting test, size=65536 offset=0 num_iters=10000"


def read(text: str) -> list[Sample | Fact | Failure]:
    output = GdrcopyOutput()
    return [message for line in text.splitlines() for message in output.feed(line)]


def samples(text: str) -> list[Sample]:
    return [sample for sample in read(text) if isinstance(sample, Sample)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_number_of_real_files(path: Path) -> None:
    text = path.read_text()
    found = samples(text)
    rates = re.findall(r"(?:write|read) BW: ([\d.]+)MB/s", text)
    assert [sample.gbps for sample in found if sample.gbps is not None] == [
        pytest.approx(float(rate) * 1024 * 1024 * 8 / 1e9) for rate in rates
    ]


def test_the_size_of_old_versions_is_the_buffers() -> None:
    text = machine_file("bandwidth/gdrcopy-copybw-copylat-p100-2020.txt").read_text()
    assert [sample.size_bytes for sample in samples(text)[:2]] == [4096, 4096]
    text = machine_file("bandwidth/gdrcopy-copybw-k40-remote.txt").read_text()
    assert [(sample.size_bytes, sample.iterations) for sample in samples(text)] == [
        (65536, 10000),
        (65536, 100),
    ]


def test_the_suite_has_failed_tests_or_not() -> None:
    (told,) = read("Total: 28, Passed: 25, Failed: 2, Waived: 1")
    assert isinstance(told, Failure)
    assert told.text.startswith("2 of 28 tests of CPU access to GPU memory failed. ")
    passed = read(machine_file("bandwidth/gdrcopy-copybw-suite.txt").read_text())
    assert not [failure for failure in passed if isinstance(failure, Failure)]


def test_the_driver_is_missing() -> None:
    (told,) = read("gdr_open error: Is gdrdrv driver installed and loaded?")
    assert isinstance(told, Failure)
    assert "modprobe gdrdrv" in told.text


_KNOWN = st.sampled_from([line for path in FILES for line in path.read_text().splitlines()] or [BEGIN])


@pytest.mark.slow
@given(st.lists(st.one_of(st.text(max_size=100), _KNOWN, st.sampled_from(BEGIN.splitlines())), max_size=40))
def test_no_text_crashes_it(lines: list[str]) -> None:
    for report in read("\n".join(lines)):
        assert report.raw.isprintable()
