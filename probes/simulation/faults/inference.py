"""Inference engines on a node, and the paths that their KV cache takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from probes.simulation.faults.fault import ChangeTree, described
from probes.simulation.node.jobs.engines import EngineDescription, serve


def _serve(engine: Mapping[str, Any]) -> ChangeTree:
    description = EngineDescription(**engine)
    return lambda tree: serve(tree, description)


FAULTS = tuple(replace(fault, is_everywhere=True) for fault in described("inference", {}, serve=_serve))
