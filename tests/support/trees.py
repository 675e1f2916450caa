"""Build sysfs trees in a directory: by hand, or from the output of `lspci -vvv`."""

from __future__ import annotations

import re
from pathlib import Path

NVIDIA, MELLANOX, BROADCOM = 0x10DE, 0x15B3, 0x1000


def write(root: Path, path: str, text: str) -> None:
    """Write a file and its directories."""
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def link(root: Path, path: str, target: str) -> None:
    """Create a symbolic link and its directories."""
    where = root / path.lstrip("/")
    where.parent.mkdir(parents=True, exist_ok=True)
    where.symlink_to(target)


def add_function(
    root: Path,
    path: tuple[str, ...],
    vendor: int = 0x8086,
    device: int = 0x1234,
    class_code: int = 0x060400,
    numa_node: int | None = 0,
    speed: str = "32.0 GT/s PCIe",
    width: int = 16,
    max_speed: str = "32.0 GT/s PCIe",
    max_width: int = 16,
    subsystem: tuple[int, int] = (0, 0),
    driver: str = "",
    resource: str = "",
) -> str:
    """Add a PCI function below ("pci0000:15", "0000:15:01.0", …); its BDF is the last element."""
    bdf = path[-1]
    directory = "/sys/devices/" + "/".join(path)
    event = f"DRIVER={driver}\n" if driver else ""
    event += f"PCI_CLASS={class_code:X}\nPCI_ID={vendor:04X}:{device:04X}\n"
    event += f"PCI_SUBSYS_ID={subsystem[0]:04X}:{subsystem[1]:04X}\nPCI_SLOT_NAME={bdf}\n"
    write(root, f"{directory}/uevent", event)
    if numa_node is not None:
        write(root, f"{directory}/numa_node", f"{numa_node}\n")
    for name, text in (
        ("current_link_speed", speed),
        ("current_link_width", str(width)),
        ("max_link_speed", max_speed),
        ("max_link_width", str(max_width)),
        ("resource", resource),
    ):
        write(root, f"{directory}/{name}", f"{text}\n")
    link(root, f"/sys/bus/pci/devices/{bdf}", f"../../../devices/{'/'.join(path)}")
    return bdf


def add_numa_node(root: Path, number: int, cpulist: str, distances: str) -> None:
    """Add a NUMA node."""
    base = f"/sys/devices/system/node/node{number}"
    write(root, f"{base}/cpulist", f"{cpulist}\n")
    write(root, f"{base}/distance", f"{distances}\n")
    write(root, f"{base}/meminfo", f"Node {number} MemTotal:       1048576 kB\n")


def add_rdma_device(
    root: Path,
    name: str,
    path: tuple[str, ...] = (),
    state: str = "4: ACTIVE",
    rate: str = "400 Gb/sec (4X NDR)",
    link_layer: str = "InfiniBand",
    ports: int = 1,
    gids: int = 1,
    empty_gids: int = 8,
) -> None:
    """Add an RDMA device below a PCI function, or a software one if there is no path."""
    above = "/sys/devices/" + "/".join(path) if path else "/sys/devices/virtual"
    base = f"{above}/infiniband/{name}"
    link(root, f"/sys/class/infiniband/{name}", f"../../{base.removeprefix('/sys/')}")
    if path:
        link(root, f"{base}/device", "../..")
    write(root, f"{base}/node_type", "1: CA\n")
    write(root, f"{base}/fw_ver", "28.43.2026\n")
    for port in range(1, ports + 1):
        where = f"{base}/ports/{port}"
        for file, text in (
            ("state", state),
            ("phys_state", "5: LinkUp"),
            ("rate", rate),
            ("link_layer", link_layer),
            ("lid", "0x1"),
            ("counters/port_xmit_data", "1000"),
            ("counters/port_rcv_data", "2000"),
        ):
            write(root, f"{where}/{file}", f"{text}\n")
        for index in range(gids + empty_gids):
            gid = (
                f"fe80:0000:0000:0000:0000:0000:0000:{index + 1:04x}"
                if index < gids
                else "0000:" * 7 + "0000"
            )
            write(root, f"{where}/gids/{index}", f"{gid}\n")
            if index < gids:
                write(root, f"{where}/gid_attrs/types/{index}", "RoCE v2\n")


def add_module(
    root: Path,
    name: str,
    refcnt: int = 0,
    used_by: tuple[str, ...] = (),
    state: str = "Live",
    version: str | None = None,
) -> None:
    """Add a loaded module to /proc/modules and /sys/module; the modules in `used_by` depend on it."""
    base = f"/sys/module/{name}"
    words = {"Live": "live", "Loading": "coming", "Unloading": "going"}
    write(root, f"{base}/initstate", f"{words[state]}\n")
    write(root, f"{base}/refcnt", f"{refcnt}\n")
    if version is not None:
        write(root, f"{base}/version", f"{version}\n")
    (root / f"{base}/holders".lstrip("/")).mkdir()
    for holder in used_by:
        link(root, f"{base}/holders/{holder}", f"../../{holder}")
    listed = root / "proc/modules"
    before = listed.read_text() if listed.exists() else ""
    holders = "".join(f"{holder}," for holder in used_by) or "-"
    write(root, "/proc/modules", f"{before}{name} 16384 {refcnt} {holders} {state} 0x0000000000000000\n")


_VENDORS = {
    "NVIDIA": NVIDIA,
    "Mellanox": MELLANOX,
    "Broadcom / LSI": BROADCOM,
    "Broadcom Inc.": 0x14E4,
    "Intel": 0x8086,
    "Advanced Micro Devices": 0x1022,
    "PMC-Sierra": 0x11F8,
    "Dell": 0x1028,
    "Micron": 0x1344,
    "Samsung": 0x144D,
    "ASPEED": 0x1A03,
    "Matrox": 0x102B,
    "PLDA": 0x1556,
}
_CLASSES = {
    "PCI bridge": 0x060400,
    "Host bridge": 0x060000,
    "ISA bridge": 0x060100,
    "Bridge": 0x068000,
    "3D controller": 0x030200,
    "VGA compatible controller": 0x030000,
    "Audio device": 0x040300,
    "Ethernet controller": 0x020000,
    "Infiniband controller": 0x020700,
    "Non-Volatile memory controller": 0x010802,
    "SATA controller": 0x010601,
    "Serial Attached SCSI controller": 0x010700,
    "USB controller": 0x0C0330,
    "SMBus": 0x0C0500,
    "Performance counters": 0x110100,
}
_DEVICES = {
    "ConnectX-7": 0x1021,
    "ConnectX-6 Dx": 0x101D,
    "PEX890xx": 0xC030,
    "PCIe Switch management endpoint": 0x00B2,
    "RTX 6000 Ada": 0x26B1,
    "AD102 High Definition Audio": 0x22BA,
}
# IDs that `lspci -t` does not print, by name.
_CLASSES_BY_NAME = {"RTX 6000 Ada": 0x030000, "Ethernet": 0x020000, "ConnectX": 0x020000, "NVMe": 0x010802}
_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def tree_from_lspci(text: str, root: Path) -> None:
    """Build the PCI tree from the output of `lspci -vvv`, nested by the buses of its bridges.

    Where the text holds an `lspci -tv` drawing as well, the nesting is the drawing's, and the details
    may be of some functions only.
    """
    blocks: dict[str, str] = {}
    parents: dict[str, str] = {}
    for block in re.split(r"\n(?=(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] [^-])", "\n" + text):
        head = re.match(r"\n?((?:[0-9a-f]{4,8}:)?)([0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ", block)
        if not head:
            continue
        domain = head.group(1) or "0000:"
        blocks[domain + head.group(2)] = block.split("\n```")[0]
        bridge = re.search(r"Bus: primary=[0-9a-f]{2}, secondary=([0-9a-f]{2})", block)
        if bridge:
            parents[domain + bridge.group(1)] = domain + head.group(2)
    drawn = _drawn(text)
    for bdf, (path, bridges, name) in drawn.items():
        kind = "PCI bridge" if bridges else ""
        _add_from_lspci(root, path, blocks.get(bdf, f"{bdf[5:]} {kind}: {name}"))
    for bdf, block in blocks.items():
        if bdf in drawn:
            continue
        chain = [bdf]
        while (above := parents.get(chain[0].rpartition(":")[0])) is not None and above not in chain:
            chain.insert(0, above)
        _add_from_lspci(root, (f"pci{chain[0].rpartition(':')[0]}", *chain), block)


_TOKEN = re.compile(r"\[(?:([0-9a-f]{4,8}):)?([0-9a-f]{2})(?:-[0-9a-f]{2})?\]|([0-9a-f]{2}\.[0-7])")


def _drawn(text: str) -> dict[str, tuple[tuple[str, ...], bool, str]]:
    """Return BDF -> path, whether it has a bus below, name, from `lspci -tv`, whose columns show the bus."""
    found: dict[str, tuple[tuple[str, ...], bool, str]] = {}
    columns: dict[int, tuple[str, tuple[str, ...]]] = {}
    domain = "0000"
    for line in text.splitlines():
        end = re.search(r"\.[0-7](  )", line)
        drawing, name = (line[: end.start(1)], line[end.end(1) :]) if end else (line, "")
        if not re.fullmatch(r"[-| \\][-+|\\ 0-9a-f.:\[\]]+", drawing):
            continue
        bus: tuple[str, tuple[str, ...]] | None = None
        above: tuple[str, ...] = ()
        for token in _TOKEN.finditer(drawing):
            if not token.group(3):
                domain = token.group(1) or domain
                if above:
                    found[above[-1]] = above, True, ""
                bus = token.group(2), above or (f"pci{domain}:{token.group(2)}",)
                continue
            here = bus or columns.get(token.start())
            if here is not None:
                columns[token.start()] = here
                above = (*here[1], f"{domain}:{here[0]}:{token.group(3)}")
                found[above[-1]] = above, False, name
    return found


def _number_in(words: dict[str, int], text: str, otherwise: int) -> int:
    return next((number for word, number in words.items() if word in text), otherwise)


def _ids(name: str) -> tuple[int, int]:
    """Return vendor and device of a name: "… [10de:2330]" of -nn, "… Device 2330", else by its words."""
    given = re.search(r"\[([0-9a-f]{4}):([0-9a-f]{4})\]", name)
    if given:
        return int(given.group(1), 16), int(given.group(2), 16)
    vendor = next((number for word, number in _VENDORS.items() if name.startswith(word)), 0xFFFF)
    device = re.search(r"Device ([0-9a-f]{4})\b", name)
    return vendor, int(device.group(1), 16) if device else _number_in(_DEVICES, name, 0xFFFF)


def _resource(block: str) -> str:
    """Return the `resource` file: six BARs, one per line; a 64-bit BAR takes two lines."""
    lines = ["0x0000000000000000 0x0000000000000000 0x0000000000000000"] * 6
    # With one indent only: regions with a deeper indent belong to virtual functions.
    pattern = r"\n(?:\t| {8})Region ([0-5]): (Memory|I/O ports) at ([0-9a-f]+)(.*?)\[size=(\d+)([KMGT]?)\]"
    for index, kind, address, how, size, factor in re.findall(pattern, block):
        flags = 0x100 if kind != "Memory" else 0x200
        flags |= 0x100000 if "64-bit" in how else 0
        flags |= 0x2000 if ", prefetchable" in how else 0
        end = int(address, 16) + int(size) * _FACTORS[factor] - 1
        lines[int(index)] = f"0x{int(address, 16):016x} 0x{end:016x} 0x{flags:016x}"
    return "\n".join(lines)


def _add_from_lspci(root: Path, path: tuple[str, ...], block: str) -> None:
    head = block.strip().split("\n", 1)[0].partition(" ")[2]
    kind, _, name = head.partition(": ")
    given = re.search(r"\[([0-9a-f]{4})\]$", kind)
    class_code = _CLASSES.get(kind) or _number_in(_CLASSES_BY_NAME, name, 0x088000)
    vendor, device = _ids(name)
    subsystem = re.search(r"Subsystem: (.*)", block)
    driver = re.search(r"Kernel driver in use: (\S+)", block)
    numa = re.search(r"NUMA node: (\d+)", block)
    most = re.search(r"LnkCap:.*?Speed ([0-9.]+)GT/s, Width x(\d+)", block)
    now = re.search(r"LnkSta:\s*Speed ([0-9.]+)GT/s.*?Width x(\d+)", block)

    def speed(match: re.Match[str] | None) -> str:
        return f"{float(match.group(1))} GT/s PCIe" if match else "Unknown"

    add_function(
        root,
        path,
        vendor,
        device,
        int(given.group(1), 16) << 8 if given else class_code,
        int(numa.group(1)) if numa else -1,
        speed(now),
        int(now.group(2)) if now else 0,
        speed(most),
        int(most.group(2)) if most else 0,
        subsystem=_ids(subsystem.group(1)) if subsystem else (0, 0),
        driver=driver.group(1) if driver else "",
        resource=_resource(block),
    )
