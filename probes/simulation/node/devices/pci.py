"""PCI functions of a simulated node: those below each host bridge, and those of the CPUs."""

from __future__ import annotations

from probes.simulation.node.model.description import NicDescription, RootDescription
from probes.simulation.node.model.tree import GIB, PlacedGpu, PlacedNic, Tree

_SPEEDS = {3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe", 6: "64.0 GT/s PCIe"}
_PREFETCHABLE, _PLAIN = 0x14220C, 0x40200


def add_pci(tree: Tree) -> None:
    """Add every function in the order of the description, which also numbers GPUs, NICs and NVSwitches."""
    for root in tree.description.root:
        _root(tree, root)
    _uncore(tree)


class _Buses:
    """Bus numbers below one root port, assigned in order."""

    def __init__(self, domain: str, bus: int) -> None:
        self._domain, self._next = domain, bus

    def skip_to(self, bus: str) -> None:
        """Go on with this bus number."""
        self._next = int(bus, 16) - 1

    def next_bus(self) -> str:
        """Return the next bus with its domain."""
        self._next += 1
        return f"{self._domain}:{self._next:02x}"


def _root(tree: Tree, root: RootDescription) -> None:
    domain, _, bus = root.bus.partition(":")
    top = f"/sys/devices/pci{root.bus}"
    buses = _Buses(domain, int(bus, 16))
    for slot, device in enumerate(root.flat):
        _endpoint(tree, device, f"{top}/{root.bus}:{slot:02x}.0", root.numa)
    for slot, device in enumerate(root.ports, 1):
        port = f"{top}/{root.bus}:{slot:02x}.0"
        kind = tree.description.nic.get(device.partition(" ")[0], tree.description.gpu)
        _function(tree, port, tree.description.root_port, "060400", root.numa, kind.link, driver="pcieport")
        _endpoint(tree, device, f"{port}/{buses.next_bus()}:00.0", root.numa)
    if root.switch:
        port, switch = f"{top}/{root.bus}:01.0", tree.description.switch
        link = root.link or switch.uplink or switch.link
        _function(tree, port, tree.description.root_port, "060400", root.numa, link, driver="pcieport")
        _switch(tree, root.switch, port, buses, root.numa, link, root.first)


def _switch(
    tree: Tree,
    devices: list[object],
    above: str,
    buses: _Buses,
    numa: int,
    link: tuple[int, int],
    first: str = "",
) -> None:
    """Add an upstream port with its link, and a downstream port for each child; a list is another switch."""
    kind = tree.description.switch
    upstream = f"{above}/{buses.next_bus()}:00.0"
    # Subsystem of Broadcom switches in base mode, by which NCCL recognizes two-level ones.
    subsystem = "1000:a064" if kind.id == "1000:c010" else "1000:0100"
    _function(tree, upstream, kind.id, "060400", numa, link, subsystem, "pcieport")
    inner = buses.next_bus()
    if first:
        buses.skip_to(first)
    for slot, device in enumerate(devices):
        downstream = f"{upstream}/{inner}:{slot:02x}.0"
        _function(tree, downstream, kind.id, "060400", numa, kind.link, subsystem, "pcieport")
        if isinstance(device, list):
            _switch(tree, device, downstream, buses, numa, kind.link)
        else:
            _endpoint(tree, str(device), f"{downstream}/{buses.next_bus()}:00.0", numa)


def _endpoint(tree: Tree, device: str, path: str, numa: int) -> None:
    """Add "gpu", "nvswitch" or "KIND NAME" of a NIC; "KIND NAME+NAME" is a card with two functions."""
    node = tree.description
    kind, _, name = device.partition(" ")
    bdf = path.rpartition("/")[2]
    if kind == "gpu":
        _function(tree, path, node.gpu.id, "030200", numa, node.gpu.link, "10de:16c1", "nvidia")
        tree.gpus.append(PlacedGpu(bdf, numa))
        aperture = 0x20_0000_0000 + len(tree.gpus) * (node.gpu.bar1_gib * GIB)
        tree.add(
            f"{path}/resource",
            _resource((0xA000_0000, 16 << 20, _PLAIN), (aperture, node.gpu.bar1_gib * GIB, _PREFETCHABLE)),
        )
    elif kind == "nvswitch":
        model = "10de:22a3" if node.gpu.capability[0] >= 9 else "10de:1af1"
        _function(tree, path, model, "068000", numa, (2, 4), "10de:1796", "nvidia-nvswitch")
        tree.nvswitches.append(bdf)
    elif kind == "dma":
        # drivers/infiniband/hw/mlx5/data_direct.c: the driver is mlx5_ib.
        _function(tree, path, "15b3:2100", "080100", numa, node.switch.link, "15b3:0041", "mlx5_ib")
        tree.add(f"{path}/resource", _resource((0xA8_0000_0000, 32 << 20, _PREFETCHABLE)))
        tree.dma_functions[name] = path
    else:
        if "+" in name:
            for number, port in enumerate(name.split("+")):
                _endpoint(tree, f"{kind} {port}", f"{path.removesuffix('.0')}.{number}", numa)
            return
        _nic(tree, node.nic[kind], name, path, numa)


def _nic(tree: Tree, nic: NicDescription, name: str, path: str, numa: int) -> None:
    class_code = "020700" if nic.layer == "InfiniBand" else "020000"
    subsystem = nic.subsystem or ("15b3:0041" if nic.id.startswith("15b3") else nic.id)
    _function(tree, path, nic.id, class_code, numa, nic.link, subsystem, nic.driver)
    if nic.vpd:
        tree.add(f"{path}/vpd", _vpd(nic))
    tree.add(f"{path}/resource", _resource((0x90_0000_0000, 32 << 20, _PREFETCHABLE)))
    if nic.id == "15b3:101e":
        tree.link(f"{path}/physfn", "../0000:00:00.0")
    cards = tree.bridges if nic.manages_nvswitches else tree.nics
    number = sum(placed.kind is nic for placed in cards)
    cards.append(PlacedNic(path.rpartition("/")[2], name, nic, numa, path, number))
    if nic.bonded_ports > 1:
        second = second_function(path)
        _function(tree, second, nic.id, "020000", numa, nic.link, subsystem, nic.driver)
        tree.link(f"{second}/driver", f"../../../../bus/pci/drivers/{nic.driver}")


def second_function(path: str) -> str:
    """Return the directory of a card's second function, from that of its first."""
    return f"{path.removesuffix('.0')}.1"


def _vpd(nic: NicDescription) -> bytes:
    """Return vital product data: a product name, then read-only fields (PCI local bus 3.0, appendix I)."""
    name = nic.hca.encode()
    field = b"VA" + bytes([len(nic.vpd)]) + nic.vpd.encode()
    parts = ((0x82, name), (0x90, field))
    return b"".join(bytes([tag]) + len(data).to_bytes(2, "little") + data for tag, data in parts) + b"\x78"


def _resource(*bars: tuple[int, int, int]) -> str:
    """Return the lines of a `resource` file; each 64-bit BAR takes two."""
    empty = f"0x{0:016x} 0x{0:016x} 0x{0:016x}\n"
    lines = (f"0x{start:016x} 0x{start + size - 1:016x} 0x{flags:016x}\n" for start, size, flags in bars)
    return "".join(f"{line}{empty}" for line in lines) + empty * (7 - 2 * len(bars))


def _function(
    tree: Tree,
    path: str,
    ids: str,
    class_code: str,
    numa: int,
    link: tuple[int, int],
    subsystem: str = "0000:0000",
    driver: str = "",
) -> None:
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
            _function(tree, path, vendor, "088000", numa, (3, 1))
