"""Why an RDMA port carries no traffic, from its state, link layer, netdev and subnet manager."""

from __future__ import annotations

from enum import Enum

from probes.base.unknown import Maybe, Unknown
from probes.queries.ports import ACTIVE, Port


class Condition(Enum):
    """Why a port carries no traffic."""

    NONE = "carries traffic"
    NO_SIGNAL = "no signal from the other end"
    DISABLED = "disabled"
    NETDEV_DOWN = "netdev set down"
    NO_SUBNET_MANAGER = "no subnet manager"
    STALLED = "not configured to the end by the subnet manager"


def condition_of(port: Port) -> Maybe[Condition]:
    """Why a port carries no traffic: Documentation/ABI/stable/sysfs-class-infiniband, state, phys_state."""
    state, layer = port.facts.state, port.facts.link_layer
    if isinstance(state, Unknown):
        return state
    if state in ACTIVE:
        return Condition.NONE
    if isinstance(layer, Unknown):
        return layer
    if layer == "Ethernet":
        # RoCE calls its physical state Disabled also where only the cable is missing (mlx5, main.c).
        is_up = port.health if isinstance(port.health, Unknown) else port.health.netdev_is_up
        return is_up if isinstance(is_up, Unknown) else _ETHERNET[is_up]
    if state in ("INIT", "ARMED"):
        sm_lid = port.health if isinstance(port.health, Unknown) else port.health.sm_lid
        if state == "ARMED":
            return Condition.STALLED
        if isinstance(sm_lid, Unknown):
            return sm_lid
        return Condition.STALLED if sm_lid else Condition.NO_SUBNET_MANAGER
    if isinstance(port.facts.physical_state, Unknown):
        return port.facts.physical_state
    return Condition.DISABLED if port.facts.physical_state == "Disabled" else Condition.NO_SIGNAL


_ETHERNET = {True: Condition.NO_SIGNAL, False: Condition.NETDEV_DOWN}
