"""The collector's answers in this process, and those of one that runs on this machine against LocalHost's."""

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probes.base.unknown import Unknown
from probes.host.machine import command
from probes.host.machine.local import LocalHost
from probes.host.remote import collector
from probes.host.remote.remote_host import RemoteHost
from tests.support.local_node import local_target


@pytest.fixture(scope="module")
def node() -> Iterator[RemoteHost]:
    host = RemoteHost(local_target())
    yield host
    host.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files")
    (root / "text").write_bytes(b"one\ntwo\xff\x00\n")
    (root / "empty").touch()
    (root / "big").write_bytes(bytes(9000))
    (root / "hidden").write_text("secret")
    (root / "hidden").chmod(0)
    (root / "folder").mkdir()
    (root / "link").symlink_to("text")
    (root / "dangling").symlink_to("nowhere")
    (root / "loop").symlink_to("loop")
    (root / "\udcff name\x1b[31m").touch()
    os.mkfifo(root / "pipe")
    return root


def same(own: Any, remote: Any) -> bool:
    """Whether two answers say the same; the words of an error may differ, its reason not."""
    if isinstance(own, Unknown):
        return isinstance(remote, Unknown) and own.reason is remote.reason
    return bool(own == remote)


NAMES = (
    "text",
    "empty",
    "big",
    "hidden",
    "folder",
    "link",
    "dangling",
    "loop",
    "pipe",
    "missing",
    "a\0b",
    "text/x",
)
QUESTIONS = {
    "content": lambda host, path: host.read_bytes(path, 8192),
    "range": lambda host, path: host.read_range(path, 2, 4),
    "range without content": lambda host, path: host.read_range(path, 0, 0),
    "names": lambda host, path: host.names(path),
    "link": lambda host, path: host.link(path),
    "resolve": lambda host, path: host.resolve(path),
    "size": lambda host, path: host.size(path),
    "read access": lambda host, path: host.access(path),
    "write access": lambda host, path: host.access(path, write=True),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_files_are_read_as_on_this_machine(node: RemoteHost, files: Path, question: str) -> None:
    ask, own = QUESTIONS[question], LocalHost()
    answers = {name: (ask(own, f"{files}/{name}"), ask(node, f"{files}/{name}")) for name in (*NAMES, "")}
    assert {name: both for name, both in answers.items() if not same(*both)} == {}


def test_files_of_the_kernel_are_read_as_on_this_machine(node: RemoteHost) -> None:
    own = LocalHost()
    for path in ("/proc/cmdline", "/proc/version", "/sys/kernel/mm/transparent_hugepage/enabled"):
        assert same(own.read_bytes(path), node.read_bytes(path)), path
    assert same(own.names("/sys/class/net"), node.names("/sys/class/net"))
    assert node.is_root() is own.is_root()
    assert abs(node.wall_clock() - own.wall_clock()) < 60


@pytest.mark.parametrize(
    "argv",
    [
        ("uname", "-s"),
        ("false",),
        ("ls", "/missing"),
        ("no-such-command",),
        ("../bin/true",),
        ("printf", "a\\033b"),
    ],
)
def test_commands_are_run_as_on_this_machine(node: RemoteHost, argv: tuple[str, ...]) -> None:
    assert same(LocalHost().run(argv), node.run(argv))


def test_a_command_that_does_not_end_is_ended_with_its_children(node: RemoteHost) -> None:
    answer = node.run(("sleep", "600.25"), 0.2)
    assert "still running after 0.2 s" in str(answer)
    assert running("600.25") == []


def test_a_flood_of_output_is_refused_and_the_end_of_a_log_is_kept(node: RemoteHost) -> None:
    assert "too much output" in str(node.run(("head", "-c", "2000000", "/dev/zero")))
    status, output, _, left_out = collector._output(
        ["/bin/sh", "-c", "yes line | head -c 1500000; echo end"], 5.0, b"", True
    )
    assert (status, output.endswith("line\nend\n"), output.startswith("line\n")) == (0, True, True)
    assert len(output) + left_out == 1_500_004


def test_a_program_of_gdrtop_runs_there(node: RemoteHost) -> None:
    found = node._ask("program", 5.0, "import sys; print(sys.argv[1:], 'textual' in sys.modules)", "a b")
    assert found == [0, "['a b'] False\n", "", 0]


def running(word: str) -> list[int]:
    """The processes with this word in their command line."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if word.encode() in command.split(b"\0") and state != "Z":
            found.append(int(pid))
    return found


def test_the_collector_and_its_children_end_with_the_connection() -> None:
    host = RemoteHost(local_target())
    assert host.connection is not None
    pid = host.connection.process.pid
    asking = threading.Thread(target=host.run, args=[("sleep", "601.75"), 60.0], daemon=True)
    asking.start()
    while not running("601.75"):
        time.sleep(0.01)
    began = time.monotonic()
    host.close()
    asking.join(10.0)
    assert not asking.is_alive()
    assert time.monotonic() - began < 10
    wait_until_gone("601.75")
    assert not Path(f"/proc/{pid}").exists()


def wait_until_gone(word: str) -> None:
    deadline = time.monotonic() + 10
    while running(word):
        assert time.monotonic() < deadline, f"still running: {word}"
        time.sleep(0.01)


# In this process


def ask(questions: list[list[Any]], threads: collector.Threads | None = None) -> list[Any]:
    """A round of the collector."""
    current = collector.Round(questions)
    threads = threads or collector.Threads()
    for _ in range(min(collector.THREADS, len(questions))):
        threads.start(current.work)
    return current.finish(threads)


def test_reads_that_hang_time_out_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch, files: Path) -> None:
    hung = threading.Event()
    monkeypatch.setitem(collector.QUESTIONS, "hung", lambda: hung.wait(60))
    monkeypatch.setattr(collector, "FILE_SECONDS", 0.05)
    threads = collector.Threads()
    answers = ask([["hung"]] * 6 + [["size", f"{files}/big"]] * 3, threads)
    assert [answer.get("errno") for answer in answers] == [errno.ETIMEDOUT] * 6 + [None] * 3
    assert answers[-1] == {"value": 9000}
    hung.set()


def test_a_command_that_takes_long_delays_no_other_answer_and_comes_later(
    monkeypatch: pytest.MonkeyPatch, files: Path
) -> None:
    done, started = threading.Event(), []

    def run(seconds: float, name: str) -> list[Any]:
        started.append(name)
        done.wait(60)
        return [0, name, "", 0]

    monkeypatch.setitem(collector.QUESTIONS, "run", run)
    monkeypatch.setattr(collector, "COMMAND_SECONDS", 0.05)
    monkeypatch.setattr(collector, "_UNFINISHED", {})
    threads, slow, quick = collector.Threads(), ["run", 60.0, "nvidia-smi"], ["size", f"{files}/big"]
    for questions in ([slow, quick], [quick, slow], [slow]):
        answers = dict(zip(map(str, questions), ask(questions, threads), strict=True))
        assert answers[str(slow)] == {"errno": collector.UNFINISHED, "detail": "still running after 0 s"}
        assert answers.get(str(quick), {"value": 9000}) == {"value": 9000}
    done.set()
    monkeypatch.setattr(collector, "COMMAND_SECONDS", 60.0)  # alone, the question waits
    assert ask([slow], threads) == [{"value": [0, "nvidia-smi", "", 0]}]
    assert started == ["nvidia-smi"]
    assert ask([slow, slow], threads) == [{"value": [0, "nvidia-smi", "", 0]}] * 2  # again, from the start
    assert len(started) == 3


def test_a_command_that_cannot_be_killed_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, started = threading.Event(), []

    def run(seconds: float, name: str) -> None:
        started.append(name)
        stuck.wait(60)

    monkeypatch.setitem(collector.QUESTIONS, "run", run)
    monkeypatch.setattr(collector, "COMMAND_SECONDS", 0.02)
    monkeypatch.setattr(collector, "FILE_SECONDS", 0.0)
    monkeypatch.setattr(collector, "_UNFINISHED", {})
    threads = collector.Threads()
    for _ in range(3):
        assert ask([["run", 0.01, "stuck"]], threads) == [{"errno": errno.ETIMEDOUT, "detail": "no answer"}]
    assert started == ["stuck"]
    stuck.set()


def test_with_no_thread_left_all_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    hung = threading.Event()
    monkeypatch.setitem(collector.QUESTIONS, "hung", lambda: hung.wait(60))
    monkeypatch.setattr(collector, "FILE_SECONDS", 0.02)
    monkeypatch.setattr(collector, "MOST_THREADS", 6)
    answers = ask([["hung"]] * 20)
    assert {answer["errno"] for answer in answers} == {errno.ETIMEDOUT}
    assert [answers[0]["detail"], answers[-1]["detail"]] == ["no answer", "too many reads hang"]
    hung.set()


def test_questions_that_cannot_be_asked_get_an_error(files: Path) -> None:
    for question in (
        ["nonsense"],
        ["file"],
        ["file", 7, 8, 9],
        ["size", "a\0b"],
        [],
        ["ethtool", "../x", "", 0],
    ):
        assert collector.answer(question)["errno"] > 0, question
    assert collector.answer(["file", f"{files}/big", 8999])["errno"] == errno.EFBIG
    assert collector.answer(["environment", "NO_SUCH_VARIABLE"])["errno"] == errno.ENOENT


def test_the_kernel_log_is_read_from_where_it_was_opened(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "kmsg"
    log.write_bytes(b"6,1,5,-;old\n")
    monkeypatch.setattr(collector, "KERNEL_LOG", str(log))
    monkeypatch.setattr(collector, "_kernel_log", [])
    monkeypatch.setattr(collector, "_records", [])
    log.write_bytes(b"")
    read = os.read
    records = iter([b"6,1,5,-;one\n", b"3,2,6,-;two\n", b"garbage"])

    def read_record(descriptor: int, size: int) -> bytes:
        assert read(descriptor, size) == b""
        try:
            return next(records)
        except StopIteration:
            raise BlockingIOError from None

    monkeypatch.setattr(collector.os, "read", read_record)
    assert collector.kernel_log(1) == [2, ["3,2,6,-;two\n"]]
    assert collector.kernel_log(2) == [2, []]
    os.close(collector._kernel_log[0])


def test_nodes_of_one_kind_say_the_same() -> None:
    assert collector.node_kind() == collector.node_kind()


def test_commands_are_found_where_this_machine_finds_them() -> None:
    assert (collector.TRUSTED_PATH, collector.LOGS) == (command.TRUSTED_PATH, command.LOGS)


def test_a_file_that_hangs_costs_one_wait_and_is_asked_again_when_it_has_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released, asked = threading.Event(), threading.Semaphore(0)

    def hang(path: str, limit: int) -> str:
        asked.release()
        released.wait(60)
        return path

    monkeypatch.setitem(collector.QUESTIONS, "file", hang)
    monkeypatch.setattr(collector, "FILE_SECONDS", 0.05)
    threads = collector.Threads()

    def answer() -> Any:
        current = collector.Round([["file", "/proc/7/environ", 9]])
        threads.start(current.work)
        return current.finish(threads)[0]

    try:
        assert answer()["errno"] == errno.ETIMEDOUT
        assert asked.acquire(timeout=60)
        assert answer()["detail"] == "still no answer"
        assert not asked.acquire(blocking=False)
    finally:
        released.set()
    while "errno" in (found := answer()):
        pass
    assert found == {"value": "/proc/7/environ"}
