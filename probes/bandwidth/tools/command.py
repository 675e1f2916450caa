"""What all commands of tests have in common: argv lists of validated words, or the reason why there is none.

No shell, and no string is ever built of them. Each is one argv: `env` for variables, numactl for the NUMA
node, the tool. Each runs on a terminal, here and at the peer, so that its lines come as they are printed.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from probes.base.unknown import Reason, Unknown
from probes.facts.system.tools import ToolFacts

_RDMA_DEVICE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:\-]{0,62}")  # IB_DEVICE_NAME_MAX is 64 with its end
_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_\-]{0,61}[A-Za-z0-9_])?")
_HOST_NAME_LIMIT = 253  # RFC 1035


@dataclass(frozen=True)
class Command:
    """One command that is ready to be run or shown."""

    argv: tuple[str, ...]
    tool: str  # the program that is meant, without env and numactl


@dataclass(frozen=True)
class Refused:
    """Why there is no such command."""

    reason: str


def is_host(name: str) -> bool:
    """Whether it is a host name (RFC 1123, underscores allowed) or an IP address; never an option."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        pass
    else:
        return "%" not in name
    if not name.isascii() or len(name) > _HOST_NAME_LIMIT:
        return False
    return all(_LABEL.fullmatch(label) for label in name.removesuffix(".").split("."))


def is_ipv6(name: str) -> bool:
    """Whether it is an IPv6 address."""
    try:
        return ipaddress.ip_address(name).version == 6
    except ValueError:
        return False


def is_rdma_device(name: str) -> bool:
    """Whether it can be the name of an RDMA device."""
    return bool(_RDMA_DEVICE.fullmatch(name))


def is_bdf(text: str) -> bool:
    """Whether it is a whole PCI address as sysfs writes it."""
    return bool(_BDF.fullmatch(text))


def between(name: str, number: int | None, least: int, most: int) -> str:
    """What is wrong with a number; nothing where it is in its range, or none."""
    if number is None or least <= number <= most:
        return ""
    return f"{name} has to be between {least} and {most}, not {number}"


def missing(tools: ToolFacts, name: str) -> str:
    """Why a tool cannot be run; nothing where it is installed."""
    path = tools.paths.get(name)
    if path is None:
        return f"{name} is no tool that gdrtop knows"
    if not isinstance(path, Unknown):
        return ""
    if path.reason is Reason.NOT_THERE:
        return f"{name} is not installed"
    return f"whether {name} is installed is not known: {path}"


def command(
    tools: ToolFacts,
    argv: tuple[str, ...],
    numa_node: int | None = None,
    environment: tuple[tuple[str, str], ...] = (),
) -> Command | Refused:
    """A tool's argv with what goes before it."""
    reason = missing(tools, argv[0])
    before: tuple[str, ...] = ()
    if numa_node is not None:
        reason = reason or between("the NUMA node", numa_node, 0, 1023)
        reason = reason or missing(tools, "numactl")
        before = ("numactl", f"--cpunodebind={numa_node}", f"--membind={numa_node}")
    if reason:
        return Refused(reason)
    variables = ("env", *(f"{name}={value}" for name, value in environment)) if environment else ()
    return Command((*variables, *before, *argv), argv[0])
