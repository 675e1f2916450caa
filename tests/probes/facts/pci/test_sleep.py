"""A PCI function that sleeps is not woken by anything that gdrtop reads."""

from __future__ import annotations

from typing import Any

import pytest

from probes.base.unknown import Maybe
from probes.facts.pci.functions import PciFacts, PciKind
from probes.live.live_watch import LiveWatch
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine
from probes.snapshot.rates import read

# Each of these files is read from the device (drivers/pci/pci-sysfs.c).
WAKING = ("config", "vpd", "current_link_speed", "current_link_width", "max_link_width")


class Noting:
    """A host that notes the files which gdrtop reads."""

    def __init__(self, host: Any) -> None:
        self._host = host
        self.paths: list[str] = []
        self.commands: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    def read(self, path: str, limit: int = 65536) -> Maybe[str]:
        self.paths.append(path)
        answer: Maybe[str] = self._host.read(path, limit)
        return answer

    def read_bytes(self, path: str, limit: int = 65536) -> Maybe[bytes]:
        self.paths.append(path)
        answer: Maybe[bytes] = self._host.read_bytes(path, limit)
        return answer

    def run(self, argv: tuple[str, ...], seconds: float = 2.0) -> Any:
        self.commands.append(argv[0])
        return self._host.run(argv, seconds)


@pytest.mark.parametrize(
    ("file", "state"), [("power/runtime_status", "suspended"), ("power_state", "D3cold")], ids=str
)
@pytest.mark.parametrize("name", ["hgx-h100", "gb200"])
def test_neither_an_examination_nor_the_live_view_wakes_it(name: str, file: str, state: str) -> None:
    now = [1000.0]
    host = SimulatedHost(name, clock=lambda: now[0])
    host.tree.commands["rdma_topo"] = lambda argv, seconds: ""
    for bdf in host.tree.directories["/sys/bus/pci/devices"]:
        host.tree.add(f"{host.tree.real(f'/sys/bus/pci/devices/{bdf}')}/{file}", f"{state}\n")
    noting: Any = Noting(host)
    node, live = examine(noting).node, LiveWatch()
    for _ in range(8):
        now[0] += 1.0
        live.sample(noting, node, read(noting, node))
    assert isinstance(node.pci, PciFacts)
    gpus = [one for one in node.pci.functions.values() if one.kind is PciKind.GPU]
    assert gpus
    assert all("would wake it" in str(gpu.link.speed_gtps) for gpu in gpus)
    assert any(path.endswith("/numa_node") for path in noting.paths)
    assert [path for path in noting.paths if "/pci" in path and path.rpartition("/")[2] in WAKING] == []
    assert "rdma_topo" not in noting.commands
