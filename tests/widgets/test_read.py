"""The answer to a text: what it says first."""

from __future__ import annotations

from tests.support.read_texts import read
from widgets.base.lines import plain
from widgets.read import draw

HEAD = "GPU0 GPU1 NIC0 CPU Affinity\n"
TABLE = f"{HEAD}GPU0 X NV12 PIX 0-7\nGPU1 NV12 X SYS 8-15\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12\n"
NO_PEERMEM = "root@n1:~# lsmod | grep peer\nroot@n1:~# cat /proc/driver/nvidia/version\n"


def shown(text: str, width: int = 120) -> list[str]:
    return [plain(row) for row in draw(read(text), width)]


def test_tables_begin_with_what_they_show() -> None:
    lines = shown(TABLE)
    assert lines[0] == "1 of 2 GPUs have a NIC below their PCIe switch (PIX)."
    assert lines[1].startswith("This text does not show")


def test_what_tables_show_stands_below_what_a_text_proves() -> None:
    lines = shown(f"{TABLE}{NO_PEERMEM}{CLOSED}")
    assert lines[0].startswith("✗ GPUDirect RDMA is not used (text:")
    assert "  - 1 of 2 GPUs have a NIC below their PCIe switch (PIX)." in lines


def test_without_a_sentence_the_heaviest_statement_comes_first() -> None:
    lines = shown("    device          \t   node GUID\n    ------          \t----------------\n")
    assert lines[:2] == ["Warnings", "  ▲ libibverbs finds no RDMA device (text:1)"]
    assert any(line.startswith("This text does not show") for line in lines)


def test_no_line_is_wider_than_the_terminal() -> None:
    assert max(map(len, shown(f"{TABLE}{NO_PEERMEM}{CLOSED}", 50))) <= 50
