"""How the node boots: boot loader, initramfs tool, kernels on disk, Secure Boot keys."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from probes.base.unknown import Maybe


class BootLoader(Enum):
    """Where the kernel's command line is set."""

    GRUB = "GRUB"  # /etc/default/grub, update-grub or grub2-mkconfig
    GRUB_BLS = "GRUB with boot loader entries"  # grubby
    SYSTEMD_BOOT = "systemd-boot"  # /etc/kernel/cmdline, kernel-install
    UKI = "unified kernel image"
    OSTREE = "ostree"  # rpm-ostree kargs, bootc kargs.d
    MACHINE_CONFIG = "MachineConfig"  # OpenShift: spec.kernelArguments
    TALOS = "Talos"


class InitramfsTool(Enum):
    """What rebuilds the initial RAM disk."""

    UPDATE_INITRAMFS = "update-initramfs"
    DRACUT = "dracut"
    MKINITCPIO = "mkinitcpio"


@dataclass(frozen=True)
class InstalledKernel:
    """One kernel on disk."""

    release: str  # "6.8.0-45-generic"
    image: Maybe[str]  # "/boot/vmlinuz-6.8.0-45-generic"
    initramfs: Maybe[str]
    has_headers: Maybe[bool]  # /lib/modules/RELEASE/build leads somewhere


@dataclass(frozen=True)
class BootFacts:
    """What decides what the next boot loads."""

    loader: Maybe[BootLoader]
    initramfs: Maybe[InitramfsTool]
    kernels: Maybe[tuple[InstalledKernel, ...]]  # newest first
    next_kernel: Maybe[str]  # release that the loader starts by default
    is_efi: Maybe[bool]
    mok_keys: Maybe[tuple[str, ...]]  # files of keys that DKMS or the distributor signs with, on disk
