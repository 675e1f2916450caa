"""The type of a machine: nodes of one type are expected to measure the same.

Only of what a fault does not change: no rates of ports, no names that the driver gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from probes.base.text import printable
from probes.base.unknown import Unknown, known
from probes.facts.pci.functions import PciFacts, PciFunction
from probes.facts.pci.names import built_in_name
from probes.facts.system.platform import PlatformFacts
from probes.snapshot.examination import Examination
from probes.topology.endpoints import Endpoint

_LIMIT = 200


def machine_type(examination: Examination) -> str:
    """Its product, GPUs and NICs: "Supermicro SYS-821GE-TNHR, 8 × NVIDIA H100 SXM5 80GB, 8 × …".

    What is not known is left out. Names are gdrtop's own: the system's pci.ids differ from node to node.
    """
    node, topology = examination.node, examination.topology
    product = known(node.platform.product, "") if isinstance(node.platform, PlatformFacts) else ""
    functions = node.pci.functions if isinstance(node.pci, PciFacts) else {}
    words = [product, *_counted(topology.gpus, functions), *_counted(topology.nics, functions)]
    return printable(", ".join(word for word in words if word), _LIMIT) or "unknown type"


def _counted(ends: Iterable[Endpoint], functions: dict[str, PciFunction]) -> list[str]:
    found = [functions.get(end.bdf) for end in ends if not isinstance(end.bdf, Unknown)]
    ids = ((known(one.vendor_id, 0), known(one.device_id, 0)) for one in found if one is not None)
    counts = Counter(built_in_name(*pair) for pair in ids)
    return [f"{count} × {name}" for name, count in sorted(counts.items())]
