"""Endpoints at one place: their paths to others are alike, so only one of them is looked at."""

import pytest

from probes.facts.node import probe_node
from probes.simulation.host import SimulatedHost
from probes.topology.paths import Topology, build
from tests.support.crowded_node import crowded_node
from tests.support.tiers import usual

NODES = ["hgx-h100", "gb200", "gb300", "gcp-a4", "bare-roce", "cloud-vm", "dgx-a100", "crowded"]


def topology_of(name: str) -> Topology:
    described = crowded_node(24, 16) if name == "crowded" else None
    return build(probe_node(SimulatedHost(name, description=described)))


def test_a_switch_is_one_place_for_its_gpus_and_nics() -> None:
    places = topology_of("crowded").paths.places
    assert len(set(places.values())) == 3  # switches


@pytest.mark.parametrize("name", usual(NODES, {"hgx-h100", "gb300"}))
def test_a_place_gives_the_same_words_as_looking_at_each_pair(name: str) -> None:
    topology = topology_of(name)
    fresh = topology_of(name)
    for gpu in topology.gpus:
        for nic in topology.nics:
            alone = words_of_pair(fresh, gpu.id, nic.id)
            path = topology.path(gpu.id, nic.id)
            assert (path.smi, path.nccl_pcie) == alone


def words_of_pair(topology: Topology, gpu: str, nic: str) -> tuple[object, object]:
    """Return the words of a pair as if it were the only one of the node."""
    pair = [end for end in topology.gpus if end.id == gpu], [end for end in topology.nics if end.id == nic]
    alone = Topology(topology.node, tuple(pair[0]), tuple(pair[1]), topology.file)
    path = alone.path(gpu, nic)
    return path.smi, path.nccl_pcie


@pytest.mark.parametrize("name", usual(NODES, {"hgx-h100", "gb300"}))
def test_the_kinds_of_paths_count_every_pair_under_its_words(name: str) -> None:
    topology = topology_of(name)
    counted: dict[object, int] = {}
    for path, count in topology.kinds_of_paths:
        words = path.smi, path.nccl, path.by_data_direct
        counted[words] = counted.get(words, 0) + count
    single: dict[object, int] = {}
    for gpu in topology.gpus:
        for nic in topology.nics:
            path = topology.path(gpu.id, nic.id)
            words = path.smi, path.nccl, path.by_data_direct
            single[words] = single.get(words, 0) + 1
    assert counted == single
