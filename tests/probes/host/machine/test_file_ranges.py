"""Parts of growing files: only regular files are ever opened."""

import ctypes
import mmap
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from probes.base.unknown import Reason, Unknown
from probes.facts.jobs.processes import read_process
from probes.host.machine.local import LocalHost
from probes.host.protocol import FileRange, of_user
from probes.host.remote import collector
from probes.recording.recording_host import Moment, RecordingHost
from probes.simulation.host import SimulatedHost
from tests.support.pilot import SteppedClock
from tests.support.recordings import recorded
from tui.files.log_files import chunks_of_log
from tui.files.new_file import chunks_of
from tui.files.read_file import read_small


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


READERS: dict[str, Callable[[str], Any]] = {
    "content": lambda path: LocalHost().read_bytes(path),
    "part": lambda path: LocalHost().read_range(path, 0, 100),
    "end": lambda path: LocalHost().collectives(path, os.geteuid()),
    "content on another node": lambda path: collector.read_file(path, 100),
    "part on another node": lambda path: collector.read_range(path, 0, 100),
    "small file": lambda path: read_small(path, 100, "a file"),
    "recording": lambda path: list(chunks_of(path)),
    "log": lambda path: list(chunks_of_log(path)),
}
_EXCHANGE = """
import ctypes, sys
exchange = lambda: ctypes.CDLL(None).renameat2(-100, sys.argv[1].encode(), -100, sys.argv[2].encode(), 2)
print(exchange(), flush=True)
while not exchange():
    pass
"""
READINGS = 20_000


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names by which something else than a file or a directory was opened."""
    opened: list[str] = []
    real = os.open

    def spy(path: Any, flags: int, *more: Any, **named: Any) -> int:
        descriptor = real(path, flags, *more, **named)
        mode = os.fstat(descriptor).st_mode
        if not flags & os.O_PATH and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            opened.append(str(path))
        return descriptor

    monkeypatch.setattr(os, "open", spy)
    return opened


def outcome(read: Callable[[str], Any], path: str) -> bool:
    """Whether something could be read."""
    try:
        return not isinstance(read(path), Unknown)
    except Exception:
        return False


@pytest.mark.parametrize("reader", READERS)
def test_a_link_to_a_device_is_not_opened(tmp_path: Path, devices: list[str], reader: str) -> None:
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to("/dev/null")
    below = f"/proc/{os.getpid()}/root{tmp_path}"
    assert outcome(READERS[reader], f"{below}/file")
    assert not outcome(READERS[reader], f"{below}/link")
    assert not outcome(READERS[reader], f"{tmp_path}/link")
    assert not devices


@pytest.fixture
def turning(tmp_path: Path) -> Iterator[str]:
    """A name that another process turns back and forth between a file and a link to a device."""
    (tmp_path / "name").write_bytes(b"text")
    (tmp_path / "other").symlink_to("/dev/null")
    if not hasattr(ctypes.CDLL(None), "renameat2"):
        pytest.skip("needs renameat2")
    argv = [sys.executable, "-c", _EXCHANGE, str(tmp_path / "name"), str(tmp_path / "other")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as turner:
        assert turner.stdout is not None
        if turner.stdout.readline() != b"0\n":
            pytest.skip("this file system cannot exchange two names")
        yield str(tmp_path / "name")
        turner.kill()


def test_a_link_that_is_turned_while_it_is_read_opens_no_device(turning: str, devices: list[str]) -> None:
    readers = [read for name, read in READERS.items() if name != "end"]
    outcomes: dict[bool, int] = {True: 0, False: 0}
    while sum(outcomes.values()) < READINGS or not all(outcomes.values()):
        for read in readers:
            outcomes[outcome(read, turning)] += 1
    assert not devices


def test_a_library_beside_a_link_to_a_device_opens_none(tmp_path: Path, devices: list[str]) -> None:
    library = tmp_path / "lib" / "libucp.so.0.0.0"
    (tmp_path / "lib/pkgconfig").mkdir(parents=True)
    library.write_bytes(bytes(4096))
    version = tmp_path / "lib/pkgconfig/ucx.pc"
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC):
        version.write_text("Version: 1.17.0\n")
        assert mapped(library) == "1.17.0"
        version.unlink()
        version.symlink_to("/dev/null")
        assert isinstance(mapped(library), Unknown)
    assert not devices


def mapped(library: Path) -> object:
    """The version of a library that this process maps."""
    process = read_process(LocalHost(), os.getpid())
    assert not isinstance(process, Unknown)
    assert not isinstance(process.libraries, Unknown)
    return next(found.version for found in process.libraries if found.path == str(library))


def test_a_file_of_the_kernel_is_read_whatever_its_size(tmp_path: Path) -> None:
    assert LocalHost().read("/proc/self/status") != ""
    (tmp_path / "empty").touch()
    assert LocalHost().read_bytes(str(tmp_path / "empty")) == b""
    # What looks empty below a user's directory is not opened: it may be such a file.
    assert LocalHost().read_bytes(f"/proc/{os.getpid()}/root/proc/self/status") == b""


def test_evidence_counts_if_it_belongs_to_the_process_or_to_root(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"a")
    found = part(LocalHost(), file)
    assert found.owner == os.geteuid()
    asked = [(1001, 1001), (0, 1001), (2002, 1001), (1001, None), (2002, Unknown(Reason.TIMED_OUT))]
    answers = [of_user(FileRange(b"", 0, "", owner), user, "/log") for owner, user in asked]
    assert [isinstance(answer, Unknown) for answer in answers] == [False, False, True, False, True]
    if os.geteuid():
        assert isinstance(LocalHost().collectives(str(file), os.geteuid() + 1), Unknown)
    assert str(answers[2]) == "not the job's: belongs to user 2002, not to the job's user 1001"
