"""The cloud that a node belongs to, from DMI."""

from __future__ import annotations

from enum import Enum

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, known, not_found
from probes.facts.system.platform import DMI
from probes.host.protocol import Host


class Provider(Enum):
    """Clouds whose GPU nodes need settings of their own."""

    AZURE = "Azure"
    AWS = "AWS"
    GOOGLE = "Google Cloud"
    ORACLE = "Oracle Cloud"


@frozen
class Cloud:
    """A cloud's node."""

    provider: Provider
    machine: str  # "p5.48xlarge"; "" where DMI does not name it


# Hyper-V on a company's own servers has the same vendor, but not this tag (cloud-init, DataSourceAzure).
AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"
ORACLE_TAG = "OracleCloud.com"  # cloud-init, DataSourceOracle


def probe(host: Host) -> Maybe[Cloud]:
    """Read three DMI attributes, which everybody can read; NOT_THERE: no known cloud."""
    names = ("sys_vendor", "product_name", "chassis_asset_tag")
    vendor, product, tag = (host.read(f"{DMI}/{name}") for name in names)
    found = cloud_of(known(vendor, ""), known(product, ""), known(tag, ""))
    # A container or a tree can hide DMI: then another reason than "not there" is more honest.
    return found or not_found((vendor, product, tag), DMI, "the DMI data shows no known cloud")


def cloud_of(vendor: str, product: str, tag: str) -> Cloud | None:
    """Return the cloud that these DMI values name; None: no known cloud."""
    vendor, product, tag = vendor.strip(), product.strip(), tag.strip()
    if tag == AZURE_TAG:
        return Cloud(Provider.AZURE, "")  # its machines are all "Virtual Machine"
    if tag == ORACLE_TAG:
        return Cloud(Provider.ORACLE, "")
    if vendor == "Amazon EC2":
        return Cloud(Provider.AWS, printable(product, 64))
    if vendor == "Google" or product == "Google Compute Engine":
        return Cloud(Provider.GOOGLE, "")
    return None
