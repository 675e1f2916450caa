"""What a text can be, and how a line shows it.

A kind begins where a line has its sign, and goes on until another one begins. Signs are what the programs
themselves print. A kind is sure once its signs have been held against a real output (tests/reports).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from probes.base.frozen import frozen
from probes.facts.pci.nic_families import FAMILIES
from probes.read import ports
from probes.read.reading import Parsed, Section


@frozen
class Kind:
    """A kind of text."""

    name: str
    sign: str  # a regular expression, at the beginning of a line
    read: Callable[[Section], Parsed] | None = None  # None: its lines are explained one by one
    is_sure: bool = True


KINDS: tuple[Kind, ...] = (
    Kind("ibstat", r"\s*CA '[\w.-]+'", ports.read_ibstat),
    Kind("ibstatus", r"\s*Infiniband device '", ports.read_ibstatus),
    Kind("ibv_devinfo", r"\s*hca_id:\s", ports.read_devinfo),
    Kind("rdma link", r"\s*(?:link |\d+/\d+: )[\w.-]+/\d+:? .*\bstate [A-Z]", ports.read_rdma_link),
    Kind("show_gids", r"\s*DEV\s+PORT\s+INDEX\s+GID", ports.read_gids),
    Kind(
        "ibdev2netdev",
        r"\s*(?:[0-9a-f]{4}:\S+ )?[\w.-]+ (?:\(.*\) )?.{0,200}port +\d+ +(?:\(\w+\)\s*)?==> ",
        ports.read_netdevs,
    ),
)
"""In the order in which their signs are tried."""

# Words by which a line of a log belongs to a program, wherever they stand.
LOGS = {
    "NCCL": "NCCL log",
    "RCCL": "RCCL log",
    "UCX": "UCX log",
    "UCC": "UCC log",
    "libfabric": "libfabric log",
    "NVSHMEM": "NVSHMEM log",
    "ProcessGroupNCCL": "PyTorch log",
    "DistBackendError": "PyTorch log",
    "nixl": "NIXL log",
    "NIXL": "NIXL log",
    "NVRM": "kernel log",
    "nvidia_peermem": "kernel log",
    **{module: "kernel log" for family in FAMILIES for module in family.modules},
    "pcieport": "kernel log",
    "DMAR": "kernel log",
}
PROMPT = re.compile(
    r"(?:\(\w[\w.-]{0,40}\) )?(?:[\w.-]{1,64}@[\w.-]{1,255}[: ]\S{0,200}? ?[$#]|[$#]|PS .{1,80}>) (?=\S)"
)
"""A shell that waits for the next command: the output before has ended."""


class Signs:
    """Finds the kind that a line begins."""

    def __init__(self, kinds: tuple[Kind, ...]) -> None:
        self._kinds = {f"k{number}": kind for number, kind in enumerate(kinds)}
        signs = "|".join(f"(?P<{group}>{kind.sign})" for group, kind in self._kinds.items())
        self._pattern = re.compile(signs) if kinds else None

    def kind_of(self, line: str) -> Kind | None:
        """Return the kind whose sign a line has; None: it has none."""
        match = None if self._pattern is None else self._pattern.match(line)
        return None if match is None or match.lastgroup is None else self._kinds[match.lastgroup]
