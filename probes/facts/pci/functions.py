"""PCI functions and bridges, from sysfs, and the bandwidth of their links."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from dataclasses import field, replace
from enum import Enum
from functools import cached_property
from typing import TypeVar

from probes.base.frozen import frozen
from probes.base.origin import Source
from probes.base.text import BDF, plural, printable
from probes.base.unknown import (
    Maybe,
    Reason,
    Unknown,
    first_unread,
    is_there,
    known,
    map_known,
    not_found,
    parse_known,
)
from probes.facts.pci.names import names_of
from probes.facts.system import numa
from probes.host.protocol import Host
from probes.host.values import is_without_numa_node, read_numa_node

T = TypeVar("T")
DEVICES = "/sys/bus/pci/devices"
_ASLEEP = (("power/runtime_status", ("suspended", "suspending")), ("power_state", ("D3cold",)))


class PciKind(Enum):
    """The kind of a function for gdrtop, by class code and vendor."""

    GPU = "GPU"  # NVIDIA, class 0x03…
    NIC = "NIC"  # class 0x02…
    NVSWITCH = "NVSwitch"  # NVIDIA, class 0x0680…
    NVSWITCH_MANAGEMENT = "NVSwitch management"  # a ConnectX that carries no data (with_management)
    DMA = "DMA function"  # of a ConnectX-8: class 0x0801…, by which it reaches GPU memory (Data Direct)
    BRIDGE = "bridge"  # class 0x0604…: root port, switch upstream or downstream port
    OTHER = "other"


@frozen
class PciLink:
    """A PCIe link: speeds in GT/s per lane, widths in lanes; `max_` is what the function itself supports."""

    speed_gtps: Maybe[float]
    width: Maybe[int]
    max_speed_gtps: Maybe[float]
    max_width: Maybe[int]


@frozen
class PciBar:
    """One base address register's region."""

    index: int
    size_bytes: int
    prefetchable: bool


@frozen
class PciFunction:
    """One PCI function and its place in the tree."""

    bdf: str  # "0000:1b:00.0"
    sysfs_path: str  # resolved, "/sys/devices/pci0000:15/…/0000:1b:00.0"
    root: str  # host bridge: "pci0000:15"
    chain: tuple[str, ...]  # BDFs from the root port down to and including this function
    kind: PciKind
    class_code: Maybe[int]  # 24 bits: 0x030200
    vendor_id: Maybe[int]
    device_id: Maybe[int]
    subsystem_vendor_id: Maybe[int]
    subsystem_device_id: Maybe[int]
    driver: Maybe[str]  # bound driver; NOT_THERE: none
    numa_node: Maybe[int]  # NOT_THERE: the kernel says -1; without the file, from local_cpulist
    local_cpulist: Maybe[str]  # the CPUs near it; read only if the NUMA node is unknown
    # Read for all kinds but OTHER, unless they sleep; else NOT_THERE, "not read …".
    link: PciLink
    # Read for GPUs, NICs, their DMA functions and NVSwitches.
    bars: Maybe[tuple[PciBar, ...]]
    iommu_group: Maybe[int]
    iommu_type: Maybe[str]  # "DMA", "DMA-FQ", "identity", …
    physical_function: str | None  # BDF of the physical function, for an SR-IOV virtual function


@frozen
class PciFacts:
    """Every PCI function of the node, by BDF, in BDF order."""

    functions: dict[str, PciFunction]
    names: dict[str, str]  # BDF -> "NVIDIA GH100 [H100 SXM5 80GB]", for all kinds but OTHER
    # BDF -> how it is known ("VPD has SMDL=SW_MNG", "assumed from …"), for functions of NVSWITCH_MANAGEMENT.
    management: dict[str, str] = field(default_factory=dict)

    @cached_property
    def gpus(self) -> tuple[PciFunction, ...]:
        """The functions that are GPUs; dozens of checks ask for them."""
        return tuple(function for function in self.functions.values() if function.kind is PciKind.GPU)

    @cached_property
    def other_gpus(self) -> str:
        """Return "8 AMD GPUs, which gdrtop does not read"; "" if there are none."""
        counts = {name: sum(map(is_one, self.functions.values())) for name, is_one in _OTHERS.items()}
        named = " and ".join(plural(count, f"{name} GPU") for name, count in counts.items() if count)
        return f"{named}, which gdrtop does not read" if named else ""

    @cached_property
    def nics(self) -> tuple[PciFunction, ...]:
        """The functions that are NICs."""
        return tuple(function for function in self.functions.values() if function.kind is PciKind.NIC)

    @cached_property
    def has_grace_root_ports(self) -> bool:
        """Whether a bridge is a root port of a Grace or Vera CPU."""
        return any(
            function.kind is PciKind.BRIDGE
            and function.vendor_id == _NVIDIA
            and function.device_id in (*_GRACE_ROOT_PORTS, *_VERA_ROOT_PORTS)
            for function in self.functions.values()
        )


_WITHOUT_FILE = (Reason.NOT_THERE, Reason.MALFORMED)  # an odd tree: the function counts as any other
_HEX = re.compile(r"(?:0x)?[0-9a-fA-F]{1,6}")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_NVIDIA, _MELLANOX, _AMD, _INTEL = 0x10DE, 0x15B3, 0x1002, 0x8086
_ACCELERATOR, _DISPLAY = 0x1200, 0x0380  # PCI code and ID assignment: processing accelerator; display, no VGA
# rdma-core kernel-boot/rdma_topo, pci_device_types.
_GRACE_ROOT_PORTS, _VERA_ROOT_PORTS = (0x22B1, 0x22B2, 0x22B8), (0x2F95, 0x2F96)
_NOT_READ = Unknown(Reason.NOT_THERE, "", "not read for this kind of function")
_NUMA_KNOWN = Unknown(Reason.NOT_THERE, "", "not read, because the NUMA node is known")
_NO_LINK = PciLink(_NOT_READ, _NOT_READ, _NOT_READ, _NOT_READ)
_PREFETCHABLE = 0x2000  # IORESOURCE_PREFETCH, include/linux/ioport.h


def _has(function: PciFunction, vendor: int, *classes: int) -> bool:
    return function.vendor_id == vendor and known(function.class_code, 0) >> 8 in classes


_OTHERS: dict[str, Callable[[PciFunction], bool]] = {
    "AMD": lambda function: _has(function, _AMD, _ACCELERATOR, _DISPLAY),  # Instinct
    # Data Center GPU Flex and Max, which are cards; the GPU of a CPU is on its bus 0.
    "Intel": lambda function: _has(function, _INTEL, _DISPLAY) and function.bdf[5:7] != "00",
}
"""GPUs of other makers, by maker."""


def is_for_guests(driver: Maybe[str]) -> bool:
    """Return whether a driver reserves a device for virtual machines, such as vfio-pci, mlx5_vfio_pci."""
    name = known(driver, "").replace("-", "_")
    return name.endswith("vfio_pci") or name == "pci_stub"


def is_vera_root_port(function: PciFunction) -> bool:
    """Return whether this is a root port of a Vera CPU."""
    return function.vendor_id == _NVIDIA and function.device_id in _VERA_ROOT_PORTS


def kind_of(class_code: Maybe[int], vendor_id: Maybe[int]) -> PciKind:
    """Return the kind of a function, by its class code (pci_ids.h) and vendor."""
    if isinstance(class_code, Unknown):
        return PciKind.OTHER
    base, nvidia = class_code >> 16, vendor_id == _NVIDIA
    if base == 0x03 and nvidia:
        return PciKind.GPU
    if class_code >> 8 == 0x0680 and nvidia:
        return PciKind.NVSWITCH
    if base == 0x02:
        return PciKind.NIC
    if class_code >> 8 == 0x0801 and vendor_id == _MELLANOX:
        return PciKind.DMA
    return PciKind.BRIDGE if class_code >> 8 == 0x0604 else PciKind.OTHER


def chain_of(sysfs_path: str) -> tuple[str, tuple[str, ...]]:
    """Return the host bridge and the BDFs from the root port down, from a resolved sysfs path.

    A host bridge below a device (VMD: "pci10000:e0" below "0000:00:0e.0") begins a new chain, and so does
    a function below anything that is not a PCI function.
    """
    root = ""
    chain: list[str] = []
    broken = False
    for part in sysfs_path.split("/"):
        if BDF.fullmatch(part):
            if broken:
                chain, broken = [], False
            if root:
                chain.append(part)
        elif _ROOT.fullmatch(part):
            root, chain, broken = part, [], False
        else:
            broken = True
    return root, tuple(chain)


def parse_uevent(text: str) -> dict[str, str]:
    """Parse the KEY=value lines of a uevent file."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def parse_speed(text: str) -> float | None:
    """Parse "16.0 GT/s PCIe" (kernel ≥ 5.7) or "16 GT/s"; None for "Unknown" and anything else."""
    match = re.match(r"(\d{1,3}(?:\.\d{1,2})?) GT/s", text)
    # No link runs at 0 GT/s: this means unknown, too.
    return (float(match.group(1)) or None) if match else None


def parse_width(text: str) -> int | None:
    """Parse a number of lanes; None for 0 and 255: there is no link, or the device is gone."""
    return int(text) if re.fullmatch(r"[0-9]{1,3}", text) and int(text) in range(1, 65) else None


def parse_resource(text: str) -> tuple[PciBar, ...]:
    """Parse a `resource` file: lines of start, end and flags in hex, of which the first six are BARs."""
    bars = []
    for index, line in enumerate(text.splitlines()[:6]):
        try:
            start, end, flags = (int(word, 16) for word in line.split())
        except ValueError:
            continue
        if end > start >= 0:
            bars.append(PciBar(index, end - start + 1, bool(flags & _PREFETCHABLE)))
    return tuple(bars)


def _link(host: Host, path: str, bdf: str) -> PciLink:
    sleeps = asleep(host, bdf)
    if sleeps is not None:
        return PciLink(sleeps, sleeps, sleeps, sleeps)

    def value(name: str, parse: Callable[[str], T | None]) -> Maybe[T]:
        return parse_known(host.read(f"{path}/{name}"), parse, f"{path}/{name}", Reason.NOT_THERE)

    return PciLink(
        value("current_link_speed", parse_speed),
        value("current_link_width", parse_width),
        value("max_link_speed", parse_speed),
        value("max_link_width", parse_width),
    )


def _iommu(host: Host, path: str) -> tuple[Maybe[int], Maybe[str]]:
    target = host.link(f"{path}/iommu_group")
    if isinstance(target, Unknown):
        return target, target
    number = target.rpartition("/")[2]
    if not re.fullmatch(r"[0-9]{1,9}", number):
        return (bad := Unknown(Reason.MALFORMED, f"{path}/iommu_group", printable(target, 80))), bad
    kind = host.read(f"/sys/kernel/iommu_groups/{number}/type", 4096)
    return int(number), kind if isinstance(kind, Unknown) else printable(kind, 40)


def _function(host: Host, bdf: str) -> Maybe[PciFunction]:
    """Read a function; unknown if what it is or where it is could not be read."""
    target = host.link(f"{DEVICES}/{bdf}")
    if isinstance(target, Unknown):
        # Some dumps have directories in place of the kernel's links.
        resolved = host.resolve(f"{DEVICES}/{bdf}")
        if isinstance(resolved, Unknown) and (unread := first_unread((resolved, target))) is not None:
            return unread
        path = known(resolved, f"{DEVICES}/{bdf}")
    else:
        path = posixpath.normpath(posixpath.join(DEVICES, target))
    root, chain = chain_of(path)
    text = host.read(f"{path}/uevent")
    event = {} if isinstance(text, Unknown) else parse_uevent(text)
    vendor, _, device = event.get("PCI_ID", "").partition(":")
    sub_vendor, _, sub_device = event.get("PCI_SUBSYS_ID", "").partition(":")

    def number(from_event: str, name: str) -> Maybe[int]:
        # A class has 24 bits, an ID 16; uevent writes the class without leading zeros.
        file = f"{path}/{name}"
        match = parse_known(from_event or host.read(file), _HEX.fullmatch, file)
        return map_known(match, lambda found: int(found[0], 16))

    class_code, vendor_id = number(event.get("PCI_CLASS", ""), "class"), number(vendor, "vendor")
    if isinstance(text, Unknown):  # without uevent, the other files must say what it is
        for number_read in (class_code, vendor_id):
            if isinstance(number_read, Unknown):
                for unread in (text, number_read):
                    if unread.reason not in _WITHOUT_FILE:
                        return unread
    kind = kind_of(class_code, vendor_id)
    shown = kind is not PciKind.OTHER
    driver: Maybe[str] = Unknown(Reason.NOT_THERE, f"{path}/driver", "no driver bound")
    if "DRIVER" in event:
        driver = printable(event["DRIVER"], 64)
    elif not event:
        target = host.link(f"{path}/driver")
        if isinstance(target, Unknown):
            target = not_found((text, target), target.source, target.detail)
        driver = target if isinstance(target, Unknown) else printable(target.rpartition("/")[2], 64)
    end = kind in (PciKind.GPU, PciKind.NIC, PciKind.DMA, PciKind.NVSWITCH)
    numa_node = read_numa_node(host, f"{path}/numa_node")
    group, group_type = _iommu(host, path) if end else (_NOT_READ, _NOT_READ)
    bars: Maybe[str] = host.read(f"{path}/resource") if end else _NOT_READ
    physical = known(host.link(f"{path}/physfn"), "").rpartition("/")[2] if end else ""
    return PciFunction(
        bdf=bdf,
        sysfs_path=path,
        root=root,
        chain=chain if chain and chain[-1] == bdf else (bdf,),
        kind=kind,
        class_code=class_code,
        vendor_id=vendor_id,
        device_id=number(device, "device"),
        subsystem_vendor_id=number(sub_vendor, "subsystem_vendor"),
        subsystem_device_id=number(sub_device, "subsystem_device"),
        driver=driver,
        numa_node=numa_node,
        local_cpulist=(
            numa.read_cpus(host, f"{path}/local_cpulist", f"{path}/local_cpus")
            if isinstance(numa_node, Unknown)
            else _NUMA_KNOWN
        ),
        link=_link(host, path, bdf) if shown else _NO_LINK,
        bars=map_known(bars, parse_resource),
        iommu_group=group,
        iommu_type=group_type,
        physical_function=physical if BDF.fullmatch(physical) else None,
    )


def _with_nodes_of_cpus(host: Host, functions: dict[str, PciFunction]) -> dict[str, PciFunction]:
    """Fill in the NUMA node that contains all near CPUs, for functions without a `numa_node` file.

    A `numa_node` of -1 stays unknown, because NCCL and the driver use it as it is.
    """

    def has_no_file(function: PciFunction) -> bool:
        node = function.numa_node
        return is_there(node) is False and not is_without_numa_node(node)

    if not any(map(has_no_file, functions.values())):
        return functions
    facts = numa.probe(host)
    if isinstance(facts, Unknown):
        return functions
    cpus = {node.number: set(numa.parse_list(known(node.cpulist, "")) or ()) for node in facts.nodes}
    found = dict(functions)
    for bdf, function in functions.items():
        if not has_no_file(function):
            continue
        near = set(numa.parse_list(known(function.local_cpulist, "")) or ())
        nodes = [number for number, own in cpus.items() if near and near <= own]
        if len(nodes) == 1:
            found[bdf] = replace(function, numa_node=nodes[0])
    return found


def _without_recorded_drivers(host: Host, functions: dict[str, PciFunction]) -> dict[str, PciFunction]:
    """Mark the drivers as not recorded in a dumped tree in which no function has one."""
    missing = [is_there(function.driver) is False for function in functions.values()]
    if host.origin.source is not Source.TREE or not all(missing):
        return functions
    unknown = Unknown(Reason.NOT_RECORDED, f"{DEVICES}/*/driver", "this tree shows no PCI drivers")
    return {bdf: replace(function, driver=unknown) for bdf, function in functions.items()}


def probe(host: Host) -> Maybe[PciFacts]:
    """Read /sys/bus/pci/devices, but nothing that would wake a sleeping device."""
    names = host.names(DEVICES)
    if isinstance(names, Unknown):
        return names

    def numbers(bdf: str) -> list[int]:
        return [int(part, 16) for part in re.split("[:.]", bdf)]  # domains of more than four digits come last

    bdfs = sorted(filter(BDF.fullmatch, names), key=numbers)
    read = {bdf: _function(host, bdf) for bdf in bdfs}
    unread = first_unread(read.values())  # it may be a GPU or a NIC
    if unread is not None:
        return unread
    functions = {bdf: function for bdf, function in read.items() if not isinstance(function, Unknown)}
    functions = _without_recorded_drivers(host, _with_nodes_of_cpus(host, functions))
    shown = [function for function in functions.values() if function.kind is not PciKind.OTHER]
    ids = {
        function.bdf: (function.vendor_id, function.device_id)
        for function in shown
        if not isinstance(function.vendor_id, Unknown) and not isinstance(function.device_id, Unknown)
    }
    found = names_of(host, set(ids.values()))
    return PciFacts(functions, {bdf: found[pair] for bdf, pair in ids.items()})


def asleep(host: Host, bdf: str) -> Unknown | None:
    """Return why a function must not be read; None: it is awake.

    Reading `config` or `vpd` wakes a suspended function up, and in kernels since 2025 `current_link_speed`,
    `current_link_width` and `max_link_width` do (drivers/pci/pci-sysfs.c, pci_config_pm_runtime_get).
    """
    for name, words in _ASLEEP:
        path = f"{DEVICES}/{bdf}/{name}"
        state = known(host.read(path, 4096), "")
        if state in words:
            return Unknown(Reason.NOT_THERE, path, f"not read: {state}, and reading would wake it up")
    return None


# The bandwidth of a PCIe link.

_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
# Share of the raw rate that is left for packets: 8b/10b, 128b/130b, and 236 of 256 bytes of a flit; the other
# 20 bytes are 6 of DLP, 8 of CRC and 6 of FEC (PCI Express Base Specification 6.0).
_ENCODING = {1: 0.8, 2: 0.8, 3: 128 / 130, 4: 128 / 130, 5: 128 / 130, 6: 236 / 256}
_NEWEST_GENERATION = max(_ENCODING)


def generation(speed_gtps: float) -> int | None:
    """Return the PCIe generation of a speed in GT/s per lane."""
    return _GENERATIONS.get(speed_gtps)


def link_gbps(speed_gtps: float, width: int) -> float:
    """Return the bandwidth per direction in Gb/s (10^9 bits), packet headers included.

    A speed without a row is newer than all of them: its share is taken for that of the newest.
    """
    return speed_gtps * width * _ENCODING[generation(speed_gtps) or _NEWEST_GENERATION]


def _most(a: Maybe[float], b: Maybe[float]) -> Maybe[float]:
    unread = first_unread((a, b))  # that end may support less
    if unread is not None:
        return unread
    if isinstance(a, Unknown):
        return b
    return a if isinstance(b, Unknown) else min(a, b)


def most_of(lower: PciLink, upper: PciLink | None) -> tuple[Maybe[float], Maybe[float]]:
    """Return the highest speed (GT/s) and width that both ends support, or the one end that is known."""
    if upper is None:
        return lower.max_speed_gtps, lower.max_width
    return _most(lower.max_speed_gtps, upper.max_speed_gtps), _most(lower.max_width, upper.max_width)


def capacity(lower: PciLink, upper: PciLink | None) -> Maybe[float]:
    """Return the highest bandwidth per direction, in Gb/s (10^9 bits), that a link supports."""
    return _gbps(*most_of(lower, upper), "max_link_speed")


def _gbps(speed: Maybe[float], width: Maybe[float], source: str) -> Maybe[float]:
    if isinstance(speed, Unknown) or isinstance(width, Unknown):
        return Unknown(Reason.NOT_THERE, source, "the link's speed or width is unknown")
    return link_gbps(speed, int(width))


def now_of(lower: PciLink, upper: PciLink | None, idles: bool) -> tuple[Maybe[float], Maybe[float]]:
    """Return the current speed (GT/s) and width; with `idles`, the highest speed.

    GPUs reduce their link speed when idle; other functions do not. No link reduces its width to save power.
    """
    speed, width = lower.speed_gtps, lower.width
    if upper is not None:
        speed = upper.speed_gtps if isinstance(speed, Unknown) else speed
        width = upper.width if isinstance(width, Unknown) else width
    best = most_of(lower, upper)[0] if idles else speed
    return (speed if isinstance(best, Unknown) else best), width


def carried(lower: PciLink, upper: PciLink | None, idles: bool) -> Maybe[float]:
    """Return the current bandwidth per direction in Gb/s (10^9 bits), or the highest if that is unknown."""
    speed, width = map(_most, now_of(lower, upper, idles), most_of(lower, upper))
    return _gbps(speed, width, "current_link_speed")


def words(speed: Maybe[float], width: Maybe[float]) -> str:
    """Return "Gen5 x16"; "" if speed or width is unknown."""
    if isinstance(speed, Unknown) or isinstance(width, Unknown):
        return ""
    number = generation(speed)
    return f"{f'Gen{number}' if number else f'{speed:g} GT/s'} x{int(width)}"


def describe(lower: PciLink, upper: PciLink | None) -> str:
    """Return "Gen5 x16", followed by "now Gen1 x16" if the link runs below that."""
    best = words(*most_of(lower, upper))
    now = words(lower.speed_gtps, lower.width)
    if not now and upper is not None:
        now = words(upper.speed_gtps, upper.width)
    if not best:
        return f"now {now}" if now else "link ?"
    return best if not now or now == best else f"{best}, now {now}"


# The ConnectX functions that manage NVSwitches of HGX B200, B300 and DGX B200, B300; they carry no data.
#
# The baseboard's ConnectX-7 bridge shows four functions (NVIDIA Fabric Manager user guide, systems using
# fourth-generation NVSwitches). Their RDMA devices have active InfiniBand ports, so they look like NICs. The
# VPD tells them apart: its vendor-specific field has SMDL=SW_MNG. Most kernels let only root read it, and it
# is slow, so it is read only for functions with a bridge's properties.
# On a DGX B200 these are subsystem 15b3:0087 and two lanes (siderolabs/extensions, fixtures/dgxb200-lspci).

MARK = b"SW_MNG"
_CONNECTX7, _BRIDGE_SUBSYSTEM = 0x1021, 0x0087
_MOST_LANES = 2
_MOST_READ = 16
_VPD_BYTES, _MOST_SERIAL = 1 << 15, 64


def with_management(host: Host, pci: PciFacts) -> PciFacts:
    """Return the same functions with the kind of those that manage NVSwitches."""
    candidates = [function for function in pci.nics if _may_be(function)] if pci.gpus else []
    evidence = {function.bdf: _evidence(host, function) for function in candidates[:_MOST_READ]}
    found = {bdf: text for bdf, text in evidence.items() if text}
    if not found:
        return pci
    functions = {
        bdf: replace(function, kind=PciKind.NVSWITCH_MANAGEMENT) if bdf in found else function
        for bdf, function in pci.functions.items()
    }
    return PciFacts(functions, pci.names, found)


def _may_be(function: PciFunction) -> bool:
    if function.vendor_id != _MELLANOX or function.physical_function is not None:
        return False
    lanes = known(function.link.max_width, 0)
    return function.subsystem_device_id == _BRIDGE_SUBSYSTEM or 0 < lanes <= _MOST_LANES


def _evidence(host: Host, function: PciFunction) -> str:
    """Return how it is known that a function manages NVSwitches; "" if it does not."""
    vpd = _read_vpd(host, function)
    if not isinstance(vpd, Unknown):
        return "VPD has SMDL=SW_MNG" if MARK in vpd else ""
    if function.subsystem_device_id == _BRIDGE_SUBSYSTEM:
        reason = "subsystem 15b3:0087"
    elif function.device_id == _CONNECTX7 and function.link.max_width == _MOST_LANES:
        reason = "a ConnectX-7 with 2 PCIe lanes"
    else:  # hypervisors show guests other links than the card has
        return ""
    return f"assumed from {reason}, because the VPD is unknown ({vpd})"


def _read_vpd(host: Host, function: PciFunction) -> Maybe[bytes]:
    """Return a function's vital product data, which takes up to seconds; for root only."""
    sleeps = asleep(host, function.bdf)
    return host.read_bytes(f"{function.sysfs_path}/vpd", _VPD_BYTES) if sleeps is None else sleeps


def read_serial(host: Host, function: PciFunction) -> Maybe[str]:
    """Return the serial number of a card, from its VPD."""
    return map_known(_read_vpd(host, function), serial_of)


def serial_of(vpd: bytes) -> Maybe[str]:
    """Return the field SN of the read-only fields in a VPD (PCI local bus 3.0, appendix I)."""
    while len(vpd) > 3 and vpd[0] & 0x80:
        end = 3 + int.from_bytes(vpd[1:3], "little")
        fields, is_read_only, vpd = vpd[3:end], vpd[0] == 0x90, vpd[end:]
        while is_read_only and len(fields) > 3:
            name, value = fields[:2], fields[3 : 3 + fields[2]].decode("ascii", "replace").strip(" \0")
            if name == b"SN" and value:
                return printable(value, _MOST_SERIAL)
            fields = fields[3 + fields[2] :]
    return Unknown(Reason.NOT_THERE, "vpd", "the VPD shows no serial number")
