"""What a pair can reach at most, on simulated nodes and on small trees; and what a measurement is worth."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.bandwidth.model.limits import (
    Bound,
    Limit,
    limit_of_gpu_copies,
    limit_of_host_memory,
    limit_of_pair,
    limit_of_two_ends,
    payload_share,
)
from probes.bandwidth.model.rating import Assessment, Rating, best_of, rate
from probes.bandwidth.model.samples import Sample
from probes.bandwidth.planning.node_settings import perftest_defaults
from probes.bandwidth.tools.perftest import PerftestOutput
from probes.bandwidth.tools.perftest_command import PerftestSettings
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.machine.local import LocalHost
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination, examine
from tests.support.machines import machine_file
from tests.support.trees import BROADCOM, MELLANOX, NVIDIA, add_function, add_rdma_device, write

UNKNOWN = Unknown(Reason.NOT_THERE)
ROOT, PORT = "pci0000:15", "0000:15:01.0"
UP, DOWN_A, DOWN_B = "0000:16:00.0", "0000:17:00.0", "0000:17:01.0"
GPU, NIC = "0000:18:00.0", "0000:19:00.0"


def tree(
    root: Path,
    nic_speed: str = "32.0 GT/s PCIe",
    nic_width: int = 16,
    gpu_speed: str = "2.5 GT/s PCIe",
    mtu: int = 0,
) -> Examination:
    """A GPU, idle, and a NIC below one switch."""
    for path in ((PORT,), (PORT, UP), (PORT, UP, DOWN_A), (PORT, UP, DOWN_B)):
        add_function(root, (ROOT, *path), BROADCOM, 0xC030)
    add_function(root, (ROOT, PORT, UP, DOWN_A, GPU), NVIDIA, 0x2330, 0x030200, speed=gpu_speed)
    nic = (ROOT, PORT, UP, DOWN_B, NIC)
    add_function(root, nic, MELLANOX, 0x1021, 0x020700, speed=nic_speed, width=nic_width)
    add_rdma_device(root, "mlx5_0", nic)
    port = "/sys/class/infiniband/mlx5_0/ports/1"
    write(root, f"{port}/rate", "400 Gb/sec (4X NDR)\n")
    write(root, f"{port}/state", "4: ACTIVE\n")
    write(root, f"{port}/link_layer", "Ethernet\n" if mtu else "InfiniBand\n")
    if mtu:
        write(root, f"/sys/devices/{'/'.join(nic)}/net/eth0/dev_port", "0\n")
        write(root, "/sys/class/net/eth0/mtu", f"{mtu}\n")
    return examine(LocalHost(str(root)))


def least(limit: Limit) -> Bound:
    assert limit.least is not None
    return limit.least


def test_the_port_limits(tmp_path: Path) -> None:
    limit = limit_of_pair(tree(tmp_path), GPU, "mlx5_0")
    assert least(limit).name == "port 1 of mlx5_0"
    assert least(limit).nominal_gbps == 400.0
    assert limit.gbps == pytest.approx(400 * 4096 / 4122)
    names = [bound.name for bound in limit.bounds]
    assert names == ["port 1 of mlx5_0", "PCIe link of GPU0", "PCIe link of mlx5_0"]


def test_a_nics_link_that_runs_low_limits(tmp_path: Path) -> None:
    limit = limit_of_pair(tree(tmp_path, nic_speed="16.0 GT/s PCIe", nic_width=8), GPU, "mlx5_0")
    assert least(limit).name == "PCIe link of mlx5_0"
    assert least(limit).nominal_gbps == pytest.approx(126.03, abs=0.01)
    assert "Gen4 x8" in least(limit).why


def test_an_idle_gpus_link_does_not(tmp_path: Path) -> None:
    bound = limit_of_pair(tree(tmp_path), GPU, "mlx5_0").bounds[1]
    assert "Gen5 x16" in bound.why
    assert "max_link_speed" in bound.evidence[0].source


@pytest.mark.parametrize(("netdev", "rdma"), [(9000, 4096), (1500, 1024)])
def test_small_packets_leave_less_for_data(tmp_path: Path, netdev: int, rdma: int) -> None:
    limit = limit_of_host_memory(tree(tmp_path, mtu=netdev), "mlx5_0")
    assert limit.gbps == pytest.approx(400 * rdma / (rdma + 82))
    assert f"{rdma} bytes" in least(limit).why


def test_loopback_is_not_bound_by_packets(tmp_path: Path) -> None:
    limit = limit_of_host_memory(tree(tmp_path, mtu=1500), "mlx5_0", is_loopback=True)
    assert limit.gbps == 400.0
    assert "carries both directions" in limit.notes[0]


def test_what_is_not_there(tmp_path: Path) -> None:
    examination = tree(tmp_path)
    for gpu, nic in ((GPU, "mlx5_9"), ("0000:ff:00.0", "mlx5_0")):
        limit = limit_of_pair(examination, gpu, nic)
        assert limit.unknown
        assert rate(sample(100.0), limit).verdict is Rating.UNKNOWN
    assert isinstance(limit_of_host_memory(examination, "mlx5_9").gbps, Unknown)
    assert limit_of_host_memory(examination, "mlx5_0", port=2).unknown == ("port 2 of mlx5_0",)
    assert isinstance(limit_of_gpu_copies(examination, "0000:ff:00.0").gbps, Unknown)


def test_simulated_nodes() -> None:
    examination = examine(SimulatedHost("hgx-h100"))
    gpu = examination.topology.gpus[0].id
    near, far = examination.topology.best_nics[gpu][0], examination.topology.best_nics[gpu][-1]
    assert limit_of_pair(examination, gpu, near).notes == ()
    assert len(limit_of_pair(examination, gpu, far).notes) == 2
    assert limit_of_gpu_copies(examination, gpu).gbps == pytest.approx(504.12 * 256 / 280, abs=0.1)


def test_a_gpu_on_its_cpus_links_is_not_bound_by_pcie() -> None:
    examination = examine(SimulatedHost("gb200"))
    gpu = examination.topology.gpus[0].id
    limit = limit_of_pair(examination, gpu, examination.topology.best_nics[gpu][0])
    assert not [bound for bound in limit.bounds if "GPU" in bound.name]
    assert "chip-to-chip" in limit.notes[0]
    assert isinstance(limit_of_gpu_copies(examination, gpu).gbps, Unknown)


def test_of_a_test() -> None:
    examination = examine(SimulatedHost("hgx-h100"))
    settings = perftest_defaults(examination, examination.topology.gpus[0].id)
    assert isinstance(settings, PerftestSettings)
    assert settings.gpu is not None
    assert settings.limit(examination) == limit_of_pair(examination, settings.gpu.bdf, settings.device)
    host = replace(settings, gpu=None)
    assert host.limit(examination, True) == limit_of_host_memory(examination, settings.device, 1, True)


def test_payload() -> None:
    assert payload_share(128) < payload_share(256) < payload_share(512) < 1


def limit_of(
    nominal: Maybe[float], share: float = 0.98, is_pcie: bool = False, is_loopback: bool = False
) -> Limit:
    net = nominal if isinstance(nominal, Unknown) else nominal * share
    return Limit((Bound("port 1 of mlx5_0", nominal, net, "4X HDR", (), is_pcie),), (), is_loopback)


def sample(gbps: float | None, size: int = 1 << 20, both: bool = False) -> Sample:
    return Sample("RDMA_Write", "row", size_bytes=size, gbps=gbps, is_bidirectional=both)


@pytest.mark.parametrize(
    ("judged", "verdict", "words"),
    [
        (rate(sample(186.0), limit_of(200.0)), Rating.NEAR, "186 of 200 Gb/s, 93 %"),
        (rate(sample(170.0), limit_of(200.0)), Rating.BELOW, "170 of 200 Gb/s, 85 %"),
        (rate(sample(170.0), limit_of(200.0, is_pcie=True)), Rating.NEAR, "170 of 200 Gb/s, 85 %"),
        (rate(sample(372.0, both=True), limit_of(200.0)), Rating.NEAR, "372 of 400 Gb/s, 93 %"),
        (
            rate(sample(186.0, both=True), limit_of(200.0, is_loopback=True)),
            Rating.NEAR,
            "186 of 200 Gb/s, 93 %",
        ),
        (rate(sample(100.0), limit_of(200.0), sample(102.0)), Rating.LIKE_HOST, "100 of 200 Gb/s, 50 %"),
        (rate(sample(100.0), limit_of(200.0), sample(196.0)), Rating.BELOW, "100 of 200 Gb/s, 50 %"),
        (rate(sample(0.5, size=64), limit_of(200.0)), Rating.UNKNOWN, "0.5 of 200 Gb/s, 0 %"),
        (rate(sample(186.0), limit_of(UNKNOWN)), Rating.UNKNOWN, "186 Gb/s"),
        (rate(sample(None), limit_of(200.0)), Rating.UNKNOWN, ""),
    ],
)
def test_verdicts(judged: Assessment, verdict: Rating, words: str) -> None:
    assert (judged.verdict, judged.words) == (verdict, words)
    assert judged.why


def test_a_way_that_nothing_goes_is_told_from_one_that_is_slow() -> None:
    nothing = rate(replace(sample(0.0, size=64), messages_per_second=0.0), limit_of(200.0))
    assert nothing.verdict is Rating.BELOW
    assert "no message completed" in nothing.why
    little = rate(replace(sample(0.0, size=64), messages_per_second=12.0), limit_of(200.0))
    assert little.verdict is Rating.UNKNOWN
    assert "limited by the message rate" in little.why


def of_file(name: str) -> Sample:
    output = PerftestOutput()
    lines = machine_file(f"perftest/{name}").read_text().splitlines()
    best = best_of(sample for line in lines for sample in output.feed(line) if isinstance(sample, Sample))
    assert best is not None
    return best


def test_real_measurements() -> None:
    """400 Gb/s ports: half of it from host and near GPU alike, and less from a far GPU."""
    line = limit_of(400.0)
    host = of_file("moc-ocp-ib_write_bw_0cuda_client_00000.log")
    near = of_file("moc-ocp-ib_write_bw_1cuda_1affinity_client_00000.log")
    far = of_file("moc-ocp-ib_read_bw_1cuda_0affinity_client_00000.log")
    assert rate(host, line).words == "232 of 400 Gb/s, 58 %"
    assert rate(replace(near, gbps=230.0), line, host).verdict is Rating.LIKE_HOST
    assert rate(near, line, host).verdict is Rating.BELOW
    assert "limited by the path to the GPU" in rate(far, line, host).why
    assert rate(of_file("gke-h200-rdma-write_bw.txt"), line).verdict is Rating.NEAR


@given(st.floats(0, 1e5), st.floats(0.01, 1e4), st.booleans(), st.one_of(st.none(), st.floats(0, 1e5)))
def test_more_is_never_worse(gbps: float, nominal: float, both: bool, host: float | None) -> None:
    other = None if host is None else sample(host)
    limit = limit_of(nominal)
    single, more = (
        rate(sample(gbps, both=both), limit, other),
        rate(sample(gbps * 2, both=both), limit, other),
    )
    assert single.verdict is not Rating.NEAR or more.verdict is Rating.NEAR


def test_both_ways_a_link_of_both_ends_carries_half_each_way() -> None:
    examination = examine(SimulatedHost("dgx-a100"))
    gpu = examination.topology.gpus[0].id
    near, far = limit_of_pair(examination, gpu, "mlx5_0"), limit_of_pair(examination, gpu, "mlx5_4")
    one_way, both_ways = (limit_of_two_ends(near, far, both) for both in (False, True))

    def nominal(limit: Limit, name: str) -> float:
        found = next(bound.nominal_gbps for bound in limit.bounds if bound.name == name)
        assert isinstance(found, float)
        return found

    assert nominal(both_ways, "PCIe link of GPU0") == nominal(one_way, "PCIe link of GPU0") / 2
    assert nominal(both_ways, "port 1 of mlx5_0") == nominal(one_way, "port 1 of mlx5_0")
    judged = rate(sample(220.0, both=True), both_ways)
    assert judged.words == "220 of 252 Gb/s, 87 %"
    assert judged.verdict is Rating.NEAR
    assert "both ends share it" in judged.why
    # Two functions of one card have one link, by whatever name.
    card = replace(near.bounds[1], part="0000:18:00")
    of_one = limit_of_two_ends(Limit((card,)), Limit((replace(card, name="PCIe link of mlx5_1"),)), True)
    assert len(of_one.bounds) == 1
