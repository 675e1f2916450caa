"""The kernel log as it grows."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.host.machine import kernel_log_reader
from probes.host.machine.kernel_log_reader import KernelLogReader, parse_record
from probes.host.machine.local import LocalHost
from probes.host.protocol import MAX_MESSAGES, MESSAGE_CHARACTERS, KernelMessage

XID = b"4,1339,5140900000,-;NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.\n SUBSYSTEM=pci\n"


class FakeLog:
    """Stands for /dev/kmsg: each read returns a record or raises an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *records: bytes | OSError) -> None:
        self.records = list(records)
        monkeypatch.setattr(kernel_log_reader.os, "read", self.read)

    def read(self, descriptor: int, size: int) -> bytes:
        if not self.records:
            raise BlockingIOError(errno.EAGAIN, "no message yet")
        record = self.records.pop(0)
        if isinstance(record, OSError):
            raise record
        return record


@pytest.fixture
def reader(tmp_path: Path) -> KernelLogReader:
    path = tmp_path / "kmsg"
    path.write_bytes(XID)
    reader = KernelLogReader(str(path))
    assert reader.read() == ()  # what is in the log already is not new
    return reader


def test_a_message_is_returned_once(reader: KernelLogReader, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeLog(monkeypatch, XID)
    text = "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus."
    assert reader.read() == (KernelMessage(1339, 5140.9, 4, text),)
    assert reader.read() == ()


def test_overwritten_messages_do_not_end_the_log(
    reader: KernelLogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeLog(monkeypatch, OSError(errno.EPIPE, "overwritten"), XID, b"no record", XID)
    assert len(reader.read()) == 2


def test_a_flood_is_returned_in_parts(reader: KernelLogReader, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeLog(monkeypatch, *([XID] * (MAX_MESSAGES + 7)))
    assert [len(reader.read()) for _ in range(3)] == [MAX_MESSAGES, 7, 0]


def test_an_error_starts_again(reader: KernelLogReader, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeLog(monkeypatch, OSError(errno.EIO, "broken"), XID)
    with pytest.raises(OSError, match="broken"):
        reader.read()
    assert reader.read() == ()  # the new start
    assert len(reader.read()) == 1


@pytest.mark.parametrize(
    ("number", "reason"),
    [(errno.EPERM, Reason.NEEDS_ROOT), (errno.EACCES, Reason.NEEDS_ROOT), (errno.ENOENT, Reason.NOT_THERE)],
)
def test_why_there_is_no_log(number: int, reason: Reason, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    host = LocalHost()
    monkeypatch.setattr(host, "_is_root", False)
    monkeypatch.setattr(kernel_log_reader.os, "open", refuse)
    found = host.kernel_messages()
    assert isinstance(found, Unknown)
    assert found.reason is reason


def test_a_tree_has_no_growing_log(tmp_path: Path) -> None:
    found = LocalHost(str(tmp_path)).kernel_messages()
    assert isinstance(found, Unknown)
    assert found.reason is Reason.NOT_RECORDED


def test_escaped_characters_and_long_texts() -> None:
    message = parse_record(rb"14,5,7,-;gr\xc3\xbc\xc3\x9fe \x1b[31m " + b"x" * 2000)
    assert message is not None
    assert message.priority == 6
    assert message.text.startswith("grüße \N{REPLACEMENT CHARACTER}[31m x")
    assert len(message.text) == MESSAGE_CHARACTERS


@given(st.one_of(st.binary(max_size=200), st.binary(max_size=80).map(lambda text: b"6,1,2,-;" + text)))
def test_any_bytes_are_a_message_or_none(record: bytes) -> None:
    message = parse_record(record)
    assert message is None or (message.text.isprintable() and 0 <= message.priority < 8)
