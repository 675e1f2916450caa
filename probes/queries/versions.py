"""The versions that a reader of a ticket or a report asks for first."""

from __future__ import annotations

from probes.base.text import join_limited
from probes.base.unknown import Maybe, Reason, Unknown, is_there, known, map_known
from probes.facts.gpu.gpus import DriverFacts
from probes.facts.jobs.processes import ProcessFacts
from probes.facts.kernel.modules import ModuleFacts
from probes.facts.rdma.devices import RdmaFacts
from probes.facts.system.platform import PlatformFacts
from probes.facts.system.tools import LibraryFacts, Perftest
from probes.snapshot.examination import Examination

OWN_DRIVERS = "the kernel's own drivers"
_MOST_NAMED = 3


def versions_of(examination: Examination) -> dict[str, Maybe[str]]:
    """Return each version by the name of its component, in the order in which they are shown."""
    node, tools = examination.node, examination.tools
    platform, driver = node.platform, map_known(node.gpus, lambda gpus: gpus.driver)
    return {
        "machine": platform.product if isinstance(platform, PlatformFacts) else platform,
        "distribution": platform.distribution if isinstance(platform, PlatformFacts) else platform,
        "kernel": node.kernel_release,
        "NVIDIA driver": map_known(driver, _nvidia),
        "CUDA version of the driver": map_known(driver, lambda driver: driver.cuda_version),
        "NIC driver": _nic_driver(examination),
        "OFED": map_known(tools, lambda tools: OWN_DRIVERS if is_there(tools.ofed) is False else tools.ofed),
        "NIC firmware": map_known(node.rdma, _firmware),
        "NCCL": _nccl(examination),
        "GDRCopy": library_version(examination.libraries, "libgdrapi.so.2"),
        "Fabric Manager": map_known(tools, lambda tools: tools.fabric_manager),
        "perftest": map_known(map_known(tools, lambda tools: tools.perftest), _perftest),
    }


def _nvidia(driver: DriverFacts) -> Maybe[str]:
    flavor = "" if isinstance(driver.flavor, Unknown) else f" ({driver.flavor.value} kernel modules)"
    return map_known(driver.version, lambda version: f"{version}{flavor}")


def _nic_driver(examination: Examination) -> Maybe[str]:
    """Return "mlx5_core 24.10-0.7.0 (OFED)" for each driver of an RDMA device."""
    rdma, modules = examination.node.rdma, examination.node.modules
    if isinstance(rdma, Unknown):
        return rdma
    drivers = dict.fromkeys(known(device.driver, "") for device in rdma.devices)
    words = [_module(name, modules) for name in drivers if name]
    return ", ".join(words) or Unknown(Reason.NOT_THERE, "/sys/class/infiniband", "no RDMA device")


def _module(name: str, modules: Maybe[ModuleFacts]) -> str:
    module = modules.modules.get(name) if isinstance(modules, ModuleFacts) else None
    if module is None:
        return name
    origin = known(module.origin, "")
    version = known(module.version, "")
    return f"{name}{f' {version}' if version else ''}{f' ({origin})' if origin else ''}"


def _firmware(rdma: RdmaFacts) -> Maybe[str]:
    """Return "MT4129: 28.43.1014", with the devices where one type has several versions."""
    types: dict[str, dict[str, list[str]]] = {}
    for device in rdma.devices:
        if isinstance(device.bdf, Unknown):
            continue  # a software device has no firmware
        versions = types.setdefault(known(device.hca_type, "unknown type"), {})
        versions.setdefault(str(device.firmware), []).append(device.name)
    if not types:
        return Unknown(Reason.NOT_THERE, "/sys/class/infiniband", "no RDMA device")
    return "; ".join(f"{name}: {_by_version(versions)}" for name, versions in types.items())


def _by_version(versions: dict[str, list[str]]) -> str:
    if len(versions) == 1:
        return next(iter(versions))
    return ", ".join(f"{version} ({join_limited(names, _MOST_NAMED)})" for version, names in versions.items())


def _nccl(examination: Examination) -> Maybe[str]:
    """Return the installed NCCL, and those of running jobs where they differ: containers have their own."""
    installed = library_version(examination.libraries, "libnccl.so.2")
    used = _used_nccl(examination.processes)
    if isinstance(installed, Unknown):
        return f"{', '.join(used)} (running jobs)" if used else installed
    others = [version for version in used if version != installed]
    return f"{installed}; running jobs: {', '.join(others)}" if others else installed


def _used_nccl(processes: Maybe[ProcessFacts]) -> list[str]:
    found = () if isinstance(processes, Unknown) else processes.processes
    libraries = (library for process in found for library in known(process.libraries, ()))
    versions = dict.fromkeys(known(library.version, "") for library in libraries if library.name == "libnccl")
    return [version for version in versions if version]


def library_version(libraries: Maybe[LibraryFacts], soname: str) -> Maybe[str]:
    """Return the version of an installed library, of all its files; NOT_THERE: not installed."""
    found = map_known(libraries, lambda libraries: libraries.installed(soname))
    if isinstance(found, Unknown):
        return found
    if not found:
        return Unknown(Reason.NOT_THERE, soname, "not installed")
    return ", ".join(dict.fromkeys(str(library.version) for library in found))


def _perftest(build: Perftest) -> str:
    words = {True: "with", False: "without"}
    parts = [str(build.version)]
    for name, fact in (("CUDA", build.cuda), ("DMA-BUF", build.dmabuf)):
        parts.append(f"{name}: {fact}" if isinstance(fact, Unknown) else f"{words[fact]} {name}")
    return ", ".join(parts)
