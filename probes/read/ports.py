"""RDMA devices and ports as tools print them, put where the tools read them: /sys/class/infiniband.

ibstat, ibstatus, ibv_devinfo, rdma link, show_gids and ibdev2netdev each know a part. Sources: rdma-core
infiniband-diags/ibstat.c, scripts/ibstatus, libibverbs/examples/devinfo.c; iproute2 rdma/link.c; mlnx-tools
ofed_scripts/{show_gids,ibdev2netdev}.
"""

from __future__ import annotations

import ipaddress
import re
import zlib
from collections.abc import Iterator

from probes.checks.nic import port_rates, port_state, roce_gids, roce_mtu
from probes.host.values import RDMA_CLASS
from probes.read.pasted_host import PLACEHOLDER
from probes.read.reading import Parsed, Section

_STATES = {
    "down": "1: DOWN",
    "initializing": "2: INIT",
    "initialize": "2: INIT",
    "init": "2: INIT",
    "armed": "3: ARMED",
    "active": "4: ACTIVE",
    "active_defer": "5: ACTIVE_DEFER",
}
_PHYSICAL = {
    "sleep": "1: Sleep",
    "polling": "2: Polling",
    "disabled": "3: Disabled",
    "portconfigurationtraining": "4: PortConfigurationTraining",
    "linkup": "5: LinkUp",
    "linkerrorrecovery": "6: LinkErrorRecovery",
    "phytest": "7: Phy Test",
}
_LAYERS = {"infiniband": "InfiniBand", "ethernet": "Ethernet"}
_MTUS = {"256": 1, "512": 2, "1024": 3, "2048": 4, "4096": 5}
_IBSTAT = {
    "ca type": "hca_type",
    "firmware version": "fw_ver",
    "node guid": "node_guid",
    "system image guid": "sys_image_guid",
}
_DEVINFO = {
    "fw_ver": "fw_ver",
    "node_guid": "node_guid",
    "sys_image_guid": "sys_image_guid",
    "board_id": "board_id",
}
_KEY = re.compile(r"\s*([A-Za-z][\w ]{0,40}?)\s*:\s*(.*)$")
_CA = re.compile(r"CA '([\w.-]{1,64})'")
_STATUS = re.compile(r"Infiniband device '([\w.-]{1,64})' port (\d{1,3}) status")
_HCA = re.compile(r"hca_id:\s*([\w.-]{1,64})")
_PORT = re.compile(r"\s*[Pp]ort:?\s*(\d{1,3}):?\s*$")
_LINK = re.compile(
    r"\s*(?:link |\d{1,4}/\d{1,3}: )([\w.-]{1,64})/(\d{1,3}):? .{0,300}?\bstate (\w{1,20})"
    r"(?: .{0,200}?physical_state (\w{1,40}))?(?:.{0,200}? netdev (\S{1,20}))?"
)
_GID = re.compile(
    r"\s*([\w.-]{1,64})\s+(\d{1,3})\s+(\d{1,4})\s+([0-9a-fA-F:]{15,39})\s+(?:(\d[\d.]{6,14})\s+)?[vV]?(1|2)(?:\s+(\S{1,20}))?\s*$"
)
_TO_NETDEV = re.compile(
    r"\s*(?:([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) )?([\w.-]{1,64}) (?:\(.{0,200}\) )?(?:.{0,200} )?"
    r"port (\d{1,3}) (?:\(\w{1,20}\)\s*)?==> (\S{1,20}) \((\w{1,20})\)"
)
Answers = dict[tuple[str, ...], object]
_CHECKS = frozenset(("nic-firmware-mismatch",)) | frozenset(
    check.id
    for area in (port_state.AREA, port_rates.AREA, roce_gids.AREA, roce_mtu.AREA)
    for check in area.checks
)


class _Files:
    """The files of the RDMA devices that a text names."""

    def __init__(self) -> None:
        self.answers: Answers = {}

    def device(self, name: str) -> str:
        """Return the directory of a device, below a PCI function that stands for its own."""
        path = f"{RDMA_CLASS}/{name}"
        number = zlib.crc32(name.encode()) % (1 << 16)
        function = f"{PLACEHOLDER}{number >> 8:02x}:{number & 31:02x}.0"
        self.answers[("resolve", f"{path}/device")] = f"/sys/devices/pciffff:00/{function}"
        self.answers[("names", "/sys/class/cxi")] = ()  # Slingshot NICs are no RDMA devices of verbs
        return path

    def put(self, path: str, text: str) -> None:
        """Write a file."""
        if text:
            self.answers[("file", path)] = text.encode()

    def port(self, device: str, number: str, **files: str) -> None:
        """Write files of a port."""
        path = f"{self.device(device)}/ports/{int(number)}"
        self.put(f"{path}/lid", files.pop("lid", ""))
        for name, text in files.items():
            self.put(f"{path}/{name}", text)


def _number(text: str, table: dict[str, str]) -> str:
    """Return a state as sysfs writes it; "" if it is none."""
    word = re.sub(r"^port_|\s*\(\d+\)$|^\d+: |_| ", "", text.strip().lower())
    return table.get(word, "")


def _state(text: str) -> str:
    return _number(text, _STATES)


def _rate(text: str) -> str:
    """Return `400` or `400 Gb/sec (4X NDR)` as sysfs writes it."""
    match = re.match(r"(\d{1,5}(?:\.\d)?)(?: Gb/sec(?: (\(.{1,20}\)))?)?\s*$", text.strip())
    return f"{match[1]} Gb/sec {match[2] or ''}".strip() if match else ""


def read_ibstat(section: Section) -> Parsed:
    """Read ibstat."""
    return _blocks(section, _CA, _IBSTAT)


def read_devinfo(section: Section) -> Parsed:
    """Read ibv_devinfo, also with -v."""
    return _blocks(section, _HCA, _DEVINFO)


def _blocks(section: Section, head: re.Pattern[str], keys: dict[str, str]) -> Parsed:
    files, read = _Files(), 0
    device = number = ""
    for line in section.lines:
        if match := head.match(line.strip()):
            device, number = match[1], ""
            files.device(device)
        elif device and (match := _PORT.match(line)):
            number = match[1]
        elif device and (match := _KEY.match(line)):
            key, value = match[1].lower(), match[2].strip()
            if number:
                _port_file(files, device, number, key, value)
            elif key in keys:
                files.put(f"{RDMA_CLASS}/{device}/{keys[key]}", value)
        else:
            continue
        read += 1
    return Parsed(read, answers=files.answers, checks=_CHECKS)


def _port_file(files: _Files, device: str, number: str, key: str, value: str) -> None:
    if key == "state":
        files.port(device, number, state=_state(value))
    elif key in ("physical state", "phys_state"):
        files.port(device, number, phys_state=_number(value, _PHYSICAL))
    elif key == "rate":
        files.port(device, number, rate=_rate(value))
    elif key in ("link layer", "link_layer"):
        files.port(device, number, link_layer=_LAYERS.get(value.lower(), ""))
    elif key in ("base lid", "port_lid", "sm lid", "sm_lid"):
        name = "sm_lid" if key.startswith("sm") else "lid"
        files.port(
            device, number, **{name: hex(int(value, 0)) if re.fullmatch(r"\d+|0x[\da-f]+", value) else ""}
        )


def read_ibstatus(section: Section) -> Parsed:
    """Read ibstatus."""
    files, read = _Files(), 0
    device = number = ""
    names = {"state": "state", "phys state": "phys_state", "rate": "rate", "link_layer": "link_layer"}
    for line in section.lines:
        if match := _STATUS.match(line.strip()):
            device, number = match[1], match[2]
        elif device and (match := _KEY.match(line)) and match[1].lower() in names:
            files.port(device, number, **{names[match[1].lower()]: match[2].strip().strip('"')})
        else:
            continue
        read += 1
    return Parsed(read, answers=files.answers, checks=_CHECKS)


def read_rdma_link(section: Section) -> Parsed:
    """Read rdma link."""
    files, read = _Files(), 0
    for match in _matches(section, _LINK):
        physical = _number((match[4] or "").replace("_", ""), _PHYSICAL)
        files.port(match[1], match[2], state=_state(match[3]), phys_state=physical)
        if match[5]:
            files.port(match[1], match[2], link_layer="Ethernet")
            files.answers[("file", f"{RDMA_CLASS}/{match[1]}/ports/{match[2]}/gid_attrs/ndevs/0")] = match[
                5
            ].encode()
        elif "subnet_prefix" in match[0] or " lid " in match.string:
            files.port(match[1], match[2], link_layer="InfiniBand")
        read += 1
    return Parsed(read, answers=files.answers, checks=_CHECKS)


def read_gids(section: Section) -> Parsed:
    """Read show_gids."""
    files, read = _Files(), 0
    for match in _matches(section, _GID):
        device, port, index, gid, _, version, netdev = match.groups()
        try:
            full = ipaddress.IPv6Address(gid).exploded
        except ValueError:
            continue
        path = f"{files.device(device)}/ports/{int(port)}"
        files.put(f"{path}/gids/{index}", full)
        files.put(f"{path}/gid_attrs/types/{index}", "IB/RoCE v1" if version == "1" else "RoCE v2")
        files.put(f"{path}/gid_attrs/ndevs/{index}", netdev or "")
        files.put(f"{path}/link_layer", "Ethernet")
        read += 1
    return Parsed(read, answers=files.answers, checks=_CHECKS)


def read_netdevs(section: Section) -> Parsed:
    """Read ibdev2netdev: (Up) is the interface, so nothing is said of the port itself."""
    files, read = _Files(), 0
    for match in _matches(section, _TO_NETDEV):
        layer = "InfiniBand" if match[4].startswith("ib") else "Ethernet"
        files.port(match[2], match[3], link_layer=layer)
        if match[5] == "Down":
            files.port(match[2], match[3], state="1: DOWN")
        read += 1
    return Parsed(read, answers=files.answers, checks=_CHECKS)


def _matches(section: Section, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    return filter(None, map(pattern.match, section.lines))
