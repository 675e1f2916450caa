"""The modules of one installed kernel, running or not: modules.dep, modules.symbols, `modinfo -k`.

`modinfo -k RELEASE` reads the files that modprobe would load on that kernel (modinfo(8)). For directory
trees, whose commands are never run, the files are read here: a .ko is an ELF file (elf(5)) whose section
.modinfo has "name=value" strings, each ended by a NUL. A signed one ends in the magic string of
Documentation/admin-guide/module-signing.rst.
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Iterable
from dataclasses import replace

from probes.base.frozen import frozen
from probes.base.origin import Source
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, is_there, known
from probes.facts.kernel import depmod
from probes.facts.kernel.boot import MODULES_DIRECTORY, version_key
from probes.facts.kernel.elf import LIMIT_BYTES, Read, parse
from probes.facts.kernel.modprobe_config import read_rules
from probes.facts.kernel.module_files import PEER_MEMORY_SYMBOL, ModuleFile, parse_modinfo
from probes.facts.kernel.release import DMABUF_OPTION, MLX5_DMABUF_OPTIONS, all_set, is_release, read_config
from probes.host.protocol import Host

MAX_KERNELS = 16
DAMAGED = "damaged"
_SECONDS = 3.0
_SIGNED = b"~Module signature appended~\n"
_PACKED_LIMIT_BYTES = 48 << 20
_MAX_MODINFO_BYTES = 1 << 20


@frozen
class InstalledModules:
    """The modules of one kernel."""

    release: str
    entries: dict[str, Maybe[depmod.DepmodEntry]]  # NOT_THERE: no file; FILE_MISSING: there is no modules.dep
    builtin: frozenset[str]
    peer_memory: Maybe[str]  # the module that exports the peer-memory symbols; NOT_THERE: none
    files: Maybe[dict[str, ModuleFile]]  # without modules that have no file
    unread: dict[str, Unknown]  # listed in modules.dep, but their files show nothing
    dmabuf_config: Maybe[bool]  # the kernel's config has what DMA-BUF needs
    architecture: Maybe[str]  # "x86_64", "aarch64", from the kernel's config
    lacks_index: bool  # depmod has not written modules.dep: modprobe loads nothing
    has_headers: Maybe[bool]  # /lib/modules/RELEASE/build leads to the files to build modules with

    @property
    def index(self) -> str:
        """Return the path of modules.dep."""
        return f"{MODULES_DIRECTORY}/{self.release}/modules.dep"

    def is_there(self, name: str) -> Maybe[bool]:
        """Return whether the kernel has the module, as a file or built in."""
        if name in self.builtin:
            return True
        return is_there(self.entries.get(name, Unknown(Reason.NOT_THERE, self.index)))

    def entry(self, name: str) -> depmod.DepmodEntry | None:
        """Return a module's line of modules.dep, if it has one."""
        entry = self.entries.get(name)
        return None if entry is None or isinstance(entry, Unknown) else entry

    def file(self, name: str) -> Maybe[ModuleFile]:
        """Return what modinfo prints about a module's file; NOT_THERE: the kernel has none."""
        if isinstance(self.files, Unknown):
            return Unknown(Reason.NOT_RECORDED, "modinfo", f"modinfo: {self.files}")
        return self.files.get(name) or Unknown(Reason.NOT_THERE, f"modinfo {name}", "no such module")


def installed_releases(host: Host) -> Maybe[tuple[str, ...]]:
    """Return the releases below /lib/modules that have a modules.dep, the newest first, at most 16."""
    names = host.names(MODULES_DIRECTORY)
    if isinstance(names, Unknown):
        return names
    releases = sorted(filter(is_release, names), key=version_key, reverse=True)[: 4 * MAX_KERNELS]
    paths = {release: f"{MODULES_DIRECTORY}/{release}/modules.dep" for release in releases}
    with_index = (release for release, path in paths.items() if not isinstance(host.size(path), Unknown))
    return tuple(with_index)[:MAX_KERNELS]


def read_installed(host: Host, release: str, names: Iterable[str]) -> InstalledModules:
    """Read what depmod and modinfo say about the modules `names` on a kernel, and about those they need."""
    if not is_release(release):
        nothing = Unknown(Reason.MALFORMED, MODULES_DIRECTORY, "not a kernel release")
        return InstalledModules(
            release[:64], {}, frozenset(), nothing, nothing, {}, nothing, nothing, False, nothing
        )
    wanted = tuple(names)
    tree = depmod.read_tree(host, release, read_rules(host, "").file_names(wanted))
    config = read_config(host, release)
    index = host.size(f"{MODULES_DIRECTORY}/{release}/modules.dep")
    entries = depmod.find_with_dependencies(tree, wanted)
    return InstalledModules(
        release,
        entries,
        frozenset(name for name in entries if known(depmod.is_builtin(tree, name), False)),
        depmod.find_provider(tree, PEER_MEMORY_SYMBOL),
        *_files(host, tree, release, entries),
        all_set(config, DMABUF_OPTION, *MLX5_DMABUF_OPTIONS),
        _architecture(config),
        isinstance(index, Unknown) and index.reason is Reason.NOT_THERE,
        is_there(host.names(f"{MODULES_DIRECTORY}/{release}/build")),
    )


def _files(
    host: Host, tree: depmod.ModuleTree, release: str, entries: dict[str, Maybe[depmod.DepmodEntry]]
) -> tuple[Maybe[dict[str, ModuleFile]], dict[str, Unknown]]:
    """Run modinfo; in a directory tree, where nothing runs, read the files. Also say what is unreadable."""
    listed = {name: entry for name, entry in entries.items() if not isinstance(entry, Unknown)}
    files = (tree.file_names.get(name, name) for name in entries)
    answer = host.run(("modinfo", "-k", release, *files), _SECONDS)
    if not isinstance(answer, Unknown):
        known_files = parse_modinfo(answer.stdout)
        bad = Unknown(Reason.MALFORMED, "modinfo", DAMAGED)
        return known_files, {name: bad for name in listed if name not in known_files}
    if host.origin.source is not Source.TREE:
        return answer, dict.fromkeys(listed, answer)
    found: dict[str, ModuleFile] = {}
    unread: dict[str, Unknown] = {}
    for name, entry in listed.items():
        file = read_module_file(host, entry.path)
        if isinstance(file, Unknown):
            is_bad = file.reason is Reason.MALFORMED and "unpack" not in file.detail
            unread[name] = Unknown(Reason.MALFORMED, entry.path, DAMAGED) if is_bad else file
        else:
            found[name] = replace(file, name=name)
    return found if found or not unread else next(iter(unread.values())), unread


def _architecture(config: Maybe[bytes]) -> Maybe[str]:
    for option, name in (("CONFIG_X86_64", "x86_64"), ("CONFIG_ARM64", "aarch64")):
        if all_set(config, option) is True:
            return name
    return Unknown(Reason.NOT_RECORDED, "kernel config")


@frozen
class ModuleContent:
    """The content of a module's file, unpacked."""

    read: Read
    size: int


def read_module_file(host: Host, path: str) -> Maybe[ModuleFile]:
    """Read one file; of a signed one the signer is NOT_RECORDED, because it is not decoded."""
    content = open_module_file(host, path)
    if isinstance(content, Unknown):
        return content
    strings = modinfo_of(content.read)
    lines = [f"filename:       {path}"]
    for string in strings or ():
        name, equals, value = string.partition(b"=")
        if equals:
            text = value.decode("utf-8", "replace").replace("\n", " ")
            lines.append(f"{name.decode('utf-8', 'replace')}:       {text}")
    file = next(iter(parse_modinfo("\n".join(lines)).values()), None)
    if strings is None or file is None:
        return Unknown(Reason.MALFORMED, printable(path, 256), "not a kernel module")
    if content.read(content.size - len(_SIGNED), len(_SIGNED)) != _SIGNED:
        return file
    return replace(file, signer=Unknown(Reason.NOT_RECORDED, file.path, "signed; the signer is not decoded"))


def open_module_file(host: Host, path: str) -> Maybe[ModuleContent]:
    """Open one file, packed or not.

    .zst files are MALFORMED: Python cannot unpack them before 3.14.
    """
    if path.endswith(".ko"):
        return _of_plain(host, path)
    packed = host.read_bytes(path, _PACKED_LIMIT_BYTES)
    if isinstance(packed, Unknown):
        return packed
    content = unpack(packed)
    if isinstance(content, Unknown):
        return Unknown(content.reason, printable(path, 256), content.detail)

    def read(offset: int, count: int) -> bytes:
        return content[offset : offset + count]

    return ModuleContent(read, len(content))


def _of_plain(host: Host, path: str) -> Maybe[ModuleContent]:
    state = host.read_range(path, 0, 1)
    if isinstance(state, Unknown):
        return state

    def read(offset: int, count: int) -> bytes:
        part = host.read_range(path, offset, count)
        return b"" if isinstance(part, Unknown) else part.content

    return ModuleContent(read, state.size_bytes)


def unpack(packed: bytes) -> Maybe[bytes]:
    """Unpack what gzip or xz has packed, up to 160 MiB."""
    try:
        if packed.startswith(b"\x1f\x8b"):
            stream = zlib.decompressobj(wbits=31)
            content = stream.decompress(packed, LIMIT_BYTES)
            is_whole = stream.eof
        elif packed.startswith(b"\xfd7zXZ\0"):
            unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=256 << 20)
            content = unpacker.decompress(packed, LIMIT_BYTES)
            is_whole = unpacker.eof
        else:
            return Unknown(Reason.MALFORMED, "", "compressed in a format that gdrtop cannot unpack (zstd)")
    except (zlib.error, lzma.LZMAError, EOFError, MemoryError):
        return Unknown(Reason.MALFORMED, "", "damaged")
    return content if is_whole else Unknown(Reason.MALFORMED, "", "damaged, or too long")


def modinfo_of(read: Read) -> tuple[bytes, ...] | None:
    """Return the strings of the section .modinfo; None: no ELF file of 64 bits, or damaged."""
    elf = parse(read)
    content = None if elf is None else elf.content(b".modinfo", _MAX_MODINFO_BYTES)
    return None if content is None else tuple(content.split(b"\0"))
