"""A sample opens each file once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from probes.base.unknown import Maybe
from probes.host.protocol import READ_LIMIT_BYTES
from probes.host.usage import ProcessUsage
from probes.live.live_sampler import LiveSampler
from probes.simulation.host import SimulatedHost
from probes.snapshot.node_reader import NodeReader


class CountingHost(SimulatedHost):
    """A node that counts what is opened, by path."""

    def __init__(self, name: str) -> None:
        self.now = 1000.0
        self.opened: Counter[str] = Counter()
        super().__init__(name, clock=lambda: self.now)

    def read_bytes(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[bytes]:
        self.opened[path] += 1
        return super().read_bytes(path, limit)

    def process_usage(self, pids: Sequence[int]) -> Mapping[int, Maybe[ProcessUsage]]:
        before = self.opened.copy()  # psutil reads files of its own, every ten seconds
        usage = super().process_usage(pids)
        self.opened = before
        return usage

    def names(self, path: str) -> Maybe[tuple[str, ...]]:
        self.opened[path] += 1
        return super().names(path)


def test_no_file_is_opened_twice_in_a_sample() -> None:
    host = CountingHost("hgx-h100")
    reader, live = NodeReader(host), LiveSampler()
    node = reader.probe()
    assert node is not None
    live.sample(host, node, reader.read())  # reads what is read once for each process
    twice: Counter[str] = Counter()
    for _ in range(30):
        host.now += 1.0
        host.opened.clear()
        reader.probe()
        live.sample(host, node, reader.read())
        assert host.opened["/sys/class/infiniband/mlx5_0/ports/1/state"] == 1
        twice.update({path: count for path, count in host.opened.items() if count > 1})
    assert not twice
