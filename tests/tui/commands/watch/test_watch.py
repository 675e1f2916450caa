"""`gdrtop watch`: options, refusals and signals."""

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.command_line import ROOT
from tests.support.watched_node import recording, rings
from tui.cli import main
from tui.command_line.arguments import duration
from tui.commands.watch.watch import size


@pytest.mark.parametrize(
    ("text", "value"), [("200M", 200 << 20), ("2G", 2 << 30), ("16MiB", 16 << 20), ("16777216", 16 << 20)]
)
def test_sizes(text: str, value: int) -> None:
    assert size(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("6h", 21600), ("30m", 1800), ("90s", 90), ("60", 60), ("2d", 172800)]
)
def test_durations(text: str, value: float) -> None:
    assert duration(60, 30 * 86400)(text) == value


@pytest.mark.parametrize(
    ("option", "text", "told"),
    [
        ("--max-size", "lots", "is not a size like 200M or 2G"),
        ("--max-size", "1M", "is not a size from 16M to 1T"),
        ("--max-size", "-5G", "expected one argument"),
        ("--max-size", "٣G", "is not a size like"),
        ("--keep", "6 hours", "is not a time such as 90, 90s, 5m or 6h"),
        ("--keep", "1s", "is not a time from 1m to 30d"),
        ("--keep", "99999999d", "is not a time from 1m to 30d"),
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


@pytest.mark.slow
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
    from tui.commands.watch.watch import add_options

    parser = argparse.ArgumentParser()
    add_options(parser)
    options = parser.parse_args([])
    assert (options.keep, options.max_size, options.freeze) == (21600.0, 200 << 20, "warning")
