"""The fast, cheap reading taken once a second, and the rates between two of them."""

from __future__ import annotations

from dataclasses import dataclass

from probes.gpudirect import PeermemReading, read_peermem
from probes.host import Host
from probes.modules import ModuleFacts, ModuleState
from probes.node import Node
from probes.nvml import NvmlLive
from probes.rdma import RdmaFacts, parse_numbered
from probes.text import printable
from probes.unknown import Maybe, Reason, Unknown


@dataclass(frozen=True)
class PortCounters:
    """Bytes that have passed a port (port_xmit_data and port_rcv_data, ×4), and when they were read."""

    at: float  # seconds, host.monotonic() beside the read
    sent_bytes: Maybe[int]
    received_bytes: Maybe[int]


@dataclass(frozen=True)
class Reading:
    """What moves, at one moment."""

    at: float
    ports: dict[tuple[str, int], PortCounters]  # (RDMA device, port)
    gpus: Maybe[dict[str, NvmlLive]]  # by BDF
    peermem: PeermemReading
    module_refcnts: dict[str, Maybe[int]]
    port_states: dict[tuple[str, int], Maybe[str]]  # "ACTIVE", …


@dataclass(frozen=True)
class PortRate:
    """Gb/s (10^9 bits) through a port since the reading before."""

    sent_gbps: Maybe[float]
    received_gbps: Maybe[float]


# port_xmit_data and port_rcv_data count units of four octets (IBTA PortCounters;
# Documentation/ABI/stable/sysfs-class-infiniband).
_OCTETS_A_UNIT = 4


def _number(host: Host, path: str) -> Maybe[int]:
    text = host.read(path, 4096)
    if isinstance(text, Unknown):
        return text
    if not text.isdecimal() or len(text) > 20:
        return Unknown(Reason.MALFORMED, path, printable(text, 40))
    return int(text)


def _octets(host: Host, path: str) -> Maybe[int]:
    units = _number(host, path)
    return units if isinstance(units, Unknown) else units * _OCTETS_A_UNIT


def read(host: Host, node: Node) -> Reading:
    """One reading of the devices that the node had when it was probed."""
    ports: dict[tuple[str, int], PortCounters] = {}
    states: dict[tuple[str, int], Maybe[str]] = {}
    for device in node.rdma.devices if isinstance(node.rdma, RdmaFacts) else ():
        for port in device.ports:
            path = f"{device.sysfs_path}/ports/{port.number}"
            state = host.read(f"{path}/state", 4096)
            if not isinstance(state, Unknown):
                word = parse_numbered(state)
                state = Unknown(Reason.MALFORMED, f"{path}/state") if word is None else word
            states[device.name, port.number] = state
            sent = _octets(host, f"{path}/counters/port_xmit_data")
            received = _octets(host, f"{path}/counters/port_rcv_data")
            ports[device.name, port.number] = PortCounters(host.monotonic(), sent, received)
    refcnts: dict[str, Maybe[int]] = {}
    if isinstance(node.modules, ModuleFacts):
        for name, module in node.modules.modules.items():
            if module.state is ModuleState.LIVE:
                refcnts[name] = _number(host, f"/sys/module/{name}/refcnt")
    live = host.nvml_live()
    return Reading(
        at=host.monotonic(),
        ports=ports,
        gpus=live if isinstance(live, Unknown) else {gpu.bdf: gpu for gpu in live},
        peermem=read_peermem(host),
        module_refcnts=refcnts,
        port_states=states,
    )


def _rate(before: Maybe[int], after: Maybe[int], seconds: float) -> Maybe[float]:
    if isinstance(before, Unknown):
        return before
    if isinstance(after, Unknown):
        return after
    if seconds <= 0:
        return Unknown(Reason.NOT_THERE, "", "no time between two readings")
    if after < before:
        return Unknown(Reason.MALFORMED, "", "the counter went back: reset, or 32 bits and wrapped")
    return (after - before) * 8 / seconds / 1e9


def port_rates(before: Reading, after: Reading) -> dict[tuple[str, int], PortRate]:
    """Rates between two readings; a counter that went back or was not read is unknown, not zero."""
    rates: dict[tuple[str, int], PortRate] = {}
    for port, new in after.ports.items():
        old = before.ports.get(port)
        if old is not None:
            seconds = new.at - old.at
            rates[port] = PortRate(
                _rate(old.sent_bytes, new.sent_bytes, seconds),
                _rate(old.received_bytes, new.received_bytes, seconds),
            )
    return rates
