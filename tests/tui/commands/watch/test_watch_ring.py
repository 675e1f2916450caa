"""`gdrtop watch`: the ring on disk, its limits, and what a killed process leaves."""

from pathlib import Path

import pytest

from probes.base.evidence import Severity
from probes.simulation.host import SimulatedHost
from tests.support.scripted_watch import Scripted
from tests.support.watched_node import Watched, recording, rings, saved
from tui.commands.watch.ring_recorder import Limits


@pytest.mark.slow
def test_the_ring_is_recordings_of_a_minute_that_only_the_owner_can_read(
    tmp_path: Path, scripted: Scripted
) -> None:
    scripted()
    watched = Watched(tmp_path / "ring")
    watched.seconds(130)
    watched.end()
    files = rings(tmp_path / "ring")
    assert [len(recording(file).moments) for file in files] == [60, 60, 10]
    assert not any(recording(file).damage for file in files)
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert (tmp_path / "ring").stat().st_mode & 0o777 in (0o700, 0o755)


@pytest.mark.slow
def test_the_ring_has_a_length_in_time(tmp_path: Path, scripted: Scripted) -> None:
    scripted()
    watched = Watched(tmp_path / "ring", Limits(keep_seconds=120, max_bytes=16 << 20))
    watched.seconds(250)
    watched.end()
    count = sum(len(recording(file).moments) for file in rings(tmp_path / "ring"))
    assert 120 <= count <= 240


@pytest.mark.slow
def test_a_clock_that_is_set_forward_deletes_no_ring(tmp_path: Path, scripted: Scripted) -> None:
    scripted()
    watched = Watched(tmp_path / "ring", Limits(keep_seconds=120, max_bytes=16 << 20))
    watched.seconds(130)
    before = rings(tmp_path / "ring")
    watched.host._started_at += 86400.0
    watched.seconds(55)
    watched.end()
    assert set(before) < set(rings(tmp_path / "ring"))


@pytest.mark.slow
def test_ring_and_saved_recordings_never_exceed_the_size(
    tmp_path: Path, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 300_000
    monkeypatch.setattr("tui.commands.watch.ring_recorder._SLACK_BYTES", 8_000)
    scripted(events_of=lambda second: [Severity.CRITICAL] if second % 100 == 50 else [])
    watched = Watched(tmp_path / "ring", Limits(86400, limit, before_seconds=20, after_seconds=10))
    sizes = []
    for _ in range(30):
        watched.seconds(10)
        sizes.append(sum(file.stat().st_size for file in (tmp_path / "ring").iterdir()))
    watched.end()
    assert max(sizes) <= limit
    assert max(sizes) > limit / 3
    assert saved(tmp_path / "ring")


@pytest.mark.slow
def test_what_a_killed_process_left_is_continued(tmp_path: Path, scripted: Scripted) -> None:
    scripted()
    watched = Watched(tmp_path / "ring")
    watched.seconds(70)
    watched.kill()
    left = rings(tmp_path / "ring")
    left[-1].write_bytes(left[-1].read_bytes()[:-100])  # the moment that it was writing
    (tmp_path / "ring" / ".event-20260101-000000-xid.tar.gz.99.part").write_bytes(b"half")
    (tmp_path / "ring" / "ring-00000003-1700000069.tar.gz").touch()  # and an empty segment
    scripted(events_of=lambda second: [Severity.CRITICAL] if second == 2 else [])
    watched.start_again()
    watched.seconds(15)
    watched.end()
    names = [file.name for file in rings(tmp_path / "ring")]
    assert [int(name[5:13]) for name in names] == [1, 2, 3, 4, 5]  # a saved recording ends a segment
    assert not list((tmp_path / "ring").glob(".event*"))
    (file,) = saved(tmp_path / "ring")
    kept = recording(file)
    assert kept.manifest.open_at is not None
    before = [moment.at for moment in kept.moments if moment.at < kept.manifest.open_at]
    assert 18 <= len(before) <= 20, "moments of the killed process are in it, but for the torn one"


@pytest.mark.slow
def test_what_was_before_a_restart_of_the_node_is_not_mixed_in(tmp_path: Path, scripted: Scripted) -> None:
    scripted()
    before = Watched(tmp_path / "ring", begin=5000.0)
    before.seconds(15)
    before.end()
    scripted(events_of=lambda second: [Severity.CRITICAL] if second == 5 else [])
    after = Watched(tmp_path / "ring", begin=10.0)  # the same time of day: simulated nodes tell it so
    after.seconds(20)
    after.end()
    (file,) = saved(tmp_path / "ring")
    clocks = [moment.clock[0] for moment in recording(file).moments]
    assert clocks == sorted(clocks)
    assert max(clocks) < 5000.0


@pytest.mark.slow
def test_processes_that_ended_do_not_fill_memory_and_disk(
    tmp_path: Path, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted()
    watched = Watched(tmp_path / "ring")
    for second in range(130):
        watched.watcher._recorder.host.read(f"/proc/{100000 + second}/status")
        watched.seconds(1)
    watched.end()
    asked = [
        [
            question.subject[0]
            for question in recording(file).answers
            if question.subject[:1] and "/proc/1000" in question.subject[0]
        ]
        for file in rings(tmp_path / "ring")
    ]
    assert max(map(len, asked)) <= 60


def test_an_answer_of_an_unexpected_kind_stops_the_ring_but_not_the_events(
    tmp_path: Path, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(events_of=lambda second: [Severity.NOTE])
    monkeypatch.setattr(SimulatedHost, "environment", lambda *_: object())
    watched = Watched(tmp_path / "ring")
    watched.seconds(15)
    text = watched.end()
    assert text.count("the ring cannot be written: TypeError") == 1
    assert text.count("mlx5_3 went down") == 15
