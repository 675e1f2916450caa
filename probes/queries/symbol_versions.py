"""Questions about the versions of the peer-memory symbol in the files of nvidia_peermem and ib_core."""

from __future__ import annotations

from probes.base.evidence import Evidence
from probes.base.unknown import Maybe, Reason, Unknown, is_there, map_known
from probes.facts.kernel.log import KernelMessage, LogKind
from probes.facts.kernel.module_files import PEER_MEMORY_SYMBOL, ExportedSymbol
from probes.facts.kernel.modules import PEERMEM
from probes.facts.kernel.symbol_versions import EXPORTED, NEEDED, SymbolVersions
from probes.queries.modules import file_of, is_present
from probes.snapshot.examination import Examination

VERSIONS_DIFFER = f"it was built against another version of {PEER_MEMORY_SYMBOL} than the RDMA stack has"
_INVALID = -22


def versions_differ(examination: Examination) -> Maybe[bool]:
    """Return whether the files of nvidia_peermem and of the exporter do not fit: the next boot loads both."""
    return map_known(examination.symbol_versions, lambda versions: versions.differ)


def is_refused_now(examination: Examination) -> Maybe[bool]:
    """Return whether the running kernel refuses nvidia_peermem's file because of the symbol's version.

    Unknown if the loaded exporter is not the one on disk: the versions of loaded modules cannot be read.
    """
    versions = examination.symbol_versions
    if isinstance(versions, Unknown) or isinstance(versions.differ, Unknown):
        return versions_differ(examination)
    modules = examination.node.modules
    if isinstance(modules, Unknown):
        return modules
    loaded, file = modules.modules.get(versions.exporter), file_of(examination, versions.exporter)
    if loaded is None:  # such as Broadcom's ib_peer_mem, of which only the file and the interface are read
        if is_there(modules.memory_peers) is False:
            return versions.differ
        return Unknown(Reason.NOT_RECORDED, f"/sys/module/{versions.exporter}")
    if not is_present(loaded):
        return versions.differ  # modprobe loads it from its file first
    on_disk = map_known(file, lambda file: file.srcversion)
    # Some distributions build modules without a srcversion.
    if loaded.srcversion == on_disk or (
        isinstance(loaded.srcversion, Unknown) and isinstance(on_disk, Unknown)
    ):
        return versions.differ
    return Unknown(
        Reason.NOT_THERE, versions.exporter_path, f"{versions.exporter} was replaced after it was loaded"
    )


def is_about_version(message: KernelMessage) -> bool:
    """Return whether a message of the kernel is about the version of the peer-memory symbol."""
    is_version = message.kind is LogKind.SYMBOL_VERSION or message.number == _INVALID
    return message.module == PEERMEM and message.symbol == PEER_MEMORY_SYMBOL and is_version


def version_evidence(versions: SymbolVersions) -> tuple[Evidence, ...]:
    """Return both versions with the commands that print them."""
    rows = (
        (NEEDED, versions.importer_path, versions.expected),
        (EXPORTED, versions.exporter_path, versions.exported),
    )
    return tuple(
        Evidence(f"modprobe {option} {path}", f"0x{version:08x} {PEER_MEMORY_SYMBOL}")
        for option, path, version in rows
        if not isinstance(version, Unknown)
    )


def other_build(examination: Examination) -> ExportedSymbol | None:
    """Return the Module.symvers that a rebuild would use, if it is not that of the exporter's file."""
    facts, versions = examination.module_files, examination.symbol_versions
    if isinstance(facts, Unknown) or isinstance(versions, Unknown) or isinstance(versions.exported, Unknown):
        return None
    first = next(iter(facts.peer_memory), None)
    return None if first is None or first.crc == versions.exported else first
