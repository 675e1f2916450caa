"""The rates of a job's ports over the last seconds: the slow ones, and the rail or node that is slow."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from probes.base.unknown import Maybe, Reason, Unknown
from probes.fleet.job_differences import (
    Port,
    some_names,
)
from probes.fleet.job_model import Difference, FleetRank
from probes.live.odd_one_out import WINDOW_SECONDS, Rates, Share, gbps_text, nic_shares, rates_at
from probes.live.odd_ranks import LEAST

_MOST_NODES = 0.75  # where so many nodes have a slow port on a rail, it is the rail that is slow
_NO_RATE = Unknown(Reason.NOT_YET, "", "needs a second sample")
_NIC_RATES = Unknown(Reason.NOT_THERE, "", "no NIC")


class RateWatch:
    """What each port of a job sends and receives, in Gb/s, in the last seconds."""

    def __init__(self) -> None:
        self._rounds: deque[tuple[float, Mapping[Port, tuple[float, float]]]] = deque()

    def add(self, at: float, rates: Mapping[Port, tuple[float, float]]) -> None:
        """Append the known rates of one round of samples; `at`: seconds of a clock that never goes back."""
        if rates:
            self._rounds.append((at, rates))
        while len(self._rounds) > 1 and self._rounds[1][0] <= at - WINDOW_SECONDS:
            self._rounds.popleft()

    def mean(self, ports: Iterable[Port]) -> Maybe[float]:
        """Return the mean rate of these ports together, in the busier direction."""
        totals: list[float] = []  # sent, received
        for port in ports:
            totals = totals or [0.0, 0.0]
            seen = [rates[port] for _, rates in self._rounds if port in rates]
            if not seen:
                return _NO_RATE
            for direction in (0, 1):
                totals[direction] += sum(pair[direction] for pair in seen) / len(seen)
        return max(totals) if totals else _NIC_RATES

    def shares(self) -> dict[Port, Share]:
        """Return each port beside all others, those that had a rate all the time; {} if that is too short.

        Of both directions, the one in which it is slow.
        """
        if not self._rounds or self._rounds[-1][0] - self._rounds[0][0] < WINDOW_SECONDS:
            return {}
        ports = sorted(set.intersection(*(set(rates) for _, rates in self._rounds)))
        if len(ports) < LEAST:
            return {}
        names = tuple(" ".join(port) for port in ports)
        window: deque[Rates] = deque()
        for at, rates in self._rounds:
            sent, received = [rates[port][0] for port in ports], [rates[port][1] for port in ports]
            window.append(rates_at(at, names, sent, received))
        both = zip(nic_shares(window, 0), nic_shares(window, 1), strict=True)
        return {
            port: received if received.is_odd and not sent.is_odd else sent
            for port, (sent, received) in zip(ports, both, strict=True)
        }


def slow_ports(
    shares: Mapping[Port, Share], rails: Mapping[Port, int], ranks: Sequence[FleetRank]
) -> list[Difference]:
    """Return slow rails, then nodes all of whose ports are slow, then single slow ports."""
    slow = {port for port, share in shares.items() if share.is_odd}
    if not slow:
        return []
    rest = [share.rate for port, share in shares.items() if port not in slow]
    others = f"carry {gbps_text(median(rest))} (median)" if rest else "carry more"
    found: list[Difference] = []

    def add(aspect: str, subject: str, who: str, ports: Sequence[Port], what: str) -> None:
        rate = gbps_text(median(shares[port].rate for port in ports))
        carries = f"carry {rate} each" if aspect == "node" else f"carries {rate}"
        users = (rank for rank in ranks if any((rank.node, nic) in ports for nic in rank.process.ready_nics))
        keys = tuple(rank.key for rank in users)
        found.append(Difference(aspect, subject, f"{who} {carries}; {what} {others}", keys))
        slow.difference_update(ports)

    nodes = {node for node, _ in shares}
    for rail in sorted({rails[port] for port in slow if port in rails}):
        ports = sorted(port for port in slow if rails.get(port) == rail)
        on_rail = {node for node, _ in (port for port in shares if rails.get(port) == rail)}
        if len(ports) < 2 or len(ports) < _MOST_NODES * len(on_rail):
            continue
        count = f"all {len(ports)}" if len(ports) == len(nodes) else f"{len(ports)} of {len(nodes)}"
        where = f"{count} nodes"
        names = some_names(sorted({device for _, device in ports}))
        add("rail", f"rail {rail}", f"rail {rail} ({names}) on {where}", ports, "the other rails")
    for node in sorted({node for node, _ in slow}):
        ports = sorted(port for port in slow if port[0] == node)
        if 1 < len(ports) == sum(port[0] == node for port in shares):
            add("node", node, f"all {len(ports)} NICs of {node}", ports, "the NICs of other nodes")
    for port in sorted(slow):
        name = " ".join(port)
        add("rate", name, name, [port], f"the other {len(shares) - 1} NICs of this job")
    return found
