"""`gdrtop fleet bench` between nodes behind connections, with tools that print what perftest prints."""

import shlex
import sys
from pathlib import Path

import pytest

from tests.support.process_families import ROOT
from tests.tui.commands.fleet.loopback_nodes import server_source, write_perftest
from tui.bandwidth.pairs import remote_processes
from tui.cli import main


def run(words: str, nodes: str) -> int:
    over = shlex.join([sys.executable, "-m", "tests.tui.commands.fleet.loopback_nodes", nodes, "{host}"])
    return main(["fleet", "bench", "--memory", "host", "--over", over, *shlex.split(words)])


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that the nodes trust, with a perftest."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    tools = write_perftest(tmp_path)
    source = server_source(tools)
    monkeypatch.setattr(remote_processes, "server_source", lambda: source)
    return tmp_path


@pytest.mark.slow
def test_two_nodes_are_measured_and_a_busy_and_a_dead_one_are_left_out(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = "gpu1=pcie-l40s;gpu2=pcie-l40s;gpu3=dead;busy1=pcie-l40s"
    assert run("-w gpu[1-3],busy1", nodes) == 2
    assert "not confirmed; nothing was run" in capsys.readouterr().err
    assert not (directory / "log").exists()
    status = run("-w gpu[1-3],busy1 --yes", nodes)
    text = capsys.readouterr().out
    assert "The usual NIC reaches 188 Gb/s with host memory." in text
    assert "gpu3: no such host" in text
    assert "busy1: in use: " in text
    assert status == 2  # a node was left out
    assert (directory / "log").read_text() == "started\nstarted\n"


def test_nodes_that_do_not_answer_are_listed_with_their_reason(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = run(
        "-w gpu[1-2] --over 'sh -c \"echo root: Permission denied \\(publickey\\). >&2\" {host}'", ""
    )
    assert status == 2
    printed = capsys.readouterr().err
    assert "not measured: a pair needs two nodes" in printed
    assert "gpu2" in printed
    assert "make `ssh gpu2 true` work" in " ".join(printed.split())
    assert not (directory / "log").exists()
