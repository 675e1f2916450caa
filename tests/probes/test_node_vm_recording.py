"""The virtual node, as tests/node_vm recorded it: a real kernel's answers, without booting one."""

import pytest

from probes.base.unknown import Unknown
from probes.facts.gpudirect import GpuDirectFacts
from probes.facts.kernel.modules import ModuleFacts, ModuleState
from probes.facts.node import Node, probe_node
from probes.recording.archive import read_archive
from probes.recording.replay_host import ReplayHost
from probes.snapshot.examination import examine
from probes.snapshot.rates import read
from probes.topology.hops import Smi
from probes.topology.paths import build
from tests.recordings import NODE_VM
from tui.files.new_file import chunks_of

# Two roots with two switches each, and below each switch two GPUs and a NIC, as QEMU was told.
GPUS = ["43", "44", "48", "49", "83", "84", "88", "89"]
NICS = {"mlx5_0": "45", "mlx5_1": "4a", "mlx5_2": "85", "mlx5_3": "8a"}


@pytest.fixture
def host() -> ReplayHost:
    return ReplayHost(read_archive(chunks_of(str(NODE_VM))))


@pytest.fixture
def node(host: ReplayHost) -> Node:
    return probe_node(host)


def test_gpus_nics_and_the_paths_between(node: Node) -> None:
    topology = build(node)
    assert [gpu.id for gpu in topology.gpus] == [f"0000:{bus}:00.0" for bus in GPUS]
    assert {nic.id: nic.bdf for nic in topology.nics} == {
        name: f"0000:{bus}:00.0" for name, bus in NICS.items()
    }
    for number, gpu in enumerate(topology.gpus):
        own = f"mlx5_{number // 2}"
        assert topology.best_nics[gpu.id][0] == own
        for nic in NICS:
            same_root = number // 4 == int(nic[-1]) // 2
            word = Smi.PIX if nic == own else Smi.PHB if same_root else Smi.SYS
            assert topology.path(gpu.id, nic).smi is word


def test_the_ladder(node: Node) -> None:
    assert isinstance(node.modules, ModuleFacts)
    live = {name for name, module in node.modules.modules.items() if module.state is ModuleState.LIVE}
    assert live == {"ib_core", "ib_uverbs", "mlx5_core", "mlx5_ib", "nvidia", "nvidia_uvm", "nvidia_peermem"}
    assert node.modules.memory_peers == ("nv_mem",)
    assert set(node.modules.modules["nvidia"].used_by) == {"nvidia_uvm", "nvidia_peermem"}


def test_no_nic_takes_dma_buf_and_peermem_serves(node: Node) -> None:
    assert isinstance(node.gpudirect, GpuDirectFacts)
    assert node.gpudirect.nic_dmabuf == dict.fromkeys(NICS, False)
    assert node.gpudirect.peermem.usable is True


def test_the_refcount_went_up(host: ReplayHost, node: Node) -> None:
    seen = []
    for moment in range(len(host.recording.moments)):
        host.seek(moment)
        refcnt = read(host, node).peermem.refcnt
        if not isinstance(refcnt, Unknown) and refcnt not in seen[-1:]:
            seen.append(refcnt)
    assert seen == [0, 3, 7]


def test_the_doctor_has_what_it_asks(host: ReplayHost, node: Node) -> None:
    examination = examine(host, node)
    for name in ("config_space", "kernel_log", "port_health", "tools", "module_files", "services"):
        assert not isinstance(getattr(examination, name), Unknown), name
