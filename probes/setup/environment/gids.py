"""What NCCL needs to find the right RoCE GID, by its version."""

from __future__ import annotations

from probes.base.unknown import Unknown
from probes.facts.rdma.devices import Gid, RdmaPort
from probes.nccl.variables.variable import Version
from probes.queries.evidence_list import join_limited
from probes.setup.environment.advice import Note, Setting, State
from probes.setup.environment.nics import roce_ports
from probes.snapshot.examination import Examination

INDEX = "NCCL_IB_GID_INDEX"
FAMILY = "NCCL_IB_ADDR_FAMILY"
_FINDS_GIDS = (2, 21)
_IPV4 = "0000:0000:0000:0000:0000:ffff:"
_LINK_LOCAL = "fe80:"


def gid_settings(
    examination: Examination, version: Version, nics: tuple[str, ...] = ()
) -> tuple[list[Setting], list[Note]]:
    """Return the index or the address family, or why NCCL needs neither.

    `nics`: the NICs that the job uses, if they are not those that NCCL chooses.
    """
    ports = roce_ports(examination, nics)
    if not ports:
        return [], []
    for name, port in ports.items():
        if isinstance(port.gids, Unknown):
            return [], [Note(INDEX, State.UNKNOWN, f"the GIDs of {name} are unknown: {port.gids}")]
    routable = {name: _routable(port) for name, port in ports.items()}
    without = [name for name, gids in routable.items() if not gids]
    if without:
        text = f"{join_limited(without)} has no RoCE v2 GID that routers forward; see gdrtop check"
        return [], [Note(INDEX, State.FIX_FIRST, text)]
    has_ipv4 = {name: [gid for gid in gids if gid.gid.startswith(_IPV4)] for name, gids in routable.items()}
    if version >= _FINDS_GIDS:
        return _by_family(has_ipv4)
    wanted = has_ipv4 if all(has_ipv4.values()) else routable
    common = set.intersection(*({gid.index for gid in gids} for gids in wanted.values()))
    if not common:
        text = "the RoCE v2 GIDs of the NICs have different indexes; use NCCL 2.21 or newer, which finds them"
        return [], [Note(INDEX, State.FIX_FIRST, text)]
    index = min(common)
    if index == 0:
        return [], [Note(INDEX, State.NOT_NEEDED, "GID 0, the default, is a RoCE v2 GID on every NIC")]
    reason = (
        "the RoCE v2 GID on every NIC here; NCCL before 2.21 uses index 0, and newer ones need no index."
        " Check it on every node (show_gids)"
    )
    return [Setting(INDEX, str(index), reason)], []


def _by_family(has_ipv4: dict[str, list[Gid]]) -> tuple[list[Setting], list[Note]]:
    if all(has_ipv4.values()):
        text = "NCCL 2.21 and newer find the RoCE v2 GID; older ones need an index (--nccl 2.20 shows it)"
        return [], [Note(INDEX, State.NOT_NEEDED, text)]
    if any(has_ipv4.values()):
        without = [name for name, gids in has_ipv4.items() if not gids]
        text = f"{join_limited(without)} has no IPv4 address, the other NICs do; give all of them one family"
        return [], [Note(FAMILY, State.FIX_FIRST, text)]
    reason = "no NIC has an IPv4 address; NCCL looks for an IPv4 GID by default"
    return [Setting(FAMILY, "AF_INET6", reason)], []


def _routable(port: RdmaPort) -> list[Gid]:
    """Return the RoCE v2 GIDs that are not link-local."""
    gids = () if isinstance(port.gids, Unknown) else port.gids
    return [gid for gid in gids if gid.type == "RoCE v2" and not gid.gid.startswith(_LINK_LOCAL)]
