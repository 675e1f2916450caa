"""PCI functions of a simulated node, with their configuration space and error counters as root sees them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import chain

from probes.facts.pci.functions import DEVICES
from probes.facts.system.numa import parse_list
from probes.facts.system.platform import hypervisor_of
from probes.simulation.node.model.description import VIRTUAL_FUNCTION, NicDescription, RootDescription
from probes.simulation.node.model.tree import GIB, PlacedGpu, PlacedNic, Tree

_SPEEDS = {3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe", 6: "64.0 GT/s PCIe"}
_PREFETCHABLE, _PLAIN = 0x14220C, 0x40200


def add_pci(tree: Tree) -> None:
    """Add every function in the order of the description, which also numbers GPUs, NICs and NVSwitches."""
    for root in tree.description.root:
        _root(tree, root)
    _uncore(tree)


def _root(tree: Tree, root: RootDescription) -> None:
    domain, _, bus = root.bus.partition(":")
    top = f"/sys/devices/pci{root.bus}"
    # The numbers of the buses below one root port, in order; those below a switch may begin elsewhere.
    first = int(bus, 16) + 1
    below_switch = int(root.first or f"{first + 2:x}", 16)
    numbers = chain((first, first + 1), range(below_switch, 0x100))
    buses = (f"{domain}:{number:02x}" for number in numbers)
    for slot, device in enumerate(root.flat):
        _endpoint(tree, device, f"{top}/{root.bus}:{slot:02x}.0", root.numa)
    for slot, device in enumerate(root.ports, 1):
        port = f"{top}/{root.bus}:{slot:02x}.0"
        kind = tree.description.nic.get(device.partition(" ")[0], tree.description.gpu)
        add_function(
            tree, port, tree.description.root_port, "060400", root.numa, kind.link, driver="pcieport"
        )
        _endpoint(tree, device, f"{port}/{next(buses)}:00.0", root.numa)
    if root.switch:
        port, switch = f"{top}/{root.bus}:01.0", tree.description.switch
        link = root.link or switch.uplink or switch.link
        add_function(tree, port, tree.description.root_port, "060400", root.numa, link, driver="pcieport")
        _switch(tree, root.switch, port, buses, root.numa, link)


def _switch(
    tree: Tree, devices: list[object], above: str, buses: Iterator[str], numa: int, link: tuple[int, int]
) -> None:
    """Add an upstream port with its link, and a downstream port for each child; a list is another switch."""
    kind = tree.description.switch
    upstream = f"{above}/{next(buses)}:00.0"
    # Subsystem of Broadcom switches in base mode, by which NCCL recognizes two-level ones.
    subsystem = "1000:a064" if kind.id == "1000:c010" else "1000:0100"
    add_function(tree, upstream, kind.id, "060400", numa, link, subsystem, "pcieport")
    inner = next(buses)
    for slot, device in enumerate(devices):
        downstream = f"{upstream}/{inner}:{slot:02x}.0"
        add_function(tree, downstream, kind.id, "060400", numa, kind.link, subsystem, "pcieport")
        if isinstance(device, list):
            _switch(tree, device, downstream, buses, numa, kind.link)
        else:
            _endpoint(tree, str(device), f"{downstream}/{next(buses)}:00.0", numa)


def _endpoint(tree: Tree, device: str, path: str, numa: int) -> None:
    """Add "gpu", "nvswitch" or "KIND NAME" of a NIC; "KIND NAME+NAME" is a card with two functions."""
    node = tree.description
    kind, _, name = device.partition(" ")
    bdf = path.rpartition("/")[2]
    if kind == "gpu":
        add_function(tree, path, node.gpu.id, "030200", numa, node.gpu.link, "10de:16c1", "nvidia")
        tree.gpus.append(PlacedGpu(bdf, numa))
        bar1 = node.gpu.bar1_gib * GIB
        bars = (
            (0xA000_0000, 16 << 20, _PLAIN),
            (0x20_0000_0000 + len(tree.gpus) * bar1, bar1, _PREFETCHABLE),
        )
        tree.add(f"{path}/resource", _resource(*bars))
    elif kind == "nvswitch":
        model = "10de:22a3" if node.gpu.capability[0] >= 9 else "10de:1af1"
        add_function(tree, path, model, "068000", numa, (2, 4), "10de:1796", "nvidia-nvswitch")
        tree.nvswitches.append(bdf)
    elif kind == "dma":
        # drivers/infiniband/hw/mlx5/data_direct.c: the driver is mlx5_ib.
        add_function(tree, path, "15b3:2100", "080100", numa, node.switch.link, "15b3:0041", "mlx5_ib")
        tree.add(f"{path}/resource", _resource((0xA8_0000_0000, 32 << 20, _PREFETCHABLE)))
        tree.dma_functions[name] = path
    else:
        for number, port in enumerate(name.split("+")):
            _nic(tree, node.nic[kind], port, f"{path.removesuffix('.0')}.{number}", numa)


def _nic(tree: Tree, nic: NicDescription, name: str, path: str, numa: int) -> None:
    class_code = "020700" if nic.layer == "InfiniBand" else "020000"
    subsystem = nic.subsystem or ("15b3:0041" if nic.id.startswith("15b3") else nic.id)
    add_function(tree, path, nic.id, class_code, numa, nic.link, subsystem, nic.driver)
    if nic.id.startswith("15b3") and nic.id != VIRTUAL_FUNCTION:
        tree.add(f"{path}/vpd", _vpd(nic, path))
    tree.add(f"{path}/resource", _resource((0x90_0000_0000, 32 << 20, _PREFETCHABLE)))
    _interrupts(tree, path, numa)
    if nic.id == VIRTUAL_FUNCTION:
        tree.link(f"{path}/physfn", "../0000:00:00.0")
    cards = tree.bridges if nic.manages_nvswitches else tree.nics
    number = sum(placed.kind is nic for placed in cards)
    cards.append(PlacedNic(path.rpartition("/")[2], name, nic, numa, path, number))
    if nic.bonded_ports > 1:
        second = second_function(path)
        add_function(tree, second, nic.id, "020000", numa, nic.link, subsystem, nic.driver)
        tree.link(f"{second}/driver", f"../../../../bus/pci/drivers/{nic.driver}")


def _interrupts(tree: Tree, path: str, numa: int) -> None:
    """Add an interrupt for events and two for completions, on CPUs of the NIC's NUMA node."""
    first = 100 + 4 * (len(tree.nics) + len(tree.bridges))
    cpus = parse_list(tree.description.numa[max(numa, 0)].cpus) or (0,)
    for number, cpu in enumerate((cpus[0], cpus[0], cpus[1]), first):
        tree.add(f"{path}/msi_irqs/{number}", "msix\n")
        tree.add(f"/proc/irq/{number}/effective_affinity_list", f"{cpu}\n")


def second_function(path: str) -> str:
    """Return the directory of a card's second function, from that of its first."""
    return f"{path.removesuffix('.0')}.1"


def _vpd(nic: NicDescription, path: str) -> bytes:
    """Return vital product data: a product name, then read-only fields (PCI local bus 3.0, appendix I)."""
    serial = f"MT2245{zlib.crc32(path.rpartition('.')[0].encode()) % 10**8:08}"
    fields = ((name, text.encode()) for name, text in ((b"SN", serial), (b"VA", nic.vpd)) if text)
    parts = (
        (0x82, nic.hca.encode()),
        (0x90, b"".join(name + bytes([len(text)]) + text for name, text in fields)),
    )
    return b"".join(bytes([tag]) + len(data).to_bytes(2, "little") + data for tag, data in parts) + b"\x78"


def _resource(*bars: tuple[int, int, int]) -> str:
    """Return the lines of a `resource` file; each 64-bit BAR takes two."""
    empty = f"0x{0:016x} 0x{0:016x} 0x{0:016x}\n"
    lines = (f"0x{start:016x} 0x{start + size - 1:016x} 0x{flags:016x}\n" for start, size, flags in bars)
    return "".join(f"{line}{empty}" for line in lines) + empty * (7 - 2 * len(bars))


def add_function(
    tree: Tree,
    path: str,
    ids: str,
    class_code: str,
    numa: int,
    link: tuple[int, int],
    subsystem: str = "0000:0000",
    driver: str = "",
) -> None:
    """Add a PCI function; `ids`: "15b3:101e"."""
    bdf = path.rpartition("/")[2]
    event = f"PCI_CLASS={int(class_code, 16):X}\nPCI_ID={ids.upper()}\nPCI_SUBSYS_ID={subsystem.upper()}\n"
    event += f"PCI_SLOT_NAME={bdf}\n"
    tree.add(f"{path}/uevent", f"DRIVER={driver}\n{event}" if driver else event)
    tree.add(f"{path}/numa_node", f"{numa}\n")
    tree.link(f"/sys/bus/pci/devices/{bdf}", f"../../../{path.removeprefix('/sys/')}")
    if class_code[:4] == "0880":
        return
    vendor, _, device = ids.partition(":")
    tree.add_values(path, {"vendor": f"0x{vendor}", "device": f"0x{device}", "class": f"0x{class_code}"})
    speed, width = _SPEEDS.get(link[0], "5.0 GT/s PCIe"), link[1]
    for end in ("current", "max"):
        tree.add_values(path, {f"{end}_link_speed": speed, f"{end}_link_width": width})
    if tree.description.iommu and class_code[:2] in ("02", "03", "08"):
        group = _iommu_group(tree, path)
        tree.link(f"{path}/iommu_group", f"../../../../kernel/iommu_groups/{group}")
        tree.add(f"/sys/kernel/iommu_groups/{group}/type", f"{tree.description.iommu}\n")


def _iommu_group(tree: Tree, path: str) -> int:
    """Return a new group; that of the DMA function of the same root port, as rdma_topo requires, if any."""
    root_port = "/".join(path.split("/")[:5])
    for direct in tree.dma_functions.values():
        if direct.startswith(f"{root_port}/"):
            return int(tree.links[f"{direct}/iommu_group"].rpartition("/")[2])
    links = [link for link in tree.links if link.endswith("/iommu_group")]
    return len({tree.links[link] for link in links})


def _uncore(tree: Tree) -> None:
    """Add functions of the CPUs: a real board has many, and probes ignore them."""
    vendor = "10de:22b9" if tree.description.architecture == "aarch64" else "8086:3250"
    domains = -(-tree.description.uncore // 512)
    buses = [f"{domain:04x}:{bus}" for domain in range(domains) for bus in ("f2", "f3")]
    buses = buses if tree.description.uncore > 8 else ["0000:ff"]
    for number in range(tree.description.uncore):
        bus = buses[number % len(buses)]
        slot, function = divmod(number // len(buses), 8)
        if slot < 32:
            path = f"/sys/devices/pci{bus}/{bus}:{slot:02x}.{function}"
            numa = -1 if bus == "0000:ff" else number % len(buses) % len(tree.description.numa)
            add_function(tree, path, vendor, "088000", numa, (3, 1))


# PCI configuration space and error counters of a simulated node, as root sees them.
#
# Offsets and bits: include/uapi/linux/pci_regs.h.

EXPRESS, ACS, ATS, REBAR = 0x60, 0x148, 0x150, 0x158
DEVICE_CONTROL, DEVICE_STATUS = EXPRESS + 0x08, EXPRESS + 0x0A
LINK_CONTROL, DEVICE_CONTROL_2 = EXPRESS + 0x10, EXPRESS + 0x28
ACS_CONTROL, ATS_CONTROL = ACS + 6, ATS + 6

_CONFIG_BYTES = 4096
_DMA_CONTROLLER = 0x0801
_ENDPOINT, _ROOT_PORT, _UPSTREAM, _DOWNSTREAM = 0, 4, 5, 6
# MaxPayload 256, relaxed ordering, extended tags, no snoop; MaxReadReq 4096 and 512.
_READS_4096, _READS_512 = 0x5930, 0x2930
_TEN_BIT_TAGS = 0x1000
_ACS_CAPABLE, _KERNEL_ACS, _SOURCE_VALIDATION = 0x5F, 0x1D, 0x01
_COMPLETION_REDIRECT = 0x08
_VERA_ROOT_PORTS = ("10DE:2F95", "10DE:2F96")  # they do not have it: rdma-core kernel-boot/rdma_topo
_ERRORS = {
    "correctable": ("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr"),
    "nonfatal": ("DLP", "FCP", "TLP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF", "MalfTLP"),
    "fatal": ("DLP", "FCP", "TLP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF", "MalfTLP"),
}
_TOTALS = {"correctable": "TOTAL_ERR_COR", "nonfatal": "TOTAL_ERR_NONFATAL", "fatal": "TOTAL_ERR_FATAL"}


def add_config_space(tree: Tree) -> None:
    """Add `config` and `aer_dev_*` for GPUs, NICs, NVSwitches and bridges."""
    bars = {gpu.bdf: tree.description.gpu.bar1_gib for gpu in tree.gpus}
    for link, target in list(tree.links.items()):
        if not link.startswith(f"{DEVICES}/"):
            continue
        bdf = link.rpartition("/")[2]
        path = f"/sys/{target.removeprefix('../../../')}"
        event = str(tree.files[f"{path}/uevent"])
        fields = dict(line.split("=", 1) for line in event.splitlines())
        code = int(fields["PCI_CLASS"], 16)
        if code >> 16 not in (0x02, 0x03, 0x06) and code >> 8 != _DMA_CONTROLLER:
            continue
        tree.add(f"{path}/config", _config(tree, path, fields, code, bars.get(bdf, 0)))
        for severity in _ERRORS:
            tree.add(f"{path}/aer_dev_{severity}", counts(severity))
    for direct in tree.dma_functions.values():
        _allow_direct_path(tree, direct)


def _allow_direct_path(tree: Tree, dma: str) -> None:
    """Set ACS as rdma_topo requires for a ConnectX DMA function: see probes/checks/pcie/acs.py."""
    to_dma = dma.split("/")
    for gpu in tree.gpus:
        to_gpu = real_path(tree, gpu.bdf).split("/")
        if to_gpu[:6] != to_dma[:6]:
            continue
        pairs = enumerate(zip(to_dma, to_gpu, strict=False))
        shared = next(place for place, (here, there) in pairs if here != there)
        for bdf, control in ((to_dma[shared], 0x19), (to_gpu[shared], 0x15), (to_dma[4], 0x1C)):
            set_bits(tree, bdf, ACS_CONTROL, control, _KERNEL_ACS)


def counts(severity: str, **above_zero: int) -> str:
    """Return the content of an aer_dev_ file."""
    lines = [f"{name} {above_zero.get(name, 0)}\n" for name in _ERRORS[severity]]
    return "".join((*lines, f"{_TOTALS[severity]} {sum(above_zero.values())}\n"))


def real_path(tree: Tree, bdf: str) -> str:
    """Return the directory of a PCI function below /sys/devices."""
    return f"/sys/{tree.links[f'{DEVICES}/{bdf}'].removeprefix('../../../')}"


def set_bits(tree: Tree, bdf: str, offset: int, value: int, mask: int) -> None:
    """Set the bits of `mask` in a 16-bit register."""
    path = f"{real_path(tree, bdf)}/config"
    content = tree.files[path]
    if not isinstance(content, bytes) or len(content) <= offset:
        return  # another fault has removed it
    old = int.from_bytes(content[offset : offset + 2], "little")
    new = (old & ~mask | value & mask).to_bytes(2, "little")
    tree.files[path] = content[:offset] + new + content[offset + 2 :]


def _config(tree: Tree, path: str, fields: dict[str, str], code: int, bar_gib: int) -> bytes:
    content = bytearray(_CONFIG_BYTES)

    def put(offset: int, value: int, size: int = 2) -> None:
        content[offset : offset + size] = value.to_bytes(size, "little")

    bridge = code >> 8 == 0x0604
    vendor, _, device = fields["PCI_ID"].partition(":")
    put(0x00, int(vendor, 16))
    put(0x02, int(device, 16))
    put(0x04, 0x0406)
    put(0x06, 0x0010)  # has a capability list
    put(0x08, code << 8, 4)
    content[0x0E] = 1 if bridge else 0
    content[0x34] = EXPRESS
    put(EXPRESS, 0x0010)
    kind = _port_type(path) if bridge else _ENDPOINT
    put(EXPRESS + 0x02, kind << 4 | 2)
    put(EXPRESS + 0x04, 0x2, 4)  # MaxPayload up to 512
    put(DEVICE_CONTROL, _READS_4096 if code >> 16 in (0x02, 0x08) else _READS_512)
    if not bridge:
        put(DEVICE_CONTROL_2, _TEN_BIT_TAGS)
    put(0x100, ACS << 20 | 0x1_0001, 4)
    redirectable = kind in (_ROOT_PORT, _DOWNSTREAM)
    put(ACS, ATS << 20 | (0x1_000D if redirectable else 0x1_0003), 4)
    if redirectable:
        lacking = _COMPLETION_REDIRECT if fields["PCI_ID"] in _VERA_ROOT_PORTS else 0
        put(ACS + 4, _ACS_CAPABLE & ~lacking)
        # The kernel's ACS on Grace, where it is right; elsewhere bits that redirect nothing.
        others = _SOURCE_VALIDATION if tree.description.iommu else 0
        put(ACS_CONTROL, (_KERNEL_ACS if tree.description.gpu.c2c else others) & ~lacking)
    put(ATS, REBAR << 20 | (0x1_000F if code >> 16 == 0x02 else 0x1_0019), 4)
    is_guest = hypervisor_of(" ".join(tree.description.product)) is not None
    if code >> 16 == 0x02 and (is_guest or f"{path}/physfn" in tree.links):
        put(ATS_CONTROL, 0x8000)  # as clouds configure the functions that they pass to guests
    if bar_gib:
        exponent = (bar_gib << 10).bit_length() - 1
        put(REBAR, 0x1_0015, 4)
        put(REBAR + 4, 1 << (exponent + 4), 4)
        put(REBAR + 8, exponent << 8 | 1 << 5 | 2, 4)
    return bytes(content)


def _port_type(path: str) -> int:
    """Return the port type; below a root port, switches have an upstream and downstream ports."""
    depth = path.count("/") - len(("sys", "devices", "pci0000:00", "0000:00:00.0"))
    if depth == 0:
        return _ROOT_PORT
    return _UPSTREAM if depth % 2 else _DOWNSTREAM
