"""PCI functions and bridges, from sysfs alone."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from enum import Enum

from probes.host import Host
from probes.pci_names import names_of
from probes.text import printable
from probes.unknown import Maybe, Reason, Unknown, known


class PciKind(Enum):
    """What a function is to gdrtop, by class code (and vendor)."""

    GPU = "GPU"  # NVIDIA, class 0x03…
    NIC = "NIC"  # class 0x02…
    NVSWITCH = "NVSwitch"  # NVIDIA, class 0x0680…
    BRIDGE = "bridge"  # class 0x0604…: root port, switch upstream or downstream port
    OTHER = "other"


@dataclass(frozen=True)
class PciLink:
    """A PCIe link: speeds in GT/s a lane, widths in lanes; `max_` is what the function itself can do."""

    speed_gtps: Maybe[float]
    width: Maybe[int]
    max_speed_gtps: Maybe[float]
    max_width: Maybe[int]


@dataclass(frozen=True)
class PciBar:
    """One base address register's region."""

    index: int
    size_bytes: int
    prefetchable: bool


@dataclass(frozen=True)
class PciFunction:
    """One PCI function and where it sits."""

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
    numa_node: Maybe[int]  # NOT_THERE where the kernel says -1
    local_cpulist: Maybe[str]  # asked only where no NUMA node is named: the CPUs the kernel holds to be near
    # The following are read for GPUs, NICs, NVSwitches and bridges above them; NOT_THERE with the
    # detail "not read" for others, which no view needs.
    link: PciLink
    bars: Maybe[tuple[PciBar, ...]]
    iommu_group: Maybe[int]
    iommu_type: Maybe[str]  # "DMA", "DMA-FQ", "identity", …
    physical_function: str | None  # of an SR-IOV virtual function: the BDF of its physical function


@dataclass(frozen=True)
class PciFacts:
    """Every PCI function of the node, by BDF, in BDF order."""

    functions: dict[str, PciFunction]
    names: dict[str, str]  # BDF -> "NVIDIA GH100 [H100 SXM5 80GB]", for the kinds that are shown


_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_NVIDIA = 0x10DE
_DEVICES = "/sys/bus/pci/devices"
_NOT_READ = Unknown(Reason.NOT_THERE, "", "not read for this kind of function")
_NO_LINK = PciLink(_NOT_READ, _NOT_READ, _NOT_READ, _NOT_READ)
_PREFETCHABLE = 0x2000  # IORESOURCE_PREFETCH, include/linux/ioport.h


def kind_of(class_code: Maybe[int], vendor_id: Maybe[int]) -> PciKind:
    """What a function is, by its class code (pci_ids.h) and vendor."""
    if isinstance(class_code, Unknown):
        return PciKind.OTHER
    base, nvidia = class_code >> 16, vendor_id == _NVIDIA
    if base == 0x03 and nvidia:
        return PciKind.GPU
    if class_code >> 8 == 0x0680 and nvidia:
        return PciKind.NVSWITCH
    if base == 0x02:
        return PciKind.NIC
    return PciKind.BRIDGE if class_code >> 8 == 0x0604 else PciKind.OTHER


def chain_of(sysfs_path: str) -> tuple[str, tuple[str, ...]]:
    """Host bridge and BDFs from the root port down, of a resolved sysfs path.

    A host bridge below a device (VMD: "pci10000:e0" below "0000:00:0e.0") begins a chain of its own.
    """
    root = ""
    chain: list[str] = []
    for part in sysfs_path.split("/"):
        if _ROOT.fullmatch(part):
            root, chain = part, []
        elif root and _BDF.fullmatch(part):
            chain.append(part)
    return root, tuple(chain)


def parse_uevent(text: str) -> dict[str, str]:
    """The KEY=value lines of a uevent file."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def parse_speed(text: str) -> float | None:
    """GT/s of "16.0 GT/s PCIe" (kernel ≥ 5.7) or "16 GT/s"; None for "Unknown" and anything else."""
    match = re.match(r"(\d{1,3}(?:\.\d{1,2})?) GT/s", text)
    return float(match.group(1)) if match else None


def parse_resource(text: str) -> tuple[PciBar, ...]:
    """The BARs in a `resource` file: lines of start, end, flags in hex; the first six are BARs."""
    bars = []
    for index, line in enumerate(text.splitlines()[:6]):
        try:
            start, end, flags = (int(word, 16) for word in line.split())
        except ValueError:
            continue
        if end > start:
            bars.append(PciBar(index, end - start + 1, bool(flags & _PREFETCHABLE)))
    return tuple(bars)


def _hex(text: Maybe[str], path: str) -> Maybe[int]:
    if isinstance(text, Unknown):
        return text
    try:
        return int(text, 16)
    except ValueError:
        return Unknown(Reason.MALFORMED, path, printable(text, 40))


def _link(host: Host, path: str) -> PciLink:
    def speed(name: str) -> Maybe[float]:
        text = host.read(f"{path}/{name}")
        if isinstance(text, Unknown):
            return text
        value = parse_speed(text)
        return Unknown(Reason.NOT_THERE, f"{path}/{name}", printable(text, 40)) if value is None else value

    def width(name: str) -> Maybe[int]:
        text = host.read(f"{path}/{name}")
        if isinstance(text, Unknown):
            return text
        # 0 and 255 are how the kernel says that there is no link, or that the device is gone.
        if not text.isdecimal() or int(text[:9]) not in range(1, 65):
            return Unknown(Reason.NOT_THERE, f"{path}/{name}", printable(text, 40))
        return int(text)

    return PciLink(
        speed("current_link_speed"),
        width("current_link_width"),
        speed("max_link_speed"),
        width("max_link_width"),
    )


def _numa(host: Host, path: str) -> Maybe[int]:
    text = host.read(f"{path}/numa_node")
    if isinstance(text, Unknown):
        return text
    try:
        number = int(text)
    except ValueError:
        return Unknown(Reason.MALFORMED, f"{path}/numa_node", printable(text, 40))
    if number < 0:
        return Unknown(Reason.NOT_THERE, f"{path}/numa_node", "the firmware names no NUMA node (-1)")
    return number


def _iommu(host: Host, path: str) -> tuple[Maybe[int], Maybe[str]]:
    target = host.link(f"{path}/iommu_group")
    if isinstance(target, Unknown):
        return target, target
    number = target.rpartition("/")[2]
    if not number.isdecimal():
        return (bad := Unknown(Reason.MALFORMED, f"{path}/iommu_group", printable(target, 80))), bad
    return int(number), host.read(f"/sys/kernel/iommu_groups/{number}/type")


def _function(host: Host, bdf: str) -> PciFunction | None:
    target = host.link(f"{_DEVICES}/{bdf}")
    if isinstance(target, Unknown):
        # Some dumps hold directories where the kernel has links.
        path = known(host.resolve(f"{_DEVICES}/{bdf}"), f"{_DEVICES}/{bdf}")
    else:
        path = posixpath.normpath(posixpath.join(_DEVICES, target))
    root, chain = chain_of(path)
    text = host.read(f"{path}/uevent")
    event = {} if isinstance(text, Unknown) else parse_uevent(text)
    vendor, _, device = event.get("PCI_ID", "").partition(":")
    sub_vendor, _, sub_device = event.get("PCI_SUBSYS_ID", "").partition(":")

    def number(from_event: str, name: str) -> Maybe[int]:
        return _hex(from_event or host.read(f"{path}/{name}"), f"{path}/{name}")

    class_code, vendor_id = number(event.get("PCI_CLASS", ""), "class"), number(vendor, "vendor")
    kind = kind_of(class_code, vendor_id)
    shown = kind is not PciKind.OTHER
    driver: Maybe[str] = Unknown(Reason.NOT_THERE, f"{path}/driver", "no driver bound")
    if "DRIVER" in event:
        driver = printable(event["DRIVER"], 64)
    elif not event:
        target = host.link(f"{path}/driver")
        driver = target if isinstance(target, Unknown) else printable(target.rpartition("/")[2], 64)
    end = kind in (PciKind.GPU, PciKind.NIC, PciKind.NVSWITCH)
    numa = _numa(host, path)
    group, group_type = _iommu(host, path) if end else (_NOT_READ, _NOT_READ)
    bars: Maybe[str] = host.read(f"{path}/resource") if end else _NOT_READ
    physical = host.link(f"{path}/physfn") if end else _NOT_READ
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
        numa_node=numa,
        local_cpulist=host.read(f"{path}/local_cpulist") if isinstance(numa, Unknown) else _NOT_READ,
        link=_link(host, path) if shown else _NO_LINK,
        bars=bars if isinstance(bars, Unknown) else parse_resource(bars),
        iommu_group=group,
        iommu_type=group_type,
        physical_function=None if isinstance(physical, Unknown) else physical.rpartition("/")[2],
    )


def sort_key(bdf: str) -> tuple[int, ...]:
    """Order of BDFs by number: domains of more than four digits stand last, not among the others."""
    return tuple(int(part, 16) for part in re.split(r"[:.]", bdf))


def probe(host: Host) -> Maybe[PciFacts]:
    """Reads /sys/bus/pci/devices; `config` is never read, for that wakes sleeping devices."""
    names = host.names(_DEVICES)
    if isinstance(names, Unknown):
        return names
    functions = {}
    for bdf in sorted((name for name in names if _BDF.fullmatch(name)), key=sort_key):
        function = _function(host, bdf)
        if function is not None:
            functions[bdf] = function
    wanted = {
        (function.vendor_id, function.device_id)
        for function in functions.values()
        if function.kind is not PciKind.OTHER
        and not isinstance(function.vendor_id, Unknown)
        and not isinstance(function.device_id, Unknown)
    }
    known_names = names_of(host, {(v, d) for v, d in wanted if isinstance(v, int) and isinstance(d, int)})
    return PciFacts(
        functions,
        {
            bdf: known_names[function.vendor_id, function.device_id]
            for bdf, function in functions.items()
            if not isinstance(function.vendor_id, Unknown)
            and not isinstance(function.device_id, Unknown)
            and (function.vendor_id, function.device_id) in known_names
        },
    )
