"""How the NVIDIA driver got onto the node: package, installer, DKMS, prebuilt modules, container."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, map_known
from probes.facts.gpu.gpus import DriverFacts, Flavor
from probes.facts.kernel.module_files import DRIVER_PACKAGES, DkmsFacts, ModuleFile, file_of, installed_for
from probes.facts.system.kubernetes import DriverContainerFacts
from probes.facts.system.packages import Package, owner_of_module
from probes.host.protocol import Host


class DriverOrigin(Enum):
    """Who installed the driver."""

    PACKAGE = "package"  # apt, dnf, zypper
    RUN_FILE = ".run installer"
    CONTAINER = "driver container"  # GPU Operator: /run/nvidia/driver


@frozen
class DriverPackage:
    """The installed driver, loaded or not."""

    version: Maybe[str]  # "580.95.05"
    is_open: Maybe[bool]  # open kernel modules
    origin: Maybe[DriverOrigin]
    package: Maybe[str]  # package that owns the module file or nvidia-smi; NOT_THERE: none
    by_dkms: Maybe[bool]  # built on the node by DKMS
    prebuilt: Maybe[bool]  # compiled by the distributor for its own kernel: its peermem knows no OFED


_PROGRAM = "/usr/bin/nvidia-smi"
_UNINSTALLER = "/usr/bin/nvidia-uninstall"  # only the .run installer installs it (driver README, chapter 8)
_AKMODS = "/var/cache/akmods/nvidia"  # RPM Fusion: packages that are built on the node
CLOSED_LICENSE = "NVIDIA"  # the open modules have "Dual MIT/GPL" (kernel-open/nvidia/nv.c)


@frozen
class DriverTraces:
    """What other probes know of the driver."""

    release: Maybe[str]  # of the running kernel
    loaded: Maybe[DriverFacts]
    files: Maybe[Mapping[str, ModuleFile]]  # modinfo, by module
    dkms: Maybe[DkmsFacts]
    container: Maybe[DriverContainerFacts]


def probe(host: Host, traces: DriverTraces) -> Maybe[DriverPackage]:
    """Combine the driver's package with other traces; NOT_THERE: not loaded, and none of it is on disk."""
    file = file_of(traces.files, "nvidia")
    running = map_known(traces.loaded, lambda driver: driver.version)
    version = map_known(file, lambda found: found.version) if isinstance(running, Unknown) else running
    has_program = not isinstance(host.size(_PROGRAM), Unknown)
    in_container = map_known(traces.container, lambda container: container.driver)
    if isinstance(version, Unknown) and not has_program and in_container is not True:
        if version.reason is Reason.NOT_THERE:
            return Unknown(Reason.NOT_THERE, "modinfo nvidia", "no NVIDIA driver is installed")
        return version
    package = owner_of_module(host, map_known(file, lambda found: found.path), _PROGRAM)
    flavor = map_known(traces.loaded, lambda driver: driver.flavor)
    license_text = map_known(file, lambda found: found.license)
    by_license = map_known(license_text, lambda text: text != CLOSED_LICENSE)
    origin = _origin(host, in_container, package)
    by_dkms = installed_for(traces.dkms, DRIVER_PACKAGES, traces.release)
    return DriverPackage(
        version=version,
        is_open=by_license if isinstance(flavor, Unknown) else flavor is Flavor.OPEN,
        origin=origin,
        package=map_known(package, lambda owner: owner.name),
        by_dkms=by_dkms,
        prebuilt=_prebuilt(host, origin, by_dkms, file),
    )


def _origin(host: Host, in_container: Maybe[bool], package: Maybe[Package]) -> Maybe[DriverOrigin]:
    if in_container is True:
        return DriverOrigin.CONTAINER
    if not isinstance(package, Unknown):
        return DriverOrigin.PACKAGE
    if not isinstance(host.size(_UNINSTALLER), Unknown):
        return DriverOrigin.RUN_FILE
    if package.reason is Reason.NOT_THERE:
        return Unknown(Reason.NOT_THERE, _UNINSTALLER, "neither a package nor the .run installer")
    return package


def _prebuilt(
    host: Host, origin: Maybe[DriverOrigin], by_dkms: Maybe[bool], file: Maybe[ModuleFile]
) -> Maybe[bool]:
    """Return whether the modules came compiled: packaged, with a file for this kernel, and not by DKMS.

    Canonical's linux-modules-nvidia-*, SUSE's *-kmp-* and NVIDIA's own kmod packages.
    """
    if isinstance(origin, Unknown):
        return origin
    if origin is not DriverOrigin.PACKAGE or not isinstance(host.size(_AKMODS), Unknown):
        return False
    return map_known(file, lambda _: map_known(by_dkms, lambda is_built: not is_built))


def module_flavor(is_open: Maybe[bool]) -> str:
    """Return "open modules", "proprietary modules", or that it is unknown."""
    if isinstance(is_open, Unknown):
        return "modules of unknown type"
    return "open modules" if is_open else "proprietary modules"
