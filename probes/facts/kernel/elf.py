"""Sections of an ELF file of 64 bits (elf(5)), read by offset so that a large file stays on disk."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from probes.base.frozen import frozen

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


def parse(read: Read) -> Elf | None:
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
