"""perftest on simulated nodes: two ends that find each other, measure, and end."""

import itertools
from dataclasses import replace

import pytest

from probes.bandwidth.model.rating import Rating, best_of, rate
from probes.bandwidth.model.samples import (
    BY_DMABUF,
    BY_PEERMEM,
    CONNECTED,
    GPU_MEMORY,
    HOST_MEMORY,
    MEASURING,
    WAITING,
    About,
    Fact,
)
from probes.facts.system.tool_names import PERFTEST
from probes.facts.system.tools import ToolFacts
from tests.probes.simulation.bandwidth.node import Node, Run, both, run_pair, settings_on
from tests.support.tiers import MEASURABLE

BY_DEFAULT = {"dgx-a100": BY_PEERMEM}
LATENCIES = [tool for tool in PERFTEST if tool.endswith("_lat")]
BANDWIDTHS = [tool for tool in PERFTEST if tool.endswith("_bw")]


def listens(node: Node) -> bool:
    """Whether the doctor sees perftest's port taken."""
    facts = node.examination().tools
    assert isinstance(facts, ToolFacts)
    return facts.perftest_listens is not None


@pytest.mark.parametrize("gpu", [0, None])
@pytest.mark.parametrize("name", MEASURABLE)
@pytest.mark.slow
def test_the_pair_that_fits_is_near_its_line(name: str, gpu: int | None) -> None:
    pair = run_pair(name, lambda node: settings_on(node, gpu))
    for run in (pair.server, pair.client):
        assert run.status == 0, run.lines
        assert run.failure() is None
    sample = best_of(pair.client.samples())
    assert sample is not None
    limit = pair.settings.limit(pair.node.examination(), is_loopback=True)
    assert rate(sample, limit).verdict is Rating.NEAR
    assert isinstance(limit.gbps, float)
    assert 0.88 * limit.gbps < (sample.gbps or 0) < limit.gbps
    facts = pair.client.facts()
    assert facts[About.DEVICE] == pair.settings.device
    assert facts[About.MEMORY] == (HOST_MEMORY if gpu is None else GPU_MEMORY)
    assert facts.get(About.REGISTERED) == (None if gpu is None else BY_DEFAULT.get(name, BY_DMABUF))
    assert (About.GID_INDEX in facts) == (facts[About.LINK_TYPE] == "Ethernet")


@pytest.mark.parametrize("tool", PERFTEST)
@pytest.mark.slow
def test_every_tool_over_all_sizes(tool: str) -> None:
    pair = run_pair(
        "pcie-l40s",
        lambda node: settings_on(node, tool=tool, size_bytes=None, duration_s=None, all_sizes=True),
    )
    assert (pair.client.status, pair.server.status) == (0, 0)
    samples = pair.client.samples()
    assert [sample.size_bytes for sample in samples] == [1 << power for power in range(1, 24)]
    seen = pair.client.rows_seen()
    assert all(0.1 < after - before < 0.4 for before, after in itertools.pairwise(seen))
    if tool in LATENCIES:
        typical = [sample.latencies[2].microseconds for sample in samples]
        assert all(after > 0.98 * before for before, after in itertools.pairwise(typical))
        assert 1.0 < typical[0] < 10.0
        assert [latency.statistic for latency in samples[0].latencies][:2] == ["min", "max"]
    else:
        assert all(0 < (sample.gbps or 0) <= (sample.peak_gbps or 0) for sample in samples)
        gbps = [sample.gbps or 0 for sample in samples]
        assert all(after > 0.97 * before for before, after in itertools.pairwise(gbps))
        for sample in samples[10:]:
            assert sample.size_bytes
            assert sample.messages_per_second
            assert sample.gbps == pytest.approx(
                sample.size_bytes * sample.messages_per_second * 8 / 1e9, rel=0.01
            )


def test_the_phases_come_in_order() -> None:
    pair = run_pair("hgx-h100")
    phases = [
        fact.value for fact in pair.server.output() if isinstance(fact, Fact) and fact.about is About.PHASE
    ]
    assert phases == [WAITING, CONNECTED, MEASURING]


@pytest.mark.parametrize(("tool", "rows"), [("ib_write_bw", 1), ("ib_read_bw", 1), ("ib_write_lat", 23)])
def test_the_server_prints_what_it_takes_part_in(tool: str, rows: int) -> None:
    pair = run_pair(
        "gb200",
        lambda node: settings_on(node, None, tool=tool, size_bytes=None, duration_s=None, all_sizes=True),
    )
    assert len(pair.server.samples()) == rows


@pytest.mark.slow
@pytest.mark.parametrize("tool", BANDWIDTHS)
def test_a_duration_gives_one_row_after_it(tool: str) -> None:
    pair = run_pair("hgx-h100", lambda node: settings_on(node, tool=tool, duration_s=4))
    (sample,) = pair.client.samples()
    assert sample.peak_gbps is None
    assert sample.iterations
    (at,) = pair.client.rows_seen()
    connected = pair.client.seen[next(n for n, line in enumerate(pair.client.lines) if "#bytes" in line)]
    assert 3.9 < at - connected < 4.3


@pytest.mark.slow
def test_equal_seeds_at_equal_clocks_print_the_same() -> None:
    a, b, other = (run_pair("hgx-h100", seed=seed) for seed in (3, 3, 4))
    assert a.client.lines == b.client.lines
    assert a.server.lines == b.server.lines
    assert a.client.samples()[0].gbps != other.client.samples()[0].gbps
    assert a.client.samples()[0].gbps == pytest.approx(other.client.samples()[0].gbps, rel=0.02)


@pytest.mark.slow
def test_both_directions_of_two_ports_add_up() -> None:
    other_nic = run_pair("hgx-h100", settings_on, lambda near: replace(near, device="mlx5_1"))
    two = run_pair(
        "hgx-h100",
        lambda node: settings_on(node, is_bidirectional=True),
        lambda near: replace(near, device="mlx5_1"),
    )
    (single,), (double,) = other_nic.client.samples(), two.client.samples()
    assert double.is_bidirectional
    assert 1.8 < (double.gbps or 0) / (single.gbps or 1) < 2.0
    assert len(two.server.samples()) == 1


def test_without_end_a_row_comes_every_few_seconds_until_it_is_ended() -> None:
    node = Node("hgx-h100")
    waits, asks = both(node, settings_on(node, is_endless=True, duration_s=2))
    server = node.begin(waits.argv)
    node.wait(0.3, server)
    client = node.begin(asks.argv)
    node.wait(31.0, server, client)
    assert (client.status, server.status) == (None, None)
    assert server.samples() == []
    seen = client.rows_seen()
    assert len(seen) == 14
    assert all(1.9 < after - before < 2.1 for before, after in itertools.pairwise(seen))
    assert all(sample.peak_gbps is None for sample in client.samples())
    node.clock.now += 0.01
    client.test.end(15)
    node.wait(1.0, server, client)
    assert client.status == -15
    assert server.status == 1
    gone = server.failure()
    assert gone is not None
    assert "peer exited" in gone.text
    ended = client.failure()
    assert ended is not None
    assert ended.text == "the test was terminated"


@pytest.mark.slow
def test_a_client_whose_server_dies_gets_no_answer() -> None:
    node = Node("dgx-a100")
    waits, asks = both(node, settings_on(node))
    server = node.begin(waits.argv)
    node.wait(0.3, server)
    client = node.begin(asks.argv)
    node.wait(4.0, server, client)
    server.test.end(9)
    node.wait(1.0, server, client)
    assert (server.status, client.status) == (-9, 1)
    failure = client.failure()
    assert failure is not None
    assert "did not respond" in failure.text


@pytest.mark.slow
def test_what_was_printed_before_the_end_is_not_lost() -> None:
    node = Node("hgx-h100")
    server = node.begin(both(node, settings_on(node))[0].argv)
    node.clock.now += 1.0
    server.test.end(2)
    assert server.status is None
    server.read(node.clock.now)
    assert any("Waiting for client" in line for line in server.lines)
    assert server.status == -2
    server.test.end(9)
    server.read(node.clock.now)
    assert server.status == -2


@pytest.mark.slow
def test_a_waiting_server_holds_its_tcp_port() -> None:
    node = Node("hgx-h100")
    waits, asks = both(node, settings_on(node))
    assert not listens(node)
    server = node.begin(waits.argv)
    node.wait(0.3, server)
    assert listens(node)
    second = node.begin(waits.argv)
    node.finish(second)
    failure = second.failure()
    assert second.status == 1
    assert failure is not None
    assert "TCP port is in use" in failure.text
    client = node.begin(asks.argv)
    node.clock.now += 0.4  # nobody asks the programs meanwhile
    assert not listens(node)
    node.finish(server, client)
    assert (server.status, client.status) == (0, 0)


def test_a_server_that_was_ended_frees_its_port() -> None:
    node = Node("hgx-h100")
    waits, asks = both(node, settings_on(node))
    server = node.begin(waits.argv)
    node.wait(0.5, server)
    server.test.end(15)
    assert not listens(node)
    client = node.begin(asks.argv)
    node.finish(client)
    assert client.status == 1
    assert any(line == "Couldn't connect to 127.0.0.1:18515" for line in client.lines)
    failure = client.failure()
    assert failure is not None
    assert "cannot connect to 127.0.0.1:18515" in failure.text


@pytest.mark.slow
def test_two_tests_on_two_ports_at_once() -> None:
    node = Node("hgx-h100")
    runs: list[Run] = []
    for gpu, port in ((0, 18515), (2, 18516)):
        waits, asks = both(node, settings_on(node, gpu, tcp_port=port))
        runs.append(node.begin(waits.argv))
        node.wait(0.3, *runs)
        runs.append(node.begin(asks.argv))
    node.finish(*runs)
    assert [run.status for run in runs] == [0, 0, 0, 0]
    devices = [run.facts()[About.DEVICE] for run in runs]
    assert devices[0] == devices[1] != devices[2] == devices[3]


@pytest.mark.slow
@pytest.mark.parametrize(("gpu", "dmabuf", "references"), [(0, False, 2), (0, True, 0), (None, None, 0)])
def test_memory_by_peermem_holds_its_module_until_the_end(
    gpu: int | None, dmabuf: bool | None, references: int
) -> None:
    node = Node("hgx-h100")
    del node.host.tree.references["nvidia_peermem", "job"]

    def refcnt() -> int:
        return int(str(node.host.read("/sys/module/nvidia_peermem/refcnt")))

    waits, asks = both(node, settings_on(node, gpu, dmabuf=dmabuf))
    server = node.begin(waits.argv)
    node.wait(0.5, server)
    client = node.begin(asks.argv)
    assert refcnt() == 0
    node.wait(3.0, server, client)
    assert refcnt() == references
    client.test.end(15)
    node.finish(server, client)
    assert refcnt() == 0
