"""What a test between a NIC and GPU or host memory can reach at most, and which part limits it.

Each part has a bound, its bandwidth in one direction without headers:
- The port: its rate, less the headers of each packet of one MTU. RoCE v2: preamble 8, Ethernet 14, IPv4 20,
  UDP 8, BTH 12, ICRC 4, FCS 4, gap 12 bytes (IEEE 802.3; InfiniBand specification, annex A17); InfiniBand:
  LRH 8, BTH 12, ICRC 4, VCRC 2 (its volume 1).
- A PCIe link: speed times width, less the encoding (probes/facts/pci/functions.py) and 24 bytes of each
  packet of MaxPayload (Neugebauer et al., "Understanding PCIe performance for end host networking",
  SIGCOMM 2018).
  Acknowledgements and flow control, 8 to 10 % in that paper's estimate, are not subtracted: a bound is what
  no test can exceed.
"""

from __future__ import annotations

from dataclasses import replace

from probes.base.evidence import Evidence
from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.pci.functions import DEVICES, PciFunction, PciKind, link_gbps, now_of, words
from probes.facts.rdma.devices import RdmaPort
from probes.queries.pcie_paths import config_of, functions_of, is_grace
from probes.snapshot.examination import Examination
from probes.topology.nccl_paths import NEAR

_ROCE_HEADER_BYTES = 8 + 14 + 20 + 8 + 12 + 4 + 4 + 12
_INFINIBAND_HEADER_BYTES = 8 + 12 + 4 + 2
_LARGEST_MTU = 4096
_TLP_HEADER_BYTES = 24
# The largest that server root ports and ConnectX support; smaller ones only lower the bound.
_LARGEST_PAYLOAD = 512
_OVER_CPU_LINK = "the GPU uses its chip-to-chip links to the CPU, not its own PCIe link"
_LOOPBACK_NOTE = "in loopback the NIC's PCIe link carries both directions"


@frozen
class Bound:
    """One part of the path, and its bandwidth in one direction."""

    name: str  # "port 1 of mlx5_0", "PCIe link of GPU0"
    nominal_gbps: Maybe[float]  # by its label: 400
    gbps: Maybe[float]  # without headers: 392
    why: str  # "4X NDR, packets of 4096 bytes"
    evidence: tuple[Evidence, ...]
    is_pcie: bool = False
    part: str = ""  # bounds with the same part are the same link: two functions of a card share one


@frozen
class Limit:
    """Every bound of one path."""

    bounds: tuple[Bound, ...]
    notes: tuple[str, ...] = ()  # known causes of less bandwidth, without a figure
    is_loopback: bool = False  # one port is both ends: each link is full in both directions at once

    @property
    def least(self) -> Bound | None:
        """The lowest bound; None if no figure is known."""
        known_bounds = [
            (bound.gbps, n) for n, bound in enumerate(self.bounds) if not isinstance(bound.gbps, Unknown)
        ]
        return self.bounds[min(known_bounds)[1]] if known_bounds else None

    @property
    def unknown(self) -> tuple[str, ...]:
        """The parts whose bandwidth is unknown: one of them may be the lowest."""
        return tuple(bound.name for bound in self.bounds if isinstance(bound.gbps, Unknown))

    @property
    def gbps(self) -> Maybe[float]:
        """What the test can reach at most in one direction."""
        if (least := self.least) is None:
            return Unknown(Reason.NOT_THERE, "", "no part of the path reports its bandwidth")
        return least.gbps


def limit_of_pair(
    examination: Examination,
    gpu: str,
    nic: str,
    port: int = 1,
    is_loopback: bool = False,
    queue_pairs: int = 1,
    data_direct: bool = True,
) -> Limit:
    """Return the limit for GPU memory (a BDF) over a NIC (an RDMA device).

    `data_direct`: the program uses the NIC's Data Direct function if there is one, as NCCL does; without it
    the data goes through the CPU, to which the GPU is attached by C2C.
    """
    functions = functions_of(examination)
    has_direct = any(end.id == nic and end.data_direct for end in examination.topology.nics)
    if has_direct and not data_direct:
        limit = limit_of_host_memory(examination, nic, port, is_loopback, queue_pairs)
        return replace(limit, notes=(*limit.notes, _OVER_CPU_LINK))
    path = examination.topology.paths.get((gpu, nic))
    bounds = [_of_port(examination, nic, port, is_loopback, queue_pairs)]
    notes = [_LOOPBACK_NOTE] if is_loopback else []
    if path is None or not path.hops:
        unknown = Unknown(Reason.NOT_THERE, DEVICES, "the path between them is unknown")
        bounds.append(Bound("the path between", unknown, unknown, "", ()))
        return Limit(tuple(bounds), tuple(notes), is_loopback)
    is_near = path.nccl_pcie in NEAR
    by_cpu = _by_cpu_link(examination, gpu) and not (has_direct and is_near)
    if has_direct and is_near:
        notes.append(f"{nic} reaches the GPU through its Data Direct function, not through the CPU")
    above_gpu = functions[gpu].chain if by_cpu and gpu in functions else ()
    for before, hop in zip(path.hops, path.hops[1:], strict=False):
        ends = [functions[end.id] for end in (before, hop) if end.id in functions and hop.link == "PCIe"]
        lower = max(ends, key=lambda end: len(end.chain), default=None)
        upper = min(ends, key=lambda end: len(end.chain)) if len(ends) == 2 else None
        if lower is not None and upper is not lower and lower.bdf not in above_gpu:
            bounds.append(_of_link(examination, lower, upper, _label(examination, lower, nic)))
    if by_cpu:
        notes.append(_OVER_CPU_LINK)
    elif not is_near and path.crosses_host_bridge:
        notes.append(
            "the path crosses the CPU, which forwards peer-to-peer traffic below the speed of its links"
        )
    if any(hop.link == "SMP" for hop in path.hops):
        notes.append("the path crosses from one CPU socket to another")
    return Limit(tuple(bounds), tuple(notes), is_loopback)


def limit_of_host_memory(
    examination: Examination, nic: str, port: int = 1, is_loopback: bool = False, queue_pairs: int = 1
) -> Limit:
    """Return the limit for host memory over a NIC."""
    device = examination.topology.devices.get(nic)
    bounds = [_of_port(examination, nic, port, is_loopback, queue_pairs)]
    if device is not None and not isinstance(device.bdf, Unknown):
        for lower, upper in _links_above(examination, device.bdf):
            bounds.append(_of_link(examination, lower, upper, _label(examination, lower, nic)))
    return Limit(tuple(bounds), (_LOOPBACK_NOTE,) if is_loopback else (), is_loopback)


def limit_of_gpu_copies(examination: Examination, gpu: str) -> Limit:
    """Return the limit for copies between the host and a GPU; no NIC is involved."""
    if _by_cpu_link(examination, gpu):
        return Limit((), ("the GPU is attached to its CPU by chip-to-chip links, whose rate is unknown",))
    links = _links_above(examination, gpu)
    return Limit(tuple(_of_link(examination, *link, _label(examination, link[0], "")) for link in links))


def limit_of_two_ends(near: Limit, far: Limit, is_bidirectional: bool) -> Limit:
    """Return the limit of a test between two NICs of one node or two: all parts of both ends' paths.

    If the test is bidirectional, a link that both ends share carries everything twice, so each direction gets
    half of it.
    """
    shared = {bound.part for bound in near.bounds} & {bound.part for bound in far.bounds} - {""}
    bounds = list({bound.part or bound.name: bound for bound in (*near.bounds, *far.bounds)}.values())
    if is_bidirectional:
        bounds = [_halved(bound) if bound.part in shared else bound for bound in bounds]
    return Limit(tuple(bounds), tuple(dict.fromkeys((*near.notes, *far.notes))))


def _halved(bound: Bound) -> Bound:
    both = (bound.nominal_gbps, bound.gbps)
    nominal, gbps = (value if isinstance(value, Unknown) else value / 2 for value in both)
    why = f"half of it in each direction, because both ends share it: {bound.why}"
    return replace(bound, nominal_gbps=nominal, gbps=gbps, why=why)


def payload_share(payload_bytes: int) -> float:
    """Return the share of a PCIe link's packets that is data."""
    return payload_bytes / (payload_bytes + _TLP_HEADER_BYTES)


def packet_share(is_ethernet: bool, mtu: int = _LARGEST_MTU) -> float:
    """Return the share of a port's rate that is data, with this many bytes of data per packet."""
    headers = _ROCE_HEADER_BYTES if is_ethernet else _INFINIBAND_HEADER_BYTES
    return mtu / (mtu + headers)


def name_of_port(nic: str, number: int) -> str:
    """Return the name of a port's bound."""
    return f"port {number} of {nic}"


def _of_port(examination: Examination, nic: str, number: int, is_loopback: bool, queue_pairs: int) -> Bound:
    device = examination.topology.devices.get(nic)
    ports = () if device is None else device.ports
    port = next((candidate for candidate in ports if candidate.number == number), None)
    name = name_of_port(nic, number)
    if device is None or port is None:
        unknown = Unknown(Reason.NOT_THERE, nic, "no such port")
        return Bound(name, unknown, unknown, "", ())
    source = f"{device.sysfs_path}/ports/{number}/rate"
    rate, text = port.rate_gbps, known(port.rate_text, "")
    if isinstance(rate, Unknown):
        return Bound(name, rate, rate, "", (Evidence(source, str(rate)),))
    evidence = (Evidence(source, f"{rate:g} Gb/sec ({text})"),)
    if port.bond is not None and port.bond.ports_at_once > queue_pairs:
        # A queue pair stays on one port, by affinity or hash (mlx5: devlink parameter lag_port_select_mode).
        together = port.bond.ports_at_once
        evidence = (Evidence(f"/sys/class/net/{port.bond.netdev}/bonding/slaves", f"{together} ports"),)
        rate = rate / together * queue_pairs
        use = "1 queue pair uses 1" if queue_pairs == 1 else f"{queue_pairs} queue pairs use {queue_pairs}"
        text = f"{text}, {use} of {together} ports on {port.bond.netdev}: test with {together} or more"
    if is_loopback:
        return Bound(name, rate, rate, text, evidence)
    share, mtu, seen = _packets(examination, nic, port)
    return Bound(name, rate, rate * share, f"{text}, {mtu} bytes of data per packet", (*evidence, *seen))


def _packets(examination: Examination, nic: str, port: RdmaPort) -> tuple[float, int, tuple[Evidence, ...]]:
    """Return the share of the wire that is data, and the MTU; the largest MTU if it is unknown."""
    if port.link_layer != "Ethernet":
        return packet_share(False), _LARGEST_MTU, ()
    facts = examination.port_health
    health = None if isinstance(facts, Unknown) else facts.ports.get((nic, port.number))
    mtu = Unknown(Reason.NOT_THERE) if health is None else health.roce_mtu_bytes
    if isinstance(mtu, Unknown):
        return packet_share(True), _LARGEST_MTU, ()
    netdev = Evidence(f"/sys/class/net/{known(port.netdev, '*')}/mtu", f"RDMA MTU {mtu}")
    return packet_share(True, mtu), mtu, (netdev,)


def _of_link(examination: Examination, lower: PciFunction, upper: PciFunction | None, name: str) -> Bound:
    """Return the bound of a link as it is now; a GPU's at its best speed, because it slows down when idle."""
    # A virtual function's link is its physical function's.
    lower = functions_of(examination).get(lower.physical_function or "", lower)
    idles = lower.kind is PciKind.GPU
    speed, width = now_of(lower.link, upper.link if upper else None, idles)
    source, files = f"{DEVICES}/{lower.bdf}", f"{'max' if idles else 'current'}_link_speed,current_link_width"
    part = lower.bdf.rpartition(".")[0]
    for value in (speed, width):
        if isinstance(value, Unknown):
            return Bound(name, value, value, "", (Evidence(f"{source}/{{{files}}}", str(value)),), True, part)
    lanes, rate = int(known(width, 0)), known(speed, 0.0)
    raw = link_gbps(rate, lanes)
    payload, read = _payload(examination, lower, upper)
    seen = (Evidence(f"{source}/{{{files}}}", words(rate, lanes)), *read)
    assumed = "" if read else " (the largest possible, because MaxPayload is unknown)"
    why = f"{words(rate, lanes)}, {payload} bytes of data per packet{assumed}"
    return Bound(name, raw, raw * payload_share(payload), why, seen, True, part)


def _payload(
    examination: Examination, lower: PciFunction, upper: PciFunction | None
) -> tuple[int, tuple[Evidence, ...]]:
    """Return the smaller MaxPayload of a link's ends; the largest possible if unknown (needs root)."""
    found: list[tuple[int, Evidence]] = []
    for end in (lower, upper):
        space = None if end is None else config_of(examination, end.bdf)
        if space is None or isinstance(space, Unknown) or isinstance(space.express, Unknown):
            continue
        payload = space.express.max_payload_bytes
        if not isinstance(payload, Unknown):
            found.append((payload, Evidence(space.source, f"MaxPayload {payload} bytes")))
    if not found:
        return _LARGEST_PAYLOAD, ()
    payload, evidence = min(found, key=lambda each: each[0])
    return payload, (evidence,)


def _links_above(examination: Examination, bdf: str) -> list[tuple[PciFunction, PciFunction | None]]:
    """Return (lower end, upper end) of every link from a function up to its root port."""
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


def _by_cpu_link(examination: Examination, gpu: str) -> bool:
    links = (known(card.c2c_links, 0) for card in examination.node.known_gpus if card.bdf == gpu)
    return any(links) or is_grace(examination)


def _label(examination: Examination, lower: PciFunction, nic: str) -> str:
    if lower.kind is PciKind.NIC:
        return f"PCIe link of {nic or lower.bdf}"
    if lower.kind is PciKind.DMA:
        return f"PCIe link of {nic}_dma"
    gpus = {end.id: end.label for end in examination.topology.gpus}
    return f"PCIe link of {gpus.get(lower.bdf, f'the switch {lower.bdf}')}"
