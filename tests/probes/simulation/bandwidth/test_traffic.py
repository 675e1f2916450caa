"""While a test runs, the ports' counters of the simulated node show it; they never go back."""

import itertools

import pytest

from probes.base.unknown import Unknown
from probes.snapshot.rates import Reading, port_rates, read
from tests.probes.simulation.bandwidth.node import Node, both, settings_on
from tests.support.tiers import usual


def sent(before: Reading, after: Reading, device: str) -> float:
    rate = port_rates(before, after)[device, 1].sent_gbps
    assert not isinstance(rate, Unknown)
    return rate


def test_the_port_is_full_while_the_test_runs_and_the_job_has_it_back_after() -> None:
    node = Node("hgx-h100")
    facts = node.examination().node
    waits, asks = both(node, settings_on(node))
    server = node.begin(waits.argv)
    node.wait(0.3, server)
    client = node.begin(asks.argv)
    readings = [read(node.host, facts)]
    while client.status is None:
        node.wait(1.0, server, client, step=0.5)
        readings.append(read(node.host, facts))
    for _ in range(20):
        node.wait(1.0)
        readings.append(read(node.host, facts))
    rates = [sent(a, b, "mlx5_0") for a, b in itertools.pairwise(readings)]
    others = [sent(a, b, "mlx5_7") for a, b in itertools.pairwise(readings)]
    assert all(0 <= rate <= 400.5 for rate in rates)
    assert max(rates) > 385
    assert sum(rates[3:9]) / 6 > 380
    assert sum(rates[-15:]) / 15 < 360
    assert max(others) < 400


@pytest.mark.slow
@pytest.mark.parametrize("ends", usual(["client", "server", "nobody"], {"client"}))
def test_counters_never_go_back(ends: str) -> None:
    """Not with small messages, which carry less than the job did, and not when an end is ended."""
    node = Node("hgx-h100")
    settings = settings_on(node, size_bytes=None, duration_s=None, all_sizes=True)
    path = "/sys/class/infiniband/mlx5_0/ports/1/counters/port_{}_data"
    counted: list[tuple[int, int]] = []

    def look() -> None:
        counted.append(tuple(int(str(node.host.read(path.format(way)))) for way in ("xmit", "rcv")))  # type: ignore[arg-type]

    look()
    for _ in range(2):
        waits, asks = both(node, settings)
        server = node.begin(waits.argv)
        node.wait(0.3, server)
        client = node.begin(asks.argv)
        for turn in range(70):
            node.clock.now += 0.1
            look()
            if turn % 3 == 0:
                client.read(node.clock.now)
                server.read(node.clock.now)
            if turn == 30 and ends != "nobody":
                (client if ends == "client" else server).test.end(15)
                look()
        node.finish(server, client)
        look()
    for before, after in itertools.pairwise(counted):
        assert after[0] >= before[0]
        assert after[1] >= before[1]


def test_a_read_sends_from_the_server() -> None:
    """Two ports: what is read comes from the server's."""
    node = Node("gb200")
    settings = settings_on(node, None, "mlx5_0", tool="ib_read_bw")
    waits, asks = both(node, settings, settings_on(node, None, "mlx5_1", tool="ib_read_bw"))
    server = node.begin(waits.argv)
    node.wait(0.3, server)
    client = node.begin(asks.argv)
    facts = node.examination().node
    node.wait(3, server, client)
    first = read(node.host, facts)
    node.wait(3, server, client)
    rates = port_rates(first, read(node.host, facts))
    assert float(str(rates["mlx5_1", 1].sent_gbps)) > 380
    assert float(str(rates["mlx5_0", 1].received_gbps)) > 380
    assert float(str(rates["mlx5_0", 1].sent_gbps)) < 380
