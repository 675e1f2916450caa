"""A test between two nodes: each end has its own device, and what a node cannot run has a reason."""

from dataclasses import replace
from functools import cache

from probes.bandwidth.model.command import Refused
from probes.bandwidth.model.planned_series import PlannedTest
from probes.fleet.attribution import PairMemory
from probes.fleet.pairs import NodeRail, PairSettings, affected_on_node, limit_gbps, node_rail, pair_test
from probes.fleet.rails import rails_of
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination, examine

SETTINGS = PairSettings()


@cache
def examined(name: str) -> Examination:
    return examine(SimulatedHost(name))


def end(
    node: str,
    rail: int,
    memory: PairMemory = PairMemory.HOST,
    label: str = "hgx-h100",
    settings: PairSettings = SETTINGS,
) -> NodeRail | Refused:
    rails = rails_of(examined(label).node, examined(label).topology)
    assert isinstance(rails, tuple)
    return node_rail(node, examined(label), rails[rail], memory, settings)


def planned(server: NodeRail | Refused, client: NodeRail | Refused) -> PlannedTest:
    assert isinstance(server, NodeRail)
    assert isinstance(client, NodeRail)
    test = pair_test(server, client, SETTINGS)
    assert isinstance(test, PlannedTest)
    return test


def test_each_rail_has_a_port_and_both_ends_stop_by_themselves() -> None:
    test = planned(end("gpu1", 4), end("gpu2", 4))
    server, client = (process.command.argv for process in test.processes)
    assert [process.host for process in test.processes] == ["gpu1", ""]
    for argv in (server, client):
        assert argv[argv.index("-p") + 1] == str(18515 + 4)
        assert argv[argv.index("-D") + 1] == "5"
        assert argv[argv.index("-d") + 1] == "mlx5_5"
        assert "--run_infinitely" not in argv
    assert (server[-1], client[-1]) == ("--report_gbits", "gpu1")


def test_a_client_connects_to_its_server_without_the_user_of_ssh() -> None:
    test = planned(end("root@gpu1", 0), end("root@gpu2", 0))
    assert [process.host for process in test.processes] == ["root@gpu1", ""]
    assert test.processes[1].command.argv[-1] == "gpu1"


def test_gpu_memory_is_that_of_the_rails_own_gpu() -> None:
    test = planned(end("gpu1", 2, PairMemory.GPU), end("gpu2", 2, PairMemory.GPU))
    assert all("--use_cuda" in " ".join(process.command.argv) for process in test.processes)
    assert test.pair.gpu_label == "GPU2"


def test_both_directions_double_the_limit() -> None:
    both = replace(SETTINGS, is_bidirectional=True)
    ends = [end(name, 0, settings=both) for name in ("gpu1", "gpu2")]
    assert all(isinstance(each, NodeRail) for each in ends)
    server, client = ends
    assert isinstance(server, NodeRail)
    assert isinstance(client, NodeRail)
    single = limit_gbps(server, client, SETTINGS)
    assert single is not None
    assert limit_gbps(server, client, both) == 2 * single


def test_what_a_node_cannot_run_is_refused_with_the_reason() -> None:
    down = end("gpu1", 1, label="hgx-h100+port-down")
    assert isinstance(down, Refused)
    assert down.reason == "no port of mlx5_1 is active"
    missing = end("gpu1", 0, label="hgx-h100+perftest-missing")
    assert isinstance(missing, Refused)
    assert "ib_write_bw is not installed" in missing.reason


def test_a_name_that_is_an_option_or_no_host_never_reaches_a_command() -> None:
    client = end("gpu2", 0)
    for name in ("-x", "gpu1; reboot", "a b", "", "gpu1%lo", "root@-x"):
        server = end(name, 0)
        assert isinstance(server, NodeRail)
        assert isinstance(client, NodeRail)
        refused = pair_test(server, client, SETTINGS)
        assert isinstance(refused, Refused)
        assert "not a valid host name" in refused.reason


def test_jobs_on_the_own_node_are_seen_and_no_other_node_is_asked_about() -> None:
    ends = [end("gpu1", 0, PairMemory.GPU), end("gpu1", 1)]
    known_ends = [each for each in ends if isinstance(each, NodeRail)]
    lines = affected_on_node(examined("hgx-h100"), known_ends, None, SETTINGS)
    assert any("GPU0" in text for text in lines)
    assert not any("gdrtop does not check" in text for text in lines)


def test_each_end_uses_the_partition_key_of_its_own_table() -> None:
    test = planned(end("gpu1", 2), end("gpu2", 2, label="hgx-h100+pkey-index0-limited"))
    server, client = (process.command.argv for process in test.processes)
    assert not [word for word in server if "pkey" in word]
    assert "--pkey_index=1" in client
