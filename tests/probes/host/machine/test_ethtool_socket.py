"""Counters of `ethtool -S`, from a kernel that fills in buffers, and from this machine."""

import ctypes
import errno
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.host.machine import ethtool_socket
from probes.host.machine.ethtool_socket import EthtoolReader, positions, values
from probes.host.machine.local import LocalHost

NAMES = (
    "rx_packets",
    "rx_prio3_pause",
    "rx_prio3_pause_duration",
    "outbound_pci_stalled_rd",
    "rx0_cache_full",
)


class FakeDriver:
    """Stands for fcntl.ioctl: an interface with counters; `error` refuses everything."""

    def __init__(self, names: tuple[str, ...] = NAMES, error: int = 0) -> None:
        self.names = names
        self.error = error
        self.commands: list[int] = []
        self.grown = 0  # counters that were added since their number was read

    def __call__(self, descriptor: int, request: int, content: bytes) -> bytes:
        assert request == 0x8946
        assert content[:16].rstrip(b"\0") == b"lo"
        address = struct.unpack_from("=Q", content, 16)[0]
        (command,) = struct.unpack("=I", ctypes.string_at(address, 4))
        self.commands.append(command)
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        count = len(self.names)
        if command == 0x37:
            answer = struct.pack("=IIQI", command, 0, 2, count)
        elif command == 0x1B:
            table = b"".join(name.encode().ljust(32, b"\0") for name in self.names)
            answer = struct.pack("=III", command, 1, count) + table
        else:
            count += self.grown
            answer = struct.pack(f"=II{count}Q", command, count, *(100 + at for at in range(count)))
        ctypes.memmove(address, answer, len(answer))
        return content


def driver(monkeypatch: pytest.MonkeyPatch, fake: FakeDriver) -> FakeDriver:
    monkeypatch.setattr(ethtool_socket.fcntl, "ioctl", fake)
    return fake


def test_only_the_counters_that_gdrtop_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, FakeDriver())
    assert LocalHost().ethtool_counters(["lo"]) == {
        "lo": {"rx_prio3_pause": 101, "rx_prio3_pause_duration": 102, "outbound_pci_stalled_rd": 103}
    }


def test_names_are_read_once_until_their_number_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = driver(monkeypatch, FakeDriver())
    reader = EthtoolReader()
    assert reader.read(["lo"]) == reader.read(["lo"])
    assert fake.commands.count(0x1B) == 1
    fake.names = ("rx1_packets", *NAMES)
    assert reader.read(["lo"]) == {
        "lo": {"rx_prio3_pause": 102, "rx_prio3_pause_duration": 103, "outbound_pci_stalled_rd": 104}
    }


def test_counters_added_between_two_calls_fit_and_are_not_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = driver(monkeypatch, FakeDriver())
    fake.grown = 5000
    found = EthtoolReader().read(["lo"])
    assert not isinstance(found, Unknown)
    assert isinstance(found["lo"], Unknown)


@pytest.mark.parametrize(
    ("fake", "reason"),
    [
        (FakeDriver(()), Reason.NOT_THERE),
        (FakeDriver(("rx_packets",)), Reason.NOT_THERE),
        (FakeDriver(error=errno.EOPNOTSUPP), Reason.NOT_THERE),
        (FakeDriver(error=errno.ENODEV), Reason.NOT_THERE),
        (FakeDriver(error=errno.EPERM), Reason.NEEDS_ROOT),
        (FakeDriver(error=errno.EIO), Reason.IO_ERROR),
    ],
)
def test_why_there_are_no_counters(fake: FakeDriver, reason: Reason, monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, fake)
    host = LocalHost()
    monkeypatch.setattr(host, "_is_root", False)
    found = host.ethtool_counters(["lo"])["lo"]
    assert isinstance(found, Unknown)
    assert found.reason is reason


@pytest.mark.parametrize("name", ["nosuch0", "..", ".", "", "a/b", "lo\0", "x" * 300, "\udcff"])
def test_the_kernel_is_not_asked_about_names_that_do_not_exist(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = driver(monkeypatch, FakeDriver())
    found = LocalHost().ethtool_counters([name])[name]
    assert isinstance(found, Unknown)
    assert found.reason is Reason.NOT_THERE
    assert not fake.commands


def test_this_machine_answers() -> None:
    names = os.listdir("/sys/class/net")
    found = LocalHost().ethtool_counters(names)
    assert set(found) == set(names)
    assert all(isinstance(counters, Unknown) or counters for counters in found.values())


def test_a_tree_has_no_counters(tmp_path: Path) -> None:
    found = LocalHost(str(tmp_path)).ethtool_counters(["lo"])["lo"]
    assert isinstance(found, Unknown)
    assert found.reason is Reason.NOT_THERE


@given(st.binary(max_size=300), st.binary(max_size=100))
def test_any_bytes_give_counters_or_none(strings: bytes, statistics: bytes) -> None:
    assert all(0 <= value < 1 << 64 for value in values(statistics, positions(strings)).values())
