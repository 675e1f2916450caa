"""How the staged path is planned: with NCCL where it can, else by its parts, else not at all."""

from dataclasses import replace
from functools import lru_cache

from probes.bandwidth.model.command import Refused
from probes.bandwidth.model.planned_series import Series
from probes.bandwidth.model.request import MemoryPath, Request
from probes.bandwidth.model.samples import HOST_MEMORY, STAGED
from probes.bandwidth.planning.series import plan_series
from probes.base.unknown import Reason, Unknown
from probes.facts.system.tools import ToolFacts
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination, examine

COMPARE = Request(tool="all_reduce_perf", memory=MemoryPath.COMPARE)


@lru_cache(maxsize=1)
def node() -> Examination:
    return examine(SimulatedHost("hgx-h100", clock=lambda: 1000.0))


def without(*programs: str) -> Examination:
    tools = node().tools
    assert isinstance(tools, ToolFacts)
    missing = dict.fromkeys(programs, Unknown(Reason.NOT_THERE))
    return replace(node(), tools=replace(tools, paths={**tools.paths, **missing}))


def planned(request: Request, examination: Examination) -> Series:
    series = plan_series(examination, request, 18600)
    assert isinstance(series, Series), series
    return series


def test_nccl_measures_both_paths_and_only_the_second_is_kept_from_gpudirect_rdma() -> None:
    direct, staged = planned(COMPARE, node()).tests
    assert (direct.memory, staged.memory) == ("", STAGED)
    of_direct, of_staged = (set(test.processes[0].command.argv) for test in (direct, staged))
    assert "NCCL_P2P_DISABLE=1" in of_direct
    assert of_staged - of_direct == {"NCCL_NET_GDR_LEVEL=LOC", "NCCL_IB_GDR_LEVEL=0"}
    assert not of_direct - of_staged
    over_nics = planned(Request(tool="all_reduce_perf", over_network=True), node())
    assert over_nics.tests[0].title == direct.title


def test_without_nccl_tests_both_parts_are_measured_and_named_as_parts() -> None:
    series = planned(COMPARE, without("all_reduce_perf"))
    copies, nic = series.tests
    assert (copies.tool, copies.pair.gpu_label) == ("nvbandwidth", "GPU0")
    assert (nic.tool, nic.memory, nic.pair.nic) == ("ib_write_bw", HOST_MEMORY, "mlx5_0")
    assert all("part of the staged path" in test.notes[0] for test in series.tests)
    assert [test.title for test in series.left_out] == ["all_reduce_perf", "all_reduce_perf, staged"]
    assert "all_reduce_perf is not installed" in series.left_out[0].reason


def test_one_part_alone_is_not_measured() -> None:
    refused = plan_series(without("all_reduce_perf", "nvbandwidth"), COMPARE, 18600)
    assert isinstance(refused, Refused)
    assert "all_reduce_perf is not installed" in refused.reason


def test_one_gpu_has_no_peer_so_its_parts_are_measured() -> None:
    alone = replace(COMPARE, gpu="0000:3a:00.0")
    assert [test.tool for test in planned(alone, node()).tests] == ["nvbandwidth", "ib_write_bw"]


def test_what_never_stages_is_refused() -> None:
    for tool in ("ib_write_bw", "nvbandwidth", "gdrcopy_copybw"):
        refused = plan_series(node(), Request(tool=tool, memory=MemoryPath.STAGED), 18600)
        assert isinstance(refused, Refused)
        assert "use nccl-tests" in refused.reason
