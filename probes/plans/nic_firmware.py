"""Settings in the firmware of NVIDIA NICs, which only mlxconfig of MFT shows: manual steps, never a finding.

Sources: NVIDIA MFT manual, mlxconfig; NVIDIA Network Operator, NIC Configuration Operator, Configuration
Details, https://docs.nvidia.com/networking/display/kubernetes2670/nic-conf-operator/configuration-details.html;
NVIDIA AI Enterprise, Optimizing VM Configuration for AI Inference, ATS and ACS configuration.
"""

from __future__ import annotations

from collections.abc import Iterable

from probes.base.plan import Step, instruction
from probes.queries.pcie_paths import functions_of
from probes.snapshot.examination import Examination

_MELLANOX = 0x15B3


def look_at_ordering(examination: Examination, bdfs: Iterable[str]) -> tuple[Step, ...]:
    """Look at PCI_WR_ORDERING."""
    expected = (
        "per_mkey(0) relaxes the writes of programs that ask for it, as NCCL does; force_relax(1) relaxes all"
    )
    return _look(examination, bdfs, ("PCI_WR_ORDERING",), expected)


def look_at_reads(examination: Examination, bdfs: Iterable[str]) -> tuple[Step, ...]:
    """Look at MAX_ACC_OUT_READ, which the firmware shows only with ADVANCED_PCI_SETTINGS."""
    expected = (
        "MAX_ACC_OUT_READ 0 lets the firmware choose how many reads are in flight. A low number limits "
        "reads. It shows only if ADVANCED_PCI_SETTINGS is True(1)"
    )
    return _look(examination, bdfs, ("ADVANCED_PCI_SETTINGS", "MAX_ACC_OUT_READ"), expected)


def look_at_congestion_control(examination: Examination, bdfs: Iterable[str]) -> tuple[Step, ...]:
    """Look at the priorities for which the firmware has congestion control at boot."""
    expected = "255 means congestion control for all priorities, 0 for none. A reset restores this value"
    return _look(examination, bdfs, ("ROCE_CC_PRIO_MASK_P1",), expected)


def _look(
    examination: Examination, bdfs: Iterable[str], parameters: tuple[str, ...], expected: str
) -> tuple[Step, ...]:
    """Return the step for the first NIC of NVIDIA among these; () if there is none."""
    functions = functions_of(examination)
    cards = [bdf for bdf in bdfs if bdf in functions and functions[bdf].vendor_id == _MELLANOX]
    if not cards:
        return ()
    command = f"mlxconfig -d {cards[0]} q {' '.join(parameters)}"
    others = " (the same for the other NICs)" if len(cards) > 1 else ""
    return (instruction(f"Look at the firmware settings: `{command}`{others}. {expected}."),)
