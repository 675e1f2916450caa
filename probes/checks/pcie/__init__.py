"""Checks of PCIe: links, ACS, IOMMU, placement."""
