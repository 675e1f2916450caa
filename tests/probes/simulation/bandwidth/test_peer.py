"""The other node that a simulated one knows: its twin, by ssh and as a server."""

import pytest

from probes.bandwidth.model.command import Command, by_ssh
from probes.bandwidth.model.samples import About
from probes.simulation.bandwidth.node_pair import split_ssh
from tests.probes.simulation.bandwidth.node import Node, both, settings_on

SSH = ("ssh", "-tt", "-o", "BatchMode=yes", "--")


def test_ssh_reaches_the_peer_and_nobody_else() -> None:
    node = Node("hgx-h100")
    peer, other = node.begin([*SSH, "root@peer", "true"]), node.begin([*SSH, "node99", "true"])
    node.finish(peer, other)
    assert (peer.status, peer.lines) == (0, [])
    assert other.status == 255
    assert other.lines == [
        "ssh: Could not resolve hostname node99: Name or service not known "
        "(simulated: the other node is peer or node2)"
    ]


@pytest.mark.parametrize("name", ["hgx-h100", "pcie-l40s"])
def test_a_server_there_and_a_client_here(name: str) -> None:
    node = Node(name)
    waits, asks = both(node, settings_on(node))
    there = by_ssh("peer", waits, 300.0)
    assert isinstance(there, Command)
    server = node.begin(there.argv)
    node.wait(1.0, server)
    assert any("Waiting for client" in line for line in server.lines)
    assert "4853" not in str(node.host.read("/proc/net/tcp"))  # the port is taken there, not here
    client = node.begin([*asks.argv[:-1], "peer"])
    node.finish(server, client)
    assert (server.status, client.status) == (0, 0)
    (sample,) = client.samples()
    assert (sample.gbps or 0) > 170


def test_a_client_there_and_a_server_here() -> None:
    node = Node("hgx-h100")
    waits, asks = both(node, settings_on(node, None))
    server = node.begin(waits.argv)
    client = node.begin([*SSH, "peer", *asks.argv[:-1], "hgx-h100"])
    node.finish(server, client)
    assert (server.status, client.status) == (0, 0)
    assert client.facts()[About.DEVICE] == "mlx5_0"


@pytest.mark.slow
def test_a_server_here_is_not_found_there() -> None:
    node = Node("hgx-h100")
    waits, asks = both(node, settings_on(node, None))
    server = node.begin(waits.argv)
    node.wait(0.5, server)
    client = node.begin([*asks.argv[:-1], "peer"])
    node.finish(client)
    failure = client.failure()
    assert failure is not None
    assert "cannot connect to peer:18515" in failure.text
    assert server.status is None


def test_the_peer_has_the_same_faults() -> None:
    node = Node("hgx-h100+port-down")
    run = node.begin([*SSH, "peer", "ib_write_bw", "-d", "mlx5_1"])
    node.finish(run)
    assert run.status == 1
    assert " Port number 1 state is Down" in run.lines


@pytest.mark.slow
def test_ending_ssh_ends_the_test() -> None:
    node = Node("hgx-h100")
    waits, asks = both(node, settings_on(node, None))
    server = node.begin([*SSH, "peer", *waits.argv])
    node.wait(1.0, server)
    client = node.begin([*asks.argv[:-1], "peer"])
    node.wait(3.0, server, client)
    server.test.end(15)
    node.wait(1.0, server, client)
    assert (server.status, client.status) == (-15, 1)


def test_options_of_ssh_are_not_the_host() -> None:
    words = ["-tt", "-o", "BatchMode=yes", "--", "ann@peer", "ib_write_bw", "-d 'x y'"]
    assert split_ssh(words) == ("peer", ("ib_write_bw", "-d", "x y"))
    assert split_ssh(["-p", "22"]) is None
