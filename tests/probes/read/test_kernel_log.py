"""Lines of the kernel's log: judged by the checks of the log, whatever stands around them."""

from __future__ import annotations

import pytest

from probes.messages.message import Weight
from tests.support.machines import machine_files
from tests.support.read_texts import found_in, read, serious_in

XID_79 = "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
XID_119 = "NVRM: Xid (PCI:0000:9b:00): 119, pid=1240590, name=app, Timeout after 6s of waiting for RPC"


@pytest.mark.parametrize(
    "line",
    [
        XID_79,
        f"[ 1234.567890] {XID_79}",
        f"[Sun Nov 29 02:23:43 2026] {XID_79}",
        f"Nov 29 02:23:43 node1 kernel: {XID_79}",
        f"kern  :err   : [ 1234.567890] {XID_79}",
        f"4,2341,123456789,-;{XID_79}",
        f"> {XID_79}",
    ],
)
def test_a_gpu_off_the_bus_is_found(line: str) -> None:
    statement = found_in(f"{line}\n")["xid-79-fell-off-bus"]
    assert statement.weight is Weight.CRITICAL
    assert "0000:01:00.0" in statement.cause
    assert statement.text == XID_79


def test_a_line_is_explained_once_and_named_by_its_place() -> None:
    reading = read(f"usb 1-2: New device\n{XID_119}\n{XID_119}\n")
    statements = [statement for statement in reading.statements if "119" in statement.text]
    assert [statement.id for statement in statements] == ["xid-119-gsp-timeout"]
    assert str(statements[0].place) == "text:2"
    assert reading.unread == 1


def test_lines_of_one_finding_are_not_explained_again() -> None:
    lines = [f"NVRM: Xid (PCI:0000:0{number % 8}:00): {number}, NVLink error" for number in range(144, 151)]
    statements = read("\n".join(lines) + "\n").statements
    assert [statement.id for statement in statements] == ["xid-nvlink-error"]


def test_a_symbol_of_another_version_is_missing_for_that_reason_alone() -> None:
    missing = "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -22)\n"
    version = "nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client\n"
    assert found_in(missing)["symbol-missing"].weight is Weight.CRITICAL
    both = found_in(version + missing)
    assert both["symbol-version"].weight is Weight.CRITICAL
    assert both["symbol-missing"].weight is Weight.FOLLOWS


def test_a_driver_that_started_again_ends_a_refusal() -> None:
    refused = "NVRM: nvidia_p2p_get_pages: PCI topology not supported"
    assert "p2p-topology-refused" in found_in(f"{refused}\n")


def test_other_lines_of_the_kernel_are_no_finding() -> None:
    text = (
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.65.06\nmlx5_core 0000:1a:00.0: firmware"
    )
    assert serious_in(text) == set()


@pytest.mark.parametrize("path", machine_files("dmesg", "*"), ids=lambda path: path.name)
def test_real_logs_have_each_line_explained_once(path) -> None:  # type: ignore[no-untyped-def]
    texts = [row.text for row in read(path.read_bytes()).statements if row.text and row.program == "node"]
    assert len(texts) == len(set(texts))
