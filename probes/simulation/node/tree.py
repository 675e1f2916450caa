"""The tree of a simulated node: files, links and directories such as a kernel shows, and names in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from probes.base.unknown import Maybe, Reason, Unknown
from probes.simulation.node.description import NicDescription, NodeDescription

Content = str | bytes | Callable[[float], str]
"""A file's content, or what gives it at so many seconds since the node began."""

Answer = Callable[[tuple[str, ...], float], Maybe[str]]
"""What a command prints, of its argv and of the seconds since the node began."""

GIB = 1 << 30
_MAX_LINKS = 40  # as the kernel's, path_resolution(7)

# What each module needs, directly: as modules.dep of a node with and without OFED has it.
_NEEDS = {
    "ib_core": (),
    "ib_uverbs": ("ib_core",),
    "rdma_cm": ("ib_core",),
    "mlx4_core": (),
    "mlx4_ib": ("ib_core", "ib_uverbs", "mlx4_core"),
    "mlx5_core": (),
    "mlx5_ib": ("ib_core", "ib_uverbs", "mlx5_core"),
    "nvidia": (),
    "nvidia_uvm": ("nvidia",),
    "nvidia_peermem": ("nvidia", "ib_core"),
    "gdrdrv": ("nvidia",),
    "nvidia_fs": ("nvidia",),
    "nv_peer_mem": ("ib_core", "nvidia"),
    "rdma_ucm": ("rdma_cm", "ib_uverbs"),
}


@dataclass(frozen=True)
class PlacedGpu:
    """A GPU and where the description put it."""

    bdf: str
    numa: int


@dataclass(frozen=True)
class PlacedNic:
    """A NIC, its kind, its RDMA name and its place."""

    bdf: str
    name: str
    kind: NicDescription
    numa: int
    path: str


@dataclass(frozen=True)
class Refusal:
    """Why the kernel does not take a module: the error that modprobe names, and what the log says."""

    error: str
    says: tuple[tuple[int, str], ...] = ()  # level and line


@dataclass(frozen=True)
class Removed:
    """What was at a path and below it."""

    files: dict[str, Content] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    directories: frozenset[str] = frozenset()


@dataclass
class Tree:
    """Files, links and directories of a node; everything a probe may ask is here or is not there."""

    description: NodeDescription
    seed: int
    files: dict[str, Content] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    directories: dict[str, set[str]] = field(default_factory=lambda: {"/": set()})
    gpus: list[PlacedGpu] = field(default_factory=list)
    nics: list[PlacedNic] = field(default_factory=list)
    nvswitches: list[str] = field(default_factory=list)
    live_modules: list[str] = field(default_factory=list)
    commands: dict[str, Answer] = field(default_factory=dict)  # by the name of the program
    denied: set[str] = field(default_factory=set)  # device files that this user may not open
    kernel_log: list[str] = field(default_factory=list)  # lines as `dmesg --raw` has them
    units: dict[str, str] = field(default_factory=dict)  # service, without ".service" -> ActiveState
    journal: dict[str, list[str]] = field(default_factory=dict)  # service -> what it said
    holds: dict[tuple[str, str], Callable[[float], int]] = field(default_factory=dict)
    """Module and who holds it -> how many references, at so many seconds."""
    refusals: dict[str, Refusal] = field(default_factory=dict)  # module -> why it is not taken
    aside: dict[str, list[Removed]] = field(default_factory=dict)  # module -> what went with it
    mig: set[int] = field(default_factory=set)  # GPUs on which MIG is on
    persistent: set[int] = field(default_factory=set)  # GPUs in persistence mode

    def add(self, path: str, content: Content) -> None:
        """Adds a file with its directories."""
        self.files[path] = content
        self._enter(path)

    def remove(self, path: str) -> Removed:
        """Removes a file, a link, or a directory with all that is below it."""

        def below(names: Iterable[str]) -> list[str]:
            return [name for name in names if name == path or name.startswith(f"{path}/")]

        removed = Removed(
            {name: self.files.pop(name) for name in below(self.files)},
            {name: self.links.pop(name) for name in below(self.links)},
            frozenset(below(self.directories)),
        )
        for name in removed.directories:
            self.directories.pop(name)
        parent, _, name = path.rpartition("/")
        self.directories.get(parent or "/", set()).discard(name)
        return removed

    def restore(self, removed: Removed) -> None:
        """Puts back what was removed."""
        for path in removed.directories:
            self.directory(path)
        for path, target in removed.links.items():
            self.link(path, target)
        for path, content in removed.files.items():
            self.add(path, content)

    def link(self, path: str, target: str) -> None:
        """Adds a symbolic link with its directories."""
        self.links[path] = target
        self._enter(path)

    def directory(self, path: str) -> None:
        """Adds a directory."""
        if path not in self.directories:
            self.directories[path] = set()
            self._enter(path)

    def let_go(self, holder: str) -> None:
        """Who held modules has ended."""
        for key in [key for key in self.holds if key[1] == holder]:
            del self.holds[key]

    def is_there(self, path: str) -> bool:
        """Whether there is a file, a link or a directory of this name."""
        return path in self.files or path in self.links or path in self.directories

    def text(self, path: str) -> str:
        """A file's text as it was written; empty where there is none."""
        content = self.files.get(path)
        return content if isinstance(content, str) else ""

    def real(self, path: str) -> str | Unknown:
        """The path with its links resolved."""
        if path in self.files or (path in self.directories and path not in self.links):
            return path
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
        parent, _, name = path.rpartition("/")
        self.directory(parent or "/")
        self.directories[parent or "/"].add(name)


def uuid_of(number: int) -> str:
    """A made-up UUID that is seen to be one."""
    return f"GPU-51a01a7e-d000-0000-0000-{number:012x}"


def hash_of(name: str) -> int:
    """A number that belongs to a name, the same in every process."""
    return int.from_bytes(name.encode()[:12], "big")


def needs_of(node: NodeDescription, name: str) -> tuple[str, ...]:
    """The modules a module needs, directly; nvidia_peermem built without OFED needs no ib module."""
    if name == "nvidia_peermem" and not node.modules.ofed:
        return ("nvidia",)
    return _NEEDS.get(name, ())


def file_of(node: NodeDescription, name: str) -> str:
    """The .ko below /lib/modules/RELEASE."""
    if name.startswith("nvidia") or name in ("gdrdrv", "nv_peer_mem"):
        return f"updates/dkms/{name.replace('_', '-') if name != 'nvidia_fs' else name}.ko"
    if node.modules.ofed:
        return f"updates/dkms/mlnx-ofed-kernel/{name}.ko"
    return f"kernel/drivers/infiniband/{name}.ko"
