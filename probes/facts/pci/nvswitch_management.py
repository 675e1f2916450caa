"""The ConnectX functions that manage NVSwitches of HGX B200, B300 and DGX B200, B300; they carry no data.

The baseboard's ConnectX-7 bridge shows four functions (NVIDIA Fabric Manager user guide, systems using
fourth-generation NVSwitches). Their RDMA devices have active InfiniBand ports, so they look like NICs. The
VPD tells them apart: its vendor-specific field has SMDL=SW_MNG. Most kernels let only root read it, and it is
slow, so it is read only for functions with a bridge's properties.
On a DGX B200 these are subsystem 15b3:0087 and two lanes (siderolabs/extensions, fixtures/dgxb200-lspci).
"""

from __future__ import annotations

from dataclasses import replace

from probes.base.unknown import Unknown, known
from probes.facts.pci.functions import PciFacts, PciFunction, PciKind, asleep
from probes.host.protocol import Host

MARK = b"SW_MNG"
_MELLANOX, _CONNECTX7, _BRIDGE_SUBSYSTEM = 0x15B3, 0x1021, 0x0087
_MOST_LANES = 2
_MOST_READ = 16


def with_management(host: Host, pci: PciFacts) -> PciFacts:
    """Return the same functions with the kind of those that manage NVSwitches."""
    candidates = [function for function in pci.nics if _may_be(function)] if pci.gpus else []
    evidence = {function.bdf: _evidence(host, function) for function in candidates[:_MOST_READ]}
    found = {bdf: text for bdf, text in evidence.items() if text}
    if not found:
        return pci
    functions = {
        bdf: replace(function, kind=PciKind.NVSWITCH_MANAGEMENT) if bdf in found else function
        for bdf, function in pci.functions.items()
    }
    return PciFacts(functions, pci.names, found)


def _may_be(function: PciFunction) -> bool:
    if function.vendor_id != _MELLANOX or function.physical_function is not None:
        return False
    lanes = known(function.link.max_width, 0)
    return function.subsystem_device_id == _BRIDGE_SUBSYSTEM or 0 < lanes <= _MOST_LANES


def _evidence(host: Host, function: PciFunction) -> str:
    """Return how it is known that a function manages NVSwitches; "" if it does not."""
    sleeps = asleep(host, function.bdf)
    vpd = host.read_bytes(f"{function.sysfs_path}/vpd") if sleeps is None else sleeps
    if not isinstance(vpd, Unknown):
        return "VPD has SMDL=SW_MNG" if MARK in vpd else ""
    if function.subsystem_device_id == _BRIDGE_SUBSYSTEM:
        reason = "subsystem 15b3:0087"
    elif function.device_id == _CONNECTX7 and function.link.max_width == _MOST_LANES:
        reason = "a ConnectX-7 with 2 PCIe lanes"
    else:  # hypervisors show guests other links than the card has
        return ""
    return f"assumed from {reason}, because the VPD is unknown ({vpd})"
