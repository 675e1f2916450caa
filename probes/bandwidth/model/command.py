"""The parts that all test commands share: argv lists of validated words, or the reason why there is none.

No shell is involved, and no string is ever built from the words. Each command is one argv: `env` for
variables, numactl for the NUMA node, the tool. Each runs on a terminal, on this node and on the peer, so
that its lines arrive as they are printed.
"""

from __future__ import annotations

import ipaddress
import re
import shlex

from probes.base.frozen import frozen
from probes.base.text import BDF
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.system.numa import NumaFacts, number_set
from probes.facts.system.tools import ToolFacts
from probes.snapshot.examination import Examination

_RDMA_DEVICE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:\-]{0,62}")  # IB_DEVICE_NAME_MAX is 64 including the end
_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_\-]{0,61}[A-Za-z0-9_])?")
_HOST_NAME_LIMIT = 253  # RFC 1035
PCI_ORDER = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
"""Without it CUDA numbers the fastest GPU first; with it, GPUs have the same numbers as in NVML."""
# ssh(1): -tt gives the remote command a terminal, which hangs up when the connection ends, so that nothing
# keeps running; BatchMode asks no questions; ServerAlive* detect a dead connection; without ControlMaster no
# shared connection outlives its first user.
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,31}")
_SSH_OPTIONS = (
    *("-o", "BatchMode=yes", "-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
    *("-o", "ControlMaster=no", "-o", "ControlPath=none"),
)


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
    return bool(BDF.fullmatch(text))


def out_of_range(name: str, number: int | None, least: int, most: int) -> str:
    """Return what is wrong with a number; "" if it is None or in its range."""
    if number is None or least <= number <= most:
        return ""
    return f"{name} must be between {least} and {most}, not {number}"


def gpu_numbers(gpus: tuple[int, ...]) -> str:
    """Return what is wrong with the numbers of GPUs; "" if nothing is."""
    if len(set(gpus)) != len(gpus):
        return "a GPU is listed twice"
    return next((reason for gpu in gpus if (reason := out_of_range("the GPU's number", gpu, 0, 255))), "")


def visible_gpus(gpus: tuple[int, ...]) -> tuple[tuple[str, str], ...]:
    """Return the variables that show CUDA only these GPUs, in PCI order; () means all."""
    if not gpus:
        return (PCI_ORDER,)
    return PCI_ORDER, ("CUDA_VISIBLE_DEVICES", ",".join(str(gpu) for gpu in gpus))


def missing(tools: Maybe[ToolFacts], name: str) -> str:
    """Return why a program cannot run; "" if it is installed."""
    if isinstance(tools, Unknown):
        return f"cannot tell which tools are installed: {tools}"
    if (path := tools.paths.get(name)) is None:
        return f"{name} is not a tool that gdrtop knows"
    if not isinstance(path, Unknown):
        return ""
    if path.reason is Reason.NOT_THERE:
        return f"{name} is not installed"
    return f"gdrtop cannot tell whether {name} is installed: {path}"


def command(
    tools: Maybe[ToolFacts],
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


def host_of(peer: str) -> str | None:
    """Return the host of `host` or `user@host`; None if the peer is neither."""
    user, at, host = peer.rpartition("@")
    if at and not _USER.fullmatch(user):
        return None
    return host if is_host(host) else None


def by_ssh(peer: str, command: Command, seconds: float) -> Command | Refused:
    """Return the command that runs on the peer by SSH; it ends there after `seconds` in any case."""
    if host_of(peer) is None:
        return Refused(f"the peer is not a valid host name, address or user@host: {peer[:80]!r}")
    limited = ("timeout", "--foreground", "-k", "5", f"{seconds:.0f}", *command.argv)
    return Command(("ssh", "-tt", *_SSH_OPTIONS, "--", peer, shlex.join(limited)), command.tool)


def bound_to(
    examination: Examination, numa_node: int | None, is_here: bool = True
) -> tuple[int | None, tuple[str, ...]]:
    """Return the NUMA node to bind a program to, or None and a note why not to the requested one.

    numactl binds the CPU by sched_setaffinity, which fails if none of the CPUs is allowed, and the memory by
    set_mempolicy, only to nodes of Mems_allowed (numactl 2.0.16; Linux kernel/cgroup/cpuset.c). A node
    without memory is never one of them.

    `is_here`: False for a program on a peer of the same type, which has its own cpuset.
    """
    if numa_node is None:
        return None, ()
    reason = _why_not(examination, numa_node, is_here)
    if not reason:
        return numa_node, ()
    return None, (f"not bound to NUMA node {numa_node} ({reason}): figures may vary",)


def _why_not(examination: Examination, number: int, is_here: bool) -> str:
    """Return why the node cannot be used; "" if nothing speaks against it."""
    tools = examination.tools
    if isinstance(tools, Unknown):
        return "cannot tell which tools are installed"
    if reason := missing(tools, "numactl"):
        return reason
    numa = examination.node.numa
    nodes = numa.nodes if isinstance(numa, NumaFacts) else ()
    node = next((candidate for candidate in nodes if candidate.number == number), None)
    if node is not None and node.cpulist == "":
        return "it has no CPUs"
    if node is not None and node.memory_bytes == 0:
        return "it has no memory"
    allowed = examination.cpuset
    if isinstance(allowed, Unknown) or not is_here:
        return ""
    own, ours = number_set(node.cpulist) if node is not None else None, number_set(allowed.cpus)
    if own is not None and ours is not None and not own & ours:
        return f"gdrtop is not allowed to use its CPUs (Cpus_allowed_list {allowed.cpus})"
    memory = number_set(allowed.memory_nodes)
    if memory is not None and number not in memory:
        return f"gdrtop is not allowed to use its memory (Mems_allowed_list {allowed.memory_nodes})"
    return ""
