"""Build a kernel module file: an ELF file with nothing but a section .modinfo."""

from __future__ import annotations

import struct

SIGNED = b"~Module signature appended~\n"


def module_file(signed: bool = False, order: str = "<", **fields: str) -> bytes:
    """Return a 64-bit ELF file; `fields` become strings "name=value"."""
    modinfo = b"".join(f"{name}={value}".encode() + b"\0" for name, value in fields.items())
    names = b"\0.modinfo\0.shstrtab\0"
    at_names = 64 + len(modinfo)
    table = at_names + len(names)

    def section(name: int, offset: int, size: int) -> bytes:
        return struct.pack(f"{order}IIQQQQIIQQ", name, 1, 0, 0, offset, size, 0, 0, 1, 0)

    sections = section(0, 0, 0) + section(1, 64, len(modinfo)) + section(10, at_names, len(names))
    ident = b"\x7fELF\x02" + (b"\x01" if order == "<" else b"\x02") + b"\x01" + bytes(9)
    header = ident + struct.pack(f"{order}HHIQQQIHHHHHH", 1, 62, 1, 0, 0, table, 0, 64, 0, 0, 64, 3, 2)
    return header + modinfo + names + sections + (SIGNED if signed else b"")
