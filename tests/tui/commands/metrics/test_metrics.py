"""`gdrtop metrics`: printed and as a file for node_exporter."""

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.support.command_line import recorded
from tests.support.sources import MODULES, imports, modules_after, name_of
from tui.cli import main


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait a second for the second reading of the counters."""
    monkeypatch.setattr("tui.commands.metrics.reading._SECONDS", 0.0)


@pytest.fixture
def closed_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def names(text: str) -> set[str]:
    return {family.name for family in parse_text(text)}


def test_without_options_they_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", "--demo", "--with-counters"]) == 0
    read = names(capsys.readouterr().out)
    assert {"gdrtop_verdict", "gdrtop_path_info", "gdrtop_port_data_received_bytes"} <= read


def test_another_node_has_the_same_metrics_over_a_connection(capsys: pytest.CaptureFixture[str]) -> None:
    """As in the Helm chart's container, which reads its node below /host."""
    node = "hgx-h100+port-down"
    over = f"{sys.executable} -m tests.support.stand_in host={node} {{host}}"
    found = []
    for options in (("--demo", node), ("--host", "host", "--over", over)):
        assert main(["metrics", *options]) == 0
        lines = capsys.readouterr().out.splitlines()
        found.append({line for line in lines if line.startswith(("gdrtop_verdict", "gdrtop_gpus"))})
    assert found[0] == found[1]
    assert any('source="remote"' in line for line in lines)


def test_a_broken_node_is_no_error_of_the_exporter(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", "--demo", "hgx-h100+nvidia-not-loaded"]) == 0
    assert 'gdrtop_verdict{state="broken"} 1.0\n' in capsys.readouterr().out


@pytest.mark.slow
def test_a_recorded_moment_has_its_own_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path / "node.tar.gz", seconds=1)
    capsys.readouterr()
    assert main(["metrics", "--replay", str(tmp_path / "node.tar.gz")]) == 0
    text = capsys.readouterr().out
    assert 'source="recorded"' in text
    assert 'gdrtop_unknown_values{metric="gdrtop_port_transmit_wait_ratio"} 10.0' in text


@pytest.mark.usefixtures("closed_umask")
def test_node_exporter_can_read_the_file_whatever_the_umask(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gdrtop.prom"
    file.write_text("old")
    inode = file.stat().st_ino
    assert main(["metrics", "--demo", "--textfile", str(file)]) == 0
    assert capsys.readouterr().out == ""
    assert "gdrtop_verdict" in names(file.read_text(encoding="utf-8"))
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert file.stat().st_ino != inode  # renamed, so that no reader sees half of it
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("call", ["open", "write", "replace", "fchmod"])
def test_a_file_that_cannot_be_written_leaves_the_old_one(
    call: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    file = tmp_path / "gdrtop.prom"
    file.write_text("old")
    monkeypatch.setattr(f"tui.files.new_file.os.{call}", refuse)
    status = main(["metrics", "--demo", "--textfile", str(file)])
    monkeypatch.undo()
    assert status == 3
    assert capsys.readouterr().err == f"gdrtop: {file} cannot be written: Permission denied\n"
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.slow
def test_only_regular_files_are_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "link.prom").symlink_to(tmp_path / "other")
    (tmp_path / "directory.prom").mkdir()
    for name in ("link.prom", "directory.prom"):
        assert main(["metrics", "--demo", "--textfile", str(tmp_path / name)]) == 3
        assert "is not a regular file" in capsys.readouterr().err
    assert main(["metrics", "--demo", "--textfile", str(tmp_path / "absent" / "a.prom")]) == 3
    assert "No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--textfile", "a.prom", "--listen", "9477"], "exclude each other"),
        (["--textfile", "a.txt"], "only files that end in .prom"),
        (["--interval", "60"], "--interval needs --listen"),
        (["--listen", ":9477"], "write 0.0.0.0:9477 for all addresses"),
        (["--listen", "localhost:9477"], "is not a port, ADDRESS:PORT"),
        (["--listen", "::1:9477"], "is not a port, ADDRESS:PORT"),
        (["--listen", "99999"], "is not a port, ADDRESS:PORT"),
    ],
)
def test_wrong_usage_is_status_3(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["metrics", "--demo", *arguments]) == 3
    assert error in capsys.readouterr().err


@pytest.mark.slow
def test_only_this_command_imports_prometheus_client() -> None:
    users = {
        name_of(path)
        for path in MODULES
        for module, _ in imports(path)
        if module.startswith("prometheus_client")
    }
    assert users == {"tui/commands/metrics/reading.py"}
    modules = modules_after("from tui.cli import main\nmain(['metrics', '--demo'])")
    assert "prometheus_client" in modules
    assert not modules & {"textual", "pynvml", "networkx", "tarfile", "yaml", "tui.files.new_file"}
