"""How the node boots, now and next: loader, initramfs tool, kernels, Secure Boot keys, command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from itertools import islice

from probes.base.frozen import frozen
from probes.base.text import printable, printable_lines
from probes.base.unknown import (
    Maybe,
    Reason,
    Unknown,
    first_known,
    first_unread,
    is_there,
    known,
    map_known,
    not_found,
)
from probes.facts.kernel import boot_loader
from probes.facts.kernel.modprobe_config import MODPROBE_DIRECTORIES
from probes.facts.kernel.release import is_release
from probes.facts.system.packages import Distribution
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

    loader: Maybe[boot_loader.BootLoader]
    initramfs: Maybe[InitramfsTool]
    kernels: Maybe[tuple[InstalledKernel, ...]]  # newest first
    next_kernel: Maybe[str]  # release that the loader starts by default
    mok_keys: Maybe[tuple[str, ...]]  # certificates that modules are signed with on this node; () is none


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
# Scripts that run for a new kernel, of packages and of the admin (run-parts in Debian's linux-base).
_KERNEL_HOOKS = ("/etc/kernel/postinst.d", "/usr/share/kernel/postinst.d")
_NVIDIA_KEYS = "/usr/share/nvidia"
_NVIDIA_KEY = re.compile(r"nvidia-modsign-crt-[0-9A-Fa-f]{1,40}\.der")
_DKMS_SETTINGS = ("/etc/dkms/framework.conf", "/etc/dkms/framework.conf.d")
_CERTIFICATE = re.compile(r"^\s*mok_certificate=\"?(/[\w./+-]{1,200})\"?\s*$", re.M)


def probe(host: Host, distribution: Maybe[Distribution], running: Maybe[str]) -> BootFacts:
    """Read /boot, /lib/modules, the boot loader's files and /sys/firmware; `running`: a release."""
    kernels = _kernels(host, running)
    loader = boot_loader.loader_of(host, distribution)
    releases = map_known(kernels, lambda found: tuple(kernel.release for kernel in found))
    return BootFacts(
        loader=loader,
        initramfs=_initramfs_tool(host),
        kernels=kernels,
        next_kernel=boot_loader.next_kernel(host, loader, releases, running),
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
    found = [
        InstalledKernel(
            release=printable(release, 128),
            image=_first(host, _IMAGES, release),
            initramfs=_first(host, _RAM_DISKS, release),
            has_headers=is_there(host.resolve(f"{MODULES_DIRECTORY}/{release}/build")),
        )
        for release in releases
    ]
    # A removed kernel leaves its directory behind if DKMS has built modules in it.
    return tuple(row for row in found if row.release == running or is_there(row.image) is not False)


def _first(host: Host, patterns: tuple[str, ...], release: str) -> Maybe[str]:
    """Return the first of these files that exists; else why it could not be seen."""
    paths = [pattern.format(release) for pattern in patterns]
    sizes = ((path, host.size(path)) for path in paths)
    return first_known((size if isinstance(size, Unknown) else path for path, size in sizes), paths[0])


def _initramfs_tool(host: Host) -> Maybe[InitramfsTool]:
    """Return the tool that rebuilds the images of this system.

    Ubuntu 26.04 has update-initramfs beside dracut, which builds them: then the hook by which initramfs-tools
    builds the image of a new kernel is not there.
    """
    here = [
        tool
        for tool in InitramfsTool
        if any(not isinstance(host.size(f"{directory}/{tool.value}"), Unknown) for directory in DIRECTORIES)
    ]
    if here[:2] == [InitramfsTool.UPDATE_INITRAMFS, InitramfsTool.DRACUT]:
        hooks = [is_there(host.size(f"{directory}/initramfs-tools")) for directory in _KERNEL_HOOKS]
        return InitramfsTool.DRACUT if all(hook is False for hook in hooks) else here[0]
    if here:
        return here[0]
    return Unknown(Reason.NOT_THERE, "update-initramfs, dracut, mkinitcpio", "no initramfs tool is installed")


def _certificates(host: Host) -> Maybe[tuple[str, ...]]:
    """Return the certificates on disk; unknown if none was found and one could not be seen."""
    names = [name for name in known(host.names(_NVIDIA_KEYS), ()) if _NVIDIA_KEY.fullmatch(name)]
    paths = (*_dkms_certificates(host), *_CERTIFICATES, *(f"{_NVIDIA_KEYS}/{name}" for name in names[:8]))
    sizes = {path: host.size(path) for path in paths}
    found = tuple(path for path, size in sizes.items() if not isinstance(size, Unknown))
    unread = first_unread(sizes.values())
    return unread if unread is not None and not found else found


def _dkms_certificates(host: Host) -> tuple[str, ...]:
    below = [name for name in known(host.names(_DKMS_SETTINGS[1]), ()) if name.endswith(".conf")]
    paths = (_DKMS_SETTINGS[0], *(f"{_DKMS_SETTINGS[1]}/{name}" for name in below[:16]))
    return tuple(path for file in paths for path in parse_certificates(known(host.read(file), "")))


def parse_certificates(text: str) -> tuple[str, ...]:
    """Parse the paths of the lines mok_certificate="…" of DKMS's framework.conf (dkms(8))."""
    return tuple(match[1] for match in _CERTIFICATE.finditer(text))[:8]


# What the next boot starts a kernel with: its command line, and how old its boot image is.
#
# Sources: the `linux` lines of grub.cfg (GRUB manual, "linux"), the entries of the Boot Loader Specification
# (/boot/loader/entries/*.conf, `options`), and stat(1) for the times of files.

_ENTRIES = (boot_loader.ENTRIES, "/boot/efi/loader/entries", "/efi/loader/entries")
_MAX_ENTRIES = 64
_MAX_WORDS = 256
_LINE_LIMIT = 8192
_SECONDS = 2.0
_GRUB_OPTIONS = re.compile(
    r"""^\s*(?:export\s+)?(GRUB_CMDLINE_LINUX(?:_DEFAULT)?)=(?:"((?:[^"\\\n]|\\.)*)"|'([^'\n]*)'|([^'"\s]*))""",
    re.M,
)
_STAT = re.compile(r"([0-9]{1,12}) (/.{1,1000})")
# Words of the command line that decide whether GPUDirect RDMA works, and how fast.
_THAT_MATTER = (
    *("iommu", "intel_iommu", "amd_iommu", "iommu.passthrough", "iommu.strict", "pci", "module_blacklist"),
    *("modprobe.blacklist", "module.sig_enforce", "lockdown", "pcie_aspm", "pcie_acs_override"),
)
_PREFIXES = ("nvidia.", "nvidia_peermem.", "mlx5_core.", "ib_core.", "rd.driver.blacklist")

_MODULE_WORDS = ("nvidia", "nouveau", "mlx", "ib_", "nv_peer")
_MAX_SETTINGS = 64


@frozen
class NextLine:
    """A kernel's command line at its next boot."""

    source: str  # "/boot/grub/grub.cfg"
    line: str
    has_variables: bool  # parts of it are variables of the boot loader


@frozen
class NextBootFacts:
    """What the boot loader starts a kernel with, and whether it is as the configuration says."""

    line: Maybe[NextLine]
    configured: Maybe[str]  # options that the settings of GRUB give every kernel; NOT_THERE: not GRUB
    image: Maybe[str]  # the initial RAM disk
    newer: Maybe[tuple[str, ...]]  # settings of GPU and RDMA modules that are newer than the image


def read_next_boot(host: Host, boot: Maybe[BootFacts], release: str) -> NextBootFacts:
    """Read the boot loader's files, and whether settings in modprobe.d are newer than the boot image."""
    is_grub = not isinstance(boot, Unknown) and boot.loader is boot_loader.BootLoader.GRUB
    configured = read_grub_options(host) if is_grub else Unknown(Reason.NOT_THERE, boot_loader.GRUB_SETTINGS)
    kernels = map_known(boot, lambda facts: facts.kernels)
    absent = Unknown(Reason.NOT_THERE, "/boot", "no initial RAM disk")
    images = map_known(kernels, lambda found: {kernel.release: kernel.initramfs for kernel in found})
    image = map_known(images, lambda found: found.get(release, absent))
    newer = map_known(image, lambda path: _newer(host, path))
    return NextBootFacts(read_next_line(host, release), configured, image, newer)


def _newer(host: Host, image: str) -> Maybe[tuple[str, ...]]:
    settings = _settings(host)
    times = read_times(host, (image, *settings))
    if isinstance(times, Unknown):
        return times
    if image not in times:
        return Unknown(Reason.NOT_THERE, f"stat {image}", "no answer")
    return tuple(path for path in settings if times.get(path, 0) > times[image])


def _settings(host: Host) -> tuple[str, ...]:
    """Return the files of /etc/modprobe.d that name GPU or RDMA modules: the admin's own."""
    found = []
    directory = MODPROBE_DIRECTORIES[0]
    names = [name for name in known(host.names(directory), ()) if name.endswith(".conf")]
    for name in names[:_MAX_SETTINGS]:
        lines = known(host.read(f"{directory}/{name}"), "").split("\n")
        if any(word in line for line in lines if line.lstrip()[:1] != "#" for word in _MODULE_WORDS):
            found.append(f"{directory}/{name}")
    return tuple(found)


def read_next_line(host: Host, release: str) -> Maybe[NextLine]:
    """Return the first entry of a kernel that is not for recovery; NOT_THERE: there is none."""
    answers: list[Maybe[object]] = []
    files: list[tuple[str, Callable[[str, str], str | None]]] = []
    for directory in _ENTRIES:
        answers.append(names := host.names(directory))
        entries = [name for name in known(names, ()) if name.endswith(".conf")][:_MAX_ENTRIES]
        files += [(f"{directory}/{name}", parse_entry) for name in entries]
    files += [(path, parse_grub) for path in boot_loader.GRUB_CONFIGS]
    for path, parse in files:
        text = _text(host, path)
        answers.append(text)
        line = None if isinstance(text, Unknown) else parse(text, release)
        if line is not None:
            return NextLine(printable(path, 256), line, "$" in line)
    return not_found(answers, boot_loader.GRUB_CONFIGS[0], f"no boot entry for {release}")


def parse_grub(text: str, release: str) -> str | None:
    """Return the command line of a kernel's first `linux` line in grub.cfg that is not for recovery."""
    for line in text.split("\n"):
        words = line[:_LINE_LIMIT].split(maxsplit=_MAX_WORDS)
        if len(words) < 2 or words[0] not in ("linux", "linuxefi", "linux16"):
            continue
        if not boot_loader.is_image_of(words[1], release) or {"single", "recovery", "rescue"} & set(words):
            continue
        return printable(" ".join(words[2:]), _LINE_LIMIT)
    return None


def parse_entry(text: str, release: str) -> str | None:
    """Return the `options` of a boot loader entry for a kernel; None: the entry is for another kernel."""
    fields: dict[str, list[str]] = {}
    for line in text.split("\n")[:_MAX_WORDS]:
        key, _, value = line[:_LINE_LIMIT].strip().replace("\t", " ").partition(" ")
        fields.setdefault(key, []).append(value.strip())
    version = fields.get("version", [""])[0]
    images = fields.get("linux", []) + fields.get("efi", [])
    if version != release and not any(boot_loader.is_image_of(image, release) for image in images):
        return None
    return printable(" ".join(fields.get("options", [])), _LINE_LIMIT)


def read_grub_options(host: Host) -> Maybe[str]:
    """Return every kernel's options after update-grub; NOT_THERE: none; MALFORMED: a shell computes them."""
    values: dict[str, str] = {}
    for path in boot_loader.grub_setting_files(host):
        text = _text(host, path)
        if isinstance(text, Unknown):
            if text.reason is not Reason.NOT_THERE:
                return text
            continue
        for name, value in parse_grub_options(text, values):
            if "$" in value or "`" in value:
                return Unknown(Reason.MALFORMED, path, f"{name} is computed by a shell")
            values[name] = value
    if not values:
        return Unknown(Reason.NOT_THERE, boot_loader.GRUB_SETTINGS, "no GRUB_CMDLINE_LINUX")
    # The order of grub.cfg (10_linux), in which a later option may override an earlier one.
    return " ".join(values[name] for name in sorted(values)).strip()


def parse_grub_options(text: str, earlier: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Parse the lines GRUB_CMDLINE_LINUX=VALUE of a shell file, in which earlier values are replaced."""
    known_values = dict(earlier)
    for match in islice(_GRUB_OPTIONS.finditer(text[: boot_loader.CONFIG_LIMIT_BYTES]), _MAX_WORDS):
        name, value = match[1], match[2] or match[3] or match[4] or ""
        value = value if match[2] is None else value.replace('\\"', '"')
        for other in sorted(known_values, key=len, reverse=True):  # one name begins with the other
            for reference in (f"${{{other}}}", f"${other}"):
                value = value.replace(reference, known_values[other])[:_LINE_LIMIT]
        known_values[name] = value
        yield name, known_values[name]


def words_that_matter(line: str) -> tuple[str, ...]:
    """Return the words of a command line that concern GPUDirect RDMA, sorted."""
    keys = {word: word.partition("=")[0] for word in line.replace('"', "").split()[:_MAX_WORDS]}
    found = {word[:256] for word, key in keys.items() if key in _THAT_MATTER or key.startswith(_PREFIXES)}
    return tuple(sorted(found))


def read_times(host: Host, paths: Iterable[str]) -> Maybe[dict[str, int]]:
    """Return when files were last changed (seconds since 1970), by path, without files that are missing."""
    asked = tuple(dict.fromkeys(path for path in paths if path.startswith("/")))[:_MAX_WORDS]
    if not asked:
        return {}
    answer = host.run(("stat", "-L", "--format=%Y %n", "--", *asked), _SECONDS)
    return answer if isinstance(answer, Unknown) else parse_times(answer.stdout)


def parse_times(text: str) -> dict[str, int]:
    """Parse lines "SECONDS PATH"."""
    matches = (_STAT.fullmatch(line) for line in text.split("\n")[:_MAX_WORDS])
    return {printable(match[2], 1024): int(match[1]) for match in matches if match}


def _text(host: Host, path: str) -> Maybe[str]:
    content = host.read_bytes(path, boot_loader.CONFIG_LIMIT_BYTES)
    return map_known(content, lambda found: printable_lines(found.decode("utf-8", errors="replace")))
