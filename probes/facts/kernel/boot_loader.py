"""Which boot loader starts the node, where its kernel command line is set, and which kernel boots next.

systemd-boot and systemd-stub leave EFI variables (systemd.io/BOOT_LOADER_INTERFACE); GRUB and OSTree leave
files. Talos and CoreOS are known by their os-release.

What boots next: with GRUB, GRUB_DEFAULT and grubenv, and the first entry of grub.cfg; with boot loader
entries the ID in grubenv, else the newest entry. With systemd-boot, the EFI variables LoaderEntryOneShot and
LoaderEntryDefault, then loader.conf(5).
"""

from __future__ import annotations

import re
from enum import Enum
from fnmatch import fnmatchcase

from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, first_known, known, map_known
from probes.facts.system.packages import Distribution, Family
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
_GRUB_DIRECTORIES = ("/boot/grub", "/boot/grub2")
GRUB_CONFIGS = tuple(f"{directory}/grub.cfg" for directory in _GRUB_DIRECTORIES)
CONFIG_LIMIT_BYTES = 1 << 20
_VARIABLES = "/sys/firmware/efi/efivars"
VENDOR = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
_STUB = f"{_VARIABLES}/StubInfo-{VENDOR}"
_LOADER = f"{_VARIABLES}/LoaderInfo-{VENDOR}"
_OSTREE = "/run/ostree-booted"
_MACHINE_CONFIG = "/etc/machine-config-daemon"
_MAX_FILES = 32
_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?(GRUB_[A-Z_]{1,40})=(.{0,4096})")
_GRUBENV_BYTES = 4096
_STAGED = "/run/ostree/staged-deployment"
_LOADER_CONF = ("/boot/loader/loader.conf", "/efi/loader/loader.conf", "/boot/efi/loader/loader.conf")
_DEFAULT_VARIABLES = tuple(
    f"{_VARIABLES}/{name}-{VENDOR}" for name in ("LoaderEntryOneShot", "LoaderEntryDefault")
)
_MENU_ENTRY = re.compile(r"^\s*(?:menuentry|submenu)\s", re.M)
_IMAGE = re.compile(r"^\s*linux(?:efi|16)?\s+(\S{1,1024})", re.M)
_LINE = re.compile(r"(saved_entry|next_entry)=(.{0,1024})")
_DEFAULT = re.compile(r"default\s+(\S{1,256})\s*")


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
    if any(not isinstance(host.size(path), Unknown) for path in GRUB_CONFIGS):
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


def next_kernel(
    host: Host, loader: Maybe[BootLoader], releases: Maybe[tuple[str, ...]], running: Maybe[str]
) -> Maybe[str]:
    """Return the release that boots next; `releases`: installed kernels, the newest first."""
    if isinstance(loader, Unknown):
        return loader
    if isinstance(releases, Unknown):
        return releases
    if loader in (BootLoader.TALOS, BootLoader.OSTREE, BootLoader.MACHINE_CONFIG):
        if not isinstance(host.size(_STAGED), Unknown):
            return Unknown(Reason.NOT_RECORDED, _STAGED, "another deployment is staged for the next boot")
        return running
    if not releases:
        return Unknown(Reason.NOT_THERE, "/boot", "no kernel image found")
    if loader in (BootLoader.GRUB, BootLoader.GRUB_BLS):
        return _of_grub(host, releases)
    return _of_systemd_boot(host, releases)


def _of_grub(host: Host, releases: tuple[str, ...]) -> Maybe[str]:
    settings = grub_settings(host)
    default, releases = settings.get("GRUB_DEFAULT", "0"), in_menu_order(releases, settings)
    first = _first_of_menu(host, releases) or releases[0]
    releases = (first, *(release for release in releases if release != first))
    paths = [f"{directory}/grubenv" for directory in _GRUB_DIRECTORIES]
    content = first_known((host.read_bytes(path, _GRUBENV_BYTES) for path in paths), paths[0])
    saved = map_known(content, parse_grubenv)
    once = "" if isinstance(saved, Unknown) else saved.get("next_entry", "")
    if once:
        return entry_kernel(once, releases, "grubenv")
    if default != "saved":
        if isinstance(saved, Unknown) and saved.reason is not Reason.NOT_THERE:
            return saved  # grub-reboot may have set another entry there
        return entry_kernel(default, releases, GRUB_SETTINGS)
    if isinstance(saved, Unknown):
        return releases[0] if saved.reason is Reason.NOT_THERE else saved
    return entry_kernel(saved.get("saved_entry", "") or "0", releases, "grubenv")


def _first_of_menu(host: Host, releases: tuple[str, ...]) -> str:
    """Return the kernel of the first entry of grub.cfg; "" if it is unread, or a kernel still has no entry.

    Versions of GRUB sort kernels differently: 2.06 of Debian 12 puts 6.6.0 before 6.6.0-rc7, later ones not.
    """
    texts = (host.read_bytes(path, CONFIG_LIMIT_BYTES) for path in GRUB_CONFIGS)
    text = known(first_known(texts, GRUB_CONFIGS[0]), b"").decode("utf-8", errors="replace")
    kernels = [kernel_of(image, releases) for image in _IMAGE.findall(text)]
    if not set(releases) <= set(kernels):
        return ""
    first = _IMAGE.search(next(iter(_MENU_ENTRY.split(text, 2)[1:2]), ""))
    return "" if first is None else kernel_of(first[1], releases)


def kernel_of(image: str, releases: tuple[str, ...]) -> str:
    """Return the kernel of an image, "/boot/vmlinuz-RELEASE" or ".../RELEASE/linux"; "" if it is another."""
    return max((release for release in releases if is_image_of(image, release)), key=len, default="")


def is_image_of(image: str, release: str) -> bool:
    """Return whether an image belongs to a kernel."""
    return image.endswith((f"-{release}", f"-{release}.efi")) or f"/{release}/" in image


def in_menu_order(releases: tuple[str, ...], settings: dict[str, str]) -> tuple[str, ...]:
    """Return the kernels in the order of GRUB's menu: GRUB_TOP_LEVEL, then Ubuntu's GRUB_FLAVOUR_ORDER."""
    top = settings.get("GRUB_TOP_LEVEL", "").rpartition("/")[2]
    flavors = settings.get("GRUB_FLAVOUR_ORDER", "").split()

    def place(release: str) -> tuple[bool, int]:
        flavor = release.rpartition("-")[2]
        is_top = bool(top) and top.endswith(f"-{release}")
        return not is_top, flavors.index(flavor) if flavor in flavors else len(flavors)

    return tuple(sorted(releases, key=place))


def parse_grubenv(content: bytes) -> dict[str, str]:
    """Parse saved_entry and next_entry of a GRUB environment block: lines NAME=VALUE, filled with "#"."""
    lines = content.decode("utf-8", errors="replace").split("\n")
    matches = (_LINE.fullmatch(line) for line in lines)
    return {match[1]: match[2].strip() for match in matches if match}


def entry_kernel(entry: str, releases: tuple[str, ...], source: str) -> Maybe[str]:
    """Return the kernel that an entry's title, ID or place names; "0" is the newest kernel."""
    if entry == "0":
        return releases[0]
    # The longest match, because "6.8.0-4" is part of "6.8.0-45".
    named = [release for release in releases if release in entry]
    if named:
        return max(named, key=len)
    return Unknown(Reason.NOT_RECORDED, source, f"“{printable(entry, 80)}” is not an installed kernel")


def _of_systemd_boot(host: Host, releases: tuple[str, ...]) -> Maybe[str]:
    for path in _DEFAULT_VARIABLES:
        entry = efi_text(host, path)
        if entry:
            return entry_kernel(entry, releases, path)
    unread: Unknown | None = None
    for path in _LOADER_CONF:
        text = host.read(path)
        if not isinstance(text, Unknown):
            return _by_pattern(host, parse_default(text), releases, path)
        if text.reason is not Reason.NOT_THERE:
            unread = text
    return releases[0] if unread is None else unread


def _by_pattern(host: Host, pattern: str, releases: tuple[str, ...], source: str) -> Maybe[str]:
    if not pattern:
        return releases[0]
    if not re.search(r"[*?\[]", pattern):
        return entry_kernel(pattern, releases, source)
    names = host.names(ENTRIES)
    if isinstance(names, Unknown):
        return names
    entries = [name for name in names if fnmatchcase(name, pattern)]
    for release in releases:
        if any(release in entry for entry in entries):
            return release
    return Unknown(Reason.NOT_RECORDED, source, f"“{printable(pattern, 80)}” is not an installed kernel")


def parse_default(text: str) -> str:
    """Parse the line "default PATTERN" of loader.conf(5); "" without one."""
    matches = (_DEFAULT.fullmatch(line) for line in text.split("\n"))
    return next((match[1] for match in matches if match), "")
