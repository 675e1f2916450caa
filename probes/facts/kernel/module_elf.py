"""The fields of a module file without modinfo: for directory trees, whose commands are never run.

A .ko is an ELF file (elf(5)) whose section .modinfo has "name=value" strings, each ended by a NUL. A signed
one ends in the magic string of Documentation/admin-guide/module-signing.rst.
"""

from __future__ import annotations

import lzma
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace

from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.kernel.module_files import ModuleFile, parse_modinfo
from probes.host.protocol import Host

_SIGNED = b"~Module signature appended~\n"
_PACKED_LIMIT_BYTES = 48 << 20
_LIMIT_BYTES = 160 << 20  # nvidia.ko has up to about 100 MB
_MAX_TABLE_BYTES = 8 << 20
_MAX_MODINFO_BYTES = 1 << 20
_HEADER_BYTES, _SECTION_BYTES = 64, 64

_Read = Callable[[int, int], bytes]
"""Returns bytes of a file from an offset on; fewer at its end."""


def read_module_file(host: Host, path: str) -> Maybe[ModuleFile]:
    """Read one file; of a signed one the signer is NOT_RECORDED, because it is not decoded.

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

    return _module_file(path, read, len(content))


def _of_plain(host: Host, path: str) -> Maybe[ModuleFile]:
    state = host.read_range(path, 0, 1)
    if isinstance(state, Unknown):
        return state

    def read(offset: int, count: int) -> bytes:
        part = host.read_range(path, offset, count)
        return b"" if isinstance(part, Unknown) else part.content

    return _module_file(path, read, state.size_bytes)


def unpack(packed: bytes) -> Maybe[bytes]:
    """Unpack what gzip or xz has packed, up to 160 MiB."""
    try:
        if packed.startswith(b"\x1f\x8b"):
            stream = zlib.decompressobj(wbits=31)
            content = stream.decompress(packed, _LIMIT_BYTES)
            is_whole = stream.eof
        elif packed.startswith(b"\xfd7zXZ\0"):
            unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=256 << 20)
            content = unpacker.decompress(packed, _LIMIT_BYTES)
            is_whole = unpacker.eof
        else:
            return Unknown(Reason.MALFORMED, "", "packed in a form that gdrtop cannot unpack (zstd)")
    except (zlib.error, lzma.LZMAError, EOFError, MemoryError):
        return Unknown(Reason.MALFORMED, "", "damaged")
    return content if is_whole else Unknown(Reason.MALFORMED, "", "damaged, or too long")


def _module_file(path: str, read: _Read, size: int) -> Maybe[ModuleFile]:
    strings = modinfo_of(read)
    if strings is None:
        return Unknown(Reason.MALFORMED, printable(path, 256), "not a kernel module")
    lines = [f"filename:       {path}"]
    for string in strings:
        name, equals, value = string.partition(b"=")
        if equals:
            text = value.decode("utf-8", "replace").replace("\n", " ")
            lines.append(f"{name.decode('utf-8', 'replace')}:       {text}")
    files = parse_modinfo("\n".join(lines))
    file = next(iter(files.values()), None)
    if file is None:
        return Unknown(Reason.MALFORMED, printable(path, 256), "not a kernel module")
    if read(size - len(_SIGNED), len(_SIGNED)) == _SIGNED:
        return replace(
            file, signer=Unknown(Reason.NOT_RECORDED, file.path, "signed; the signer is not decoded")
        )
    return file


def modinfo_of(read: _Read) -> tuple[bytes, ...] | None:
    """Return the strings of the section .modinfo; None: no ELF file of 64 bits, or damaged."""
    header = read(0, _HEADER_BYTES)
    if len(header) < _HEADER_BYTES or header[:5] != b"\x7fELF\x02" or header[5] not in (1, 2):
        return None
    order = "<" if header[5] == 1 else ">"
    (table,) = struct.unpack_from(f"{order}Q", header, 0x28)
    entry_bytes, count, names_index = struct.unpack_from(f"{order}HHH", header, 0x3A)
    if entry_bytes != _SECTION_BYTES or names_index >= count or table > _LIMIT_BYTES:
        return None
    sections = read(table, _SECTION_BYTES * count)  # at most 4 MiB
    if len(sections) < _SECTION_BYTES * count:
        return None

    def section(index: int) -> tuple[int, int, int]:
        """Return where a section's name is in the table of names, its offset and its size."""
        start = index * _SECTION_BYTES
        (name,) = struct.unpack_from(f"{order}I", sections, start)
        offset, size = struct.unpack_from(f"{order}QQ", sections, start + 0x18)
        return name, offset, size

    _, offset, size = section(names_index)
    if size > _MAX_TABLE_BYTES or offset > _LIMIT_BYTES:
        return None
    names = read(offset, size)
    for index in range(count):
        name, offset, size = section(index)
        if names[name : name + 9] == b".modinfo\0":
            if size > _MAX_MODINFO_BYTES or offset > _LIMIT_BYTES:
                return None
            return tuple(read(offset, size).split(b"\0"))
    return None
