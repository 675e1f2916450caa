"""Traits of a node, which should be the same on all nodes of its type, and how relevant a difference is.

What must differ is left out: names, addresses, GUIDs, serial numbers, boot ids, uptimes, counters. A device
is known by its place in the PCI tree without bus numbers, which change with every card that is added.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum

from probes.base.data_files import read_toml
from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.checks.nic.bit_errors import error_rate, link_kind
from probes.facts.gpu.gpus import Gpu
from probes.facts.kernel.modules import PRESENT
from probes.facts.pci.functions import PciFunction, now_of
from probes.facts.rdma.bit_errors import RAW_HEALTHY, RAW_TIMES
from probes.facts.rdma.devices import RdmaDevice, RdmaPort
from probes.facts.rdma.optics import ODD_CELSIUS
from probes.facts.rdma.port_health import routable_gids
from probes.facts.rdma.roce import netdevs_of
from probes.facts.system.limits import MemlockFacts
from probes.queries.pcie_paths import acs_exemption, express_of, functions_of, redirects_of
from probes.queries.ports import key_table, ports_of
from probes.queries.versions import library_version, versions_of
from probes.snapshot.examination import Examination

MOST_TRAITS = 4096
MOST_CHARACTERS = 200  # of a value, slot or label
ABSENT = "none"
# Facts whose labels are the names by which versions_of() returns them.
_VERSIONS = (
    *("driver", "kernel", "nic-driver", "ofed", "fabric-manager", "cuda", "gdrcopy", "perftest"),
    *("distribution", "machine"),
)
# Options of the kernel's command line that name this node's own disks, addresses and keys.
_OWN_OPTIONS = frozenset(
    (
        *("boot_image", "initrd", "root", "resume", "resume_offset", "bootif", "ip", "nfsroot", "nfsaddrs"),
        *("hostname", "ostree", "ds", "url", "systemd.machine_id", "systemd.hostname"),
    )
)
_OWN_BEGINS = ("rd.", "inst.", "cloud-")
_OWN_WORDS = ("uuid", "passw", "secret", "token", "credential", "key")
_WITH_DRIVER = ("cuda",)  # without the driver, this says nothing more
_OTHERS_SERVICES = ("opensm",)  # runs on one or two nodes of a fabric


@frozen
class Trait:
    """One fact of one node: text, a figure, or unknown with the reason."""

    fact: str  # id of probes.fleet.traits
    value: Maybe[str | float]
    slot: str = ""  # the device's place, or a name; "": the whole node, or all slots if it is unknown
    device: str = ""  # the device's name on this node: "mlx5_0", "GPU3"


def trait(fact: str, value: Maybe[object], slot: str = "", device: str = "") -> Trait:
    """Return a trait with bounded text; what is not there has a value too, so that it can differ."""
    shown: Maybe[str | float]
    if isinstance(value, Unknown):
        shown = ABSENT if _is_absent(value) else Unknown(value.reason, "", _cut(value.detail))
    elif isinstance(value, float):
        shown = value
    else:
        shown = _cut(str(value)) or ABSENT
    return Trait(fact, shown, _cut(slot), _cut(device))


def _is_absent(value: object) -> bool:
    return isinstance(value, Unknown) and value.reason is Reason.NOT_THERE


def _cut(text: str) -> str:
    return printable(text, MOST_CHARACTERS)


def fingerprint(traits: Iterable[Trait]) -> str:
    """Return a short text that is the same for equal traits."""
    values = repr([(found.fact, str(found.value), found.slot, found.device) for found in traits])
    return f"{zlib.crc32(values.encode('utf-8', 'replace')):08x}-{len(values)}"


def traits_of(examination: Examination) -> tuple[Trait, ...]:
    """Return all traits of a node."""
    readers: tuple[Callable[[Examination], Iterator[Trait]], ...]
    readers = (_of_node, _of_names, _of_gpus, _of_domain, _of_nics)
    traits = (found for read in readers for found in read(examination))
    return tuple(found for found, _ in zip(traits, range(MOST_TRAITS), strict=False))


# One value a node


def _of_node(examination: Examination) -> Iterator[Trait]:
    node, versions = examination.node, versions_of(examination)
    for fact in _VERSIONS:
        version = versions[fact_of(fact).label]
        if fact not in _WITH_DRIVER or not _is_absent(version):
            yield trait(fact, version)
    yield trait("nccl-library", library_version(examination.libraries, "libnccl.so.2"))
    yield trait("iommu", _iommu(examination))
    if acs_exemption(examination) is None:
        yield trait("acs", _acs(examination))
    platform, kernel = node.platform, node.kernel
    yield trait("bios", map_known(platform, lambda facts: facts.bios))
    environment = map_known(platform, lambda facts: facts.environment)
    yield trait("environment", map_known(environment, lambda place: place.value))
    cpu = examination.cpu
    clocks = cpu if isinstance(cpu, Unknown) else cpu.clocks
    yield trait("cpu-governor", map_known(clocks, str))
    yield trait(
        "numa-balancing", map_known(cpu, lambda facts: _switch(map_known(facts.numa_balancing, bool)))
    )
    yield trait("secure-boot", kernel if isinstance(kernel, Unknown) else _switch(kernel.secure_boot))
    yield trait("lockdown", map_known(kernel, lambda facts: facts.lockdown))


def _switch(fact: Maybe[bool]) -> Maybe[str]:
    return map_known(fact, lambda is_on: "on" if is_on else "off")


def _iommu(examination: Examination) -> Maybe[str]:
    """Return the kinds of translation of GPUs and NICs: "identity", "DMA, identity"."""
    pci = examination.node.pci
    if isinstance(pci, Unknown):
        return pci
    kinds = [function.iommu_type for function in (*pci.gpus, *pci.nics)]
    unread = next((kind for kind in kinds if isinstance(kind, Unknown)), None)
    if unread is not None:
        return unread
    return ", ".join(sorted({known(kind, "") for kind in kinds})) or ABSENT


def _acs(examination: Examination) -> Maybe[str]:
    found = redirects_of(examination)
    if found.unknowns:
        return found.unknowns[0]
    return f"on {len(found.ports)} of {found.checked} switch ports" if found.ports else "off"


# One value a name


def _of_names(examination: Examination) -> Iterator[Trait]:
    node = examination.node
    yield from _modules(examination)
    parameters = map_known(node.gpus, lambda gpus: gpus.driver.parameters)
    for name, value in known(parameters, {}).items():  # without the driver, its version says so
        yield trait("parameter", value.strip('"'), f"{name} of nvidia")
    cmdline = map_known(node.kernel, lambda kernel: kernel.cmdline)
    yield from _each("cmdline", map_known(cmdline, options_of))
    processes = examination.processes
    conf = processes if isinstance(processes, Unknown) else processes.nccl_conf
    if not _is_absent(conf):  # then nothing is set
        yield from _each("nccl", map_known(conf, lambda read: read.values))
    yield from _each("memlock", map_known(examination.memlock, _limits))
    services = examination.services
    if isinstance(services, Unknown):
        yield trait("service", services)
        return
    for name, service in services.services.items():
        if name not in _OTHERS_SERVICES:
            state = map_known(service.state, lambda state: state.value)
            yield trait("service", "not installed" if _is_absent(service.path) else state, name)


def _each(fact: str, values: Maybe[dict[str, str]]) -> Iterator[Trait]:
    if isinstance(values, Unknown):
        yield trait(fact, values)
        return
    for name, value in sorted(values.items()):
        yield trait(fact, value, name)


def _modules(examination: Examination) -> Iterator[Trait]:
    modules = examination.node.modules
    if isinstance(modules, Unknown):
        yield trait("module", modules)
        return
    for name, module in modules.modules.items():
        state = map_known(module.state, lambda state: "loaded" if state in PRESENT else state.value)
        yield trait("module", state, name)
        for parameter, value in module.parameters.items():
            yield trait("parameter", value, f"{parameter} of {name}")


def options_of(cmdline: str) -> dict[str, str]:
    """Return the options of a kernel's command line with their values, without those of this node alone.

    Source: Documentation/admin-guide/kernel-parameters.rst. An option without a value is "set"; several
    values of an option are one text, in their order.
    """
    options: dict[str, str] = {}
    for word in cmdline.split():
        name, _, value = word.partition("=")
        if word == "--":  # the rest is for init
            break
        key = name.lower()
        is_own = key in _OWN_OPTIONS or key.startswith(_OWN_BEGINS)
        if not is_own and not any(part in key for part in _OWN_WORDS):
            value = value or "set"
            options[name] = f"{options[name]}, {value}" if name in options else value
    return options


def _limits(facts: MemlockFacts) -> dict[str, str]:
    limits = {
        f"{line.domain} {line.kind}": "unlimited"
        if math.isinf(line.value_bytes)
        else f"{line.value_bytes / 1024:.0f} KiB"
        for line in facts.lines
    }
    units = {"systemd's default": facts.manager_default, **facts.services}
    return limits | {name: unit.value for name, unit in units.items() if not isinstance(unit, Unknown)}


# One value a GPU


def place_of(function: PciFunction | None, bdf: str) -> str:
    """Return a function's place: its host bridge, and device and function numbers down to it.

    "pci0000:15/01.0/00.0/00.0/00.0"; bus numbers are not in it.
    """
    if function is None:
        return bdf
    return "/".join((function.root, *(part.rpartition(":")[2] for part in function.chain)))


def _of_gpus(examination: Examination) -> Iterator[Trait]:
    gpus = examination.node.gpus
    if isinstance(gpus, Unknown):
        yield trait("gpu", gpus)
        return
    functions = functions_of(examination)
    for gpu in gpus.gpus:
        slot = place_of(functions.get(gpu.bdf), gpu.bdf)
        yield trait("gpu", gpu_model(examination, gpu), slot, f"GPU{gpu.index}")
        for fact, value in _of_gpu(gpu, functions).items():
            if not _is_absent(value):  # what only the driver knows is not there without it
                yield trait(fact, value, slot, f"GPU{gpu.index}")


def _of_domain(examination: Examination) -> Iterator[Trait]:
    """Yield the cliques in the NVLink domain of a rack, and the nodes of its IMEX domain.

    IMEX fails where its lists of nodes differ (NVIDIA IMEX guide, "Deployment Models", Constraints). A job's
    prolog may write a list for each job, so only that of a service which starts at boot is compared.
    """
    gpus = examination.node.gpus
    domains: dict[str, set[int]] = {}
    for gpu in () if isinstance(gpus, Unknown) else gpus.gpus:
        if not isinstance(gpu.fabric.cluster, Unknown) and not isinstance(gpu.fabric.clique, Unknown):
            domains.setdefault(gpu.fabric.cluster, set()).add(gpu.fabric.clique)
    for domain, cliques in domains.items():
        yield trait("clique", ", ".join(map(str, sorted(cliques))), f"domain {domain}")
    services, fabric = examination.services, examination.fabric_services
    service = None if isinstance(services, Unknown) else services.services.get("nvidia-imex")
    if len(domains) != 1 or service is None or service.enabled is not True or isinstance(fabric, Unknown):
        return
    ((domain, cliques),) = domains.items()
    if len(cliques) == 1 and not isinstance(fabric.imex_list, Unknown):
        yield trait("imex-nodes", fabric.imex_list, f"domain {domain}, clique {min(cliques)}")


def gpu_model(examination: Examination, gpu: Gpu) -> str:
    """Return the name of the PCI device, which does not depend on the driver; else the driver's name."""
    pci = examination.node.pci
    return gpu.name if isinstance(pci, Unknown) else pci.names.get(gpu.bdf, gpu.name)


def _of_gpu(gpu: Gpu, functions: dict[str, PciFunction]) -> dict[str, Maybe[object]]:
    return {
        "pcie-gpu": _link(functions, gpu.bdf, idles=True),
        "bar1": map_known(gpu.bar1_total_bytes, lambda size: f"{size >> 20} MiB"),
        "nvlinks": gpu.nvlinks,
        "fabric": map_known(
            gpu.fabric.state, lambda state: ", ".join((state, *known(gpu.fabric.problems, ())))
        ),
        "persistence": _switch(map_known(gpu.nvml, lambda nvml: nvml.persistence)),
        "mig": _switch(map_known(gpu.nvml, lambda nvml: nvml.mig)),
    }


def _link(functions: dict[str, PciFunction], bdf: str, idles: bool = False) -> Maybe[str]:
    function = functions.get(bdf)
    if function is None:
        return Unknown(Reason.NOT_THERE, bdf)
    upper = functions.get(function.chain[-2]) if len(function.chain) > 1 else None
    speed, width = now_of(function.link, None if upper is None else upper.link, idles)
    return map_known(speed, lambda speed: map_known(width, lambda width: f"{speed:g} GT/s ×{width:g}"))


# One value a NIC, or a port of it


def nics_of(examination: Examination) -> Maybe[tuple[RdmaDevice, ...]]:
    """Return the RDMA devices of NICs, without virtual functions whose number jobs and pods change."""
    rdma = examination.node.rdma
    if isinstance(rdma, Unknown):
        return () if rdma.reason is Reason.NOT_THERE else rdma
    virtual = {
        bdf for bdf, function in functions_of(examination).items() if function.physical_function is not None
    }
    return tuple(
        device for device in rdma.devices if not isinstance(device.bdf, Unknown) and device.bdf not in virtual
    )


def model_of(device: RdmaDevice) -> str:
    """Return type and board of a NIC: "MT4129 MT_0000000838"."""
    return f"{known(device.hca_type, '')} {known(device.board_id, '')}".strip() or "unknown model"


def _of_nics(examination: Examination) -> Iterator[Trait]:
    nics = nics_of(examination)
    if isinstance(nics, Unknown):
        yield trait("nic", nics)
        return
    functions = functions_of(examination)
    for device in nics:
        bdf = known(device.bdf, "")
        slot = place_of(functions.get(bdf), bdf)
        request = map_known(express_of(examination, bdf), lambda read: read.max_read_request_bytes)
        facts: dict[str, Maybe[object]] = {
            "nic": model_of(device),
            "firmware": device.firmware,
            "pcie-nic": _link(functions, bdf),
            "read-request": map_known(request, lambda size: f"{size} bytes"),
        }
        for fact, value in facts.items():
            yield trait(fact, value, slot, device.name)
        for port in device.ports:
            suffix = f"/{port.number}" if len(device.ports) > 1 else ""
            for fact, value in _of_port(examination, device, port):
                yield trait(fact, value, f"{slot}{suffix}", f"{device.name}{suffix}")


def _of_port(
    examination: Examination, device: RdmaDevice, port: RdmaPort
) -> Iterable[tuple[str, Maybe[object]]]:
    yield "port-state", port.state
    yield "port-rate", map_known(port.rate_gbps, lambda rate: f"{rate:g} Gb/s")
    yield "link-layer", port.link_layer
    table = key_table(examination, device.name, port.number)
    if table is not None:
        yield "partition-keys", map_known(table, lambda keys: keys.text)
    if port.link_layer != "Ethernet":
        return
    health = map_known(examination.port_health, lambda facts: facts.ports[device.name, port.number])
    yield "mtu", map_known(health, lambda read: read.netdev_mtu_bytes)
    mode = map_known(health, lambda read: map_known(read.fec, lambda fec: fec.mode))
    if not _is_absent(mode):  # the driver may not say, which is not "off"
        yield "fec", mode
    yield "gid", map_known(port.gids, lambda gids: ", ".join(str(index) for index, _ in routable_gids(gids)))
    qos = examination.qos
    for netdev in netdevs_of(port)[:1]:
        settings = qos if isinstance(qos, Unknown) else qos.netdevs.get(netdev)
        if settings is not None:
            pfc = map_known(settings, lambda read: read.pfc)
            yield "pfc", map_known(pfc, lambda priorities: ", ".join(map(str, priorities)))
            trust = map_known(settings, lambda read: read.trusts_dscp)
            yield "trust", map_known(trust, lambda trusts: "DSCP" if trusts else "PCP")


# Figures of links, which change with each reading and so are no part of what should be the same.

FAR_ABOVE: Mapping[str, Callable[[float], float]] = {
    "bit-errors": lambda median: max(RAW_HEALTHY, RAW_TIMES * median),
    "module-temperature": lambda median: median + ODD_CELSIUS,
}
"""Facts of which only high figures count, and from which figure on, by the median of the other nodes."""


def link_figures(examination: Examination) -> Iterator[Trait]:
    """Yield the error rate of each active port and the temperature of each module.

    Ports are compared in the same place, and with the same speed and FEC: those are part of the slot.
    """
    ports, functions = known(ports_of(examination), ()), functions_of(examination)
    temperatures = known(examination.temperatures, {})
    for port in ports:
        bdf, facts = known(port.device.bdf, ""), port.facts
        if not bdf or not port.is_active or port.is_virtual:
            continue
        place = place_of(functions.get(bdf), bdf)
        kind = " ".join(map(str, (facts.number, *link_kind(port))))
        rate = map_known(error_rate(examination, port)[0], lambda share: float(f"{share:.3g}"))
        yield trait("bit-errors", rate, f"{place}/{kind}", port.name)
        own = (sensor.celsius for sensor in known(temperatures.get(bdf, ()), ()) if sensor.is_of_module)
        celsius = next(own, Unknown(Reason.NOT_THERE, "hwmon"))
        yield trait("module-temperature", celsius, f"{place}/{facts.number}", port.name)


# The facts that should be the same on all nodes of a type, and how relevant a difference is.


class Place(Enum):
    """What a fact is about."""

    NODE = "node"  # one value
    NAME = "name"  # one value a name, such as a module or a setting
    GPU = "GPU"  # one value a GPU
    NIC = "NIC"  # one value a NIC, or a port of one


@frozen
class Fact:
    """One fact; its place in FACTS is its relevance."""

    id: str
    label: str
    place: Place = Place.NODE
    absent: str = ""  # the value of a node without this device or name; "": such a node is not compared
    unit: str = ""  # of a figure that was measured; "": a text that is equal or not
    rack: str | None = None  # what a difference means within a rack; "": no more than that; None: nothing


_BY_ID = {
    name: Fact(name, **{**row, "place": Place(row.get("place", "node"))})
    for name, row in read_toml(__package__, "facts.toml").items()
}
FACTS = tuple(_BY_ID.values())
_RANKS = {name: rank for rank, name in enumerate(_BY_ID)}


def fact_of(name: str) -> Fact:
    """Return the fact with this id; one of a newer gdrtop is a fact about names without further meaning."""
    return _BY_ID.get(name) or Fact(name, name, Place.NAME)


def rank_of(name: str) -> int:
    """Return how relevant a difference in this fact is; 0 is the most relevant."""
    return _RANKS.get(name, len(_RANKS))
