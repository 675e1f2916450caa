"""Limits of processes and options of the kernel, as shells and /proc show them."""

from __future__ import annotations

import re
from typing import Any

from probes.base.text import join_limited, printable
from probes.facts.kernel.modprobe_config import CMDLINE
from probes.messages.message import Weight
from probes.read.findings import statement
from probes.read.reading import Parsed, Section, Statement

LIMITS_SIGN = (
    r"\s*(?:(?:core file size|real-time non-blocking time|max locked memory)\s+\([\w, -]{2,30}\)\s"
    r"|Limit\s+Soft Limit\s+Hard Limit|Max locked memory\s+(?:\d|unlimited))"
)
LOCKED_COMMAND = r"ulimit -[HS]?l\s*$"
CMDLINE_SIGN = r"\s*BOOT_IMAGE=\S+ |\s*root=(?:UUID|LABEL|PARTUUID|/dev/)\S+ r[ow]\b"
_LOCKED = re.compile(
    r"\s*(?:max locked memory\s+\(kbytes, -l\)|Max locked memory)\s+(\d{1,20}|unlimited)\b", re.I
)
_ALONE = re.compile(r"\s*(\d{1,20}|unlimited)\s*$")
_OPTION = re.compile(
    r"(?:(?:intel_|amd_)?iommu|iommu\.\w+|intel_iommu|pci|pcie_\w+|module_blacklist|modprobe\.blacklist|nvidia\S*"
    r"|mlx5\S*|default_hugepagesz|hugepages\w*|mitigations|efi|vfio\S*|pcie_acs_override)(?:=|$)"
)
_LITTLE_KIB = 1 << 20  # a GiB, as the check of jobs has it
_CMDLINE_CHECKS = frozenset(("acs-option-ignored", "module-blacklisted-cmdline"))


def read_limits(section: Section) -> Parsed:
    """Read ulimit -a, or /proc/PID/limits."""
    statements: list[Statement] = []
    shows = ""
    by_command = re.match(LOCKED_COMMAND, section.command)
    for number, line in enumerate(section.lines):
        match = _LOCKED.match(line) or (by_command and _ALONE.match(line))
        if not match:
            continue
        if match[1] == "unlimited":
            shows = "Locked memory is not limited."
            continue
        kib = int(match[1]) if by_command or "-l" in line else int(match[1]) >> 10
        shows = f"Locked memory is limited to {_amount(kib)}."
        weight = Weight.WARNING if kib < _LITTLE_KIB else Weight.NOTE
        place, limit = section.at(number), _amount(kib)
        statements.append(statement("memlock-shell", place, weight=weight, limit=limit))
    return Parsed(section.filled, tuple(statements), shows=shows)


def _amount(kib: int) -> str:
    for size, unit in ((1 << 20, "GiB"), (1 << 10, "MiB")):
        if kib >= size:
            return f"{kib / size:.4g} {unit}"
    return f"{kib} KiB"


def read_cmdline(section: Section) -> Parsed:
    """Read /proc/cmdline."""
    line = section.lines[0].strip() if section.lines else ""
    words = line.split()
    options = [printable(word, 80) for word in words if _OPTION.match(word)]
    is_on = any(word.startswith(("intel_iommu=on", "amd_iommu=on", "iommu=force")) for word in words)
    passes = any(word.startswith(("iommu=pt", "iommu.passthrough=1", "iommu=off")) for word in words)
    translates = is_on and not passes
    notes = (statement("iommu-translated", section.place, weight=Weight.NOTE),) if translates else ()
    shows = f"Kernel options for PCIe and IOMMU: {join_limited(options)}." if options else ""
    answers: dict[tuple[str, ...], Any] = {("file", CMDLINE): line.encode("utf-8", "replace")}
    shows = shows or "The kernel has no option for PCIe or IOMMU."
    return Parsed(bool(line), notes, answers, _CMDLINE_CHECKS, shows)
