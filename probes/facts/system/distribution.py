"""The distribution and its package tool, from /etc/os-release (os-release(5))."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Family(Enum):
    """Distributions that install packages and boot lines alike."""

    DEBIAN = "Debian"  # Debian, Ubuntu: apt, update-initramfs, update-grub
    RED_HAT = "Red Hat"  # RHEL, Rocky, Alma, Oracle, CentOS, Fedora, Amazon Linux: dnf, dracut, grubby
    SUSE = "SUSE"  # SLES, openSUSE: zypper, dracut, grub2-mkconfig
    COREOS = "CoreOS"  # RHCOS, Fedora CoreOS: changed by a MachineConfig, not on the node
    TALOS = "Talos"  # changed by a machine configuration only
    CONTAINER_OS = "container OS"  # COS, Bottlerocket, Flatcar: drivers come from containers
    AZURE_LINUX = "Azure Linux"  # tdnf, dracut
    OTHER = "other"


@dataclass(frozen=True)
class Distribution:
    """One line of os-release each; "" where it has none."""

    id: str  # "ubuntu"
    version: str  # "24.04", "9.4"; "" on a rolling release
    name: str  # "Ubuntu 24.04.1 LTS"
    family: Family
