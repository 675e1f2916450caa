"""Which boot loader starts the node, and so where its kernel command line is set.

systemd-boot and systemd-stub leave EFI variables (systemd.io/BOOT_LOADER_INTERFACE); GRUB and OSTree leave
files. Talos and CoreOS are known by their os-release.
"""

from __future__ import annotations

import re
from enum import Enum

from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.system.distribution import Distribution, Family
from probes.host.protocol import Host


class BootLoader(Enum):
    """Where the kernel's command line is set."""

    GRUB = "GRUB"  # /etc/default/grub, update-grub or grub2-mkconfig
    GRUB_BLS = "GRUB with boot loader entries"  # grubby
    SYSTEMD_BOOT = "systemd-boot"  # /etc/kernel/cmdline, kernel-install
    UKI = "unified kernel image"
    OSTREE = "ostree"  # rpm-ostree kargs, bootc kargs.d
    MACHINE_CONFIG = "MachineConfig"  # OpenShift: spec.kernelArguments
    TALOS = "Talos"


ENTRIES = "/boot/loader/entries"
GRUB_SETTINGS = "/etc/default/grub"
GRUB_DIRECTORIES = ("/boot/grub", "/boot/grub2")
_VARIABLES = "/sys/firmware/efi/efivars"
VENDOR = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
_STUB = f"{_VARIABLES}/StubInfo-{VENDOR}"
_LOADER = f"{_VARIABLES}/LoaderInfo-{VENDOR}"
_OSTREE = "/run/ostree-booted"
_MACHINE_CONFIG = "/etc/machine-config-daemon"
_MAX_FILES = 32
_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?(GRUB_[A-Z_]{1,40})=(.{0,4096})")


def loader_of(host: Host, distribution: Maybe[Distribution]) -> Maybe[BootLoader]:
    """Return the boot loader; NOT_THERE: no trace of a known one, as in a container."""
    family = None if isinstance(distribution, Unknown) else distribution.family
    if family is Family.TALOS:
        return BootLoader.TALOS
    if family is Family.COREOS and not isinstance(host.names(_MACHINE_CONFIG), Unknown):
        return BootLoader.MACHINE_CONFIG
    if not isinstance(host.size(_OSTREE), Unknown):
        return BootLoader.OSTREE
    if not isinstance(host.size(_STUB), Unknown):
        return BootLoader.UKI
    if (efi_text(host, _LOADER) or "").startswith("systemd-boot"):
        return BootLoader.SYSTEMD_BOOT
    return _by_files(host)


def _by_files(host: Host) -> Maybe[BootLoader]:
    entries = host.names(ENTRIES)
    if not isinstance(host.size(GRUB_SETTINGS), Unknown):
        has_entries = not (isinstance(entries, Unknown) and entries.reason is Reason.NOT_THERE)
        uses_them = grub_settings(host).get("GRUB_ENABLE_BLSCFG") == "true"
        return BootLoader.GRUB_BLS if has_entries and uses_them else BootLoader.GRUB
    if any(not isinstance(host.size(f"{directory}/grub.cfg"), Unknown) for directory in GRUB_DIRECTORIES):
        return BootLoader.GRUB
    if not isinstance(entries, Unknown) and entries:
        return BootLoader.SYSTEMD_BOOT
    if isinstance(entries, Unknown) and entries.reason is not Reason.NOT_THERE:
        return entries
    return Unknown(Reason.NOT_THERE, GRUB_SETTINGS, "no known boot loader")


def efi_text(host: Host, path: str) -> str | None:
    """Return the text of an EFI variable: four bytes of attributes, then UTF-16 with a NUL at its end."""
    content = host.read_bytes(path)
    return None if isinstance(content, Unknown) else parse_efi_text(content)


def parse_efi_text(content: bytes) -> str:
    """Parse the text of an EFI variable's content; damaged text has replacement characters."""
    return content[4:4096].decode("utf-16-le", errors="replace").rstrip("\0")


def grub_settings(host: Host) -> dict[str, str]:
    """Return the settings of /etc/default/grub and then of grub.d, which override it."""
    return {
        key: value
        for path in grub_setting_files(host)
        for key, value in parse_grub_settings(known(host.read(path), "")).items()
    }


def grub_setting_files(host: Host) -> tuple[str, ...]:
    """Return the files of GRUB's settings in the order in which they are read."""
    below = [name for name in known(host.names(f"{GRUB_SETTINGS}.d"), ()) if name.endswith(".cfg")]
    return (GRUB_SETTINGS, *(f"{GRUB_SETTINGS}.d/{name}" for name in below[:_MAX_FILES]))


def parse_grub_settings(text: str) -> dict[str, str]:
    """Parse lines GRUB_NAME=VALUE of a shell file; values that a shell would compute are left out."""
    found = {}
    for line in text.split("\n"):
        match = _ASSIGNMENT.fullmatch(line)
        if match is None:
            continue
        value = match[2].partition(" #")[0].strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        if "$" not in value and "`" not in value:
            found[match[1]] = value
    return found
