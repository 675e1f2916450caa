"""The parts that all test commands share: argv lists of validated words, or the reason why there is none.

No shell is involved, and no string is ever built from the words. Each command is one argv: `env` for
variables, numactl for the NUMA node, the tool. Each runs on a terminal, on this node and on the peer, so
that its lines arrive as they are printed.
"""

from __future__ import annotations

import ipaddress
import re

from probes.base.frozen import frozen
from probes.base.unknown import Reason, Unknown
from probes.facts.system.tools import ToolFacts

_RDMA_DEVICE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:\-]{0,62}")  # IB_DEVICE_NAME_MAX is 64 including the end
_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_\-]{0,61}[A-Za-z0-9_])?")
_HOST_NAME_LIMIT = 253  # RFC 1035
PCI_ORDER = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
"""Without it CUDA numbers the fastest GPU first; with it, GPUs have the same numbers as in NVML."""


@frozen
class Command:
    """A command that can be run or shown."""

    argv: tuple[str, ...]
    tool: str  # the program, without env and numactl


@frozen
class Refused:
    """The reason why there is no such command."""

    reason: str


def is_host(name: str) -> bool:
    """Return whether this is a host name (RFC 1123, underscores allowed) or an IP address, and no option."""
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
    """Return whether this is an IPv6 address."""
    try:
        return ipaddress.ip_address(name).version == 6
    except ValueError:
        return False


def is_rdma_device(name: str) -> bool:
    """Return whether this can be the name of an RDMA device."""
    return bool(_RDMA_DEVICE.fullmatch(name))


def is_bdf(text: str) -> bool:
    """Return whether this is a complete PCI address as sysfs writes it."""
    return bool(_BDF.fullmatch(text))


def out_of_range(name: str, number: int | None, least: int, most: int) -> str:
    """Return what is wrong with a number; "" if it is None or in its range."""
    if number is None or least <= number <= most:
        return ""
    return f"{name} must be between {least} and {most}, not {number}"


def gpu_numbers(gpus: tuple[int, ...]) -> str:
    """Return what is wrong with the numbers of GPUs; "" if nothing is."""
    if len(set(gpus)) != len(gpus):
        return "a GPU is named twice"
    return next((reason for gpu in gpus if (reason := out_of_range("the GPU's number", gpu, 0, 255))), "")


def visible_gpus(gpus: tuple[int, ...]) -> tuple[tuple[str, str], ...]:
    """Return the variables that show CUDA only these GPUs, in PCI order; () means all."""
    if not gpus:
        return (PCI_ORDER,)
    return PCI_ORDER, ("CUDA_VISIBLE_DEVICES", ",".join(str(gpu) for gpu in gpus))


def missing(tools: ToolFacts, name: str) -> str:
    """Return why a program cannot run; "" if it is installed."""
    path = tools.paths.get(name)
    if path is None:
        return f"{name} is not a tool that gdrtop knows"
    if not isinstance(path, Unknown):
        return ""
    if path.reason is Reason.NOT_THERE:
        return f"{name} is not installed"
    return f"gdrtop cannot tell whether {name} is installed: {path}"


def command(
    tools: ToolFacts,
    argv: tuple[str, ...],
    numa_node: int | None = None,
    environment: tuple[tuple[str, str], ...] = (),
) -> Command | Refused:
    """Return a program's argv with its NUMA binding and variables in front."""
    reason = missing(tools, argv[0])
    before: tuple[str, ...] = ()
    if numa_node is not None:
        reason = reason or out_of_range("the NUMA node", numa_node, 0, 1023)
        reason = reason or missing(tools, "numactl")
        before = ("numactl", f"--cpunodebind={numa_node}", f"--membind={numa_node}")
    if reason:
        return Refused(reason)
    variables = ("env", *(f"{name}={value}" for name, value in environment)) if environment else ()
    return Command((*variables, *before, *argv), argv[0])
