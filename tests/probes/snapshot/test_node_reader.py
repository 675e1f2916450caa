"""When a node is probed again."""

import errno
from collections.abc import Mapping, Sequence

import pytest

from probes.base.unknown import Maybe, Reason, Unknown
from probes.simulation.host import SimulatedHost
from probes.snapshot.node_reader import RETRY_SECONDS, NodeReader


class BusyAtFirst(SimulatedHost):
    """A node whose NICs answer too late the first time."""

    asked = 0

    def dmabuf_errnos(self, devices: Sequence[str]) -> Mapping[str, Maybe[int]]:
        self.asked += 1
        late = Unknown(Reason.TIMED_OUT, "ibv_reg_dmabuf_mr")
        return dict.fromkeys(devices, late if self.asked == 1 else errno.EBADF)


def test_a_probe_that_timed_out_is_repeated_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("probes.snapshot.node_reader.time.monotonic", lambda: now)
    host = BusyAtFirst("hgx-h100")
    reader = NodeReader(host)
    assert reader.probe() is not None
    assert reader.probe() is None
    now += RETRY_SECONDS
    assert reader.probe() is not None
    assert host.asked == 2
    now += RETRY_SECONDS
    assert reader.probe() is None


class SteppedHost(SimulatedHost):
    """A node that counts how often its devices are listed."""

    listed = 0

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__("hgx-h100", clock=lambda: self.now)

    def names(self, path: str) -> Maybe[tuple[str, ...]]:
        self.listed += path == "/sys/bus/pci/devices"
        return super().names(path)


def readings(host: SteppedHost, reader: NodeReader, seconds: int) -> list[bool]:
    """Return for each second whether the node was probed."""
    probed = []
    for _ in range(seconds):
        host.now += 1.0
        probed.append(reader.probe() is not None)
        reader.read()
    return probed


def test_devices_are_listed_every_five_seconds() -> None:
    host = SteppedHost()
    reader = NodeReader(host)
    reader.probe()
    reader.read()
    host.listed = 0
    assert readings(host, reader, 30) == [False] * 30
    assert host.listed == 5


def test_a_module_that_goes_or_comes_is_seen_with_the_next_reading() -> None:
    host = SteppedHost()
    reader = NodeReader(host)
    readings(host, reader, 3)
    removed = host.tree.remove("/sys/module/nvidia_peermem")
    assert readings(host, reader, 3) == [False, True, False]
    host.tree.restore(removed)
    assert readings(host, reader, 3) == [False, True, False]


def test_two_rdma_devices_that_swap_their_names_are_probed_again() -> None:
    host = SteppedHost()
    reader = NodeReader(host)
    readings(host, reader, 3)
    links = host.tree.links
    first, other = "/sys/class/infiniband/mlx5_0", "/sys/class/infiniband/mlx5_1"
    links[first], links[other] = links[other], links[first]
    assert any(readings(host, reader, 6))
