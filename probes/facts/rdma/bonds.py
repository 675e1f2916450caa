"""A bond under an RDMA device: mlx5 LAG, one RDMA device over all ports of a card.

Documentation/networking/bonding.rst; drivers/net/ethernet/mellanox/mlx5/core/lag. The RDMA port's own rate is
that of one member (drivers/infiniband/hw/mlx5/main.c, mlx5_query_port_roce).
"""

from __future__ import annotations

from probes.base.frozen import frozen
from probes.base.text import BDF, printable
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.network.routes import NET
from probes.host.protocol import Host
from probes.host.values import read_integer

_MOST_MEMBERS = 4  # ports that mlx5 LAG supports (MLX5_MAX_PORTS)
_ONE_AT_A_TIME = "active-backup"


@frozen
class BondMember:
    """One port of a bond."""

    netdev: str
    bdf: Maybe[str]
    state: Maybe[str]  # operstate: "up", "down"
    speed_gbps: Maybe[float]  # of a link that is up


@frozen
class Bond:
    """A bond that one RDMA device uses."""

    netdev: str
    mode: Maybe[str]  # "802.3ad", "balance-xor", "active-backup"
    members: tuple[BondMember, ...]

    @property
    def up(self) -> tuple[BondMember, ...]:
        """The members that are not known to be down."""
        return tuple(member for member in self.members if known(member.state, "up") == "up")

    @property
    def ports_at_once(self) -> int:
        """The number of ports that can carry traffic at the same time."""
        return min(1, len(self.up)) if self.mode == _ONE_AT_A_TIME else len(self.up)

    @property
    def rate_gbps(self) -> Maybe[float]:
        """The sum of the ports that can carry traffic at the same time."""
        speeds: list[float] = []
        for member in self.up:
            if isinstance(member.speed_gbps, Unknown):
                return member.speed_gbps
            speeds.append(member.speed_gbps)
        if not speeds:
            source = f"{NET}/{self.netdev}/bonding/slaves"
            return Unknown(Reason.NOT_THERE, source, "no port of the bond is up")
        return max(speeds) if self.mode == _ONE_AT_A_TIME else sum(speeds)


def read_bond(host: Host, device: str, netdev: Maybe[str]) -> Bond | None:
    """Return the bond that an RDMA device spans; None: no bond, or one whose ports have RDMA devices too.

    `device`: the kernel's name of the RDMA device.
    """
    if isinstance(netdev, Unknown):
        return None
    slaves = host.read(f"{NET}/{netdev}/bonding/slaves", 4096)
    if isinstance(slaves, Unknown):
        return None
    names = parse_members(slaves)
    owners = {owner for name in names for owner in known(host.names(f"{NET}/{name}/device/infiniband"), ())}
    if not names or owners - {device}:
        return None
    mode = host.read(f"{NET}/{netdev}/bonding/mode", 4096)
    word = map_known(mode, lambda text: printable(text.partition(" ")[0], 32))
    return Bond(netdev, word, tuple(_member(host, name) for name in names))


def parse_members(text: str) -> tuple[str, ...]:
    """Parse bonding/slaves: names with blanks between them."""
    names = (name for name in text.split() if "/" not in name and name not in (".", ".."))
    return tuple(printable(name, 16) for name in names)[:_MOST_MEMBERS]


def _member(host: Host, name: str) -> BondMember:
    state = host.read(f"{NET}/{name}/operstate", 64)
    path = host.resolve(f"{NET}/{name}/device")
    bdf = map_known(path, lambda found: found.rpartition("/")[2])
    if not isinstance(bdf, Unknown) and not BDF.fullmatch(bdf):
        bdf = Unknown(Reason.NOT_THERE, f"{NET}/{name}/device", "not on a PCI function")
    speed = read_integer(host, f"{NET}/{name}/speed", signed=True)  # Mb/s; -1 or EINVAL: no link
    no_link = Unknown(Reason.NOT_THERE, f"{NET}/{name}/speed", "no link")
    gbps = map_known(speed, lambda mbps: mbps / 1000 if mbps > 0 else no_link)
    return BondMember(name, bdf, state if isinstance(state, Unknown) else printable(state, 32), gbps)
