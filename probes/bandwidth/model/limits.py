"""What a test between a NIC and a GPU, or the host's memory, can reach at most, and which part limits it.

Each part is a bound of what it carries one way, headers taken off:
- The port: its rate, less the headers of each packet of one MTU. RoCE v2: preamble 8, Ethernet 14, IPv4 20,
  UDP 8, BTH 12, ICRC 4, FCS 4, gap 12 bytes (IEEE 802.3; InfiniBand specification, annex A17); InfiniBand:
  LRH 8, BTH 12, ICRC 4, VCRC 2 (its volume 1).
- A PCIe link: speed times width, less the encoding (probes/facts/pci/link_speed.py) and 24 bytes of each
  packet of MaxPayload (Neugebauer et al., "Understanding PCIe performance for end host networking",
  SIGCOMM 2018).
  Acknowledgements and flow control, 8 to 10 % in that paper's estimate, are not taken off: a bound is what
  can never be passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.pci.functions import PciFunction, PciKind
from probes.facts.pci.link_speed import link_gbps, now_of, words
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts, RdmaPort
from probes.queries.finding import Evidence
from probes.queries.pcie_paths import DEVICES, config_of, functions_of, is_grace
from probes.snapshot.examination import Examination

_ROCE_HEADER_BYTES = 8 + 14 + 20 + 8 + 12 + 4 + 4 + 12
_INFINIBAND_HEADER_BYTES = 8 + 12 + 4 + 2
_LARGEST_MTU = 4096
_TLP_HEADER_BYTES = 24
# The most that server root ports and ConnectX offer; smaller ones only lower the bound.
_LARGEST_PAYLOAD = 512
_BOTH_WAYS = "one port is both ends: its PCIe link carries what is sent and what is received"


@dataclass(frozen=True)
class Bound:
    """One part of the path and what it carries one way."""

    name: str  # "port 1 of mlx5_0", "PCIe link of GPU0"
    nominal_gbps: Maybe[float]  # what its label says: 400
    gbps: Maybe[float]  # what is left of it for data: 392
    why: str  # "4X NDR, packets of 4096 bytes"
    evidence: tuple[Evidence, ...]
    is_pcie: bool = False
    part: str = ""  # one of two bounds with the same part is the other: two functions of a card have one link


@dataclass(frozen=True)
class Limit:
    """Every bound of one path, and the least."""

    bounds: tuple[Bound, ...]
    notes: tuple[str, ...] = ()  # what is known to slow it down, without a figure
    is_loopback: bool = False  # one port is both ends: each link is full both ways at once

    @property
    def least(self) -> Bound | None:
        """The bound that limits; None where no figure is known."""
        known_bounds = [
            (one.gbps, n) for n, one in enumerate(self.bounds) if not isinstance(one.gbps, Unknown)
        ]
        return self.bounds[min(known_bounds)[1]] if known_bounds else None

    @property
    def unknown(self) -> tuple[str, ...]:
        """The parts of which nothing is known: one of them may be the least."""
        return tuple(one.name for one in self.bounds if isinstance(one.gbps, Unknown))

    @property
    def gbps(self) -> Maybe[float]:
        """What the test can reach at most, one way."""
        least = self.least
        if least is None:
            return Unknown(Reason.NOT_THERE, "", "no part of the path reports what it carries")
        return least.gbps


def limit_of_pair(
    examination: Examination, gpu: str, nic: str, port: int = 1, is_loopback: bool = False
) -> Limit:
    """GPU memory (a BDF) over a NIC (an RDMA device)."""
    functions = functions_of(examination)
    path = examination.topology.paths.get((gpu, nic))
    bounds = [_of_port(examination, nic, port, is_loopback)]
    notes = [_BOTH_WAYS] if is_loopback else []
    if path is None or not path.hops:
        lost = Unknown(Reason.NOT_THERE, DEVICES, "the path between them is unknown")
        return Limit((*bounds, Bound("the path between", lost, lost, "", ())), tuple(notes), is_loopback)
    by_cpu = _by_cpu_link(examination, gpu)
    pairs = [
        (functions.get(before.id), functions.get(hop.id))
        for before, hop in zip(path.hops, path.hops[1:], strict=False)
        if hop.link == "PCIe"
    ]
    ends = [
        (lower, upper) for one in pairs if (lower := _lower(*one)) and (upper := _upper(*one)) is not lower
    ]
    for lower, upper in ends:
        if by_cpu and _leads_to(lower, gpu, functions):
            continue
        bounds.append(_of_link(examination, lower, upper, _label(examination, lower, nic)))
    if by_cpu:
        notes.append(
            "the GPU is attached to its CPU by chip-to-chip links: its own PCIe link is not on the path"
        )
    elif any(hop.kind == "host bridge" for hop in path.hops):
        notes.append(
            "the path leads through the CPU, which forwards peer-to-peer traffic slower than its links"
        )
    if any(hop.link == "SMP" for hop in path.hops):
        notes.append("the path leads between sockets")
    return Limit(tuple(bounds), tuple(notes), is_loopback)


def limit_of_host_memory(
    examination: Examination, nic: str, port: int = 1, is_loopback: bool = False
) -> Limit:
    """Host memory over a NIC."""
    device = _device(examination, nic)
    bounds = [_of_port(examination, nic, port, is_loopback)]
    if device is not None and not isinstance(device.bdf, Unknown):
        for lower, upper in _links_above(examination, device.bdf):
            bounds.append(_of_link(examination, lower, upper, _label(examination, lower, nic)))
    return Limit(tuple(bounds), (_BOTH_WAYS,) if is_loopback else (), is_loopback)


def limit_of_gpu_copies(examination: Examination, gpu: str) -> Limit:
    """Copies between the host and a GPU: what gdrcopy and nvbandwidth measure; no NIC."""
    if _by_cpu_link(examination, gpu):
        return Limit((), ("the GPU is attached to its CPU by chip-to-chip links, whose rate is not read",))
    links = _links_above(examination, gpu)
    return Limit(tuple(_of_link(examination, *one, _label(examination, one[0], "")) for one in links))


def limit_of_two_ends(near: Limit, far: Limit, is_bidirectional: bool) -> Limit:
    """Of a test between two NICs of one node, or of two: what is on the way of either end.

    In both directions a link of both ends carries what each sends and what each receives, and so half of it
    is left for each direction.
    """
    shared = {one.part for one in near.bounds} & {one.part for one in far.bounds} - {""}
    bounds = list({one.part or one.name: one for one in (*near.bounds, *far.bounds)}.values())
    if is_bidirectional:
        bounds = [_halved(one) if one.part in shared else one for one in bounds]
    return Limit(tuple(bounds), tuple(dict.fromkeys((*near.notes, *far.notes))))


def _halved(bound: Bound) -> Bound:
    nominal, gbps = (one if isinstance(one, Unknown) else one / 2 for one in (bound.nominal_gbps, bound.gbps))
    why = f"half of it each way, because both ends share it: {bound.why}"
    return replace(bound, nominal_gbps=nominal, gbps=gbps, why=why)


def payload_share(payload_bytes: int) -> float:
    """The share of a PCIe link's packets that is data."""
    return payload_bytes / (payload_bytes + _TLP_HEADER_BYTES)


def _of_port(examination: Examination, nic: str, number: int, is_loopback: bool) -> Bound:
    device = _device(examination, nic)
    port = None if device is None else next((one for one in device.ports if one.number == number), None)
    name = f"port {number} of {nic}"
    if device is None or port is None:
        lost = Unknown(Reason.NOT_THERE, nic, "there is no such port")
        return Bound(name, lost, lost, "", ())
    source = f"{device.sysfs_path}/ports/{number}/rate"
    rate, text = port.rate_gbps, known(port.rate_text, "")
    if isinstance(rate, Unknown):
        return Bound(name, rate, rate, "", (Evidence(source, str(rate)),))
    evidence = (Evidence(source, f"{rate:g} Gb/sec ({text})"),)
    if is_loopback:
        return Bound(name, rate, rate, f"{text}; in loopback the NIC reaches about its port's rate", evidence)
    share, mtu, seen = _packets(examination, nic, port)
    return Bound(name, rate, rate * share, f"{text}, packets of {mtu} bytes of data", (*evidence, *seen))


def _packets(examination: Examination, nic: str, port: RdmaPort) -> tuple[float, int, tuple[Evidence, ...]]:
    """The share of the wire that is data, and the MTU; the largest there is where none is told."""
    if port.link_layer != "Ethernet":
        return _LARGEST_MTU / (_LARGEST_MTU + _INFINIBAND_HEADER_BYTES), _LARGEST_MTU, ()
    facts = examination.port_health
    health = None if isinstance(facts, Unknown) else facts.ports.get((nic, port.number))
    mtu = Unknown(Reason.NOT_THERE) if health is None else health.roce_mtu_bytes
    if isinstance(mtu, Unknown):
        return _LARGEST_MTU / (_LARGEST_MTU + _ROCE_HEADER_BYTES), _LARGEST_MTU, ()
    netdev = Evidence(f"/sys/class/net/{known(port.netdev, '*')}/mtu", f"RDMA uses {mtu} of it")
    return mtu / (mtu + _ROCE_HEADER_BYTES), mtu, (netdev,)


def _of_link(examination: Examination, lower: PciFunction, upper: PciFunction | None, name: str) -> Bound:
    """A GPU's link at its best speed, for it slows down when idle; every other as it is now."""
    # A virtual function's link is its physical function's.
    lower = functions_of(examination).get(lower.physical_function or "", lower)
    idles = lower.kind is PciKind.GPU
    speed, width = now_of(lower.link, upper.link if upper else None, idles)
    source, files = f"{DEVICES}/{lower.bdf}", f"{'max' if idles else 'current'}_link_speed,current_link_width"
    part = lower.bdf.rpartition(".")[0]
    for one in (speed, width):
        if isinstance(one, Unknown):
            return Bound(name, one, one, "", (Evidence(f"{source}/{{{files}}}", str(one)),), True, part)
    lanes, rate = int(known(width, 0)), known(speed, 0.0)
    raw = link_gbps(rate, lanes)
    payload, told = _payload(examination, lower, upper)
    seen = (Evidence(f"{source}/{{{files}}}", words(rate, lanes)), *told)
    taken = "" if told else ", the largest there is, because MaxPayload is unknown"
    why = f"{words(rate, lanes)}, packets of {payload} bytes of data{taken}"
    return Bound(name, raw, raw * payload_share(payload), why, seen, True, part)


def _payload(
    examination: Examination, lower: PciFunction, upper: PciFunction | None
) -> tuple[int, tuple[Evidence, ...]]:
    """The smaller MaxPayload of a link's ends; the largest there is where none is told (root reads it)."""
    told: list[tuple[int, Evidence]] = []
    for one in (lower, upper):
        space = None if one is None else config_of(examination, one.bdf)
        if space is None or isinstance(space, Unknown) or isinstance(space.express, Unknown):
            continue
        payload = space.express.max_payload_bytes
        if not isinstance(payload, Unknown):
            told.append((payload, Evidence(space.source, f"MaxPayload {payload} bytes")))
    if not told:
        return _LARGEST_PAYLOAD, ()
    payload, evidence = min(told, key=lambda one: one[0])
    return payload, (evidence,)


def _links_above(examination: Examination, bdf: str) -> list[tuple[PciFunction, PciFunction | None]]:
    """(lower end, upper end) of every link from a function up to its root port."""
    functions = functions_of(examination)
    function = functions.get(bdf)
    chain = () if function is None else function.chain
    links: list[tuple[PciFunction, PciFunction | None]] = []
    for place in range(1, len(chain)):
        lower, upper = functions.get(chain[place]), functions.get(chain[place - 1])
        # Between a switch's upstream port and its downstream ports there is no link.
        if lower is not None and not (lower.kind is PciKind.BRIDGE and place % 2 == 0):
            links.append((lower, upper))
    return links


def _lower(a: PciFunction | None, b: PciFunction | None) -> PciFunction | None:
    return max((one for one in (a, b) if one), key=lambda one: len(one.chain), default=None)


def _upper(a: PciFunction | None, b: PciFunction | None) -> PciFunction | None:
    return (
        min((one for one in (a, b) if one), key=lambda one: len(one.chain), default=None) if a and b else None
    )


def _leads_to(lower: PciFunction, bdf: str, functions: Mapping[str, PciFunction]) -> bool:
    function = functions.get(bdf)
    return function is not None and lower.bdf in function.chain


def _by_cpu_link(examination: Examination, gpu: str) -> bool:
    facts = examination.node.gpus
    cards = () if isinstance(facts, Unknown) else facts.gpus
    card = next((one for one in cards if one.bdf == gpu), None)
    return is_grace(examination) if card is None else bool(known(card.c2c_links, 0)) or is_grace(examination)


def _device(examination: Examination, nic: str) -> RdmaDevice | None:
    rdma = examination.node.rdma
    devices: Iterable[RdmaDevice] = rdma.devices if isinstance(rdma, RdmaFacts) else ()
    return next((one for one in devices if one.name == nic), None)


def _label(examination: Examination, lower: PciFunction, nic: str) -> str:
    if lower.kind is PciKind.NIC:
        return f"PCIe link of {nic or lower.bdf}"
    gpus = {end.id: end.label for end in examination.topology.gpus}
    return f"PCIe link of {gpus.get(lower.bdf, f'the switch {lower.bdf}')}"
