"""The modules of one installed kernel, running or not: modules.dep, modules.symbols, `modinfo -k`.

`modinfo -k RELEASE` reads the files that modprobe would load on that kernel (modinfo(8)). For directory
trees, whose commands are never run, the files are read here: a .ko is an ELF file (elf(5)) whose section
.modinfo has "name=value" strings, each ended by a NUL. A signed one ends in the magic string of
Documentation/admin-guide/module-signing.rst.
"""

from __future__ import annotations

import lzma
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from probes.base.frozen import frozen
from probes.base.origin import Source
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, is_there, known
from probes.facts.kernel import depmod
from probes.facts.kernel.boot import MODULES_DIRECTORY, version_key
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
    """Open a file, packed or not; MALFORMED: .zst, which Python cannot unpack before 3.14."""
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
    elf = parse_elf(read)
    content = None if elf is None else elf.content(b".modinfo", _MAX_MODINFO_BYTES)
    return None if content is None else tuple(content.split(b"\0"))


# Sections of an ELF file of 64 bits (elf(5)), read by offset so that a large file stays on disk.

Read = Callable[[int, int], bytes]
"""Returns bytes of a file from an offset on; fewer at its end."""

LIMIT_BYTES = 160 << 20  # nvidia.ko has up to about 100 MB
_MAX_TABLE_BYTES = 8 << 20
_MAX_NAME_BYTES = 128
_HEADER_BYTES, _SECTION_BYTES, _SYMBOL_BYTES = 64, 64, 24
_ABSOLUTE = 0xFFF1  # SHN_ABS


@frozen
class Section:
    """The place of a section in the file."""

    name: bytes
    offset: int
    size: int
    link: int  # the number of a section that belongs to it: of a symbol table, the names


@frozen
class Elf:
    """An ELF file and its sections, in the order of their numbers."""

    read: Read
    order: str  # of struct: "<" or ">"
    sections: tuple[Section, ...]

    def content(self, name: bytes, limit: int = _MAX_TABLE_BYTES) -> bytes | None:
        """Return the content of a section; None: there is none, or it is longer than `limit`."""
        section = next((section for section in self.sections if section.name == name), None)
        return None if section is None else self._bytes(section, limit)

    def value(self, symbol: bytes) -> int | None:
        """Return the 32 bits that a symbol names: its value if it is absolute, else what it points to."""
        for number, value in self._symbols(symbol):
            if number == _ABSOLUTE:
                return value & 0xFFFFFFFF
            if number < len(self.sections) and value <= self.sections[number].size - 4:
                content = self.read(self.sections[number].offset + value, 4)
                return struct.unpack(f"{self.order}I", content)[0] if len(content) == 4 else None
        return None

    def _symbols(self, name: bytes) -> Iterator[tuple[int, int]]:
        """Yield the number of the section and the value of each symbol `name`."""
        table = next((section for section in self.sections if section.name == b".symtab"), None)
        if table is None or table.link >= len(self.sections):
            return
        content, names = self._bytes(table), self._bytes(self.sections[table.link])
        if content is None or names is None:
            return
        whole = len(content) - len(content) % _SYMBOL_BYTES
        wanted = name + b"\0"
        for place, number, value in struct.iter_unpack(f"{self.order}IxxHQ8x", content[:whole]):
            if names.startswith(wanted, place):
                yield number, value

    def _bytes(self, section: Section, limit: int = _MAX_TABLE_BYTES) -> bytes | None:
        if section.size > limit or section.offset > LIMIT_BYTES:
            return None
        return self.read(section.offset, section.size)


def parse_elf(read: Read) -> Elf | None:
    """Read the sections of a file; None: no ELF file of 64 bits, or damaged."""
    header = read(0, _HEADER_BYTES)
    if len(header) < _HEADER_BYTES or header[:5] != b"\x7fELF\x02" or header[5] not in (1, 2):
        return None
    order = "<" if header[5] == 1 else ">"
    (table,) = struct.unpack_from(f"{order}Q", header, 0x28)
    entry_bytes, count, names_number = struct.unpack_from(f"{order}HHH", header, 0x3A)
    if entry_bytes != _SECTION_BYTES or names_number >= count or table > LIMIT_BYTES:
        return None
    headers = read(table, _SECTION_BYTES * count)  # at most 4 MiB
    if len(headers) < _SECTION_BYTES * count:
        return None
    rows = tuple(struct.iter_unpack(f"{order}I20xQQI20x", headers))
    _, offset, size, _ = rows[names_number]
    if size > _MAX_TABLE_BYTES or offset > LIMIT_BYTES:
        return None
    names = read(offset, size)
    return Elf(read, order, tuple(
        Section(names[name : name + _MAX_NAME_BYTES].split(b"\0", 1)[0], offset, size, link)
        for name, offset, size, link in rows
    ))  # fmt: skip
