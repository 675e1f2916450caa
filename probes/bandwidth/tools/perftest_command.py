"""The command line of a perftest test: client, server, or both ends of a loopback.

linux-rdma/perftest src/perftest_parameters.c (parser, force_dependecies): -a excludes -D and
--run_infinitely; --use_cuda_dmabuf has to come after --use_cuda; most options have to be the same at both
ends. README.md, "GPUDirect usage": --use_cuda alone registers by peer memory, with --use_cuda_dmabuf by
DMA-BUF, and with --use_data_direct by the NIC's Data Direct function too.
"""

from __future__ import annotations

from dataclasses import replace

from probes.bandwidth.model.command import (
    PCI_ORDER,
    Command,
    Refused,
    command,
    is_bdf,
    is_host,
    is_ipv6,
    is_rdma_device,
    missing,
    out_of_range,
)
from probes.bandwidth.model.limits import Limit, limit_of_host_memory, limit_of_pair
from probes.bandwidth.model.planned_series import Load, Purpose, Settings
from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Unknown
from probes.facts.system.tool_names import PERFTEST
from probes.facts.system.tools import PERFTEST_PORT, Perftest, ToolFacts
from probes.snapshot.examination import Examination

LOCALHOST = "127.0.0.1"
_LARGEST_BYTES = 1 << 30


@frozen
class GpuMemory:
    """The GPU whose memory is used, and how the NIC gets at it."""

    index: int  # in PCI order, which is NVML's, and CUDA's with CUDA_DEVICE_ORDER=PCI_BUS_ID
    bdf: str
    dmabuf: bool  # False: by nvidia-peermem
    data_direct: bool = False  # by the NIC's Data Direct function, which needs DMA-BUF


@frozen
class PerftestSettings(Settings):
    """One end of a test."""

    device: str  # RDMA device
    tool: str = "ib_write_bw"  # of PERFTEST
    port: int = 1
    gid_index: int | None = None  # RoCE; None: perftest chooses
    pkey_index: int | None = None  # InfiniBand, of this end's own table; None: perftest's default, 0
    connection: str = ""  # "SRD" on EFA; "": perftest's default, RC
    gpu: GpuMemory | None = None  # None: host memory
    size_bytes: int | None = None  # None: the tool's own, 64 KiB or 2 bytes
    all_sizes: bool = False  # 2 bytes to 8 MiB
    duration_s: int | None = None  # of the whole test, or with is_endless between two rows
    iterations: int | None = None
    is_endless: bool = False
    queue_pairs: int = 1
    is_bidirectional: bool = False
    tcp_port: int = PERFTEST_PORT
    numa_node: int | None = None  # None: not bound
    over_ipv6: bool = False  # the client is given an IPv6 address of its server

    @property
    def is_latency(self) -> bool:
        """Whether the program measures latency."""
        return self.tool.endswith("_lat")

    @property
    def load(self) -> Load:
        return Load(self.size_bytes, self.queue_pairs, self.is_bidirectional)

    @property
    def gpu_indices(self) -> tuple[int, ...]:
        return () if self.gpu is None else (self.gpu.index,)

    @property
    def nics(self) -> tuple[str, ...] | None:
        return (self.device,)

    def limit(self, examination: Examination, is_loopback: bool = False) -> Limit:
        """Return what this end can reach at most."""
        if self.gpu is None:
            return limit_of_host_memory(examination, self.device, self.port, is_loopback, self.queue_pairs)
        memory, pairs = self.gpu, self.queue_pairs
        return limit_of_pair(
            examination, memory.bdf, self.device, self.port, is_loopback, pairs, memory.data_direct
        )

    def purpose(self, is_loopback: bool = False) -> Purpose:
        if self.gpu is None:
            memory, not_proven = "host memory", "GPU memory (this result is the reference for it)"
        else:
            memory = "GPU memory"
            not_proven = "DMA-BUF, which NCCL prefers where it is usable"
            if self.gpu.dmabuf:
                not_proven = "nvidia-peermem; whether NCCL uses DMA-BUF and this NIC"
        via = "" if self.gpu is None else f" via {'DMA-BUF' if self.gpu.dmabuf else 'nvidia-peermem'}"
        if is_loopback:
            not_proven += "; cable, switch and peer (in loopback the data never leaves the NIC)"
        return Purpose(measured_speed(self.tool, f"{memory} over {self.device}{via}"), not_proven)


def measured_speed(program: str, what: str) -> str:
    """Return what a program measures: "bandwidth of RDMA writes from `what`"."""
    measure = "latency" if program.endswith("_lat") else "bandwidth"
    return f"{measure} of RDMA {program.split('_')[1]}s from {what}"


def perftest(settings: PerftestSettings, tools: ToolFacts, server: str | None = None) -> Command | Refused:
    """Return the client's command; without `server`, the command of the server, which waits for a client."""
    reason = refusal(settings, tools)
    if server is not None and not is_host(server):
        reason = reason or f"the peer is not a valid host name or address: {server[:80]!r}"
    elif server is not None and is_ipv6(server) and not settings.over_ipv6:
        reason = reason or "perftest accepts an IPv6 address only with its --ipv6-addr option"
    if reason:
        return Refused(reason)
    argv = [settings.tool, "-d", settings.device, "-i", str(settings.port)]
    argv += ["-p", str(settings.tcp_port), "-F"]
    has_size = settings.size_bytes is not None and not settings.all_sizes
    options = (
        (settings.over_ipv6, ("--ipv6-addr",)),
        (bool(settings.connection), ("-c", settings.connection)),
        (settings.gid_index is not None, ("-x", str(settings.gid_index))),
        (settings.pkey_index is not None, (f"--pkey_index={settings.pkey_index}",)),
        (settings.all_sizes, ("-a",)),
        (has_size, ("-s", str(settings.size_bytes))),
        (settings.is_endless, ("--run_infinitely",)),
        (settings.duration_s is not None, ("-D", str(settings.duration_s))),
        (settings.iterations is not None, ("-n", str(settings.iterations))),
        (settings.queue_pairs != 1, ("-q", str(settings.queue_pairs))),
        (settings.is_bidirectional, ("-b",)),
        (not settings.is_latency, ("--report_gbits",)),
    )
    argv += [word for is_wanted, words in options if is_wanted for word in words]
    environment: tuple[tuple[str, str], ...] = ()
    if settings.gpu is not None:
        if isinstance(tools.perftest, Perftest) and tools.perftest.cuda_bus_id is True:
            argv.append(f"--use_cuda_bus_id={settings.gpu.bdf}")
        else:
            argv.append(f"--use_cuda={settings.gpu.index}")
            environment = (PCI_ORDER,)
        if settings.gpu.dmabuf:
            argv.append("--use_cuda_dmabuf")
        if settings.gpu.data_direct:
            argv.append("--use_data_direct")
    if server is not None:
        argv.append(server)
    return command(tools, tuple(argv), settings.numa_node, environment)


def loopback(
    settings: PerftestSettings, tools: ToolFacts, server: PerftestSettings | None = None
) -> tuple[Command, Command] | Refused:
    """Return server and client on this node: over one port, or between two if `server` names another.

    Start the server first, and the client when the server has printed that it waits.
    """
    far = server or settings
    if mismatched := mismatched_settings(settings, far):
        return Refused(f"both ends need the same {', '.join(mismatched)}")
    server_command, client_command = perftest(far, tools), perftest(settings, tools, LOCALHOST)
    if isinstance(server_command, Refused):
        return server_command
    return client_command if isinstance(client_command, Refused) else (server_command, client_command)


def mismatched_settings(a: PerftestSettings, b: PerftestSettings) -> tuple[str, ...]:
    """Return the names of the settings that differ but have to be the same at both ends."""
    # Each end has its own device, GPU and NUMA node.
    own = {"device": "", "port": 1, "gid_index": None, "pkey_index": None, "gpu": None, "numa_node": None}
    left, right = replace(a, **own), replace(b, **own)  # type: ignore[arg-type]
    return tuple(name for name in vars(left) if getattr(left, name) != getattr(right, name))


def refusal(settings: PerftestSettings, tools: ToolFacts) -> str:
    """Return why these settings cannot run on this node; "" if they can."""
    return _wrong_build(settings, tools) or _wrong_value(settings) or _contradiction(settings)


def _wrong_build(settings: PerftestSettings, tools: ToolFacts) -> str:
    if settings.tool not in PERFTEST:
        return f"{settings.tool[:80]!r} is not a perftest test that gdrtop knows"
    build = tools.perftest
    reason = missing(tools, settings.tool) or (_without_ipv6(build) if settings.over_ipv6 else "")
    if reason or settings.gpu is None:
        return reason
    if isinstance(build, Unknown):
        return f"gdrtop cannot tell whether perftest can use GPU memory: {build}"
    if isinstance(build.cuda, Unknown):
        return f"gdrtop cannot tell whether perftest can use GPU memory: {build.cuda}"
    if not build.cuda:
        return f"this perftest is built without CUDA ({build.evidence})"
    if not settings.gpu.dmabuf:
        return ""
    if isinstance(build.dmabuf, Unknown):
        return f"gdrtop cannot tell whether perftest can use DMA-BUF: {build.dmabuf}"
    return "" if build.dmabuf else f"this perftest is built without DMA-BUF ({build.evidence})"


def _without_ipv6(build: Maybe[Perftest]) -> str:
    """Return why it cannot meet its server at an IPv6 address: by default it asks for IPv4 ones (AF_INET)."""
    known = build if isinstance(build, Unknown) else build.ipv6_addr
    instead = "give the peer's IPv4 address, or a name that has one"
    if isinstance(known, Unknown):
        return f"gdrtop cannot tell whether this perftest can connect to an IPv6 address ({known}): {instead}"
    return "" if known else f"this perftest cannot connect to an IPv6 address (no --ipv6-addr): {instead}"


def _wrong_value(settings: PerftestSettings) -> str:
    if not is_rdma_device(settings.device):
        return f"{settings.device[:80]!r} is not an RDMA device name"
    if settings.gpu is not None and not is_bdf(settings.gpu.bdf):
        return f"{settings.gpu.bdf[:80]!r} is not a PCI address"
    return (
        out_of_range("the port", settings.port, 1, 254)
        or out_of_range("the GID index", settings.gid_index, 0, 255)
        or out_of_range("the partition key's index", settings.pkey_index, 0, 65_535)
        or out_of_range("the GPU's number", None if settings.gpu is None else settings.gpu.index, 0, 255)
        or out_of_range("the size", settings.size_bytes, 1, _LARGEST_BYTES)
        or out_of_range("the duration", settings.duration_s, 1 if settings.is_endless else 2, 86_400)
        or out_of_range("the number of iterations", settings.iterations, 5, 100_000_000)
        or out_of_range("the number of queue pairs", settings.queue_pairs, 1, 16_384)
        or out_of_range("the TCP port", settings.tcp_port, 1024, 65_535)
    )


def _contradiction(settings: PerftestSettings) -> str:
    has_duration = settings.duration_s is not None or settings.is_endless
    if settings.all_sizes and has_duration:
        return "all sizes need a number of iterations, not a duration"
    if settings.all_sizes and settings.size_bytes is not None:
        return "choose all sizes or one size, not both"
    if settings.iterations is not None and has_duration:
        return "choose a number of iterations or a duration, not both"
    has_more = settings.is_endless or settings.is_bidirectional or settings.queue_pairs != 1
    if settings.is_latency and has_more:
        return "a latency test cannot run indefinitely, and uses one direction and one queue pair"
    return ""
