"""The tree of a simulated node: files, links and directories such as a kernel shows, and names in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from probes.simulation.description import NicDescription, NodeDescription
from probes.unknown import Maybe

Content = str | bytes | Callable[[float], str]
"""A file's content, or what gives it at so many seconds since the node began."""

Answer = Callable[[tuple[str, ...], float], Maybe[str]]
"""What a command prints, of its argv and of the seconds since the node began."""

GIB = 1 << 30

# What each module needs, directly: as modules.dep of a node with and without OFED has it.
_NEEDS = {
    "ib_core": (),
    "ib_uverbs": ("ib_core",),
    "rdma_cm": ("ib_core",),
    "mlx5_core": (),
    "mlx5_ib": ("ib_core", "ib_uverbs", "mlx5_core"),
    "nvidia": (),
    "nvidia_uvm": ("nvidia",),
    "nvidia_peermem": ("nvidia", "ib_core"),
    "gdrdrv": ("nvidia",),
    "nvidia_fs": ("nvidia",),
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

    def add(self, path: str, content: Content) -> None:
        """Adds a file with its directories."""
        self.files[path] = content
        self._enter(path)

    def remove(self, path: str) -> None:
        """Removes a file, a link, or a directory with all that is below it."""
        for known in (self.files, self.links, self.directories):
            for one in [name for name in known if name == path or name.startswith(f"{path}/")]:
                known.pop(one)
        parent, _, name = path.rpartition("/")
        self.directories.get(parent or "/", set()).discard(name)

    def link(self, path: str, target: str) -> None:
        """Adds a symbolic link with its directories."""
        self.links[path] = target
        self._enter(path)

    def directory(self, path: str) -> None:
        """Adds a directory."""
        if path not in self.directories:
            self.directories[path] = set()
            self._enter(path)

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
    if name.startswith("nvidia") or name == "gdrdrv":
        return f"updates/dkms/{name.replace('_', '-') if name != 'nvidia_fs' else name}.ko"
    if node.modules.ofed:
        return f"updates/dkms/mlnx-ofed-kernel/{name}.ko"
    return f"kernel/drivers/infiniband/{name}.ko"
