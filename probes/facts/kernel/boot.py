"""How the node boots: boot loader, initramfs tool, kernels on disk, Secure Boot keys."""

from __future__ import annotations

import re
from enum import Enum

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, first_known, is_there, known, map_known
from probes.facts.kernel.boot_loader import BootLoader, loader_of, next_kernel
from probes.facts.kernel.release import is_release
from probes.facts.system.distribution import Distribution
from probes.facts.system.tools import DIRECTORIES
from probes.host.protocol import Host


class InitramfsTool(Enum):
    """What rebuilds the initial RAM disk."""

    UPDATE_INITRAMFS = "update-initramfs"
    DRACUT = "dracut"
    MKINITCPIO = "mkinitcpio"


@frozen
class InstalledKernel:
    """One kernel on disk."""

    release: str  # "6.8.0-45-generic"
    image: Maybe[str]  # "/boot/vmlinuz-6.8.0-45-generic"
    initramfs: Maybe[str]
    has_headers: Maybe[bool]  # /lib/modules/RELEASE/build leads somewhere


@frozen
class BootFacts:
    """What decides what the next boot loads."""

    loader: Maybe[BootLoader]
    initramfs: Maybe[InitramfsTool]
    kernels: Maybe[tuple[InstalledKernel, ...]]  # newest first
    next_kernel: Maybe[str]  # release that the loader starts by default
    mok_keys: Maybe[tuple[str, ...]]  # certificates that modules are signed with on this node; () is none


__all__ = ["BootFacts", "BootLoader", "InitramfsTool", "InstalledKernel"]

MODULES_DIRECTORY = "/lib/modules"
_MAX_KERNELS = 32
_IMAGES = ("/boot/vmlinuz-{}", "/boot/vmlinux-{}", "/boot/Image-{}", "/lib/modules/{}/vmlinuz")
_RAM_DISKS = (
    "/boot/initrd.img-{}",
    "/boot/initramfs-{}.img",
    "/boot/initrd-{}",
    "/lib/modules/{}/initramfs.img",
)
# dkms(8), framework.conf: mok_certificate; shim-signed of Debian and Ubuntu; akmods; NVIDIA's .run installer.
_CERTIFICATES = (
    "/var/lib/dkms/mok.pub",
    "/var/lib/shim-signed/mok/MOK.der",
    "/etc/pki/akmods/certs/public_key.der",
)
_NVIDIA_KEYS = "/usr/share/nvidia"
_NVIDIA_KEY = re.compile(r"nvidia-modsign-crt-[0-9A-Fa-f]{1,40}\.der")
_DKMS_SETTINGS = ("/etc/dkms/framework.conf", "/etc/dkms/framework.conf.d")
_CERTIFICATE = re.compile(r"^\s*mok_certificate=\"?(/[\w./+-]{1,200})\"?\s*$", re.M)
_TOOLS = (
    ("update-initramfs", InitramfsTool.UPDATE_INITRAMFS),
    ("dracut", InitramfsTool.DRACUT),
    ("mkinitcpio", InitramfsTool.MKINITCPIO),
)


def probe(host: Host, distribution: Maybe[Distribution], running: Maybe[str]) -> BootFacts:
    """Read /boot, /lib/modules, the boot loader's files and /sys/firmware.

    `running`: release of the running kernel.
    """
    kernels = _kernels(host, running)
    loader = loader_of(host, distribution)
    releases = map_known(kernels, lambda found: tuple(kernel.release for kernel in found))
    return BootFacts(
        loader=loader,
        initramfs=_initramfs_tool(host),
        kernels=kernels,
        next_kernel=next_kernel(host, loader, releases, running),
        mok_keys=_certificates(host),
    )


def version_key(release: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key that sorts releases like `sort -V`: digits as numbers."""
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+", release)
    return tuple((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts)


def _kernels(host: Host, running: Maybe[str]) -> Maybe[tuple[InstalledKernel, ...]]:
    names = host.names(MODULES_DIRECTORY)
    if isinstance(names, Unknown):
        return names
    releases = sorted(filter(is_release, names), key=version_key, reverse=True)[:_MAX_KERNELS]
    found = [_kernel(host, release) for release in releases]
    # A removed kernel leaves its directory behind if DKMS has built modules in it.
    return tuple(row for row in found if row.release == running or is_there(row.image) is not False)


def _kernel(host: Host, release: str) -> InstalledKernel:
    return InstalledKernel(
        release=printable(release, 128),
        image=_first(host, _IMAGES, release),
        initramfs=_first(host, _RAM_DISKS, release),
        has_headers=is_there(host.resolve(f"{MODULES_DIRECTORY}/{release}/build")),
    )


def _first(host: Host, patterns: tuple[str, ...], release: str) -> Maybe[str]:
    """Return the first of these files that exists; else why it could not be seen."""
    paths = [pattern.format(release) for pattern in patterns]
    sizes = ((path, host.size(path)) for path in paths)
    return first_known((size if isinstance(size, Unknown) else path for path, size in sizes), paths[0])


def _initramfs_tool(host: Host) -> Maybe[InitramfsTool]:
    for name, tool in _TOOLS:
        if any(not isinstance(host.size(f"{directory}/{name}"), Unknown) for directory in DIRECTORIES):
            return tool
    return Unknown(Reason.NOT_THERE, "update-initramfs, dracut, mkinitcpio", "no initramfs tool is installed")


def _certificates(host: Host) -> Maybe[tuple[str, ...]]:
    """Return the certificates on disk; unknown if none was found and one could not be seen."""
    names = [name for name in known(host.names(_NVIDIA_KEYS), ()) if _NVIDIA_KEY.fullmatch(name)]
    paths = (*_dkms_certificates(host), *_CERTIFICATES, *(f"{_NVIDIA_KEYS}/{name}" for name in names[:8]))
    found, refused = [], None
    for path in dict.fromkeys(paths):
        size = host.size(path)
        if not isinstance(size, Unknown):
            found.append(path)
        elif size.reason is not Reason.NOT_THERE:
            refused = size
    return refused if refused is not None and not found else tuple(found)


def _dkms_certificates(host: Host) -> tuple[str, ...]:
    below = [name for name in known(host.names(_DKMS_SETTINGS[1]), ()) if name.endswith(".conf")]
    paths = (_DKMS_SETTINGS[0], *(f"{_DKMS_SETTINGS[1]}/{name}" for name in below[:16]))
    return tuple(path for file in paths for path in parse_certificates(known(host.read(file), "")))


def parse_certificates(text: str) -> tuple[str, ...]:
    """Parse the paths of the lines mok_certificate="…" of DKMS's framework.conf (dkms(8))."""
    return tuple(match[1] for match in _CERTIFICATE.finditer(text))[:8]
