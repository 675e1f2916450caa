"""What is read of the NCCL logs of running jobs: whose lines count, and how much of a file is read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.protocol import FileRange
from probes.live.job_examination import examine_with_jobs
from probes.live.processes import job_logs
from probes.nccl.log.collect import Collector
from probes.nccl.log.facts import JobLogReading, State
from probes.nccl.log.reader import LogReader
from probes.simulation.host import SimulatedHost
from tests.support.nccl_logs import LOG, channel, line
from tests.support.pilot import SteppedClock
from tests.support.recordings import recorded

FILLER = "step 10 loss 2.1\n"


def node_with(log: str) -> SimulatedHost:
    """A node whose training job has written this log."""
    host = SimulatedHost("hgx-h100", clock=lambda: 1000.0)
    host.tree.add(LOG, log.encode())
    return host


def reading_of(host: SimulatedHost) -> JobLogReading:
    readings = examine_with_jobs(host).job_logs
    assert isinstance(readings, tuple)
    (reading,) = readings
    return reading


def test_only_lines_of_processes_that_run_here_count() -> None:
    earlier, elsewhere = line(3000, channel(gdr=False)), line(41000, channel(gdr=False), "node-2")
    reading = reading_of(node_with(earlier + elsewhere + line(41000, channel()) * 2))
    assert (reading.verdict.state, reading.verdict.text) == (State.ALL, "2 of 2 channels on 1 of 1 rank")
    assert reading.other_lines == 2
    assert reading.files == (LOG,)


def test_a_log_of_another_run_says_nothing() -> None:
    reading = reading_of(node_with(line(3000, channel(gdr=False))))
    assert not reading.says_something
    assert reading.verdict.state is State.UNKNOWN


def test_errors_without_a_prefix_count_after_the_first_line_of_this_run() -> None:
    error = "[rank3]: DistBackendError: NCCL error in: /c10d/ProcessGroupNCCL.cpp:3356, remote error\n"
    assert not reading_of(node_with(line(3000, channel()) + error + line(41000, channel()))).facts.problems
    assert reading_of(node_with(line(41000, channel()) + error)).facts.problems


class Counting(SimulatedHost):
    """A node that counts the bytes read of the job's log."""

    bytes_read = 0

    def read_range(self, path: str, offset: int, limit: int) -> Maybe[FileRange]:
        found = super().read_range(path, offset, limit)
        if path == LOG and not isinstance(found, Unknown):
            self.bytes_read += len(found.content)
        return found


def test_of_a_large_log_only_the_beginning_and_the_end_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_logs, "BEGIN_BYTES", 20_000)
    monkeypatch.setattr(job_logs, "END_BYTES", 10_000)
    warning = (
        "\nhgx-h100:41000:41600 [0] net_ib.cc:1 NCCL WARN Call to ibv_reg_mr failed with error Bad address\n"
    )
    middle = line(41000, channel(gdr=False))
    host = Counting("hgx-h100", clock=lambda: 1000.0)
    host.tree.add(LOG, (line(41000, channel()) + FILLER * 2000 + middle + FILLER * 2000 + warning).encode())
    reading = reading_of(host)
    assert reading.verdict.state is State.ALL
    assert reading.is_partial
    assert host.bytes_read == 30_000
    (problem,) = reading.facts.problems
    assert problem.seen.first.file == f"{LOG} (last 9 KiB)"


def test_the_reading_of_a_job_ends_at_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_logs, "JOB_BYTES", 5_000)
    host = Counting("hgx-h100", clock=lambda: 1000.0)
    host.tree.add(LOG, (line(41000, channel()) + FILLER * 2000).encode())
    assert reading_of(host).is_partial
    assert host.bytes_read == 5_000
    monkeypatch.setattr(job_logs, "JOB_SECONDS", 0.0)
    host.bytes_read = 0
    assert reading_of(host).is_partial
    assert not host.bytes_read


def test_a_log_that_only_root_can_read_is_said() -> None:
    class Guarded(SimulatedHost):
        def read_range(self, path: str, offset: int, limit: int) -> Maybe[FileRange]:
            return Unknown(Reason.NEEDS_ROOT, path)

        def link(self, path: str) -> Maybe[str]:
            return Unknown(Reason.NEEDS_ROOT, path) if "/fd/" in path else super().link(path)

    reading = reading_of(Guarded("hgx-h100", clock=lambda: 1000.0))
    assert reading.needs_root
    assert not reading.says_something


@pytest.mark.slow
def test_a_recording_has_no_logs() -> None:
    clock = SteppedClock()
    host = recorded(SimulatedHost("hgx-h100", clock=clock), clock, 2)
    logs = examine_with_jobs(host).job_logs
    assert isinstance(logs, Unknown)
    assert logs.reason is Reason.NOT_RECORDED


def test_nothing_is_opened_on_a_node_without_jobs() -> None:
    host = Counting("hgx-h100+nvidia-not-loaded", clock=lambda: 1000.0)
    host.tree.programs.clear()
    assert job_logs.read_job_logs(host, (), ()) == ()
    assert not host.bytes_read


LINES = st.lists(
    st.one_of(
        st.binary(max_size=80),
        st.builds(
            lambda pid, host, text: line(pid, text, host).encode(),
            st.sampled_from((41000, 41001, 7)),
            st.sampled_from(("hgx-h100", "node-2", "")),
            st.sampled_from((channel(), channel(gdr=False), "Using network IB", "comm 0x1 rank 0 nranks 2")),
        ),
    ),
    max_size=12,
)


def count(content: bytes, collector: Collector) -> Collector:
    reader = LogReader(collector)
    reader.begin("log")
    reader.feed(content)
    reader.end()
    reader.facts()
    return collector


@given(LINES)
@settings(max_examples=60)
def test_every_line_is_of_a_writer_or_of_another_one(lines: list[bytes]) -> None:
    """Whatever the bytes: the choice of writers loses no line, and reads none twice."""
    content = b"\n".join(lines)
    every = count(content, Collector())
    chosen = count(content, Collector({41000: frozenset({"hgx-h100"}), 7: frozenset()}))
    assert chosen.nccl_lines + chosen.other_lines == every.nccl_lines
    assert not every.other_lines
