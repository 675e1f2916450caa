"""The RDMA limits of control groups."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.facts.system.limits import (
    RdmaCgroupFacts,
    RdmaLimit,
    parse_group,
    parse_resources,
    probe_rdma_cgroups,
)
from probes.host.machine.local import LocalHost


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def facts(root: Path, *pids: int) -> RdmaCgroupFacts:
    answer = probe_rdma_cgroups(LocalHost(str(root)), pids)
    assert isinstance(answer, RdmaCgroupFacts)
    return answer


def test_limits_of_a_group_and_of_those_above_it_count(tmp_path: Path) -> None:
    write(tmp_path, "proc/77/cgroup", "0::/job.slice/step.scope\n")
    write(tmp_path, "sys/fs/cgroup/job.slice/rdma.max", "mlx5_0 hca_handle=2 hca_object=max \n")
    write(tmp_path, "sys/fs/cgroup/job.slice/rdma.current", "mlx5_0 hca_handle=1 hca_object=90 \n")
    write(tmp_path, "sys/fs/cgroup/job.slice/step.scope/rdma.max", "mlx5_1 hca_handle=max hca_object=2000 \n")
    outer, inner = "/sys/fs/cgroup/job.slice", "/sys/fs/cgroup/job.slice/step.scope"
    limits = facts(tmp_path, 77).processes[77]
    assert not isinstance(limits, Unknown)
    step, job = limits
    assert (step.group, step.device, step.resource, step.most) == (inner, "mlx5_1", "hca_object", 2000)
    assert isinstance(step.used, Unknown)
    assert job == RdmaLimit(outer, "mlx5_0", "hca_handle", 2, 1)


def test_the_first_version_of_control_groups_has_a_hierarchy_for_rdma(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "5:memory:/a\n4:rdma:/b\n0::/c\n")
    write(tmp_path, "sys/fs/cgroup/rdma/b/rdma.max", "mlx5_0 hca_handle=0 hca_object=0\n")
    own = facts(tmp_path).own
    assert not isinstance(own, Unknown)
    assert {limit.resource: limit.most for limit in own} == {"hca_handle": 0, "hca_object": 0}


def test_in_a_container_its_own_root_has_the_limits(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    write(tmp_path, "sys/fs/cgroup/rdma.max", "mlx5_0 hca_handle=3 hca_object=max\n")
    own = facts(tmp_path).own
    assert not isinstance(own, Unknown)
    assert [limit.most for limit in own] == [3]


def test_a_group_outside_this_namespace_is_unknown_and_none_is_no_limit(tmp_path: Path) -> None:
    write(tmp_path, "sys/fs/cgroup/cgroup.controllers", "rdma\n")
    write(tmp_path, "proc/77/cgroup", "0::/../../other\n")
    write(tmp_path, "proc/78/cgroup", "0::/plain\n")
    found = facts(tmp_path, 77, 78)
    assert isinstance(found.processes[77], Unknown)
    assert found.processes[78] == ()
    assert isinstance(found.own, Unknown)


def test_without_control_groups_nothing_is_known(tmp_path: Path) -> None:
    answer = probe_rdma_cgroups(LocalHost(str(tmp_path)))
    assert isinstance(answer, Unknown)
    assert answer.reason is Reason.NOT_THERE


def test_a_number_is_a_limit_and_max_is_none() -> None:
    text = "mlx5_0 hca_handle=2 hca_object=2000 \nocrdma1 hca_handle=max \nmlx5_1 hca_handle=-1\n"
    assert parse_resources(text) == {("mlx5_0", "hca_handle"): 2, ("mlx5_0", "hca_object"): 2000}


@given(st.text(max_size=400))
def test_no_text_breaks_the_parsers(text: str) -> None:
    parse_resources(text)
    group = parse_group(text)
    assert isinstance(group, Unknown) or (group.startswith("/sys/fs/cgroup") and "/../" not in f"{group}/")
