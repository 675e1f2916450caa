"""The elements between two PCI functions, link by link."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.pci.functions import PciFunction, PciKind
from probes.facts.pci.link_speed import capacity, carried, describe
from probes.topology.smi_words import shared

NO_LINK = Unknown(Reason.NOT_THERE, "", "not a PCIe link")


@dataclass(frozen=True)
class Hop:
    """One element on the way, with the link that leads to it from the one before."""

    id: str  # BDF, "pci0000:15", "NUMA 0"
    kind: str  # "GPU", "NIC", "downstream port", "upstream port", "root port", "host bridge", "NUMA node"
    link: str  # "PCIe", "SMP", "internal", "" for the first
    gbps: Maybe[float]  # what that link carries each way as it is, a GPU's when awake; 10^9 bits/s
    text: str  # "Gen5 x16, now Gen3 x8"
    best_gbps: Maybe[float] = NO_LINK  # what the link can carry at its best: by that NICs are chosen


_Link = tuple[str, Maybe[float], str, Maybe[float]]


@dataclass(frozen=True)
class Ways:
    """The way of one function up to its host bridge and the way down: all its paths are cut of these."""

    function: PciFunction
    up: tuple[Hop, ...]  # the function, …, the root port, the host bridge
    down: tuple[Hop, ...]  # the root port, …, the function


def role(function: PciFunction | None, place: int) -> str:
    """What an element of a chain is: below the root port, switches come as upstream and downstream ports."""
    if function is not None and function.kind is not PciKind.BRIDGE:
        return str(function.kind.value)
    if place == 0:
        return "root port"
    return "upstream port" if place % 2 else "downstream port"


def ways_of(function: PciFunction, functions: Mapping[str, PciFunction]) -> Ways:
    """Both ways between a function and its host bridge."""
    chain = function.chain
    parts = [functions.get(bdf) for bdf in chain]
    kinds = [role(part, place) for place, part in enumerate(parts)]
    # links[n] leads from chain[n - 1] to chain[n]
    links: list[_Link] = [("internal", NO_LINK, "", NO_LINK)]
    for place in range(1, len(chain)):
        links.append(_link(parts[place - 1], parts[place], kinds[place - 1], kinds[place]))
    down = tuple(Hop(bdf, kind, *link) for bdf, kind, link in zip(chain, kinds, links, strict=True))
    led = [*links[1:], ("", NO_LINK, "", NO_LINK)]  # led[n] leads to chain[n] from below
    up = [Hop(bdf, kind, *link) for bdf, kind, link in zip(chain, kinds, led, strict=True)][::-1]
    return Ways(function, (*up, Hop(function.root or "CPU", "host bridge", "internal", NO_LINK, "")), down)


def _link(upper: PciFunction | None, lower: PciFunction | None, above: str, below: str) -> _Link:
    """Kind, figures and words of what joins two neighbours of a chain."""
    if (above, below) == ("upstream port", "downstream port"):
        return "internal", NO_LINK, "switch", NO_LINK
    if lower is None:
        # The port above speaks of the same link.
        lower, upper = upper, None
        below = ""
    if lower is None:
        lost = Unknown(Reason.NOT_THERE, "max_link_speed", "neither end is listed")
        return "PCIe", lost, "link ?", lost
    other = upper.link if upper else None
    # A GPU's link is slow while the GPU idles; what stands above a card that is not listed may be one's.
    idles = below in ("", str(PciKind.GPU.value))
    told = describe(lower.link, other)
    return "PCIe", carried(lower.link, other, idles), told, capacity(lower.link, other)


def hops_between(a: Ways, b: Ways) -> tuple[Hop, ...]:
    """From a up to where the ways join, and down to b."""
    fa, fb = a.function, b.function
    same_root = bool(fa.root) and fa.root == fb.root
    common = shared(fa, fb) if same_root else 0
    if common:
        return a.up[: len(fa.chain) - common + 1] + b.down[common:]
    if same_root:
        return a.up + b.down
    if isinstance(fa.numa_node, Unknown) or isinstance(fb.numa_node, Unknown) or fa.numa_node == fb.numa_node:
        return (*a.up, b.up[-1], *b.down)
    return (
        *a.up,
        Hop(f"NUMA {fa.numa_node}", "NUMA node", "internal", NO_LINK, ""),
        Hop(f"NUMA {fb.numa_node}", "NUMA node", "SMP", NO_LINK, "between sockets"),
        b.up[-1],
        *b.down,
    )


def weakest_of(hops: tuple[Hop, ...]) -> int | None:
    """The index of the hop whose link carries least; None where none says what it carries."""
    carried = [(hop.gbps, number) for number, hop in enumerate(hops) if not isinstance(hop.gbps, Unknown)]
    return min(carried)[1] if carried else None
