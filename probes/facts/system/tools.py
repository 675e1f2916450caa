"""The installed tools and libraries, and whether perftest can use GPU memory.

A tool counts as installed if it is in a trusted directory, from which it can be run. No tool that contacts a
driver is started (nvidia-smi would load it). perftest's features are read from the bytes of its program,
because its output differs between versions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, first_unread, map_known, not_found
from probes.facts.network.routes import listening
from probes.facts.system.tool_names import PERFTEST, PROGRAMS
from probes.host.protocol import Host

# As in probes/host/machine/command.py: only programs in these directories are run.
DIRECTORIES = ("/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/sbin", "/usr/local/bin")
_PROGRAM_LIMIT_BYTES = 8 << 20
_SECONDS = 2.0
PERFTEST_PORT = 18515
# linux-rdma/perftest README.md; without CUDA_H_PATH it is built for host memory only.
PERFTEST_BUILD = (
    "./autogen.sh && ./configure CUDA_H_PATH=/usr/local/cuda/include/cuda.h && make && make install"
)

TOOLS = {
    **{program.name: program.use for program in PROGRAMS},
    "numactl": "binds a test to the NUMA node of its GPU",
    "rdma_topo": "rdma-core: checks ACS on GPU–NIC paths",
    "lspci": "shows PCI functions and their capabilities",
    "setpci": "changes PCI configuration, such as ACS",
    "mlxconfig": "shows and changes NIC firmware settings",
    "mlxlink": "shows a port's cable, module and signal",
    "nvidia-smi": "shows GPUs",
    "nv-fabricmanager": "sets up NVSwitch; without it CUDA programs fail to start on NVSwitch machines",
    "ibstat": "shows RDMA ports",
    "ibv_devinfo": "shows RDMA devices and their MTU",
    "show_gids": "shows GIDs of RoCE ports",
    "rdma": "iproute2: shows which processes use RDMA resources",
    "ethtool": "shows a netdev's own counters",
    "mlnx_qos": "shows and sets PFC, trust and priorities",
    "ofed_info": "shows the version of OFED",
    "dkms": "builds kernel modules for new kernels",
    "mokutil": "shows and enrolls Secure Boot keys",
}
"""Name → what it is for, one line for the admin."""

_NO_PROGRAM = Unknown(Reason.NOT_THERE, PERFTEST[0], "the program file cannot be read")
# "Version: 6.06" of perftest, "MLNX_OFED_LINUX-24.10-0.7.0.0:" or "OFED-internal-25.01-0.6.0:", and
# "Fabric Manager version is : 570.124.06".
VERSION = re.compile(r"Version: ?([0-9]{1,3}(?:\.[0-9]{1,4}){1,3})")
OFED = re.compile(r"^([A-Za-z][A-Za-z_-]{2,40}-[0-9][0-9A-Za-z._-]{1,60}):?\s*$", re.M)
FABRIC_MANAGER = re.compile(r"version is ?: ?([0-9]{1,4}(?:\.[0-9]{1,4}){1,3})")
_OPTIONS = ("use_cuda_bus_id", "ipv6-addr", "use_data_direct")


@frozen
class Perftest:
    """The installed perftest."""

    installed: tuple[str, ...]  # of PERFTEST
    version: Maybe[str]  # "6.23", as it prints it; the package's version differs
    cuda: Maybe[bool]  # it can use GPU memory
    dmabuf: Maybe[bool]  # it can use GPU memory by DMA-BUF
    evidence: str  # the source of cuda and dmabuf
    # It opens libcuda.so by this name, which driver packages may leave out (src/cuda_loader.c).
    opens_libcuda: Maybe[bool] = _NO_PROGRAM
    cuda_bus_id: Maybe[bool] = _NO_PROGRAM  # it accepts a GPU's PCI address, --use_cuda_bus_id
    ipv6_addr: Maybe[bool] = _NO_PROGRAM  # it can connect to an IPv6 address, --ipv6-addr (since 2023)
    data_direct: Maybe[bool] = _NO_PROGRAM  # it can use a NIC's Data Direct function, --use_data_direct


@frozen
class ToolFacts:
    """The installed tools and their versions."""

    paths: dict[str, Maybe[str]]  # every name of TOOLS -> its file; NOT_THERE: not installed
    perftest: Maybe[Perftest]  # NOT_THERE: not installed
    ofed: Maybe[str]  # "MLNX_OFED_LINUX-24.10-0.7.0.0"; NOT_THERE: no OFED, the kernel's own drivers
    fabric_manager: Maybe[str]  # "570.124.06"; must be the driver's version
    perftest_listens: Maybe[str | None] = None  # the file that shows a listener on perftest's port, if any


def probe(host: Host) -> ToolFacts:
    """Find the tools, and ask three harmless ones for their version."""
    paths = {name: _find(host, name) for name in TOOLS}
    return ToolFacts(
        paths=paths,
        perftest=_perftest(host, paths),
        ofed=_version(host, paths, ("ofed_info", "-s"), OFED),
        fabric_manager=_version(host, paths, ("nv-fabricmanager", "--version"), FABRIC_MANAGER),
        perftest_listens=map_known(listening(host), lambda ports: ports.get(PERFTEST_PORT)),
    )


def _find(host: Host, name: str) -> Maybe[str]:
    sizes: list[Maybe[int]] = []
    for directory in DIRECTORIES:
        sizes.append(host.size(f"{directory}/{name}"))
        if not isinstance(sizes[-1], Unknown):
            return f"{directory}/{name}"
    return not_found(sizes, name, "not installed")


def _perftest(host: Host, paths: dict[str, Maybe[str]]) -> Maybe[Perftest]:
    installed = tuple(name for name in PERFTEST if not isinstance(paths[name], Unknown))
    if not installed:
        return not_found((paths[name] for name in PERFTEST), PERFTEST[0], "perftest is not installed")
    name, path = installed[0], paths[installed[0]]
    version = _version(host, paths, (name, "--version"), VERSION)
    program = map_known(path, lambda file: host.read_bytes(file, _PROGRAM_LIMIT_BYTES))
    if not isinstance(program, Unknown) and program.startswith(b"\x7fELF"):
        cuda, dmabuf = cuda_in_program(program)
        bus_id, ipv6, direct = (f"{option}\0".encode() in program for option in _OPTIONS)
        opens, evidence = b"libcuda.so\0" in program, printable(f"{path}", 256)
        return Perftest(installed, version, cuda, dmabuf, evidence, opens, cuda and bus_id, ipv6, direct)
    evidence = f"{name} --help"
    usage = host.run((name, "--help"), _SECONDS)
    if isinstance(usage, Unknown):
        return Perftest(installed, version, usage, usage, evidence)
    text = usage.stdout + usage.stderr
    shown_cuda, shown_dmabuf = parse_usage(text)
    shown = (f"--{option}" in text for option in _OPTIONS)
    options = [shown_cuda if isinstance(shown_cuda, Unknown) else is_shown for is_shown in shown]
    return Perftest(installed, version, shown_cuda, shown_dmabuf, evidence, _NO_PROGRAM, *options)


def cuda_in_program(program: bytes) -> tuple[bool, bool]:
    """Return whether a perftest program can use GPU memory, and whether by DMA-BUF.

    With CUDA it is linked to libcuda.so.1 or, since 2025, opens libcuda.so. DMA-BUF needs the function
    cuMemGetHandleForAddressRange (perftest src/cuda_loader.c). The file contains these names.
    """
    cuda = b"libcuda.so" in program
    return cuda, cuda and b"cuMemGetHandleForAddressRange" in program


def parse_usage(text: str) -> tuple[Maybe[bool], Maybe[bool]]:
    """Return the same as cuda_in_program from the usage text; unknown if it is not a usage text."""
    if "--size" not in text and "--ib-dev" not in text:
        unknown = Unknown(Reason.MALFORMED, "--help", "no usage text")
        return unknown, unknown
    return "--use_cuda" in text, "--use_cuda_dmabuf" in text


def _version(
    host: Host, paths: dict[str, Maybe[str]], argv: Sequence[str], pattern: re.Pattern[str]
) -> Maybe[str]:
    path = paths[argv[0]]
    if isinstance(path, Unknown):
        return path
    answer = host.run(argv, _SECONDS)
    if isinstance(answer, Unknown):
        return answer
    version = pattern.search(answer.stdout + answer.stderr)
    output = printable(" ".join(answer.stdout.split()), 80)
    return Unknown(Reason.MALFORMED, " ".join(argv), output) if version is None else version[1]


# The libraries of GPU and RDMA programs that the dynamic loader finds on this node, with their versions.
#
# libnvidia-ml and libcuda must have the version of the loaded kernel module, else programs fail with
# "Driver/library version mismatch". Libraries inside containers are in processes.py.

LIBRARY_DIRECTORIES = (
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


def probe_libraries(host: Host) -> LibraryFacts:
    """Follow the links in the loader's default directories; ld.so.conf is not read."""
    found: dict[str, tuple[InstalledLibrary, ...]] = {}
    unread: dict[str, Unknown] = {}
    for soname in LIBRARIES:
        paths = [host.resolve(f"{directory}/{soname}") for directory in LIBRARY_DIRECTORIES]
        distinct = dict.fromkeys(path for path in paths if not isinstance(path, Unknown))
        found[soname] = tuple(InstalledLibrary(printable(path, 256), version_of(path)) for path in distinct)
        missing = first_unread(paths)
        if missing is not None:
            unread[soname] = missing
    return LibraryFacts(found, unread, _verbs_providers(host))


def _verbs_providers(host: Host) -> Maybe[tuple[str, ...]]:
    """List the plugins of libibverbs, LIBDIR/libibverbs/libNAME-rdmavNN.so (rdma-core, verbs.h)."""
    listed = [host.names(f"{directory}/libibverbs") for directory in LIBRARY_DIRECTORIES]
    names = {name for part in listed if not isinstance(part, Unknown) for name in part}
    found = tuple(sorted(printable(name, 64) for name in names if "-rdmav" in name))
    unread = first_unread(listed)
    return unread if unread is not None and not found else found


def version_of(path: str) -> Maybe[str]:
    """Return the version in a library's name, "libnccl.so.2.21.5"; one number is that of the interface."""
    match = _VERSION.search(path)
    absent = Unknown(Reason.NOT_THERE, printable(path, 256), "no version in the file name")
    return match[1] if match else absent
