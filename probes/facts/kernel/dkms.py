"""What DKMS has built, and for which kernels: explains a module that is missing after a kernel update.

dkms(8) stores built modules in /var/lib/dkms/NAME/VERSION/KERNEL/ARCH/module/*.ko, a link for each installed
one in /var/lib/dkms/NAME/kernel-KERNEL-ARCH, and the log of the last failed build in build/make.log.
"""

from __future__ import annotations

from collections.abc import Collection

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Unknown, is_there, known
from probes.host.protocol import Host

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
_MAX_KERNELS = 64
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


def probe(host: Host) -> Maybe[DkmsFacts]:
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
    for entry in [entry for entry in entries if entry.startswith("kernel-")][:_MAX_KERNELS]:
        target = known(host.link(f"{DIRECTORY}/{name}/{entry}"), "").strip("/").split("/")
        if len(target) >= 3:
            found.setdefault(target[-3], []).append(printable(target[-2], 128))
    return found


def _version(host: Host, name: str, version: str, installed: dict[str, list[str]]) -> DkmsModule:
    base = f"{DIRECTORY}/{name}/{version}"
    kernels = [entry for entry in known(host.names(base), ()) if entry not in _NOT_KERNELS][:_MAX_KERNELS]
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
