"""A node in a directory whose RDMA resources, threads and NVML answers a test sets; it counts questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from probes.base.origin import Origin, Source
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.gpudirect import PeermemReading
from probes.facts.kernel.release import KernelFacts
from probes.facts.node import Node
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts
from probes.host.machine.local import LocalHost
from probes.host.nvml import NvmlLive
from probes.host.protocol import CommandOutput
from probes.host.rdma_resources import MemoryRegion, ProtectionDomain, QueuePair, RdmaContext, RdmaResources
from probes.host.usage import ProcessUsage
from probes.live.model.paced_source import read_together
from probes.live.model.sample import LiveProcess
from probes.live.processes.processes import ProcessReader, ProcessSnapshot
from probes.snapshot.rates import Reading
from tests.support.trees import link, write

MIB = 1 << 20
_NO = Unknown(Reason.NOT_THERE, "test")
THREADS = ("NCCL IbAsync  0", "NCCL Service  0", "python3")
NO_PEERMEM = PeermemReading(_NO, _NO)


class LiveNode(LocalHost):
    """Questions are answered from the tree and from the attributes."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.path = root
        self.asked: Counter[str] = Counter()
        self.resources: Maybe[RdmaResources] | Callable[[], Maybe[RdmaResources]] = RdmaResources(
            # Of the kernel, as on every idle NIC.
            queue_pairs=(QueuePair("mlx5_0", 1, "GSI", "RTS", kernel_name="ib_core"),),
            shares_namespaces=True,
        )
        self.threads: dict[int, tuple[str, ...]] = {}
        self.denied: tuple[str, ...] = ()
        self.commands: dict[str, str] = {}
        self.gpus: dict[str, tuple[int, ...]] = {}
        self.peermem = NO_PEERMEM
        self.opened = 3  # references to ib_uverbs
        link(root, "/proc/self", "99999")

    def rdma_resources(self) -> Maybe[RdmaResources]:
        self.asked["rdma_resources"] += 1
        return self.resources() if callable(self.resources) else self.resources

    def thread_names(self, pids: Sequence[int]) -> Mapping[int, Maybe[tuple[str, ...]]]:
        self.asked["thread_names"] += 1
        return {pid: self.threads.get(pid, ("python3",)) for pid in pids}

    def process_usage(self, pids: Sequence[int]) -> Mapping[int, Maybe[ProcessUsage]]:
        self.asked["process_usage"] += 1
        return {pid: ProcessUsage("alice", 1.0, MIB, "0-3", 0.0) for pid in pids}

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        self.asked[argv[0]] += 1
        output = self.commands.get(argv[0])
        if output is None:
            return Unknown(Reason.NOT_THERE, argv[0], "not installed")
        return CommandOutput(tuple(argv), 0, output, "")

    def read_bytes(self, path: str, limit: int = 65536) -> Maybe[bytes]:
        self.asked["read"] += 1
        self.asked[path] += 1
        if path.endswith(self.denied or ("\0",)):
            return Unknown(Reason.NEEDS_ROOT, path)
        return super().read_bytes(path, limit)

    def names(self, path: str) -> Maybe[tuple[str, ...]]:
        self.asked[path] += 1
        return super().names(path)

    # What a test adds

    def add_process(
        self,
        pid: int,
        pinned: int | None = 0,
        environ: str = "RANK=0\0WORLD_SIZE=16\0",
        program: str = "train.py",
        cgroup: str = "",
        parent: int = 1,
        ticks: int = 0,
        started: int = 100,
        libraries: str = "",
    ) -> None:
        """Write the files of a process. `pinned`: VmPin in bytes; None: no such line."""
        base = f"/proc/{pid}"
        files = {
            "comm": "python3\n",
            "cmdline": f"python3\0{program}\0",
            "environ": environ,
            "maps": libraries,
            "limits": "",
            "cgroup": f"0::{cgroup or '/user.slice'}\n",
            "fd/.keep": "",
        }
        for name, text in files.items():
            write(self.path, f"{base}/{name}", text)
        self.set_status(pid, pid, pinned, parent)
        self.set_stat(pid, "R", parent, ticks, started)

    def set_status(self, thread: int, pid: int, pinned: int | None, parent: int = 1) -> None:
        """Write /proc/THREAD/status."""
        line = "" if pinned is None else f"VmPin:\t{pinned // 1024:8} kB\n"
        ids = f"Tgid:\t{pid}\nPPid:\t{parent}\nUid:\t1000\t1000\t1000\t1000\n"
        text = f"Name:\tpython3\nState:\tR (running)\n{ids}{line}"
        write(self.path, f"/proc/{thread}/status", text)

    def set_stat(
        self, pid: int, state: str = "R", parent: int = 1, ticks: int = 0, started: int = 100
    ) -> None:
        """Write /proc/PID/stat, with a name that is hard to parse."""
        zeros = "0 " * 9
        text = f"{pid} (a) b (c) {state} {parent} {zeros}{ticks} 0 0 0 20 0 1 0 {started} 0 0\n"
        write(self.path, f"/proc/{pid}/stat", text)

    def end(self, pid: int) -> None:
        """Remove what identifies a process."""
        for name in ("stat", "status"):
            (self.path / f"proc/{pid}/{name}").unlink()


def resources_of(
    *holders: tuple[int, Sequence[int]], device: str = "mlx5_0", ready: bool = True, pairs: int = 2
) -> RdmaResources:
    """Return the objects of processes, each given as pid and lengths of its regions."""
    state = "RTS" if ready else "INIT"
    return RdmaResources(
        queue_pairs=tuple(
            QueuePair(device, pid * 10 + number, "RC", state, 1, 1, pid, pid)
            for pid, _ in holders
            for number in range(pairs)
        ),
        regions=tuple(
            MemoryRegion(device, pid * 10 + number, length, pid, pid)
            for pid, lengths in holders
            for number, length in enumerate(lengths)
        ),
        domains=tuple(ProtectionDomain(device, pid, pid, pid) for pid, _ in holders),
        contexts=tuple(RdmaContext(device, pid, pid) for pid, _ in holders),
        shares_namespaces=True,
    )


def joined(*parts: RdmaResources) -> RdmaResources:
    """Return the objects of all parts."""
    return RdmaResources(
        queue_pairs=tuple(pair for part in parts for pair in part.queue_pairs),
        regions=tuple(region for part in parts for region in part.regions),
        domains=tuple(domain for part in parts for domain in part.domains),
        contexts=tuple(context for part in parts for context in part.contexts),
        shares_namespaces=parts[0].shares_namespaces,
    )


def node_with(*devices: str, version: tuple[int, int] = (6, 8)) -> Node:
    """Return a node of which only RDMA devices and kernel version are known."""
    kernel = KernelFacts(_NO, version, _NO, _NO, _NO, _NO, _NO, _NO)
    rdma = RdmaFacts(tuple(_device(name) for name in devices or ("mlx5_0",)))
    names = ("platform", "numa", "pci", "gpus", "modules", "gpudirect", "data_direct", "network")
    unread = dict.fromkeys(names, _NO)
    return Node(Origin(Source.LIVE), 1000.0, kernel=kernel, rdma=rdma, **unread)


def _device(name: str) -> RdmaDevice:
    unknown = [_NO] * 11
    bdf, driver, node_type, firmware, hca, board, guid, image, numa, uverbs, number = unknown
    del driver
    return RdmaDevice(
        name,
        "/sys",
        bdf,
        "mlx5_core",
        node_type,
        firmware,
        hca,
        board,
        guid,
        image,
        numa,
        False,
        uverbs,
        number,
        (),
    )


class Samples:
    """Take one sample after the other, a second apart."""

    def __init__(self, host: LiveNode, node: Node | None = None) -> None:
        self.host = host
        self.node = node or node_with()
        self.seconds = 0.0
        self.now = 0.0
        self.reader = ProcessReader(clock=lambda: self.seconds)

    def next(self, after: float = 1.0) -> ProcessSnapshot:
        """Return the processes `after` seconds later."""
        self.now += after
        reading = self.reading()
        read_together(self.host, self.now, *self.reader.questions(self.host, self.node, reading))
        return self.reader.read(self.node, reading)

    def reading(self) -> Reading:
        """Return what NVML and nvidia_peermem say now."""
        gpus = {bdf: _live(bdf, pids) for bdf, pids in self.host.gpus.items()}
        return Reading(self.now, {}, gpus, self.host.peermem, {"ib_uverbs": self.host.opened}, {})


def _live(bdf: str, pids: tuple[int, ...]) -> NvmlLive:
    return NvmlLive(bdf, _NO, _NO, _NO, _NO, _NO, _NO, _NO, _NO, pids)


def only(snapshot: ProcessSnapshot) -> LiveProcess:
    """Return the only process."""
    assert not isinstance(snapshot.processes, Unknown), snapshot
    (process,) = snapshot.processes
    return process
