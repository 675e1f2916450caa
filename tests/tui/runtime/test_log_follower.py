"""Follow logs that grow, shrink, are replaced, and contain anything."""

import os
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probes.base.unknown import Maybe
from probes.host.machine.local import LocalHost
from probes.host.protocol import FileRange
from probes.live.processes.job_logs import LogPath
from probes.nccl.log.facts import State
from tests.support.nccl_logs import channel, info, read
from tui.runtime import log_follower
from tui.runtime.log_follower import Followed, LogFollower


def follower(*files: Path) -> LogFollower:
    return LogFollower(LocalHost(), [LogPath(str(file), str(file), 0) for file in files])


def caught_up(followed_log: LogFollower) -> Followed:
    followed = followed_log.advance()
    while followed.is_behind:
        followed = followed_log.advance()
    return followed


def append(file: Path, text: str | bytes) -> None:
    with file.open("ab") as out:
        out.write(text.encode() if isinstance(text, str) else text)


def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    append(log, info(channel())[:-20])
    followed_log = follower(log)
    assert caught_up(followed_log).facts.channels.total == 0  # its line is not complete yet
    append(log, info(channel())[-20:] + info(channel(gdr=False)))
    followed = caught_up(followed_log)
    assert (followed.facts.channels.gdr, followed.facts.channels.staged) == (1, 1)
    assert followed.verdict.state is State.PARTLY
    assert followed.restarts == 0
    assert [(file.name, file.lines) for file in followed.facts.files] == [("log", 2)]


def test_a_file_that_begins_again_is_read_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    append(log, info(channel(), channel()))
    followed_log = follower(log)
    caught_up(followed_log)
    log.write_text(info(channel(gdr=False)))  # shorter
    followed = caught_up(followed_log)
    assert (followed.facts.channels.total, followed.restarts) == (1, 1)
    log.write_text("other\n" * 1000)  # longer than before, within a second
    followed = caught_up(followed_log)
    assert (followed.facts.channels.total, followed.restarts) == (0, 2)
    log.rename(tmp_path / "log.1")
    log.write_text((tmp_path / "log.1").read_text())
    assert caught_up(followed_log).restarts == 3


def test_a_file_that_goes_keeps_what_it_said(tmp_path: Path) -> None:
    log = tmp_path / "log"
    append(log, info(channel()))
    followed_log = follower(log)
    caught_up(followed_log)
    log.unlink()
    followed = caught_up(followed_log)
    assert followed.facts.channels.gdr == 1
    assert followed.facts.files[0].error == "not there"


def test_files_that_grow_together_are_one_log(tmp_path: Path) -> None:
    logs = [tmp_path / f"nccl.node1.{pid}.log" for pid in (100, 101)]
    for log in logs:
        append(log, info("Using network IB"))
    followed_log = follower(*logs)
    caught_up(followed_log)
    for number, log in enumerate(logs):
        append(log, info(channel(gdr=bool(number))).replace(":100:", f":{100 + number}:"))
    followed = caught_up(followed_log)
    assert followed.verdict.text.startswith("1 of 2 channels on 1 of 2 ranks")
    assert {str(rank.first_gdr or rank.first_staged) for rank in followed.facts.ranks} == {
        "nccl.node1.100.log:2",
        "nccl.node1.101.log:2",
    }


def test_an_endless_line_is_read_in_steps(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as out:
        out.truncate(3 * log_follower.STEP_BYTES)
    followed_log = follower(log)
    steps = 1
    while followed_log.advance().is_behind:
        steps += 1
    assert steps == 3
    append(log, "\n" + info(channel()))
    assert caught_up(followed_log).facts.channels.gdr == 1


def test_what_is_no_text_is_not_read(tmp_path: Path) -> None:
    packed, pipe = tmp_path / "log.gz", tmp_path / "pipe"
    packed.write_bytes(b"\x1f\x8b" + bytes(100))
    os.mkfifo(pipe)
    followed = caught_up(follower(packed, pipe))
    assert "compressed" in followed.facts.files[0].error
    assert "a pipe" in followed.facts.files[1].error


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(pieces=st.lists(st.one_of(st.binary(max_size=200), st.just(info(channel()).encode())), max_size=6))
def test_any_bytes_say_the_same_as_when_read_at_once(tmp_path: Path, pieces: list[bytes]) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"")
    followed_log = follower(log)
    for piece in pieces:
        append(log, piece)
        followed = caught_up(followed_log)
        if followed.facts.files[0].error:  # a compressed file
            return
    append(log, b"\n")
    assert caught_up(followed_log).facts.channels == read(log.read_bytes(), "log").channels


def test_another_process_with_the_same_pid_is_not_followed(tmp_path: Path) -> None:
    class Streams(LocalHost):
        stream = tmp_path / "first"

        def read_range(self, path: str, offset: int, limit: int) -> Maybe[FileRange]:
            return super().read_range(str(self.stream), offset, limit)

    append(tmp_path / "first", info(channel()))
    append(tmp_path / "second", info(channel(gdr=False), channel(gdr=False)))
    host = Streams()
    followed_log = LogFollower(host, [LogPath("/proc/4711/fd/1", "/out", 0)])
    caught_up(followed_log)
    host.stream = tmp_path / "second"
    followed = caught_up(followed_log)
    assert (followed.facts.channels.gdr, followed.facts.channels.staged) == (1, 0)
    assert followed.facts.files[0].error == "the process has exited"
