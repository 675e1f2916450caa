"""Several simulated nodes with one job over them."""

from probes.facts.jobs.processes import ProcessFacts
from probes.facts.jobs.processes import probe as probe_processes
from probes.simulation.host import SimulatedHost, job_nodes

BEGAN = 5000.0


class Clock:
    def __init__(self) -> None:
        self.now = BEGAN

    def __call__(self) -> float:
        return self.now


def variables(host: SimulatedHost, name: str) -> list[str]:
    facts = probe_processes(host)
    assert isinstance(facts, ProcessFacts)
    found = [process.environment for process in facts.processes]
    return [
        environment[name] for environment in found if isinstance(environment, dict) and name in environment
    ]


def sent(host: SimulatedHost, nic: str) -> int:
    return int(str(host.read(f"/sys/class/infiniband/{nic}/ports/1/counters/port_xmit_data")))


def test_the_nodes_have_all_ranks_of_one_world() -> None:
    nodes = job_nodes("hgx-h100", 3, clock=Clock())
    assert list(nodes) == ["gpu001", "gpu002", "gpu003"]
    ranks = [int(rank) for host in nodes.values() for rank in variables(host, "RANK")]
    assert ranks == list(range(24))
    assert {size for host in nodes.values() for size in variables(host, "WORLD_SIZE")} == {"24"}
    assert {host.read("/proc/sys/kernel/hostname") for host in nodes.values()} == set(nodes)
    boots = {host.read("/proc/sys/kernel/random/boot_id") for host in nodes.values()}
    assert len(boots) == 3


def test_a_single_node_is_as_before() -> None:
    host = SimulatedHost("hgx-h100", clock=Clock())
    assert variables(host, "RANK") == [str(rank) for rank in range(8)]
    assert set(variables(host, "WORLD_SIZE")) == {"32"}


def test_a_rank_that_stops_holds_up_the_nics_of_all_nodes() -> None:
    clock = Clock()
    nodes = job_nodes("hgx-h100", 3, {1: "rank-stopped"}, clock=clock)
    clock.now = BEGAN + 40
    before = {name: sent(host, "mlx5_0") for name, host in nodes.items()}
    clock.now += 10
    assert {name: sent(host, "mlx5_0") for name, host in nodes.items()} == before
    stopped = [
        name for name, host in nodes.items() if any(program.stopped_at for program in host.tree.programs)
    ]
    assert stopped == ["gpu002"]


def test_a_slow_nic_of_one_node_slows_down_no_other() -> None:
    clock = Clock()
    healthy, faulty = (job_nodes("hgx-h100", 2, faults, clock=clock) for faults in (None, {1: "nic-slow"}))
    clock.now += 20
    same = [
        nic.name
        for nic in healthy["gpu002"].tree.nics
        if sent(healthy["gpu002"], nic.name) == sent(faulty["gpu002"], nic.name)
    ]
    assert len(same) == len(healthy["gpu002"].tree.nics) - 1
    assert sent(healthy["gpu001"], "mlx5_0") == sent(faulty["gpu001"], "mlx5_0")
