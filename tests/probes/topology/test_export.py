"""The graph as other programs read it."""

import re
from dataclasses import replace
from itertools import pairwise

import networkx as nx
import pytest

from probes.facts.node import probe_node
from probes.facts.rdma.devices import RdmaFacts
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.description import simulated_names
from probes.topology.export import Mark, dot, node_link, plain_graph
from probes.topology.graph import build_parts
from probes.topology.paths import Topology, build

SOURCE = "from node <a&b> --> \x1b[31mgpu01"
QUOTED = r'"(?:[^"\\]|\\.)*"'
DOT_LINE = re.compile(rf"  {QUOTED}( -- {QUOTED})? \[label={QUOTED} [^\"]*(\"#[0-9a-f]{{6}}\"[^\"]*)*\];")


def topology(name: str = "hgx-h100") -> Topology:
    return build(probe_node(SimulatedHost(name)))


@pytest.mark.parametrize("name", simulated_names())
def test_every_form_has_every_device_and_link(name: str) -> None:
    found = topology(name)
    plain = plain_graph(found.graph, {})
    again = nx.node_link_graph(node_link(plain), edges="edges")
    assert dict(again.nodes(data="label")) == dict(plain.nodes(data="label"))
    assert {frozenset(pair) for pair in again.edges} == {frozenset(pair) for pair in found.graph.edges}
    text = dot(plain, SOURCE)
    assert text.count(" -- ") == plain.number_of_edges()
    for end in (*found.gpus, *found.nics):
        assert f'"{end.bdf}" [label="{end.label}' in text


def test_a_path_of_a_script_is_that_of_gdrtop() -> None:
    found = topology()
    graph = nx.node_link_graph(node_link(plain_graph(found.graph, {})), edges="edges")
    path = found.path(found.gpus[0].id, found.best_nics[found.gpus[0].id][0])
    route = nx.shortest_path(graph, path.hops[0].id, path.hops[-1].id)
    assert route == [hop.id for hop in path.hops]
    carried = [graph.edges[pair].get("gbps") for pair in pairwise(route)]
    assert path.gbps == pytest.approx(min(gbps for gbps in carried if gbps is not None), abs=0.1)


def test_the_firmware_tells_a_virtual_function_of_connectx9() -> None:
    """NCCL 2.32, net_ib/init.cc: "the part ID is not consistent between PF and VF"."""
    node = probe_node(SimulatedHost("azure-nd-h100"))
    assert isinstance(node.rdma, RdmaFacts)
    older, newer, *others = node.rdma.devices
    newer = replace(newer, firmware="82.48.1000")
    node = replace(node, rdma=replace(node.rdma, devices=(older, newer, *others)))
    names = dict(build(node).graph.nodes(data="name"))
    assert names[str(older.bdf)] == "Mellanox ConnectX virtual function"
    assert names[str(newer.bdf)] == "Mellanox ConnectX-9 virtual function"


def test_links_have_their_speeds_and_types() -> None:
    graph = plain_graph(topology("gb200").graph, {})
    kinds = {kind for _, _, kind in graph.edges(data="type")}
    assert kinds == {"PCIe", "internal", "SMP", "NVLink", "C2C"}
    pcie = graph.edges["0000:00:01.0", "0000:01:00.0"]
    assert (pcie["speed_gtps"], pcie["width"], pcie["text"]) == (32.0, 16, "Gen5 x16")
    assert pcie["degraded"] is False


def test_a_link_below_its_best_is_degraded() -> None:
    found = topology("hgx-h100+pcie-link-degraded-width")
    plain = plain_graph(found.graph, {})
    degraded = [edge for _, _, edge in plain.edges(data=True) if edge.get("degraded")]
    assert degraded
    assert all("now" in edge["text"] for edge in degraded)
    assert dot(plain, SOURCE).count("degraded") == len(degraded)


def test_marked_devices_name_their_findings() -> None:
    found = topology()
    gpu = found.gpus[0].id
    plain = plain_graph(found.graph, {gpu: Mark("critical", ("bar1-too-small", "gpu-link-width"))})
    assert plain.nodes[gpu]["severity"] == "critical"
    assert "critical: bar1-too-small, gpu-link-width" in dot(plain, SOURCE)


def test_names_from_the_node_cannot_leave_their_quotes() -> None:
    found = topology()
    graph = build_parts(found.node, (*found.gpus, *found.nics)).graph()
    for name in (found.gpus[0].id, str(found.nics[0].bdf)):
        graph.nodes[name]["name"] = '"]; evil [label="\\" \x1b[2J <b>&amp;</b> é \\'
    plain = plain_graph(graph, {})
    lines = dot(plain, SOURCE).splitlines()[4:-1]
    assert all(DOT_LINE.fullmatch(line) for line in lines)
    assert "\x1b" not in dot(plain, SOURCE)
