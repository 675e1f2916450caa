"""A simulated node's description as files, links and directories, such as a kernel shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from probes.simulation.config_space import grow_config_space
from probes.simulation.description import NicDescription, NodeDescription, RootDescription
from probes.simulation.driver_libraries import grow_driver_libraries
from probes.simulation.kernel_log import grow_kernel_log
from probes.simulation.liveliness import Wave, phase, regions
from probes.simulation.ports import grow_ports
from probes.simulation.services import grow_services
from probes.simulation.surroundings import grow_surroundings
from probes.unknown import Maybe

Content = str | bytes | Callable[[float], str]
"""A file's content, or what gives it at so many seconds since the node began."""

Answer = Callable[[tuple[str, ...], float], Maybe[str]]
"""What a command prints, of its argv and of the seconds since the node began."""

SPEEDS = {3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe", 6: "64.0 GT/s PCIe"}
GIB = 1 << 30
_PREFETCHABLE, _PLAIN = 0x14220C, 0x40200

# What each module needs, directly: as modules.dep of a node with and without OFED has it.
NEEDS = {
    "ib_core": (),
    "ib_uverbs": ("ib_core",),
    "rdma_cm": ("ib_core",),
    "mlx5_core": (),
    "mlx5_ib": ("ib_core", "ib_uverbs", "mlx5_core"),
    "nvidia": (),
    "nvidia_uvm": ("nvidia",),
    "nvidia_peermem": ("nvidia", "ib_core"),
    "gdrdrv": ("nvidia",),
    "nvidia_fs": ("nvidia",),
}
_EXPORTS = {
    "ib_register_client": "ib_core",
    "ib_uverbs_get_ucontext_file": "ib_uverbs",
    "rdma_create_id": "rdma_cm",
    "mlx5_core_create_mkey": "mlx5_core",
    "nvidia_p2p_get_pages": "nvidia",
    "nvUvmInterfaceRegisterUvmCallbacks": "nvidia",
}


@dataclass(frozen=True)
class PlacedGpu:
    """A GPU and where the description put it."""

    bdf: str
    numa: int


@dataclass(frozen=True)
class PlacedNic:
    """A NIC, its kind, its RDMA name and its place."""

    bdf: str
    name: str
    kind: NicDescription
    numa: int
    path: str


@dataclass
class Tree:
    """Files, links and directories of a node; everything a probe may ask is here or is not there."""

    description: NodeDescription
    seed: int
    files: dict[str, Content] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    directories: dict[str, set[str]] = field(default_factory=lambda: {"/": set()})
    gpus: list[PlacedGpu] = field(default_factory=list)
    nics: list[PlacedNic] = field(default_factory=list)
    nvswitches: list[str] = field(default_factory=list)
    live_modules: list[str] = field(default_factory=list)
    commands: dict[str, Answer] = field(default_factory=dict)  # by the name of the program
    denied: set[str] = field(default_factory=set)  # device files that this user may not open

    def add(self, path: str, content: Content) -> None:
        """Adds a file with its directories."""
        self.files[path] = content
        self._enter(path)

    def remove(self, path: str) -> None:
        """Removes a file, a link, or a directory with all that is below it."""
        for known in (self.files, self.links, self.directories):
            for one in [name for name in known if name == path or name.startswith(f"{path}/")]:
                known.pop(one)
        parent, _, name = path.rpartition("/")
        self.directories.get(parent or "/", set()).discard(name)

    def link(self, path: str, target: str) -> None:
        """Adds a symbolic link with its directories."""
        self.links[path] = target
        self._enter(path)

    def directory(self, path: str) -> None:
        """Adds a directory."""
        if path not in self.directories:
            self.directories[path] = set()
            self._enter(path)

    def _enter(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        self.directory(parent or "/")
        self.directories[parent or "/"].add(name)


def grow(description: NodeDescription, seed: int) -> Tree:
    """The whole tree of a description."""
    from probes.simulation.module_files import grow_module_files  # which imports this file

    tree = Tree(description, seed)
    tree.live_modules = list(description.modules.live)
    _platform(tree)
    _numa(tree)
    for number, root in enumerate(description.root):
        _root(tree, root, number)
    _uncore(tree)
    _nvidia(tree)
    for number, nic in enumerate(tree.nics):
        _rdma(tree, nic, number)
    _modules(tree)
    grow_config_space(tree)
    grow_ports(tree)
    grow_kernel_log(tree)
    grow_services(tree)
    grow_driver_libraries(tree)
    grow_module_files(tree)
    grow_surroundings(tree)
    return tree


def _platform(tree: Tree) -> None:
    node = tree.description
    tree.add("/proc/sys/kernel/hostname", f"{node.hostname}\n")
    tree.add("/proc/sys/kernel/osrelease", f"{node.kernel}\n")
    tree.add("/proc/sys/kernel/arch", f"{node.architecture}\n")
    tree.add("/proc/sys/kernel/modules_disabled", "0\n")
    tree.add("/proc/version", f"Linux version {node.kernel} (simulated) #1 SMP\n")
    tree.add("/proc/cmdline", f"{node.cmdline}\n")
    tree.add("/etc/os-release", f'PRETTY_NAME="{node.distribution}"\n')
    tree.add("/sys/class/dmi/id/sys_vendor", f"{node.product[0]}\n")
    tree.add("/sys/class/dmi/id/product_name", f"{node.product[1]}\n")
    tree.add("/sys/kernel/security/lockdown", "[none] integrity confidentiality\n")
    tree.add("/sys/module/module/parameters/sig_enforce", "N\n")
    tree.add(f"/boot/config-{node.kernel}", "CONFIG_MODULES=y\nCONFIG_DMA_SHARED_BUFFER=y\n# end\n")
    tree.directory("/sys/class/iommu")
    if node.iommu:
        for number in range(len(node.numa)):
            tree.directory(f"/sys/class/iommu/{node.iommu_kind}{number}")


def _numa(tree: Tree) -> None:
    nodes = tree.description.numa
    base = "/sys/devices/system/node"
    tree.add(f"{base}/online", f"0-{len(nodes) - 1}\n" if len(nodes) > 1 else "0\n")
    for number, numa in enumerate(nodes):
        tree.add(f"{base}/node{number}/cpulist", f"{numa.cpus}\n")
        tree.add(f"{base}/node{number}/distance", " ".join(map(str, numa.distances)) + "\n")
        kib = numa.memory_gib * GIB // 1024
        tree.add(f"{base}/node{number}/meminfo", f"Node {number} MemTotal:       {kib} kB\n")


class _Buses:
    """Bus numbers below one root, handed out in order."""

    def __init__(self, domain: str, bus: int) -> None:
        self._domain, self._next = domain, bus

    def take(self) -> str:
        """The next bus, with its domain."""
        self._next += 1
        return f"{self._domain}:{self._next:02x}"


def _root(tree: Tree, root: RootDescription, number: int) -> None:
    domain, _, bus = root.bus.partition(":")
    top = f"/sys/devices/pci{root.bus}"
    buses = _Buses(domain, int(bus, 16))
    for slot, holding in enumerate(root.flat):
        _endpoint(tree, holding, f"{top}/{root.bus}:{slot:02x}.0", root.numa)
    for slot, holding in enumerate(root.ports, 1):
        port = f"{top}/{root.bus}:{slot:02x}.0"
        gen = _link_of(tree, holding)
        _function(tree, port, "8086:352a", "060400", root.numa, gen, driver="pcieport")
        _endpoint(tree, holding, f"{port}/{buses.take()}:00.0", root.numa)
    if root.switch:
        port = f"{top}/{root.bus}:01.0"
        _function(
            tree, port, "8086:352a", "060400", root.numa, tree.description.switch.link, driver="pcieport"
        )
        _switch(tree, root.switch, port, buses, root.numa)


def _switch(tree: Tree, holdings: list[object], above: str, buses: _Buses, numa: int) -> None:
    """An upstream port, and a downstream port for each thing below; a list below is a switch again."""
    kind = tree.description.switch
    upstream = f"{above}/{buses.take()}:00.0"
    # The subsystem that Broadcom's switches show in base mode: NCCL knows two-level ones by it.
    subsystem = "1000:a064" if kind.id == "1000:c010" else "1000:0100"
    _function(tree, upstream, kind.id, "060400", numa, kind.link, subsystem, "pcieport")
    inner = buses.take()
    for slot, holding in enumerate(holdings):
        downstream = f"{upstream}/{inner}:{slot:02x}.0"
        _function(tree, downstream, kind.id, "060400", numa, kind.link, subsystem, "pcieport")
        if isinstance(holding, list):
            _switch(tree, holding, downstream, buses, numa)
        else:
            _endpoint(tree, str(holding), f"{downstream}/{buses.take()}:00.0", numa)


def _link_of(tree: Tree, holding: str) -> tuple[int, int]:
    kind = holding.partition(" ")[0]
    nic = tree.description.nic.get(kind)
    return nic.link if nic else tree.description.gpu.link


def _endpoint(tree: Tree, holding: str, path: str, numa: int) -> None:
    node = tree.description
    kind, _, name = holding.partition(" ")
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
    else:
        nic = node.nic[kind]
        infiniband = nic.layer == "InfiniBand"
        _function(
            tree, path, nic.id, "020700" if infiniband else "020000", numa, nic.link, "15b3:0041", "mlx5_core"
        )
        tree.add(f"{path}/resource", _resource((0x90_0000_0000, 32 << 20, _PREFETCHABLE)))
        if nic.id == "15b3:101e":
            tree.link(f"{path}/physfn", "../0000:00:00.0")
        tree.nics.append(PlacedNic(bdf, name, nic, numa, path))


def _resource(*bars: tuple[int, int, int]) -> str:
    """Lines of a `resource` file; each 64-bit BAR takes two."""
    lines = []
    for start, size, flags in bars:
        lines.append(f"0x{start:016x} 0x{start + size - 1:016x} 0x{flags:016x}")
        lines.append(f"0x{0:016x} 0x{0:016x} 0x{0:016x}")
    while len(lines) < 7:
        lines.append(f"0x{0:016x} 0x{0:016x} 0x{0:016x}")
    return "\n".join(lines) + "\n"


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
    for name, value in (("vendor", vendor), ("device", device), ("class", class_code)):
        tree.add(f"{path}/{name}", f"0x{value}\n")
    speed = SPEEDS.get(link[0], "5.0 GT/s PCIe")
    for name, value in (
        ("current_link_speed", speed),
        ("max_link_speed", speed),
        ("current_link_width", str(link[1])),
        ("max_link_width", str(link[1])),
    ):
        tree.add(f"{path}/{name}", f"{value}\n")
    if tree.description.iommu and class_code[:2] in ("02", "03"):
        group = len([one for one in tree.links if one.endswith("/iommu_group")])
        tree.link(f"{path}/iommu_group", f"../../../../kernel/iommu_groups/{group}")
        tree.add(f"/sys/kernel/iommu_groups/{group}/type", f"{tree.description.iommu}\n")


def _uncore(tree: Tree) -> None:
    """Functions of the CPUs themselves: many on a real board, and of no interest."""
    vendor = "10de:22b9" if tree.description.architecture == "aarch64" else "8086:3250"
    buses = ["0000:f2", "0000:f3"] if tree.description.uncore > 8 else ["0000:ff"]
    for number in range(tree.description.uncore):
        bus = buses[number % len(buses)]
        slot, function = divmod(number // len(buses), 8)
        if slot < 32:
            path = f"/sys/devices/pci{bus}/{bus}:{slot:02x}.{function}"
            numa = -1 if bus == "0000:ff" else number % len(buses) % len(tree.description.numa)
            _function(tree, path, vendor, "088000", numa, (3, 1))


def _nvidia(tree: Tree) -> None:
    driver = tree.description.driver
    architecture = tree.description.architecture
    banner = (
        f"NVIDIA UNIX Open Kernel Module for {architecture}"
        if driver.flavour == "open"
        else f"NVIDIA UNIX {architecture} Kernel Module"
    )
    proc = "/proc/driver/nvidia"
    tree.add(f"{proc}/version", f"NVRM version: {banner}  {driver.version}  Release Build  (simulated)\n")
    tree.add(f"{proc}/params", 'RegistryDwords: ""\nGrdmaPciTopoCheckOverride: 0\n')
    for number, gpu in enumerate(tree.gpus):
        tree.add(
            f"{proc}/gpus/{gpu.bdf}/information",
            f"Model: \t\t {tree.description.gpu.name}\nGPU UUID: \t {uuid_of(number)}\n"
            f"Bus Location: \t {gpu.bdf}\nDevice Minor: \t {number}\n",
        )


def uuid_of(number: int) -> str:
    """A made-up UUID that is seen to be one."""
    return f"GPU-51a01a7e-d000-0000-0000-{number:012x}"


def _rdma(tree: Tree, nic: PlacedNic, number: int) -> None:
    base = f"{nic.path}/infiniband/{nic.name}"
    tree.link(f"/sys/class/infiniband/{nic.name}", f"../../{base.removeprefix('/sys/')}")
    tree.link(f"{base}/device", "../..")
    tree.link(f"{nic.path}/driver", "../../../../bus/pci/drivers/mlx5_core")
    guid = f"51a0:1a7e:0000:{number:04x}"
    for name, value in (
        ("node_type", "1: CA"),
        ("fw_ver", nic.kind.firmware),
        ("hca_type", nic.kind.hca),
        ("board_id", nic.kind.board),
        ("node_guid", guid),
        ("sys_image_guid", guid),
        ("ports/1/state", "4: ACTIVE"),
        ("ports/1/phys_state", "5: LinkUp"),
        ("ports/1/rate", nic.kind.rate),
        ("ports/1/link_layer", nic.kind.layer),
        ("ports/1/lid", f"0x{number + 1:x}" if nic.kind.layer == "InfiniBand" else "0x0"),
    ):
        tree.add(f"{base}/{name}", f"{value}\n")
    netdev = f"ib{number}" if nic.kind.layer == "InfiniBand" else f"ens{number}np0"
    tree.add(f"{nic.path}/net/{netdev}/dev_port", "0\n")
    _gids(tree, f"{base}/ports/1", guid, netdev, nic.kind.layer)
    for name, share in (("port_xmit_data", 1.0), ("port_rcv_data", 0.99)):
        wave = Wave(nic.kind.gbps * share, phase(tree.seed, f"{nic.name} {name}"))
        tree.add(f"{base}/ports/1/counters/{name}", _counter(wave))
    for name in ("port_xmit_packets", "port_rcv_packets", "port_rcv_errors", "link_downed", "symbol_error"):
        tree.add(f"{base}/ports/1/counters/{name}", "0\n")
    for name in ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err"):
        tree.add(f"{base}/ports/1/hw_counters/{name}", "0\n")
    tree.add(f"/sys/class/infiniband_verbs/uverbs{number}/ibdev", f"{nic.name}\n")


def _counter(wave: Wave) -> Content:
    """Units of four octets, of a wave in Gb/s."""
    return lambda seconds: f"{round(wave.total(seconds) * 1e9 / 32)}\n"


def _gids(tree: Tree, port: str, guid: str, netdev: str, layer: str) -> None:
    filled = [f"fe80:0000:0000:0000:{guid}"]
    if layer == "Ethernet":
        filled = [
            filled[0],
            filled[0],
            "0000:0000:0000:0000:0000:ffff:0a00:0001",
            "0000:0000:0000:0000:0000:ffff:0a00:0001",
        ]
    for index in range(16 if layer == "Ethernet" else 8):
        empty = index >= len(filled)
        tree.add(f"{port}/gids/{index}", ("0000:" * 8)[:-1] + "\n" if empty else f"{filled[index]}\n")
        if not empty:
            kind = "RoCE v2" if index % 2 else "IB/RoCE v1"
            tree.add(f"{port}/gid_attrs/types/{index}", f"{kind}\n")
            if layer == "Ethernet":
                tree.add(f"{port}/gid_attrs/ndevs/{index}", f"{netdev}\n")


def _modules(tree: Tree) -> None:
    node = tree.description
    base = f"/lib/modules/{node.kernel}"
    on_disk = [*node.modules.live, *node.modules.on_disk]
    tree.add(f"{base}/modules.dep", "".join(_dependency_line(node, name) for name in on_disk))
    exports = {symbol: module for symbol, module in _EXPORTS.items() if module in on_disk}
    if node.modules.ofed:
        exports["ib_register_peer_memory_client"] = "ib_core"
        exports["ib_unregister_peer_memory_client"] = "ib_core"
    tree.add(f"{base}/modules.symbols", "".join(f"alias symbol:{s} {m}\n" for s, m in exports.items()))
    tree.add(f"{base}/modules.builtin", "kernel/fs/ext4/ext4.ko\n")
    tree.add(
        "/etc/modules-load.d/nvidia.conf",
        "nvidia_peermem\n" if "nvidia_peermem" in node.modules.live else "# none\n",
    )
    tree.add("/proc/modules", lambda seconds: _proc_modules(tree, seconds))
    for name in node.modules.live:
        tree.add(f"/sys/module/{name}/initstate", "live\n")
        tree.add(f"/sys/module/{name}/refcnt", _refcnt_file(tree, name))
        tree.add(f"/sys/module/{name}/srcversion", f"{abs(hash_of(name)):024X}"[:24] + "\n")
        tree.directory(f"/sys/module/{name}/parameters")
        if name.startswith("nvidia"):
            tree.add(f"/sys/module/{name}/version", f"{node.driver.version}\n")
    if "nvidia_peermem" in node.modules.live:
        tree.add("/sys/module/nvidia_peermem/parameters/peerdirect_support", "0\n")
        tree.add("/sys/module/nvidia_peermem/parameters/persistent_api_support", "1\n")
    if node.gpudirect.memory_peers:
        _memory_peers(tree)


def _refcnt_file(tree: Tree, name: str) -> Content:
    return lambda seconds: f"{refcnt(tree, name, seconds)}\n"


def hash_of(name: str) -> int:
    """A number that belongs to a name, the same in every process."""
    return int.from_bytes(name.encode()[:12], "big")


def needs_of(node: NodeDescription, name: str) -> tuple[str, ...]:
    """The modules a module needs, directly; nvidia_peermem built without OFED needs no ib module."""
    if name == "nvidia_peermem" and not node.modules.ofed:
        return ("nvidia",)
    return NEEDS.get(name, ())


def file_of(node: NodeDescription, name: str) -> str:
    """The .ko below /lib/modules/RELEASE."""
    if name.startswith("nvidia") or name == "gdrdrv":
        return f"updates/dkms/{name.replace('_', '-') if name != 'nvidia_fs' else name}.ko"
    if node.modules.ofed:
        return f"updates/dkms/mlnx-ofed-kernel/{name}.ko"
    return f"kernel/drivers/infiniband/{name}.ko"


def _dependency_line(node: NodeDescription, name: str) -> str:
    found: list[str] = []
    waiting = list(needs_of(node, name))
    while waiting:
        need = waiting.pop(0)
        if need not in found:
            found.append(need)
            waiting.extend(needs_of(node, need))
    return f"{file_of(node, name)}: {' '.join(file_of(node, need) for need in found)}".rstrip() + "\n"


def users_of(tree: Tree, name: str) -> list[str]:
    """The loaded modules that hold a module."""
    return [user for user in tree.live_modules if name in needs_of(tree.description, user)]


def refcnt(tree: Tree, name: str, seconds: float) -> int:
    """A module's reference count: its users, and what processes hold."""
    count = len(users_of(tree, name))
    if name == "nvidia_peermem":
        return regions(tree.description.gpudirect.regions, phase(tree.seed, "regions"), seconds)
    if name == "nvidia":
        return count + 4 * len(tree.gpus)
    return count + (2 * len(tree.gpus) if name in ("nvidia_uvm", "ib_uverbs") else 0)


def _proc_modules(tree: Tree, seconds: float) -> str:
    lines = []
    for name in reversed(tree.live_modules):
        users = "".join(f"{user}," for user in users_of(tree, name)) or "-"
        taint = " (OE)" if name.startswith("nvidia") else ""
        lines.append(f"{name} 65536 {refcnt(tree, name, seconds)} {users} Live 0x0000000000000000{taint}\n")
    return "".join(lines)


def _memory_peers(tree: Tree) -> None:
    base = "/sys/kernel/mm/memory_peers/nv_mem"
    angle = phase(tree.seed, "regions")
    count = tree.description.gpudirect.regions
    region_bytes = 64 << 20

    def live(seconds: float) -> int:
        return regions(count, angle, seconds)

    tree.add(f"{base}/version", f"{tree.description.driver.version}\n")
    tree.add(f"{base}/num_alloc_mrs", lambda seconds: f"{4 * count + live(seconds)}\n")
    tree.add(f"{base}/num_dealloc_mrs", f"{4 * count}\n")
    tree.add(f"{base}/num_reg_bytes", lambda seconds: f"{(4 * count + live(seconds)) * region_bytes}\n")
    tree.add(f"{base}/num_dereg_bytes", f"{4 * count * region_bytes}\n")
