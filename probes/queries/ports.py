"""The RDMA ports of NICs: why a port carries no traffic, and how severe the loss of ports is."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from enum import Enum
from itertools import chain

from probes.base.evidence import Evidence, Severity
from probes.base.frozen import frozen
from probes.base.grouping import grouped
from probes.base.text import join_limited
from probes.base.unknown import Maybe, Reason, Unknown, is_there, known, map_known
from probes.facts.rdma.devices import RdmaDevice, RdmaPort, is_virtual_hca, port_name
from probes.facts.rdma.partition_keys import DEFAULT_KEY, KeyTable, is_full
from probes.facts.rdma.port_health import PortHealth, PortHealthFacts, is_reordered
from probes.queries.finding import RDMA_DEVICES, need
from probes.queries.pcie_paths import functions_of
from probes.snapshot.condition import FLAPPING
from probes.snapshot.examination import Examination
from probes.topology.endpoints import is_down
from probes.topology.hops import BELOW_SWITCH

NO_PORTS = Evidence("/sys/class/infiniband", "no NIC has an RDMA device")
PORT_DOWN = (
    *("link-layer-wrong", "ib-port-not-active", "ib-port-not-active-disabled"),
    *("ib-port-not-active-netdev-down", "ib-port-not-active-no-subnet-manager"),
    *("ib-port-not-active-subnet-manager-stalled", "ib-port-not-active-link-up"),
)
"""The checks that find ports that are down. At least one of them finds each such port."""
UNUSABLE_KEYS = ("pkey-index0-unusable", "pkey-index0-limited")
"""The checks that find ports over which jobs time out because of their partition key."""
LINK_CAUSES = (FLAPPING, *PORT_DOWN)
"""What explains the errors of a port and its downs: a port that flaps is down again and again."""


@frozen
class Port:
    """A port of a NIC with all facts about it."""

    device: RdmaDevice
    facts: RdmaPort
    health: Maybe[PortHealth]

    @property
    def path(self) -> str:
        """The port's directory in sysfs."""
        return f"{self.device.sysfs_path}/ports/{self.facts.number}"

    @property
    def is_ethernet(self) -> bool:
        """Whether the port is known to use RoCE."""
        return self.facts.link_layer == "Ethernet"

    @property
    def is_active(self) -> bool:
        """Whether the port is known to carry traffic."""
        return self.facts.is_active

    @property
    def is_virtual(self) -> bool:
        """Whether it is a port of a virtual function, of this node's NIC or of a host's."""
        return self.device.is_virtual_function or is_virtual_hca(self.device.hca_type)

    @property
    def unset_guids(self) -> tuple[Evidence, ...]:
        """The GUIDs that are known to be 0: that of the device, and that of the port in its GID 0."""
        if self.facts.link_layer != "InfiniBand":
            return ()
        node = Evidence(f"{self.device.sysfs_path}/node_guid", known(self.device.node_guid, ""))
        gids = (gid.gid for gid in known(self.facts.gids, ()) if gid.index == 0)
        guids = (node, *(Evidence(f"{self.path}/gids/0", gid) for gid in gids))
        return tuple(guid for guid in guids if guid.value and not guid.value[-19:].strip("0x:"))

    @property
    def is_reordered(self) -> bool:
        """Whether packets have overtaken each other, and hardly any was lost: adaptive routing at work."""
        counts = known(map_known(self.health, lambda health: health.hw_errors), {})
        return is_reordered({name: known(count, 0) for name, count in counts.items()})

    @property
    def name(self) -> str:
        """The name as shown: "mlx5_0", or "mlx5_0/2" on a device with several ports."""
        return self.device.name if len(self.device.ports) == 1 else f"{self.device.name}/{self.facts.number}"


def ports_of(examination: Examination) -> Maybe[tuple[Port, ...]]:
    """Return the ports of NICs, without those of software devices (rxe, siw)."""
    rdma = examination.node.rdma
    if isinstance(rdma, Unknown):
        return () if rdma.reason is Reason.NOT_THERE else rdma
    return tuple(
        Port(device, port, _health(examination.port_health, device.name, port.number))
        for device in rdma.devices
        if not isinstance(device.bdf, Unknown)
        for port in device.ports
    )


def need_devices(examination: Examination) -> tuple[RdmaDevice, ...]:
    """Return the RDMA devices, none where there is no RDMA, or end the check as unknown."""
    rdma = examination.node.rdma
    return () if is_there(rdma) is False else need(rdma, RDMA_DEVICES).devices


def need_ports(examination: Examination) -> tuple[Port, ...]:
    """Return the ports of NICs, or end the check as unknown."""
    return need(ports_of(examination), RDMA_DEVICES)


def _health(facts: Maybe[PortHealthFacts], device: str, port: int) -> Maybe[PortHealth]:
    absent = Unknown(Reason.NOT_THERE, f"/sys/class/infiniband/{device}/ports/{port}")
    return map_known(facts, lambda facts: facts.ports.get((device, port), absent))


def key_table(examination: Examination, device: str, port: int) -> KeyTable | Unknown | None:
    """Return the partition keys of an active InfiniBand port; None: it is no such port."""
    facts = examination.partition_keys
    return facts if isinstance(facts, Unknown) else facts.ports.get((device, port))


def other_key_index(examination: Examination, devices: Collection[str]) -> int | None:
    """Return the index at which all these NICs' ports have a full member's key, if they do not at index 0."""
    facts = examination.partition_keys
    ports = {} if isinstance(facts, Unknown) else facts.ports
    tables = [table for (device, _), table in ports.items() if device in devices]
    keys = [{} if isinstance(table, Unknown) else table.keys for table in tables]
    common = (index for index in sorted({*chain(*keys)}) if all(is_full(each.get(index, 0)) for each in keys))
    return next(common, 0) or None


def key_texts(examination: Examination) -> dict[str, str]:
    """Return the partition keys of the ports that have others than the default, by the ports' names."""
    facts = examination.partition_keys
    tables = {} if isinstance(facts, Unknown) else facts.ports
    return {
        port_name(*port): table.text
        for port, table in tables.items()
        if not isinstance(table, Unknown) and table.keys != {0: DEFAULT_KEY}
    }


def port_names(ports: Iterable[Port]) -> str:
    """Return the names of the ports as a cause lists them."""
    return join_limited(port.name for port in ports)


def devices_of(ports: Iterable[Port]) -> tuple[str, ...]:
    """Return the names of the ports' RDMA devices, each once."""
    return tuple(dict.fromkeys(port.device.name for port in ports))


def by_board(ports: Iterable[Port]) -> dict[str, list[Port]]:
    """Group ports by board (PSID), without ports of an unknown board."""
    return grouped(
        (port.device.board_id, port) for port in ports if not isinstance(port.device.board_id, Unknown)
    )


SPARK_NAME = re.compile(r"roce(P2)?p1s0f([01])")
"""The RDMA devices of a DGX Spark: the number of the port comes last (NVIDIA/dgx-spark-playbooks)."""


def functions_of_ports(devices: Iterable[RdmaDevice]) -> list[tuple[str, ...]]:
    """Return the pairs of functions of one card that share a port: the same number, on other PCIe links."""
    groups: dict[tuple[str, ...], dict[str, str]] = {}  # name by BDF; a subfunction has the BDF of another
    for device in devices:
        match = SPARK_NAME.fullmatch(device.name)
        guid, bdf = known(device.system_image_guid, ""), known(device.bdf, "")
        if match:
            groups.setdefault(("spark", match[2]), {})[bdf] = device.name
        elif guid and bdf and not device.is_virtual_function:
            groups.setdefault((guid, bdf[-1]), {}).setdefault(bdf, device.name)
    pairs = (tuple(sorted(group.values(), key=lambda name: (len(name), name))) for group in groups.values())
    return [pair for pair in pairs if len(pair) == 2]


def cost_of_loss(examination: Examination, lost: Collection[Port]) -> Severity:
    """Return how severe it is that these ports carry no traffic; a warning where their use is unknown."""
    if not all(is_placed(examination, port) for port in lost):
        return Severity.WARNING
    devices = {port.device.name for port in lost}
    if gpus_without_nic(examination, devices):
        return Severity.CRITICAL
    return Severity.NOTE if all(_is_spare(examination, port, devices) for port in lost) else Severity.WARNING


def same_cause_as_down(examination: Examination, devices: Collection[str]) -> tuple[str, ...]:
    """Return the findings that a finding about these RDMA devices is part of; none for spare ports."""
    ports = ports_of(examination)
    lost = () if isinstance(ports, Unknown) else [port for port in ports if port.device.name in devices]
    return () if cost_of_loss(examination, lost) is Severity.NOTE else PORT_DOWN


def is_placed(examination: Examination, port: Port) -> bool:
    """Return whether the port's NIC is on the PCI bus; a text may show a port without its place."""
    return port.device.bdf in functions_of(examination)


def gpus_without_nic(examination: Examination, lost: Collection[str]) -> tuple[str, ...]:
    """Return the GPUs left without a working NIC when the devices `lost` fail.

    Only NICs below a GPU's switch count; all NICs, if there are none.
    """
    topology = examination.topology
    nics = [nic.id for nic in topology.nics]
    working = {nic for nic in nics if nic not in lost and not is_down(topology.devices.get(nic))}
    cut_off = []
    for gpu in topology.gpus:
        near = [nic for nic in nics if topology.paths[gpu.id, nic].smi in BELOW_SWITCH]
        if nics and not working & set(near or nics):
            cut_off.append(gpu.id)
    return tuple(cut_off)


def severity_without(examination: Examination, lost: Collection[str]) -> Severity:
    """Return CRITICAL if a GPU is left without a working NIC when these devices fail, else WARNING."""
    return Severity.CRITICAL if gpus_without_nic(examination, lost) else Severity.WARNING


def _is_spare(examination: Examination, port: Port, lost: Collection[str]) -> bool:
    """Say whether the port seems unused: the card's other port works, or no port of this board does."""
    card = known(port.device.bdf, "").rpartition(".")[0]
    board = port.device.board_id
    equals = [
        device
        for device in examination.topology.devices.values()
        if device.name not in lost and device.board_id == board and not isinstance(board, Unknown)
    ]
    if any(not is_down(device) and known(device.bdf, "?").rpartition(".")[0] == card for device in equals):
        return True
    return all(is_down(device) for device in equals)


_FAULTY = "The cable, optics or switch port is faulty"


class PortProblem(Enum):
    """Why a port carries no traffic, or may soon carry none; the value is what a finding says of the port.

    Sources: the physical states and the link state machine of the InfiniBand specification; Linux ib_verbs.h,
    IB_PORT_ACTIVE_DEFER; mlx5/main.c, mlx5_query_port_roce.
    """

    NONE = "carries traffic"
    UNSTEADY = f"active, but its link recovers from errors right now. {_FAULTY}, or dirty."
    CONTRADICTORY = (
        "active, but the driver reports a physical state without a link. The link may be changing right now."
    )
    NO_SIGNAL = f"no signal from the other end. {_FAULTY}, or nothing is plugged in."
    ASLEEP = "asleep, so it does not look for a link. An admin or the subnet manager has set it so."
    TRAINING = (
        "there is a signal, but link training does not finish. Cable or optics are faulty, or do not support "
        "the speed."
    )
    RECOVERING = f"its link recovers from errors, and carries nothing meanwhile. {_FAULTY}, or dirty."
    TESTED = "its link is in a test mode (Phy Test), which was not ended."
    NO_LINK = "down, and the driver does not say why."
    LINK_LOST = (
        "active, but without its link, and the port waits for the link to come back. If it does not, the "
        "cable, optics or switch port is faulty."
    )
    NO_CARRIER = (
        f"no carrier. {_FAULTY} or disabled, nothing is plugged in, or NIC and switch differ in speed or FEC."
    )
    DISABLED = "disabled by an admin, on this node or at the switch."
    HELD_DOWN = (
        "its link is up, so the cable works. An admin (ibportstate), the subnet manager, or the firmware of "
        "a NIC that several hosts share keeps the port down."
    )
    NETDEV_DOWN = "a RoCE port follows its netdev, and the netdev is set down."
    NETDEV_UP = (
        "its netdev has a link, but the RDMA device reports none. It follows another netdev, such as a bond "
        "or one in another network namespace, or its driver missed the change."
    )
    NETDEV_UNSEEN = "down, because its netdev is set down or has no carrier."
    NO_SUBNET_MANAGER = "the link is up, but no subnet manager has configured the port."
    STALLED = "the subnet manager stopped halfway, is overloaded or refuses this port."


_OF_LINK = {
    "Sleep": PortProblem.ASLEEP,
    "Polling": PortProblem.NO_SIGNAL,
    "Disabled": PortProblem.DISABLED,
    "PortConfigurationTraining": PortProblem.TRAINING,
    "LinkUp": PortProblem.HELD_DOWN,
    "LinkErrorRecovery": PortProblem.RECOVERING,
    "Phy Test": PortProblem.TESTED,
}
_RECOVERS = {"LinkErrorRecovery": PortProblem.RECOVERING}
_INFINIBAND: dict[str, tuple[dict[str, PortProblem], PortProblem]] = {
    "DOWN": (_OF_LINK, PortProblem.NO_LINK),
    "INIT": (_RECOVERS, PortProblem.NO_SUBNET_MANAGER),  # STALLED, if the port knows a subnet manager
    "ARMED": (_RECOVERS, PortProblem.STALLED),
    "ACTIVE": (
        dict.fromkeys(_OF_LINK, PortProblem.CONTRADICTORY)
        | {"LinkUp": PortProblem.NONE, "LinkErrorRecovery": PortProblem.UNSTEADY},
        PortProblem.NONE,  # some drivers report no physical state
    ),
    "ACTIVE_DEFER": ({}, PortProblem.LINK_LOST),
}
"""State → physical state → problem, and the problem in any other physical state.

Source: Linux, Documentation/ABI/stable/sysfs-class-infiniband, state and phys_state; the link state machine
of the InfiniBand specification.
"""


def problem_of(port: Port) -> Maybe[PortProblem]:
    """Return why a port carries no traffic, or why its link may fail."""
    state, layer = port.facts.state, port.facts.link_layer
    if isinstance(state, Unknown):
        return state
    if port.is_active and layer != "InfiniBand":
        return PortProblem.NONE
    if isinstance(layer, Unknown):
        return layer
    if layer == "Ethernet":
        # The physical state of a RoCE port is Disabled even if only the cable is missing (mlx5, main.c).
        return _of_netdev(port)
    by_link, otherwise = _INFINIBAND.get(state, _INFINIBAND["DOWN"])
    physical = port.facts.physical_state
    if isinstance(physical, Unknown):
        if by_link is _OF_LINK:
            return physical
        physical = ""
    problem = by_link.get(physical, otherwise)
    if problem is PortProblem.NO_SUBNET_MANAGER:
        sm_lid = map_known(port.health, lambda health: health.sm_lid)
        return map_known(sm_lid, lambda lid: PortProblem.STALLED if lid else problem)
    return problem


def _of_netdev(port: Port) -> Maybe[PortProblem]:
    """Return why a RoCE port is down, which follows its netdev."""
    is_up = map_known(port.health, lambda health: health.netdev_is_up)
    if isinstance(is_up, Unknown):
        # A text, or a part of a recording, shows the port alone.
        return PortProblem.NETDEV_UNSEEN if is_up.reason is Reason.NOT_RECORDED else is_up
    if not is_up:
        return PortProblem.NETDEV_DOWN
    state = map_known(port.health, lambda health: health.netdev_state)
    return PortProblem.NETDEV_UP if state == "up" else PortProblem.NO_CARRIER
