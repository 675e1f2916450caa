"""IPv4 networks of RoCE netdevs: the settings in effect, and policy routing by source address."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from probes.base.unknown import Unknown
from probes.facts.rdma.roce import CONF, RailNetworkFacts, parse_source_tables, parse_table_netdevs
from probes.simulation.host import SimulatedHost
from probes.simulation.node.devices.network import set_policy_routing
from probes.snapshot.examination import examine
from tests.support.doctor import examination_of


def rails_of(host: SimulatedHost) -> RailNetworkFacts:
    facts = examine(host).rail_networks
    assert not isinstance(facts, Unknown)
    return facts


def test_the_larger_of_all_and_the_netdev_counts() -> None:
    host = SimulatedHost("oci-h100")
    host.tree.add(f"{CONF}/all/rp_filter", "0\n")
    host.tree.add(f"{CONF}/rdma3/rp_filter", "1\n")
    netdevs = {netdev.name: netdev for netdev in rails_of(host).netdevs}
    assert netdevs["rdma3"].rp_filter == 1
    assert netdevs["rdma4"].rp_filter == 2
    assert netdevs["rdma4"].arp_ignore == 1


def test_networks_with_two_netdevs_are_shared() -> None:
    facts = rails_of(SimulatedHost("oci-h100"))
    assert [(network, len(netdevs)) for network, netdevs in facts.shared.items()] == [("192.168.0.0/16", 16)]


def test_where_each_netdev_has_its_own_network_the_rules_are_not_asked() -> None:
    host = SimulatedHost("gcp-a4")
    asked: list[tuple[str, ...]] = []
    host.tree.commands["ip"] = lambda argv, seconds: asked.append(argv) or "[]"  # type: ignore[func-returns-value]
    facts = rails_of(host)
    assert len(facts.netdevs) == 8
    assert not facts.shared
    assert not asked
    assert isinstance(facts.routed_by_source, Unknown)


def test_netdevs_with_a_rule_for_their_address_are_routed_by_source() -> None:
    host = SimulatedHost("bare-roce")
    assert rails_of(host).routed_by_source == frozenset()
    set_policy_routing(host.tree, by_source=True)
    assert rails_of(host).routed_by_source == {f"bond{number}" for number in range(8)}


def test_a_node_without_roce_has_no_rails() -> None:
    facts = examination_of("azure-nd-h100").rail_networks
    assert not isinstance(facts, Unknown)
    assert facts.netdevs == ()


def test_rules_and_routes_of_iproute2() -> None:
    rules = [
        {"priority": 0, "src": "all", "table": "local"},
        {"priority": 101, "src": "10.30.0.11", "table": "101"},
        {"priority": 102, "src": "10.30.1.0", "srclen": 24, "table": "rail1"},
        {"priority": 103, "src": "all", "fwmark": "0x1", "table": "103"},
    ]
    assert parse_source_tables(json.dumps(rules)) == {"101", "rail1"}
    routes = [
        {"dst": "default", "gateway": "10.30.0.1", "dev": "bond0", "table": "101"},
        {"dst": "10.30.0.0/16", "dev": "bond1", "protocol": "kernel"},
        {"type": "unreachable", "dst": "10.0.0.0/8", "table": "101"},
    ]
    assert parse_table_netdevs(json.dumps(routes)) == {"101": {"bond0"}, "main": {"bond1"}}


KEYS = st.sampled_from(["src", "table", "dev", "priority"])
VALUES = (
    st.none() | st.integers() | st.sampled_from(["all", "101", "bond0"]) | st.lists(st.booleans(), max_size=2)
)


@given(st.binary(max_size=200) | st.lists(st.dictionaries(KEYS, VALUES) | VALUES, max_size=4).map(json.dumps))
@settings(max_examples=50)
def test_any_output_is_read_or_refused(output: bytes | str) -> None:
    text = output if isinstance(output, str) else output.decode("utf-8", "replace")
    assert parse_source_tables(text) is None or isinstance(parse_source_tables(text), frozenset)
    assert parse_table_netdevs(text) is None or isinstance(parse_table_netdevs(text), dict)


def test_deep_output_is_refused() -> None:
    assert parse_source_tables("[" * 200_000) is None
