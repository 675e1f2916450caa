"""`gdrtop read` as an admin uses it: files, a pipe, JSON, the exit status."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tests.support.documents import valid
from tests.support.nccl_logs import channel, info
from tui.command_line.options import OutputOptions
from tui.commands.read import write_reading

GDR = info("NCCL version 2.26.2+cuda12.2", channel())
BROKEN = "host:1:2 [0] misc/ibvwrap.cc:92 NCCL WARN Call to ibv_open_device failed\n"


def shown(path: Path, json_output: bool = False) -> tuple[int, str]:
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="\n")
    status = write_reading([str(path)], out, OutputOptions(json=json_output), io.StringIO())
    out.seek(0)
    return status, out.read()


@pytest.fixture
def ticket(tmp_path: Path) -> Path:
    return tmp_path / "ticket.txt"


def test_the_first_line_says_what_is_proven(ticket: Path) -> None:
    ticket.write_text(GDR)
    status, text = shown(ticket)
    assert status == 0
    assert text.splitlines()[0].startswith("✓ GPUDirect RDMA: 1 of 1 channel")


def test_an_error_has_a_cause_and_a_fix(ticket: Path) -> None:
    ticket.write_text(BROKEN)
    status, text = shown(ticket)
    assert status == 2
    assert "✗ NCCL cannot open the RDMA device" in text
    assert "--device=/dev/infiniband" in " ".join(text.split())


def test_nothing_known_is_status_3_and_never_fine(ticket: Path) -> None:
    ticket.write_text("hello\nworld\n")
    status, text = shown(ticket)
    assert status == 3
    assert "knows no line" in text
    assert "✓" not in text


def test_no_escape_sequence_reaches_the_terminal(ticket: Path) -> None:
    ticket.write_text("\x1b]0;title\x07 \x9b31m NCCL WARN \x1b[2J Call to ibv_open_device failed \x07\n")
    _, text = shown(ticket)
    assert not {"\x1b", "\x07", "\x9b"} & set(text)


def test_the_json_document_is_of_its_schema(ticket: Path) -> None:
    ticket.write_text(BROKEN)
    status, text = shown(ticket, json_output=True)
    document = valid("read", text)
    assert document["exit_status"] == status
    assert document["statements"][0]["id"] == "open-device"
    assert document["proven"]["path"] == "host"
