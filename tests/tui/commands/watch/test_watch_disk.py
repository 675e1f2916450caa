"""`gdrtop watch` on a full disk, and in directories of others."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from probes.base.evidence import Severity
from probes.recording.format import Question
from tests.support.documents import valid
from tests.support.scripted_watch import Scripted
from tests.support.watched_node import Watched, recording, rings, saved
from tui.cli import main
from tui.commands.watch.ring_directory import RingDirectory, RingError
from tui.commands.watch.ring_recorder import Limits


@pytest.mark.slow
def test_a_disk_without_space_stops_the_ring_once_and_it_goes_on_when_there_is_room(
    tmp_path: Path, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted()
    watched = Watched(tmp_path / "ring", as_json=True)
    watched.seconds(10)
    monkeypatch.setattr(RingDirectory, "free_bytes", lambda _: 1000)
    watched.seconds(60)
    stopped = sum(file.stat().st_size for file in rings(tmp_path / "ring"))
    watched.seconds(60)
    assert sum(file.stat().st_size for file in rings(tmp_path / "ring")) == stopped
    monkeypatch.undo()
    scripted()
    watched.seconds(30)
    lines = [valid("watch", line) for line in watched.end().splitlines()]
    assert [line["kind"] for line in lines] == [
        "watch-started", "ring-paused", "ring-resumed", "watch-ended",
    ]  # fmt: skip
    assert "almost full" in lines[1]["text"]
    last = recording(rings(tmp_path / "ring")[-1])
    assert len(last.moments) >= 20
    assert Question("file", ("/proc/sys/kernel/hostname",)) in last.answers


@pytest.mark.slow
@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced by another"])
def test_a_ring_whose_directory_was_removed_begins_again(
    tmp_path: Path, scripted: Scripted, replaced: bool
) -> None:
    scripted(events_of=lambda second: [Severity.CRITICAL] if second == 40 else [])
    watched = Watched(tmp_path / "ring", as_json=True)
    watched.seconds(10)
    shutil.rmtree(tmp_path / "ring")
    if replaced:
        (tmp_path / "ring").mkdir(mode=0o700)
    watched.seconds(60)
    lines = [valid("watch", line) for line in watched.end().splitlines()]
    kinds = [line["kind"] for line in lines if line["subject"] == "gdrtop watch"]
    assert kinds == ["watch-started", "ring-paused", "ring-resumed", "saved", "watch-ended"]
    assert "was removed" in lines[1]["text"]
    assert len(saved(tmp_path / "ring")) == 1
    assert sum(len(recording(file).moments) for file in rings(tmp_path / "ring")) >= 60


@pytest.mark.slow
def test_a_ring_whose_directory_is_replaced_by_a_link_follows_it_or_says_why_not(
    tmp_path: Path, scripted: Scripted
) -> None:
    scripted()
    ring, other = tmp_path / "ring", tmp_path / "other"
    watched = Watched(ring, as_json=True)
    watched.seconds(10)
    ring.rename(tmp_path / "away")
    other.mkdir(mode=0o777)
    other.chmod(0o777)
    ring.symlink_to(other)
    watched.seconds(60)
    assert not rings(other)
    other.chmod(0o700)
    watched.seconds(60)
    assert rings(other)
    ring.unlink()
    (tmp_path / "away").rename(ring)  # the first one again
    watched.seconds(60)
    lines = [valid("watch", line) for line in watched.end().splitlines()]
    paused = [line["text"] for line in lines if line["kind"] == "ring-paused"]
    assert [line["kind"] for line in lines].count("ring-resumed") == 2
    assert "was removed" in paused[0]
    assert "other users can write to" in paused[0]
    assert len(paused) == len(set(paused))


@pytest.mark.slow
def test_a_ring_whose_directory_cannot_be_created_again_says_so_once(
    tmp_path: Path, scripted: Scripted
) -> None:
    scripted()
    watched = Watched(tmp_path / "place" / "ring")
    watched.seconds(5)
    shutil.rmtree(tmp_path / "place")
    (tmp_path / "place").touch()
    watched.seconds(30)
    (tmp_path / "place").unlink()
    watched.seconds(20)
    text = " ".join(watched.end().split())
    assert text.count("was removed") == 1
    assert text.count("writing to the ring resumed") == 1


@pytest.mark.slow
def test_a_write_that_fails_half_way_leaves_whole_moments(
    tmp_path: Path, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted()
    watched = Watched(tmp_path / "ring")
    watched.seconds(10)
    write = os.write

    def full(descriptor: int, content: bytes) -> int:
        if len(content) > 10:
            return write(descriptor, bytes(content)[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tui.commands.watch.ring_directory.os.write", full)
    watched.seconds(25)
    monkeypatch.setattr("tui.commands.watch.ring_directory.os.write", write)
    watched.seconds(25)
    text = watched.end()
    assert text.count("No space left on device") == 1
    assert text.count("writing to the ring resumed") == 1
    first, *_, last = (recording(file) for file in rings(tmp_path / "ring"))
    assert len(first.moments) == 10
    assert len(last.moments) >= 15


def test_a_reserve_of_the_disk_stays_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = RingDirectory(str(tmp_path / "ring"))

    def disk(total: int, free: int) -> int:
        result = os.statvfs_result((4096, 4096, total >> 12, free >> 12, free >> 12, 1, 1, 1, 0, 255))
        monkeypatch.setattr("tui.commands.watch.ring_directory.os.fstatvfs", lambda _: result)
        return directory.free_bytes()

    gib = 1 << 30
    assert disk(100 * gib, 6 * gib) == gib
    assert disk(2 * gib, gib) == gib - (500 << 20)
    assert disk(100_000 * gib, 11 * gib) == gib
    assert disk(100 * gib, 4 * gib) < 0
    directory.close()


@pytest.mark.slow
def test_an_event_on_a_full_disk_is_not_saved_and_the_reason_is_printed(
    tmp_path: Path, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(events_of=lambda second: [Severity.CRITICAL] if second == 5 else [])
    watched = Watched(tmp_path / "ring")
    watched.seconds(6)
    monkeypatch.setattr(RingDirectory, "free_bytes", lambda _: 1000)
    watched.seconds(20)
    text = " ".join(watched.end().split())
    assert 'no recording was saved for "mlx5_3 went down": the disk is almost full' in text
    assert not saved(tmp_path / "ring")


@pytest.mark.slow
def test_links_and_files_of_others_in_the_directory_are_left_alone(
    tmp_path: Path, scripted: Scripted
) -> None:
    ring = tmp_path / "ring"
    ring.mkdir(mode=0o700)
    (tmp_path / "precious").write_text("precious")
    (ring / "ring-00000001-1000000000.tar.gz").symlink_to(tmp_path / "precious")
    (ring / "event-20000101-000000-xid.tar.gz").symlink_to(tmp_path / "precious")
    os.link(tmp_path / "precious", ring / "ring-00000002-1000000000.tar.gz")
    (ring / "ring-00000004-1000000000.tar.gz").mkdir()
    (ring / "ring-x.tar.gz").write_text("mine")
    (ring / "notes.txt").write_text("mine")
    (ring / ".event-20000101-000000-xid.tar.gz.1.part").symlink_to(tmp_path / "precious")
    before = sorted(entry.name for entry in ring.iterdir())
    scripted(events_of=lambda second: [Severity.CRITICAL] if second == 5 else [])
    watched = Watched(ring, Limits(60, 16 << 20, before_seconds=20, after_seconds=10))
    watched.seconds(190)
    watched.end()
    assert (tmp_path / "precious").read_text() == "precious"
    left = sorted(entry.name for entry in ring.iterdir())
    assert set(before) <= set(left)
    assert len(saved(ring)) == 2


def test_two_on_one_directory_are_refused(tmp_path: Path) -> None:
    first = RingDirectory(str(tmp_path / "ring"))
    with pytest.raises(RingError, match="another gdrtop watch uses"):
        RingDirectory(str(tmp_path / "ring"))
    first.close()
    RingDirectory(str(tmp_path / "ring")).close()


def test_a_directory_that_others_may_write_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ring").mkdir()
    (tmp_path / "ring").chmod(0o777)
    assert main(["watch", "--demo", "--dir", str(tmp_path / "ring")]) == 3
    assert "can write" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["watch", "--demo", "--dir", str(tmp_path / "file")]) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_link_to_ones_own_directory_is_followed(tmp_path: Path) -> None:
    """With StateDirectory= and DynamicUser=, systemd makes one."""
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "private")
    directory = RingDirectory(str(tmp_path / "link"))
    assert directory.path == str(tmp_path / "private")
    directory.close()
