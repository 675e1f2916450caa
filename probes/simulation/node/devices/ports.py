"""RDMA ports of a simulated node: what the checks need besides state and rate; NICs of AWS and HPE."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from probes.base.text import version_numbers
from probes.base.unknown import Maybe
from probes.facts.kernel.modules import EFA_PEERMEM
from probes.facts.pci.nic_families import CONNECTX, FAMILIES, HARDWARE_OCTETS
from probes.facts.rdma.bit_errors import CORRECTED, LOST
from probes.facts.rdma.bit_errors import RECEIVED as RECEIVED_BITS
from probes.facts.rdma.cxi import RECEIVED_OCTETS, SENT_OCTETS
from probes.facts.rdma.devices import is_virtual_hca
from probes.facts.rdma.port_health import ERROR_COUNTER_BITS, OCTETS_A_UNIT, PORT_DATA, Place, sampled
from probes.host.protocol import CommandOutput
from probes.simulation.node.model.description import VIRTUAL_FUNCTION
from probes.simulation.node.model.tree import PlacedNic, Tree
from probes.simulation.node.model.workload import SteppedTotal, Wave, angle_of, traffic_steps

_DIRECTIONS = ("tx", "rx")
BYTE_COUNTERS = {
    **{f"counters/{name}": (way, OCTETS_A_UNIT) for name, way in zip(PORT_DATA, _DIRECTIONS, strict=True)},
    **{
        f"hw_counters/{name}": (way, 1)
        for octets in HARDWARE_OCTETS
        for names, way in zip(octets, _DIRECTIONS, strict=True)
        for name in names
    },
}
"""Files of a port with its bytes: "tx" or "rx", and the bytes in one of their units."""
HW_COUNTERS = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "rp_cnp_handled",
    "rp_cnp_ignored",
)
# Of mlx5, networking/device_drivers/ethernet/mellanox/mlx5/counters.rst; the stalls are percentages.
_ETHTOOL_COUNTERS = (
    *(f"{direction}_prio{priority}_pause" for direction in ("rx", "tx") for priority in range(8)),
    *(f"{direction}_prio{priority}_pause_duration" for direction in ("rx", "tx") for priority in range(8)),
    *(f"rx_prio{priority}_discards" for priority in range(8)),
    *("rx_discards_phy", "link_down_events_phy", "rx_pci_signal_integrity", "tx_pci_signal_integrity"),
    *("outbound_pci_stalled_rd", "outbound_pci_stalled_wr", "outbound_pci_buffer_overflow"),
    *("outbound_pci_stalled_rd_events", "outbound_pci_stalled_wr_events"),
)
# Also on IPoIB netdevs in enhanced mode (ipoib/ipoib.c, mlx5i_stats_grps); virtual functions have none.
_LINK_COUNTERS = (
    *(LOST, "link_down_events_phy"),
    *("module_high_temp", "module_bus_stuck", "module_bad_shorted", "module_unplug"),
)
_RAW_RATES = 1e-10, 4e-10  # of healthy links: share of wrong bits before FEC


def add_ports(tree: Tree) -> None:
    """Add the subnet manager, counters and netdev of every port."""
    for index, nic in enumerate(tree.cards, 3):  # 1 is lo, 2 the management NIC
        add_temperatures(tree, nic, index)
        if nic.kind.driver == "efa":
            continue
        port = port_of(nic)
        infiniband = nic.kind.layer == "InfiniBand"
        if infiniband:
            set_keys(tree, nic, nic.kind.partition_keys)
        if nic.kind.driver != "cxi_ss1":
            tree.add(f"{port}/sm_lid", "0x1\n" if infiniband else "0x0\n")
            tree.add_values(f"{port}/counters", dict.fromkeys(ERROR_COUNTER_BITS, 0))
            tree.add_values(f"{port}/hw_counters", dict.fromkeys(HW_COUNTERS, 0))
        for names, share in zip(_octets_of(nic), (1.0, 0.99), strict=False):
            tree.remove(f"{port}/counters")
            tree.add_values(f"{port}/hw_counters", dict.fromkeys(names, 0))
            tree.add(f"{port}/hw_counters/{names[0]}", traffic_counter(tree, nic, names[0], share, 8))
        netdev = netdev_of(tree, nic)
        base = f"{nic.path}/net/{netdev}"
        tree.link(f"/sys/class/net/{netdev}", f"../../{base.removeprefix('/sys/')}")
        tree.link(f"{base}/device", f"../../../{nic.bdf}")
        mtu = nic.kind.mtu or (4092 if infiniband else 9000)
        tree.add_values(base, {"mtu": mtu, "operstate": "up", "flags": "0x1003", "carrier_changes": 2})
        tree.add_values(base, {"ifindex": index, "type": 32 if infiniband else 1})
        for direction in ("tx", "rx"):
            tree.add(f"{base}/statistics/{direction}_bytes", few_bytes)
        if not infiniband and nic.kind.driver != "cxi_ss1":  # Slingshot NICs have names of their own
            tree.ethtool[netdev] = dict.fromkeys(_ETHTOOL_COUNTERS, lambda seconds: 0.0)
        if nic.kind.driver == "mlx5_core" and not is_virtual_hca(nic.kind.hca):
            _add_link_counters(tree, nic, netdev)
        if tree.description.modules.ofed and not infiniband:
            tree.add_values(f"{base}/ecn/roce_rp/enable", {str(priority): 1 for priority in range(8)})


def _add_link_counters(tree: Tree, nic: PlacedNic, netdev: str) -> None:
    """Add bit errors and events of the module, and on Ethernet the FEC mode."""
    bits_a_second = nic.kind.line_gbps * 1e9
    low, high = _RAW_RATES
    rate = low + (high - low) * (angle_of(tree.seed, f"{nic.name} bit errors") % 1.0)
    counters = tree.ethtool.setdefault(netdev, {})
    counters |= dict.fromkeys(_LINK_COUNTERS, lambda seconds: 0.0)
    counters[CORRECTED] = lambda seconds: rate * bits_a_second * seconds
    if tree.description.modules.ofed:
        counters[RECEIVED_BITS] = lambda seconds: bits_a_second * seconds
    if nic.kind.layer == "Ethernet":
        tree.fec[netdev] = "RS"


_SENSORS_SINCE = (6, 6)  # of Linux; OFED has them on older kernels
_LEAST_OPTICAL_GBPS = 200.0  # slower NICs have copper cables
_SENSORS = (("asic", 58, 105), ("Module{}", 52, 75))  # the least temperature of a node, and the limit


def add_temperatures(tree: Tree, nic: PlacedNic, number: int) -> None:
    """Add the sensors of a NIC that is no virtual function, and of its optical module (mlx5/core/hwmon.c)."""
    node = tree.description
    has_sensors = node.modules.ofed or version_numbers(node.kernel)[:2] >= _SENSORS_SINCE
    if nic.kind.driver != CONNECTX.pci_drivers[0] or nic.kind.id == VIRTUAL_FUNCTION or not has_sensors:
        return
    has_optics = nic.kind.line_gbps >= _LEAST_OPTICAL_GBPS and not nic.kind.copper
    directory = f"{nic.path}/hwmon/hwmon{number}"
    tree.add(f"{directory}/name", "mlx5\n")
    card, _, function = nic.bdf.rpartition(".")
    for channel, (name, least, limit) in enumerate(_SENSORS[: 1 + has_optics], 1):
        label = name.format(function)
        celsius = least + round(angle_of(tree.seed, f"{card} {label}"))
        values = {"input": celsius * 1000, "highest": (celsius + 3) * 1000, "crit": limit * 1000}
        for file, value in {"label": label, **values}.items():
            tree.add(f"{directory}/temp{channel}_{file}", f"{value}\n")


def _octets_of(nic: PlacedNic) -> tuple[tuple[str, ...], ...]:
    """Return the counters of bytes of a driver that has them in hw_counters, and nothing in counters."""
    own = (family.octets for family in FAMILIES if nic.kind.driver in family.pci_drivers)
    return next((octets[-1] for octets in own if octets), ())


def traffic_counter(
    tree: Tree, nic: PlacedNic, name: str, share: float, unit_bits: int
) -> Callable[[float], str]:
    """Return a counter of what a job has sent or received over a NIC, a share of its usual traffic."""
    wave = Wave(nic.kind.gbps * share, angle_of(tree.seed, f"{nic.name} {name}"))
    is_storage = nic.kind is tree.description.nic.get("storage")
    gigabits = SteppedTotal(wave.total, traffic_steps(tree.seed, nic.kind, is_storage))
    return lambda seconds: f"{round(gigabits(seconds) * 1e9 / unit_bits)}\n"


def few_bytes(seconds: float) -> str:
    """Bytes through a netdev that only monitoring uses, besides RDMA."""
    return f"{round(seconds * 20_000)}\n"


def set_keys(tree: Tree, nic: PlacedNic, keys: Sequence[str]) -> None:
    """Set the partition keys of a port, from index 0 on; the rest is empty."""
    padded = (*keys, *("0x0000",) * (_KEY_TABLE_LENGTH - len(keys)))
    tree.add_values(f"{port_of(nic)}/pkeys", {str(index): key for index, key in enumerate(padded)})


def port_of(nic: PlacedNic) -> str:
    """Return the directory of the NIC's only port."""
    return f"{nic.path}/infiniband/{nic.name}/ports/1"


def is_active(tree: Tree, nic: PlacedNic) -> bool:
    """Return whether a job can use the NIC: its port is active, or flaps. Slingshot has no such file."""
    path = f"{port_of(nic)}/state"
    content = tree.files.get(path)
    return nic.kind.driver == "cxi_ss1" or (
        is_listed(tree, nic)
        and content is not None
        and (callable(content) or tree.text(path).strip().endswith(": ACTIVE"))
    )


def is_listed(tree: Tree, nic: PlacedNic) -> bool:
    """Return whether gdrtop sees the RDMA device: in its own namespace, or as root in that of a program."""
    roots = ("", *(f"/proc/{program.pid}/root" for program in tree.programs))
    return any(tree.is_there(f"{root}/sys/class/infiniband/{nic.name}") for root in roots)


def netdev_of(tree: Tree, nic: PlacedNic) -> str:
    """Return the NIC's netdev."""
    return next(iter(tree.directories[f"{nic.path}/net"]))


_KEY_TABLE_LENGTH = 16  # a ConnectX has 128
_GUID, _LID, _FIRST_PORT = "0x51a01a7e0000c0de", 7, 11
_SYMBOL_ERRORS = 1532
_NO_ADDRESS = "iberror: failed: Failed to open port"


def add_switch(tree: Tree, bad: PlacedNic) -> None:
    """Add the answers of infiniband-diags; the port of one NIC has symbol errors."""
    ports = {nic.name: _FIRST_PORT + number for number, nic in enumerate(tree.nics)}

    def answer(argv: tuple[str, ...], seconds: float) -> Maybe[CommandOutput] | str:
        device = argv[argv.index("-C") + 1] if "-C" in argv[:-1] else ""
        if device not in ports:
            return CommandOutput(argv, 255, "", f"{argv[0]}: {_NO_ADDRESS}")
        if argv[0] == "perfquery":
            errors = _SYMBOL_ERRORS if device == bad.name else 0
            return _shown(SymbolErrorCounter=errors, LinkDownedCounter=0, PortRcvErrors=0, PortXmitWait=0)
        if "portinfo" in argv:
            return _shown(Lid=_LID)
        return _shown(NodeType="Switch", SystemGuid=_GUID, Guid=_GUID, LocalPort=ports[device])

    for name in ("smpquery", "perfquery"):
        tree.commands[name] = answer
        tree.add(f"/usr/sbin/{name}", "")


def _shown(**fields: object) -> str:
    """Return fields as libibmad prints them: the name, dots up to column 33, the value."""
    return "".join(f"{f'{name}:':.<33}{value}\n" for name, value in fields.items())


# EFA: drivers/infiniband/hw/efa and AWS's driver package. An EFA has no netdev, no board and no standard
# counters; its port is always ACTIVE. Slingshot: HewlettPackard/shs-cxi-driver,
# drivers/net/ethernet/hpe/ss1; without verbs, programs open /dev/cxiN through libfabric.

_BOOTED = 1_750_000_000  # seconds since 1970
# hw/efa/efa_verbs.c, in its order; bytes besides are zero.
_PORT_COUNTERS = (
    *("tx_pkts", "rx_pkts", "rx_drops", "send_bytes", "send_wrs", "recv_bytes", "recv_wrs"),
    *("rdma_read_wrs", "rdma_read_bytes", "rdma_read_wr_err", "rdma_read_resp_bytes"),
    *("rdma_write_wrs", "rdma_write_bytes", "rdma_write_wr_err", "rdma_write_recv_bytes"),
    *("retrans_bytes", "retrans_pkts", "retrans_timeout_events", "unresponsive_remote_events"),
)


def add_efa(tree: Tree, nic: PlacedNic, guid: str) -> None:
    """Add what is an EFA's own: its counters and its peer-memory provider."""
    base = f"{nic.path}/infiniband/{nic.name}"
    values = {
        "node_type": "7: unspecified",
        "fw_ver": "",
        "sys_image_guid": "0000:0000:0000:0000",
        "ports/1/lid": "0x0",
        "ports/1/sm_lid": "0x0",
        "ports/1/gids/0": f"fe80:0000:0000:0000:{guid}",
        "ports/1/gid_attrs/types/0": "IB/RoCE v1",
    }
    tree.add_values(base, values)
    for name, share in (("tx_bytes", 1.0), ("rx_bytes", 0.99)):
        tree.add(f"{base}/ports/1/hw_counters/{name}", traffic_counter(tree, nic, name, share, 8))
    tree.add_values(f"{base}/ports/1/hw_counters", dict.fromkeys(_PORT_COUNTERS, 0))
    tree.add(f"{nic.path}/p2p", lambda seconds: f"{_peer_provider(tree)}\n")


def _stamped(count: Callable[[float], str]) -> Callable[[float], str]:
    """Return a counter of telemetry/, with the time of the reading."""
    return lambda seconds: f"{count(seconds).strip()}@{_BOOTED + seconds:.9f}\n"


def _peer_provider(tree: Tree) -> str:
    """Return what efa_p2p.c names as its provider; it loads efa_nv_peermem by itself if it can."""
    can_load = EFA_PEERMEM in tree.description.modules.on_disk and EFA_PEERMEM not in tree.refusals
    has_module = can_load or EFA_PEERMEM in tree.live_modules
    return "NVIDIA" if "nvidia" in tree.live_modules and has_module else ""


def add_cxi(tree: Tree, nic: PlacedNic, number: int) -> None:
    """Add one NIC with its netdev hsnN."""
    base = f"{nic.path}/cxi/{nic.name}"
    tree.link(f"/sys/class/cxi/{nic.name}", f"../../{base.removeprefix('/sys/')}")
    tree.link(f"{base}/device", "../..")
    tree.add(f"{base}/dev", f"510:{number}\n")
    for name, direction, share in ((SENT_OCTETS, "tx", 1.0), (RECEIVED_OCTETS, "rx", 0.99)):
        octets = traffic_counter(tree, nic, direction, share, 8)
        tree.add(f"{nic.path}/telemetry/{name}", _stamped(octets))
    for name in sampled(Place.TELEMETRY):
        tree.add(f"{nic.path}/telemetry/{name}", _stamped(lambda seconds: "0\n"))
    mbps = round(nic.kind.line_gbps * 1000)
    tree.add_values(f"{nic.path}/net/hsn{number}", {"dev_port": 0, "speed": mbps})
