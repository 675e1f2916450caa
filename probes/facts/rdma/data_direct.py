"""Data Direct: the second PCI function by which a ConnectX-8 reads and writes GPU memory on Grace.

It is below the GPU's own PCIe switch, while the NIC is attached to the CPU. Linux 6.12 and rdma-core 54
brought it (drivers/infiniband/hw/mlx5/data_direct.c; mlx5dv_get_data_direct_sysfs_path(3)). The kernel pairs
a NIC with its function by an ID that only root can read (the VPD), so libmlx5 is asked, as NCCL does since
2.27.3 (src/transport/net_ib/init.cc).
"""

from __future__ import annotations

import re
from dataclasses import field

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.pci.functions import PciFacts, PciKind
from probes.facts.rdma.devices import RdmaFacts
from probes.host.protocol import Host

DATA_DIRECT_FUNCTION = "mlx5dv_get_data_direct_sysfs_path"
_PATH = re.compile(r"/devices/\S{0,800}/([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")


@frozen
class DataDirectFacts:
    """The DMA functions on the bus, and the one that belongs to each RDMA device."""

    functions: tuple[str, ...]  # BDFs
    of_devices: dict[str, Maybe[str | None]] = field(default_factory=dict)  # None: it has none


def probe(host: Host, pci: Maybe[PciFacts], rdma: Maybe[RdmaFacts]) -> Maybe[DataDirectFacts]:
    """Ask about each RDMA device of mlx5_ib if there are DMA functions here; else no library is loaded."""
    if isinstance(pci, Unknown):
        return pci
    functions = tuple(row.bdf for row in pci.functions.values() if row.kind is PciKind.DMA)
    devices = () if isinstance(rdma, Unknown) else rdma.devices
    asked = {
        row.name: row.sysfs_path.rpartition("/")[2]
        for row in devices
        if not isinstance(row.bdf, Unknown) and known(row.driver, "mlx5_core") == "mlx5_core"
    }
    if not functions or not asked:
        return DataDirectFacts(functions)
    paths = host.data_direct_paths(tuple(asked.values()))
    found = {name: function_of(paths[key], functions) for name, key in asked.items()}
    return DataDirectFacts(functions, found)


def function_of(path: Maybe[str], functions: tuple[str, ...]) -> Maybe[str | None]:
    """Return the BDF at the end of a path below /sys; None: it is empty; MALFORMED: not on this bus."""
    if isinstance(path, Unknown) or not path:
        return path if isinstance(path, Unknown) else None
    match = _PATH.fullmatch(path)
    if match is None or match[1] not in functions:
        return Unknown(Reason.MALFORMED, DATA_DIRECT_FUNCTION, printable(path, 120))
    return match[1]


def functions_of_nics(rdma: Maybe[RdmaFacts], data_direct: Maybe[DataDirectFacts]) -> dict[str, str]:
    """Return the RDMA device of each function by which a NIC reaches memory: its own, or Data Direct's.

    "": the function is a NIC's, and the name of its RDMA device is unknown.
    """
    found: dict[str, str] = {}
    if not isinstance(data_direct, Unknown):
        found |= dict.fromkeys(data_direct.functions, "")
        found |= {known(bdf, None) or "": name for name, bdf in data_direct.of_devices.items()}
    if not isinstance(rdma, Unknown):
        found |= dict.fromkeys(rdma.devices_elsewhere, "")
        found |= rdma.names_elsewhere
        found |= {known(device.bdf, ""): device.name for device in rdma.devices}
    found.pop("", None)
    return found
