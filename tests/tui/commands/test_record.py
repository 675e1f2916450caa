"""`gdrtop record` and `--replay` as an admin uses them."""

import errno
import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.nvml import NvmlLive
from probes.host.protocol import READ_LIMIT_BYTES
from probes.recording.archive import read_archive
from probes.recording.format import RecordingError
from probes.recording.replay_host import ReplayHost
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.description import simulated_names
from tests.support.command_line import ROOT, gdrtop, printed, recorded
from tests.support.pilot import SteppedClock
from tests.support.tiers import usual
from tui.cli import main
from tui.commands.record import record
from tui.files.new_file import chunks_of


def replayed(path: Path) -> ReplayHost:
    return ReplayHost(read_archive(chunks_of(str(path))))


@pytest.mark.slow
def test_a_reading_a_second_for_so_many_seconds(tmp_path: Path) -> None:
    told = recorded(tmp_path / "node.tar.gz", seconds=5)
    moments = replayed(tmp_path / "node.tar.gz").recording.moments
    assert told.moments == len(moments) == 6
    assert [round(moment.at - moments[0].at) for moment in moments] == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
@pytest.mark.parametrize("redact", [False, True])
def test_a_replay_is_not_greener_than_a_node_whose_job_logs_showed_a_fault(
    redact: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, file = "hgx-h100+job-log-other-nics", str(tmp_path / "node.tar.gz")
    recorded(tmp_path / "node.tar.gz", name, seconds=1, redact=redact)
    assert "what only they show, it has the titles: job-log-other-setting, job-log" in capsys.readouterr().err
    heads = []
    for source in (("--demo", name), ("--replay", file)):
        status = main(["check", "--one-line", *source])
        heads.append((status, capsys.readouterr().out.partition(":")[0].split(maxsplit=1)[-1]))
    assert heads == [(1, "▲ DEGRADED (1 warning)")] * 2
    text = printed(capsys, "check", "--replay", file, status=1)
    assert "On the node, run gdrtop check job-log-other-setting" in text
    document = json.loads(printed(capsys, "check", "--json", "--replay", file, status=1))
    [finding] = [each for each in document["findings"] if each["id"] == "job-log-other-setting"]
    assert "The recording has no job logs" in finding["cause"]
    assert b"NCCL INFO" not in gzip.decompress((tmp_path / "node.tar.gz").read_bytes())
    # A report that is redacted is made of a recording of the recording.
    printed(capsys, "report", str(tmp_path / "node.md"), "--redact", "--replay", file)
    assert "job-log-other-setting" in (tmp_path / "node.md").read_text("utf-8")


@pytest.mark.parametrize(("slow", "moments", "told"), [(1.5, 4, ""), (4.0, 2, "2 of 4 samples are missing")])
def test_a_node_that_answers_slowly_gets_more_time_and_what_is_missing_is_said(
    slow: float, moments: int, told: str, tmp_path: Path
) -> None:
    clock = SteppedClock()

    class Slow(SimulatedHost):
        def nvml_live(self) -> Maybe[tuple[NvmlLive, ...]]:
            clock.now += slow
            return super().nvml_live()

    def wait(seconds: float) -> None:
        clock.now += seconds

    out = io.StringIO()
    made = record(Slow("cloud-vm", clock=clock), str(tmp_path / "x.tar.gz"), 3, False, out, clock, wait)
    assert made.moments == moments
    assert (told in out.getvalue()) if told else ("missing" not in out.getvalue())


@pytest.mark.slow
def test_a_name_of_247_bytes_will_do(tmp_path: Path) -> None:
    name = "ж" * 120 + ".tar.gz"
    assert len(name.encode()) == 247
    recorded(tmp_path / name)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


@pytest.mark.slow
def test_the_file_is_its_owners_alone_and_nothing_else_is_left(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        recorded(tmp_path / "node.tar.gz")
    finally:
        os.umask(old)
    assert [entry.name for entry in tmp_path.iterdir()] == ["node.tar.gz"]
    assert (tmp_path / "node.tar.gz").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", usual(simulated_names(), {"hgx-h100"}))
@pytest.mark.slow
def test_every_command_prints_of_a_recording_what_it_prints_of_the_node(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SteppedClock()
    host = SimulatedHost(name, clock=clock)
    file = str(tmp_path / "node.tar.gz")
    record(SimulatedHost(name, clock=clock), file, 1, False, sys.stderr, clock, lambda _: clock_ahead(clock))
    for command in ("topo", "modules"):
        monkeypatch.setattr(f"tui.commands.{command}.open_host", lambda options: host)
    live = {}
    # Modules are read once, with the first moment; what topo judges is of the last one.
    for command, clock.now in (("modules", 1000.0), ("topo", 1001.0)):
        live |= {arguments: printed(capsys, *arguments) for arguments in ((command,), (command, "--json"))}
    monkeypatch.undo()
    capsys.readouterr()
    for arguments, text in live.items():
        again = printed(capsys, *arguments, "--replay", file)
        if "--json" in arguments:
            told, same = json.loads(text), json.loads(again)
            assert (told.pop("source"), told.pop("label")) == ("simulated", name)
            assert same.pop("source") == "recorded"
            moment = "moment 2 of 2, 2023-11-14 22:13:21 UTC"
            assert same.pop("label") == f"SIMULATED {name}, 2023-11-14 22:13 UTC, {moment}"
            del told["time"], same["time"]
            assert same == told
        else:
            assert "RECORDED SIMULATED" in again.splitlines()[0]
            assert again.splitlines()[1:] == text.splitlines()[1:]


def clock_ahead(clock: SteppedClock) -> None:
    clock.now += 1.0


@pytest.mark.slow
def test_it_refuses_to_overwrite_and_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "node.tar.gz").write_text("precious")
    done = gdrtop("record", str(tmp_path / "node.tar.gz"), "--demo", "cloud-vm")
    assert done.returncode == 3
    assert "node.tar.gz already exists" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert (tmp_path / "node.tar.gz").read_text() == "precious"


@pytest.mark.slow
def test_a_file_that_comes_up_meanwhile_is_not_overwritten_either(tmp_path: Path) -> None:
    path = tmp_path / "node.tar.gz"
    clock = SteppedClock()

    def wait(seconds: float) -> None:
        clock.now += seconds
        path.write_text("precious")

    with pytest.raises(RecordingError, match="already exists"):
        record(SimulatedHost("cloud-vm", clock=clock), str(path), 1, False, sys.stderr, clock, wait)
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_at_the_name_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "node.tar.gz").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RecordingError, match="already exists"):
        recorded(tmp_path / "node.tar.gz")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.slow
def test_a_file_system_without_hard_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.link", no_links)
    recorded(tmp_path / "node.tar.gz")
    assert [entry.name for entry in tmp_path.iterdir()] == ["node.tar.gz"]
    assert len(replayed(tmp_path / "node.tar.gz").recording.moments) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("missing/node.tar.gz", "No such file or directory"),
        ("file/node.tar.gz", "Not a directory"),
        ("", "is not a file name"),
        ("n" * 300, "File name too long"),
    ],
    ids=["no directory", "a file for a directory", "a directory", "too long"],
)
def test_a_file_that_cannot_be_written_is_one_line(file: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = gdrtop("record", f"{tmp_path}/{file}", "--demo", "cloud-vm")
    assert done.returncode == 3
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.slow
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.write", full)
    with pytest.raises(RecordingError, match="No space left on device"):
        recorded(tmp_path / "node.tar.gz")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [
        ("record",),
        ("record", "x", "--seconds", "0"),
        ("record", "x", "--seconds", "3601"),
        ("record", "x", "--seconds", "1.5"),
        ("topo", "--replay", "/no/such/file"),
        ("topo", "--replay", "/"),
        ("topo", "--replay", "README.md"),
        ("topo", "--replay", "README.md", "--demo"),
        ("topo", "--replay", "README.md", "--root", "/tmp"),
        ("topo", "--replay", "a\0b"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_status_3(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 3
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("gdrtop: ")
    assert len(told.err.splitlines()) == 1


@pytest.mark.slow
def test_a_recording_is_not_recorded_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "node.tar.gz"
    recorded(file)
    assert main(["record", str(tmp_path / "again.tar.gz"), "--replay", str(file)]) == 3
    assert "already a recording" in capsys.readouterr().err


@pytest.mark.slow
def test_it_says_what_kinds_of_identifiers_the_file_holds(tmp_path: Path) -> None:
    plain = recorded(tmp_path / "plain.tar.gz")
    assert not plain.redacted
    assert "10 GUIDs" in plain.privacy()
    assert "8 UUIDs" in plain.privacy()
    assert "--redact" in plain.privacy()
    hidden = recorded(tmp_path / "hidden.tar.gz", redact=True)
    assert "Identifiers replaced with tokens: 10 GUIDs" in hidden.privacy()


@pytest.mark.slow
def test_a_redacted_recording_says_so_wherever_it_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path / "hidden.tar.gz", redact=True)
    text = printed(capsys, "topo", "--replay", str(tmp_path / "hidden.tar.gz"))
    assert "redacted" in text.splitlines()[0]
    assert "hgx-h100" not in text


@pytest.mark.slow
def test_of_a_damaged_file_what_is_left_is_shown_and_the_loss_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "node.tar.gz"
    recorded(file, seconds=6)
    file.write_bytes(file.read_bytes()[:-1500])
    assert main(["topo", "--replay", str(file)]) == 0
    told = capsys.readouterr()
    assert "RECORDED" in told.out
    assert "damaged: only the first" in told.err


@pytest.mark.slow
def test_an_interrupt_ends_it_early_and_keeps_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clock = SteppedClock()

    def wait(seconds: float) -> None:
        if clock.now >= 1003.0:
            raise KeyboardInterrupt
        clock.now += seconds

    file = str(tmp_path / "node.tar.gz")
    told = record(SimulatedHost("cloud-vm", clock=clock), file, 60, False, sys.stderr, clock, wait)
    assert told.moments == 4
    assert "Interrupted." in capsys.readouterr().err
    host = replayed(tmp_path / "node.tar.gz")
    assert len(host.recording.moments) == 4
    assert not host.recording.damage


@pytest.mark.slow
def test_an_answer_of_no_known_kind_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SimulatedHost, "environment", lambda *_: object())
    assert main(["record", str(tmp_path / "node.tar.gz"), "--demo"]) == 3
    assert "recording failed: TypeError" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_terminal_that_goes_away_does_not_cost_the_recording(tmp_path: Path) -> None:
    class Gone(io.StringIO):
        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            raise OSError(errno.EIO, "Input/output error")

    clock = SteppedClock()

    def wait(seconds: float) -> None:
        clock.now += seconds
        if clock.now > 1002.0:
            raise KeyboardInterrupt

    file = tmp_path / "node.tar.gz"
    record(SimulatedHost("cloud-vm", clock=clock), str(file), 60, False, Gone(), clock, wait)
    assert len(replayed(file).recording.moments) == 3


@pytest.mark.slow
def test_what_was_killed_can_be_replayed_as_far_as_it_came(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tui", "record", str(tmp_path / "node.tar.gz"), "--demo", "cloud-vm"], cwd=ROOT
    )
    wait_for_a_moment(tmp_path)
    process.kill()
    process.wait()
    (left,) = tmp_path.iterdir()
    assert left.name == f".node.tar.gz.{process.pid}.part"
    assert left.stat().st_mode & 0o777 == 0o600
    assert replayed(left).recording.damage.startswith("damaged: only the first")


def wait_for_a_moment(directory: Path) -> None:
    """Until a file there holds a whole moment and the beginning of what follows it."""

    def moments(entry: Path) -> int:
        try:
            return len(read_archive(chunks_of(str(entry))).moments)
        except RecordingError:
            return 0

    deadline = time.monotonic() + 60
    while not any(moments(entry) > 1 for entry in directory.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_interrupt_before_anything_was_read_leaves_nothing(tmp_path: Path) -> None:
    class Interrupted(SimulatedHost):
        def wall_clock(self) -> float:
            raise KeyboardInterrupt

    host = Interrupted("cloud-vm")
    with pytest.raises(KeyboardInterrupt):
        record(host, str(tmp_path / "node.tar.gz"), 60, False, sys.stderr)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("number", usual([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], {signal.SIGTERM}))
def test_a_signal_ends_a_real_one_early_with_status_0(number: int, tmp_path: Path) -> None:
    file = tmp_path / "node.tar.gz"
    process = subprocess.Popen(
        [sys.executable, "-m", "tui", "record", str(file), "--seconds", "3600", "--demo", "cloud-vm"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for_a_moment(tmp_path)
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 0, told
    assert "Interrupted.\nrecorded" in told
    assert not replayed(file).recording.damage


@pytest.mark.slow
def test_a_device_that_goes_away_while_it_records_goes_away_in_the_replay(tmp_path: Path) -> None:
    clock = SteppedClock()

    class Losing(SimulatedHost):
        def names(self, path: str) -> Maybe[tuple[str, ...]]:
            names = super().names(path)
            if path != "/sys/class/infiniband" or clock.now < 1002.0 or isinstance(names, Unknown):
                return names
            return tuple(name for name in names if name != "mlx5_0")

        def read_bytes(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[bytes]:
            if clock.now >= 1002.0 and "/infiniband/mlx5_0/" in path:
                return Unknown(Reason.NOT_THERE, path)
            return super().read_bytes(path, limit)

    def wait(seconds: float) -> None:
        clock.now += seconds

    file = tmp_path / "node.tar.gz"
    record(Losing("hgx-h100", clock=clock), str(file), 4, False, sys.stderr, clock, wait)
    host = replayed(file)
    # The reading in which its counters are gone has the node probed again before the next one.
    assert [moment.probed for moment in host.recording.moments] == [True, False, False, True, False]
    there = []
    for moment in range(5):
        host.seek(moment)
        there.append("mlx5_0" in str(host.names("/sys/class/infiniband")))
    assert there == [True, True, True, False, False]
