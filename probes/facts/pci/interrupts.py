"""The CPUs to which NICs send their interrupts.

/proc/interrupts has a column for each CPU, megabytes on a large node, so only `msi_irqs` and /proc/irq/N are
read (Linux Documentation/ABI/testing/sysfs-bus-pci, core-api/irq/irq-affinity.rst).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from probes.base.unknown import Maybe, Unknown, first_unread, known
from probes.facts.pci.functions import DEVICES
from probes.facts.system.numa import parse_list
from probes.host.protocol import Host

_NUMBER = re.compile(r"[0-9]{1,6}")
_MOST_VECTORS = 6
_MOST_NICS = 64


def probe(host: Host, nics: Iterable[str]) -> dict[str, Maybe[tuple[str, ...]]]:
    """Return the CPUs of each of the first six completion interrupts, as kernel lists, by NIC (BDF).

    The lowest number is left out: mlx5 has its events there. One that is not in use has no CPU.
    """
    found: dict[str, Maybe[tuple[str, ...]]] = {}
    for bdf in list(nics)[:_MOST_NICS]:
        names = host.names(f"{DEVICES}/{bdf}/msi_irqs")
        numbers = sorted(int(name) for name in known(names, ()) if _NUMBER.fullmatch(name))
        used = numbers[1 : _MOST_VECTORS + 1]
        texts = [host.read(f"/proc/irq/{number}/effective_affinity_list") for number in used]
        unread = first_unread((names, *texts))
        lists = tuple(text for text in texts if not isinstance(text, Unknown) and parse_list(text))
        found[bdf] = lists if unread is None else unread
    return found
