"""Checks of area pcie: what stands between a GPU and a NIC on the bus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from probes.base.unknown import Reason, Unknown
from probes.checks.pcie import acs, acs_direct_nic, iommu, placement
from probes.checks.pcie import device_control as pcie_settings
from probes.checks.pcie import errors as pcie_health
from probes.checks.pcie import links as pcie_links
from probes.checks.pcie import read_requests as pcie_requests
from probes.queries.finding import Area, Outcome
from probes.queries.pcie_paths import unread
from probes.snapshot.examination import Examination

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
