"""Where cables end: what lldpctl prints, who may ask it, and which host and NIC a description names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.rdma.cable_ends import (
    LLDP,
    NOT_INSTALLED,
    CableEnd,
    described_hosts,
    described_nics,
    ends_of_port,
    heard_on,
    parse_lldp,
    probe,
    read_cables,
    read_neighbors,
)
from probes.facts.rdma.devices import RdmaFacts
from probes.host.protocol import CommandOutput
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine

# Of an H3C switch, as a public repository quotes it; the name of the host is left out there, too.
H3C = {
    "via": "LLDP",
    "rid": "4",
    "age": "55 days, 00:25:58",
    "chassis": {
        "CL-A052A": {
            "id": {"type": "mac", "value": "28:c9:7a:b2:ab:b8"},
            "descr": "H3C Comware S6825-54HF",
            "mgmt-ip": ["10.0.0.1", "fe80::1"],
            "capability": [{"type": "Bridge", "enabled": True}],
        }
    },
    "port": {
        "id": {"type": "ifname", "value": "FourHundredGigE1/0/98"},
        "descr": "To-gpu017-eth0",
        "ttl": "121",
        "mfs": "9216",
        "aggregation": "139",
    },
    "vlan": {"vlan-id": "52", "pvid": True},
}
# lldpctl 1.0.16 in two network namespaces with lldpd at both ends of a veth pair.
VETH = {
    "via": "LLDP",
    "rid": "1",
    "age": "0 day, 00:00:03",
    "chassis": {"leaf01": {"id": {"type": "mac", "value": "3a:90:2b:89:b8:ae"}, "descr": "Switch OS"}},
    "port": {
        "id": {"type": "mac", "value": "3a:90:2b:89:b8:ae"},
        "descr": "swp1",
        "ttl": "120",
        "auto-negotiation": {"supported": False, "enabled": False, "current": "10GbaseT"},
    },
}
# The same lldpctl without the right, and without a daemon.
DENIED = "2026-11-30T15:31:17 [WARN/control] unable to connect to socket /run/lldpd.socket: Permission denied"
NOT_RUNNING = DENIED.replace("Permission denied", "No such file or directory")


def lldp(*neighbors: tuple[str, dict[str, Any]]) -> str:
    listed = [{interface: facts} for interface, facts in neighbors]
    return json.dumps({"lldp": {"interface": listed if len(listed) > 1 else listed[0]}})


class Node(SimulatedHost):
    """Answers as scripted, by program."""

    def __init__(self, root: bool = False, **answers: Maybe[CommandOutput]) -> None:
        super().__init__("pcie-l40s")
        self.answers, self.root = answers, root
        self.asked: list[tuple[str, ...]] = []
        self.debian: Maybe[bool] = Unknown(Reason.NOT_THERE)

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        self.asked.append(tuple(argv))
        return self.answers.get(argv[0], Unknown(Reason.NOT_THERE, argv[0], "not installed"))

    def access(self, path: str, write: bool = False) -> Maybe[bool]:
        return self.debian

    def is_root(self) -> bool:
        return self.root


def output(stdout: str = "", stderr: str = "") -> CommandOutput:
    return CommandOutput(LLDP, int(bool(stderr)), stdout, stderr)


def reason_of(found: object) -> tuple[Reason, str]:
    assert isinstance(found, Unknown)
    return found.reason, found.detail


def test_what_a_switch_says_of_its_port() -> None:
    found = parse_lldp(lldp(("ens14f0np0", H3C)))
    assert not isinstance(found, Unknown)
    (end,) = found["ens14f0np0"]
    assert end == CableEnd(
        *("28:c9:7a:b2:ab:b8", "CL-A052A", "FourHundredGigE1/0/98", "To-gpu017-eth0"),
        *(9216, 52, 139, "55 days, 00:25:58", 121),
    )
    assert (str(end), end.port) == ("CL-A052A FourHundredGigE1/0/98", "FourHundredGigE1/0/98")


def test_a_port_whose_id_is_an_address_has_the_name_in_its_description() -> None:
    found = parse_lldp(lldp(("eth9", VETH), ("eth10", H3C)))
    assert not isinstance(found, Unknown)
    assert [end.port for ends in found.values() for end in ends] == ["swp1", "FourHundredGigE1/0/98"]
    assert found["eth9"][0].max_frame_bytes is None


def test_two_neighbors_of_one_interface_and_a_chassis_without_a_name() -> None:
    unnamed = {**VETH, "chassis": {"id": {"type": "mac", "value": "0c:42:a1:00:00:02"}}}
    found = parse_lldp(lldp(("eth0", unnamed), ("eth0", H3C), ("eth1", VETH)))
    assert not isinstance(found, Unknown)
    assert [end.label for end in found["eth0"]] == ["0c:42:a1:00:00:02", "CL-A052A"]
    assert [end.label for end in found["eth1"]] == ["leaf01"]


def test_nothing_heard_is_unknown_and_not_wrong() -> None:
    found = parse_lldp('{"lldp": {}}')
    assert found == {}
    reason, detail = reason_of(heard_on(found, "eth0"))
    assert (reason, "or the NIC's firmware may take it" in detail) == (Reason.NOT_THERE, True)


@pytest.mark.parametrize(
    ("stderr", "reason", "detail"),
    [
        (DENIED, Reason.NEEDS_PERMISSION, "join the group adm"),
        (NOT_RUNNING, Reason.NOT_THERE, "lldpd does not run"),
        ("lldpctl: invalid option", Reason.DRIVER_ERROR, "invalid option"),
    ],
)
def test_why_lldpd_does_not_answer(stderr: str, reason: Reason, detail: str) -> None:
    why, text = reason_of(read_neighbors(Node(lldpctl=output(stderr=stderr))))
    assert why is reason
    assert detail in text


def test_debian_lets_the_group_adm_run_it_and_root_becomes_a_member() -> None:
    """Debian's program belongs to _lldpd, so gdrtop does not run it as root: it was "not installed" there."""
    node = Node(setpriv=output(lldp(("eth0", H3C))))
    node.debian = False
    assert reason_of(read_neighbors(node))[0] is Reason.NEEDS_PERMISSION
    node.root = True
    found = read_neighbors(node)
    assert not isinstance(found, Unknown)
    assert [*found] == ["eth0"]
    assert node.asked[-1][-3:] == LLDP
    assert "--no-new-privs" in node.asked[-1]


def test_without_lldpd_nothing_is_known_and_nothing_more_is_asked() -> None:
    node = Node()
    assert read_neighbors(node) == NOT_INSTALLED
    assert node.asked == [LLDP]


def test_no_command_runs_on_a_node_without_ethernet_ports() -> None:
    host = SimulatedHost("azure-nd-h100")
    rdma = examine(host).node.rdma
    assert isinstance(rdma, RdmaFacts)
    node = Node()
    assert probe(node, rdma) == {}
    assert node.asked == []


def test_a_bond_has_two_cables() -> None:
    host = SimulatedHost("bare-roce")
    examination = examine(host)
    rdma, ends = examination.node.rdma, examination.cable_ends
    assert isinstance(rdma, RdmaFacts)
    assert not isinstance(ends, Unknown)
    of_port = ends_of_port(ends, rdma.devices[0].ports[0])
    assert {name: str(end) for name, end in of_port.items()} == {
        "ens0f0np0": "leaf0a Ethernet1",
        "ens0f1np1": "leaf0b Ethernet1",
    }
    assert len(read_cables(host, rdma, ends)) == 16


def test_infiniband_switches_are_asked_only_on_request() -> None:
    host = SimulatedHost("hgx-h100+packets-lost-live")
    examination = examine(host)
    assert isinstance(examination.node.rdma, RdmaFacts)
    cables = read_cables(host, examination.node.rdma, examination.cable_ends)
    known = {cable.device: cable.end.port for cable in cables if isinstance(cable.end, CableEnd)}
    assert known["mlx5_0"] == "11"
    assert {cable.device for cable in cables} - known.keys() == {"mlx5_4", "mlx5_9"}  # RoCE, without lldpd


@pytest.mark.parametrize(
    ("own", "description", "hosts"),
    [
        ("gpu017", "To-gpu017-eth0", {"gpu017": True}),
        ("gpu017.example.com", "gpu17_eth0", {"gpu17": True}),  # leading zeros do not count
        ("gpu017", "gpu018:mlx5_0", {"gpu018": False}),
        ("gpu017", "GPU17/gpu18 breakout", {"GPU17": True, "gpu18": False}),
        ("gpu017", "mgpu018 or gpu018a", {}),
        ("gpu017", "swp3", {}),
        ("r3-gpu-4", "r3-gpu-5 p1", {"r3-gpu-5": False}),
        ("login", "login", {"login": True}),
        ("login", "login2", {"login2": False}),
        ("login", "login-3", {"login": True}),  # its port 3
        ("10", "11", {}),  # no name
        ("", "gpu1", {}),
    ],
)
def test_which_hosts_a_description_names(own: str, description: str, hosts: dict[str, bool]) -> None:
    assert described_hosts(description, own) == hosts


def test_names_of_nics_are_whole_words() -> None:
    names = ["mlx5_1", "eth0", "ens1", "rdma0"]
    assert described_nics("gpu17_eth0 mlx5_10 ens1f0np0 gpu0rdma0", names) == ["eth0"]
    assert described_nics("gpu17:MLX5_1", names) == ["mlx5_1"]


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8), st.just("9" * 30)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("lldp", "interface", "chassis", "id", "value", "x", "port", "descr", "vlan", "vlan-id"),
                    *("pvid", "mfs", "ttl", "age", "aggregation"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.one_of(st.text(max_size=300), st.builds(json.dumps, JSON)))
def test_no_output_raises_an_error(text: str) -> None:
    assert isinstance(parse_lldp(text), (dict, Unknown))


@given(st.builds(lambda end: json.dumps({"lldp": {"interface": {"eth0": end}}}), JSON))
def test_what_is_read_is_bounded(text: str) -> None:
    found = parse_lldp(text)
    assert isinstance(found, dict)
    for ends in found.values():
        for end in ends:
            assert max(map(len, (end.switch_id, end.switch, end.port_id, end.port_description))) <= 80
            assert (end.max_frame_bytes or 0) <= 1_000_000


@given(st.text(max_size=60), st.text(max_size=90))
def test_no_name_raises_an_error(own: str, description: str) -> None:
    assert isinstance(described_hosts(description, own), dict)
    described_nics(description, [own or "x"])
