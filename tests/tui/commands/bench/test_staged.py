"""`gdrtop bench --memory staged` and `--test all-reduce --memory compare`."""

import json

import pytest

from tests.tui.commands.bench.scene import Scene


def test_a_comparison_says_what_jobs_lose() -> None:
    scene = Scene()
    status, out = scene.run("--test", "all-reduce", "--memory", "compare", "--min-gbps", "300")
    assert status == 0  # the staged path is slow by nature
    assert "GDRDMA on every channel" in out
    assert "no GDRDMA: NCCL copied through host memory" in out
    assert "× slower" in out
    assert "s of CPU time" in out
    _, listed = scene.run("--results")
    assert "all_reduce_perf over the NICs, staged" in listed


def test_json_has_the_cpu_time_and_the_memory() -> None:
    status, out = Scene("dgx-a100").run("--memory", "staged", "--json")
    assert status == 0
    (only,) = json.loads(out)["results"]
    assert only["memory"] == "staged"
    assert only["cpu_seconds"] > only["seconds"]


def test_a_staged_result_below_the_threshold_fails() -> None:
    assert Scene().run("--memory", "staged", "--min-gbps", "300")[0] == 1


def test_where_gpudirect_rdma_fails_and_staging_works_the_path_is_blamed() -> None:
    status, out = Scene("hgx-h100+acs-on,iommu-translated").run("--test", "all-reduce", "--memory", "compare")
    assert status == 2
    assert "staged, it works" in out


@pytest.mark.slow
def test_without_nccl_tests_the_parts_are_measured_and_the_status_says_so() -> None:
    scene = Scene()
    scene.host.tree.remove("/usr/local/bin/all_reduce_perf")
    status, out = scene.run("--memory", "staged")
    assert status == 2
    assert "can reach at most" in " ".join(out.split())
    assert "all_reduce_perf is not installed" in " ".join(out.split())
    assert "× slower" not in out
