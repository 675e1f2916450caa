"""`gdrtop watch`: the recordings around events."""

import io
import json
import re
from pathlib import Path

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Reason, Unknown
from probes.checks.judgment import Judgment
from probes.checks.registry import findings
from probes.facts.system.services import ServiceFacts
from probes.facts.system.tools import ToolFacts
from probes.queries.finding import Status
from probes.recording.format import Question
from probes.recording.replay_host import ReplayHost
from probes.snapshot.examination import Examination, examine
from tests.support.scripted_watch import Scripted
from tests.support.watched_node import Watched, recording, rings, saved
from tui.commands.live.live import LiveOptions, write_live
from tui.commands.watch.ring_recorder import Limits
from tui.runtime.json_values import time_json
from tui.runtime.node_monitor import NodeMonitor
from tui.runtime.replay_source import ReplaySource


@pytest.mark.slow
def test_an_event_saves_what_was_before_and_after_and_the_replay_opens_at_it(
    tmp_path: Path, scripted: Scripted
) -> None:
    scripted(events_of=lambda second: [Severity.CRITICAL] if second == 70 else [])
    watched = Watched(tmp_path / "ring")
    watched.seconds(100)
    text = watched.end()
    (file,) = saved(tmp_path / "ring")
    assert re.fullmatch(r"event-\d{8}-\d{6}-port-state\.tar\.gz", file.name)
    assert file.name in " ".join(text.split())
    kept = recording(file)
    event_at = kept.manifest.open_at
    assert event_at is not None
    assert [round(moment.at - event_at) for moment in kept.moments] == list(range(-20, 11))
    assert not kept.damage
    host = ReplayHost(kept)
    assert host.moment == ReplaySource(host).position == kept.opening == 20


@pytest.mark.slow
def test_each_moment_of_a_saved_recording_answers_as_the_node_did(tmp_path: Path, scripted: Scripted) -> None:
    scripted(events_of=lambda second: [Severity.CRITICAL] if second == 62 else [])
    watched = Watched(tmp_path / "ring")
    watched.seconds(90)
    watched.end()
    (file,) = saved(tmp_path / "ring")
    host = ReplayHost(recording(file))
    ring = [ReplayHost(recording(file)) for file in rings(tmp_path / "ring")]
    by_time = {head.at: (file, number) for file in ring for number, head in enumerate(file.recording.moments)}
    questions = set(host.recording.answers)
    assert Question("file", ("/proc/sys/kernel/hostname",)) in questions
    for number, head in enumerate(host.recording.moments):
        host.seek(number)
        other, place = by_time[head.at]
        other.seek(place)
        for question in questions & set(other.recording.answers):
            assert host._answer(*_flat(question)) == other._answer(*_flat(question)), question


@pytest.mark.parametrize("redact", [False, True])
@pytest.mark.slow
def test_a_replay_shows_the_same_event_at_the_moment_at_which_it_opens(tmp_path: Path, redact: bool) -> None:
    limits = Limits(600, 16 << 20, Severity.WARNING, 20, 10, redact)
    watched = Watched(tmp_path / "ring", limits, name="hgx-h100+nic-flapping")
    watched.seconds(60)
    assert "mlx5_3 went down" in watched.end()
    file, *_ = saved(tmp_path / "ring")
    host = ReplayHost(recording(file))
    out = io.StringIO()
    write_live(host, out, LiveOptions(json=True))
    samples = [json.loads(line) for line in out.getvalue().splitlines()]
    opening = time_json(host.recording.moments[host.recording.opening].at)
    shown = next(sample for sample in samples if sample["time"] == opening)
    assert "mlx5_3" in " ".join(event["text"] for event in shown["events"])
    assert [len(sample["jobs"]) for sample in samples] == [1] * len(samples)


@pytest.mark.slow
def test_a_saved_recording_knows_what_the_doctor_reads_and_invents_no_finding(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "ring", name="hgx-h100+gpu-off-bus-live")
    watched.seconds(30)
    watched.end()
    file = next(file for file in saved(tmp_path / "ring") if "xid" in file.name)
    replayed = examine(ReplayHost(recording(file)))
    expected = examine(watched.host)
    assert isinstance(replayed.services, ServiceFacts)
    assert isinstance(expected.services, ServiceFacts)
    service = "nvidia-fabricmanager"
    assert replayed.services.services[service] == expected.services.services[service]
    assert isinstance(replayed.tools, ToolFacts)
    assert isinstance(expected.tools, ToolFacts)
    assert replayed.tools.perftest == expected.tools.perftest
    gpu_is_off = {"xid-79-fell-off-bus", "gpu-missing-from-nvml", "gpu-not-served"}
    assert found_in(replayed) == gpu_is_off == found_in(expected)


def test_a_ring_without_an_examination_invents_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NodeMonitor, "needs_check", False)  # as an older gdrtop recorded
    watched = Watched(tmp_path / "ring", name="hgx-h100")
    watched.seconds(5)
    watched.end()
    (ring,) = rings(tmp_path / "ring")
    replayed = examine(ReplayHost(recording(ring)))
    assert found_in(replayed) == set()
    assert isinstance(replayed.services, ServiceFacts)
    path = replayed.services.services["nvidia-fabricmanager"].path
    assert isinstance(path, Unknown)
    assert path.reason is Reason.NOT_RECORDED


@pytest.mark.slow
def test_the_node_is_examined_at_first_at_events_and_at_the_end_of_what_is_saved(
    tmp_path: Path, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(events_of=lambda second: [Severity.WARNING] if second in range(30, 45) else [])
    examined: list[float] = []
    check = NodeMonitor.check

    def noted(monitor: NodeMonitor, probe: bool = False) -> Judgment:
        examined.append(watched.clock.now - 1000.0)
        return check(monitor, probe)

    monkeypatch.setattr(NodeMonitor, "check", noted)
    watched = Watched(tmp_path / "ring", begin=1000.0)
    watched.seconds(110)
    watched.end()
    assert examined[:2] == [0, 30]
    assert len(examined) < 8
    assert examined[-1] == 54  # the last event is at 44, and 10 s after it are saved


def found_in(examination: Examination) -> set[str]:
    return {finding.id for finding in findings(examination) if finding.status is Status.FOUND}


def _flat(question: Question) -> tuple[str, ...]:
    return (question.kind, *question.subject)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("freeze", "event", "files"),
    [
        (Severity.CRITICAL, Severity.CRITICAL, 1),
        (Severity.CRITICAL, Severity.WARNING, 0),
        (Severity.WARNING, Severity.WARNING, 1),
        (Severity.WARNING, Severity.NOTE, 0),
        (Severity.NOTE, Severity.NOTE, 1),
    ],
)
def test_only_events_of_the_chosen_severity_are_saved(
    freeze: Severity, event: Severity, files: int, tmp_path: Path, scripted: Scripted
) -> None:
    scripted(events_of=lambda second: [event] if second == 5 else [])
    watched = Watched(tmp_path / "ring", Limits(600, 16 << 20, freeze, 20, 10))
    watched.seconds(20)
    text = watched.end()
    assert len(saved(tmp_path / "ring")) == files
    assert "mlx5_3 went down" in text


@pytest.mark.slow
def test_events_that_follow_each_other_are_one_recording_of_limited_length(
    tmp_path: Path, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tui.commands.watch.ring_recorder.LONGEST_SAVED_SECONDS", 100.0)
    scripted(events_of=lambda second: [Severity.CRITICAL] if second >= 5 else [])
    watched = Watched(tmp_path / "ring", Limits(3600, 16 << 20, before_seconds=20, after_seconds=10))
    watched.seconds(120)
    assert len(saved(tmp_path / "ring")) == 1
    watched.end()
    first, _ = saved(tmp_path / "ring")
    assert 80 <= len(recording(first).moments) <= 101


@pytest.mark.slow
def test_an_event_just_before_the_end_is_saved_too(tmp_path: Path, scripted: Scripted) -> None:
    scripted(events_of=lambda second: [Severity.CRITICAL] if second == 9 else [])
    watched = Watched(tmp_path / "ring")
    watched.seconds(10)
    watched.end()
    (file,) = saved(tmp_path / "ring")
    assert len(recording(file).moments) == 10


@pytest.mark.slow
@pytest.mark.parametrize("redact", [False, True])
def test_a_saved_recording_has_the_identifiers_of_gdrtop_record(
    redact: bool, tmp_path: Path, scripted: Scripted
) -> None:
    scripted(events_of=lambda second: [Severity.CRITICAL] if second == 5 else [])
    watched = Watched(tmp_path / "ring", Limits(600, 16 << 20, Severity.WARNING, 20, 10, redact))
    watched.seconds(20)
    text = " ".join(watched.end().split())
    assert ("Identifiers replaced" if redact else "The recording contains") in text
    (file,) = saved(tmp_path / "ring")
    assert recording(file).manifest.redacted is redact
