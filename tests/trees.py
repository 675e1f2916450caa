"""Builds sysfs trees in a directory: by hand, and from what `lspci -vvv` printed."""

from __future__ import annotations

import re
from pathlib import Path

NVIDIA, MELLANOX, BROADCOM = 0x10DE, 0x15B3, 0x1000


def write(root: Path, path: str, text: str) -> None:
    """A file with its directories."""
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def link(root: Path, path: str, target: str) -> None:
    """A symbolic link with its directories."""
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
    """A PCI function below ("pci0000:15", "0000:15:01.0", …); its BDF is the last element."""
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
    """A NUMA node."""
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
    """An RDMA device, below a PCI function or, without a path, a software one."""
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


_VENDORS = {
    "NVIDIA": NVIDIA,
    "Mellanox": MELLANOX,
    "Broadcom / LSI": BROADCOM,
    "Broadcom Inc.": 0x14E4,
    "Intel": 0x8086,
    "PMC-Sierra": 0x11F8,
}
_CLASSES = {
    "PCI bridge": 0x060400,
    "3D controller": 0x030200,
    "VGA compatible controller": 0x030000,
    "Ethernet controller": 0x020000,
    "Infiniband controller": 0x020700,
    "Bridge": 0x068000,
}
_DEVICES = {"ConnectX-7": 0x1021, "ConnectX-6 Dx": 0x101D, "PEX890xx": 0xC030}


def tree_from_lspci(text: str, root: Path) -> None:
    """The PCI tree behind the text of `lspci -vvv`: nesting by the buses that its bridges lead to."""
    blocks = re.split(r"\n(?=[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] )", "\n" + text)
    functions: dict[str, str] = {}
    parents: dict[int, str] = {}
    for block in blocks:
        head = re.match(r"\n?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ", block)
        if not head:
            continue
        functions[head.group(1)] = block
        bridge = re.search(r"Bus: primary=[0-9a-f]{2}, secondary=([0-9a-f]{2})", block)
        if bridge:
            parents[int(bridge.group(1), 16)] = head.group(1)
    for short, block in functions.items():
        chain = [short]
        while (above := parents.get(int(chain[0][:2], 16))) is not None:
            chain.insert(0, above)
        path = (f"pci0000:{chain[0][:2]}", *(f"0000:{bdf}" for bdf in chain))
        _add_from_lspci(root, path, block)


def _add_from_lspci(root: Path, path: tuple[str, ...], block: str) -> None:
    kind, _, name = block.strip().split("\n", 1)[0][8:].partition(": ")
    class_code = next((code for word, code in _CLASSES.items() if kind.startswith(word)), 0x088000)
    vendor = next((number for word, number in _VENDORS.items() if name.startswith(word)), 0xFFFF)
    given = re.search(r"Device ([0-9a-f]{4})\b", name)
    device = int(given.group(1), 16) if given else next((n for w, n in _DEVICES.items() if w in name), 0xFFFF)
    numa = re.search(r"NUMA node: (\d+)", block)
    most = re.search(r"LnkCap:.*?Speed ([0-9.]+)GT/s, Width x(\d+)", block)
    now = re.search(r"LnkSta:\s*Speed ([0-9.]+)GT/s.*?Width x(\d+)", block, re.DOTALL)

    def speed(match: re.Match[str] | None) -> str:
        return f"{float(match.group(1))} GT/s PCIe" if match else "Unknown"

    add_function(
        root,
        path,
        vendor,
        device,
        class_code,
        int(numa.group(1)) if numa else -1,
        speed(now),
        int(now.group(2)) if now else 0,
        speed(most),
        int(most.group(2)) if most else 0,
    )
