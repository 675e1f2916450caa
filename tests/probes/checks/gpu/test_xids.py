"""Xids: what the latest Xid 154 of a GPU asks for, and Xids of memory."""

from __future__ import annotations

import pytest

from probes.queries.finding import Status
from tests.probes.checks.changed import said, with_log
from tests.probes.checks.doctor import examination_of

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
