"""The CPUs to which NICs send their interrupts.

/proc/interrupts has a column for each CPU, megabytes on a large node, so only `msi_irqs` and /proc/irq/N are
read (Linux Documentation/ABI/testing/sysfs-bus-pci, core-api/irq/irq-affinity.rst).
"""

from __future__ import annotations

from collections.abc import Iterable

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Unknown
from probes.facts.pci.functions import DEVICES, PciFunction
from probes.facts.system.numa import number_set, parse_list
from probes.host.protocol import Host

_MOST_VECTORS = 16
_MOST_NICS = 64


@frozen
class NicInterrupts:
    """The CPUs of a NIC's completion interrupts, as kernel lists; reading ends once they are spread."""

    bdf: str
    cpus: tuple[str, ...]


@frozen
class InterruptFacts:
    """The NICs whose interrupts could be read."""

    nics: tuple[NicInterrupts, ...]


def probe(host: Host, nics: Iterable[PciFunction], near: dict[int, Maybe[str]]) -> Maybe[InterruptFacts]:
    """Read up to 16 completion interrupts of each NIC; `near`: the CPUs of each NUMA node.

    The lowest number is left out: mlx5 has its events there. One that is not in use has no CPU.
    """
    found = []
    for nic in list(nics)[:_MOST_NICS]:
        names = host.names(f"{DEVICES}/{nic.bdf}/msi_irqs")
        if isinstance(names, Unknown):
            continue
        numbers = sorted(int(name) for name in names if name.isascii() and name.isdigit() and len(name) < 7)
        node = nic.numa_node
        local = None if isinstance(node, Unknown) else number_set(near.get(node, ""))
        cpus: list[str] = []
        for number in numbers[1 : _MOST_VECTORS + 1]:
            text = host.read(f"/proc/irq/{number}/effective_affinity_list")
            if not isinstance(text, Unknown) and parse_list(text):
                cpus.append(text)
            if _is_spread(cpus, local):
                break
        found.append(NicInterrupts(nic.bdf, tuple(cpus)))
    return InterruptFacts(tuple(found))


def _is_spread(cpus: list[str], near: frozenset[int] | None) -> bool:
    every = frozenset[int]().union(*(number_set(text) or () for text in cpus))
    return len(every) > 1 and (not near or bool(every & near))
