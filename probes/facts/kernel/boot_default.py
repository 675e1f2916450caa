"""Which kernel the next boot starts, as far as the boot loader's files show it.

GRUB: GRUB_DEFAULT and grubenv; with boot loader entries the ID in grubenv, else the newest entry.
systemd-boot: the EFI variables LoaderEntryOneShot and LoaderEntryDefault, then loader.conf(5).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.kernel.boot_loader import (
    ENTRIES,
    GRUB_DIRECTORIES,
    GRUB_SETTINGS,
    VENDOR,
    BootLoader,
    efi_text,
    grub_settings,
)
from probes.host.protocol import Host

_GRUBENV_BYTES = 4096
_STAGED = "/run/ostree/staged-deployment"
_LOADER_CONF = ("/boot/loader/loader.conf", "/efi/loader/loader.conf", "/boot/efi/loader/loader.conf")
_VARIABLES = tuple(
    f"/sys/firmware/efi/efivars/{name}-{VENDOR}" for name in ("LoaderEntryOneShot", "LoaderEntryDefault")
)
_LINE = re.compile(r"(saved_entry|next_entry)=(.{0,1024})")
_DEFAULT = re.compile(r"default\s+(\S{1,256})\s*")


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
    saved = _grubenv(host)
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


def in_menu_order(releases: tuple[str, ...], settings: dict[str, str]) -> tuple[str, ...]:
    """Return the kernels in the order of GRUB's menu: GRUB_TOP_LEVEL, then Ubuntu's GRUB_FLAVOUR_ORDER."""
    top = settings.get("GRUB_TOP_LEVEL", "").rpartition("/")[2]
    flavors = settings.get("GRUB_FLAVOUR_ORDER", "").split()

    def place(release: str) -> tuple[bool, int]:
        flavor = release.rpartition("-")[2]
        is_top = bool(top) and top.endswith(f"-{release}")
        return not is_top, flavors.index(flavor) if flavor in flavors else len(flavors)

    return tuple(sorted(releases, key=place))


def _grubenv(host: Host) -> Maybe[dict[str, str]]:
    refused: Unknown | None = None
    for directory in GRUB_DIRECTORIES:
        content = host.read_bytes(f"{directory}/grubenv", _GRUBENV_BYTES)
        if not isinstance(content, Unknown):
            return parse_grubenv(content)
        if content.reason is not Reason.NOT_THERE:
            refused = content
    return Unknown(Reason.NOT_THERE, f"{GRUB_DIRECTORIES[0]}/grubenv") if refused is None else refused


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
    return Unknown(Reason.NOT_RECORDED, source, f"“{printable(entry, 80)}” is no installed kernel")


def _of_systemd_boot(host: Host, releases: tuple[str, ...]) -> Maybe[str]:
    for path in _VARIABLES:
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
    return _newest_match(pattern, names, releases, source)


def _newest_match(pattern: str, names: Iterable[str], releases: tuple[str, ...], source: str) -> Maybe[str]:
    entries = [name for name in names if fnmatchcase(name, pattern)]
    for release in releases:
        if any(release in entry for entry in entries):
            return release
    return Unknown(Reason.NOT_RECORDED, source, f"“{printable(pattern, 80)}” is no installed kernel")


def parse_default(text: str) -> str:
    """Parse the line "default PATTERN" of loader.conf(5); "" without one."""
    matches = (_DEFAULT.fullmatch(line) for line in text.split("\n"))
    return next((match[1] for match in matches if match), "")
