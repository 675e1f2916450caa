"""A run over many nodes passes only by the log of every node and by what each NIC carries."""

from probes.bandwidth.model.limits import Bound, Limit
from probes.bandwidth.model.samples import Sample
from probes.base.unknown import Reason, Unknown
from probes.fleet.collective import (
    Launch,
    Outcome,
    RingNode,
    RingResult,
    RingSettings,
    Transport,
    judge_ring,
    launcher_command,
    rank_commands,
)
from probes.fleet.fault_search import Group
from probes.fleet.rails import Rail
from probes.nccl.log.facts import LogFacts
from probes.nccl.log.reader import LogReader

FAILED = Unknown(Reason.IO_ERROR, "gpu1", "it printed no result")
USING = "gpu{n}:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>\n"
CHANNEL = "gpu{n}:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 4[0]{way} via {path}\n"


def node(number: int, gbps: float = 400.0) -> RingNode:
    rails = tuple(
        Rail(
            place,
            f"mlx5_{place}",
            1,
            f"0000:0{place}:00.0",
            "GPU0",
            "0000:09:00.0",
            "InfiniBand",
            "ib0",
            True,
        )
        for place in range(2)
    )
    limit = Limit((Bound("port 1", gbps, gbps * 0.98, "4X NDR", ()),))
    return RingNode(f"gpu{number}", (0, 1), rails, {0: 0, 1: 1}, {0: limit, 1: limit})


NODES = (node(1), node(2))
GROUP = Group(("gpu1", "gpu2"))


def channel(path: str, number: int) -> bytes:
    return CHANNEL.format(n=number, way=" [send]" * path.startswith("NET/"), path=path).encode()


def log(*paths: str, number: int = 1) -> LogFacts:
    reader = LogReader()
    reader.begin("log")
    reader.feed(USING.format(n=number).encode())
    for path in paths:
        reader.feed(channel(path, number))
    reader.end()
    return reader.facts()


def judged(bus_gbytes: float | None, near: LogFacts, far: LogFacts, usual: RingNode = NODES[0]) -> RingResult:
    sample = None
    if bus_gbytes is not None:
        sample = Sample("all_reduce", "", gbps=1.0, bus_gbps=8 * bus_gbytes, size_bytes=4 << 30)
    return judge_ring(NODES, usual, GROUP, sample, {"gpu1": near, "gpu2": far}, FAILED)


GDR, STAGED = "NET/IB/0/GDRDMA", "NET/IB/1"


def test_each_nic_of_a_ring_carries_its_share_of_the_bus_bandwidth() -> None:
    result = judged(93.0, log(GDR), log(GDR, GDR))
    assert (result.outcome, result.nic_gbps, result.limit_gbps) == (Outcome.PASSED, 372.0, 400.0)
    assert result.assessment.words == "372 of 400 Gb/s, 93 %"
    assert [each.total for each in result.channels] == [1, 2]


def test_less_than_a_nic_can_carry_is_slow() -> None:
    assert judged(60.0, log(GDR), log(GDR)).outcome is Outcome.SLOW
    # As fast as its own port, which has half the rate of the others.
    assert judged(49.0, log(GDR), log(GDR), node(3, 200.0)).outcome is Outcome.PASSED
    assert judged(49.0, log(GDR), log(GDR)).outcome is Outcome.SLOW


def test_one_channel_through_host_memory_fails_at_full_rate_and_names_its_nic() -> None:
    result = judged(93.0, log(GDR), log(GDR, STAGED, number=2))
    assert result.outcome is Outcome.STAGED
    assert [(each.node, each.staged_nics) for each in result.staged] == [("gpu2", ("mlx5_0", "mlx5_1"))]


def test_nvlink_between_nodes_is_not_tested_by_its_channels_and_by_its_rate() -> None:
    result = judged(93.0, log("P2P/MNNVL"), log("P2P/MNNVL", number=2))
    assert (result.outcome, result.transport) == (Outcome.NOT_TESTED, Transport.NVLINK)
    # NVCRE's published result of GB200 with MNNVL "disabled": more than its NICs can carry.
    result = judged(838.0, log(GDR), log(GDR))
    assert (result.outcome, result.transport) == (Outcome.NOT_TESTED, Transport.NVLINK)
    assert "of 400 Gb/s, so NVLink carried it" in result.why


def test_another_algorithm_than_the_ring_is_not_rated() -> None:
    result = judged(110.0, log(GDR), log(GDR))
    assert (result.outcome, result.nic_gbps) == (Outcome.NOT_TESTED, None)
    assert result.why.startswith("NCCL used another algorithm than Ring, ")
    assert "at least 293 of 400 Gb/s" in result.why
    assert judged(140.0, log(GDR), log(GDR)).outcome is Outcome.PASSED


def test_a_silent_node_is_not_proven() -> None:
    result = judged(93.0, log(GDR), log())
    assert (result.outcome, result.transport) == (Outcome.NOT_TESTED, Transport.UNKNOWN)
    assert result.why == "no network channel in the log of gpu2"


def test_without_a_figure_it_has_failed() -> None:
    result = judged(None, log(), log())
    assert (result.outcome, result.bus_gbps) == (Outcome.FAILED, FAILED)


def test_a_launchers_output_has_the_channels_of_all_hosts() -> None:
    reader = LogReader()
    reader.begin("log")
    for number in (1, 2):
        reader.feed(channel(GDR, number))
    sample = Sample("all_reduce", "", gbps=1.0, bus_gbps=744.0, size_bytes=4 << 30)
    for nodes, outcome in ((NODES, Outcome.PASSED), ((*NODES, node(3)), Outcome.NOT_TESTED)):
        result = judge_ring(nodes, node(1), GROUP, sample, {"": reader.facts()}, FAILED)
        assert result.outcome is outcome


def test_ranks_count_over_all_nodes_and_one_rail_has_its_gpu_alone() -> None:
    settings = RingSettings()
    first, second = rank_commands(NODES, (), settings, "program", "00ff")
    assert first[first.index("libnccl.so.2") + 1 :][:3] == ("0", "4", "new")
    assert second[second.index("libnccl.so.2") + 1 :][:3] == ("2", "4", "00ff")
    assert "NCCL_IB_HCA==mlx5_0:1,mlx5_1:1" in first
    (alone, _) = rank_commands(NODES, (1,), settings, "program")
    assert {"CUDA_VISIBLE_DEVICES=1", "NCCL_IB_HCA==mlx5_1:1"} <= set(alone)
    assert alone[alone.index("libnccl.so.2") + 2] == "2"


def test_launchers_start_a_rank_on_each_gpu() -> None:
    srun = launcher_command(NODES, (), RingSettings(), Launch.SRUN)
    assert srun[srun.index("srun") :][:7] == ("srun", "-N", "2", "-w", "gpu1,gpu2", "--ntasks-per-node", "2")
    mpirun = launcher_command(NODES, (), RingSettings(), Launch.MPIRUN)
    assert mpirun[:7] == ("mpirun", "-np", "4", "-N", "2", "-H", "gpu1:2,gpu2:2")
