"""gdrcopy, nvbandwidth and nccl-tests on simulated nodes, as the groundwork's parsers read them."""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

import pytest

from probes.bandwidth.model.command import Command, Refused
from probes.bandwidth.model.limits import limit_of_gpu_copies
from probes.bandwidth.model.samples import DONE, About, Fact, Sample
from probes.bandwidth.tools.failures import Failure
from probes.bandwidth.tools.gdrcopy import GdrcopyOutput, GdrcopySettings
from probes.bandwidth.tools.nccl_tests import NcclSettings, NcclTestsOutput
from probes.bandwidth.tools.nvbandwidth import NvbandwidthOutput, NvbandwidthSettings
from probes.facts.system.tool_names import NCCL_TESTS, TOOL_OF
from probes.snapshot.rates import port_rates, read
from tests.probes.simulation.bandwidth.node import Node, Run

Told = Sample | Fact | Failure


def run(node: Node, command: Command | Refused) -> Run:
    assert isinstance(command, Command), command
    process = node.begin(command.argv)
    node.finish(process, step=0.25)
    return process


def told(lines: Sequence[str], parser: GdrcopyOutput | NvbandwidthOutput | NcclTestsOutput) -> list[Told]:
    return [message for line in lines for message in parser.feed(line)]


def samples(found: list[Told]) -> list[Sample]:
    return [sample for sample in found if isinstance(sample, Sample)]


def values(found: list[Told], about: About) -> list[str]:
    return [fact.value for fact in found if isinstance(fact, Fact) and fact.about is about]


def nccl(name: str, gpus: int, **changes: object) -> tuple[Run, list[Told]]:
    node = Node(name)
    settings = NcclSettings(tuple(range(gpus)), **{"begin_bytes": 1 << 20, "end_bytes": 1 << 28, **changes})  # type: ignore[arg-type]
    process = run(node, settings.command(node.tools()))
    return process, told(process.lines, NcclTestsOutput())


def best_bus(found: list[Told]) -> float:
    return max(sample.bus_gbps or 0 for sample in samples(found)) / 8


@pytest.mark.parametrize("tool", sorted({*TOOL_OF.values()}))
def test_every_tool_is_simulated(tool: str) -> None:
    module = f"probes.simulation.bandwidth.{tool.replace('-', '_')}"
    assert find_spec(module), f"there is no {module.replace('.', '/')}.py, which a simulated node starts"
    assert callable(import_module(module).start)


@pytest.mark.slow
def test_copies_of_the_cpu() -> None:
    node = Node("hgx-h100")
    near, far = (
        samples(
            told(run(node, GdrcopySettings(5, numa_node=numa).command(node.tools())).lines, GdrcopyOutput())
        )
        for numa in (1, 0)
    )
    assert [sample.what for sample in near] == ["CPU writes GPU memory", "CPU reads GPU memory"]
    write, reading = (sample.gbps or 0 for sample in near)
    assert reading < 0.1 * write
    limit = limit_of_gpu_copies(node.examination(), node.examination().topology.gpus[5].id).gbps
    assert isinstance(limit, float)
    assert 0.1 * limit < write < limit
    assert (far[0].gbps or 0) < 0.75 * write
    assert near[0].size_bytes == 131072


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("gdrdrv-missing", "gdrdrv is not loaded"),
        ("gdrdrv-device-missing", "gdrdrv is not loaded"),
        ("fabric-manager-down", "CUDA error 802: system not yet initialized"),
    ],
)
def test_gdrcopy_fails(fault: str, cause: str) -> None:
    node = Node(f"hgx-h100+{fault}")
    process = run(node, GdrcopySettings(0).command(node.tools()))
    failure = process.failure()
    assert process.status == 1
    assert failure is not None
    assert cause in failure.text


@pytest.mark.parametrize("name", ["hgx-h100", "dgx-a100", "gb200"])
def test_nvbandwidth_measures_each_direction(name: str) -> None:
    node = Node(name)
    gpus = node.examination().topology.gpus
    settings = NvbandwidthSettings()
    process = run(node, settings.command(node.tools()))
    assert process.status == 0
    assert process.failure() is None
    found = samples(told(process.lines, NvbandwidthOutput()))
    for test in settings.required_tests:
        assert [each.variant for each in found if each.what == test][-1] == "sum"
        assert sum(each.what == test for each in found) == len(gpus) + 1
    figures = {(each.what, each.variant): each.gbps or 0 for each in found}
    to_gpu = figures[settings.required_tests[0], "CPU 0 → GPU 0"]
    limit = limit_of_gpu_copies(node.examination(), gpus[0].id).gbps
    assert to_gpu < limit if isinstance(limit, float) else to_gpu > 1000
    assert figures[settings.required_tests[1], "CPU 0 ← GPU 0"] < to_gpu


def test_a_gpu_in_a_slow_slot_is_seen() -> None:
    node = Node("hgx-h100+pcie-link-limited-by-slot")
    process = run(node, NvbandwidthSettings(("host_to_device_memcpy_ce",)).command(node.tools()))
    figures = {each.variant: each.gbps or 0 for each in samples(told(process.lines, NvbandwidthOutput()))}
    assert figures["CPU 0 → GPU 6"] < 0.6 * figures["CPU 0 → GPU 5"]


def test_nvbandwidth_without_cuda() -> None:
    node = Node("hgx-h100+fabric-manager-down")
    process = run(node, NvbandwidthSettings().command(node.tools()))
    failure = process.failure()
    assert process.status == 1
    assert failure is not None
    assert "CUDA error 802: system not yet initialized" in failure.text
    assert any(isinstance(each, Failure) for each in told(process.lines, NvbandwidthOutput()))


@pytest.mark.parametrize("tool", NCCL_TESTS)
def test_collectives_over_nvlink(tool: str) -> None:
    process, found = nccl("hgx-h100", 8, tool=tool)
    assert process.status == 0
    assert process.failure() is None
    assert values(found, About.TEST) == [tool.removesuffix("_perf")]
    assert len(values(found, About.RANK)) == 8
    assert values(found, About.ROUTE) == ["P2P/CUMEM"]
    assert DONE in values(found, About.PHASE)
    rows = [each for each in samples(found) if each.variant != "average"]
    assert len(rows) == 2 * 9
    assert all(each.wrong in (0, None) for each in rows)
    for each in rows:
        assert each.size_bytes
        assert each.time_us
        assert each.gbps == pytest.approx(each.size_bytes * 8 / each.time_us / 1e3, rel=0.02)
    average = next(each for each in samples(found) if each.variant == "average")
    assert average.bus_gbps == pytest.approx(sum(each.bus_gbps or 0 for each in rows) / len(rows), rel=0.01)
    assert 250 < best_bus(found) < 500


@pytest.mark.parametrize(
    ("name", "routes", "least", "most"),
    [
        ("hgx-h100", {"NET/IB/0/GDRDMA", "NET/IB/1/GDRDMA"}, 40, 50),
        ("dgx-a100", {"NET/IB/0/GDRDMA", "NET/IB/1/GDRDMA"}, 20, 25),
        ("gb200", {"NET/IB/0/GDRDMA", "NET/IB/1/GDRDMA"}, 40, 50),
        ("pcie-l40s", {"NET/IB/0/GDRDMA"}, 8, 13),
        ("hgx-h100+no-gdr-path", {"NET/IB/0", "NET/IB/1"}, 15, 27),
    ],
)
def test_over_the_network_the_route_tells_whether_gdr_is_used(
    name: str, routes: set[str], least: float, most: float
) -> None:
    process, found = nccl(name, 2, over_network=True)
    assert process.status == 0
    assert set(values(found, About.ROUTE)) == routes
    assert least < best_bus(found) < most


def test_far_nics_carry_no_gdr() -> None:
    _, found = nccl("hgx-h100", 2, over_network=True, devices=("mlx5_8",))
    assert values(found, About.ROUTE) == ["NET/IB/0"]


def test_without_nvlink_sockets_are_joined_by_shared_memory() -> None:
    _, found = nccl("pcie-l40s", 4)
    assert set(values(found, About.ROUTE)) == {"P2P/CUMEM", "SHM/direct/direct"}
    assert best_bus(found) < 30


def test_a_node_without_an_active_nic_does_not_take_sockets() -> None:
    node = Node("pcie-l40s")
    for device in ("mlx5_0", "mlx5_1"):
        path = node.host.tree.real(f"/sys/class/infiniband/{device}/ports/1/state")
        assert isinstance(path, str)
        node.host.tree.add(path, "1: DOWN\n")
    settings = NcclSettings((0, 1), begin_bytes=1 << 20, end_bytes=1 << 22, over_network=True)
    process = run(node, settings.command(node.tools()))
    failure = process.failure()
    assert failure is not None
    assert "no usable RDMA NIC" in failure.text
    assert not samples(told(process.lines, NcclTestsOutput()))


@pytest.mark.parametrize(
    ("name", "changes", "cause"),
    [
        ("hgx-h100+fabric-manager-down", {}, "CUDA failed: system not yet initialized"),
        ("hgx-h100+acs-on,iommu-translated", {"over_network": True}, "NCCL"),
    ],
)
def test_collectives_fail(name: str, changes: dict[str, object], cause: str) -> None:
    process, found = nccl(name, 4, **changes)
    failure = process.failure()
    assert process.status not in (0, None)
    assert failure is not None
    assert cause in failure.text
    assert not samples(found)


def test_a_lost_gpu_is_missed() -> None:
    process, _ = nccl("hgx-h100+xid-79-fell-off-bus", 8)
    assert process.status == 1
    # Eight were asked to be visible; behind the lost one the numbers move up.
    assert process.lines[0] == "Invalid number of GPUs: 8 requested but only 7 were found."


def test_the_ports_carry_what_the_collective_sends_until_it_is_ended() -> None:
    node = Node("gb200")
    settings = NcclSettings(
        (0, 1), begin_bytes=1 << 30, end_bytes=1 << 30, iterations=1000, over_network=True
    )
    command = settings.command(node.tools())
    assert isinstance(command, Command)
    facts = node.examination().node
    process = node.begin(command.argv)
    node.wait(3, process)
    first = read(node.host, facts)
    node.wait(2, process)
    second = read(node.host, facts)
    assert float(str(port_rates(first, second)["mlx5_0", 1].sent_gbps)) > 360
    process.test.end(15)
    third = read(node.host, facts)
    node.wait(30, process, step=1.0)
    assert process.status == -15
    after = float(str(port_rates(third, read(node.host, facts))["mlx5_0", 1].sent_gbps))
    assert 0 < after < 350


@pytest.mark.parametrize(
    ("name", "missing"),
    [("cloud-vm", "nvbandwidth"), ("pcie-l40s", "nvbandwidth"), ("dgx-a100", "gdrcopy_copybw")],
)
def test_what_is_not_installed_is_refused(name: str, missing: str) -> None:
    tools = Node(name).tools()
    made = (NvbandwidthSettings().command(tools), GdrcopySettings(0).command(tools))
    assert Refused(f"{missing} is not installed") in made
