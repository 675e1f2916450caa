"""RDMA devices and their ports, from /sys/class/infiniband, and the bonds under them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import field, replace

from probes.base.frozen import frozen
from probes.base.text import BDF, printable
from probes.base.unknown import (
    UNREAD,
    Maybe,
    Reason,
    Unknown,
    first_unread,
    is_there,
    known,
    map_known,
    parse_known,
)
from probes.facts.network.routes import NET
from probes.facts.pci.functions import PciFacts
from probes.facts.pci.nic_families import CONNECTX, SOFTWARE
from probes.host.protocol import Host
from probes.host.values import RDMA_CLASS, VERBS, read_integer, read_numa_node

# A bond under an RDMA device: mlx5 LAG, one RDMA device over all ports of a card.
#
# Documentation/networking/bonding.rst; drivers/net/ethernet/mellanox/mlx5/core/lag. The RDMA port's own rate
# is that of one member (drivers/infiniband/hw/mlx5/main.c, mlx5_query_port_roce).

_MOST_MEMBERS = 4  # ports that mlx5 LAG supports (MLX5_MAX_PORTS)
_ONE_AT_A_TIME = "active-backup"


@frozen
class BondMember:
    """One port of a bond."""

    netdev: str
    bdf: Maybe[str]
    state: Maybe[str]  # operstate: "up", "down"
    speed_gbps: Maybe[float]  # of a link that is up


@frozen
class Bond:
    """A bond that one RDMA device uses."""

    netdev: str
    mode: Maybe[str]  # "802.3ad", "balance-xor", "active-backup"
    members: tuple[BondMember, ...]

    @property
    def up(self) -> tuple[BondMember, ...]:
        """The members that are not known to be down."""
        return tuple(member for member in self.members if known(member.state, "up") == "up")

    @property
    def ports_at_once(self) -> int:
        """The number of ports that can carry traffic at the same time."""
        return min(1, len(self.up)) if self.mode == _ONE_AT_A_TIME else len(self.up)

    @property
    def rate_gbps(self) -> Maybe[float]:
        """The sum of the ports that can carry traffic at the same time."""
        speeds: list[float] = []
        for member in self.up:
            if isinstance(member.speed_gbps, Unknown):
                return member.speed_gbps
            speeds.append(member.speed_gbps)
        if not speeds:
            source = f"{NET}/{self.netdev}/bonding/slaves"
            return Unknown(Reason.NOT_THERE, source, "no port of the bond is up")
        return max(speeds) if self.mode == _ONE_AT_A_TIME else sum(speeds)


def read_bond(host: Host, device: str, netdev: Maybe[str]) -> Bond | None:
    """Return the bond of a device, by its kernel name; None: none, or its ports have RDMA devices too."""
    if isinstance(netdev, Unknown):
        return None
    slaves = host.read(f"{NET}/{netdev}/bonding/slaves", 4096)
    if isinstance(slaves, Unknown):
        return None
    names = parse_members(slaves)
    owners = {owner for name in names for owner in known(host.names(f"{NET}/{name}/device/infiniband"), ())}
    if not names or owners - {device}:
        return None
    mode = host.read(f"{NET}/{netdev}/bonding/mode", 4096)
    word = map_known(mode, lambda text: printable(text.partition(" ")[0], 32))
    return Bond(netdev, word, tuple(_member(host, name) for name in names))


def parse_members(text: str) -> tuple[str, ...]:
    """Parse bonding/slaves: names with blanks between them."""
    names = (name for name in text.split() if "/" not in name and name not in (".", ".."))
    return tuple(printable(name, 16) for name in names)[:_MOST_MEMBERS]


def _member(host: Host, name: str) -> BondMember:
    state = host.read(f"{NET}/{name}/operstate", 64)
    path = host.resolve(f"{NET}/{name}/device")
    bdf = map_known(path, lambda found: found.rpartition("/")[2])
    if not isinstance(bdf, Unknown) and not BDF.fullmatch(bdf):
        bdf = Unknown(Reason.NOT_THERE, f"{NET}/{name}/device", "not on a PCI function")
    speed = read_integer(host, f"{NET}/{name}/speed", signed=True)  # Mb/s; -1 or EINVAL: no link
    no_link = Unknown(Reason.NOT_THERE, f"{NET}/{name}/speed", "no link")
    gbps = map_known(speed, lambda mbps: mbps / 1000 if mbps > 0 else no_link)
    return BondMember(name, bdf, state if isinstance(state, Unknown) else printable(state, 32), gbps)


@frozen
class Gid:
    """One non-empty GID."""

    index: int
    gid: str  # "fe80:0000:0000:0000:…", 8 groups
    type: Maybe[str]  # "IB/RoCE v1" or "RoCE v2"
    netdev: Maybe[str]


ACTIVE = "ACTIVE"
"""The state of a port that carries traffic. NCCL uses no other (src/transport/net_ib/init.cc): a port that is
ACTIVE_DEFER has lost its link and waits for it."""


@frozen
class RdmaPort:
    """One port of an RDMA device."""

    number: int
    state: Maybe[str]  # "ACTIVE", "DOWN", "INIT", …
    physical_state: Maybe[str]  # "LinkUp", "Polling", "Disabled", …
    rate_gbps: Maybe[float]  # 400.0; of a bond the sum of its ports
    rate_text: Maybe[str]  # "4X NDR"; old kernels print unknown speeds as SDR
    link_layer: Maybe[str]  # "InfiniBand", "Ethernet"
    lid: Maybe[int]
    netdev: Maybe[str]
    gids: Maybe[tuple[Gid, ...]]
    counters: Maybe[tuple[str, ...]]  # names in counters/; FILE_MISSING: see `is_hidden`
    hw_counters: Maybe[tuple[str, ...]]
    bond: Bond | None = None  # that the port spans; None: no bond
    telemetry: Maybe[tuple[str, ...]] = ()  # names in device/telemetry, which only Slingshot NICs have

    @property
    def is_active(self) -> bool:
        """Whether the port is known to carry traffic."""
        return self.state == ACTIVE

    @property
    def is_hidden(self) -> bool:
        """Whether its counters have no files in this network namespace; RDMA netlink answers all the same."""
        return isinstance(self.counters, Unknown) and self.counters.reason is Reason.FILE_MISSING

    @property
    def is_down(self) -> bool:
        """Whether the port is known not to carry traffic."""
        return not isinstance(self.state, Unknown) and self.state != ACTIVE


@frozen
class RdmaDevice:
    """One RDMA device (HCA): what ibv_devices lists."""

    name: str  # the kernel's name, with control characters replaced
    sysfs_path: str  # /sys/class/infiniband/NAME, with the original name
    bdf: Maybe[str]  # of its PCI function; NOT_THERE: a software device (rxe, siw), or no link to it
    driver: Maybe[str]
    node_type: Maybe[str]  # "CA", "RNIC", …
    firmware: Maybe[str]
    hca_type: Maybe[str]  # "MT4129"
    board_id: Maybe[str]  # PSID
    node_guid: Maybe[str]
    system_image_guid: Maybe[str]
    numa_node: Maybe[int]
    is_virtual_function: bool
    uverbs: Maybe[str]  # "/dev/infiniband/uverbs0"
    uverbs_number: Maybe[tuple[int, int]]  # major and minor of that file
    ports: tuple[RdmaPort, ...]


NAMESPACE_ARGV = ("rdma", "system", "show")
_NOT_ASKED = Unknown(Reason.NOT_THERE, " ".join(NAMESPACE_ARGV), "not asked")


@frozen
class RdmaFacts:
    """RDMA devices in natural order of name (mlx5_2 before mlx5_10)."""

    devices: tuple[RdmaDevice, ...]  # without those of `management`
    # BDFs of NICs whose RDMA device exists in another network namespace, a pod's for example
    devices_elsewhere: tuple[str, ...] = ()
    namespace_mode: Maybe[str] = _NOT_ASKED  # "exclusive", "shared"; asked only if a device is elsewhere
    names_elsewhere: Mapping[str, str] = field(default_factory=dict)  # of the devices elsewhere, by BDF
    # Of the devices elsewhere, those whose files a process in their namespace shows, a pod's for example:
    # root sees all of them. No program of this namespace can open them.
    in_pods: tuple[RdmaDevice, ...] = ()
    management: tuple[RdmaDevice, ...] = ()  # of functions that manage NVSwitches and carry no data

    @property
    def readable(self) -> tuple[RdmaDevice, ...]:
        """The devices whose ports can be read, in whatever namespace."""
        return (*self.devices, *self.in_pods)


_SOFTWARE = tuple(SOFTWARE.values())
_BY_SOFTWARE = "a software device"
# sw/rxe/rxe_hw_counters.c: no hardware counts these.
_RXE_COUNTERS = frozenset({"sent_pkts", "rcvd_pkts", "completer_retry_err"})
_AUXILIARY = "/sys/bus/auxiliary/devices"
_AUXILIARY_RDMA = re.compile(r"mlx5_core\.rdma\.\d{1,6}", re.ASCII)
_AUXILIARY_DRIVER = "mlx5_ib.rdma"  # drivers/infiniband/hw/mlx5/main.c, mlx5r_driver
_NAMESPACE_MODE = re.compile(r"\bnetns\W{1,4}(shared|exclusive)\b")
_MOST_NAMESPACES = 512
# A name is of its namespace: here it may be another interface's.
_NETDEV_ELSEWHERE = Unknown(Reason.NOT_THERE, "/sys/class/net", "in another network namespace")
_NO_VERBS = Unknown(Reason.NOT_THERE, VERBS, "no uverbs device: is ib_uverbs loaded?")
_NUMBER = re.compile(r"([0-9]{1,4}):([0-9]{1,7})", re.ASCII)
HIDDEN = "counters are not visible from this network namespace"
EMPTY_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
_GID = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){7}")
# rxe has 1024 entries per port, mlx5 256 on RoCE. The kernel puts a new GID into the first free entry
# (drivers/infiniband/core/cache.c, __ib_cache_gid_add), so a table fills from its start and has holes only
# where addresses were removed. After this many empty entries in a row, the rest counts as empty.
EMPTY_GIDS_IN_A_ROW = 8
MAX_GIDS = 256
_RATE = re.compile(r"(\d{1,5}(?:\.\d{1,3})?) Gb/sec(?: \((.{1,40}?)\))?")


def is_software(device: RdmaDevice) -> bool:
    """Return whether a device is rxe or siw, under whatever name; it may be listed below a NIC's function."""
    if device.name.startswith(_SOFTWARE):
        return True
    if isinstance(device.bdf, Unknown) and _BY_SOFTWARE in device.bdf.detail:
        return True
    return any(_RXE_COUNTERS.issubset(known(port.hw_counters, ())) for port in device.ports)


def is_connectx9(device: RdmaDevice) -> bool:
    """Return whether a device is a ConnectX-9, by its firmware as NCCL 2.32 does (net_ib/init.cc).

    Its physical and virtual functions have different PCI device IDs.
    """
    return known(device.driver, "") == "mlx5_core" and known(device.firmware, "").startswith("82.")


def port_name(device: str, number: int) -> str:
    """Return the name of a port as shown: "mlx5_0", or "mlx5_0/2" for further ports."""
    return device if number == 1 else f"{device}/{number}"


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that puts mlx5_2 before mlx5_10."""
    parts = filter(None, re.split(r"(\d{1,9})", name))
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)


def parse_numbered(text: str) -> str | None:
    """Parse the word of "4: ACTIVE", "5: LinkUp", "1: CA"; None for other text."""
    match = re.fullmatch(r"\d{1,3}: ?(.{1,40})", text)
    return match.group(1) if match else None


def parse_rate(text: str) -> tuple[float, str] | None:
    """Parse the rate in Gb/s and the words in parentheses of "400 Gb/sec (4X NDR)".

    A kernel prints an unknown speed as SDR: on an old kernel an XDR link is "10 Gb/sec (4X SDR)"
    (drivers/infiniband/core/sysfs.c, rate_show).
    """
    match = _RATE.fullmatch(text)
    return (float(match.group(1)), match.group(2) or "") if match else None


# ConnectX-6 and later, BlueField-2 and -3: the number of hca_type (pci.ids, "MT28908 …" is device 0x101b).
_SINCE_CONNECTX6 = range(4123, 4200)
_BLUEFIELDS = range(41682, 41700)


def shows_unknown_speed(rate_text: Maybe[str], hca_type: Maybe[str]) -> bool:
    """Return whether a port shows SDR though its card ("MT4129"), from ConnectX-6 on, has no such speed."""
    number = _device_id(hca_type)
    return known(rate_text, "") == "4X SDR" and (number in _SINCE_CONNECTX6 or number in _BLUEFIELDS)


# drivers/net/ethernet/mellanox/mlx4/main.c and mlx5/core/main.c, MLX4_PCI_DEV_IS_VF and MLX5_PCI_DEV_IS_VF.
_VIRTUAL = frozenset((0x1002, 0x1004, 0x1012, 0x1014, 0x1016, 0x1018, 0x101A, 0x101C, 0x101E, 0xA2D3))


def is_virtual_hca(hca_type: Maybe[str]) -> bool:
    """Return whether a device of NVIDIA is a virtual function, which a guest sees without its NIC."""
    return _device_id(hca_type) in _VIRTUAL


def has_own_firmware(device: RdmaDevice) -> bool:
    """Return whether a device is a ConnectX or BlueField; a virtual function has its host's firmware."""
    is_ours = known(device.driver, CONNECTX.pci_drivers[0]) in CONNECTX.pci_drivers
    return is_ours and not device.is_virtual_function and not is_virtual_hca(device.hca_type)


def _device_id(hca_type: Maybe[str]) -> int:
    """Return the PCI device ID that "MT4129" shows; 0 for other text."""
    number = known(hca_type, "").removeprefix("MT")
    return int(number) if number.isascii() and number.isdecimal() and len(number) < 6 else 0


def _word(host: Host, path: str) -> Maybe[str]:
    text = host.read(path, 4096)
    return parse_known(text, lambda word: printable(word, 80) or None, path, Reason.NOT_THERE, "empty")


def read_numbered(host: Host, path: str) -> Maybe[str]:
    """Read a file with a number and a word, "4: ACTIVE"; return the word."""
    return map_known(parse_known(host.read(path, 4096), parse_numbered, path), printable)


def _gid_netdev(host: Host, path: str) -> Maybe[str]:
    netdev = _word(host, path)
    if isinstance(netdev, Unknown) and netdev.reason is Reason.IO_ERROR:
        # EINVAL is how the kernel says "none" (core/sysfs.c, print_ndev).
        return Unknown(Reason.NOT_THERE, path, "this GID has no netdev")
    return netdev


def _gids(host: Host, port: str) -> Maybe[tuple[Gid, ...]]:
    """Return the GIDs in index order; unknown if none could be read. Empty entries have no attributes."""
    gids: list[Gid] = []
    failure: Unknown | None = None
    missing = empty = 0
    for index in range(MAX_GIDS):
        path = f"{port}/gids/{index}"
        gid = _word(host, path)
        if isinstance(gid, Unknown):
            missing += gid.reason is Reason.NOT_THERE
            failure = failure if failure is not None or gid.reason is Reason.NOT_THERE else gid
        elif not _GID.fullmatch(gid):
            failure = Unknown(Reason.MALFORMED, path, printable(gid, 40))
        elif gid != EMPTY_GID:
            empty = 0
            kind = _word(host, f"{port}/gid_attrs/types/{index}")
            gids.append(Gid(index, gid, kind, _gid_netdev(host, f"{port}/gid_attrs/ndevs/{index}")))
            continue
        empty += 1
        if empty == EMPTY_GIDS_IN_A_ROW:
            break
    # An entry may be missing in the table; for other reasons it is empty: old kernels answer EINVAL.
    if failure is not None and (not gids or failure.reason in UNREAD):
        return failure
    if gids:
        return tuple(gids)
    return Unknown(Reason.NOT_THERE, f"{port}/gids") if missing == empty else ()


def _netdev(host: Host, parent: str, number: int, gids: Maybe[tuple[Gid, ...]]) -> Maybe[str]:
    """Return a port's netdev: on RoCE from the GID table, else by the netdev's dev_port."""
    if not isinstance(gids, Unknown):
        for gid in gids:
            if not isinstance(gid.netdev, Unknown):
                return gid.netdev
    names = host.names(f"{parent}/net")
    if isinstance(names, Unknown):
        return names
    if len(names) == 1:
        return printable(names[0], 64)
    for name in names:
        if host.read(f"{parent}/net/{name}/dev_port", 4096) == str(number - 1):
            return printable(name, 64)
    return Unknown(Reason.NOT_THERE, f"{parent}/net", f"no netdev with dev_port {number - 1}")


def _names(host: Host, *paths: str) -> Maybe[tuple[str, ...]]:
    found: Maybe[tuple[str, ...]] = Unknown(Reason.NOT_THERE, paths[0])
    for path in paths:
        found = host.names(path)
        if not isinstance(found, Unknown):
            return tuple(printable(name, 64) for name in found)
    return found


def _counters(host: Host, device: str, number: int) -> tuple[Maybe[tuple[str, ...]], Maybe[tuple[str, ...]]]:
    """Return the names of a port's counters, and of those of its driver.

    In the mode "shared", only the first namespace has files of them (core/sysfs.c, setup_port).
    """
    port = f"{device}/ports/{number}"
    counters = _names(host, f"{port}/counters")
    own = _names(host, f"{port}/hw_counters", f"{device}/hw_counters")
    if is_there(counters) is False and is_there(own) is False:
        name = f"{device.rpartition('/')[2]}/{number}"
        statistics = host.rdma_statistics((name,))[name]
        if not isinstance(statistics, Unknown):
            return Unknown(Reason.FILE_MISSING, f"{port}/counters", HIDDEN), tuple(statistics)
    return counters, own


def _port(host: Host, device: str, parent: str, number: int, hca_type: Maybe[str]) -> RdmaPort:
    port = f"{device}/ports/{number}"

    parsed = parse_known(host.read(f"{port}/rate", 4096), parse_rate, f"{port}/rate")
    rate = map_known(parsed, lambda found: found[0])
    is_lid = re.compile(r"0x[0-9a-fA-F]{1,8}").fullmatch
    lid = f"{port}/lid"
    gids = _gids(host, port)
    layer, netdev = _word(host, f"{port}/link_layer"), _netdev(host, parent, number, gids)
    bond = read_bond(host, device.rpartition("/")[2], netdev) if layer == "Ethernet" else None
    if bond is not None and not isinstance(bond.rate_gbps, Unknown):
        rate = bond.rate_gbps
    if shows_unknown_speed(map_known(parsed, lambda found: found[1]), hca_type):
        rate = Unknown(
            Reason.MALFORMED, f"{port}/rate", "this kernel shows a speed that it does not know as SDR"
        )
    counters, hw_counters = _counters(host, device, number)
    return RdmaPort(
        number=number,
        state=read_numbered(host, f"{port}/state"),
        physical_state=read_numbered(host, f"{port}/phys_state"),
        rate_gbps=rate,
        rate_text=map_known(parsed, lambda found: printable(found[1])),
        link_layer=layer,
        lid=parse_known(_word(host, lid), lambda text: int(text, 16) if is_lid(text) else None, lid),
        netdev=netdev,
        gids=gids,
        counters=counters,
        hw_counters=hw_counters,
        bond=bond,
    )


def pci_function(path: str) -> str | None:
    """Return a resolved sysfs path up to its last PCI function.

    A subfunction's RDMA device is below an auxiliary device, …/0000:03:00.0/mlx5_core.sf.4
    (Documentation/networking/device_drivers/ethernet/mellanox/mlx5).
    """
    parts = path.split("/")
    while parts and not BDF.fullmatch(parts[-1]):
        parts.pop()
    return "/".join(parts) or None


def _uverbs_number(host: Host, name: str) -> Maybe[tuple[int, int]]:
    path = f"{VERBS}/{name}/dev"
    match = parse_known(host.read(path, 4096), _NUMBER.fullmatch, path)
    return map_known(match, lambda found: (int(found[1]), int(found[2])))


def _device(host: Host, name: str, uverbs: dict[str, str], no_verbs: Unknown, root: str = "") -> RdmaDevice:
    path = f"{root}{RDMA_CLASS}/{name}"
    resolved = host.resolve(f"{path}/device")
    parent = f"{path}/device" if isinstance(resolved, Unknown) else resolved
    function = pci_function(parent)
    bdf: Maybe[str]
    if function is not None:
        bdf = function.rpartition("/")[2]
    elif isinstance(resolved, Unknown):
        bdf = Unknown(resolved.reason, f"{path}/device", _without_function(host, name, path))
    else:
        bdf = Unknown(Reason.NOT_THERE, f"{path}/device", "not on a PCI function")
    below = function or parent
    listed = host.names(f"{path}/ports")
    # Every device has a port 1, so that an unread directory does not look like a device without ports.
    unlisted = () if is_there(listed) is False else ("1",)
    numbers = unlisted if isinstance(listed, Unknown) else listed
    hca_type = _word(host, f"{path}/hca_type")
    return RdmaDevice(
        name=printable(name, 64),
        sysfs_path=path,
        bdf=bdf,
        driver=map_known(host.link(f"{below}/driver"), lambda link: printable(link.rpartition("/")[2], 64)),
        node_type=read_numbered(host, f"{path}/node_type"),
        firmware=_word(host, f"{path}/fw_ver"),
        hca_type=hca_type,
        board_id=_word(host, f"{path}/board_id"),
        node_guid=_word(host, f"{path}/node_guid"),
        system_image_guid=_word(host, f"{path}/sys_image_guid"),
        numa_node=read_numa_node(host, f"{below}/numa_node"),
        is_virtual_function=not isinstance(host.link(f"{below}/physfn"), Unknown),
        uverbs=f"/dev/infiniband/{printable(uverbs[name], 64)}" if name in uverbs else no_verbs,
        uverbs_number=_uverbs_number(host, uverbs[name]) if name in uverbs else no_verbs,
        ports=tuple(
            _port(host, path, parent, number, hca_type)
            for number in sorted(int(n) for n in numbers if n.isdecimal() and len(n) < 4)
        ),
    )


def _without_function(host: Host, name: str, path: str) -> str:
    """Return why a device has no PCI function: rxe and siw are software; others were recorded partially."""
    place = known(host.resolve(path), "")
    if name.startswith(_SOFTWARE) or place.startswith("/sys/devices/virtual/"):
        return f"not on a PCI function: {_BY_SOFTWARE}"
    return "the link to its PCI function is missing"


def probe(host: Host) -> Maybe[RdmaFacts]:
    """Read /sys/class/infiniband; NOT_THERE: ib_core is not loaded."""
    names = host.names(RDMA_CLASS)
    if isinstance(names, Unknown):
        return names
    listed = host.names(VERBS)
    read = {name: host.read(f"{VERBS}/{name}/ibdev", 4096) for name in known(listed, ())}
    uverbs = {device: name for name, device in read.items() if not isinstance(device, Unknown)}
    no_verbs = first_unread((listed, *read.values()))
    no_verbs = _NO_VERBS if no_verbs is None else no_verbs
    devices = tuple(_device(host, name, uverbs, no_verbs) for name in sorted(names, key=natural))
    unread = first_unread(device.bdf for device in devices)  # its NIC would seem to have no RDMA device
    if unread is not None:
        return unread
    elsewhere = _devices_elsewhere(host, devices)
    if not elsewhere:
        return RdmaFacts(devices)
    names_there = _names_elsewhere(host, uverbs, elsewhere)
    in_pods = _devices_in_pods(host, names_there, uverbs)
    return RdmaFacts(devices, elsewhere, _namespace_mode(host), names_there, in_pods)


def for_functions(facts: Maybe[RdmaFacts], pci: Maybe[PciFacts]) -> Maybe[RdmaFacts]:
    """Return the same devices, with those that manage NVSwitches apart."""
    if isinstance(facts, Unknown) or isinstance(pci, Unknown) or not pci.management:
        return facts
    apart = tuple(device for device in facts.devices if device.bdf in pci.management)
    others = tuple(device for device in facts.devices if device not in apart)
    return replace(facts, devices=others, management=apart)


def _devices_elsewhere(host: Host, devices: tuple[RdmaDevice, ...]) -> tuple[str, ...]:
    """Return the NICs of mlx5_ib without an RDMA device here: sysfs shows only those of one namespace.

    The auxiliary bus is the same in every namespace (Linux 5.11, and OFED on older kernels).
    """
    here = {device.bdf for device in devices if not isinstance(device.bdf, Unknown)}
    found: list[str] = []
    for name in filter(_AUXILIARY_RDMA.fullmatch, known(host.names(_AUXILIARY), ())):
        parent = known(host.resolve(f"{_AUXILIARY}/{name}"), "").rpartition("/")[0]
        bdf = parent.rpartition("/")[2]  # a subfunction's RDMA device is below the subfunction instead
        if BDF.fullmatch(bdf) and bdf not in here:
            driver = known(host.link(f"{_AUXILIARY}/{name}/driver"), "").rpartition("/")[2]
            found += [bdf] if driver == _AUXILIARY_DRIVER else []
    return tuple(sorted(found))


def _names_elsewhere(host: Host, uverbs: Mapping[str, str], elsewhere: Collection[str]) -> dict[str, str]:
    """Return the names of RDMA devices in other namespaces by BDF: their uverbs devices are listed here too.

    `uverbs`: the uverbs device of each RDMA device. The class has no namespaces (core/uverbs_main.c).
    """
    found = {}
    for device, name in uverbs.items():
        function = pci_function(known(host.resolve(f"{VERBS}/{name}/device"), "")) or ""
        found[function.rpartition("/")[2]] = printable(device, 64)
    return {bdf: found[bdf] for bdf in elsewhere if bdf in found}


def _devices_in_pods(host: Host, names: Mapping[str, str], uverbs: dict[str, str]) -> tuple[RdmaDevice, ...]:
    """Return devices of other namespaces by the sysfs of a process there, which shows its own namespace's.

    A container runtime mounts sysfs in the container's network namespace, and only files of processes that
    this user may inspect can be read (proc(5), /proc/PID/root). `names`: of the devices, by BDF.
    """
    seen = {host.link("/proc/self/ns/net")}
    pids: dict[str, list[str]] = {name: [] for name in names.values()}
    for pid in filter(str.isdecimal, known(host.names("/proc"), ()) if names else ()):
        namespace = host.link(f"/proc/{pid}/ns/net")
        if isinstance(namespace, Unknown) or namespace in seen or len(seen) > _MOST_NAMESPACES:
            continue
        listed = host.names(f"/proc/{pid}/root{RDMA_CLASS}")
        if not isinstance(listed, Unknown):  # else another process of the namespace may show it
            seen.add(namespace)
            for name in pids.keys() & set(listed):
                pids[name].append(pid)
    found = []
    for bdf, name in names.items():
        if len(pids[name]) == 1:  # a device is in one namespace: of two that list it, one pretends to
            device = _device(host, name, uverbs, _NO_VERBS, f"/proc/{pids[name][0]}/root")
            ports = tuple(replace(port, netdev=_NETDEV_ELSEWHERE) for port in device.ports)
            found.append(replace(device, bdf=bdf, ports=ports))
    return tuple(sorted(found, key=lambda device: natural(device.name)))


def _namespace_mode(host: Host) -> Maybe[str]:
    """Return whether devices are in one namespace ("exclusive") or in all ("shared"): rdma-system(8)."""
    output = map_known(host.run(NAMESPACE_ARGV), lambda answer: answer.stdout)
    source, detail = " ".join(NAMESPACE_ARGV), "no netns mode in its output"
    match = parse_known(output, _NAMESPACE_MODE.search, source, detail=detail)
    return map_known(match, lambda found: found[1])
