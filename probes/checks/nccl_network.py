"""NCCL variables that choose the network: which transport, which NICs, which GID."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from probes.checks.finding import Area, Evidence, Outcome, Severity, unsure
from probes.checks.jobs import (
    Settings,
    gpus_of,
    jobs_of,
    settle,
    values_of,
    without_variable,
)
from probes.checks.port_use import same_cause_as_down
from probes.checks.references import NCCL_VARIABLES
from probes.checks.wording import SHOWN
from probes.examination import Examination
from probes.nccl_paths import ORDER
from probes.nccl_settings import HcaList, parse_hca_list, parse_number
from probes.rdma import RdmaDevice, RdmaPort
from probes.topology import Topology
from probes.unknown import Unknown

AREA = Area("nccl")
HCA = "NCCL_IB_HCA"
_EXACT = "exact names begin with “=”: NCCL_IB_HCA==mlx5_0,mlx5_1"


@AREA.check(
    "nccl-ib-disabled",
    Severity.CRITICAL,
    "NCCL_IB_DISABLE=1: a job uses TCP",
    NCCL_VARIABLES + "#nccl-ib-disable",
)
def nccl_ib_disabled(examination: Examination) -> Outcome:
    """NCCL_IB_DISABLE."""
    name = "NCCL_IB_DISABLE"
    return settle(
        jobs_of(examination),
        values_of(examination, name, lambda _, value: "off" if parse_number(value) else None),
        "NCCL does without RDMA and so without GPUDirect RDMA; a job on this node alone does not feel it",
        fix=without_variable(name),
    )


@AREA.check(
    "nccl-net-socket", Severity.CRITICAL, "NCCL_NET=Socket: a job uses TCP", NCCL_VARIABLES + "#nccl-net"
)
def nccl_net_socket(examination: Examination) -> Outcome:
    """NCCL_NET, which NCCL compares without regard to case."""
    name = "NCCL_NET"
    return settle(
        jobs_of(examination),
        values_of(examination, name, lambda _, value: "TCP" if value.lower() == "socket" else None),
        "NCCL does without RDMA and so without GPUDirect RDMA; a job on this node alone does not feel it",
        fix=without_variable(name, "NCCL_NET=IB makes NCCL fail rather than fall back to TCP"),
    )


def all_ports(examination: Examination) -> tuple[tuple[RdmaDevice, RdmaPort], ...]:
    """Every RDMA port of the node, with its device."""
    rdma = examination.node.rdma
    devices = () if isinstance(rdma, Unknown) else rdma.devices
    return tuple((device, port) for device in devices for port in device.ports)


def _lists(examination: Examination) -> Iterator[tuple[Settings, HcaList]]:
    """Every NCCL_IB_HCA that is set to something."""
    for settings in jobs_of(examination).settings:
        value = settings.get(HCA)
        if value:
            yield settings, parse_hca_list(value)


def taken_ports(examination: Examination, hcas: HcaList) -> list[tuple[RdmaDevice, RdmaPort]]:
    """The ports that NCCL takes by a list."""
    return [(one, port) for one, port in all_ports(examination) if hcas.takes(one.name, port.number)]


def _settle_lists(examination: Examination, evidence: list[Evidence], cause: str, fix: str) -> Outcome:
    """As `settle`; unknown where a list cannot be held against the NICs."""
    jobs = jobs_of(examination)
    rdma = examination.node.rdma
    if isinstance(rdma, Unknown) and any(True for _ in _lists(examination)):
        return unsure(f"the RDMA devices: {rdma}")
    return settle(jobs, evidence, cause, fix=without_variable(HCA, fix))


@AREA.check(
    "nccl-ib-hca-mismatch",
    Severity.CRITICAL,
    "NCCL_IB_HCA names no NIC of this node: a job finds no device and uses TCP",
    NCCL_VARIABLES + "#nccl-ib-hca",
)
def nccl_ib_hca_mismatch(examination: Examination) -> Outcome:
    """Lists that take no port at all."""
    names = ", ".join(dict.fromkeys(device.name for device, _ in all_ports(examination)))
    evidence = [
        settings.evidence(HCA, "takes no port")
        for settings, hcas in _lists(examination)
        if not taken_ports(examination, hcas)
    ]
    return _settle_lists(
        examination,
        evidence,
        f"this node has {names[:300] or 'no RDMA device'}; names change when a card is moved, and a blank is"
        " part of a name",
        f"or name NICs that are there; {_EXACT}",
    )


@AREA.check(
    "nccl-ib-hca-entry-without-device",
    Severity.WARNING,
    "NCCL_IB_HCA names NICs that this node does not have",
    NCCL_VARIABLES + "#nccl-ib-hca",
)
def nccl_ib_hca_entry_without_device(examination: Examination) -> Outcome:
    """Entries of lists that match no port, where others do."""
    ports = all_ports(examination)
    evidence = []
    for settings, hcas in _lists(examination):
        vain = [
            name if number is None else f"{name}:{number}"
            for name, number in hcas.entries
            if not any(hcas.names((name, number), device.name, port.number) for device, port in ports)
        ]
        if vain and taken_ports(examination, hcas):
            evidence.append(settings.evidence(HCA, f"no such port: {', '.join(vain[:SHOWN])}"))
    return _settle_lists(
        examination,
        evidence,
        "NCCL passes over these entries without a word, and the job has fewer rails than was meant",
        f"or correct the names; {_EXACT}",
    )


@AREA.check(
    "nccl-ib-hca-prefix",
    Severity.WARNING,
    "NCCL_IB_HCA takes more NICs than it names: names count as prefixes",
    NCCL_VARIABLES + "#nccl-ib-hca",
)
def nccl_ib_hca_prefix(examination: Examination) -> Outcome:
    """Entries that are the whole name of one NIC and the beginning of others: mlx5_1 and mlx5_10."""
    names = list(dict.fromkeys(device.name for device, _ in all_ports(examination)))
    evidence = []
    for settings, hcas in _lists(examination):
        if hcas.exact:
            continue
        listed = {name for name, _ in hcas.entries}
        more = [
            f"{entry} also means {name}"
            for entry in listed.intersection(names)
            for name in names
            if name.startswith(entry) and name not in listed
        ]
        if more:
            evidence.append(settings.evidence(HCA, ", ".join(sorted(more)[:SHOWN])))
    return _settle_lists(
        examination,
        evidence,
        "without “=” in front, each name of the list stands for every NIC whose name begins so",
        f"or use exact names; {_EXACT} (“^=” to exclude)",
    )


@AREA.check(
    "nccl-ib-hca-port-down",
    Severity.WARNING,
    "NCCL_IB_HCA names a port that is not ACTIVE",
    NCCL_VARIABLES + "#nccl-ib-hca",
)
def nccl_ib_hca_port_down(examination: Examination) -> Outcome:
    """Ports that a list names and that are not ACTIVE."""
    evidence = []
    down: set[str] = set()
    for settings, hcas in _lists(examination):
        if hcas.excludes:
            continue
        for device, port in taken_ports(examination, hcas):
            if not isinstance(port.state, Unknown) and port.state != "ACTIVE":
                down.add(device.name)
                evidence.append(settings.evidence(HCA, f"{device.name}:{port.number} is {port.state}"))
    outcome = _settle_lists(
        examination,
        evidence,
        "NCCL uses ACTIVE ports only: the job does without this one and has fewer rails than was meant",
        "or bring the port up",
    )
    return replace(outcome, part_of=same_cause_as_down(examination, down))


@AREA.check(
    "nccl-ib-hca-mixed-layers",
    Severity.WARNING,
    "NCCL_IB_HCA takes InfiniBand and Ethernet ports together",
    NCCL_VARIABLES + "#nccl-ib-hca",
)
def nccl_ib_hca_mixed_layers(examination: Examination) -> Outcome:
    """ACTIVE ports of both link layers in one list."""
    evidence = []
    for settings, hcas in _lists(examination):
        layers: dict[str, str] = {}
        for device, port in taken_ports(examination, hcas):
            if port.state == "ACTIVE" and not isinstance(port.link_layer, Unknown):
                layers.setdefault(port.link_layer, device.name)
        if len(layers) > 1:
            told = ", ".join(f"{name} is {layer}" for layer, name in layers.items())
            evidence.append(settings.evidence(HCA, told))
    return _settle_lists(
        examination,
        evidence,
        "a NIC of one kind cannot talk to one of the other; NCCL may pair them, and the connection fails",
        f"or name the NICs of one network only; {_EXACT}",
    )


@AREA.check(
    "nccl-ib-hca-mixed-rates",
    Severity.NOTE,
    "NCCL_IB_HCA takes ports of different rates: a storage or management NIC may be among them",
    NCCL_VARIABLES + "#nccl-ib-hca",
)
def nccl_ib_hca_mixed_rates(examination: Examination) -> Outcome:
    """ACTIVE ports of different rates in one list."""
    evidence = []
    for settings, hcas in _lists(examination):
        rates: dict[float, str] = {}
        for device, port in taken_ports(examination, hcas):
            if port.state == "ACTIVE" and not isinstance(port.rate_gbps, Unknown):
                rates.setdefault(port.rate_gbps, device.name)
        if len(rates) > 1:
            told = ", ".join(f"{name} {rate:g} Gb/s" for rate, name in sorted(rates.items()))
            evidence.append(settings.evidence(HCA, told))
    return _settle_lists(
        examination,
        evidence,
        "a collective waits for its slowest rail",
        f"or name the fast NICs only; {_EXACT}",
    )


def _rank(topology: Topology, gpu: str, nic: str) -> int | None:
    path = topology.paths.get((gpu, nic))
    word = None if path is None else path.nccl_pcie
    return None if word is None or isinstance(word, Unknown) else ORDER[word]


@AREA.check(
    "nccl-ib-hca-leaves-out-nearest",
    Severity.WARNING,
    "NCCL_IB_HCA leaves out the NICs nearest to a GPU",
    NCCL_VARIABLES + "#nccl-ib-hca",
)
def nccl_ib_hca_leaves_out_nearest(examination: Examination) -> Outcome:
    """GPUs of the job whose nearest NIC with an ACTIVE port is not in the list, though farther ones are."""
    topology = examination.topology
    active = {device.name for device, port in all_ports(examination) if port.state == "ACTIVE"}
    evidence = []
    for settings, hcas in _lists(examination):
        chosen = {device.name for device, _ in taken_ports(examination, hcas)} & active
        for gpu in topology.gpus:
            if not chosen or gpu.id not in gpus_of(examination, settings.process):
                continue
            ranks = {nic: _rank(topology, gpu.id, nic) for nic in active}
            known_ranks = {nic: rank for nic, rank in ranks.items() if rank is not None}
            near = min(known_ranks, key=lambda nic: (known_ranks[nic], nic), default=None)
            best = min((known_ranks[nic] for nic in chosen if nic in known_ranks), default=None)
            if near is not None and best is not None and best > known_ranks[near]:
                evidence.append(settings.evidence(HCA, f"{gpu.label} is nearest to {near}"))
    return _settle_lists(
        examination,
        evidence,
        "this GPU goes by a NIC that is farther away, or does without GPUDirect RDMA",
        "or add the NIC that is shown",
    )
