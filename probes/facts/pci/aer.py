"""The kernel's PCIe error counts for each function (Advanced Error Reporting).

Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats. Every user can read them, and reading does not
access the function. A count of zero does not prove health: an error that no root port reports is not counted
(config_space.py reads the sticky bits).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from probes.base.frozen import frozen
from probes.base.text import BDF, printable
from probes.base.unknown import Maybe, Reason, Unknown, map_known
from probes.facts.pci.functions import DEVICES
from probes.host.protocol import Host

MAX_FUNCTIONS = 512
_MAX_NAMES = 64


@frozen
class ErrorCounts:
    """The counts of one severity."""

    total: int
    by_name: dict[str, int]  # "BadTLP", "RxErr", …; only counts above zero


@frozen
class PcieErrors:
    """The counts of one function since it was enumerated; NOT_THERE: no AER, or the firmware owns it."""

    bdf: str
    correctable: Maybe[ErrorCounts]
    nonfatal: Maybe[ErrorCounts]
    fatal: Maybe[ErrorCounts]


@frozen
class PcieErrorFacts:
    """BDF -> counts, for the requested functions."""

    functions: dict[str, PcieErrors]


def probe(host: Host, bdfs: Iterable[str]) -> PcieErrorFacts:
    """Read aer_dev_* of at most 512 functions."""
    chosen = [bdf for bdf in dict.fromkeys(bdfs) if BDF.fullmatch(bdf)][:MAX_FUNCTIONS]
    return PcieErrorFacts({bdf: _function(host, bdf) for bdf in chosen})


def _function(host: Host, bdf: str) -> PcieErrors:
    def counts(severity: str) -> Maybe[ErrorCounts]:
        path = f"{DEVICES}/{bdf}/aer_dev_{severity}"
        return map_known(host.read(path), lambda text: parse_counts(text, path))

    return PcieErrors(bdf, counts("correctable"), counts("nonfatal"), counts("fatal"))


def parse_counts(text: str, path: str = "") -> Maybe[ErrorCounts]:
    """Parse the lines "RxErr 3" … "TOTAL_ERR_COR 3" of an aer_dev_ file."""
    total: int | None = None
    by_name: dict[str, int] = {}
    for line in text.split("\n")[:_MAX_NAMES]:
        name, _, number = line.strip().rpartition(" ")
        if not re.fullmatch(r"[0-9]{1,20}", number):
            continue
        if name.startswith("TOTAL_ERR_"):
            total = int(number)
        elif name and int(number):
            by_name[printable(name, 40)] = int(number)
    if total is None:
        return Unknown(Reason.MALFORMED, path, "no TOTAL_ERR_… line")
    return ErrorCounts(total, by_name)
