"""Checks of area pcie: what stands between a GPU and a NIC on the bus."""

from __future__ import annotations

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
from probes.checks.finding import Area

AREA = Area("pcie")
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
    AREA.checks.extend(_subject.AREA.checks)
