"""RDMA ports of a simulated node: what the checks need besides state and rate."""

from __future__ import annotations

from probes.base.unknown import Maybe
from probes.facts.rdma.port_health import ERROR_COUNTER_BITS
from probes.host.protocol import CommandOutput
from probes.simulation.node.model.tree import PlacedNic, Tree
from probes.simulation.node.model.workload import SteppedTotal, Wave, angle_of, traffic_steps

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


def add_ports(tree: Tree) -> None:
    """Add the subnet manager, counters and netdev of every port."""
    for index, nic in enumerate(tree.cards, 3):  # 1 is lo, 2 the management NIC
        if nic.kind.driver == "efa":
            continue
        port = port_of(nic)
        infiniband = nic.kind.layer == "InfiniBand"
        if nic.kind.driver != "cxi_ss1":
            tree.add(f"{port}/sm_lid", "0x1\n" if infiniband else "0x0\n")
            tree.add_values(f"{port}/counters", dict.fromkeys(ERROR_COUNTER_BITS, 0))
            tree.add_values(f"{port}/hw_counters", dict.fromkeys(HW_COUNTERS, 0))
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
        if tree.description.modules.ofed and not infiniband:
            tree.add_values(f"{base}/ecn/roce_rp/enable", {str(priority): 1 for priority in range(8)})


def job_traffic(tree: Tree, nic: PlacedNic, name: str, share: float = 1.0) -> SteppedTotal:
    """Return the gigabits that a job has sent or received over a NIC, a share of its usual traffic."""
    wave = Wave(nic.kind.gbps * share, angle_of(tree.seed, f"{nic.name} {name}"))
    is_storage = nic.kind is tree.description.nic.get("storage")
    return SteppedTotal(wave.total, traffic_steps(tree.seed, nic.kind, is_storage))


def few_bytes(seconds: float) -> str:
    """Bytes through a netdev that only monitoring uses, besides RDMA."""
    return f"{round(seconds * 20_000)}\n"


def port_of(nic: PlacedNic) -> str:
    """Return the directory of the NIC's only port."""
    return f"{nic.path}/infiniband/{nic.name}/ports/1"


def is_active(tree: Tree, nic: PlacedNic) -> bool:
    """Return whether a job can use the NIC: its port is active, or flaps. Slingshot has no such file."""
    path = f"{port_of(nic)}/state"
    content = tree.files.get(path)
    return nic.kind.driver == "cxi_ss1" or (
        tree.is_there(f"/sys/class/infiniband/{nic.name}")
        and content is not None
        and (callable(content) or tree.text(path).strip().endswith(": ACTIVE"))
    )


def netdev_of(tree: Tree, nic: PlacedNic) -> str:
    """Return the NIC's netdev."""
    return next(iter(tree.directories[f"{nic.path}/net"]))


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
