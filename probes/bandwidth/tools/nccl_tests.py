"""The *_perf programs of nccl-tests: collectives in one process on this node.

Options: NVIDIA/nccl-tests README.md. Output, of new and old versions (src/common.cu): the header names the
columns; a row holds size, count, type, then redop and root where the collective has them, then one or two
groups of time, algbw, busbw and #wrong ("error" in old versions, a difference and not a count; more columns
with -I). With -C the first column is cputime, and with -S a row ends with date and time. GB are 10^9 bytes.
algbw is the size over the time; busbw is what each GPU's link carries, whatever their number
(doc/PERFORMANCE.md). That a node uses the network between its own GPUs when P2P and shared memory are
disabled is shown by NVIDIA/nccl-tests issue #206.

Staged: with NCCL_NET_GDR_LEVEL=LOC no NIC is near enough for GPUDirect RDMA (NCCL src/graph/paths.cc), and
NCCL copies through host memory. NCCL_DMABUF_ENABLE=0 alone would only make it use nvidia-peermem. Versions
before 2.4.0 call the variable NCCL_IB_GDR_LEVEL (user guide). One that ignores both is noticed by its routes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from probes.bandwidth.model.command import (
    Command,
    Refused,
    command,
    gpu_numbers,
    is_rdma_device,
    out_of_range,
    visible_gpus,
)
from probes.bandwidth.model.planned_series import Purpose
from probes.bandwidth.model.request import MemoryPath, Request
from probes.bandwidth.model.samples import (
    DONE,
    MEASURING,
    STAGED,
    About,
    Sample,
    clean_line,
    fact,
    in_gbps,
    parse_int,
    parse_number,
)
from probes.bandwidth.tools.failures import CAUSE, Failure, Output, failures_in
from probes.bandwidth.tools.tool import LocalSettings, LocalTool, Parser
from probes.base.frozen import frozen
from probes.base.unknown import Maybe
from probes.facts.gpu.gpus import Gpu
from probes.facts.system.tools import ToolFacts

# NVLS (NVLink SHARP) ignores NCCL_P2P_DISABLE (NCCL src/transport/nvls.cc), and unless NCCL's IB transport is
# requested by name, TCP over some Ethernet port takes its place.
_OVER_NETWORK = (("NCCL_P2P_DISABLE", "1"), ("NCCL_SHM_DISABLE", "1"), ("NCCL_NVLS_ENABLE", "0"))
_BY_VERBS = (("NCCL_NET", "IB"),)
_STAGED = (("NCCL_NET_GDR_LEVEL", "LOC"), ("NCCL_IB_GDR_LEVEL", "0"))
BETWEEN_NODES = (
    # In a ring, each byte of the bus bandwidth leaves each node once, so that what a NIC carries is certain.
    ("NCCL_ALGO", "Ring"),
    ("NCCL_MNNVL_ENABLE", "0"),  # NVLink between nodes would take the NICs' place
)
"""The variables of a collective over many nodes that measures their NICs."""
DIAGNOSTICS = ("NCCL_RUN_DIAGNOSTICS", "1")
"""From 2.31 on; each communicator waits for it."""
RANK_PROGRAM = "gdrtop-nccl-rank"
"""How gdrtop's own all-reduce is called, tui/bandwidth/pairs/nccl_rank.py."""


@frozen
class NcclSettings(LocalSettings):
    """A collective over some GPUs."""

    gpus: tuple[int, ...]  # in PCI order
    tool: str = "all_reduce_perf"
    begin_bytes: int = 8
    end_bytes: int = 1 << 30
    iterations: int = 20
    over_network: bool = False  # without P2P, shared memory, NVLS and TCP, so that NCCL uses the NICs
    is_staged: bool = False  # over the network without GPUDirect RDMA
    devices: tuple[str, ...] = ()  # RDMA devices, exactly these; () NCCL chooses
    by_plugin: bool = False  # NCCL uses the NICs through a network plugin: EFA, Slingshot
    key_index: int | None = None  # of the partition key, if it is not 0

    seconds = 25.0

    @property
    def gpu_indices(self) -> tuple[int, ...]:
        return self.gpus

    @property
    def nics(self) -> tuple[str, ...] | None:
        return (self.devices or None) if self.over_network else ()  # None: NCCL chooses

    @property
    def title(self) -> str:
        where = "over the NICs" if self.over_network else "inside this node"
        how = ", staged" if self.is_staged else ""
        return f"{self.tool} {f'over {self.devices[0]}' if self.devices else where}{how}"

    @property
    def memory(self) -> str:
        return STAGED if self.is_staged else ""

    def purpose(self, is_loopback: bool = False) -> Purpose:
        name = self.tool.removesuffix("_perf")
        if self.is_staged:
            return Purpose(
                f"how fast {name} is over this node's NICs without GPUDirect RDMA, and how much CPU it takes",
                "how much of the host's memory bandwidth the copies take from other processes",
            )
        if self.over_network:
            return Purpose(
                f"how fast {name} is over this node's NICs ('via NET/IB/…/GDRDMA' in its output proves"
                " GPUDirect RDMA)",
                "other nodes; the speed of a job, which uses NVLink inside a node",
            )
        return Purpose(
            f"how fast {name} is inside this node, over NVLink or PCIe as in a job",
            "GPUDirect RDMA (a single node with NVLink or P2P never uses a NIC)",
        )

    def command(self, tools: Maybe[ToolFacts]) -> Command | Refused:
        invalid = next((name for name in self.devices if not is_rdma_device(name)), None)
        if invalid is not None:
            return Refused(f"{invalid[:80]!r} is not an RDMA device name")
        if not self.gpus:
            return Refused("no GPU was specified")
        reason = (
            gpu_numbers(self.gpus)
            or out_of_range("the minimum size", self.begin_bytes, 1, 1 << 40)
            or out_of_range("the maximum size", self.end_bytes, self.begin_bytes, 1 << 40)
        )
        if self.by_plugin and self.devices:
            reason = reason or "NCCL's network plugin chooses the NICs of this node; test without a NIC name"
        if self.over_network and len(self.gpus) < 2:
            reason = reason or "a test over the network needs two GPUs: one alone has no peer"
        if reason:
            return Refused(reason)
        sizes = ("-b", str(self.begin_bytes), "-e", str(self.end_bytes), "-f", "2")
        counts = ("-g", str(len(self.gpus)), "-n", str(self.iterations), "-c", "1")
        environment = list(visible_gpus(self.gpus))
        if self.over_network:
            environment += [*_OVER_NETWORK, *(() if self.by_plugin else _BY_VERBS)]
            environment += _STAGED if self.is_staged else ()
        if self.devices:
            # "=" matches the names exactly: without it, mlx5_1 matches mlx5_10 as well.
            environment.append(("NCCL_IB_HCA", "=" + ",".join(self.devices)))
        if self.key_index is not None:
            environment.append(("NCCL_IB_PKEY", str(self.key_index)))
        environment.append(("NCCL_DEBUG", "INFO"))  # NCCL prints which transport it uses
        return command(tools, (self.tool, *sizes, *counts), None, tuple(environment))


_STARTS = re.compile(r"^# Collective test (?P<what>starting|concluded): (?P<name>\w{1,60}?)(?:_perf)?\s*$")
_VERSION = re.compile(r"^# nccl-tests version (?P<version>.{1,100})$")
_LIBRARY = re.compile(r"^NCCL version (?P<version>\S{1,60})")
_RANK = re.compile(
    r"^#\s{1,8}Rank\s{1,8}(?P<rank>\d{1,9}) (?:Group\s{1,8}\d{1,9} )?Pid\s{1,8}\d{1,10}"
    r" on\s{1,64}(?P<host>\S{1,255}) device\s{1,8}(?P<device>\d{1,6})"
    r" \[(?P<bus>[0-9a-fx:.]{1,20})\] (?P<name>.{1,100})$"
)
_AVERAGE = re.compile(r"^# Avg bus bandwidth\s{0,8}: (?P<number>\S{1,30})")
# Names of plugins may have a blank: "NET/AWS Libfabric/0/GDRDMA".
_ROUTE = re.compile(
    r"NCCL INFO .{0,200} via (?P<route>"
    r"NET/[\w.\- ]{1,40}/\d{1,4}(?:\(\d{1,6}\))?(?:/(?!flush=)\w{1,20}|\(PCI\)){0,3}"
    r"|(?:NET|P2P|SHM|COLLNET|NVLS)[/\w.\-]{0,60})"
)
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_ROUTES = 16
_GROUPS = ("out-of-place", "in-place")


class NcclTestsOutput(Parser):
    """Reads one run's output, in which NCCL's own lines (NCCL_DEBUG) may be mixed."""

    def __init__(self, what: str = "") -> None:
        """Set the collective's name, "all_reduce": old versions do not print it."""
        self._what = what
        self._group: tuple[str, ...] = ()  # the columns of one group
        self._groups = 0
        self._has_timestamps = False
        self._more_columns = 0  # behind the groups: #iters
        self._routes: set[str] = set()

    def read(self, line: str) -> tuple[Output, ...]:
        if line.startswith("#"):
            return self._comment(line)
        fields = line.split()
        if fields and parse_int(fields[0]) is not None:
            return self._row(line, fields)
        if library := _LIBRARY.match(line):
            return fact(About.VERSION, f"NCCL {library['version']}", line)
        if route := _ROUTE.search(line):
            if route["route"] in self._routes or len(self._routes) >= _ROUTES:
                return ()
            self._routes.add(route["route"])
            return fact(About.ROUTE, route["route"], line)
        return failures_in(line, TOOL.messages)

    def _comment(self, line: str) -> tuple[Output, ...]:
        names = line[1:].split()
        if names[:3] == ["size", "count", "type"]:
            return self._header(names, line)
        if starts := _STARTS.match(line):
            if starts["what"] == "concluded":
                return fact(About.PHASE, DONE, line)
            self._what = starts["name"]
            return fact(About.TEST, self._what, line)
        if version := _VERSION.match(line):
            return fact(About.VERSION, f"nccl-tests {version['version']}", line)
        if rank := _RANK.match(line):
            place = f"{rank['rank']}: {rank['host']} device {rank['device']} {rank['bus']} {rank['name']}"
            return fact(About.RANK, place, line)
        average = _AVERAGE.match(line)
        number = parse_number(average["number"]) if average else None
        if number is not None:
            gbps = in_gbps(number, "GB/s")
            return (Sample(what=self._what, raw=clean_line(line), variant="average", bus_gbps=gbps),)
        return failures_in(line, TOOL.messages)

    def _header(self, names: list[str], line: str) -> tuple[Output, ...]:
        time = "cputime" if "cputime" in names else "time"
        self._has_timestamps = names[-1] == "timestamp"
        self._groups = min(names.count(time), len(_GROUPS))
        if not self._groups:
            self._group = ()
            return ()
        first = names.index(time)
        rest = names[first : len(names) - self._has_timestamps]
        length, self._more_columns = divmod(len(rest), names.count(time))
        group = tuple(rest[:length])
        self._group = group if "algbw" in group and "busbw" in group else ()
        return fact(About.PHASE, MEASURING, line)

    def _row(self, line: str, fields: list[str]) -> tuple[Output, ...]:
        """Read a row, whose groups are its last fields; redop and root before them may be missing."""
        length = len(self._group)
        if not length:
            return ()
        if self._has_timestamps and _TIMESTAMP.fullmatch(" ".join(fields[-2:])):
            fields = fields[:-2]
        fields = fields[: len(fields) - self._more_columns]
        groups = self._groups
        while groups and not 3 <= len(fields) - groups * length <= 5:
            groups -= 1
        if not groups or parse_int(fields[1]) is None:
            return ()
        samples: list[Output] = []
        start = len(fields) - groups * length
        for number in range(groups):
            group = fields[start + number * length : start + (number + 1) * length]
            values = dict(zip(self._group, group, strict=True))
            sample = self._sample(fields[0], values, _GROUPS[number], line)
            if sample is None:
                return ()
            samples.append(sample)
        wrong = [sample.wrong for sample in samples if isinstance(sample, Sample) and sample.wrong]
        if wrong:
            text = f"{max(wrong)} elements of a {fields[0]}-byte message were wrong: data was corrupted"
            samples.append(Failure(text, clean_line(line), CAUSE))
        return tuple(samples)

    def _sample(self, size: str, group: dict[str, str], variant: str, line: str) -> Sample | None:
        algorithm, bus = parse_number(group["algbw"]), parse_number(group["busbw"])
        has_time = "time" in group  # cputime is that of the CPU
        time = parse_number(group["time"]) if has_time else None
        if algorithm is None or bus is None or (time is None and has_time):
            return None
        wrong = parse_number(group.get("#wrong", "N/A"))
        return Sample(
            what=self._what,
            raw=clean_line(line),
            variant=variant,
            size_bytes=parse_int(size),
            gbps=in_gbps(algorithm, "GB/s"),
            bus_gbps=in_gbps(bus, "GB/s"),
            time_us=time,
            wrong=None if wrong is None else int(wrong),
        )


class NcclTests(LocalTool):
    """all_reduce_perf and its siblings."""

    messages = ("benchmarks", "cuda", "nccl", "ofi", "rdma-core", "system")
    is_per_gpu = False
    source = (
        "from source: github.com/NVIDIA/nccl-tests, make, and copy the programs of its build/ folder to"
        " /usr/local/bin; NVIDIA's PyTorch containers include them"
    )

    def parser(self, program: str) -> NcclTestsOutput:
        return NcclTestsOutput(program.removesuffix("_perf"))

    def settings(self, request: Request, gpus: Sequence[Gpu], numa_node: int | None) -> NcclSettings:
        devices = (request.nic,) if request.nic is not None and request.over_network else ()
        indices, over_network = tuple(gpu.index for gpu in gpus), request.over_network
        is_staged = over_network and request.memory is MemoryPath.STAGED
        return NcclSettings(
            indices, request.tool, over_network=over_network, is_staged=is_staged, devices=devices
        )


TOOL = NcclTests()
