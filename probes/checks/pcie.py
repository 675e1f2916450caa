"""Checks of area pcie: what stands between a GPU and a NIC on the bus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from probes.checks import (
    acs,
    acs_direct_nic,
    iommu,
    pcie_health,
    pcie_links,
    pcie_requests,
    pcie_settings,
    placement,
)
from probes.checks.finding import Area, Outcome
from probes.checks.pcie_paths import unread
from probes.examination import Examination
from probes.unknown import Reason, Unknown

AREA = Area("pcie")

_NEED_NO_DEVICES = ("acs-option-ignored",)


def _knowing_devices(judge: Callable[[Examination], Outcome]) -> Callable[[Examination], Outcome]:
    """The check, made only where it is known which devices there are: else none would seem to be there."""

    def ask(examination: Examination) -> Outcome:
        node = examination.node
        if isinstance(node.pci, Unknown):
            return unread([node.pci])
        unlisted = isinstance(node.rdma, Unknown) and node.rdma.reason is not Reason.NOT_THERE
        if isinstance(node.rdma, Unknown) and unlisted and not examination.topology.nics:
            return unread([node.rdma])
        return judge(examination)

    return ask


for _subject in (
    pcie_health,
    acs,
    acs_direct_nic,
    iommu,
    placement,
    pcie_links,
    pcie_settings,
    pcie_requests,
):
    AREA.checks.extend(
        check if check.id in _NEED_NO_DEVICES else replace(check, judge=_knowing_devices(check.judge))
        for check in _subject.AREA.checks
    )
