"""The libraries of GPU and RDMA programs that the dynamic loader finds on this node, with their versions.

libnvidia-ml and libcuda must have the version of the loaded kernel module, else programs fail with
"Driver/library version mismatch". Libraries inside containers are in processes.py.
"""

from __future__ import annotations

import re

from probes.base.frozen import dataclass
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.protocol import Host

DIRECTORIES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/usr/local/lib",
)
LIBRARIES = {
    "libnvidia-ml.so.1": "NVML",
    "libcuda.so.1": "CUDA driver",
    # perftest since 2025 opens this name, which some packages leave out (src/cuda_loader.c).
    "libcuda.so": "CUDA driver, as perftest opens it",
    "libnccl.so.2": "NCCL",
    "libnccl-net.so": "network plugin that NCCL loads automatically",
    "libibverbs.so.1": "verbs",
    "libmlx5.so.1": "verbs of ConnectX and BlueField",
    "libgdrapi.so.2": "GDRCopy",
}
"""Name that programs load → what it is."""

_VERSION = re.compile(r"\.so\.([0-9]{1,4}(?:\.[0-9]{1,6}){1,4})$")


@dataclass(frozen=True)
class InstalledLibrary:
    """The file that a library name leads to."""

    soname: str  # "libnccl.so.2"
    path: str  # resolved
    version: Maybe[str]  # "2.21.5", from the file's name; NOT_THERE: the name has none


_NOT_READ = Unknown(Reason.NOT_RECORDED, "LIBDIR/libibverbs")


@dataclass(frozen=True)
class LibraryFacts:
    """Name that programs load -> files, in the loader's search order; () if there are none."""

    found: dict[str, tuple[InstalledLibrary, ...]]
    verbs_providers: Maybe[tuple[str, ...]] = _NOT_READ  # plugins of libibverbs: "libmlx5-rdmav34.so"


def probe(host: Host) -> LibraryFacts:
    """Follow the links in the loader's default directories; ld.so.conf is not read."""
    found = {soname: _installed(host, soname) for soname in LIBRARIES}
    return LibraryFacts(found, _verbs_providers(host))


def _verbs_providers(host: Host) -> Maybe[tuple[str, ...]]:
    """List the plugins of libibverbs, LIBDIR/libibverbs/libNAME-rdmavNN.so (rdma-core, verbs.h)."""
    found: set[str] = set()
    refused: Unknown | None = None
    for directory in DIRECTORIES:
        names = host.names(f"{directory}/libibverbs")
        if not isinstance(names, Unknown):
            found.update(printable(name, 64) for name in names if "-rdmav" in name)
        elif names.reason is not Reason.NOT_THERE:
            refused = names
    return refused if refused is not None and not found else tuple(sorted(found))


def _installed(host: Host, soname: str) -> tuple[InstalledLibrary, ...]:
    found: dict[str, InstalledLibrary] = {}
    for directory in DIRECTORIES:
        path = host.resolve(f"{directory}/{soname}")
        if not isinstance(path, Unknown):
            found.setdefault(path, InstalledLibrary(soname, printable(path, 256), version_of(path)))
    return tuple(found.values())


def version_of(path: str) -> Maybe[str]:
    """Return the version in the name of a library file: "libnccl.so.2.21.5" is 2.21.5.

    A single number ("libnccl.so.2") is the version of the interface.
    """
    match = _VERSION.search(path)
    return match[1] if match else Unknown(Reason.NOT_THERE, printable(path, 256), "its name shows no version")
