"""Files that are read again and again are opened once, and always say what is there now."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from probes.host import kept_files
from probes.host.kept_files import KeptFiles, is_kept


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were opened."""
    paths: list[str] = []
    original = os.open

    def noting(path: str, flags: int) -> int:
        paths.append(str(path))
        return original(path, flags)

    monkeypatch.setattr(kept_files.os, "open", noting)
    return paths


def test_a_counter_is_opened_once_and_read_anew(tmp_path: Path, opened: list[str]) -> None:
    file, files = tmp_path / "port_xmit_data", KeptFiles()
    for number in range(5):
        file.write_text(f"{number}\n")
        assert files.read(str(file), 4096) == b"%d\n" % number
    assert len(opened) == 1


def test_a_file_is_opened_again_after_half_a_minute(tmp_path: Path, opened: list[str]) -> None:
    file, now = tmp_path / "state", [0.0]
    files = KeptFiles(lambda: now[0])
    file.write_text("old")
    files.read(str(file), 4096)
    file.unlink()
    file.write_text("new")
    now[0] = 31.0
    assert files.read(str(file), 4096) == b"new"
    assert len(opened) == 2


def test_a_device_that_came_back_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, files = tmp_path / "rate", KeptFiles()
    file.write_text("100\n")
    files.read(str(file), 4096)
    original, failures = os.pread, [1]

    def gone_once(*arguments: int) -> bytes:
        if failures:
            failures.pop()
            raise OSError(19, "No such device")
        return original(*arguments)

    monkeypatch.setattr(kept_files.os, "pread", gone_once)
    assert files.read(str(file), 4096) == b"100\n"


def test_a_file_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        KeptFiles().read(str(tmp_path / "absent"), 4096)


def test_no_more_files_stay_open_than_the_process_can_spare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_files, "_MOST_FILES", 3)
    files, before = KeptFiles(), len(os.listdir("/proc/self/fd"))
    for number in range(10):
        (tmp_path / str(number)).write_text("1")
        files.read(str(tmp_path / str(number)), 4096)
    assert len(os.listdir("/proc/self/fd")) == before + 3


def test_only_counters_and_states_of_modules_are_kept() -> None:
    port = "/sys/class/infiniband/mlx5_0/ports/1"
    kept = [f"{port}/counters/port_xmit_data", f"{port}/hw_counters/np_cnp_sent", f"{port}/state"]
    assert all(map(is_kept, [*kept, "/sys/module/nvidia/refcnt"]))
    others = ["/sys/bus/pci/devices/0000:1b:00.0/config", "/proc/1/stat", f"{port}/gids/0", "/dev/nvidia0"]
    assert not any(map(is_kept, others))
