"""Trust mode, DSCP mapping and PFC, from dcb and from mlnx_qos."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.facts.rdma.roce import QosFacts, parse_dscp_priorities, parse_mlnx_qos, parse_pfc
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine

# att/netarbiter, nvmf/OUTPUTSAMPLE.setup-nic-lossless-layer3.sh.md, shortened.
REAL = """\
DCBX mode: OS controlled
Priority trust state: dscp
dscp2prio mapping:
        prio:0 dscp:07,06,05,04,03,02,01,00,
        prio:3 dscp:31,30,29,28,27,26,25,24,
        prio:7 dscp:63,62,61,60,59,58,57,56,
Cable len: 7
PFC configuration:
        priority    0   1   2   3   4   5   6   7
        enabled     0   0   0   1   0   0   0   0   
tc: 0 ratelimit: unlimited, tsa: vendor
         priority:  1
"""


def qos_of(host: SimulatedHost) -> QosFacts:
    facts = examine(host).qos
    assert not isinstance(facts, Unknown)
    return facts


def test_dcb_shows_the_priorities_with_flow_control() -> None:
    on = [False, False, False, True, False, False, False, False]
    assert parse_pfc(json.dumps({"pfc_cap": 8, "macsec_bypass": False, "delay": 0, "prio_pfc": on})) == (3,)
    assert parse_pfc(json.dumps({"prio_pfc": ["off", "on", *["off"] * 6]})) == (1,)
    assert parse_pfc("{}") is None


def test_dcb_shows_the_priority_of_each_dscp() -> None:
    assert parse_dscp_priorities('{"dscp_prio":[[0,0],[26,3],["AF31",3],[99,3]]}') == {0: 0, 26: 3}
    assert parse_dscp_priorities("") == {}
    assert parse_dscp_priorities("[]") is None


def test_real_output_of_mlnx_qos() -> None:
    found = parse_mlnx_qos(REAL)
    assert found is not None
    assert (found.pfc, found.trusts_dscp) == ((3,), True)
    assert not isinstance(found.priorities, Unknown)
    assert (found.priorities[26], found.priorities[63], found.priorities[7]) == (3, 7, 0)
    by_pcp = parse_mlnx_qos(REAL.replace("state: dscp", "state: pcp"))
    assert by_pcp is not None
    assert by_pcp.trusts_dscp is False


@given(st.binary(max_size=120) | st.lists(st.sampled_from(REAL.splitlines()), max_size=9).map("\n".join))
@settings(max_examples=60)
def test_any_output_is_read_or_refused(output: bytes | str) -> None:
    text = output if isinstance(output, str) else output.decode("utf-8", "replace")
    for found in (parse_pfc(text), parse_mlnx_qos(text), parse_dscp_priorities(text)):
        assert found is None or found is not NotImplemented
    mapped = parse_dscp_priorities(text)
    assert mapped is None or all(0 <= dscp < 64 for dscp in mapped)


def test_the_ports_of_a_bond_are_asked() -> None:
    facts = qos_of(SimulatedHost("bare-roce"))
    assert len(facts.netdevs) == 16
    assert facts.netdevs["ens0f1np1"].pfc == (3,)


def test_without_dcb_a_few_netdevs_are_asked_with_mlnx_qos() -> None:
    facts = qos_of(SimulatedHost("oci-h100"))
    assert 0 < len(facts.netdevs) <= 4
    first = next(iter(facts.netdevs.values()))
    assert (first.pfc, first.sources) == ((5,), ("mlnx_qos -i rdma0",))


def test_without_either_tool_they_are_unknown() -> None:
    facts = qos_of(SimulatedHost("gcp-a4"))
    pfc = next(iter(facts.netdevs.values())).pfc
    assert isinstance(pfc, Unknown)
    assert pfc.reason is Reason.NOT_THERE


def test_the_class_of_rdma_cm_is_read_where_it_is_configured() -> None:
    host = SimulatedHost("bare-roce")
    host.tree.add("/sys/kernel/config/rdma_cm/mlx5_bond_1/ports/1/default_roce_tos", "96\n")
    assert qos_of(host).cm_classes == {("mlx5_bond_1", 1): 96}
