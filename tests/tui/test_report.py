"""The reports: what a pipe, a ticket and a script get."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.checks.verdict import judge
from probes.host import LocalHost
from probes.node import Node, probe_node
from probes.origin import Source
from probes.rates import read
from probes.simulation import SimulatedHost, simulated_names
from probes.topology import build
from probes.unknown import Reason, Unknown
from tests.trees import NVIDIA, add_function, add_rdma_device
from tui.report import object_of, topology_json, write_modules, write_topology

MELLANOX_NIC = ("pci0000:00", "0000:00:01.0", "0000:01:00.0")
GPU = ("pci0000:00", "0000:00:02.0", "0000:02:00.0")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Latin(io.StringIO):
    """A stream that can write no box lines."""

    encoding = "iso8859-1"  # type: ignore[assignment]


@pytest.fixture(params=simulated_names())
def host(request: pytest.FixtureRequest) -> SimulatedHost:
    return SimulatedHost(request.param, clock=lambda: 1000.0)


def topology_text(host: Any, out: io.StringIO | None = None, **options: bool) -> str:
    out = out or io.StringIO()
    out.encoding if hasattr(out, "encoding") else None
    write_topology(host, out, **options)
    return out.getvalue()


def judged(node: Node) -> dict[str, Any]:
    topology = build(node)
    content = topology_json(node, topology, judge(node, topology, None))
    told: dict[str, Any] = json.loads(json.dumps(content, allow_nan=False))
    return told
