"""The libraries of GPU and RDMA programs that the dynamic loader finds on this node, with their versions.

libnvidia-ml and libcuda must have the version of the loaded kernel module, else programs fail with
"Driver/library version mismatch". Libraries inside containers are in processes.py.
"""

from __future__ import annotations

import re
from dataclasses import field

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, first_unread
from probes.host.protocol import Host

DIRECTORIES = (
    *("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib/x86_64-linux-gnu"),
    *("/lib/aarch64-linux-gnu", "/usr/lib64", "/lib64", "/usr/lib", "/usr/local/lib"),
)
OF_DRIVER = CUDA, NVML = "libcuda.so.1", "libnvidia-ml.so.1"
LIBRARIES = {
    NVML: "NVML",
    CUDA: "CUDA driver",
    # perftest since 2025 opens this name, which some packages leave out (src/cuda_loader.c).
    "libcuda.so": "CUDA driver (the name perftest opens)",
    "libnccl.so.2": "NCCL",
    "libnccl-net.so": "network plugin that NCCL loads automatically",
    "libibverbs.so.1": "verbs",
    "libmlx5.so.1": "verbs for ConnectX and BlueField",
    "libgdrapi.so.2": "GDRCopy",
}
"""Name that programs load → what it is."""

_VERSION = re.compile(r"\.so\.([0-9]{1,4}(?:\.[0-9]{1,6}){1,4})$")


@frozen
class InstalledLibrary:
    """The file that a library name leads to."""

    path: str  # resolved
    version: Maybe[str]  # "2.21.5", from the file's name; NOT_THERE: the name has none


_NOT_READ = Unknown(Reason.NOT_RECORDED, "LIBDIR/libibverbs")


@frozen
class LibraryFacts:
    """Name that programs load -> files, in the loader's search order; () if none was found."""

    found: dict[str, tuple[InstalledLibrary, ...]]
    unread: dict[str, Unknown] = field(default_factory=dict)  # the same name -> a directory not read for it
    verbs_providers: Maybe[tuple[str, ...]] = _NOT_READ  # plugins of libibverbs: "libmlx5-rdmav34.so"

    def installed(self, soname: str) -> Maybe[tuple[InstalledLibrary, ...]]:
        """Return the files of a name; unknown if none was found and it may be where nothing could be read."""
        found = self.found.get(soname, ())
        return found if found or soname not in self.unread else self.unread[soname]


def probe(host: Host) -> LibraryFacts:
    """Follow the links in the loader's default directories; ld.so.conf is not read."""
    found: dict[str, tuple[InstalledLibrary, ...]] = {}
    unread: dict[str, Unknown] = {}
    for soname in LIBRARIES:
        paths = [host.resolve(f"{directory}/{soname}") for directory in DIRECTORIES]
        distinct = dict.fromkeys(path for path in paths if not isinstance(path, Unknown))
        found[soname] = tuple(InstalledLibrary(printable(path, 256), version_of(path)) for path in distinct)
        missing = first_unread(paths)
        if missing is not None:
            unread[soname] = missing
    return LibraryFacts(found, unread, _verbs_providers(host))


def _verbs_providers(host: Host) -> Maybe[tuple[str, ...]]:
    """List the plugins of libibverbs, LIBDIR/libibverbs/libNAME-rdmavNN.so (rdma-core, verbs.h)."""
    listed = [host.names(f"{directory}/libibverbs") for directory in DIRECTORIES]
    names = {name for part in listed if not isinstance(part, Unknown) for name in part}
    found = tuple(sorted(printable(name, 64) for name in names if "-rdmav" in name))
    unread = first_unread(listed)
    return unread if unread is not None and not found else found


def version_of(path: str) -> Maybe[str]:
    """Return the version in the name of a library file: "libnccl.so.2.21.5" is 2.21.5.

    A single number ("libnccl.so.2") is the version of the interface.
    """
    match = _VERSION.search(path)
    return (
        match[1] if match else Unknown(Reason.NOT_THERE, printable(path, 256), "no version in the file name")
    )
