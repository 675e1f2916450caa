"""A series: one test after another, judged, cancelled, skipped."""

import pytest

from probes.bandwidth.model.rating import Rating
from probes.bandwidth.model.request import MemoryPath, Request, Scope
from probes.bandwidth.model.result import Ending, Result, from_json, to_json
from tests.tui.bandwidth.scripted import SERVER, Play, Scene, rows
from tui.bandwidth.events import (
    BandwidthEvent,
    SampleReceived,
    SeriesEnded,
    SeriesStarted,
    TestEnded,
    TestStarted,
)
from tui.bandwidth.session import SeriesRunner

COMPARE = Request(memory=MemoryPath.COMPARE, duration_s=5)


def ends(gbps: float) -> list[Play]:
    return [Play(SERVER, opens_port_at=0.2), Play(rows(0.5, 20, gbps))]


def run(scene: Scene, request: Request, at_row: str = "") -> tuple[tuple[Result, ...], list[BandwidthEvent]]:
    """`at_row`: "stop" or "skip" at the second row of the first test."""
    heard: list[BandwidthEvent] = []

    def hear(event: BandwidthEvent) -> None:
        heard.append(event)
        measured = [
            sample_received for sample_received in heard if isinstance(sample_received, SampleReceived)
        ]
        if isinstance(event, SampleReceived) and len(measured) == 2 and at_row:
            {"stop": series_run.stop, "skip": series_run.skip}[at_row]()

    series_run = SeriesRunner(scene.host, scene, scene.examination(), hear)
    results = series_run.run(scene.series(request))
    assert scene.alive == []
    return results, heard


def test_a_result_says_what_was_measured_and_what_it_is_worth() -> None:
    scene = Scene(ends(380.0))
    (result,), heard = run(scene, Request(duration_s=5))
    assert result.ending is Ending.DONE
    assert result.gbps == pytest.approx(384.0, abs=1.5)  # the mean, without the first second
    assert result.judgment.verdict is Rating.NEAR
    assert "of 400 Gb/s" in result.judgment.words
    assert (result.limit_gbps, result.limit_by) == (400.0, "port 1 of mlx5_0")
    assert result.node == "hgx-h100"
    assert result.origin == "simulated hgx-h100"
    assert "8 × NVIDIA H100" in result.machine
    assert len(result.commands) == 2
    assert result.commands[1].endswith(" 127.0.0.1")
    kinds = [type(event) for event in heard]
    assert (kinds[0], kinds[1], kinds[-2], kinds[-1]) == (SeriesStarted, TestStarted, TestEnded, SeriesEnded)


def test_a_slow_result_names_the_open_findings_on_its_path_and_a_good_one_does_not() -> None:
    redirected = "hgx-h100+acs-on"
    (slow,), _ = run(Scene(ends(150.0), node=redirected), Request(duration_s=5))
    (named,) = slow.judgment.findings
    assert named.id == "acs-redirect-enabled"
    assert named.title == "ACS redirect is enabled between GPU and NIC"
    assert slow.judgment.reason.startswith(f"open finding: {named.title} (acs-redirect-enabled); ")
    (good,), _ = run(Scene(ends(380.0), node=redirected), Request(duration_s=5))
    assert good.judgment.findings == ()
    assert from_json(to_json(slow)) == slow


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("half-rate", ()),  # another NIC
        ("nccl-gdr-level-off", ()),  # of a job: the benchmark tool does not read its environment
        ("pcie-aer-correctable", ()),  # a note that costs no bandwidth
        ("iommu-translated", ("iommu-translated",)),
    ],
)
def test_findings_about_other_devices_or_jobs_explain_nothing(fault: str, expected: tuple[str, ...]) -> None:
    (slow,), _ = run(Scene(ends(150.0), node=f"hgx-h100+{fault}"), Request(duration_s=5))
    assert tuple(finding.id for finding in slow.judgment.findings) == expected


def test_gpu_memory_is_judged_against_host_memory_of_the_same_series() -> None:
    results, _ = run(Scene([*ends(380.0), *ends(120.0), *ends(380.0)]), COMPARE)
    assert [result.memory for result in results] == ["host memory", "nvidia-peermem", "DMA-BUF"]
    assert results[1].judgment.verdict is Rating.BELOW
    assert "limited by the path to the GPU" in results[1].judgment.why
    assert results[2].judgment.verdict is Rating.NEAR


def test_as_slow_as_host_memory_is_told() -> None:
    results, _ = run(Scene([*ends(150.0), *ends(150.0), *ends(150.0)]), COMPARE)
    assert results[1].judgment.verdict is Rating.LIKE_HOST


def test_a_failed_test_does_not_end_the_series() -> None:
    broken = Play(((0.1, "Couldn't allocate MR with error=14"),), ends_at=0.2, status=1)
    results, _ = run(Scene([*ends(380.0), broken, *ends(380.0)]), COMPARE)
    assert [result.ending for result in results] == [Ending.DONE, Ending.FAILED, Ending.DONE]
    assert "nvidia_peermem" in results[1].failure
    assert results[1].failure_line == "Couldn't allocate MR with error=14"


def test_stopped_no_other_test_is_begun_and_what_came_is_told() -> None:
    scene = Scene([*ends(380.0), *ends(380.0)])
    results, heard = run(scene, COMPARE, "stop")
    assert [result.ending for result in results] == [Ending.CANCELED]
    assert results[0].gbps is not None
    assert len(scene.started) == 2
    ended = heard[-1]
    assert isinstance(ended, SeriesEnded)
    assert ended.was_canceled


def test_skipped_the_next_test_is_begun() -> None:
    results, heard = run(Scene([*ends(380.0), *ends(380.0), *ends(380.0)]), COMPARE, "skip")
    assert [result.ending for result in results] == [Ending.CANCELED, Ending.DONE, Ending.DONE]
    ended = heard[-1]
    assert isinstance(ended, SeriesEnded)
    assert not ended.was_canceled


def test_one_test_at_a_time() -> None:
    scene = Scene([play for _ in range(8) for play in ends(380.0)])
    results, _ = run(scene, Request(scope=Scope.SWEEP, duration_s=3))
    assert len(results) == 8
    for number in range(2, 16, 2):
        assert scene.log.index(f"start {number}") > scene.log.index(f"end {number - 2}")


HALF = (
    "Running host_to_device_memcpy_ce.",
    "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)",
    "           0",
    " 0     55.60",
    "",
    "SUM host_to_device_memcpy_ce 55.60",
)


# As CU_ASSERT in nvbandwidth's error_handling.h prints it.
OUT_OF_MEMORY = (
    "[CUDA_ERROR_OUT_OF_MEMORY] out of memory in expression cuMemAlloc(&b, size) in f() : m.cpp:80"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "lines", "why"),
    [
        ("nvbandwidth", HALF, "device_to_host_memcpy_ce printed no result"),
        ("nvbandwidth", (*HALF, OUT_OF_MEMORY), "The GPU's memory is used up"),
        ("nvbandwidth", (), "printed no result"),
        ("all_reduce_perf", ("# Collective test starting: all_reduce_perf",), "exited without a result"),
        ("gdrcopy_copybw", ("GPU id:0; name: NVIDIA H100; Bus id: 0000:18:00",), "exited without a result"),
    ],
)
def test_a_tool_that_ends_well_and_measured_nothing_has_failed(
    tool: str, lines: tuple[str, ...], why: str
) -> None:
    play = Play(tuple((0.1, line) for line in lines), ends_at=0.5, status=0)
    (result,), _ = run(Scene([play]), Request(tool=tool))
    assert result.ending is Ending.FAILED
    assert why in result.failure
