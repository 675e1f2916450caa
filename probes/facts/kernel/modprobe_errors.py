"""What the errors of modprobe, insmod and rmmod mean, by their own output and the kernel log."""

from __future__ import annotations

from collections.abc import Sequence

from probes.base.unknown import Maybe, Unknown
from probes.messages import catalogue
from probes.messages.catalogue import KERNEL, MODULES
from probes.messages.message import Found

_PROGRAMS = ("modprobe", "insmod", "rmmod")
# Messages of the kernel that say why it refused a module.
_REFUSALS = frozenset(
    (
        *("symbol-version", "symbol-missing", "module-other-kernel", "module-signature", "lockdown"),
        *("peermem-register", "peermem-parameter", "gpu-api-mismatch"),
    )
)
_SILENT = "insert-invalid"  # the kernel log may say nothing about it


def explain(argv: Sequence[str], output: Sequence[str], kernel_lines: Maybe[Sequence[str]]) -> str:
    """Return what a failed command means; "" if its own output says everything."""
    if not argv or argv[0].rpartition("/")[2] not in _PROGRAMS:
        return ""
    printed = next(filter(None, map(catalogue.catalogue(MODULES).find, output[-50:])), None)
    if printed is None or not printed.message.id.startswith("insert-"):
        return _sentences(printed)
    if isinstance(kernel_lines, Unknown):
        said = _sentences(printed)
        if printed.message.id != _SILENT:
            return said
        unread = f"The kernel log would say why, but cannot be read ({kernel_lines.reason.value})"
        return f"{unread}; {said[:1].lower()}{said[1:]}"
    read = filter(None, map(catalogue.catalogue(*KERNEL).find, kernel_lines))
    refusal = next((found for found in read if found.message.id in _REFUSALS), None)
    if refusal is None and kernel_lines and printed.message.id == _SILENT:
        return ""
    return _sentences(refusal or printed)


def _sentences(found: Found | None) -> str:
    if found is None:
        return ""
    meaning = catalogue.explain(found)
    return " ".join(filter(None, (meaning.cause, meaning.fix))).rstrip(".")
