"""An 8-GPU H100 node rebuilt from its `lspci -vvv`: devices, switches, and every path argued."""

from pathlib import Path

import pytest

from probes.facts.node import Node, probe_node
from probes.facts.pci.functions import PciFacts, PciKind
from probes.host.machine.local import LocalHost
from probes.topology.hops import Smi
from probes.topology.nccl_paths import Nccl
from probes.topology.paths import Topology, build
from tests.support.machines import machine_file
from tests.support.trees import tree_from_lspci

# Each GPU with the ConnectX-7 on the same PEX890xx switch, by the buses in the listing.
PAIRS = {"19": "1a", "3b": "3c", "4c": "4d", "5d": "5e", "9b": "9c", "bb": "bc", "cb": "cc", "db": "dc"}
# ConnectX-6 Dx cards of two ports that hang on the switch of GPU 19 and of GPU 9b.
STORAGE = {"1b": "19", "9d": "9b"}
FIRST_BUS_OF_SOCKET_1 = 0x80


def bdf(bus: str, function: int = 0) -> str:
    return f"0000:{bus}:00.{function}"


def socket(address: str) -> int:
    return int(int(address[5:7], 16) >= FIRST_BUS_OF_SOCKET_1)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Node:
    text = machine_file("lspci/h100-8gpu-supermicro-lspci-vvv.txt").read_text(errors="replace")
    root: Path = tmp_path_factory.mktemp("h100")
    tree_from_lspci(text, root)
    return probe_node(LocalHost(str(root)))


@pytest.fixture(scope="module")
def topology(node: Node) -> Topology:
    return build(node)


@pytest.mark.slow
def test_devices(node: Node, topology: Topology) -> None:
    assert [gpu.id for gpu in topology.gpus] == [bdf(bus) for bus in PAIRS]
    nics = {bdf(bus) for bus in PAIRS.values()} | {bdf(bus, port) for bus in STORAGE for port in (0, 1)}
    assert {nic.id for nic in topology.nics} == nics
    assert isinstance(node.pci, PciFacts)
    kinds = [function.kind for function in node.pci.functions.values()]
    assert kinds.count(PciKind.NVSWITCH) == 4
    # lspci numbers the two sockets' NUMA nodes 0 and 1.
    assert {gpu.numa_node for gpu in topology.gpus} == {0, 1}


def test_each_gpu_has_its_nic_on_its_own_switch(topology: Topology) -> None:
    for gpu, nic in PAIRS.items():
        path = topology.path(bdf(gpu), bdf(nic))
        assert (path.smi, path.nccl) == (Smi.PIX, Nccl.PIX)
        # Up from the GPU to its downstream port, through the switch, down to the NIC: five stations.
        assert [hop.kind for hop in path.hops][1:4] == ["downstream port", "upstream port", "downstream port"]
        assert "Gen5 x16" in path.hops[1].text


def test_every_other_path(topology: Topology) -> None:
    """Each switch has a host bridge of its own, so what shares none is NODE on one socket, SYS on two."""
    switch_of = {bdf(gpu): gpu for gpu in PAIRS}
    switch_of.update({bdf(nic): gpu for gpu, nic in PAIRS.items()})
    switch_of.update({bdf(nic, port): gpu for nic, gpu in STORAGE.items() for port in (0, 1)})
    ends = [*topology.gpus, *topology.nics]
    for a in ends:
        for b in ends:
            if a.id == b.id:
                continue
            path = topology.path(a.id, b.id)
            if switch_of[a.id] == switch_of[b.id]:
                assert (path.smi, path.nccl) == (Smi.PIX, Nccl.PIX)
            elif socket(a.id) == socket(b.id):
                assert (path.smi, path.nccl) == (Smi.NODE, Nccl.PHB)
            else:
                assert (path.smi, path.nccl) == (Smi.SYS, Nccl.SYS)
