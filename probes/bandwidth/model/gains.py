"""What a fix should bring: the limits of the paths between near GPUs and NICs, before and after it.

A limit is what no test can exceed, so a gain is one of limits too. Only this fix counts: where another part
of the path allows no more than now, there is no gain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from probes.bandwidth.model.limits import Bound, Limit, limit_of_pair, name_of_port, packet_share
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.queries.finding import DETOUR, PairGain
from probes.queries.pcie_paths import detours, redirects_of, turning_ports
from probes.queries.ports import Port, by_board
from probes.snapshot.examination import Examination


def gains_of_links(examination: Examination, best_gbps: Mapping[str, float]) -> tuple[PairGain, ...]:
    """Return what PCIe links bring that run at their best: Gb/s by the BDF at the lower end."""
    best = {bdf.rpartition(".")[0]: gbps for bdf, gbps in best_gbps.items()}
    return _gains(examination, lambda bound: _at(bound, best.get(bound.part)))


def gains_of_ports(examination: Examination, fixed: Iterable[Port]) -> tuple[PairGain, ...]:
    """Return what it brings if ports are as here; of a bond only the packets count, not the rate."""
    ports = {name_of_port(port.device.name, port.facts.number): port for port in fixed}

    def gbps(bound: Bound) -> Maybe[float]:
        port = ports.get(bound.name)
        if port is None:
            return bound.gbps
        rate = port.facts.rate_gbps if port.facts.bond is None else bound.nominal_gbps
        mtu = map_known(port.health, lambda health: health.roce_mtu_bytes)
        is_known = port.is_ethernet and not isinstance(mtu, Unknown)
        share = packet_share(True, known(mtu, 0)) if is_known else packet_share(port.is_ethernet)
        return map_known(rate, lambda gbps: gbps * share)

    return _gains(examination, gbps)


def as_fast_as_its_board(port: Port, ports: Iterable[Port]) -> Port:
    """Return a port with rate and link layer of the fastest active one of its board, if there is one."""
    board = by_board(ports).get(known(port.device.board_id, ""), [])
    active = [other for other in board if other.is_active and other.facts.bond is None]
    fastest = max(active, key=lambda other: known(other.facts.rate_gbps, 0.0), default=None)
    rate = Unknown(Reason.NOT_THERE) if fastest is None else fastest.facts.rate_gbps
    layer = port.facts.link_layer if fastest is None else fastest.facts.link_layer
    return replace(port, facts=replace(port.facts, rate_gbps=rate, link_layer=layer))


def gains_of_straight_paths(examination: Examination) -> tuple[PairGain, ...]:
    """Return what near pairs can reach whose traffic ACS redirects to the CPU now."""
    if not _allows_gdr(examination):
        return ()
    ports = redirects_of(examination).ports
    paths = examination.topology.paths
    return tuple(
        PairGain(gpu, nic, DETOUR, fixed, by)
        for gpu, bdf, nic, limit in _limits(examination)
        if any(port in ports for port in turning_ports(examination, paths[bdf, nic]))
        for fixed, by in _least(limit, lambda bound: bound.gbps)
    )


def gains_of_gdr(examination: Examination) -> tuple[PairGain, ...]:
    """Return what near pairs can reach by GPUDirect RDMA on a node where it is not possible now."""
    return tuple(
        PairGain(gpu, nic, 0.0, fixed, by)
        for gpu, _, nic, limit in _straight_limits(examination)
        for fixed, by in _least(limit, lambda bound: bound.gbps)
    )


def _gains(examination: Examination, fixed: Callable[[Bound], Maybe[float]]) -> tuple[PairGain, ...]:
    """Return the pairs whose limit rises if each part carries what `fixed` says."""
    if not _allows_gdr(examination):
        return ()
    gains = []
    for gpu, _, nic, limit in _straight_limits(examination):
        now = next((least for least, _ in _least(limit, lambda bound: bound.gbps)), None)
        for then, by in _least(limit, fixed):
            if now is None or round(then) > round(now):
                gains.append(PairGain(gpu, nic, 0.0 if now is None else now, then, by))
    return tuple(gains)


def _least(limit: Limit, fixed: Callable[[Bound], Maybe[float]]) -> Iterator[tuple[float, str]]:
    """Yield the lowest bound and its part; nothing if a bound is unknown or 0."""
    figures = [(fixed(bound), bound.name) for bound in limit.bounds]
    bounds = [(gbps, name) for gbps, name in figures if not isinstance(gbps, Unknown) and gbps > 0]
    if bounds and len(bounds) == len(figures):
        yield min(bounds)


def _allows_gdr(examination: Examination) -> bool:
    """Return whether DMA-BUF or nvidia_peermem is usable, or may be: else a faster path brings nothing."""
    direct = examination.node.gpudirect
    return isinstance(direct, Unknown) or any(
        isinstance(state.usable, Unknown) or state.usable for state in (direct.dmabuf, direct.peermem)
    )


def _straight_limits(examination: Examination) -> Iterator[tuple[str, str, str, Limit]]:
    """Yield the limits of pairs whose traffic does not go up to the CPU: its limit is unknown."""
    redirected = detours(examination)
    return (pair for pair in _limits(examination) if pair[1:3] not in redirected)


def _limits(examination: Examination) -> Iterator[tuple[str, str, str, Limit]]:
    """Yield label and BDF of the GPU, the NIC and the limit of near pairs; a port that is down has 0."""
    topology = examination.topology
    labels = {gpu.id: gpu.label for gpu in topology.gpus}
    for gpu, nics in topology.near_nics.items():
        for nic in nics:
            device = topology.devices.get(nic)
            port = None if device is None or len(device.ports) != 1 else device.ports[0]
            if port is None:
                continue
            limit = limit_of_pair(examination, gpu, nic, port.number)
            if port.is_down:
                bounds = (
                    bound if bound.is_pcie else replace(bound, nominal_gbps=0.0, gbps=0.0)
                    for bound in limit.bounds
                )
                limit = replace(limit, bounds=tuple(bounds))
            yield labels[gpu], gpu, nic, limit


def _at(bound: Bound, nominal_gbps: float | None) -> Maybe[float]:
    """Return what a part carries at another nominal bandwidth, with the same headers."""
    if nominal_gbps is None or isinstance(bound.nominal_gbps, Unknown) or isinstance(bound.gbps, Unknown):
        return bound.gbps
    return nominal_gbps * bound.gbps / bound.nominal_gbps if bound.nominal_gbps else bound.gbps
