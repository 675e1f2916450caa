"""A simulated node: answers every probe from a description, marked SIMULATED; and several with one job."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

from probes.base.origin import Origin, Source
from probes.base.text import printable, printable_lines
from probes.base.unknown import Maybe, Reason, T, Unknown, map_known
from probes.host.collectives import METRICS_BYTES, CollectiveSpeed, parse
from probes.host.component_history import ComponentHistory
from probes.host.fec import SOURCE, FecState
from probes.host.nvml import NvmlFacts, NvmlLive
from probes.host.protocol import (
    MESSAGE_CHARACTERS,
    READ_LIMIT_BYTES,
    CommandOutput,
    CudaGpu,
    FileRange,
    HostBase,
    KernelMessage,
    refused,
)
from probes.host.ras import ANSWER_SECONDS, REPORTS
from probes.host.rdma_resources import PacketNumbers, RdmaResources
from probes.host.tcp_sockets import LEAST_BYTES, TcpSocket, read_socket_inodes
from probes.host.usage import ProcessUsage, read_counters, read_thread_names, read_usage
from probes.plans.common import REBOOT
from probes.simulation.node.build import build_tree
from probes.simulation.node.jobs.processes import component_history
from probes.simulation.node.jobs.ras import ADDRESS, ras_events, ras_report
from probes.simulation.node.jobs.rdma_resources import packet_numbers, rdma_resources
from probes.simulation.node.jobs.traffic import common_steps, scale_job, settle_jobs
from probes.simulation.node.model.description import NodeDescription, describe
from probes.simulation.node.model.workload import OPENED
from probes.simulation.node.nvml import nvml_facts, nvml_live
from probes.simulation.node.system.software import library_missing
from probes.simulation.node.system.system import description_after, keep_disk

if TYPE_CHECKING:
    from probes.simulation.bandwidth.node_pair import NodeParts, SimulatedNetwork, SimulatedNode
    from probes.simulation.bandwidth.playback import SimulatedTest
    from probes.simulation.commands.command_result import CommandResult
    from probes.simulation.faults.fault import Fault
    from probes.simulation.node.model.tree import Tree


_FIRST_WITH_DATA_DIRECT = 54
_REBOOT_SECONDS = 300.0


class SimulatedHost(HostBase):
    """A simulated node; equal seeds give equal answers at equal times of the clock."""

    UNANSWERED = (Reason.NOT_THERE, "")

    def __init__(
        self,
        name: str,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
        description: NodeDescription | None = None,
    ) -> None:
        """`name`: of a described node, with its faults; or any name with a `description`."""
        plain_name, _, wanted = name.partition("+")
        self._faults: tuple[Fault, ...] = ()
        if wanted:
            from probes.simulation.faults.catalogue import faults_of

            self._faults = faults_of(wanted)
        self._given = description
        self._description = description or describe(plain_name)
        idle: set[str] = set()  # names of faults that change nothing on this node
        for fault in self._faults:
            changed = fault.change_description(self._description)
            if changed == self._description:
                idle.add(fault.name)
            self._description = changed
        self.origin = Origin(Source.SIMULATED, name)
        self._seed = seed
        self._clock = clock
        self._began = clock() - OPENED
        self._advancing = Lock()
        self._messages_read: int | None = None
        self._events_read: float | None = None
        self._started_at = time.time() if clock is time.monotonic else 1_700_000_000.0
        self.tree = build_tree(self._description, seed)
        self._node: SimulatedNode | None = None
        if self._faults:
            idle -= self._change_tree(plain_name, idle)
        settle_jobs(self.tree)
        self.faults_without_effect = tuple(sorted(idle))

    def _change_tree(self, plain_name: str, idle: set[str]) -> set[str]:
        """Let the faults change the tree, and return which of `idle` have done it."""
        from probes.simulation.faults.catalogue import NoSuchFault
        from probes.simulation.faults.fault import state_of

        changing = set()
        for fault in self._faults:
            before = state_of(self.tree) if fault.name in idle else None
            try:
                fault.change_tree(self.tree)
            except (LookupError, StopIteration):
                raise NoSuchFault(fault.name, plain_name) from None
            if before is not None and state_of(self.tree) != before:
                changing.add(fault.name)
        return changing

    def reboot(self, with_jobs: bool = True) -> None:
        """Start the node again: its disk stays, its faults and boot configuration decide the rest.

        `with_jobs`: the scheduler starts the same jobs again. In the program, only setup reboots a node, and
        only a simulated one.
        """
        earlier = self.tree
        description = description_after(earlier)
        tree = build_tree(description, self._seed, earlier.boot + 1)
        for fault in self._faults:
            with suppress(LookupError, StopIteration):  # it changes a job, and none runs now
                fault.change_tree(tree)
        keep_disk(tree, earlier)
        from probes.simulation.commands.boot import forget_running, start
        from probes.simulation.node.modules.modules import end_programs

        forget_running(tree)
        if not with_jobs:
            end_programs(tree)
        # Other threads read this node: they see the earlier boot until the new one has ended.
        booting = copy(self)
        booting._began, booting._started_at = self._clock() - OPENED, self.wall_clock()
        booting._description, booting.tree = description, tree
        drivers = {nic.kind.driver for nic in tree.cards} | ({"nvidia"} if tree.gpus else set())
        start(booting, tree, drivers, earlier.live_modules)
        settle_jobs(tree)
        with self._advancing:
            self._began, self._started_at, self.tree = booting._began, booting._started_at, tree
            self._description, self._node = description, None
            self._messages_read = self._events_read = None

    def _seconds(self) -> float:
        """Return the seconds since the node started, after the changes that are due."""
        if not self.tree.planned:
            return self._clock() - self._began
        with self._advancing:
            seconds = self._clock() - self._began
            self.tree.advance(seconds)
        return seconds

    def read_bytes(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[bytes]:
        content = self.tree.content(path, self._seconds())
        if not isinstance(content, Unknown) and len(content) > limit:
            return Unknown(Reason.IO_ERROR, path, f"more than {limit} bytes")
        return content

    def read_range(self, path: str, offset: int, limit: int) -> Maybe[FileRange]:
        content = self.tree.content(path, self._seconds())
        if isinstance(content, Unknown):
            return content
        offset = max(0, len(content) + offset) if offset < 0 else offset
        return FileRange(content[offset : offset + limit], len(content), str(self.tree.real(path)))

    def names(self, path: str) -> Maybe[tuple[str, ...]]:
        self._seconds()
        real = self.tree.real(path)
        if isinstance(real, Unknown):
            return real
        listed = self.tree.directories.get(real)
        return Unknown(Reason.NOT_THERE, path) if listed is None else tuple(sorted(listed))

    def link(self, path: str) -> Maybe[str]:
        self._seconds()
        parent, _, name = path.rpartition("/")
        real = self.tree.real(parent)
        if isinstance(real, Unknown):
            return real
        target = self.tree.links.get(f"{real}/{name}")
        return Unknown(Reason.NOT_THERE, path) if target is None else target

    def resolve(self, path: str) -> Maybe[str]:
        self._seconds()
        return self.tree.real(path)

    def size(self, path: str) -> Maybe[int]:
        return map_known(self.read_bytes(path), len)

    def access(self, path: str, write: bool = False) -> Maybe[bool]:
        """Return whether a file can be read; only device files can be written, unless they are denied."""
        real = self.tree.real(path)
        if isinstance(real, Unknown):
            return real
        if write and real in self.tree.refused:
            return refused(real)
        return (not write or real.startswith("/dev/")) and real not in self.tree.denied

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        seconds_now = self._seconds()
        answer = self.tree.commands.get(argv[0])
        if answer is None:
            return Unknown(Reason.NOT_THERE, argv[0], "not installed")
        output = answer(tuple(argv), seconds_now)
        if isinstance(output, Unknown | CommandOutput):
            return output
        return CommandOutput(tuple(argv), 0, printable_lines(output), "")

    def run_trusted(self, argv: Sequence[str], seconds: float, user: str) -> Maybe[CommandOutput]:
        return self.run(argv, seconds)

    def perform(self, argv: Sequence[str], stdin: str = "") -> CommandResult:
        """Run a command that changes the simulated node, with `stdin` as its standard input."""
        from probes.simulation.commands.catalogue import perform
        from probes.simulation.commands.command_result import done

        if tuple(argv) == REBOOT:
            self.reboot()
            return done("The simulated node has started again.", seconds=_REBOOT_SECONDS)
        return perform(self, self.tree, argv, stdin, self._seconds())

    def begin_test(self, argv: Sequence[str]) -> SimulatedTest:
        """Start a bandwidth test with a command line from probes/bandwidth; it returns immediately.

        The node knows one other node under the name `peer`, for ssh and as a server's name. A program that
        is not a bandwidth tool exits with status 127.
        """
        # Imported with the first test: speeds depend on the doctor's facts.
        from probes.simulation.bandwidth.node_pair import start

        return start(self._running(), argv)

    def begin_registration(self, gpu: str, nics: Sequence[str]) -> SimulatedTest:
        """Start the program that registers the memory of a GPU (BDF) with NICs; it returns immediately."""
        from probes.simulation.bandwidth.prove import start

        return start(self._running(), gpu, nics)

    def _running(self) -> SimulatedNode:
        """Return this node as programs run on it."""
        from probes.simulation.bandwidth.node_pair import SimulatedNode

        if self._node is None:
            self._node = SimulatedNode((self, self.tree, self._seconds), self._seed, self._make_peer)
        return self._node

    def join(self, network: SimulatedNetwork, name: str) -> None:
        """Connect this node to others under a host name: its tests then reach them by their names."""
        self._node = network.connect(name, (self, self.tree, self._seconds), self._seed)

    def _make_peer(self) -> NodeParts:
        """Return another node of the same description, with the same faults."""
        peer = SimulatedHost(self.origin.label, self._seed + 1, self._clock, self._given)
        return peer, peer.tree, peer._seconds

    def nvml(self) -> Maybe[NvmlFacts]:
        return nvml_facts(self.tree)

    def nvml_live(self) -> Maybe[tuple[NvmlLive, ...]]:
        return nvml_live(self.tree, self._seconds())

    def dmabuf_errnos(self, devices: Sequence[str]) -> Mapping[str, Maybe[int]]:
        """Return EBADF for devices that support dma-buf regions, like a real probe."""
        names = {nic.name for nic in self.tree.nics}
        gpudirect = self._description.gpudirect
        supported = names.difference(gpudirect.refusing) if gpudirect.dmabuf else set()
        known = {name: errno.EBADF if name in supported else errno.EOPNOTSUPP for name in names}
        return {device: known.get(device, Unknown(Reason.NOT_THERE, device)) for device in devices}

    def data_direct_paths(self, devices: Sequence[str]) -> Mapping[str, Maybe[str]]:
        """Return the DMA functions that mlx5_ib has bound, if libmlx5 is new enough to ask."""
        if self._description.rdma_core < _FIRST_WITH_DATA_DIRECT:
            detail = "libmlx5 is older than rdma-core 54 on this host (containers have their own)"
            return {device: Unknown(Reason.NOT_THERE, device, detail) for device in devices}
        bound = {
            name: path.removeprefix("/sys")
            for name, path in self.tree.dma_functions.items()
            if "DRIVER=mlx5_ib\n" in self.tree.text(f"{path}/uevent")
        }
        return {device: bound.get(device, "") for device in devices}

    def cuda_gpus(self) -> Maybe[tuple[CudaGpu, ...]]:
        """Return what libcuda of the described driver reports, or the error of cuInit."""
        from probes.simulation.bandwidth.cuda import devices

        for module in ("nvidia", "nvidia_uvm"):
            if module not in self.tree.live_modules:
                detail = f"not queried, because /sys/module/{module} is missing"
                return Unknown(Reason.NOT_THERE, "libcuda", detail)
        if missing := library_missing(self.tree):
            return Unknown(Reason.NOT_THERE, "libcuda", missing)
        found = devices(self.tree, {})
        if isinstance(found, int):
            return Unknown(Reason.DRIVER_ERROR, "libcuda", f"cuInit(0) returned {found}")
        rdma, dmabuf = self._description.offers_gdr, self._description.exports_dmabuf
        return tuple(CudaGpu(device.bdf, rdma, dmabuf) for device in found)

    def process_usage(self, pids: Sequence[int]) -> Mapping[int, Maybe[ProcessUsage]]:
        """What the simulated /proc says; every process has run as long as the node."""
        began = self._started_at - OPENED
        since = {program.pid: program.since for program in self.tree.programs}

        def started(pid: int, usage: ProcessUsage) -> ProcessUsage:
            return replace(usage, started_at=began + since.get(pid, 0.0))

        found = read_usage(self, pids)
        return {pid: map_known(usage, partial(started, pid)) for pid, usage in found.items()}

    interface_counters = read_counters
    thread_names = read_thread_names
    socket_inodes = read_socket_inodes

    def rdma_resources(self) -> Maybe[RdmaResources]:
        return self._from_netlink(rdma_resources)

    def packet_numbers(self) -> Maybe[tuple[PacketNumbers, ...]]:
        return self._from_netlink(packet_numbers)

    def tcp_sockets(self) -> Maybe[tuple[TcpSocket, ...]]:
        seconds = self._seconds()
        sockets = (found(seconds) for found in self.tree.sockets)
        return tuple(found for found in sockets if found.bytes >= LEAST_BYTES)

    def _from_netlink(self, read: Callable[[Tree, float], T]) -> Maybe[T]:
        seconds = self._seconds()
        if "ib_core" not in self.tree.live_modules:
            return Unknown(Reason.NOT_THERE, "RDMA netlink", "ib_core is not loaded")
        return read(self.tree, seconds)

    def rdma_statistics(self, names: Sequence[str]) -> Mapping[str, Maybe[dict[str, int]]]:
        seconds = self._seconds()
        return {
            name: {
                path.rpartition("/")[2]: int(content(seconds) if callable(content) else content)
                for path, content in self.tree.statistics[name].files.items()
            }
            if name in self.tree.statistics
            else Unknown(Reason.NOT_THERE, "RDMA netlink", "not asked where files have the counters")
            for name in names
        }

    def ethtool_counters(self, names: Sequence[str]) -> Mapping[str, Maybe[dict[str, int]]]:
        seconds = self._seconds()
        return {
            name: {counter: int(value(seconds)) for counter, value in self.tree.ethtool[name].items()}
            if name in self.tree.ethtool and self.tree.is_there(f"/sys/class/net/{name}")
            else Unknown(Reason.NOT_THERE, f"ethtool -S {name}")
            for name in names
        }

    def fec_states(self, names: Sequence[str]) -> Mapping[str, Maybe[FecState]]:
        absent = Unknown(Reason.NOT_THERE, SOURCE)
        return {
            name: FecState(self.tree.fec[name], {}) if name in self.tree.fec else absent for name in names
        }

    def kernel_messages(self) -> Maybe[tuple[KernelMessage, ...]]:
        self._seconds()
        lines = list(self.tree.kernel_log)
        first = len(lines) if self._messages_read is None else self._messages_read
        self._messages_read = len(lines)
        return tuple(_message(number, line) for number, line in enumerate(lines[first:], first))

    def ras_answer(self, address: str, command: str, seconds: float = ANSWER_SECONDS) -> Maybe[str]:
        """Return the answer of the first job's RAS service; its NCCL is too old for DIAGNOSTICS."""
        if command not in REPORTS and address == ADDRESS:
            return Unknown(Reason.DRIVER_ERROR, f"RAS at {address}", f"ERROR: Unknown command {command}")
        report = ras_report(self.tree, self._seconds()) if address == ADDRESS else None
        return _no_ras(address) if report is None else report

    def ras_events(self, address: str, last: bool = False) -> Maybe[tuple[str, ...]]:
        now = self._seconds()
        if address != ADDRESS or ras_report(self.tree, now) is None:
            return _no_ras(address)
        after, self._events_read = self._events_read, None if last else now
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.wall_clock()))
        return ras_events(self.tree, now if after is None else after, now, clock)

    def collectives(self, path: str, user: Maybe[int]) -> Maybe[tuple[CollectiveSpeed, ...]]:
        return map_known(self.read_bytes(path, METRICS_BYTES), partial(parse, path))

    def component_history(self) -> Maybe[ComponentHistory]:
        return component_history(self.tree, self._started_at)

    def is_root(self) -> bool:
        return False  # a simulated node is never read as root

    def monotonic(self) -> float:
        return self._clock()

    def wall_clock(self) -> float:
        """Return the time of day: the real one with the real clock, one in 2023 with a test clock."""
        return self._started_at + self._seconds() - OPENED


def _no_ras(address: str) -> Unknown:
    return Unknown(Reason.NOT_THERE, f"RAS at {address}", "nothing is listening there")


def _message(sequence: int, line: str) -> KernelMessage:
    """Return a line of `dmesg --raw`: "<4>[ 3000.000000] text"."""
    priority, _, rest = line.removeprefix("<").partition(">[")
    at, _, text = rest.partition("] ")
    return KernelMessage(sequence, float(at), int(priority), printable(text.strip(), MESSAGE_CHARACTERS))


# Simulated nodes that run one training job together.

# With this between the seeds of two nodes, their jobs have the same phases, and a fault hits the same rank.
_SEEDS_APART = 7 * 8


def job_nodes(
    name: str,
    count: int,
    faults: Mapping[int, str] | None = None,
    seed: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, SimulatedHost]:
    """Return nodes of the kind `name` by host name, gpu001 and so on, with the ranks of one job.

    `faults`: by the number of a node, as after the "+" of `--demo`. What such a fault does to the traffic of
    all NICs of its node, it does to the whole job.
    """
    wanted = faults or {}
    nodes: dict[str, SimulatedHost] = {}
    for number in range(count):
        host_name = f"gpu{number + 1:03}"
        description = replace(describe(name), hostname=host_name, job_nodes=count, job_node=number)
        label = f"{name}+{wanted[number]}" if wanted.get(number) else name
        nodes[host_name] = SimulatedHost(label, seed + number * _SEEDS_APART, clock, description)
    hosts = list(nodes.values())
    for number in wanted:
        for steps in common_steps(hosts[number].tree):
            for other, host in enumerate(hosts):
                if other not in wanted:
                    scale_job(host.tree, steps)
    return nodes
