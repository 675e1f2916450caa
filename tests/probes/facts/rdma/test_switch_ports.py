"""Counters of the switch ports at the other end of InfiniBand cables."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.node import probe_node
from probes.facts.rdma.devices import RdmaFacts
from probes.facts.rdma.switch_ports import SwitchPort, read_switch_ports
from probes.host.protocol import CommandOutput
from probes.simulation.host import SimulatedHost
from tui.commands.topo import TopologyOptions, write_topology

# smpquery nodeinfo of a real switch, as a script in a public repository quotes it; its port here is made up.
NODE_INFO = """\
# Node info: Lid 1627
BaseVers:........................1
ClassVers:.......................1
NodeType:........................Switch
NumPorts:........................30
SystemGuid:......................0xe41d2d03004bef70
Guid:............................0xe41d2d03004bef70
PortGuid:........................0xe41d2d03004bef70
PartCap:.........................8
LocalPort:.......................33
"""
PORT_INFO = "# Port info: DR path slid 65535; dlid 65535; 0,1 port 0\nLid:.............................4\n"
# perfquery of a port, from a public guide
COUNTERS = """\
# Port counters: Lid 4 port 33 (CapMask: 0x1300)
PortSelect:......................33
CounterSelect:...................0x0000
SymbolErrorCounter:..............15
LinkErrorRecoveryCounter:........3
LinkDownedCounter:...............0
PortRcvErrors:...................0
PortRcvRemotePhysicalErrors:.....0
"""
# The messages of libibmad as users have posted them; without root there is no word of permissions.
NOT_OPENED = "ibwarn: [55188] mad_rpc_open_port: can't open UMAD port (mlx5_0:1)\n"
NO_ANSWER = "ibwarn: [11192] mad_rpc: _do_madrpc failed; dport (Lid 4)\n"
ANSWERS = {"nodeinfo": NODE_INFO, "portinfo": PORT_INFO, "perfquery": COUNTERS}


class Fabric(SimulatedHost):
    """Answers the queries as scripted, by operation."""

    def __init__(self, answers: Mapping[str, Maybe[CommandOutput] | str]) -> None:
        super().__init__("hgx-h100", clock=lambda: 1000.0)
        self.answers = answers
        self.asked: list[str] = []

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        name = argv[0] if argv[0] == "perfquery" else next((word for word in argv if word in ANSWERS), "")
        if not name:
            return super().run(argv, seconds)
        self.asked.append(" ".join(argv))
        answer = self.answers[name]
        return CommandOutput(tuple(argv), 0, answer, "") if isinstance(answer, str) else answer


@cache
def _fabric() -> Fabric:
    return Fabric(ANSWERS)


@cache
def _rdma() -> RdmaFacts:
    return ports_of(SimulatedHost("hgx-h100"))


def ports_of(host: SimulatedHost) -> RdmaFacts:
    rdma = probe_node(host).rdma
    assert isinstance(rdma, RdmaFacts)
    return rdma


def first_of(fabric: Fabric) -> Maybe[SwitchPort]:
    return read_switch_ports(fabric, replace(_rdma(), devices=_rdma().devices[:1]))["mlx5_0", 1]


def test_a_switch_port_is_asked_with_three_queries_that_change_nothing() -> None:
    fabric = Fabric(ANSWERS)
    found = first_of(fabric)
    assert isinstance(found, SwitchPort)
    assert (found.guid, found.number) == ("0xe41d2d03004bef70", 33)
    assert found.errors == {"SymbolErrorCounter": 15, "LinkErrorRecoveryCounter": 3}
    assert fabric.asked == [
        "smpquery -C mlx5_0 -P 1 -D nodeinfo 0,1",
        "smpquery -C mlx5_0 -P 1 -D portinfo 0,1 0",
        "perfquery -C mlx5_0 -P 1 4 33",
    ]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"nodeinfo": CommandOutput((), 1, "", "smpquery: iberror: Permission denied")}, "needs root"),
        ({"nodeinfo": CommandOutput((), 255, "smpquery: iberror: failed", NOT_OPENED)}, "needs root"),
        (
            {"nodeinfo": Unknown(Reason.NOT_THERE, "smpquery", "not installed")},
            "smpquery (infiniband-diags) is",
        ),
        ({"nodeinfo": NODE_INFO.replace("Switch", "Channel Adapter")}, "leads to a Channel Adapter"),
        ({"portinfo": ""}, "no LID"),
        ({"portinfo": PORT_INFO.replace("4\n", "-R\n")}, "no LID"),
        ({"perfquery": ""}, "no error counter"),
    ],
)
def test_what_the_fabric_does_not_say_is_unknown_with_its_reason(
    changed: Mapping[str, Maybe[CommandOutput] | str], words: str
) -> None:
    found = first_of(Fabric({**ANSWERS, **changed}))
    assert isinstance(found, Unknown)
    assert words in str(found)


@pytest.mark.parametrize(
    "late",
    [
        Unknown(Reason.TIMED_OUT, "smpquery", "still running after 5 s"),
        CommandOutput((), 255, "smpquery: iberror: failed: operation nodeinfo", NO_ANSWER),
    ],
)
def test_after_a_query_without_an_answer_no_other_port_is_asked(late: Maybe[CommandOutput]) -> None:
    fabric = Fabric({**ANSWERS, "nodeinfo": late})
    found = read_switch_ports(fabric, ports_of(fabric))
    assert len(fabric.asked) == 1
    assert all(isinstance(answer, Unknown) for answer in found.values())


def test_root_learns_that_the_port_cannot_be_opened() -> None:
    class AsRoot(Fabric):
        def is_root(self) -> bool:
            return True

    found = first_of(AsRoot({**ANSWERS, "nodeinfo": CommandOutput((), 255, "", NOT_OPENED)}))
    assert isinstance(found, Unknown)
    assert "is ib_umad loaded?" in str(found)
    assert found.reason is not Reason.NEEDS_ROOT


def test_ports_beyond_the_first_are_listed_and_not_asked() -> None:
    fabric, port = Fabric(ANSWERS), _rdma().devices[0].ports[0]
    ports = tuple(replace(port, number=number) for number in range(1, 71))
    found = read_switch_ports(fabric, replace(_rdma(), devices=(replace(_rdma().devices[0], ports=ports),)))
    assert len(found) == 70
    assert "only the first 64" in str(found["mlx5_0", 70])
    assert len(fabric.asked) == 3 * 64


def test_a_slow_fabric_is_asked_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    fabric = Fabric(ANSWERS)
    monkeypatch.setattr(fabric, "monotonic", lambda: 9.0 * len(fabric.asked))
    found = read_switch_ports(fabric, _rdma())
    assert len(fabric.asked) == 9
    assert isinstance(found["mlx5_2", 1], SwitchPort)
    assert "took 60 s" in str(found["mlx5_3", 1])


def test_unknown_ports_are_not_none(monkeypatch: pytest.MonkeyPatch) -> None:
    host = SimulatedHost("hgx-h100", clock=lambda: 1000.0)
    names = host.names
    late = Unknown(Reason.TIMED_OUT, "/sys/class/infiniband", "no answer")
    monkeypatch.setattr(host, "names", lambda path: late if path == "/sys/class/infiniband" else names(path))
    out = io.StringIO()
    write_topology(host, out, TopologyOptions(switch_ports=True))
    assert "Switch ports unknown (timed out" in out.getvalue()
    out = io.StringIO()
    write_topology(host, out, TopologyOptions("json", switch_ports=True))
    content = json.loads(out.getvalue())
    assert content["switch_ports"] is None
    assert "timed out" in content["unknown"]["switch_ports"]


def test_ethernet_is_not_asked() -> None:
    host = Fabric(ANSWERS)
    found = read_switch_ports(host, ports_of(SimulatedHost("pcie-l40s")))
    assert not host.asked
    assert {"only InfiniBand switches" in str(answer) for answer in found.values()} == {True}


def test_topo_shows_them() -> None:
    host, out = SimulatedHost("hgx-h100+packets-lost-live", clock=lambda: 1000.0), io.StringIO()
    write_topology(host, out, TopologyOptions(switch_ports=True))
    assert "mlx5_0   port 11 of switch 0x51a01a7e0000c0de: SymbolErrorCounter 1532" in out.getvalue()
    out = io.StringIO()
    write_topology(host, out, TopologyOptions("json", switch_ports=True))
    ports = {port["device"]: port for port in json.loads(out.getvalue())["switch_ports"]}
    assert ports["mlx5_0"]["counters"]["SymbolErrorCounter"] == 1532
    assert ports["mlx5_4"]["counters"] is None
    assert "InfiniBand" in ports["mlx5_4"]["unknown"]["counters"]


@pytest.mark.slow
@given(st.text(max_size=200), st.text(max_size=200), st.text(max_size=200))
def test_any_output_is_an_answer(node: str, port: str, counters: str) -> None:
    fabric = _fabric()
    fabric.answers = {"nodeinfo": NODE_INFO + node, "portinfo": PORT_INFO + port, "perfquery": counters}
    assert isinstance(first_of(fabric), SwitchPort | Unknown)
