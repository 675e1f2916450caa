"""`gdrtop watch`: a ring that survives, recordings around events, and a unit that systemd accepts."""

import argparse
import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from probes.live.sample import LiveSample
from probes.queries.finding import Severity
from probes.recording.archive import Recording, read_archive
from probes.recording.format import Question
from probes.recording.replay_host import ReplayHost
from probes.simulation.host import SimulatedHost
from tests.tui.commands.live_samples import ScriptedWatch, process, sample
from tests.tui.commands.test_schema import valid
from tests.tui.pilot import SteppedClock
from tests.tui.test_cli import ROOT
from tui.cli import main
from tui.commands.live import write_live
from tui.commands.watch import Output, Watcher, duration, size
from tui.files.new_file import chunks_of
from tui.runtime.black_box import Limits
from tui.runtime.replay_source import ReplaySource
from tui.runtime.ring_directory import RingDirectory, RingError

Script = Callable[..., None]
SMALL = Limits(keep_seconds=600, max_bytes=16 << 20, before_seconds=20, after_seconds=10)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Let the node have these events, by second."""

    def scripted(
        events_of: Callable[[int], Sequence[Severity]] = lambda _: (),
        sample_of: Callable[[int], LiveSample] = lambda _: sample(process(0)),
    ) -> None:
        watch = "tui.runtime.live_reader.LiveWatch"
        monkeypatch.setattr(watch, lambda _: ScriptedWatch(sample_of, events_of))

    return scripted


class Watched:
    """A simulated node that is watched under a clock that steps."""

    def __init__(
        self,
        path: Path,
        limits: Limits = SMALL,
        as_json: bool = False,
        begin: float = 1000.0,
        name: str = "cloud-vm",
    ) -> None:
        self.clock = SteppedClock()
        self.clock.now = begin
        self.out = io.StringIO()
        self.directory = RingDirectory(str(path))
        self.host = SimulatedHost(name, clock=self.clock)
        self.limits = limits
        self.watcher = Watcher(self.host, self.directory, limits, Output(self.out, as_json))

    def seconds(self, count: int) -> None:
        for _ in range(count):
            self.watcher.step()
            self.clock.now += 1.0

    def end(self) -> str:
        self.watcher.close("")
        self.directory.close()
        return self.out.getvalue()

    def kill(self) -> None:
        """End as SIGKILL does: nothing is closed but by the kernel."""
        self.directory.close()

    def start_again(self) -> None:
        """Watch the same node with a new process."""
        self.directory = RingDirectory(self.directory.path)
        self.watcher = Watcher(self.host, self.directory, self.limits, Output(self.out))


def rings(path: Path) -> list[Path]:
    return sorted(path.glob("ring-*"))


def saved(path: Path) -> list[Path]:
    return sorted(path.glob("event-*"))


def recording(path: Path) -> Recording:
    return read_archive(chunks_of(str(path)))


def test_the_ring_is_recordings_of_a_minute_that_only_the_owner_can_read(
    tmp_path: Path, script: Script
) -> None:
    script()
    watched = Watched(tmp_path / "ring")
    watched.seconds(130)
    watched.end()
    files = rings(tmp_path / "ring")
    assert [len(recording(file).moments) for file in files] == [60, 60, 10]
    assert not any(recording(file).damage for file in files)
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert (tmp_path / "ring").stat().st_mode & 0o777 in (0o700, 0o755)


@pytest.mark.slow
def test_the_ring_has_a_length_in_time(tmp_path: Path, script: Script) -> None:
    script()
    watched = Watched(tmp_path / "ring", Limits(keep_seconds=120, max_bytes=16 << 20))
    watched.seconds(250)
    watched.end()
    count = sum(len(recording(file).moments) for file in rings(tmp_path / "ring"))
    assert 120 <= count <= 240


def test_ring_and_saved_recordings_never_exceed_the_size(
    tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 300_000
    monkeypatch.setattr("tui.runtime.black_box._SLACK_BYTES", 8_000)
    script(lambda second: [Severity.CRITICAL] if second % 100 == 50 else [])
    watched = Watched(tmp_path / "ring", Limits(86400, limit, before_seconds=20, after_seconds=10))
    sizes = []
    for _ in range(30):
        watched.seconds(10)
        sizes.append(sum(file.stat().st_size for file in (tmp_path / "ring").iterdir()))
    watched.end()
    assert max(sizes) <= limit
    assert max(sizes) > limit / 3
    assert saved(tmp_path / "ring")


def test_an_event_saves_what_was_before_and_after_and_the_replay_opens_at_it(
    tmp_path: Path, script: Script
) -> None:
    script(lambda second: [Severity.CRITICAL] if second == 70 else [])
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


def test_each_moment_of_a_saved_recording_answers_as_the_node_did(tmp_path: Path, script: Script) -> None:
    script(lambda second: [Severity.CRITICAL] if second == 62 else [])
    watched = Watched(tmp_path / "ring")
    watched.seconds(90)
    watched.end()
    (file,) = saved(tmp_path / "ring")
    host = ReplayHost(recording(file))
    ring = [ReplayHost(recording(file)) for file in rings(tmp_path / "ring")]
    by_time = {head.at: (one, number) for one in ring for number, head in enumerate(one.recording.moments)}
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
    write_live(host, out, as_json=True)
    samples = [json.loads(line) for line in out.getvalue().splitlines()]
    opening = host.recording.moments[host.recording.opening].at
    shown = next(one for one in samples if one["taken_at"] == opening)
    assert "mlx5_3" in " ".join(event["text"] for event in shown["events"])
    assert [len(one["jobs"]) for one in samples] == [1] * len(samples)


def _flat(question: Question) -> tuple[str, ...]:
    return (question.kind, *question.of)


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
    freeze: Severity, event: Severity, files: int, tmp_path: Path, script: Script
) -> None:
    script(lambda second: [event] if second == 5 else [])
    watched = Watched(tmp_path / "ring", Limits(600, 16 << 20, freeze, 20, 10))
    watched.seconds(20)
    text = watched.end()
    assert len(saved(tmp_path / "ring")) == files
    assert "mlx5_3 went down" in text


@pytest.mark.slow
def test_events_that_follow_each_other_are_one_recording_of_limited_length(
    tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tui.runtime.black_box.LONGEST_SAVED_SECONDS", 100.0)
    script(lambda second: [Severity.CRITICAL] if second >= 5 else [])
    watched = Watched(tmp_path / "ring", Limits(3600, 16 << 20, before_seconds=20, after_seconds=10))
    watched.seconds(120)
    assert len(saved(tmp_path / "ring")) == 1
    watched.end()
    first, _ = saved(tmp_path / "ring")
    assert 80 <= len(recording(first).moments) <= 101


def test_an_event_just_before_the_end_is_saved_too(tmp_path: Path, script: Script) -> None:
    script(lambda second: [Severity.CRITICAL] if second == 9 else [])
    watched = Watched(tmp_path / "ring")
    watched.seconds(10)
    watched.end()
    (file,) = saved(tmp_path / "ring")
    assert len(recording(file).moments) == 10


def test_what_a_killed_process_left_is_continued(tmp_path: Path, script: Script) -> None:
    script()
    watched = Watched(tmp_path / "ring")
    watched.seconds(70)
    watched.kill()
    left = rings(tmp_path / "ring")
    left[-1].write_bytes(left[-1].read_bytes()[:-100])  # the moment that it was writing
    (tmp_path / "ring" / ".event-20260101-000000-xid.tar.gz.99.part").write_bytes(b"half")
    (tmp_path / "ring" / "ring-00000003-1700000069.tar.gz").touch()  # and an empty segment
    script(lambda second: [Severity.CRITICAL] if second == 2 else [])
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


def test_what_was_before_a_restart_of_the_node_is_not_mixed_in(tmp_path: Path, script: Script) -> None:
    script()
    before = Watched(tmp_path / "ring", begin=5000.0)
    before.seconds(15)
    before.end()
    script(lambda second: [Severity.CRITICAL] if second == 5 else [])
    after = Watched(tmp_path / "ring", begin=10.0)  # the same time of day: simulated nodes tell it so
    after.seconds(20)
    after.end()
    (file,) = saved(tmp_path / "ring")
    clocks = [moment.clock[0] for moment in recording(file).moments]
    assert clocks == sorted(clocks)
    assert max(clocks) < 5000.0


def test_a_disk_without_space_stops_the_ring_once_and_it_goes_on_when_there_is_room(
    tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    script()
    watched = Watched(tmp_path / "ring", as_json=True)
    watched.seconds(10)
    monkeypatch.setattr(RingDirectory, "free_bytes", lambda _: 1000)
    watched.seconds(60)
    stopped = sum(file.stat().st_size for file in rings(tmp_path / "ring"))
    watched.seconds(60)
    assert sum(file.stat().st_size for file in rings(tmp_path / "ring")) == stopped
    monkeypatch.undo()
    script()
    watched.seconds(30)
    lines = [valid("watch", line) for line in watched.end().splitlines()]
    assert [line["kind"] for line in lines] == [
        "watch-started", "ring-paused", "ring-resumed", "watch-ended",
    ]  # fmt: skip
    assert "almost full" in lines[1]["text"]
    last = recording(rings(tmp_path / "ring")[-1])
    assert len(last.moments) >= 20
    assert Question("file", ("/proc/sys/kernel/hostname",)) in last.answers


def test_a_write_that_fails_half_way_leaves_whole_moments(
    tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    script()
    watched = Watched(tmp_path / "ring")
    watched.seconds(10)
    write = os.write

    def full(descriptor: int, content: bytes) -> int:
        if len(content) > 10:
            return write(descriptor, bytes(content)[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tui.runtime.ring_directory.os.write", full)
    watched.seconds(25)
    monkeypatch.setattr("tui.runtime.ring_directory.os.write", write)
    watched.seconds(25)
    text = watched.end()
    assert text.count("No space left on device") == 1
    assert text.count("the ring is written again") == 1
    first, *_, last = (recording(file) for file in rings(tmp_path / "ring"))
    assert len(first.moments) == 10
    assert len(last.moments) >= 15


def test_a_reserve_of_the_disk_stays_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = RingDirectory(str(tmp_path / "ring"))

    def disk(total: int, free: int) -> int:
        result = os.statvfs_result((4096, 4096, total >> 12, free >> 12, free >> 12, 1, 1, 1, 0, 255))
        monkeypatch.setattr("tui.runtime.ring_directory.os.fstatvfs", lambda _: result)
        return directory.free_bytes()

    gib = 1 << 30
    assert disk(100 * gib, 6 * gib) == gib
    assert disk(2 * gib, gib) == gib - (500 << 20)
    assert disk(100_000 * gib, 11 * gib) == gib
    assert disk(100 * gib, 4 * gib) < 0
    directory.close()


def test_an_event_on_a_full_disk_is_not_saved_and_the_reason_is_printed(
    tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(lambda second: [Severity.CRITICAL] if second == 5 else [])
    watched = Watched(tmp_path / "ring")
    watched.seconds(6)
    monkeypatch.setattr(RingDirectory, "free_bytes", lambda _: 1000)
    watched.seconds(20)
    text = " ".join(watched.end().split())
    assert 'no recording was saved for "mlx5_3 went down": the disk is almost full' in text
    assert not saved(tmp_path / "ring")


def test_links_and_files_of_others_in_the_directory_are_left_alone(tmp_path: Path, script: Script) -> None:
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
    script(lambda second: [Severity.CRITICAL] if second == 5 else [])
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
    assert "may write" in capsys.readouterr().err
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


def test_processes_that_ended_do_not_fill_memory_and_disk(
    tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    script()
    watched = Watched(tmp_path / "ring")
    for second in range(130):
        watched.watcher._box.host.read(f"/proc/{100000 + second}/status")
        watched.seconds(1)
    watched.end()
    asked = [
        [
            question.of[0]
            for question in recording(file).answers
            if question.of[:1] and "/proc/1000" in question.of[0]
        ]
        for file in rings(tmp_path / "ring")
    ]
    assert max(map(len, asked)) <= 60


def test_an_answer_of_an_unexpected_kind_stops_the_ring_but_not_the_events(
    tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(lambda second: [Severity.NOTE])
    monkeypatch.setattr(SimulatedHost, "environment", lambda *_: object())
    watched = Watched(tmp_path / "ring")
    watched.seconds(15)
    text = watched.end()
    assert text.count("the ring cannot be written: TypeError") == 1
    assert text.count("mlx5_3 went down") == 15


@pytest.mark.parametrize("redact", [False, True])
def test_a_saved_recording_has_the_identifiers_of_gdrtop_record(
    redact: bool, tmp_path: Path, script: Script
) -> None:
    script(lambda second: [Severity.CRITICAL] if second == 5 else [])
    watched = Watched(tmp_path / "ring", Limits(600, 16 << 20, Severity.WARNING, 20, 10, redact))
    watched.seconds(20)
    text = " ".join(watched.end().split())
    assert ("Identifiers replaced" if redact else "The recording contains") in text
    (file,) = saved(tmp_path / "ring")
    assert recording(file).manifest.redacted is redact


@pytest.mark.parametrize(
    ("text", "value"), [("200M", 200 << 20), ("2G", 2 << 30), ("16MiB", 16 << 20), ("16777216", 16 << 20)]
)
def test_sizes(text: str, value: int) -> None:
    assert size(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("6h", 21600), ("30m", 1800), ("90s", 90), ("60", 60), ("2d", 172800)]
)
def test_durations(text: str, value: float) -> None:
    assert duration(text) == value


@pytest.mark.parametrize(
    ("option", "text", "told"),
    [
        ("--max-size", "lots", "is not a size like 200M or 2G"),
        ("--max-size", "1M", "is not a size from 16M to 1T"),
        ("--max-size", "-5G", "expected one argument"),
        ("--max-size", "٣G", "is not a size like"),
        ("--keep", "6 hours", "is not a time like 6h, 30m or 90s"),
        ("--keep", "1s", "is not a time from a minute to 30 days"),
        ("--keep", "99999999d", "is not a time from a minute to 30 days"),
        ("--before", "1h", "is not a time from 1s to 10m"),
        ("--freeze", "all", "invalid choice"),
    ],
)
def test_wrong_options_are_one_line_and_status_3(
    option: str, text: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", "--demo", option, text]) == 3
    error = capsys.readouterr().err
    assert told in error
    assert len(error.splitlines()) == 1


def test_a_tree_and_a_recording_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "--root", str(tmp_path)]) == 3
    assert "gdrtop watch needs a running node" in capsys.readouterr().err


def unit(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["watch", "--unit", *options]) == 0
    return capsys.readouterr().out


def test_the_unit_runs_watch_with_the_options_given(capsys: pytest.CaptureFixture[str]) -> None:
    text = unit(capsys, "--keep", "12h", "--max-size", "1G", "--freeze", "critical", "--json")
    (command,) = re.findall(r"^ExecStart=(.*)$", text, re.M)
    assert command.endswith(
        "watch --dir %S/gdrtop/watch --keep 12h --max-size 1G --freeze critical --before 2m --after 1m --json"
    )
    assert command.startswith("/")
    other = unit(capsys, "--dir", "/srv/100% of $it/ring")
    assert '--dir "/srv/100%% of $$it/ring"' in other
    assert "ReadWritePaths=" in other


def test_the_unit_takes_nothing_away_that_the_probes_need(capsys: pytest.CaptureFixture[str]) -> None:
    settings = dict(
        line.split("=", 1) for line in unit(capsys).splitlines() if "=" in line and not line.startswith("#")
    )
    needed = {"CAP_SYSLOG", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"}
    assert set(settings["CapabilityBoundingSet"].split()) == needed
    for name in (
        "PrivateDevices",
        "ProtectClock",
        "ProtectKernelLogs",
        "ProtectKernelModules",
        "PrivateNetwork",
    ):
        assert settings[name] == "no"
    assert "AF_NETLINK" in settings["RestrictAddressFamilies"]
    assert (settings["ProtectSystem"], settings["NoNewPrivileges"]) == ("strict", "yes")
    assert "MemoryMax" in settings
    assert "CPUQuota" in settings


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("directory", ["", "/srv/a b%/ring"])
def test_systemd_accepts_the_unit(directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = unit(capsys, *(["--dir", directory] if directory else []))
    text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.M)
    text = re.sub(r"^Documentation=.*\n", "", text, flags=re.M)
    (tmp_path / "gdrtop-watch.service").write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "gdrtop-watch.service")],
        capture_output=True,
        text=True,
    )
    assert "gdrtop-watch.service" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_status_0_and_a_whole_ring(number: int, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tui",
            "watch",
            "--demo",
            "cloud-vm",
            "--json",
            "--dir",
            str(tmp_path / "ring"),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    deadline = time.monotonic() + 60
    while not rings(tmp_path / "ring") or not rings(tmp_path / "ring")[0].stat().st_size:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert [first["kind"], json.loads(out.splitlines()[-1])["kind"]] == ["watch-started", "watch-ended"]
    (file,) = rings(tmp_path / "ring")
    assert not recording(file).damage


def test_options_have_their_defaults() -> None:
    from tui.commands.watch import add_options

    parser = argparse.ArgumentParser()
    add_options(parser)
    options = parser.parse_args([])
    assert (options.keep, options.max_size, options.freeze) == (21600.0, 200 << 20, "warning")
