"""The paths between the devices of equal nodes, found once a worker: most of an examination's time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probes.facts.pci.functions import PciFunction
from probes.topology import paths
from probes.topology.paths import Topology

_find_paths = paths._find_paths
_FOUND: dict[Any, list[tuple[Any, Topology]]] = {}
_MOST_ALIKE = 50


def find_paths(topology: Topology, functions: Mapping[str, PciFunction]) -> None:
    """Fill in the graph and the paths, from an earlier topology where all that they follow from is equal."""
    ends, facts = (topology.gpus, topology.nics), _facts(topology)
    alike = _FOUND.setdefault(ends, [])
    found = next((found for others, found in alike if others == facts), None)
    if found is None:
        found = Topology(topology.node, *ends, {}, {}, topology.file)
        _find_paths(found, functions)
        alike.append((facts, found))
        del alike[:-_MOST_ALIKE]
    vars(topology)["graph"] = found.graph.copy()
    topology.paths.update(found.paths)


def _facts(topology: Topology) -> tuple[object, ...]:
    node = topology.node
    return node.pci, node.gpus, node.numa, topology.file
