"""How the NVIDIA driver got onto the node: package, installer, DKMS, prebuilt modules, container."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from probes.base.unknown import Maybe, Unknown


class DriverOrigin(Enum):
    """Who installed the driver."""

    PACKAGE = "package"  # apt, dnf, zypper
    RUN_FILE = ".run installer"
    CONTAINER = "driver container"  # GPU Operator: /run/nvidia/driver


@dataclass(frozen=True)
class DriverPackage:
    """The installed driver, loaded or not."""

    version: Maybe[str]  # "580.95.05"
    is_open: Maybe[bool]  # open kernel modules
    origin: Maybe[DriverOrigin]
    package: Maybe[str]  # package that owns the module file or nvidia-smi; NOT_THERE: none
    by_dkms: Maybe[bool]  # built on the node by DKMS
    prebuilt: Maybe[bool]  # compiled by the distributor for its own kernel: its peermem knows no OFED


def module_flavor(is_open: Maybe[bool]) -> str:
    """Return "open modules", "proprietary modules", or that it is unknown."""
    if isinstance(is_open, Unknown):
        return "modules of unknown type"
    return "open modules" if is_open else "proprietary modules"
