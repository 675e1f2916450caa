"""Parts of growing files: only regular files are ever opened."""

import os
import threading
from pathlib import Path

import pytest

from probes.base.unknown import Reason, Unknown
from probes.host.answers import FileRange
from probes.host.local import LocalHost
from probes.recording.recording_host import Moment, RecordingHost
from probes.simulation.host import SimulatedHost
from tests.probes.recording.recordings import recorded
from tests.tui.pilot import SteppedClock


def part(host: LocalHost, path: object, offset: int = 0, limit: int = 100) -> FileRange:
    found = host.read_range(str(path), offset, limit)
    assert isinstance(found, FileRange)
    return found


def test_a_part_of_a_file_and_its_size(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"0123456789")
    found = part(LocalHost(), file, 4, 3)
    assert (found.content, found.size_bytes) == (b"456", 10)
    assert part(LocalHost(), file, 20).content == b""
    assert part(LocalHost(), file, 0, 0).content == b""


def test_a_file_is_the_same_by_all_its_names_until_it_is_replaced(tmp_path: Path) -> None:
    file, other = tmp_path / "log", tmp_path / "link"
    file.write_bytes(b"a")
    other.symlink_to(file)
    before = part(LocalHost(), file).file
    assert part(LocalHost(), other).file == before
    file.rename(tmp_path / "log.1")
    file.write_bytes(b"b")
    assert part(LocalHost(), file).file != before


def test_pipes_and_devices_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    opened: list[int] = []
    real = os.open
    monkeypatch.setattr(
        os, "open", lambda path, flags, **more: opened.append(flags) or real(path, flags, **more)
    )
    for path, kind in (
        (pipe, "a pipe"),
        (Path("/dev/null"), "a terminal or device"),
        (tmp_path, "a directory"),
    ):
        found = LocalHost().read_range(str(path), 0, 100)
        assert isinstance(found, Unknown)
        assert found.reason is Reason.MALFORMED
        assert found.detail == f"{kind}, not a file"
    assert opened
    assert all(flags & os.O_PATH for flags in opened)


def test_a_pipe_behind_a_file_descriptor_is_not_read() -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b"x")
        found = LocalHost().read_range(f"/proc/self/fd/{reading}", 0, 100)
        assert isinstance(found, Unknown)
        assert os.read(reading, 10) == b"x"
    finally:
        os.close(reading)
        os.close(writing)


def test_a_tree_answers_below_its_root_only(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/log").write_bytes(b"inside")
    (tmp_path / "out").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")
    host = LocalHost(str(tmp_path))
    assert part(host, "/home/log").content == b"inside"
    for path in ("/out", "/pipe", "/home", "/none", "/a\0b"):
        assert isinstance(host.read_range(path, 0, 100), Unknown)


def test_recordings_have_no_logs() -> None:
    clock = SteppedClock()
    path = "/home/alice/llm/slurm-4711.out"
    moments: list[Moment] = []
    host = RecordingHost(SimulatedHost("hgx-h100", clock=clock), moments.append)
    assert isinstance(host.read_range(path, 0, 100), FileRange)
    host.end_moment()
    assert not moments[0].answers
    replay = recorded(SimulatedHost("hgx-h100", clock=clock), clock, 1)
    found = replay.read_range(path, 0, 100)
    assert isinstance(found, Unknown)
    assert found.reason is Reason.NOT_RECORDED


def test_a_path_of_a_thread_that_waits_for_a_writer_does_not_block(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    asking = threading.Thread(target=lambda: LocalHost().read_range(str(pipe), 0, 100), daemon=True)
    asking.start()
    asking.join(30)
    assert not asking.is_alive()
