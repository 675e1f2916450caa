"""RDMA devices and ports as tools print them, put where the tools read them: /sys/class/infiniband.

ibstat, ibstatus, ibv_devinfo, rdma link, show_gids, ibdev2netdev and mlxfwmanager each know a part.
Sources: rdma-core infiniband-diags/ibstat.c, scripts/ibstatus, libibverbs/examples/devinfo.c; iproute2
rdma/link.c; mlnx-tools ofed_scripts/{show_gids,ibdev2netdev}; mstflint mlxfwupdate/mlnx_dev.cpp; mst status
as in public posts.
"""

from __future__ import annotations

import ipaddress
import re
import zlib
from collections.abc import Iterator

from probes.base.text import join_limited, plural, printable
from probes.checks.nic import port_rates, port_state, roce_gids, roce_mtu
from probes.facts.rdma.devices import EMPTY_GID, EMPTY_GIDS_IN_A_ROW, MAX_GIDS
from probes.host.values import RDMA_CLASS
from probes.read.findings import statement
from probes.read.pasted_host import PLACEHOLDER
from probes.read.reading import Parsed, Section, Statement

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
_DEFAULT_GID = re.compile(r"\s*default gid:\s*[0-9a-fA-F:]{19}:([0-9a-fA-F:]{19})\s*$")
_LIDS = re.compile(r"\b(lid|sm_lid) (\d{1,5})\b")
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
    r"port {1,20}(\d{1,3}) {1,20}(?:\(\w{1,20}\)\s{0,20})?==> {1,20}(\S{1,20}) {1,40}\((\w{1,20})\)"
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

    def gids(self, device: str, number: str, gids: dict[int, str]) -> None:
        """Write the table of a port, of which a text shows the entries in use."""
        path = f"{self.device(device)}/ports/{int(number)}/gids"
        for index in range(max(gids) + 1 + EMPTY_GIDS_IN_A_ROW):
            self.put(f"{path}/{index}", gids.get(index, EMPTY_GID))

    def unset_guid(self, device: str, number: str) -> None:
        """Write that the GUID of an InfiniBand port is 0: its GID has nothing but the subnet prefix."""
        self.gids(device, number, {0: f"fe80{EMPTY_GID[4:]}"})

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
    elif key == "port guid" and not value.removeprefix("0x").strip("0"):  # of a virtual function, never set
        files.unset_guid(device, number)
    elif key in ("base lid", "port_lid", "sm lid", "sm_lid"):
        name = "sm_lid" if key.startswith("sm") else "lid"
        files.port(
            device, number, **{name: hex(int(value, 0)) if re.fullmatch(r"\d+|0x[\da-f]+", value) else ""}
        )


def read_ibstatus(section: Section) -> Parsed:
    """Read ibstatus."""
    files, read = _Files(), 0
    device = number = ""
    names = {
        **{"state": "state", "phys state": "phys_state", "rate": "rate", "link_layer": "link_layer"},
        **{"base lid": "lid", "sm lid": "sm_lid"},
    }
    for line in section.lines:
        if match := _STATUS.match(line.strip()):
            device, number = match[1], match[2]
        elif device and (match := _DEFAULT_GID.match(line)):
            if not match[1].strip("0:"):
                files.unset_guid(device, number)
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
        lids = {name: hex(int(lid)) for name, lid in _LIDS.findall(match.string)}
        files.port(match[1], match[2], state=_state(match[3]), phys_state=physical, **lids)
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
    tables: dict[tuple[str, str], dict[int, str]] = {}
    for match in _matches(section, _GID):
        device, port, index, gid, _, version, netdev = match.groups()
        try:
            full = ipaddress.IPv6Address(gid).exploded
        except ValueError:
            continue
        if int(index) >= MAX_GIDS:
            continue
        tables.setdefault((device, port), {})[int(index)] = full
        path = f"{files.device(device)}/ports/{int(port)}"
        files.put(f"{path}/gid_attrs/types/{int(index)}", "IB/RoCE v1" if version == "1" else "RoCE v2")
        files.put(f"{path}/gid_attrs/ndevs/{int(index)}", netdev or "")
        if netdev or version == "2":  # InfiniBand ports are listed, too
            files.put(f"{path}/link_layer", "Ethernet")
        read += 1
    for (device, port), gids in tables.items():
        files.gids(device, port, gids)
    return Parsed(read, answers=files.answers, checks=_CHECKS)


def read_netdevs(section: Section) -> Parsed:
    """Read ibdev2netdev: (Up) and (Down) are the netdev, which only a RoCE port follows, and only down."""
    files, read = _Files(), 0
    without_ip: list[re.Match[str]] = []
    for match in _matches(section, _TO_NETDEV):
        layer = "InfiniBand" if match[4].startswith("ib") else "Ethernet"
        files.port(match[2], match[3], link_layer=layer)
        if match[5] == "Down" and layer == "Ethernet":
            files.port(match[2], match[3], state="1: DOWN")
        elif match[5] == "Down":
            without_ip.append(match)
        read += 1
    notes: tuple[Statement, ...] = ()
    if without_ip:
        first = without_ip[0].string
        notes = (
            statement(
                "ibdev2netdev-down",
                section.at(section.lines.index(first)),
                text=printable(first.strip(), 200),
                netdevs=join_limited(match[4] for match in without_ip),
            ),
        )
    return Parsed(read, statements=notes, answers=files.answers, checks=_CHECKS)


FIRMWARE_SIGN = r"\s*Querying Mellanox devices firmware"
MST_SIGN = r"\s*MST modules:\s*$"
_VALUE = re.compile(r"\s*(PSID|PCI Device Name|FW(?: \(Running\))?|Status):?\s+(\S.{0,80})")
_MST_DEVICE = re.compile(
    r"\s*(?:[\w .():-]{2,40}\s)?/dev/mst/(\S{1,60})(?:\s+([0-9a-f:.]{7,12})\s+(\S{1,40}))?"
)


def read_firmware(section: Section) -> Parsed:
    """Read mlxfwmanager (mlxup), which names NICs by their PCI or MST device."""
    files, read = _Files(), 0
    notes: list[Statement] = []
    psid = device = flashed = ""
    for number, line in enumerate(section.lines):
        match = _VALUE.match(line)
        read += bool(line.strip())
        if match is None:
            continue
        key, value = match[1], match[2].split()[0]
        if key == "PSID":
            psid, device, flashed = value, "", ""
        elif key == "PCI Device Name":
            device = printable(value.rpartition("/")[2], 60)
        elif device and key.startswith("FW"):
            flashed = flashed or value
            files.put(f"{files.device(device)}/fw_ver", value)  # that runs, if it differs
            files.put(f"{files.device(device)}/board_id", psid)
            if key != "FW":
                place = section.at(number)
                notes.append(
                    statement("firmware-not-active", place, device=device, flashed=flashed, running=value)
                )
    return Parsed(read, tuple(notes), files.answers, frozenset(("nic-firmware-mismatch",)))


def read_mst(section: Section) -> Parsed:
    """Read mst status, of which only -v names the RDMA devices."""
    found = list(_matches(section, _MST_DEVICE))
    names = [f"{match[3]} at {match[2]}" if match[3] else match[1] for match in found]
    shows = f"{plural(len(names), 'device')} of NVIDIA's firmware tools: {join_limited(names)}."
    return Parsed(section.filled, shows=f"{shows} RDMA does not need these tools' modules.")


def _matches(section: Section, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    return filter(None, map(pattern.match, section.lines))
