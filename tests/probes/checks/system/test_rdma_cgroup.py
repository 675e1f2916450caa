"""RDMA limits of control groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.system.limits import RdmaCgroupFacts, RdmaLimit
from probes.queries.finding import Finding, Status
from tests.support.changed_facts import said
from tests.support.doctor import examination_of, findings_on

HGX = examination_of("hgx-h100")
GROUP = "/sys/fs/cgroup/system.slice/slurmd.service"


def of_job(used: Maybe[int], most: int, resource: str = "hca_object") -> Finding:
    limit = RdmaLimit(GROUP, "mlx5_0", resource, most, used)
    return said("rdma-cgroup-limit", replace(HGX, rdma_cgroup=RdmaCgroupFacts((), {41000: (limit,)})))


def test_a_job_at_its_limit_is_named_with_the_group() -> None:
    finding = of_job(2000, 2000)
    assert (finding.status, finding.severity) == (Status.FOUND, Severity.WARNING)
    assert "alice" in finding.cause
    assert "uses all objects on mlx5_0" in finding.cause
    assert finding.fix is not None
    assert f"{GROUP}/rdma.max" in " ".join(step.why for step in finding.fix.steps)
    assert "nearly all" in of_job(1900, 2000).cause


def test_a_limit_with_room_is_fine_and_shown() -> None:
    for used in (12, Unknown(Reason.NOT_THERE, "rdma.current")):
        finding = of_job(used, 2000)
        assert finding.status is Status.PASSED
        assert "of 2000 objects in use" in finding.evidence[0].value


def test_a_job_that_may_open_no_device_is_critical() -> None:
    finding = of_job(0, 0, "hca_handle")
    assert finding.severity is Severity.CRITICAL
    assert "forbids open handles on mlx5_0" in finding.cause


def test_a_session_without_any_handle_is_a_warning() -> None:
    limit = RdmaLimit(GROUP, "mlx5_3", "hca_handle", 0, 0)
    finding = said("rdma-cgroup-limit", replace(HGX, rdma_cgroup=RdmaCgroupFacts((limit,))))
    assert (finding.severity, finding.devices) == (Severity.WARNING, ("mlx5_3",))
    assert "this session" in finding.cause


def test_unreadable_control_groups_are_unknown() -> None:
    hidden = Unknown(Reason.NEEDS_ROOT, "/proc/41000/cgroup")
    finding = said("rdma-cgroup-limit", replace(HGX, rdma_cgroup=RdmaCgroupFacts(hidden)))
    assert finding.status is Status.UNKNOWN


@pytest.mark.slow
def test_only_the_full_nic_is_marked() -> None:
    finding = findings_on("hgx-h100+rdma-cgroup-limit")["rdma-cgroup-limit"]
    assert finding.devices == ("mlx5_0",)
