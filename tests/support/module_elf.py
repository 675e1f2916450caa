"""Build a kernel module file: an ELF file with the sections that gdrtop reads."""

from __future__ import annotations

import struct
from collections.abc import Mapping

SIGNED = b"~Module signature appended~\n"
ABSOLUTE = 0xFFF1  # SHN_ABS


def module_file(
    signed: bool = False, order: str = "<", sections: Mapping[str, bytes] | None = None, **fields: str
) -> bytes:
    """Return a 64-bit ELF file; `fields` become strings "name=value" of the section .modinfo."""
    modinfo = b"".join(f"{name}={value}".encode() + b"\0" for name, value in fields.items())
    contents = {".modinfo": modinfo, **(sections or {})}
    contents[".shstrtab"] = b"\0" + b"".join(f"{name}\0".encode() for name in (*contents, ".shstrtab"))
    rows, body = [(0, 0, 0, 0)], b""
    for name, content in contents.items():
        link = list(contents).index(".strtab") + 1 if name == ".symtab" else 0
        place = contents[".shstrtab"].index(f"\0{name}\0".encode()) + 1
        rows.append((place, 64 + len(body), len(content), link))
        body += content
    table = b"".join(
        struct.pack(f"{order}IIQQQQIIQQ", name, 1, 0, 0, offset, size, link, 0, 1, 0)
        for name, offset, size, link in rows
    )
    ident = b"\x7fELF\x02" + (b"\x01" if order == "<" else b"\x02") + b"\x01" + bytes(9)
    at = (64 + len(body), 0, 64, 0, 0, 64, len(rows), len(rows) - 1)
    header = ident + struct.pack(f"{order}HHIQQQIHHHHHH", 1, 62, 1, 0, 0, *at)
    return header + body + table + (SIGNED if signed else b"")


def needed(order: str = "<", **versions: int) -> dict[str, bytes]:
    """Return the section with the versions of the symbols that a module needs."""
    rows = (struct.pack(f"{order}Q56s", version, name.encode()) for name, version in versions.items())
    return {"__versions": b"".join(rows)}


def needed_extended(order: str = "<", **versions: int) -> dict[str, bytes]:
    """Return the same in the sections of CONFIG_EXTENDED_MODVERSIONS."""
    return {
        "__version_ext_crcs": struct.pack(f"{order}{len(versions)}I", *versions.values()),
        "__version_ext_names": b"".join(f"{name}\0".encode() for name in versions),
    }


def exported(order: str = "<", absolute: bool = False, **versions: int) -> dict[str, bytes]:
    """Return the sections with the versions of the symbols that a module exports."""
    names, rows = b"\0", struct.pack(f"{order}IBBHQQ", 0, 0, 0, 0, 0, 0)
    for number, (name, version) in enumerate(versions.items()):
        at = (ABSOLUTE, version) if absolute else (2, 4 * number)  # 2: ___kcrctab, after .modinfo
        rows += struct.pack(f"{order}IBBHQQ", len(names), 0, 0, *at, 0)
        names += f"__crc_{name}\0".encode()
    table = struct.pack(f"{order}{len(versions)}I", *versions.values())
    return {"___kcrctab": table, ".symtab": rows, ".strtab": names}
