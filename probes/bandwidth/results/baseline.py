"""The baseline of a machine type, and what a machine type is.

Nodes of one machine type are expected to measure the same. The type is made only of what a fault does not
change: no port rates, and gdrtop's own names, because pci.ids and the driver's names differ between nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from probes.bandwidth.model.command import Refused
from probes.bandwidth.model.rating import Rating
from probes.bandwidth.model.result import Ending, Result
from probes.bandwidth.results.memory_path import is_measured
from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Unknown, known
from probes.facts.pci.functions import PciFacts, PciFunction
from probes.facts.pci.names import built_in_name
from probes.facts.system.platform import PlatformFacts
from probes.snapshot.examination import Examination
from probes.topology.endpoints import Endpoint

_MACHINE_TYPE_LIMIT = 200  # characters


@frozen
class Baseline:
    """The results expected of every node of a machine type."""

    machine: str
    results: tuple[Result, ...]


def updated_baseline(
    results: Iterable[Result], before: Callable[[str], Iterable[Result]]
) -> Baseline | Refused:
    """Return the baseline of these results' machine type with them added; a test's older result is replaced.

    `before` returns the current baseline of a machine type.
    """
    measured = tuple(filter(is_measured, results))
    if not measured:
        return Refused("no result can be saved as a baseline")
    machine = measured[0].machine
    merged = {result.key: result for result in (*before(machine), *measured)}
    return Baseline(machine, tuple(merged.values()))


def below_limit(results: Iterable[Result]) -> tuple[Result, ...]:
    """Return the results below the limit of their path: saved as a baseline only if the user insists."""
    return tuple(
        result
        for result in results
        if result.ending is Ending.DONE and result.judgment.verdict is Rating.BELOW
    )


def other_type_hint(machine: str, types: Sequence[str]) -> str:
    """Return a hint that the same product has a baseline of another machine type; "" if it has none.

    A missing GPU or port makes another machine type, and that is just the node to compare.
    """
    same_product = sorted(
        other for other in types if other != machine and product_of(other) == product_of(machine)
    )
    if not same_product:
        return ""
    more = f" (and {len(same_product) - 1} more)" if len(same_product) > 1 else ""
    return f"there is a baseline for {same_product[0]}{more}, but none for this machine type: {machine}"


def product_of(machine: str) -> str:
    """Return the product name, the first part of a machine type."""
    return machine.partition(", ")[0]


def machine_type(examination: Examination) -> str:
    """Return product, GPUs and NICs: "Supermicro SYS-821GE-TNHR, 8 × NVIDIA H100 SXM5 80GB, 8 × …".

    Parts that are unknown are left out.
    """
    node, topology = examination.node, examination.topology
    product = known(node.platform.product, "") if isinstance(node.platform, PlatformFacts) else ""
    functions = node.pci.functions if isinstance(node.pci, PciFacts) else {}
    parts = [product, *_counted(topology.gpus, functions), *_counted(topology.nics, functions)]
    return printable(", ".join(filter(None, parts)), _MACHINE_TYPE_LIMIT) or "unknown type"


def _counted(ends: Iterable[Endpoint], functions: dict[str, PciFunction]) -> list[str]:
    found = [functions.get(end.bdf) for end in ends if not isinstance(end.bdf, Unknown)]
    ids = ((known(card.vendor_id, 0), known(card.device_id, 0)) for card in found if card is not None)
    counts = Counter(built_in_name(*pair) for pair in ids)
    return [f"{count} × {name}" for name, count in sorted(counts.items())]
