"""The libraries of GPU and RDMA programs, as the dynamic loader finds them on this node, with their versions.

libnvidia-ml and libcuda belong to one driver: theirs has to be the version of the loaded module
("Driver/library version mismatch"). What a container brings along is not here: processes.py has it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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
    # perftest of 2025 and later opens this name, which some packages leave out (src/cuda_loader.c).
    "libcuda.so": "CUDA driver, as perftest opens it",
    "libnccl.so.2": "NCCL",
    "libnccl-net.so": "a network plugin that NCCL loads by itself",
    "libibverbs.so.1": "verbs",
    "libmlx5.so.1": "verbs of ConnectX and BlueField",
    "libgdrapi.so.2": "GDRCopy",
}
"""The name that programs load → what it is."""

_VERSION = re.compile(r"\.so\.([0-9]{1,4}(?:\.[0-9]{1,6}){1,4})$")


@dataclass(frozen=True)
class InstalledLibrary:
    """One library file behind a name that programs load."""

    soname: str  # "libnccl.so.2"
    path: str  # resolved
    version: Maybe[str]  # "2.21.5", of the file's name; NOT_THERE: the name shows none


@dataclass(frozen=True)
class LibraryFacts:
    """Name that programs load -> files, in the loader's order of directories; () where there is none."""

    found: dict[str, tuple[InstalledLibrary, ...]]


def probe(host: Host) -> LibraryFacts:
    """Follow the links in the loader's directories; what ld.so.conf adds to them is not followed."""
    return LibraryFacts({soname: _installed(host, soname) for soname in LIBRARIES})


def _installed(host: Host, soname: str) -> tuple[InstalledLibrary, ...]:
    found: dict[str, InstalledLibrary] = {}
    for directory in DIRECTORIES:
        path = host.resolve(f"{directory}/{soname}")
        if not isinstance(path, Unknown):
            found.setdefault(path, InstalledLibrary(soname, printable(path, 256), version_of(path)))
    return tuple(found.values())


def version_of(path: str) -> Maybe[str]:
    """Return the version in the name of a library's file: "libnccl.so.2.21.5" is 2.21.5.

    A number alone ("libnccl.so.2") is that of the interface.
    """
    match = _VERSION.search(path)
    return match[1] if match else Unknown(Reason.NOT_THERE, printable(path, 256), "its name shows no version")
