"""The tree of a twin: what the node answers, below the changes that commands made on the twin.

Commands of the simulation read and write a Tree. This one holds only the changes, and asks the node for
everything else, read-only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.host.protocol import Host
from probes.simulation.node.model.description import NodeDescription
from probes.simulation.node.model.tree import Content, Removed, Tree

FILE_LIMIT_BYTES = 32 << 20
_MAX_DEPTH = 64
_OF_KERNEL = ("/proc/", "/sys/", "/dev/")
_INDEXES = "/lib/modules/"
T = TypeVar("T")


class TwinTree(Tree):
    """Changes over a host; every path in it is resolved."""

    def __init__(self, base: Host, description: NodeDescription, disk: Host | None = None) -> None:
        """Make a tree over a node; `disk`: what has the files of its disk, if not the node itself."""
        super().__init__(description, 0)
        self.base = base
        self.disk = base if disk is None else disk
        self._texts: dict[str, str] = {}  # of the disk's large files, which many commands read
        self.hidden: set[str] = set()  # removed, with everything below
        self.made: dict[str, set[str]] = {"/": set()}  # directory -> names that were added to it
        self.files: dict[str, Content] = _Overlay(self._node_file)
        self.links: dict[str, str] = _Overlay(
            lambda path: None if self.is_hidden(path) else known(self.host_of(path).link(path), None)
        )
        self.directories: dict[str, set[str]] = _Overlay(
            lambda path: known(map_known(self.node_names(path), set), None)
        )

    def host_of(self, path: str) -> Host:
        """Return the host that has a path: the node for what its kernel shows, else the disk."""
        return self.base if f"{path}/".startswith(_OF_KERNEL) else self.disk

    # What has changed

    def changed_file(self, path: str) -> Content | None:
        """Return the content of a file that was written on the twin."""
        return dict.get(self.files, path)

    def changed_link(self, path: str) -> str | None:
        """Return the target of a link that was made on the twin."""
        return dict.get(self.links, path)

    def is_hidden(self, path: str) -> bool:
        """Return whether a path was removed on the twin, or a directory above it."""
        if not self.hidden or path in self.made:
            return False
        while len(path) > 1:
            if path in self.hidden:
                return True
            path = path.rpartition("/")[0]
        return False

    # As Tree

    def add(self, path: str, content: Content) -> None:
        dict.__setitem__(self.files, path, content)
        self._made(path)

    def link(self, path: str, target: str) -> None:
        dict.__setitem__(self.links, path, target)
        self._made(path)

    def directory(self, path: str) -> None:
        if path not in self.made and path not in self.directories:
            self.made[path] = set()
            self._made(path)

    def remove(self, path: str) -> Removed:
        def below(entries: dict[str, Any]) -> list[str]:
            return [name for name in dict.keys(entries) if name == path or name.startswith(f"{path}/")]

        was_directory = path in self.directories
        removed = Removed(
            {name: dict.pop(self.files, name) for name in below(self.files)},
            {name: dict.pop(self.links, name) for name in below(self.links)},
            frozenset({path} if was_directory else ()) | frozenset(below(self.made)),
        )
        for name in below(self.made):
            del self.made[name]
        if not was_directory and not removed.files and not removed.links:
            # A file or link of the node itself: its place is all that is needed to bring it back.
            removed = Removed(directories=frozenset({path}))
        self.hidden.add(path)
        parent, _, name = path.rpartition("/")
        self.made.get(parent or "/", set()).discard(name)
        return removed

    def restore(self, removed: Removed) -> None:
        self.hidden -= removed.directories
        super().restore(replace(removed, directories=frozenset()))

    def is_there(self, path: str) -> bool:
        if path in self.made or self.changed_file(path) is not None or self.changed_link(path) is not None:
            return True
        if self.is_hidden(path):
            return False
        host = self.host_of(path)
        return any(not isinstance(ask(path), Unknown) for ask in (host.size, host.link, host.names))

    def text(self, path: str) -> str:
        if path in self._texts and self.changed_file(path) is None:
            return self._texts[path]
        content = self.files.get(path)
        text = content if isinstance(content, str) else ""
        if path.startswith(_INDEXES):
            self._texts[path] = text
        return text

    def real(self, path: str) -> str | Unknown:
        return self._real(path.rstrip("/") or "/", 0)

    def _real(self, path: str, depth: int) -> str | Unknown:
        if path in self.made or self.changed_file(path) is not None:
            return path
        if depth > _MAX_DEPTH:
            return Unknown(Reason.MALFORMED, path, "too many links")
        if (target := self.changed_link(path)) is not None:
            parent = path.rpartition("/")[0]
            return self._real(_joined(parent, target), depth + 1)
        if self.is_hidden(path):
            return Unknown(Reason.NOT_THERE, path)
        resolved = self.host_of(path).resolve(path)
        if not isinstance(resolved, Unknown):
            return Unknown(Reason.NOT_THERE, path) if self.is_hidden(resolved) else resolved
        parent, _, name = path.rpartition("/")
        if not parent:
            return resolved
        above = self._real(parent, depth + 1)
        if isinstance(above, Unknown) or f"{above}/{name}" == path:
            return resolved
        return self._real(f"{above}/{name}", depth + 1)

    def _made(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        parent = parent or "/"
        if parent not in self.made:
            if parent not in self.directories:
                self._made(parent)
            self.made[parent] = set()
        self.made[parent].add(name)

    # What the node answers

    def _node_file(self, path: str) -> Content | None:
        """Return a file of the node: bytes of configuration space, text of everything else."""
        if self.is_hidden(path):
            return None
        content = self.host_of(path).read_bytes(path, FILE_LIMIT_BYTES)
        if isinstance(content, Unknown):
            return None
        return content if path.endswith("/config") else content.decode("utf-8", "replace")

    def node_names(self, path: str) -> Maybe[tuple[str, ...]]:
        """Return the names in a directory of the node, with the changes."""
        made = self.made.get(path)
        names: Maybe[tuple[str, ...]] = Unknown(Reason.NOT_THERE, path)
        if not (path in self.hidden or self.is_hidden(path)):
            names = self.host_of(path).names(path)
        if isinstance(names, Unknown):
            return names if made is None else tuple(sorted(made))
        left = {name for name in names if not self.hidden or f"{path.rstrip('/')}/{name}" not in self.hidden}
        return tuple(sorted(left | (made or set())))


def _joined(parent: str, target: str) -> str:
    if target.startswith("/"):
        return target
    done = parent.split("/")
    for part in target.split("/"):
        if part == "..":
            del done[-1:]
        elif part not in ("", "."):
            done.append(part)
    return "/".join(done) or "/"


class _Overlay(dict[str, T]):
    """What was changed, by path; every other path is asked of the node."""

    def __init__(self, of_node: Callable[[str], T | None]) -> None:
        super().__init__()
        self._of_node = of_node

    def __contains__(self, path: object) -> bool:
        return self.get(str(path)) is not None

    def get(self, path: str, default: Any = None) -> Any:
        changed = dict.get(self, path)
        found = self._of_node(path) if changed is None else changed
        return default if found is None else found

    def __getitem__(self, path: str) -> T:
        found: T | None = self.get(path)
        if found is None:
            raise KeyError(path)
        return found
