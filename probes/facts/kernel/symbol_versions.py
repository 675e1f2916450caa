"""The versions of the peer-memory symbol: what nvidia_peermem was built with, and what is exported.

A version is a checksum (CRC) of the types that a symbol uses. Since it has CONFIG_MODVERSIONS, the kernel
refuses a module whose version of a symbol is not that of the exporter (kernel/module/version.c,
check_version). modprobe(8) prints both, also of packed files. Directory trees run no commands, so their files
are read here: a section __versions of 64-byte entries, or since Linux 6.14 __version_ext_crcs and
__version_ext_names; the exporter has a symbol __crc_NAME (include/linux/export-internal.h).
"""

from __future__ import annotations

import re
import struct

from probes.base.frozen import frozen
from probes.base.origin import Source
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.kernel.installed_modules import Elf, open_module_file, parse_elf
from probes.facts.kernel.module_files import PEER_MEMORY_SYMBOL
from probes.facts.kernel.modules import ModuleFacts
from probes.host.protocol import Host

NEEDED, EXPORTED = "--dump-modversions", "--show-exports"
_SECONDS = 3.0
_ENTRY_BYTES = 64
_NO_FILE = Unknown(Reason.NOT_THERE, "modules.dep", "no file")


@frozen
class SymbolVersions:
    """The versions of ib_register_peer_memory_client in the files of one kernel."""

    expected: Maybe[int]  # by nvidia_peermem; NOT_THERE: its file has no version of the symbol
    exported: Maybe[int]  # NOT_THERE: the exporter's file has no version, and the kernel compares none
    importer_path: str = ""
    exporter: str = ""  # the module that exports the symbol, by depmod: "ib_core"
    exporter_path: str = ""

    @property
    def differ(self) -> Maybe[bool]:
        """Return whether the kernel refuses nvidia_peermem because of the version."""
        if isinstance(self.expected, Unknown):
            return self.expected
        return map_known(self.exported, lambda exported: exported != self.expected)


def probe(host: Host, modules: ModuleFacts) -> SymbolVersions:
    """Read the versions in the files that modprobe would load on the running kernel."""
    on_disk = modules.modules["nvidia_peermem"].on_disk
    exporter = modules.peer_memory
    if exporter is None:
        return read_versions(host, on_disk, "", _NO_FILE)
    return read_versions(host, on_disk, known(exporter.provider, ""), exporter.path)


def read_versions(
    host: Host, importer_path: Maybe[str], exporter: str, exporter_path: Maybe[str]
) -> SymbolVersions:
    """Read the version that nvidia_peermem's file needs, and the one that the exporter's file has."""
    return SymbolVersions(
        map_known(importer_path, lambda path: _version(host, NEEDED, path)),
        map_known(exporter_path, lambda path: _version(host, EXPORTED, path)),
        importer_path if isinstance(importer_path, str) else "",
        exporter,
        exporter_path if isinstance(exporter_path, str) else "",
    )


def _version(host: Host, option: str, path: str) -> Maybe[int]:
    if not path.startswith("/"):  # part of the kernel
        return _NO_FILE
    source = f"modprobe {option} {printable(path, 256)}"
    answer = host.run(("modprobe", option, path), _SECONDS)
    if not isinstance(answer, Unknown):
        version: Maybe[int | None] = parse_versions(answer.stdout, PEER_MEMORY_SYMBOL)
        if version is None and answer.exit_status:
            error = printable(" ".join(answer.stderr.split()), 160)
            return Unknown(Reason.IO_ERROR, source, error or f"exit status {answer.exit_status}")
    elif host.origin.source is Source.TREE:
        version = _version_in_file(host, option, path)
    else:
        return answer
    # modprobe prints 0 for a symbol without a version, which the kernel does not compare.
    absent = Unknown(Reason.NOT_THERE, source, f"no version of {PEER_MEMORY_SYMBOL}")
    return map_known(version, lambda version: version or absent)


def _version_in_file(host: Host, option: str, path: str) -> Maybe[int | None]:
    content = open_module_file(host, path)
    if isinstance(content, Unknown):
        return content
    elf = parse_elf(content.read)
    if elf is None:
        return Unknown(Reason.MALFORMED, printable(path, 256), "not a kernel module")
    symbol = PEER_MEMORY_SYMBOL.encode()
    return _needed(elf, symbol) if option == NEEDED else elf.value(b"__crc_" + symbol)


def parse_versions(text: str, symbol: str) -> int | None:
    """Find a symbol in the output of modprobe: lines of "0xCRC, tab, symbol"."""
    match = re.search(rf"^0x([0-9a-f]{{1,16}})\s{re.escape(symbol)}$", text, re.M)
    return None if match is None else int(match[1], 16)


def _needed(elf: Elf, symbol: bytes) -> int | None:
    content = elf.content(b"__versions") or b""
    for start in range(0, len(content) - _ENTRY_BYTES + 1, _ENTRY_BYTES):
        if content[start + 8 : start + _ENTRY_BYTES].split(b"\0", 1)[0] == symbol:
            return int(struct.unpack_from(f"{elf.order}Q", content, start)[0])
    names = (elf.content(b"__version_ext_names") or b"").split(b"\0")
    crcs = elf.content(b"__version_ext_crcs") or b""
    place = names.index(symbol) if symbol in names else len(crcs)
    if 4 * place + 4 > len(crcs):
        return None
    return int(struct.unpack_from(f"{elf.order}I", crcs, 4 * place)[0])
