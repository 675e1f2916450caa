"""The distribution and its package tool, from /etc/os-release (os-release(5))."""

from __future__ import annotations

from enum import Enum

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, map_known
from probes.facts.system.platform import parse_os_release_fields, read_os_release
from probes.host.protocol import Host


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


@frozen
class Distribution:
    """One line of os-release each; "" where it has none."""

    id: str  # "ubuntu"
    version: str  # "24.04", "9.4"; "" on a rolling release
    name: str  # "Ubuntu 24.04.1 LTS"
    family: Family


# os-release ID, or a word of ID_LIKE, -> family.
_FAMILIES = {
    **dict.fromkeys(("debian", "ubuntu"), Family.DEBIAN),
    **dict.fromkeys(("rhel", "rocky", "almalinux", "centos", "ol", "fedora", "amzn"), Family.RED_HAT),
    **dict.fromkeys(("sles", "suse", "opensuse"), Family.SUSE),
    **dict.fromkeys(("rhcos", "scos"), Family.COREOS),
    "talos": Family.TALOS,
    **dict.fromkeys(("cos", "bottlerocket", "flatcar"), Family.CONTAINER_OS),
    **dict.fromkeys(("azurelinux", "mariner"), Family.AZURE_LINUX),
}


def probe(host: Host) -> Maybe[Distribution]:
    """Read /etc/os-release, else /usr/lib/os-release."""
    return map_known(read_os_release(host), parse_distribution)


def parse_distribution(text: str) -> Distribution:
    """Parse an os-release(5) file; without ID the ID is "linux", as the manual page says."""
    fields = parse_os_release_fields(text)
    name = fields.get("PRETTY_NAME") or fields.get("NAME") or ""
    return Distribution(
        id=printable(fields.get("ID") or "linux", 64),
        version=printable(fields.get("VERSION_ID", ""), 64),
        name=printable(name, 128),
        family=_family(fields),
    )


def _family(fields: dict[str, str]) -> Family:
    # RHEL CoreOS 4.19 and later calls itself "rhel", Fedora CoreOS "fedora".
    if fields.get("VARIANT_ID") == "coreos":
        return Family.COREOS
    words = (fields.get("ID", ""), *fields.get("ID_LIKE", "").split()[:16])
    return next((_FAMILIES[word] for word in words if word in _FAMILIES), Family.OTHER)
