"""What the checks of RDMA ports have in common: the ports of NICs, and how severe the loss of some is."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts, RdmaPort
from probes.facts.rdma.port_health import PortHealth, PortHealthFacts
from probes.queries.evidence_list import join_limited
from probes.queries.finding import Evidence, Severity
from probes.snapshot.examination import Examination
from probes.topology.endpoints import is_down
from probes.topology.smi_words import Smi

NO_PORTS = Evidence("/sys/class/infiniband", "no RDMA device of a NIC here")
ACTIVE = ("ACTIVE", "ACTIVE_DEFER")
PORT_DOWN = (
    "link-layer-wrong",
    "ib-port-not-active",
    "ib-port-not-active-disabled",
    "ib-port-not-active-netdev-down",
    "ib-port-not-active-no-subnet-manager",
    "ib-port-not-active-subnet-manager-stalled",
)
"""The checks that find ports which are down; each such port is found by one of them at least."""
_NEAR = (Smi.PIX, Smi.PXB)


@dataclass(frozen=True)
class Port:
    """A port of a NIC, with all facts about it."""

    device: RdmaDevice
    facts: RdmaPort
    health: Maybe[PortHealth]

    @property
    def path(self) -> str:
        """Its directory."""
        return f"{self.device.sysfs_path}/ports/{self.facts.number}"

    @property
    def is_ethernet(self) -> bool:
        """Whether it is known to use RoCE."""
        return self.facts.link_layer == "Ethernet"

    @property
    def is_active(self) -> bool:
        """Whether it is known to carry traffic."""
        return self.facts.state in ACTIVE

    @property
    def name(self) -> str:
        """As "mlx5_0", with the port's number where it is not the only one."""
        return self.device.name if len(self.device.ports) == 1 else f"{self.device.name}/{self.facts.number}"


def ports_of(examination: Examination) -> Maybe[tuple[Port, ...]]:
    """The ports of NICs, without those of software devices (rxe, siw)."""
    rdma = examination.node.rdma
    if isinstance(rdma, Unknown):
        return () if rdma.reason is Reason.NOT_THERE else rdma
    facts = examination.port_health
    return tuple(
        Port(device, port, _health(facts, device.name, port.number))
        for device in rdma.devices
        if not isinstance(device.bdf, Unknown)
        for port in device.ports
    )


def _health(facts: Maybe[PortHealthFacts], device: str, port: int) -> Maybe[PortHealth]:
    if isinstance(facts, Unknown):
        return facts
    absent = Unknown(Reason.NOT_THERE, f"/sys/class/infiniband/{device}/ports/{port}")
    return facts.ports.get((device, port), absent)


def names(of: Iterable[Port]) -> str:
    """The ports' names, as many as are shown."""
    return join_limited(port.name for port in of)


def devices_of(of: Iterable[Port]) -> tuple[str, ...]:
    """The RDMA devices that a finding marks."""
    return tuple(dict.fromkeys(port.device.name for port in of))


def alike(ports: Iterable[Port]) -> dict[str, list[Port]]:
    """Ports by board (PSID); those whose board is not known are left out."""
    boards: dict[str, list[Port]] = {}
    for port in ports:
        if not isinstance(port.device.board_id, Unknown):
            boards.setdefault(port.device.board_id, []).append(port)
    return boards


def card_of(port: Port) -> str:
    """The PCI address of its card without the function, "0000:41:00"; "" where it is not known."""
    return known(port.device.bdf, "").rpartition(".")[0]


def cost_of_loss(examination: Examination, lost: Collection[Port]) -> Severity:
    """How severe it is that these ports carry no traffic."""
    names = {port.device.name for port in lost}
    if gpus_without_nic(examination, names):
        return Severity.CRITICAL
    return Severity.NOTE if all(_is_spare(examination, port, names) for port in lost) else Severity.WARNING


def same_cause_as_down(examination: Examination, names: Collection[str]) -> tuple[str, ...]:
    """The findings that one about these RDMA devices is part of; none where they count as spare: a note."""
    ports = ports_of(examination)
    lost = () if isinstance(ports, Unknown) else [port for port in ports if port.device.name in names]
    return () if cost_of_loss(examination, lost) is Severity.NOTE else PORT_DOWN


def gpus_without_nic(examination: Examination, lost: Collection[str]) -> tuple[str, ...]:
    """GPUs that have NICs below their switch, or any NIC at all, and none of them works without `lost`."""
    topology = examination.topology
    devices = _devices(examination.node.rdma)
    nics = [nic.id for nic in topology.nics]
    working = {nic for nic in nics if nic not in lost and not is_down(devices.get(nic))}
    out = []
    for gpu in topology.gpus:
        near = [nic for nic in nics if topology.paths[gpu.id, nic].smi in _NEAR]
        if nics and not working & set(near or nics):
            out.append(gpu.id)
    return tuple(out)


def _devices(rdma: Maybe[RdmaFacts]) -> dict[str, RdmaDevice]:
    return {} if isinstance(rdma, Unknown) else {device.name: device for device in rdma.devices}


def _is_spare(examination: Examination, port: Port, lost: Collection[str]) -> bool:
    """Whether its card's other port works, or no port of this board does: it seems to be unused."""
    card = card_of(port)
    board = port.device.board_id
    equals = [
        device
        for device in _devices(examination.node.rdma).values()
        if device.name not in lost and device.board_id == board and not isinstance(board, Unknown)
    ]
    if any(not is_down(one) and known(one.bdf, "?").rpartition(".")[0] == card for one in equals):
        return True
    return all(is_down(device) for device in equals)
