"""The CPUs of NICs' completion interrupts."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes.facts.pci.functions import DEVICES
from probes.facts.pci.interrupts import probe
from probes.host.machine.local import LocalHost
from tests.support.trees import write

BDF = "0000:1a:00.0"


@pytest.mark.parametrize(
    ("cpus", "read"),
    [
        (("9", "0", "1", "2"), ("0", "1", "2")),  # the first is for events
        (("9", *"0123456789"), tuple("012345")),
        (("9", "", "4", "\x1bx"), ("4",)),  # not in use, and no list
        ((), ()),
    ],
)
def test_the_first_completion_interrupts_are_read(
    tmp_path: Path, cpus: tuple[str, ...], read: tuple[str, ...]
) -> None:
    for number, text in enumerate(cpus, 99):
        write(tmp_path, f"{DEVICES}/{BDF}/msi_irqs/{number}", "msix\n")
        write(tmp_path, f"/proc/irq/{number}/effective_affinity_list", f"{text}\n")
    assert probe(LocalHost(str(tmp_path)), [BDF]) == {BDF: read}
