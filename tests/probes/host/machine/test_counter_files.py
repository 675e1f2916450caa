"""Counters that are read again and again stay open, and always are those of the device with that name."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from probes.host.machine import counter_files
from probes.host.machine.counter_files import CounterFiles

PORT = "ports/1/counters/port_xmit_data"


class Devices:
    """A class directory with links to device directories, as /sys/class/infiniband."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = 0.0
        self.files = CounterFiles(lambda: self.now)
        self.opened: list[str] = []

    def add(self, device: str, name: str, count: int) -> None:
        """Add a device below devices/, and the name that leads to it."""
        file = self.root / "devices" / device / PORT
        file.parent.mkdir(parents=True)
        file.write_text(f"{count}\n")
        self.call(device, name)

    def call(self, device: str, name: str) -> None:
        """Give a device a name, which another may have had."""
        (self.root / name).unlink(missing_ok=True)
        (self.root / name).symlink_to(f"devices/{device}")

    def read(self, name: str, limit: int = 4096) -> bytes | None:
        """Read the counter of the device with that name, a second later."""
        self.now += 1.0
        return self.files.read(f"{self.root}/{name}/{PORT}", limit)


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Devices:
    pattern = counter_files._COUNTER.pattern.replace("/sys/class/infiniband", re.escape(str(tmp_path)))
    monkeypatch.setattr(counter_files, "_COUNTER", re.compile(pattern))
    devices, original = Devices(tmp_path), os.open

    def noting(path: str, flags: int, **options: int) -> int:
        devices.opened.append(path)
        return original(path, flags, **options)

    monkeypatch.setattr(counter_files.os, "open", noting)
    return devices


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_counter_is_opened_once_and_read_anew(devices: Devices) -> None:
    devices.add("a", "mlx5_0", 0)
    for number in range(5):
        (devices.root / "devices/a" / PORT).write_text(f"{number}\n")
        assert devices.read("mlx5_0") == b"%d\n" % number
    assert devices.opened.count(PORT) == 1


def test_after_a_swap_of_names_each_name_has_its_new_devices_figure_at_once(devices: Devices) -> None:
    devices.add("a", "mlx5_0", 100)
    devices.add("b", "mlx5_1", 200)
    assert (devices.read("mlx5_0"), devices.read("mlx5_1")) == (b"100\n", b"200\n")
    devices.call("a", "mlx5_1")
    devices.call("b", "mlx5_0")
    assert (devices.read("mlx5_0"), devices.read("mlx5_1")) == (b"200\n", b"100\n")


def test_a_device_that_came_back_is_read(devices: Devices) -> None:
    devices.add("a", "mlx5_0", 1)
    devices.read("mlx5_0")
    (devices.root / "devices/a").rename(devices.root / "devices/gone")
    with pytest.raises(FileNotFoundError):
        devices.read("mlx5_0")
    devices.add("a", "mlx5_0", 7)
    assert devices.read("mlx5_0") == b"7\n"


def test_the_files_of_a_device_that_is_gone_are_closed(devices: Devices) -> None:
    before = open_files()
    devices.add("a", "mlx5_0", 1)
    devices.read("mlx5_0")
    assert open_files() == before + 2
    (devices.root / "mlx5_0").unlink()
    with pytest.raises(FileNotFoundError):
        devices.read("mlx5_0")
    assert open_files() == before


def test_the_files_of_a_device_that_nobody_reads_are_closed(devices: Devices) -> None:
    devices.add("a", "mlx5_0", 1)
    devices.add("b", "mlx5_1", 1)
    before = open_files()
    devices.read("mlx5_0")
    for _ in range(130):
        devices.read("mlx5_1")
    assert open_files() == before + 2


def test_a_counter_that_the_device_refuses_is_an_error_and_closed(
    devices: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices.add("a", "mlx5_0", 1)
    devices.read("mlx5_0")
    before = open_files()

    def refused(*arguments: int) -> bytes:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(counter_files.os, "pread", refused)
    with pytest.raises(OSError, match="Invalid argument"):
        devices.read("mlx5_0")
    assert open_files() == before - 1


def test_no_more_files_stay_open_than_the_process_can_spare(
    devices: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counter_files, "_MOST_FILES", 3)
    devices.files = CounterFiles(lambda: devices.now)
    answers = []
    for number in range(5):
        devices.add(str(number), f"mlx5_{number}", number)
        answers.append(devices.read(f"mlx5_{number}"))
    assert answers == [b"0\n", b"1\n", b"2\n", None, None]


def test_only_counters_and_states_of_devices_stay_open(tmp_path: Path) -> None:
    files, gid = CounterFiles(), "/sys/class/infiniband/mlx5_0/ports/1/gids/0"
    for path in ("/proc/uptime", "/sys/kernel/mm", gid, "/dev/null"):
        assert files.read(path, 4096) is None
