"""Kernel messages are evidence of the finding about their device or module, and of no other."""

from __future__ import annotations

import pytest

from probes.queries.finding import Status
from tests.support.changed_facts import said, with_log
from tests.support.doctor import examination_of

LOCKDOWN = "Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7"


@pytest.mark.parametrize(
    ("fault", "check", "line"),
    [
        ("kernel-forbids-modules-lockdown", "kernel-forbids-modules-lockdown", LOCKDOWN),
        (
            "module-wrong-vermagic",
            "module-wrong-vermagic",
            "nvidia_peermem: version magic '6.8.0-40 SMP' should be '6.8.0-45 SMP'",
        ),
        (
            "pcie-link-degraded-width",
            "pcie-link-degraded-width",
            "mlx5_core 0000:3c:00.0: 252.048 Gb/s available PCIe bandwidth, limited by 32.0 GT/s PCIe x8 "
            "link at 0000:38:00.0 (capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)",
        ),
    ],
)
def test_a_message_about_the_same_thing_is_quoted(fault: str, check: str, line: str) -> None:
    finding = said(check, with_log(examination_of(f"hgx-h100+{fault}"), line))
    assert finding.status is Status.FOUND
    assert line in [part.value for part in finding.evidence]


def test_a_message_about_another_device_is_not_quoted() -> None:
    line = "mlx5_core 0000:1a:00.0: 252.048 Gb/s available PCIe bandwidth, limited by 32.0 GT/s PCIe x8 link"
    node = examination_of("hgx-h100+pcie-link-degraded-width")
    finding = said("pcie-link-degraded-width", with_log(node, line))
    assert line not in [part.value for part in finding.evidence]
