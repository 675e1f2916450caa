"""Whether the device files of verbs can be opened, here and by the collector on another node."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probes.base.unknown import Reason, Unknown
from probes.host.machine import files
from probes.host.machine.local import LocalHost
from probes.host.remote import collector
from tests.support.trees import write

BOTH = pytest.mark.parametrize("can_open", [files.can_open, collector.can_open])
CanOpen = Callable[[str, str], bool]


def listed(tmp_path: Path, number: str = "1:3") -> str:
    """Return a class of devices with one named null."""
    write(tmp_path, "/null/dev", f"{number}\n")
    return str(tmp_path)


def refuse(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let the kernel refuse to open a device for writing."""
    really = os.open

    def opened(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & os.O_RDWR:
            raise OSError(number, os.strerror(number))
        return really(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", opened)


@BOTH
def test_a_device_is_opened(can_open: CanOpen, tmp_path: Path) -> None:
    assert can_open("/dev/null", listed(tmp_path)) is True


@BOTH
def test_another_device_under_the_name_of_one_is_not_opened(can_open: CanOpen, tmp_path: Path) -> None:
    """A container's user could have put a watchdog there, which opening starts."""
    with pytest.raises(OSError, match="not the device of that name"):
        can_open("/dev/null", listed(tmp_path, "231:192"))


@BOTH
@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EIO])
def test_the_mode_and_the_kernel_refuse_in_words_of_their_own(
    can_open: CanOpen, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = listed(tmp_path)
    refuse(monkeypatch, number)
    if number == errno.EACCES:
        assert can_open("/dev/null", devices) is False
        return
    with pytest.raises(OSError, match=os.strerror(number)):
        can_open("/dev/null", devices)


def test_a_device_that_the_kernel_refuses_needs_more_than_root(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: str) -> bool:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)

    monkeypatch.setattr(files, "can_open", refused)
    answer = LocalHost().access("/dev/infiniband/uverbs0", write=True)
    assert isinstance(answer, Unknown)
    assert answer.reason is Reason.NEEDS_PERMISSION
    assert "EPERM" in answer.detail


def test_a_missing_device_file_is_not_there() -> None:
    answer = LocalHost().access("/dev/infiniband/uverbs9999", write=True)
    assert isinstance(answer, Unknown)
    assert answer.reason is Reason.NOT_THERE
