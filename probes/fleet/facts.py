"""The facts that should be the same on all nodes of a type, and how relevant a difference is."""

from __future__ import annotations

from enum import Enum

from probes.base.frozen import frozen


class Place(Enum):
    """What a fact is about."""

    NODE = "node"  # one value
    NAME = "name"  # one value a name, such as a module or a setting
    GPU = "GPU"  # one value a GPU
    NIC = "NIC"  # one value a NIC, or a port of one


@frozen
class Fact:
    """One fact; its place in FACTS is its relevance."""

    id: str
    label: str
    place: Place = Place.NODE
    absent: str = ""  # the value of a node without this device or name; "": such a node is not compared
    unit: str = ""  # of a figure that was measured; "": a text that is equal or not


FACTS = (
    # What decides the path
    Fact("gpu", "GPU", Place.GPU, absent="missing"),
    Fact("nic", "NIC", Place.NIC, absent="missing"),
    Fact("driver", "NVIDIA driver"),
    Fact("module", "module", Place.NAME),
    Fact("kernel", "kernel"),
    Fact("acs", "ACS redirect"),
    Fact("iommu", "IOMMU"),
    Fact("cmdline", "kernel option", Place.NAME, absent="not set"),
    Fact("port-state", "port state", Place.NIC),
    # What decides the bandwidth
    Fact("port-rate", "port rate", Place.NIC),
    Fact("link-layer", "link layer", Place.NIC),
    Fact("pcie-gpu", "PCIe link", Place.GPU),
    Fact("pcie-nic", "PCIe link", Place.NIC),
    Fact("mtu", "MTU", Place.NIC),
    Fact("gid", "GID index for RoCE v2", Place.NIC),
    Fact("read-request", "PCIe read request size", Place.NIC),
    Fact("bar1", "BAR1", Place.GPU),
    Fact("nvlinks", "NVLinks", Place.GPU),
    Fact("fabric", "NVLink fabric", Place.GPU),
    Fact("clique", "NVLink clique", Place.NAME),
    Fact("imex-nodes", "IMEX node list", Place.NAME),
    Fact("nccl", "nccl.conf", Place.NAME, absent="not set"),
    Fact("memlock", "memlock limit", Place.NAME, absent="not set"),
    Fact("pfc", "PFC priorities", Place.NIC),
    Fact("trust", "QoS trust", Place.NIC),
    Fact("bandwidth", "measured bandwidth", Place.NAME, unit="Gb/s"),
    # Versions and settings
    Fact("firmware", "NIC firmware", Place.NIC),
    Fact("nic-driver", "NIC driver"),
    Fact("ofed", "OFED"),
    Fact("parameter", "module parameter", Place.NAME),
    Fact("service", "service", Place.NAME),
    Fact("fabric-manager", "Fabric Manager"),
    Fact("persistence", "persistence mode", Place.GPU),
    Fact("mig", "MIG mode", Place.GPU),
    Fact("cuda", "CUDA version of the driver"),
    Fact("nccl-library", "NCCL"),
    Fact("gdrcopy", "GDRCopy"),
    Fact("perftest", "perftest"),
    Fact("bios", "BIOS"),
    Fact("distribution", "distribution"),
    Fact("machine", "machine"),
    Fact("environment", "environment"),
    Fact("secure-boot", "Secure Boot"),
    Fact("lockdown", "kernel lockdown"),
)
_BY_ID = {fact.id: fact for fact in FACTS}
_RANKS = {fact.id: rank for rank, fact in enumerate(FACTS)}


def fact_of(name: str) -> Fact:
    """Return the fact with this id; one of a newer gdrtop is a fact about names without further meaning."""
    return _BY_ID.get(name) or Fact(name, name, Place.NAME)


def rank_of(name: str) -> int:
    """Return how relevant a difference in this fact is; 0 is the most relevant."""
    return _RANKS.get(name, len(_RANKS))
