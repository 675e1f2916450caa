"""The command line of a perftest test: client, server, or both ends of a loopback.

linux-rdma/perftest src/perftest_parameters.c (parser, force_dependecies): -a excludes -D and
--run_infinitely; --use_cuda_dmabuf has to stand behind --use_cuda; most options have to be alike at both
ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from probes.bandwidth.tools.command import (
    Command,
    Refused,
    between,
    command,
    is_bdf,
    is_host,
    is_ipv6,
    is_rdma_device,
    missing,
)
from probes.base.unknown import Maybe, Unknown
from probes.facts.system.tool_names import PERFTEST
from probes.facts.system.tools import PERFTEST_PORT, Perftest, ToolFacts

LOCALHOST = "127.0.0.1"
_LARGEST_BYTES = 1 << 30
_NO_IPV6 = "perftest takes an IPv6 address only with its option --ipv6-addr"
_NO_SERVER = "this is no host name or address of the far side: "


@dataclass(frozen=True)
class GpuMemory:
    """The GPU whose memory is used, and how the NIC gets at it."""

    index: int  # in PCI order, which is NVML's, and CUDA's with CUDA_DEVICE_ORDER=PCI_BUS_ID
    bdf: str
    dmabuf: bool  # False: by nvidia-peermem


@dataclass(frozen=True)
class PerftestSettings:
    """One end of a test."""

    device: str  # RDMA device
    tool: str = "ib_write_bw"  # of PERFTEST
    port: int = 1
    gid_index: int | None = None  # RoCE; None: perftest chooses
    gpu: GpuMemory | None = None  # None: host memory
    size_bytes: int | None = None  # None: the tool's own, 64 KiB or 2 bytes
    all_sizes: bool = False  # 2 bytes to 8 MiB
    duration_s: int | None = None  # for all the test, or with is_endless between two rows
    iterations: int | None = None
    is_endless: bool = False
    queue_pairs: int = 1
    is_bidirectional: bool = False
    tcp_port: int = PERFTEST_PORT
    numa_node: int | None = None  # None: not bound
    over_ipv6: bool = False  # the client is given an IPv6 address of its server

    @property
    def is_latency(self) -> bool:
        """Whether the tool measures latency."""
        return self.tool.endswith("_lat")


def perftest(settings: PerftestSettings, tools: ToolFacts, server: str | None = None) -> Command | Refused:
    """The client's command, or without `server` the server's, which waits for a client."""
    one, reason = settings, refusal(settings, tools)
    if server is not None and not is_host(server):
        reason = reason or f"{_NO_SERVER}{server[:80]!r}"
    elif server is not None and is_ipv6(server) and not one.over_ipv6:
        reason = reason or _NO_IPV6
    if reason:
        return Refused(reason)
    argv = [one.tool, "-d", one.device, "-i", str(one.port), "-p", str(one.tcp_port), "-F"]
    if one.over_ipv6:
        argv.append("--ipv6-addr")
    if one.gid_index is not None:
        argv += ["-x", str(one.gid_index)]
    if one.all_sizes:
        argv.append("-a")
    elif one.size_bytes is not None:
        argv += ["-s", str(one.size_bytes)]
    if one.is_endless:
        argv.append("--run_infinitely")
    if one.duration_s is not None:
        argv += ["-D", str(one.duration_s)]
    if one.iterations is not None:
        argv += ["-n", str(one.iterations)]
    if one.queue_pairs != 1:
        argv += ["-q", str(one.queue_pairs)]
    if one.is_bidirectional:
        argv.append("-b")
    if not one.is_latency:
        argv.append("--report_gbits")
    environment: tuple[tuple[str, str], ...] = ()
    if one.gpu is not None:
        if isinstance(tools.perftest, Perftest) and tools.perftest.cuda_bus_id is True:
            argv.append(f"--use_cuda_bus_id={one.gpu.bdf}")
        else:
            # CUDA numbers the fastest GPU first, unless it is told to go by the PCI address as NVML does.
            argv.append(f"--use_cuda={one.gpu.index}")
            environment = (("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),)
        if one.gpu.dmabuf:
            argv.append("--use_cuda_dmabuf")
    if server is not None:
        argv.append(server)
    return command(tools, tuple(argv), one.numa_node, environment)


def loopback(
    settings: PerftestSettings, tools: ToolFacts, server: PerftestSettings | None = None
) -> tuple[Command, Command] | Refused:
    """Server and client on this node: over one port, or between two where `server` names another.

    The server is started first; the client may be when it has printed that it waits.
    """
    far = server or settings
    unlike = mismatched_settings(settings, far)
    if unlike:
        return Refused(f"both ends need the same {', '.join(unlike)}")
    waits, asks = perftest(far, tools), perftest(settings, tools, LOCALHOST)
    if isinstance(waits, Refused):
        return waits
    return asks if isinstance(asks, Refused) else (waits, asks)


def mismatched_settings(a: PerftestSettings, b: PerftestSettings) -> tuple[str, ...]:
    """The names of settings that have to be the same at both ends and are not."""
    # Each end has its own device, GPU and NUMA node.
    own = {"device": "", "port": 1, "gid_index": None, "gpu": None, "numa_node": None}
    left, right = replace(a, **own), replace(b, **own)  # type: ignore[arg-type]
    return tuple(name for name in vars(left) if getattr(left, name) != getattr(right, name))


def refusal(settings: PerftestSettings, tools: ToolFacts) -> str:
    """Why these settings cannot be run here; "" where they can."""
    return _of_build(settings, tools) or _of_words(settings) or _of_method(settings)


def _of_build(one: PerftestSettings, tools: ToolFacts) -> str:
    if one.tool not in PERFTEST:
        return f"{one.tool[:80]!r} is no test of perftest that gdrtop knows"
    build = tools.perftest
    reason = missing(tools, one.tool) or (_without_ipv6(build) if one.over_ipv6 else "")
    if reason or one.gpu is None:
        return reason
    if isinstance(build, Unknown):
        return f"whether perftest can use GPU memory is not known: {build}"
    if isinstance(build.cuda, Unknown):
        return f"whether perftest can use GPU memory is not known: {build.cuda}"
    if not build.cuda:
        return f"this perftest is built without CUDA ({build.evidence})"
    if not one.gpu.dmabuf:
        return ""
    if isinstance(build.dmabuf, Unknown):
        return f"whether perftest can use DMA-BUF is not known: {build.dmabuf}"
    return "" if build.dmabuf else f"this perftest is built without DMA-BUF ({build.evidence})"


def _without_ipv6(build: Maybe[Perftest]) -> str:
    """Why it cannot meet its server at an IPv6 address: it asks for IPv4 ones (AF_INET) unless it is told."""
    known = build if isinstance(build, Unknown) else build.ipv6_addr
    instead = "give the peer's IPv4 address, or a name that has one"
    if isinstance(known, Unknown):
        return f"whether this perftest can connect to an IPv6 address is not known ({known}): {instead}"
    return "" if known else f"this perftest cannot connect to an IPv6 address (no --ipv6-addr): {instead}"


def _of_words(one: PerftestSettings) -> str:
    if not is_rdma_device(one.device):
        return f"{one.device[:80]!r} is no name of an RDMA device"
    if one.gpu is not None and not is_bdf(one.gpu.bdf):
        return f"{one.gpu.bdf[:80]!r} is no PCI address"
    return (
        between("the port", one.port, 1, 254)
        or between("the GID index", one.gid_index, 0, 255)
        or between("the GPU's number", None if one.gpu is None else one.gpu.index, 0, 255)
        or between("the size", one.size_bytes, 1, _LARGEST_BYTES)
        or between("the duration", one.duration_s, 1 if one.is_endless else 2, 86_400)
        or between("the number of iterations", one.iterations, 5, 100_000_000)
        or between("the number of queue pairs", one.queue_pairs, 1, 16_384)
        or between("the TCP port", one.tcp_port, 1024, 65_535)
    )


def _of_method(one: PerftestSettings) -> str:
    if one.all_sizes and (one.duration_s is not None or one.is_endless):
        return "all sizes are measured by iterations: not with a duration"
    if one.all_sizes and one.size_bytes is not None:
        return "all sizes, or one"
    if one.iterations is not None and (one.duration_s is not None or one.is_endless):
        return "a number of iterations, or a duration"
    if one.is_latency and (one.is_endless or one.is_bidirectional or one.queue_pairs != 1):
        return "a latency test has an end, one direction and one queue pair"
    if one.is_endless and one.is_bidirectional and one.tool == "ib_send_bw":
        return "ib_send_bw does not run without end in both directions"
    return ""
