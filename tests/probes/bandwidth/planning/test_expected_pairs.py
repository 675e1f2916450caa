"""Which tests are compared with a table of expected figures, and by which row."""

from __future__ import annotations

from functools import lru_cache

import pytest

from probes.bandwidth.model.expected import Expectation, ExpectedPair, parse_table
from probes.bandwidth.model.planned_series import Series
from probes.bandwidth.model.request import MemoryPath, Request
from probes.bandwidth.planning.series import plan_series, rows_of, with_expected
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination, examine

ANY = (ExpectedPair("any", at_least_gbps=100.0),)


@lru_cache(maxsize=8)
def node(name: str) -> Examination:
    return examine(SimulatedHost(name, clock=lambda: 1000.0))


def expected(name: str, request: Request = Request(), rows: tuple[ExpectedPair, ...] = ANY) -> list[str]:  # noqa: B008
    """Return what the rows expect of each test."""
    series = plan_series(node(name), request, 18600)
    assert isinstance(series, Series), series
    found = [test.expected for test in with_expected(node(name), series, rows).tests]
    return ["" if each is None else f"{each.name} {each.gbps:g}" for each in found]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("azure-nd-h100", "Azure ND H100 v5 380"),
        ("dgx-a100", "DGX A100 180"),
        ("gcp-a4", "Google Cloud A4 360"),
        ("oci-h100", "OCI BM.GPU.H100.8 180"),
        ("hgx-h100", ""),  # a server of any vendor, whose ports can be of any rate
        ("cloud-vm", ""),  # it shows no paths, so the nearest NIC is not known
    ],
)
def test_known_machine_types_have_figures(name: str, words: str) -> None:
    assert expected(name, rows=rows_of(None)) == [words]


@pytest.mark.parametrize(
    "request_of",
    [
        Request(memory=MemoryPath.HOST),
        Request(size_bytes=64),
        Request(is_bidirectional=True),
        Request(tool="ib_write_lat"),
        Request(tool="ib_read_bw"),  # the row is about writes
        Request(nic="mlx5_8"),  # a storage NIC on another switch
    ],
    ids=["host memory", "small messages", "both ways", "latency", "reads", "far NIC"],
)
def test_other_tests_have_no_figure(request_of: Request) -> None:
    assert set(expected("dgx-a100", request_of)) == {""}


def test_a_nic_attached_by_c2c_counts_as_near() -> None:
    assert expected("gb200") == ["any 100"]


def test_the_first_row_that_fits_counts_and_the_sites_come_first() -> None:
    site = parse_table('[[pair]]\nname = "ours"\nproduct = "*dgxa100*"\nat_least_gbps = 190\n')
    assert expected("dgx-a100", rows=rows_of(site)) == ["ours 190"]
    assert expected("azure-nd-h100", rows=rows_of(site)) == ["Azure ND H100 v5 380"]


def test_a_site_can_expect_nothing_of_a_machine_or_of_all() -> None:
    of_one = parse_table('[[pair]]\nname = "ours"\nproduct = "*dgxa100*"\nat_least_gbps = 0\n')
    assert expected("dgx-a100", rows=rows_of(of_one)) == [""]
    of_all = parse_table("builtin = false\n")
    assert expected("azure-nd-h100", rows=rows_of(of_all)) == [""]


def test_a_note_is_on_every_test() -> None:
    series = plan_series(node("hgx-h100"), Request(), 18600)
    assert isinstance(series, Series)
    (test,) = with_expected(node("hgx-h100"), series, ANY, "the table is not valid").tests
    assert test.notes[-1] == "the table is not valid"
    assert test.expected == Expectation(100.0, "any", "")
