"""RAS's reports and events, recorded, replayed and redacted."""

from typing import Any

import pytest

from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.ras import STATUS
from probes.nccl.ras import parse_event, parse_report
from probes.recording.recording_host import Moment, RecordingHost
from probes.recording.redaction.identifiers import Identifiers
from probes.recording.replay_host import ReplayHost
from probes.simulation.host import SimulatedHost
from tests.support.machines import machine_file
from tests.support.pilot import SteppedClock
from tests.support.ras_reports import a_report, rank_line
from tests.support.recordings import archive_of, read

ADDRESS = "[::1]:28028"


class Answering(SimulatedHost):
    """Gives these answers in order."""

    def __init__(self, reports: list[Maybe[str]], events: list[Maybe[tuple[str, ...]]]) -> None:
        self.clock = SteppedClock()
        super().__init__("cloud-vm", clock=self.clock)
        self._reports, self._lines = reports, events

    def ras_answer(self, *question: Any) -> Maybe[str]:
        return self._reports.pop(0)

    def ras_events(self, *question: Any) -> Maybe[tuple[str, ...]]:
        return self._lines.pop(0)


def replayed(
    reports: list[Maybe[str]], events: list[Maybe[tuple[str, ...]]], redact: bool = False
) -> ReplayHost:
    moments: list[Moment] = []
    identifiers = Identifiers(redact)
    host = Answering(reports, events)
    recording = RecordingHost(host, lambda moment: moments.append(identifiers.apply(moment)))
    for _ in range(len(reports)):
        recording.ras_answer(ADDRESS, STATUS)
        recording.ras_events(ADDRESS)
        host.clock.now += 1.0
        recording.end_moment()
    return ReplayHost(read(archive_of(moments)))


def test_reports_stay_and_events_come_once() -> None:
    silent = Unknown(Reason.TIMED_OUT, "RAS", "may be stopped")
    host = replayed(["one\n\ttwo\n", "one\n\ttwo\n", silent], [("a",), (), ("a",)])
    seen = []
    for moment in range(3):
        host.seek(moment)
        seen.append((host.ras_answer(ADDRESS, STATUS), host.ras_events(ADDRESS)))
    assert seen == [("one\n\ttwo\n", ("a",)), ("one\n\ttwo\n", ()), (silent, ("a",))]
    missing = host.ras_answer("127.0.0.1:28028", STATUS)
    assert isinstance(missing, Unknown)
    assert missing.reason is Reason.NOT_RECORDED


def test_a_redacted_report_says_the_same_without_addresses() -> None:
    errors = ["DEAD", "  1 job process is considered dead (unreachable via the RAS network)"]
    errors += [
        "  Process 4711 on node 172.16.64.210 managing GPU 5 (NVML 6)",
        "",
        "secret-host said acme",
        "",
    ]
    text = a_report({"AllReduce": {0: 9, 1: 8, 2: 9, 3: 9}}, errors, node="172.16.64.210")
    event = "[2026-11-22 01:20:57] PEER_DEAD: Process 4711 on node 172.16.64.210 managing GPU 3"
    host = replayed([text], [(event,)], redact=True)
    redacted = host.ras_answer(ADDRESS, STATUS)
    assert isinstance(redacted, str)
    for secret in ("172.16.64.210", "secret-host", "acme", "27a079b828ff1a75"):
        assert secret in text
        assert secret not in redacted
    before, after = parse_report(text), parse_report(redacted)
    assert (after.nccl, after.groups, after.dead_count) == (before.nccl, before.groups, before.dead_count)
    assert [communicator.counts[0].counts for communicator in after.communicators] == [(9, 8)]
    assert after.dead[0].pid == 4711
    assert after.dead[0].node == after.communicators[0].counts[0].sets[1].ranks[0].process.node  # type: ignore[union-attr]
    events = host.ras_events(ADDRESS)
    assert isinstance(events, tuple)
    assert (parsed := parse_event(events[0])) is not None
    assert parsed.process == after.dead[0].__class__(4711, after.dead[0].node, (3,), (3,))


@pytest.mark.parametrize(
    "name", ["status-after-kill9.txt", "status-rank3-stopped.txt", "verbose-running.txt"]
)
def test_a_redacted_real_report_loses_only_its_hashes(name: str) -> None:
    text = machine_file(f"live/ras/{name}").read_text()
    redacted = replayed([text], [()], redact=True).ras_answer(ADDRESS, STATUS)
    assert isinstance(redacted, str)
    changed = [old for old, new in zip(text.split("\n"), redacted.split("\n"), strict=True) if old != new]
    assert all(line.startswith("#0-") for line in changed)
    assert parse_report(redacted).other == ()


def test_the_address_in_a_rank_line_is_replaced() -> None:
    text = rank_line(1, "has launched up to operation 5 ", node="fd00:12:34::7")
    redacted = replayed([text], [()], redact=True).ras_answer(ADDRESS, STATUS)
    assert isinstance(redacted, str)
    assert "fd00:12:34::7" not in redacted
    assert "Rank 1 has launched up to operation 5" in redacted
