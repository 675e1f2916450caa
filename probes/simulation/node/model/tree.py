"""The tree of a simulated node: files, links and directories as a kernel shows them, and other state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.kernel.modules import USUAL_NEEDS
from probes.facts.pci.nic_families import PLUGIN_ONLY, VERBS_MODULES
from probes.host.protocol import CommandOutput
from probes.host.tcp_sockets import TcpSocket
from probes.simulation.node.model.description import NicDescription, NodeDescription
from probes.simulation.node.model.workload import Steps

Content = str | bytes | Callable[[float], str]
"""Content of a file, or a function that returns it for the seconds since the node started."""

Answer = Callable[[tuple[str, ...], float], Maybe[str | CommandOutput]]
"""Output of a command for its argv and the seconds since the node started; a text is a success."""

GIB = 1 << 30
PEERMEM_REGION_BYTES = 64 << 20  # the job sets NCCL_BUFFSIZE
_MAX_LINKS = 40  # the kernel's limit, path_resolution(7)
WARNING = 4
BOOT_MESSAGES = (
    (5, 0.0, "Linux version {kernel} (simulated) #1 SMP"),
    (6, 0.0, "Command line: {cmdline}"),
    (4, 11.204118, "nvidia: loading out-of-tree module taints kernel."),
    (6, 12.731604, "nvidia-nvlink: Nvlink Core is being initialized, major device number 235"),
)

# Of vendors' modules that their own packages build: AWS's and HPE's.
VENDOR_PREFIXES = tuple(family.pci_drivers[0].partition("_")[0] for family in PLUGIN_ONLY)

# Direct dependencies of each module, from modules.dep of nodes with and without OFED.
_DEPENDENCIES = {
    **dict.fromkeys(VERBS_MODULES, ("ib_core", "ib_uverbs")),
    **USUAL_NEEDS,
    "nvidia_peermem": ("nvidia", "ib_core"),
    "ib_umad": ("ib_core",),
    "cxi_eth": ("cxi_ss1",),
    "rdma_ucm": ("rdma_cm", "ib_uverbs"),
}


class Via(Enum):
    """How a program's data reaches the network."""

    PEERMEM = "peermem"
    DMABUF = "DMA-BUF"
    PLUGIN = "network plugin"  # straight from GPU memory, without verbs
    HOST = "host memory"  # a rank copies GPU memory through it
    TCP = "TCP"
    NONE = "none"  # it has opened the NICs, and has no queue pairs

    @property
    def is_gdr(self) -> bool:
        """Whether the NICs access GPU memory, by verbs."""
        return self in (Via.PEERMEM, Via.DMABUF)


@frozen
class Pool:
    """Memory that a program registers with each of its NICs, and its queue pairs there, all in RTS."""

    length_bytes: int
    queue_pairs: tuple[tuple[str, int], ...]  # kind and number: ("UD", 2)


@dataclass
class Program:
    """A process that uses RDMA, such as a rank of a job; times in seconds since the node started."""

    pid: int
    gpu: int | None  # number
    nics: tuple[str, ...]  # devices with its queue pairs
    opened: tuple[str, ...]  # devices that it has opened
    via: Via
    slot: int  # its rank on this node
    is_nccl: bool = True
    pool: Pool | None = None  # of a storage client, and of an inference engine
    parent: int = 1
    since: float = 0.0
    stopped_at: float | None = None  # SIGSTOP
    is_blocked: bool = False  # in a driver, where no signal arrives
    behind_at: float | None = None  # from then on it launches no collectives
    logged_via: Via | None = None  # the path in its log; None: `via`
    logged_nics: tuple[str, ...] | None = None  # the NICs that its log lists; None: all compute NICs
    logged_lines: tuple[str, ...] = ()  # more INFO lines at its start
    logged_warnings: tuple[str, ...] = ()  # WARN lines at the end, with file and line

    @property
    def path_in_log(self) -> Via:
        """The path that its log shows."""
        return self.logged_via or self.via

    def is_stopped(self, seconds: float) -> bool:
        """Say whether the process is stopped at a moment."""
        return self.stopped_at is not None and seconds >= self.stopped_at

    def state(self, seconds: float) -> str:
        """Return its state in /proc at a moment."""
        return "T" if self.is_stopped(seconds) else "D" if self.is_blocked else "R"


@frozen
class EngineLoad:
    """The load of an inference engine: its GPUs by number, and what each moves in bytes a second."""

    gpus: tuple[int, ...]
    load: Callable[[float], float]  # 0 to 1
    pcie: tuple[Callable[[float], float], Callable[[float], float]]  # sent and received
    nvlink: tuple[Callable[[float], float], Callable[[float], float]]


@frozen
class PlacedGpu:
    """A GPU and its place."""

    bdf: str
    numa: int


@frozen
class PlacedNic:
    """A NIC with its kind, RDMA device name and place."""

    bdf: str
    name: str
    kind: NicDescription
    numa: int
    path: str
    number: int = 0  # among the NICs of its kind


@frozen
class Refusal:
    """Why the kernel refuses a module."""

    error: str  # as modprobe prints it
    log_lines: tuple[tuple[int, str], ...] = ()  # level and text


@frozen
class Removed:
    """Everything that was at a path and below it."""

    files: dict[str, Content] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    directories: frozenset[str] = frozenset()


@dataclass
class Tree:
    """A node: the files, links and directories that a probe can ask for, and the state behind them."""

    description: NodeDescription
    seed: int
    boot: int = 1  # how often the node has started
    files: dict[str, Content] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    directories: dict[str, set[str]] = field(default_factory=lambda: {"/": set()})
    gpus: list[PlacedGpu] = field(default_factory=list)
    nics: list[PlacedNic] = field(default_factory=list)
    dma_functions: dict[str, str] = field(default_factory=dict)  # path of a NIC's DMA function, by its name
    nvswitches: list[str] = field(default_factory=list)
    bridges: list[PlacedNic] = field(default_factory=list)  # functions that manage NVSwitches
    live_modules: list[str] = field(default_factory=list)
    symbol_versions: dict[str, int] = field(default_factory=dict)  # of symbols that loaded modules export
    commands: dict[str, Answer] = field(default_factory=dict)  # by program name
    drained_for: str | None = None  # the reason why Slurm starts no job here; None: it does
    denied: set[str] = field(default_factory=set)  # device files that this user cannot open
    refused: set[str] = field(default_factory=set)  # device files that the kernel does not let anyone open
    kernel_log: list[str] = field(default_factory=list)  # lines in the format of `dmesg --raw`
    units: dict[str, str] = field(default_factory=dict)  # service, without ".service" -> ActiveState
    journal: dict[str, list[str]] = field(default_factory=dict)  # service -> messages
    references: dict[tuple[str, str], Callable[[float], int]] = field(default_factory=dict)
    """(module, holder) -> number of references, as a function of the seconds."""
    unstarted: str = ""  # why the driver has started no GPU; "": it has
    refusals: dict[str, Refusal] = field(default_factory=dict)  # by module
    removed_with: dict[str, list[Removed]] = field(default_factory=dict)  # by module
    not_installed: dict[str, list[Removed]] = field(default_factory=dict)  # what packages bring, by product
    mig: set[int] = field(default_factory=set)  # GPUs with MIG enabled
    persistent: set[int] = field(default_factory=set)  # GPUs in persistence mode
    programs: list[Program] = field(default_factory=list)  # with GPUs or RDMA
    kernel_clients: dict[str, str] = field(default_factory=dict)  # a module with queue pairs, by device
    sockets: list[Callable[[float], TcpSocket]] = field(default_factory=list)
    """TCP connections, as a function of the seconds."""
    lost: set[int] = field(default_factory=set)  # GPUs that fell off the bus while gdrtop ran
    throttled: set[int] = field(default_factory=set)  # GPUs that are too hot
    neighbors: dict[str, dict[str, Any]] = field(default_factory=dict)  # what lldpd has heard, by netdev
    ethtool: dict[str, dict[str, Callable[[float], float]]] = field(default_factory=dict)
    """Counters of `ethtool -S` by netdev."""
    fec: dict[str, str] = field(default_factory=dict)
    """FEC mode by netdev."""
    engine_loads: list[EngineLoad] = field(default_factory=list)  # inference engines
    statistics: dict[str, Removed] = field(default_factory=dict)
    """Counters of ports in another network namespace, which RDMA netlink shows, by "mlx5_0/1"."""
    traffic: dict[str, list[Steps]] = field(default_factory=dict)  # what faults do to a NIC's, by device
    planned: list[tuple[float, Callable[[Tree], None]]] = field(default_factory=list)
    """Changes to come, by the seconds since the node started."""
    slow_before: set[str] = field(default_factory=set)  # NICs that were the slow ones of earlier jobs
    most_gbps: dict[str, float] = field(default_factory=dict)  # what a NIC with a fault carries, by device
    resolved: dict[str, str | Unknown] = field(default_factory=dict)  # a cache of real()

    @property
    def cards(self) -> list[PlacedNic]:
        """Everything with an RDMA device: NICs, and the functions that manage NVSwitches."""
        return [*self.nics, *self.bridges]

    @property
    def compute_nics(self) -> list[PlacedNic]:
        """The NICs of training jobs."""
        compute = self.description.nic.get("compute")
        return [nic for nic in self.nics if nic.kind is compute]

    def nic(self, name: str) -> PlacedNic:
        """Return the NIC with this RDMA device; KeyError without one."""
        return {nic.name: nic for nic in self.nics}[name]

    def plan(self, seconds: float, change: Callable[[Tree], None]) -> None:
        """Make a change at a moment to come."""
        self.planned.append((seconds, change))
        self.planned.sort(key=lambda moment: moment[0])

    def advance(self, seconds: float) -> None:
        """Make the changes that are due."""
        while self.planned and self.planned[0][0] <= seconds:
            self.planned.pop(0)[1](self)

    def add(self, path: str, content: Content) -> None:
        """Add a file and its directories."""
        self.files[path] = content
        self._enter(path)

    def add_values(self, directory: str, values: Mapping[str, object]) -> None:
        """Add files of one value each, as in sysfs."""
        for name, value in values.items():
            self.add(f"{directory}/{name}", f"{value}\n")

    def remove(self, path: str) -> Removed:
        """Remove a file, a link, or a directory and everything below it."""

        def below(names: Iterable[str]) -> list[str]:
            return [name for name in names if name == path or name.startswith(f"{path}/")]

        removed = Removed(
            {name: self.files.pop(name) for name in below(self.files)},
            {name: self.links.pop(name) for name in below(self.links)},
            frozenset(below(self.directories)),
        )
        for name in removed.directories:
            self.directories.pop(name)
        self.resolved = {}
        parent, _, name = path.rpartition("/")
        self.directories.get(parent or "/", set()).discard(name)
        return removed

    def restore(self, removed: Removed) -> None:
        """Restore what `remove` returned."""
        for path in removed.directories:
            self.directory(path)
        for path, target in removed.links.items():
            self.link(path, target)
        for path, content in removed.files.items():
            self.add(path, content)

    def link(self, path: str, target: str) -> None:
        """Add a symbolic link and its directories."""
        self.links[path] = target
        self._enter(path)

    def hidden_link(self, path: str, target: str) -> None:
        """Add a symbolic link that its directory does not list, like /proc/TID."""
        self.links[path] = target
        self.resolved = {}

    def directory(self, path: str) -> None:
        """Add a directory."""
        if path not in self.directories:
            self.directories[path] = set()
            self._enter(path)

    def drop_references(self, holder: str) -> None:
        """Drop the module references of a holder that has ended."""
        for key in [key for key in self.references if key[1] == holder]:
            del self.references[key]

    def is_there(self, path: str) -> bool:
        """Return whether a file, link or directory has this path."""
        return path in self.files or path in self.links or path in self.directories

    def text(self, path: str) -> str:
        """Return the text of a file; empty if there is none or it is computed."""
        content = self.files.get(path)
        return content if isinstance(content, str) else ""

    def content(self, path: str, seconds: float) -> Maybe[bytes]:
        """Return the content of a file at a moment, with its links resolved."""
        content = self.files.get(path)
        if content is None:
            real = self.real(path)
            if isinstance(real, Unknown):
                # debugfs is for root, and a simulated node is never read as root.
                hidden = path.startswith("/sys/kernel/debug/")
                return Unknown(Reason.NEEDS_ROOT, path) if hidden else real
            if real not in self.files:
                return Unknown(Reason.MALFORMED, path, "Is a directory")
            content = self.files[real]
        if isinstance(content, str):
            return content.encode()
        return content if isinstance(content, bytes) else content(seconds).encode()

    def real(self, path: str) -> str | Unknown:
        """Return the path with its links resolved."""
        resolved = self.resolved  # another one from the next change of the tree on
        found = resolved.get(path)
        if found is not None:
            return found
        if path in self.files or (path in self.directories and path not in self.links):
            return path
        found = resolved[path] = self._resolve(path)
        return found

    def _resolve(self, path: str) -> str | Unknown:
        done: list[str] = []
        left = path.split("/")[::-1]
        links = 0
        while left:
            part = left.pop()
            if part in ("", "."):
                continue
            if part == "..":
                del done[-1:]
                continue
            here = "/" + "/".join((*done, part))
            target = self.links.get(here)
            if target is None:
                done.append(part)
                continue
            links += 1
            if links > _MAX_LINKS:
                return Unknown(Reason.MALFORMED, path, "too many links")
            if target.startswith("/"):
                done.clear()
            left.extend(target.split("/")[::-1])
        real = "/" + "/".join(done)
        if real in self.files or real in self.directories:
            return real
        return Unknown(Reason.NOT_THERE, path)

    def _enter(self, path: str) -> None:
        self.resolved = {}
        parent, _, name = path.rpartition("/")
        parent = parent or "/"
        if parent not in self.directories:
            self.directory(parent)
        self.directories[parent].add(name)


def uuid_of(number: int) -> str:
    """Return a UUID that is recognizable as made up."""
    return f"GPU-51a01a7e-d000-0000-0000-{number:012x}"


def hash_of(name: str) -> int:
    """Return a hash of a name that is the same in every process."""
    return int.from_bytes(name.encode()[:12], "big")


def dependencies_of(name: str, has_ofed: bool) -> tuple[str, ...]:
    """Return the direct dependencies; nvidia_peermem built without OFED does not depend on ib_core."""
    if name == "nvidia_peermem" and not has_ofed:
        return ("nvidia",)
    return _DEPENDENCIES.get(name, ())


def module_path(node: NodeDescription, name: str) -> str:
    """Return the path of the .ko below /lib/modules/RELEASE."""
    if name.startswith(VENDOR_PREFIXES):
        return f"updates/dkms/{name.replace('_', '-') if name.startswith('cxi') else name}.ko"
    if name.startswith("nvidia") or name in ("gdrdrv", "nv_peer_mem"):
        return f"updates/dkms/{name.replace('_', '-') if name != 'nvidia_fs' else name}.ko"
    if node.modules.ofed:
        return f"updates/dkms/mlnx-ofed-kernel/{name}.ko"
    return f"kernel/drivers/infiniband/{name}.ko"


def add_kernel_log(tree: Tree) -> None:
    """Add the messages of every boot."""
    tree.add("/proc/sys/kernel/dmesg_restrict", "0\n")
    tree.commands["dmesg"] = lambda argv, seconds: "".join(tree.kernel_log)
    node = tree.description
    for level, at_seconds, line in BOOT_MESSAGES:
        log(tree, line.format(kernel=node.kernel, cmdline=node.cmdline), at_seconds, level)


def log(tree: Tree, text: str, at_seconds: float = 3000.0, level: int = WARNING) -> None:
    """Append a line to the kernel log."""
    tree.kernel_log.append(f"<{level}>[{at_seconds:12.6f}] {text}\n")
