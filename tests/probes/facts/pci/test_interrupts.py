"""The CPUs of NICs' completion interrupts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from probes.facts.pci.functions import DEVICES, PciFunction
from probes.facts.pci.interrupts import InterruptFacts, NicInterrupts, probe
from probes.host.machine.local import LocalHost
from tests.support.doctor import examination_of
from tests.support.trees import write

BDF = "0000:1a:00.0"


def nic() -> PciFunction:
    pci = examination_of("hgx-h100").node.pci
    functions: dict[str, PciFunction] = pci.functions  # type: ignore[union-attr]
    return replace(functions[BDF], numa_node=0)


@pytest.mark.parametrize(
    ("cpus", "read"),
    [
        (("9", "0", "1", "2"), ("0", "1")),  # the first is for events; two near CPUs are spread
        (("9", "4", "4", "4"), ("4", "4", "4")),
        (("9", "60", "61", "62"), ("60", "61", "62")),
        (("9", "", "4", "\x1bx"), ("4",)),  # not in use, and no list
        ((), ()),
    ],
)
def test_interrupts_are_read_until_they_are_spread(
    tmp_path: Path, cpus: tuple[str, ...], read: tuple[str, ...]
) -> None:
    (tmp_path / f"{DEVICES}/{BDF}/msi_irqs".lstrip("/")).mkdir(parents=True)
    for number, text in enumerate(cpus, 99):
        write(tmp_path, f"{DEVICES}/{BDF}/msi_irqs/{number}", "msix\n")
        write(tmp_path, f"/proc/irq/{number}/effective_affinity_list", f"{text}\n")
    found = probe(LocalHost(str(tmp_path)), [nic()], {0: "0-55", 1: "56-111"})
    assert found == InterruptFacts((NicInterrupts(BDF, read),))


def test_a_nic_without_interrupts_of_its_own_is_left_out(tmp_path: Path) -> None:
    assert probe(LocalHost(str(tmp_path)), [nic()], {}) == InterruptFacts(())
