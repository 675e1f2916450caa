"""What simulated tests measure follows from the node: the faulty way is the slow one."""

import pytest

from probes.bandwidth.model.rating import Rating, best_of, rate
from probes.bandwidth.tools.perftest_command import PerftestSettings
from probes.simulation.bandwidth.speeds import of_size
from tests.probes.simulation.bandwidth.node import Node, Pair, both, run_pair, settings_on
from tests.support.tiers import usual


def measured(name: str, gpu: int | None, nic: str, tool: str = "ib_write_bw", **changes: object) -> float:
    return gbps_of(run_on(name, gpu, nic, tool, **changes))


def run_on(name: str, gpu: int | None, nic: str, tool: str = "ib_write_bw", **changes: object) -> Pair:
    def settings(node: Node) -> PerftestSettings:
        return settings_on(node, gpu, nic, tool=tool, **changes)

    return run_pair(name, settings)


def gbps_of(pair: Pair) -> float:
    assert pair.client.status == 0, pair.client.lines
    best = best_of(pair.client.samples())
    assert best is not None
    assert best.gbps is not None
    return best.gbps


@pytest.mark.slow
@pytest.mark.parametrize("tool", usual(["ib_write_bw", "ib_read_bw"], {"ib_write_bw"}))
def test_the_further_the_way_the_less(tool: str) -> None:
    near, through_cpu, across = (measured("hgx-h100", gpu, "mlx5_0", tool) for gpu in (0, 2, 4))
    assert 0.35 < through_cpu / near < 0.6
    assert 0.2 < across / near < 0.4
    assert across < through_cpu
    # The way of host memory is the same for all.
    assert measured("hgx-h100", None, "mlx5_0", tool) == pytest.approx(near, rel=0.02)


@pytest.mark.slow
def test_acs_redirects_cost_half() -> None:
    healthy, redirected = measured("hgx-h100", 0, "mlx5_0"), measured("hgx-h100+acs-on", 0, "mlx5_0")
    assert redirected < 0.55 * healthy
    assert measured("hgx-h100+acs-on", None, "mlx5_0") == pytest.approx(
        measured("hgx-h100", None, "mlx5_0"), rel=0.01
    )


@pytest.mark.parametrize(
    ("fault", "nic", "least", "most"),
    [
        ("pcie-link-degraded-width", "mlx5_2", 0.85, 0.95),
        ("pcie-link-degraded-speed", "mlx5_3", 0.85, 0.95),
        ("half-rate", "mlx5_2", 0.9, 1.0),
        ("one-lane", "mlx5_7", 0.9, 1.0),
    ],
)
@pytest.mark.slow
def test_what_limits_is_reached_but_for_its_overhead(fault: str, nic: str, least: float, most: float) -> None:
    pair = run_on(f"hgx-h100+{fault}", None, nic)
    limit = pair.settings.limit(pair.node.examination(), is_loopback=True)
    assert isinstance(limit.gbps, float)
    assert least < gbps_of(pair) / limit.gbps < most
    assert gbps_of(pair) < 0.75 * measured("hgx-h100", None, nic)
    sample = best_of(pair.client.samples())
    assert sample is not None
    assert rate(sample, limit).verdict is Rating.NEAR


@pytest.mark.slow
def test_small_read_requests_slow_a_nic_down() -> None:
    slow = measured("hgx-h100+pcie-devctl-read-request", None, "mlx5_0")
    assert slow < 0.95 * measured("hgx-h100", None, "mlx5_0")


def test_a_guest_whose_nics_do_not_translate_is_slow() -> None:
    assert measured("cloud-vm+vm-without-p2p-ats", 0, "mlx5_0") < 0.5 * measured("cloud-vm", 0, "mlx5_0")


@pytest.mark.slow
def test_the_judgment_of_a_slow_way_names_it() -> None:
    pair = run_on("hgx-h100", 0, "mlx5_8")
    host = best_of(run_on("hgx-h100", None, "mlx5_8").client.samples())
    sample = best_of(pair.client.samples())
    assert sample is not None
    judgment = rate(sample, pair.settings.limit(pair.node.examination(), is_loopback=True), host)
    assert judgment.verdict is Rating.BELOW
    assert "limited by the path to the GPU" in judgment.why
    assert "from one CPU socket to another" in judgment.why


@pytest.mark.slow
def test_latency_grows_with_the_way() -> None:
    def average(gpu: int | None) -> float:
        def settings(node: Node) -> PerftestSettings:
            return settings_on(node, gpu, "mlx5_0", tool="ib_write_lat", size_bytes=8, duration_s=None)

        (sample,) = run_pair("hgx-h100", settings).client.samples()
        return next(latency.microseconds for latency in sample.latencies if latency.statistic == "average")

    assert average(None) < average(0) < average(2) < average(4) < 12


def test_small_messages_are_bound_by_their_number() -> None:
    figures = [of_size(1 << power, 390.0) for power in range(1, 24)]
    assert figures == sorted(figures)
    assert figures[0] == pytest.approx(4.2e6 * 2 * 8 / 1e9, rel=0.01)
    assert figures[15] > 0.99 * 390
    assert figures[-1] <= 390
    assert of_size(64, 390.0, queue_pairs=4) == pytest.approx(4 * of_size(64, 390.0), rel=0.01)


@pytest.mark.slow
def test_jitter_stays_below_one_percent() -> None:
    def settings(node: Node) -> PerftestSettings:
        return settings_on(node, is_endless=True, duration_s=1)

    node = Node("hgx-h100")
    waits, asks = both(node, settings(node))
    server = node.begin(waits.argv)
    node.wait(0.3, server)
    client = node.begin(asks.argv)
    node.wait(60, server, client, step=0.5)
    figures = [sample.gbps or 0 for sample in client.samples()]
    assert len(figures) > 50
    assert len(set(figures)) > 20
    assert max(figures) / min(figures) < 1.01
