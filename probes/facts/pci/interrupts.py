"""The CPUs to which NICs send their interrupts.

/proc/interrupts has a column for each CPU, megabytes on a large node, so only `msi_irqs` and /proc/irq/N are
read (Linux Documentation/ABI/testing/sysfs-bus-pci, core-api/irq/irq-affinity.rst).
"""

from __future__ import annotations

from collections.abc import Iterable

from probes.base.unknown import known
from probes.facts.pci.functions import DEVICES
from probes.facts.system.numa import parse_list
from probes.host.protocol import Host

_MOST_VECTORS = 6
_MOST_NICS = 64


def probe(host: Host, nics: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the CPUs of each of the first six completion interrupts, as kernel lists, by NIC (BDF).

    The lowest number is left out: mlx5 has its events there. One that is not in use has no CPU.
    """
    found = {}
    for bdf in list(nics)[:_MOST_NICS]:
        names = known(host.names(f"{DEVICES}/{bdf}/msi_irqs"), ())
        numbers = sorted(int(name) for name in names if name.isascii() and name.isdigit() and len(name) < 7)
        used = numbers[1 : _MOST_VECTORS + 1]
        texts = (known(host.read(f"/proc/irq/{number}/effective_affinity_list"), "") for number in used)
        found[bdf] = tuple(text for text in texts if parse_list(text))
    return found
