"""The files of depmod about one kernel's modules: modules.dep, modules.symbols, modules.builtin.

They are more than a megabyte, and only a few lines matter, so they stay bytes and are searched, not split.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, map_known
from probes.host.protocol import Host

FILE_LIMIT_BYTES = 32 * 1024 * 1024
MAX_DEPENDENCIES = 256
SUFFIXES = (b"", b".gz", b".xz", b".zst")  # kmod's compressions


@frozen
class ModuleTree:
    """The three files of `/lib/modules/RELEASE`."""

    directory: str
    dependencies: Maybe[bytes]  # modules.dep unchanged
    folded_dependencies: bytes  # the same with underscores instead of dashes, for searching; b"" if unknown
    symbols: Maybe[bytes]
    builtin: Maybe[bytes]  # with underscores instead of dashes
    file_names: Mapping[str, str] = field(default_factory=dict)  # a module -> its file, if named otherwise

    def module_of(self, name: str) -> str:
        """Return the module that a file's name stands for."""
        return next((module for module, file in self.file_names.items() if file == name), name)


@frozen
class DepmodEntry:
    """One module's line in modules.dep."""

    path: str  # absolute
    relative: str  # below the tree's directory: its first parts show who installed it
    depends: tuple[str, ...]  # direct and indirect, in load order


def read_tree(host: Host, release: Maybe[str], file_names: Mapping[str, str] | None = None) -> ModuleTree:
    """Read the files that modprobe would use for this release; `file_names` as in ModuleTree."""
    if isinstance(release, Unknown):
        nothing = Unknown(Reason.NOT_RECORDED, release.source, "the running kernel is unknown")
        return ModuleTree("", nothing, b"", nothing, nothing)
    directory = f"/lib/modules/{release}"
    dependencies = _read(host, f"{directory}/modules.dep")
    folded = b"" if isinstance(dependencies, Unknown) else _folded(dependencies)
    builtin = map_known(_read(host, f"{directory}/modules.builtin"), _folded)
    symbols = _read(host, f"{directory}/modules.symbols")
    return ModuleTree(directory, dependencies, folded, symbols, builtin, file_names or {})


def find_module(tree: ModuleTree, name: str) -> Maybe[DepmodEntry]:
    """Return the .ko of module `name` (underscores) and what must be loaded before it.

    A line of modules.dep is `PATH: PATH…`, relative to the tree's directory; the last path is loaded first
    (modules.dep(5)). NOT_THERE: depmod lists no such module; FILE_MISSING: there is no modules.dep.
    """
    if isinstance(tree.dependencies, Unknown):
        return tree.dependencies
    file = tree.file_names.get(name, name)
    start = _line_of(tree.folded_dependencies, file.encode("utf-8", errors="replace"))
    if start < 0:
        return Unknown(Reason.NOT_THERE, f"{tree.directory}/modules.dep", f"no {file}.ko")
    end = tree.dependencies.find(b"\n", start)
    line = tree.dependencies[start : end if end >= 0 else None]
    path, _, rest = line.partition(b":")
    relative = printable(path.decode("utf-8", errors="replace"), 1024)
    absolute = relative if relative.startswith("/") else f"{tree.directory}/{relative}"
    before = rest.split(maxsplit=MAX_DEPENDENCIES)[:MAX_DEPENDENCIES]
    depends = tuple(tree.module_of(module_name(word)) for word in reversed(before))
    return DepmodEntry(absolute, relative, depends)


def find_with_dependencies(tree: ModuleTree, names: Iterable[str]) -> dict[str, Maybe[DepmodEntry]]:
    """Return the entries of these modules, and of all that they need."""
    found = {name: find_module(tree, name) for name in names}
    entries = [entry for entry in found.values() if not isinstance(entry, Unknown)]
    needed = dict.fromkeys(name for entry in entries for name in entry.depends if name not in found)
    return {**found, **{name: find_module(tree, name) for name in needed}}


def is_builtin(tree: ModuleTree, name: str) -> Maybe[bool]:
    """Return whether modules.builtin, one path per line, has the module (Documentation/kbuild/kbuild.rst)."""
    if isinstance(tree.builtin, Unknown):
        return tree.builtin
    wanted = f"{name}.ko".encode("utf-8", errors="replace")
    return b"/" + wanted + b"\n" in tree.builtin + b"\n"


def find_provider(tree: ModuleTree, symbol: str) -> Maybe[str]:
    """Return the module that exports a symbol; NOT_THERE: none; FILE_MISSING: there is no modules.symbols."""
    if isinstance(tree.symbols, Unknown):
        return tree.symbols
    wanted = b"alias symbol:" + symbol.encode("utf-8", errors="replace") + b" "
    at = tree.symbols.find(wanted)
    while at > 0 and tree.symbols[at - 1 : at] != b"\n":
        at = tree.symbols.find(wanted, at + 1)
    source = f"{tree.directory}/modules.symbols"
    if at < 0:
        return Unknown(Reason.NOT_THERE, source, f"no module exports {symbol}")
    start = at + len(wanted)
    words = tree.symbols[start : start + 256].partition(b"\n")[0].split(maxsplit=1)
    if not words:
        return Unknown(Reason.MALFORMED, source, f"no module after {symbol}")
    return tree.module_of(printable(words[0].decode("utf-8", errors="replace").replace("-", "_"), 128))


def module_name(path: bytes) -> str:
    """Return the module's name: `updates/dkms/nvidia-peermem.ko.zst` is nvidia_peermem."""
    name = path.rpartition(b"/")[2].partition(b".ko")[0]
    return printable(name.decode("utf-8", errors="replace").replace("-", "_"), 128)


def origin_of(relative: str) -> str:
    """Return who installed a module, by its directory: "kernel", "DKMS", "OFED", "extra", "updates".

    DKMS on Debian and Ubuntu uses updates/dkms, also for OFED's packages. RPMs use extra/ (Red Hat) or
    updates/ (SUSE) with a directory named after the package.
    """
    first, _, rest = relative.partition("/")
    if first == "kernel":
        return "kernel"
    if rest.startswith("dkms/"):
        return "DKMS"
    if any(f"/{word}" in f"/{rest}" for word in ("mlnx", "ofa", "kernel-mft")):
        return "OFED"
    return first if rest and first in ("extra", "updates", "weak-updates") else "extra"


def _folded(content: bytes) -> bytes:
    return content.replace(b"-", b"_")


def _read(host: Host, path: str) -> Maybe[bytes]:
    content = host.read_bytes(path, FILE_LIMIT_BYTES)
    if isinstance(content, Unknown) and content.reason is Reason.NOT_THERE:
        # NOT_THERE is reserved for modules that depmod does not list.
        return Unknown(Reason.FILE_MISSING, path, path)
    return content


def _line_of(folded: bytes, name: bytes) -> int:
    """Return the offset of the line for module `name`; -1: there is none."""
    wanted = name + b".ko"
    at = folded.find(wanted)
    while at >= 0:
        start = folded.rfind(b"\n", 0, at) + 1
        if at == start or folded[at - 1 : at] == b"/":
            # Before the first colon of the line is the module itself, after it are dependencies.
            colon = folded.find(b":", start, at + len(wanted) + 5)
            if colon >= 0 and folded[at + len(wanted) : colon] in SUFFIXES and colon > at:
                return start
        at = folded.find(wanted, at + len(wanted))
    return -1
