"""Bus bandwidth in Live: the column, the job's line, the evidence of a rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from probes.base.unknown import Reason, Unknown
from tests.support.bus_bandwidth import measured
from tests.support.live_samples import a_process, a_sample
from widgets.base.lines import Line
from widgets.live import detail, job_lines, ranks

GONE = Unknown(Reason.NOT_THERE, "", "no collective in the last 2 minutes")


def text(lines: Sequence[Line]) -> str:
    return "\n".join("".join(run.text for run in line) for line in lines)


def test_the_column_is_there_if_a_rank_has_a_figure() -> None:
    assert "bus GB/s" not in text(ranks.draw(a_sample(), 300))
    drawn = text(ranks.draw(measured(48.4, GONE, 41.2), 300)).split("\n")
    at = drawn[0].index("bus GB/s")
    assert [row[at : at + 8].strip() for row in drawn[1:]] == ["48", "?", "41"]


def test_the_column_gives_way_where_there_is_no_room() -> None:
    assert "bus GB/s" not in text(ranks.draw(measured(48.4, 41.2), 80))
    assert "Gb/s" in text(ranks.draw(measured(48.4, 41.2), 80))


def test_the_line_of_the_job_names_the_slowest_rank() -> None:
    sample = measured(48.4, 48.4, 41.2, slowest=2)
    assert "slowest rank 2, bus 41 GB/s, others 48" in text([job_lines.job_line(sample.jobs[0], sample, 200)])
    even = measured(48.4, 48.4)
    assert "slowest" not in text([job_lines.job_line(even.jobs[0], even, 200)])


def test_a_rank_without_a_number_is_named_by_its_pid() -> None:
    sample = measured(48.4, 41.2, slowest=1)
    assert isinstance(sample.processes, tuple)
    unnumbered = replace(sample.processes[1], rank=GONE)
    sample = replace(sample, processes=(sample.processes[0], unnumbered))
    assert "slowest pid 4712, bus 41 GB/s" in text([job_lines.job_line(sample.jobs[0], sample, 200)])


def test_the_evidence_of_a_rank() -> None:
    sample = measured(48.4, GONE, 41.2, slowest=2)
    assert isinstance(sample.processes, tuple)
    shown = [text(detail.of_process(process, sample, 200)) for process in sample.processes]
    assert "48 GB/s, AllReduce 7 of 64 MiB, communicator 0x7f8c (16 ranks), " in shown[0]
    assert "? (not there: no collective in the last 2 minutes)" in shown[1]
    assert "slowest rank of AllReduce 7: 41 GB/s, the others 48 GB/s" in shown[2]
    assert "Bus " not in text(detail.of_process(a_process(), a_sample(), 200))
