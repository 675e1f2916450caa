"""The NIC and port of one end of perftest, or what it says of a device that will not do."""

from __future__ import annotations

from probes.bandwidth.planning.defaults import gid_index
from probes.base.unknown import Unknown, known
from probes.facts.rdma.devices import Gid, RdmaFacts, RdmaPort
from probes.simulation.bandwidth.node_pair import PEER, Stage
from probes.simulation.bandwidth.perftest_options import Options
from probes.simulation.bandwidth.perftest_text import Card
from probes.simulation.node.processes import library_directory
from probes.snapshot.examination import Examination

_NOT_FOUND = " Unable to find the Infiniband/RoCE device"
_STATES = {"DOWN": "Down", "INIT": "Init", "ARMED": "Armed", "ACTIVE_DEFER": "Active Defer"}
_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
_FIRST_ADDRESS, _FAR_ADDRESS = "0a00:0001", "0a00:0002"
_INFINIBAND_MTU = 4096


def card_of(stage: Stage, examination: Examination, options: Options) -> Card | tuple[str, ...]:
    """The port as it is used; or the lines of perftest's end with status 1 (src/perftest_resources.c)."""
    rdma = examination.node.rdma
    devices = rdma.devices if isinstance(rdma, RdmaFacts) else ()
    # Without the provider's library libibverbs passes every device over.
    if not devices or not stage.tree.is_there(f"{library_directory(stage.tree)}/libmlx5.so.1"):
        return "No IB devices found", _NOT_FOUND
    device = next((one for one in devices if options.device in ("", one.name)), None)
    if device is None:
        return f"IB device {options.device} not found", _NOT_FOUND
    file = known(device.uverbs, "")
    if file not in stage.tree.files or file in stage.tree.denied:
        return (" Couldn't get context for the device",)
    port = next((one for one in device.ports if one.number == options.port), None)
    if port is None:
        return f" Port number {options.port} is not there", " Couldn't set the link layer"
    if not isinstance(port.state, Unknown) and port.state != "ACTIVE":
        state = _STATES.get(port.state, port.state.capitalize())
        return f" Port number {options.port} state is {state}", " Couldn't set the link layer"
    if port.link_layer != "Ethernet":
        return Card(device.name, True, _INFINIBAND_MTU, None, known(port.lid, 0), "")
    index = options.gid_index if options.gid_index is not None else known(gid_index(port), None)
    gid = _gid(port, index)
    if gid != _NO_GID and stage.name == PEER:
        gid = gid.replace(_FIRST_ADDRESS, _FAR_ADDRESS)
    return Card(device.name, False, _mtu(examination, device.name, port), index or 0, 0, gid)


def _gid(port: RdmaPort, index: int | None) -> str:
    gids: tuple[Gid, ...] = known(port.gids, ())
    return next((one.gid for one in gids if one.index == index), _NO_GID)


def _mtu(examination: Examination, device: str, port: RdmaPort) -> int:
    facts = examination.port_health
    health = None if isinstance(facts, Unknown) else facts.ports.get((device, port.number))
    return 1024 if health is None else known(health.roce_mtu_bytes, 1024)


def is_addressed(card: Card) -> bool:
    """Whether the port has the address that the test needs: a GID that is not empty on RoCE."""
    return card.infiniband or card.gid != _NO_GID
