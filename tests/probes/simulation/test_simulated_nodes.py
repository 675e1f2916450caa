"""Simulated nodes: probes read what the descriptions say, live and repeatable."""

from pathlib import Path

import pytest

from probes.base.origin import Source
from probes.base.unknown import Unknown
from probes.checks.registry import findings
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.gpudirect import GdrPath
from probes.facts.kernel.modules import ModuleFacts, ModuleState
from probes.facts.node import Node, probe_node
from probes.facts.pci.functions import PciFacts, PciKind
from probes.facts.rdma.devices import RdmaFacts
from probes.facts.system.numa import NumaFacts
from probes.facts.system.platform import Environment, PlatformFacts
from probes.host.machine.local import LocalHost
from probes.queries.finding import Status
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model import names
from probes.simulation.node.model.description import title
from probes.simulation.node.model.names import SIMULATED_NAMES
from probes.snapshot.examination import examine
from probes.snapshot.rates import port_rates, read
from probes.snapshot.verdict import State, assess
from probes.topology.paths import build
from tests.support.simulated_tree import write_tree
from tests.support.tiers import WITH_RATES, WITH_VERBS
from tests.support.verdict_nodes import judged

# GPUs, NICs, NUMA nodes, NVSwitches; the verdict and how many GPUs it serves.
EXPECTED = {
    "hgx-h100": (8, 10, 2, 4, State.ACTIVE, 8),
    "dgx-a100": (8, 10, 4, 6, State.ACTIVE, 8),
    "pcie-l40s": (4, 2, 2, 0, State.DEGRADED, 2),
    "gb200": (4, 4, 2, 0, State.READY, 4),
    "cloud-vm": (8, 8, 2, 0, State.UNKNOWN, 0),
    "azure-nd-h100": (8, 8, 2, 0, State.ACTIVE, 8),
    "aws-p5": (8, 32, 2, 4, State.READY, 8),
    "slingshot": (4, 4, 4, 0, State.READY, 4),
    "bare-roce": (8, 8, 2, 4, State.READY, 8),
    "gcp-a4": (8, 8, 2, 0, State.READY, 8),
    "oci-h100": (8, 18, 2, 4, State.ACTIVE, 8),
    "hgx-b200": (8, 8, 2, 0, State.READY, 8),  # the NVSwitches are no PCI functions of the host
    "hgx-b300": (8, 8, 2, 0, State.READY, 8),
    "gb300": (4, 4, 2, 0, State.READY, 4),
    "vera-rubin": (4, 8, 2, 0, State.READY, 4),
    "aws-p6-b300": (8, 16, 2, 0, State.READY, 8),
    "dgx-spark": (1, 4, 1, 0, State.NOT_APPLICABLE, 0),
}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def known(facts: object) -> object:
    assert not isinstance(facts, Unknown), facts
    return facts


@pytest.fixture(params=SIMULATED_NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def node(name: str) -> Node:
    return probe_node(SimulatedHost(name))


def test_every_described_node_is_listed() -> None:
    described = {path.stem for path in (Path(names.__file__).parents[2] / "nodes").glob("*.toml")}
    unlisted = sorted(described - {*SIMULATED_NAMES})
    assert not unlisted, f"add {unlisted} to SIMULATED_NAMES in probes/simulation/node/model/names.py"
    without = sorted({*SIMULATED_NAMES} - described)
    assert not without, f"probes/simulation/nodes has no TOML file of {without}"
    missing = sorted({*SIMULATED_NAMES} - EXPECTED.keys())
    assert not missing, f"add what {missing} must show to EXPECTED in this file"


def test_shape(name: str, node: Node) -> None:
    assert isinstance(node.gpus, GpuFacts)
    assert isinstance(node.rdma, RdmaFacts)
    assert isinstance(node.numa, NumaFacts)
    assert isinstance(node.pci, PciFacts)
    nvswitches = sum(function.kind is PciKind.NVSWITCH for function in node.pci.functions.values())
    shape = len(node.gpus.gpus), len(node.rdma.devices), len(node.numa.nodes), nvswitches
    assert shape == EXPECTED[name][:4]


def test_nothing_a_probe_asks_is_unknown_without_reason(node: Node) -> None:
    for facts in (
        node.platform,
        node.kernel,
        node.numa,
        node.pci,
        node.gpus,
        node.rdma,
        node.modules,
        node.gpudirect,
    ):
        known(facts)
    assert isinstance(node.gpus, GpuFacts)
    for gpu in node.gpus.gpus:
        known(gpu.uuid)
        known(gpu.compute_capability)
        known(gpu.nvlinks)


def test_the_origin_is_simulated(name: str, node: Node) -> None:
    assert (node.origin.source, node.origin.label) == (Source.SIMULATED, name)
    assert title(name)


def test_verdict(name: str, node: Node) -> None:
    host = SimulatedHost(name)
    verdict = judged(node, assess(node, build(node), read(host, node)))
    assert (verdict.state, verdict.gpus_served) == EXPECTED[name][4:]


def test_hgx_has_as_many_pci_functions_as_a_real_board() -> None:
    facts = probe_node(SimulatedHost("hgx-h100")).pci
    assert isinstance(facts, PciFacts)
    assert len(facts.functions) == 517


def test_a_cloud_vm_is_a_virtual_machine_without_peermem() -> None:
    node = probe_node(SimulatedHost("cloud-vm"))
    assert isinstance(node.platform, PlatformFacts)
    assert node.platform.environment is Environment.VIRTUAL_MACHINE
    assert isinstance(node.modules, ModuleFacts)
    assert node.modules.modules["nvidia_peermem"].state is ModuleState.NOT_LOADED
    assert isinstance(node.pci, PciFacts)
    gpus = [function for function in node.pci.functions.values() if function.kind is PciKind.GPU]
    assert all(isinstance(gpu.numa_node, Unknown) for gpu in gpus)


def test_the_proprietary_driver_has_no_dmabuf() -> None:
    direct = probe_node(SimulatedHost("dgx-a100")).gpudirect
    assert not isinstance(direct, Unknown)
    assert direct.dmabuf.usable is False
    assert direct.preferred is GdrPath.PEERMEM


@pytest.mark.slow
def test_equal_seeds_and_times_give_equal_figures(name: str) -> None:
    one_clock, other_clock = Clock(), Clock()
    seeded, other = SimulatedHost(name, 7, one_clock), SimulatedHost(name, 7, other_clock)
    for _ in range(3):
        one_clock.now += 1.7
        other_clock.now += 1.7
        assert read(seeded, probe_node(seeded)) == read(other, probe_node(other))


def test_another_seed_gives_other_figures() -> None:
    clock = Clock()
    seeded, other = SimulatedHost("hgx-h100", 1, clock), SimulatedHost("hgx-h100", 2, clock)
    clock.now += 10
    assert read(seeded, probe_node(seeded)) != read(other, probe_node(other))


@pytest.mark.slow
def test_counters_rise_and_stay_below_the_line_rate(name: str) -> None:
    clock = Clock()
    host = SimulatedHost(name, clock=clock)
    node = probe_node(host)
    assert isinstance(node.rdma, RdmaFacts)
    line = {
        (device.name, port.number): port.rate_gbps for device in node.rdma.devices for port in device.ports
    }
    before = read(host, node)
    for _ in range(120):
        clock.now += 1.0
        after = read(host, node)
        for port, rate in port_rates(before, after).items():
            most = line[port]
            assert not isinstance(rate.sent_gbps, Unknown)
            if name in WITH_VERBS and name not in WITH_RATES:
                most = 400.0
            assert not isinstance(most, Unknown)
            assert 0 < rate.sent_gbps <= most
        before = after


def test_the_refcount_moves_if_the_job_uses_peermem() -> None:
    clock = Clock()
    host = SimulatedHost("hgx-h100", clock=clock)
    node = probe_node(host)
    seen = set()
    for _ in range(60):
        clock.now += 1.0
        seen.add(known(read(host, node).peermem.refcnt))
    assert len(seen) > 10


@pytest.mark.slow
def test_the_same_tree_read_from_a_directory_gives_the_same_facts(name: str, tmp_path: Path) -> None:
    host = SimulatedHost(name)
    write_tree(host, tmp_path)
    simulated, read_back = probe_node(host), probe_node(LocalHost(str(tmp_path)))
    assert read_back.pci == simulated.pci
    assert read_back.numa == simulated.numa
    assert read_back.kernel == simulated.kernel
    assert read_back.rdma == simulated.rdma


def test_the_kernel_log_has_one_start() -> None:
    output = SimulatedHost("hgx-h100").run(("dmesg", "--raw"))
    assert not isinstance(output, Unknown)
    assert output.stdout.count("Linux version") == 1


def test_nvml_names_its_own_library_where_both_of_the_driver_are_missing() -> None:
    answer = SimulatedHost("hgx-h100+driver-library-missing").nvml()
    assert isinstance(answer, Unknown)
    assert answer.detail.startswith("libnvidia-ml.so.1 ")


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(KeyError):
        SimulatedHost("no-such-node")


@pytest.mark.parametrize(
    "name",
    ["pcie-l40s+geforce-no-gdr", "gb200+c2c-grace-specifics-gb10", "hgx-h100+confidential-computing-on"],
)
def test_unsupported_gpus_have_no_memory_regions(name: str) -> None:
    host = SimulatedHost(name)
    peermem = read(host, probe_node(host)).peermem
    assert isinstance(peermem.refcnt, Unknown) or peermem.refcnt == 0
    assert isinstance(peermem.peers, Unknown)
    (first, *_) = known(host.cuda_gpus())  # type: ignore[misc]
    assert (first.rdma_supported, first.dmabuf_supported) == (False, False)


@pytest.mark.parametrize("fault", ["nccl-net-socket", "nccl-ib-disabled"])
def test_a_job_that_uses_tcp_leaves_rdma_idle(fault: str) -> None:
    clock = Clock()
    host = SimulatedHost(f"hgx-h100+{fault}", clock=clock)
    node = probe_node(host)
    before = read(host, node)
    clock.now += 5
    after = read(host, node)
    rates = port_rates(before, after).values()
    assert {(rate.sent_gbps, rate.received_gbps) for rate in rates} == {(0.0, 0.0)}
    assert after.peermem.refcnt == 0


def test_oracles_h100_is_as_its_topology_file_and_nccl_conf() -> None:
    """One GPU and the two ports of one card below each switch; HPC-X's plugin is set and loaded."""
    examination = examine(SimulatedHost("oci-h100"))
    topology = examination.topology
    near = [list(topology.near_nics[gpu.id]) for gpu in topology.gpus]
    ports = [number for number in range(18) if number not in (2, 11)]
    assert near == [[f"mlx5_{a}", f"mlx5_{b}"] for a, b in zip(ports[::2], ports[1::2], strict=True)]
    found = {finding.id for finding in findings(examination) if finding.status is Status.FOUND}
    assert found == {"nccl-net-plugin-trouble"}
