"""NICs that NCCL reaches only through a network plugin: AWS EFA and HPE Slingshot.

NCCL's own code uses ports with the link layers InfiniBand and Ethernet (src/transport/net_ib/init.cc).
EFA's is unspecified, and Slingshot has no verbs. aws-ofi-nccl serves both, through libfabric.
"""

from __future__ import annotations

from probes.base.unknown import Unknown, known
from probes.facts.gpudirect import hardware_of
from probes.facts.kernel.modules import vendor_cards
from probes.snapshot.examination import Examination

PLUGIN = "aws-ofi-nccl"
PLUGIN_ONLY = ("efa", "cxi")  # prefixes of the PCI drivers of EFA and Slingshot


def plugin_only_driver(examination: Examination) -> str:
    """Return the driver of NICs that all need a plugin, "efa" or "cxi_ss1"; "" if NCCL can use one itself."""
    drivers = [known(device.driver, "") for device in hardware_of(examination.node.rdma)]
    return drivers[0] if drivers and all(driver.startswith(PLUGIN_ONLY) for driver in drivers) else ""


def driver_with_plugin(examination: Examination) -> tuple[str, str]:
    """Return the BDF and the driver of a NIC that needs a plugin; two empty texts if none does."""
    pci = examination.node.pci
    if isinstance(pci, Unknown):
        return "", ""
    for bdf, function in pci.functions.items():
        if known(function.driver, "").startswith(PLUGIN_ONLY):
            return bdf, known(function.driver, "")
    for prefix in PLUGIN_ONLY:  # cards whose driver is not loaded
        for bdf in vendor_cards(pci, prefix):
            return bdf, prefix
    return "", ""
