"""Files of sysfs and /proc that contain a single value."""

from __future__ import annotations

import re
from typing import Protocol

from probes.base.text import printable, text_of
from probes.base.unknown import Maybe, Reason, Unknown, map_known, parse_known

VERBS = "/sys/class/infiniband_verbs"
RDMA_CLASS = "/sys/class/infiniband"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
HOSTNAME = "/proc/sys/kernel/hostname"
PROC_MODULES = "/proc/modules"
_DIGITS = 19  # of a number that both of these match
_UNSIGNED = re.compile(r"[0-9]{1,20}|0x[0-9a-fA-F]{1,8}")
_SIGNED = re.compile(r"-?[0-9]{1,19}")
_STAMPED = re.compile(r"([0-9]{1,20})@[0-9]{1,20}\.[0-9]{9}", re.ASCII)
# Old kernels print this for a device that does not answer PMA queries (core/sysfs.c, show_pma_counter).
NO_PMA = "N/A (no PMA)"
_NO_NODE = "the firmware reports no NUMA node (-1)"


class Files(Protocol):
    """The part of a host that reads files."""

    def read_bytes(self, path: str, limit: int = ...) -> Maybe[bytes]:
        """Return a file's content."""

    def read(self, path: str) -> Maybe[str]:
        """Return a file's text."""

    def names(self, path: str) -> Maybe[tuple[str, ...]]:
        """Return the names in a directory."""

    def link(self, path: str) -> Maybe[str]:
        """Return the target of a symbolic link."""


def read_integer(host: Files, path: str, signed: bool = False) -> Maybe[int]:
    """Read one integer, decimal or 0x1003; NOT_THERE: no file, or no answer to PMA queries."""
    content = host.read_bytes(path)
    if isinstance(content, Unknown):
        return content
    digits = content.strip()
    if digits.isdigit() and len(digits) <= _DIGITS:  # nearly always; in bytes, digits are ASCII
        return int(digits)
    text = text_of(content)
    if text == NO_PMA:
        return Unknown(Reason.NOT_THERE, path, text)
    if not (_SIGNED if signed else _UNSIGNED).fullmatch(text):
        return Unknown(Reason.MALFORMED, path, printable(text, 40))
    return int(text, 16 if text.startswith("0x") else 10)


def read_telemetry(host: Files, path: str) -> Maybe[int]:
    """Read a Slingshot counter, `123@SECONDS` (shs-cxi-driver, cass_telem.c, telem_sysfs_item_retrieve)."""
    matched = parse_known(host.read(path), _STAMPED.fullmatch, path)
    return map_known(matched, lambda match: int(match[1]))


def read_numa_node(host: Files, path: str) -> Maybe[int]:
    """Read a numa_node file; NOT_THERE: the firmware reports none (-1)."""
    number = read_integer(host, path, signed=True)
    if isinstance(number, Unknown) or 0 <= number < 1_000_000:
        return number
    if number == -1:
        return Unknown(Reason.NOT_THERE, path, _NO_NODE)
    return Unknown(Reason.MALFORMED, path, str(number))


def is_without_numa_node(fact: Maybe[int]) -> bool:
    """Return whether the kernel says that there is no NUMA node, rather than having no file."""
    return isinstance(fact, Unknown) and fact.detail == _NO_NODE
