"""NICs and jobs that do not use Data Direct."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Maybe, Reason, Unknown
from probes.checks.registry import findings
from probes.facts.rdma.data_direct import DataDirectFacts
from probes.queries.finding import Finding, Status
from probes.simulation.host import SimulatedHost
from probes.simulation.node.jobs.processes import add_rank
from probes.snapshot.examination import Examination, examine
from tests.support.doctor import examination_of, findings_on

CHECK, IN_JOB = "data-direct-unavailable", "data-direct-off-in-job"


def says(examination: Examination, name: str = CHECK) -> Finding:
    return findings(examination, only=(name,))[0]


def with_answers(**answers: Maybe[str | None]) -> Examination:
    examination = examination_of("gb300")
    facts = examination.node.data_direct
    assert isinstance(facts, DataDirectFacts)
    changed = replace(facts, of_devices={**facts.of_devices, **answers})
    return replace(examination, node=replace(examination.node, data_direct=changed))


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("data-direct-unavailable", "in Linux 6.12 or newer and in DOCA-OFED"),
        ("data-direct-old-rdma-core", "older than rdma-core 54"),
        ("data-direct-hidden", "no DMA function (15b3:2100) is on the PCI bus"),
    ],
)
def test_each_reason_is_named(fault: str, cause: str) -> None:
    finding = findings_on(f"gb300+{fault}")[CHECK]
    assert (finding.status, finding.severity) == (Status.FOUND, Severity.WARNING)
    assert cause in finding.cause


def test_a_function_that_no_nic_has_is_found() -> None:
    finding = says(with_answers(mlx5_0=None))
    assert "found no NIC for 0009:03:00.0" in finding.cause
    assert finding.devices == ("0009:03:00.0",)


def test_without_access_to_the_nic_the_check_is_unknown() -> None:
    finding = says(with_answers(mlx5_0=Unknown(Reason.NEEDS_ROOT, "mlx5_0")))
    assert finding.status is Status.UNKNOWN
    assert "mlx5_0" in finding.cause


def test_a_node_without_such_nics_passes() -> None:
    for name in ("gb200", "hgx-h100"):
        assert findings_on(name)[CHECK].status is Status.PASSED
        assert findings_on(name)[IN_JOB].status is Status.PASSED


def test_the_variable_and_an_old_library_of_a_job_are_found() -> None:
    by_variable = findings_on(f"gb300+{IN_JOB}")[IN_JOB]
    assert any("NCCL_IB_DATA_DIRECT=0" in line.value for line in by_variable.evidence)
    by_library = findings_on("gb300+data-direct-old-rdma-core")[IN_JOB]
    assert any("libmlx5.so.1.24.50.0" in line.value for line in by_library.evidence)


_SITE = "/opt/venv/lib/python3.12/site-packages"
_NCCL = "/usr/lib/libnccl.so.2.28.9"
_NEW, _OLD = "/usr/lib/libmlx5.so.1.25.54.0", "/usr/lib/libmlx5.so.1.24.50.0"
_OF_NIXL = f"{_SITE}/nixl_cu13.libs/libmlx5-79ef1d27.so.1.24.48.0"


@pytest.mark.parametrize(
    ("libraries", "owners", "steps"),
    [
        ((_NCCL, _NEW), (), ()),
        # NCCL loads libmlx5.so.1, and NIXL's UCX its own.
        ((_NCCL, _NEW, _OF_NIXL), ("nixl_cu13",), ("Use a build of nixl_cu13 that contains rdma-core 54",)),
        ((_OF_NIXL,), ("nixl_cu13",), ("Use a build of nixl_cu13 that contains rdma-core 54",)),
        ((_NCCL, _OLD), ("NCCL",), ("Install rdma-core 54 or later in the job's image",)),
        (
            (_NCCL, _OLD, _OF_NIXL),
            ("NCCL", "nixl_cu13"),
            ("Install rdma-core 54 or later in the job's image", "Use a build of nixl_cu13"),
        ),
        ((_NCCL, f"{_SITE}/nixl_cu13.libs/libmlx5-79ef1d27.so.1.25.54.0"), (), ()),
        # Without NCCL, nothing says that a program of its own wants Data Direct.
        ((_OLD,), (), ()),
    ],
)
def test_each_copy_of_libmlx5_is_judged_by_who_uses_it(
    libraries: tuple[str, ...], owners: tuple[str, ...], steps: tuple[str, ...]
) -> None:
    host = SimulatedHost("gb300", clock=lambda: 1000.0)
    add_rank(host.tree, 61000, 0, {}, libraries)
    (finding,) = findings(examine(host), only={IN_JOB})
    assert finding.status is (Status.FOUND if owners else Status.PASSED)
    assert finding.severity is (Severity.NOTE if owners == ("nixl_cu13",) else Severity.WARNING)
    for owner in ("NCCL", "nixl_cu13"):
        assert (owner in finding.cause) == (owner in owners)
    texts = [step.why for step in finding.fix.steps[:-1]] if finding.fix is not None else []
    assert len(texts) == len(steps)
    assert all(text.startswith(step) for text, step in zip(texts, steps, strict=True))


def test_an_old_nccl_names_data_direct() -> None:
    finding = findings_on("gb300+c2c-grace-specifics")["c2c-grace-specifics"]
    assert "NCCL 2.27.3 and later use the NICs' Data Direct functions and the C2C path" in finding.cause


def test_gpu_memory_as_numa_node_matters_on_kubernetes_only() -> None:
    check = "gpu-memory-in-kubernetes"
    finding = findings_on(f"gb300+{check}")[check]
    assert "NUMA nodes without CPUs: 2, 3, 4, 5" in " ".join(line.value for line in finding.evidence)
    assert findings_on("gb200")[check].status is Status.PASSED


def test_a_driver_without_the_option_is_replaced_first() -> None:
    """nv-reg.h of open-gpu-kernel-modules has NVreg_CoherentGPUMemoryMode since 580.65.06."""
    check = "gpu-memory-in-kubernetes"
    host = SimulatedHost(f"gb300+{check}", clock=lambda: 1000.0)
    host.tree.add("/proc/driver/nvidia/params", 'RegistryDwords: ""\n')
    (finding,) = findings(examine(host), only={check})
    assert finding.fix is not None
    assert finding.fix.steps[0].why.startswith("Install driver 580.65.06 or newer")
    assert any(line.value == "CoherentGPUMemoryMode: not listed" for line in finding.evidence)
