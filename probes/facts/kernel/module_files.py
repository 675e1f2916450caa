"""The module files on disk, what DKMS has built, and the RDMA stack that a module would be built against.

modinfo(8) reads the file that modprobe would load, compressed or not. Compared with the loaded module
(modules.py), it shows a file replaced since boot (version, srcversion), the kernel that it was built for
(vermagic), and its signer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, is_there, known, map_known
from probes.facts.kernel.depmod import FILE_LIMIT_BYTES
from probes.facts.kernel.release import is_release
from probes.facts.pci.nic_families import CONNECTX
from probes.host.protocol import Host

_SECONDS = 3.0
_SYMVERS_LIMIT_BYTES = 32 << 20
_MAX_FIELDS = 4096
_MAX_KERNELS = 8
# Debian's names have the alternative that provides them.
_PEERMEM = re.compile(
    rb"nvidia[-_](?:(?:current|tesla)[-_](?:(?:open|[0-9]{3})[-_])?)?peermem\.ko[.a-z0-9]{0,4}:"
)

_NO_VERMAGIC = Unknown(Reason.NOT_RECORDED, "modinfo -F vermagic")


@frozen
class ModuleFile:
    """The fields of one file; NOT_THERE: it has no such field."""

    name: str  # with underscores
    path: str  # "(builtin)" for a part of the kernel
    version: Maybe[str]
    srcversion: Maybe[str]
    license: Maybe[str]  # "NVIDIA", "Dual MIT/GPL"
    kernel: Maybe[str]  # first word of vermagic: the release it was built for
    signer: Maybe[str]  # NOT_THERE: unsigned
    depends: tuple[str, ...]
    architecture: Maybe[str] = _NO_VERMAGIC  # "x86_64", "aarch64", from vermagic
    firmware: tuple[str, ...] = ()  # it may load, below /lib/firmware: "nvidia/580.65.06/gsp_ga10x.bin"


@frozen
class ExportedSymbol:
    """A symbol in a Module.symvers, against which modules are built."""

    path: str
    crc: int
    module: str


@frozen
class ModuleFileFacts:
    """The files by module, and the RDMA stacks that peer-memory modules can be built against."""

    files: Maybe[dict[str, ModuleFile]]  # without modules that have no file
    peer_memory: tuple[ExportedSymbol, ...]  # ib_register_peer_memory_client, in the driver's search order
    unread: tuple[str, ...]  # existing Module.symvers that could not be read
    elsewhere: tuple[str, ...] = ()  # other kernels with nvidia_peermem, if the running kernel has none
    without_firmware: tuple[str, ...] = ()  # files of firmware that nvidia.ko names and that are not there


PEER_MEMORY_SYMBOL = "ib_register_peer_memory_client"
MODULES = ("ib_core", "ib_uverbs", *CONNECTX.modules, "nvidia", "nvidia_uvm", "nvidia_peermem", "gdrdrv")
_FIELD = re.compile(r"([a-z_]{1,20}):\s+(\S.*)")


def probe(
    host: Host,
    release: Maybe[str],
    file_names: Mapping[str, str] | None = None,
    names: Iterable[str] = MODULES,
) -> ModuleFileFacts:
    """Run modinfo once, and read the Module.symvers of the kernel `release` and of OFED.

    `file_names`: of the modules whose files are named otherwise, which modinfo does not find by itself.
    """
    symbols: list[ExportedSymbol] = []
    unread: list[str] = []
    if not isinstance(release, Unknown) and is_release(release):
        for path in _symvers(host, release):
            content = host.read_bytes(path, _SYMVERS_LIMIT_BYTES)
            if isinstance(content, Unknown):
                unread += [] if content.reason is Reason.NOT_THERE else [printable(path, 256)]
                continue
            symbol = parse_symvers(content, PEER_MEMORY_SYMBOL, path)
            symbols += [] if symbol is None else [symbol]
    files = _files(host, tuple((file_names or {}).get(name, name) for name in names))
    absent = not isinstance(files, Unknown) and "nvidia_peermem" not in files
    elsewhere = _elsewhere(host, release) if absent else ()
    driver = None if isinstance(files, Unknown) else files.get("nvidia")
    firmware = () if driver is None else _missing_firmware(host, known(release, ""), driver.firmware)
    return ModuleFileFacts(files, tuple(symbols), tuple(unread), elsewhere, firmware)


def _missing_firmware(host: Host, release: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the files that the kernel does not find (firmware_loader/main.c, fw_path), also compressed."""
    places = [f"/lib/firmware/{place}" for place in (f"updates/{release}/", "updates/", f"{release}/", "")]

    def is_missing(name: str) -> bool:
        paths = (f"{place}{name}{packed}" for place in places for packed in ("", ".xz", ".zst"))
        return all(is_there(host.size(path)) is False for path in paths)

    return tuple(filter(is_missing, names))


def _elsewhere(host: Host, release: Maybe[str]) -> tuple[str, ...]:
    """Return the other kernels below /lib/modules whose modules.dep has nvidia_peermem."""
    names = known(host.names("/lib/modules"), ())
    kernels = [name for name in names if name != release and is_release(name)]
    found = []
    for kernel in kernels[-_MAX_KERNELS:]:
        listed = host.read_bytes(f"/lib/modules/{kernel}/modules.dep", FILE_LIMIT_BYTES)
        if not isinstance(listed, Unknown) and _PEERMEM.search(listed):
            found.append(kernel)
    return tuple(found)


def _symvers(host: Host, release: str) -> list[str]:
    """Return the files that the driver's build searches, in order (kernel-open/conftest.sh)."""
    directories = [
        f"/lib/modules/{release}/build",
        f"/usr/src/ofa_kernel/x86_64/{release}",
        f"/usr/src/ofa_kernel/aarch64/{release}",
        f"/usr/src/ofa_kernel/{release}",
        "/usr/src/ofa_kernel/default",
    ]
    versions = known(host.names("/var/lib/dkms/mlnx-ofed-kernel"), ())
    directories += [f"/var/lib/dkms/mlnx-ofed-kernel/{version}/build" for version in versions[:16]]
    return [f"{directory}/Module.symvers" for directory in directories]


def _files(host: Host, names: tuple[str, ...]) -> Maybe[dict[str, ModuleFile]]:
    answer = host.run(("modinfo", *names), _SECONDS)
    if isinstance(answer, Unknown):
        return answer
    files = parse_modinfo(answer.stdout)
    if not files and "not found" not in answer.stderr:
        error = printable(" ".join(answer.stderr.split()), 120)
        return Unknown(Reason.IO_ERROR, "modinfo", error or "modinfo printed nothing")
    return files


def file_of(files: Maybe[Mapping[str, ModuleFile]], name: str) -> Maybe[ModuleFile]:
    """Return modinfo's fields of a module; NOT_THERE: it has no file for the running kernel."""
    absent = Unknown(Reason.NOT_THERE, f"modinfo {name}", "no such module")
    return map_known(files, lambda found: found.get(name) or absent)


def parse_modinfo(text: str) -> dict[str, ModuleFile]:
    """Parse the output of modinfo: blocks of "field:  value" that begin with "filename:"."""
    found: dict[str, ModuleFile] = {}
    fields: dict[str, str] = {}
    name = ""
    for line in [*text.split("\n"), "filename: end"]:
        match = _FIELD.match(line)
        if match is None:
            continue
        key, value = match[1], match[2].strip()
        if key == "filename":
            if fields:
                file = _module_file(fields)
                found[file.name] = file
            # A built-in module has its name before its "filename".
            fields = {"name": name} if name else {}
        elif name:
            fields.setdefault("name", name)
        name = value if key == "name" else ""
        if key == "firmware" and key in fields:
            fields[key] = f"{fields[key]}\n{value}"[:_MAX_FIELDS]
        elif key != "name" and len(fields) < _MAX_FIELDS:
            fields.setdefault(key, value)
    return found


def _module_file(fields: dict[str, str]) -> ModuleFile:
    path = printable(fields.get("filename", ""), 512)

    def field(name: str) -> Maybe[str]:
        if name in fields:
            return printable(fields[name], 128)
        return Unknown(Reason.NOT_THERE, path, f"no field {name}")

    vermagic = field("vermagic")
    # Modules of kernels before 4.13 have no name field.
    name = fields.get("name") or path.rpartition("/")[2].partition(".ko")[0]
    depends = fields.get("depends", "").split(",")
    return ModuleFile(
        name=printable(name.replace("-", "_"), 64),
        path=path,
        version=field("version"),
        srcversion=field("srcversion"),
        license=field("license"),
        kernel=vermagic if isinstance(vermagic, Unknown) else vermagic.split(" ", 1)[0],
        signer=field("signer"),
        depends=tuple(printable(word.replace("-", "_"), 64) for word in depends[:64] if word),
        # On arm64 vermagic ends in "aarch64" (asm/vermagic.h); x86-64 adds nothing.
        architecture=map_known(vermagic, lambda words: "aarch64" if "aarch64" in words else "x86_64"),
        firmware=tuple(printable(path, 256) for path in fields.get("firmware", "").split("\n")[:16] if path),
    )


def parse_symvers(content: bytes, symbol: str, path: str = "") -> ExportedSymbol | None:
    """Find a symbol in a Module.symvers: tab-separated lines "0xCRC, symbol, module, EXPORT_SYMBOL…"."""
    pattern = rb"^0x([0-9a-fA-F]{1,8})\t" + re.escape(symbol.encode()) + rb"\t([^\t\n]{1,256})\tEXPORT_SYMBOL"
    match = re.search(pattern, content, re.M)
    if match is None:
        return None
    module = match[2].decode("utf-8", "replace").rpartition("/")[2]
    return ExportedSymbol(printable(path, 256), int(match[1], 16), printable(module, 64))


# What DKMS has built, and for which kernels: explains a module that is missing after a kernel update.
#
# dkms(8) stores built modules in /var/lib/dkms/NAME/VERSION/KERNEL/ARCH/module/*.ko, a link for each
# installed one in /var/lib/dkms/NAME/kernel-KERNEL-ARCH, and the log of the last failed build in
# build/make.log.

DIRECTORY = "/var/lib/dkms"
DRIVER_PACKAGES = (
    *("nvidia", "nvidia-open", "nvidia-srv"),
    *("nvidia-current", "nvidia-current-open", "nvidia-tesla", "nvidia-tesla-470", "nvidia-tesla-535"),
)
"""DKMS packages of the GPU driver, those of Debian last; nvidia-fs and nvidia-peer-memory are separate."""
OFED_PACKAGES = ("mlnx-ofed-kernel", "mlnx-ofa_kernel")
"""DKMS packages of the NIC driver: of Debian's family and of Red Hat's."""
_MAX_MODULES = 64
_MAX_VERSIONS = 32
_MAX_DKMS_KERNELS = 64
_NOT_KERNELS = ("source", "build")


@frozen
class DkmsModule:
    """One version of one package of modules."""

    name: str  # "nvidia", "mlnx-ofed-kernel", "gdrdrv"
    version: str
    built: tuple[str, ...]  # kernels that it was built for
    installed: tuple[str, ...]  # kernels that it is installed for
    failed_log: str | None  # log of a failed build


@frozen
class DkmsFacts:
    """Every version of every package, in order of name."""

    modules: tuple[DkmsModule, ...]


def probe_dkms(host: Host) -> Maybe[DkmsFacts]:
    """Read the tree of DKMS; NOT_THERE: no DKMS, so modules are prebuilt or part of the kernel."""
    names = host.names(DIRECTORY)
    if isinstance(names, Unknown):
        return names
    modules: list[DkmsModule] = []
    for name in [name for name in names if not name.endswith((".conf", ".pub", ".key"))][:_MAX_MODULES]:
        entries = host.names(f"{DIRECTORY}/{name}")
        if isinstance(entries, Unknown):
            continue
        installed = _installed(host, name, entries)
        versions = [entry for entry in entries if not entry.startswith(("kernel-", "original_module"))]
        modules.extend(_version(host, name, version, installed) for version in versions[:_MAX_VERSIONS])
    return DkmsFacts(tuple(modules))


def installed_for(facts: Maybe[DkmsFacts], names: Collection[str], release: Maybe[str]) -> Maybe[bool]:
    """Return whether DKMS installed one of these packages for a kernel; without DKMS it did not."""
    if isinstance(facts, Unknown):
        return is_there(facts)
    if isinstance(release, Unknown):
        return release
    return any(module.name in names and release in module.installed for module in facts.modules)


def _installed(host: Host, name: str, entries: tuple[str, ...]) -> dict[str, list[str]]:
    """Return version -> kernels, by the targets "VERSION/KERNEL/ARCH" of the links."""
    found: dict[str, list[str]] = {}
    for entry in [entry for entry in entries if entry.startswith("kernel-")][:_MAX_DKMS_KERNELS]:
        target = known(host.link(f"{DIRECTORY}/{name}/{entry}"), "").strip("/").split("/")
        if len(target) >= 3:
            found.setdefault(target[-3], []).append(printable(target[-2], 128))
    return found


def _version(host: Host, name: str, version: str, installed: dict[str, list[str]]) -> DkmsModule:
    base = f"{DIRECTORY}/{name}/{version}"
    entries = known(host.names(base), ())
    kernels = [entry for entry in entries if entry not in _NOT_KERNELS][:_MAX_DKMS_KERNELS]
    log = f"{base}/build/make.log"
    return DkmsModule(
        name=printable(name, 64),
        version=printable(version, 64),
        built=tuple(printable(kernel, 128) for kernel in kernels if _is_built(host, f"{base}/{kernel}")),
        installed=tuple(installed.get(version, ())),
        # A successful build removes its directory and moves its log to the modules.
        failed_log=None if isinstance(host.size(log), Unknown) else printable(log, 256),
    )


def _is_built(host: Host, directory: str) -> bool:
    paths = [f"{directory}/{architecture}/module" for architecture in known(host.names(directory), ())]
    return any(".ko" in file for path in paths for file in known(host.names(path), ()))
