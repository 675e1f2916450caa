"""Simulated nodes reach each other by name, and closing ends all that runs."""

from tests.support.pairs_fleet import GOOD, fleet

SERVER = ("ib_write_bw", "-d", "mlx5_0", "-i", "1", "-p", "18515", "-F", "-D", "5", "--report_gbits")


def test_a_client_of_an_unknown_name_fails_and_a_close_ends_a_waiting_server() -> None:
    scene = fleet(GOOD, GOOD)
    server = scene.processes["gpu0"].start(SERVER, 60.0)
    client = scene.processes["gpu1"].start((*SERVER, "gpu7"), 60.0)
    scene.clock.pause(2.0)
    assert any("Name or service not known" in text for text in client.lines(0.0))
    assert any("Waiting for client" in text for text in server.lines(0.0))
    assert scene.alive == {"gpu0": 1}
    scene.processes["gpu0"].close()
    scene.processes["gpu0"].close()
    assert scene.alive == {}


def test_each_node_has_its_own_host_name() -> None:
    scene = fleet(GOOD, GOOD)
    names = [host.read("/proc/sys/kernel/hostname") for host in scene.hosts.values()]
    assert names == ["gpu0", "gpu1"]
