"""Xids: what the latest Xid 154 of a GPU asks for, and Xids of memory."""

from __future__ import annotations

import pytest

from probes.queries.finding import Status
from probes.queries.kernel_log import MEMORY, explanation_of, meaning_of
from tests.support.changed_facts import said, with_log
from tests.support.doctor import examination_of

HGX = examination_of("hgx-h100")
ACTION = "NVRM: Xid (PCI:0000:{bus}:00): 154, GPU recovery action changed from 0x0 (None) to {action}"


def _log(*actions: tuple[str, str]) -> list[str]:
    return [ACTION.format(bus=bus, action=action) for bus, action in actions]


@pytest.mark.parametrize(
    ("action", "advice"),
    [
        ("0x1 (GPU Reset Required)", "nvidia-smi --gpu-reset"),
        ("0x2 (Node Reboot Required)", "reboot"),
        ("0x2 (OS Reboot)", "reboot"),
        ("0x3 (Drain P2P)", "Stop jobs on other GPUs"),
        ("0x5 (Recover IMEX Domain)", "nvidia-imex"),
        ("0x63 (Something new)", "Xid catalog"),
    ],
)
def test_the_fix_is_the_action_that_the_driver_asks_for(action: str, advice: str) -> None:
    finding = said("gpu-recovery-action", with_log(HGX, *_log(("18", action))))
    assert finding.status is Status.FOUND
    assert finding.devices == ("0000:18:00.0",)
    assert finding.fix is not None
    assert advice in " ".join(step.why for step in finding.fix.steps)
    assert action.partition("(")[2].rstrip(")") in finding.cause


def test_a_gpu_that_has_recovered_is_not_reported() -> None:
    log = _log(("18", "0x1 (GPU Reset Required)"), ("19", "0x2 (OS Reboot)"), ("18", "0x0 (None)"))
    assert said("gpu-recovery-action", with_log(HGX, *log)).devices == ("0000:19:00.0",)
    recovered = with_log(HGX, *_log(("18", "0x1 (GPU Reset Required)"), ("18", "0x0 (None)")))
    assert said("gpu-recovery-action", recovered).status is Status.PASSED
    assert said("xid-other", recovered).status is Status.PASSED


def test_an_unrecovered_ecc_error_is_a_memory_error() -> None:
    line = "NVRM: Xid (PCI:0000:18:00): 140, pid=1, An uncorrectable ECC error detected"
    assert said("xid-memory-error", with_log(HGX, line)).status is Status.FOUND


@pytest.mark.parametrize(("number", "words"), [(159, "CHI"), (163, "power smoothing"), (168, "less memory")])
def test_a_new_xid_is_named(number: int, words: str) -> None:
    line = f"NVRM: Xid (PCI:0000:18:00): {number}, pid=1, something"
    finding = said("xid-other", with_log(HGX, line))
    assert finding.status is Status.FOUND
    assert words in finding.cause


# open-gpu-kernel-modules 595.45.04, src/common/sdk/nvidia/inc/nverror.h
NVERROR = """
NVLINK_SW_DEFINED_ERROR 155, RESOURCE_RETIREMENT_EVENT 156, RESOURCE_RETIREMENT_FAILURE 157,
GPU_FATAL_TIMEOUT 158, ROBUST_CHANNEL_CHI_NON_DATA_ERROR 159, CHANNEL_RETIREMENT_EVENT 160,
CHANNEL_RETIREMENT_FAILURE 161, ISINK_REENGAGED 162, ISINK_DISENGAGED 163, ISINK_LOW_LIFETIME 164,
ISINK_ZERO_LIFETIME 165, NVLINK_SECURE_NVLE_ERROR 166, PCIE_FATAL_TIMEOUT 167,
REDUCED_GPU_MEMORY_CAPACITY 168, SEC2_HALT_ERROR 169, NVLINK_SECURE_ERROR 170,
UNCORRECTABLE_DRAM_ERROR 171, UNCORRECTABLE_SRAM_ERROR 172, C2C_FATAL_LINK_FAILURE 173,
ROBUST_CHANNEL_RESETCHANNEL_KILL_PROCESS_SILENT 174, MEMORY_SUBSYSTEM_ERROR 175,
PCIE_CORRECTABLE_ERROR_FAULT 176
"""


def test_every_new_xid_of_the_driver_has_a_meaning() -> None:
    numbers = [int(row.split()[1]) for row in NVERROR.split(",")]
    assert numbers == list(range(155, 177))
    lines = {number: f"NVRM: Xid (PCI:0000:18:00): {number}, pid=1, something" for number in numbers}
    assert not [number for number, line in lines.items() if not explanation_of(meaning_of(line))]
    assert {171, 172} < set(MEMORY)
