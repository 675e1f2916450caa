"""Checks of limits, device files and containers: passed, found and unknown."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Maybe, Reason, Unknown
from probes.checks.registry import findings
from probes.facts.jobs.processes import ProcessFacts
from probes.facts.system.device_nodes import DeviceNode, DeviceNodeFacts
from probes.facts.system.kubernetes import DriverContainerFacts
from probes.facts.system.limits import LimitsLine, MemlockFacts, MemlockLimit
from probes.facts.system.platform import Environment, PlatformFacts
from probes.facts.system.services import UnitSetting
from probes.queries.finding import Finding, Status
from probes.snapshot.examination import Examination
from tests.support.doctor import examination_of, findings_on

ABSENT = Unknown(Reason.NOT_THERE, "absent")
DENIED = Unknown(Reason.NEEDS_ROOT, "closed")
HGX = "hgx-h100"
SMALL = MemlockLimit(8 << 20, 8 << 20)


def said(examination: Examination, check: str) -> Finding:
    (finding,) = findings(examination, only={check})
    return finding


def with_processes(**facts: object) -> Examination:
    node = examination_of(HGX)
    assert isinstance(node.processes, ProcessFacts)
    changed = tuple(replace(process, **facts) for process in node.processes.processes)  # type: ignore[arg-type]
    return replace(node, processes=replace(node.processes, processes=changed))


def with_memlock(**facts: object) -> Examination:
    node = examination_of(HGX)
    assert isinstance(node.memlock, MemlockFacts)
    return replace(node, memlock=replace(node.memlock, **facts))  # type: ignore[arg-type]


# Memory limits.


def test_a_small_limit_of_a_job_is_critical() -> None:
    finding = said(with_processes(memlock=SMALL), "memlock-or-ipc-lock")
    assert (finding.status, finding.severity) == (Status.FOUND, Severity.CRITICAL)
    assert "8 MiB" in finding.evidence[0].value


def test_cap_ipc_lock_lifts_every_limit() -> None:
    assert said(with_processes(memlock=SMALL, ipc_lock=True), "memlock-or-ipc-lock").status is Status.PASSED


def test_a_large_limit_is_a_note() -> None:
    large = MemlockLimit(64 << 30, math.inf)
    assert said(with_processes(memlock=large), "memlock-or-ipc-lock").severity is Severity.NOTE


def test_a_job_without_rdma_needs_no_locked_memory() -> None:
    assert said(with_processes(memlock=SMALL, uverbs_files=()), "memlock-or-ipc-lock").status is Status.PASSED


@pytest.mark.parametrize("fact", ["memlock", "ipc_lock"])
def test_limits_that_are_not_known(fact: str) -> None:
    assert said(with_processes(**{fact: DENIED}), "memlock-or-ipc-lock").status is Status.UNKNOWN


def test_a_service_without_the_setting_gets_the_managers_default() -> None:
    unset = {"slurmd.service": ABSENT}
    found = said(with_memlock(services=unset), "memlock-scheduler")
    assert found.status is Status.FOUND
    lifted = with_memlock(services=unset, manager_default=UnitSetting("infinity", "/etc/systemd/system.conf"))
    assert said(lifted, "memlock-scheduler").status is Status.PASSED


def test_a_service_whose_files_are_unreadable_is_unknown() -> None:
    closed = with_memlock(services={"slurmd.service": DENIED})
    assert said(closed, "memlock-scheduler").status is Status.UNKNOWN


def test_a_container_runtime_without_a_limited_job_passes() -> None:
    node = with_memlock(services={"containerd.service": ABSENT})
    assert said(node, "memlock-container-runtime").status is Status.PASSED


def test_a_limited_runtime_and_its_limited_job_are_one_finding() -> None:
    found = findings_on("hgx-h100+memlock-container-runtime")
    assert found["memlock-container-runtime"].part_of == "memlock-or-ipc-lock"
    assert "evaluate.py (carol, pod 1b2c3d4e, pid 44003)" in found["memlock-or-ipc-lock"].cause


@pytest.mark.parametrize(
    ("unit", "warning"), [("docker.service", "live-restore"), ("pbs_mom.service", "pbs_mom's jobs")]
)
def test_a_fix_that_restarts_a_service_names_the_effect_on_its_jobs(unit: str, warning: str) -> None:
    limited = with_processes(memlock=SMALL, job="container 3f4e5d6c7b8a")
    assert isinstance(limited.memlock, MemlockFacts)
    node = replace(limited, memlock=replace(limited.memlock, services={unit: ABSENT}))
    check = "memlock-container-runtime" if unit == "docker.service" else "memlock-scheduler"
    fix = said(node, check).fix
    assert fix is not None
    assert warning in fix.disturbs
    assert ("systemctl", "restart", unit) in [step.argv for step in fix.steps]


@pytest.mark.parametrize(("default", "status"), [(256 << 30, Status.PASSED), (8 << 20, Status.FOUND)])
def test_a_login_on_debian_gets_the_limit_of_process_1(default: float, status: Status) -> None:
    limit = MemlockLimit(default, default)
    node = with_memlock(lines=(), services={"ssh.service": ABSENT}, login_default=limit)
    assert said(node, "memlock-login").status is status
    assert said(node, "memlock-login").evidence[0].source == "/proc/1/limits"


def test_unlimited_services_and_absent_ones_pass() -> None:
    unlimited = {"containerd.service": UnitSetting("infinity", "/etc/systemd/system/containerd.service")}
    node = with_memlock(services=unlimited)
    for check in ("memlock-container-runtime", "memlock-scheduler"):
        assert said(node, check).status is Status.PASSED


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ((("*", "-", math.inf),), Status.PASSED),
        ((("*", "soft", math.inf), ("*", "hard", math.inf)), Status.PASSED),
        ((("*", "-", math.inf), ("*", "-", 65536.0)), Status.FOUND),  # the last one counts
        ((("@hpc", "-", math.inf),), Status.PASSED),
        ((("root", "-", math.inf),), Status.FOUND),
        ((), Status.FOUND),
    ],
)
def test_limits_of_logins(lines: tuple[tuple[str, str, float], ...], status: Status) -> None:
    parsed = tuple(LimitsLine(domain, kind, value, "x:1") for domain, kind, value in lines)
    node = with_memlock(lines=parsed, services={"ssh.service": ABSENT})
    assert said(node, "memlock-login").status is status


def test_limits_that_cannot_be_read_are_unknown() -> None:
    node = with_memlock(unread=("/etc/security/limits.d/x.conf",))
    assert said(node, "memlock-login").status is Status.UNKNOWN


def test_this_shell() -> None:
    small = with_memlock(own=SMALL)
    assert said(small, "memlock-shell").status is Status.FOUND
    assert said(replace(small, is_root=True), "memlock-shell").status is Status.PASSED
    assert said(with_memlock(own=DENIED), "memlock-shell").status is Status.UNKNOWN


def test_root_in_a_container_may_have_a_limit() -> None:
    pod = replace(examination_of("pcie-l40s+container-shm-small"), is_root=True)
    finding = said(pod, "memlock-shell")
    assert finding.severity is Severity.WARNING
    assert finding.fix is not None
    assert any("IPC_LOCK" in step.why for step in finding.fix.steps)
    unread = replace(pod, own_container=DENIED)
    assert said(unread, "memlock-shell").status is Status.UNKNOWN
    assert said(examination_of("pcie-l40s+in-pod"), "memlock-shell").status is Status.PASSED


def test_one_gpu_needs_no_shared_memory() -> None:
    pod = examination_of("pcie-l40s+container-shm-small")
    assert said(pod, "container-shm-small").status is Status.FOUND
    assert isinstance(pod.device_nodes, DeviceNodeFacts)
    files = (DeviceNode("/dev/nvidia0", True), DeviceNode("/dev/nvidiactl", True))
    single = replace(pod, device_nodes=replace(pod.device_nodes, gpu=files))
    assert said(single, "container-shm-small").status is Status.PASSED
    assert said(examination_of("pcie-l40s"), "container-shm-small").status is Status.PASSED


# Device files.


def with_nodes(rdma: Maybe[tuple[DeviceNode, ...]], gpu: Maybe[tuple[DeviceNode, ...]] = ()) -> Examination:
    return replace(examination_of(HGX), device_nodes=DeviceNodeFacts(rdma, gpu))


def verbs(usable: Maybe[bool], count: int = 10) -> tuple[DeviceNode, ...]:
    return tuple(DeviceNode(f"/dev/infiniband/uverbs{number}", usable) for number in range(count))


def test_missing_files_are_passed_in_or_created() -> None:
    node = with_nodes(ABSENT)
    finding = said(node, "dev-infiniband-missing")
    assert finding.fix is not None
    assert finding.fix.steps[0].argv == ("mkdir", "-m", "0755", "/dev/infiniband")
    assert isinstance(node.node.platform, PlatformFacts)
    place = replace(node.node.platform, environment=Environment.CONTAINER)
    inside = said(replace(node, node=replace(node.node, platform=place)), "dev-infiniband-missing")
    assert "container" in inside.cause
    assert inside.fix is not None
    assert not inside.fix.needs_root


@pytest.mark.parametrize(
    ("files", "missing", "incomplete", "denied"),
    [
        (verbs(True), Status.PASSED, Status.PASSED, Status.PASSED),
        (verbs(False), Status.PASSED, Status.PASSED, Status.FOUND),
        (verbs(DENIED), Status.PASSED, Status.PASSED, Status.UNKNOWN),
        (verbs(True, 4), Status.PASSED, Status.FOUND, Status.PASSED),
        (ABSENT, Status.FOUND, Status.PASSED, Status.PASSED),
        (DENIED, Status.UNKNOWN, Status.UNKNOWN, Status.UNKNOWN),
    ],
)
def test_rdma_files(
    files: Maybe[tuple[DeviceNode, ...]], missing: Status, incomplete: Status, denied: Status
) -> None:
    node = with_nodes(files)
    assert said(node, "dev-infiniband-missing").status is missing
    assert said(node, "dev-infiniband-incomplete").status is incomplete
    assert said(node, "dev-infiniband-denied").status is denied


def test_a_node_without_rdma_needs_no_files() -> None:
    node = with_nodes(ABSENT)
    node = replace(node, node=replace(node.node, rdma=ABSENT))
    for check in ("dev-infiniband-missing", "dev-infiniband-incomplete", "dev-infiniband-near-nic-missing"):
        assert said(node, check).status is Status.PASSED


def test_missing_files_that_nothing_needs_are_not_critical() -> None:
    """A node without a GPU has no GPUDirect RDMA to lose."""
    node = with_nodes(ABSENT)
    assert said(node, "dev-infiniband-missing").severity is Severity.CRITICAL
    node = replace(node, topology=replace(node.topology, gpus=()))
    assert said(node, "dev-infiniband-missing").severity is Severity.WARNING


def test_a_dump_without_dev_is_unknown() -> None:
    left_out = Unknown(Reason.NOT_RECORDED, "/dev", "the tree has no /dev/null")
    node = with_nodes(left_out, left_out)
    for check in ("dev-infiniband-missing", "dev-infiniband-incomplete", "dev-nvidia-missing"):
        assert said(node, check).status is Status.UNKNOWN


def test_a_container_without_rdma_is_a_warning_only_with_nccl() -> None:
    bare = said(with_processes(rdma_nodes=ABSENT, libraries=()), "dev-infiniband-not-in-container")
    training = said(with_processes(rdma_nodes=ABSENT), "dev-infiniband-not-in-container")
    assert (bare.severity, training.severity) == (Severity.NOTE, Severity.WARNING)
    closed = said(with_processes(rdma_nodes=DENIED), "dev-infiniband-not-in-container")
    assert closed.status is Status.UNKNOWN


def test_a_container_with_the_nic_near_its_gpu_passes() -> None:
    """A container needs only the nearest NIC."""
    near = with_processes(rdma_nodes=("uverbs0",), gpu_files=("/dev/nvidia0",))
    assert said(near, "dev-infiniband-near-nic-missing").status is Status.PASSED
    far = with_processes(rdma_nodes=("uverbs8",), gpu_files=("/dev/nvidia0",))
    assert said(far, "dev-infiniband-near-nic-missing").status is Status.FOUND


def test_pids_of_another_namespace() -> None:
    node = examination_of(HGX)
    assert isinstance(node.processes, ProcessFacts)
    alone = replace(node, processes=replace(node.processes, processes=()))
    finding = said(alone, "pid-namespace-hides-users")
    assert (finding.status, finding.severity) == (Status.FOUND, Severity.NOTE)
    assert said(alone, "nccl-ib-disabled").status is Status.UNKNOWN
    silent = replace(node, reading=replace(node.reading, gpus=DENIED))
    assert said(silent, "pid-namespace-hides-users").status is Status.UNKNOWN


# Driver containers.

K8S = (
    "k8s-rdma-not-enabled",
    "k8s-waiting-for-mofed",
    "k8s-mofed-storage-modules",
    "k8s-peermem-ctr-crashloop",
)


def test_a_driver_container_with_dmabuf_needs_no_peermem() -> None:
    """driver.rdma.enabled=false is right if DMA-BUF works."""
    facts = DriverContainerFacts(True, ("6.8.0",), False, False, ())
    node = replace(examination_of("pcie-l40s"), driver_container=facts)
    assert said(node, "k8s-rdma-not-enabled").status is Status.PASSED


def test_an_empty_driver_container_is_a_note_with_dmabuf() -> None:
    assert findings_on("pcie-l40s+k8s-peermem-ctr-crashloop")["k8s-peermem-ctr-crashloop"].severity is (
        Severity.NOTE
    )


def test_a_loaded_module_is_fine_whatever_its_pod_says() -> None:
    facts = DriverContainerFacts(True, (), False, False, ())
    node = replace(examination_of(HGX), driver_container=facts)
    assert said(node, "k8s-peermem-ctr-crashloop").status is Status.PASSED


@pytest.mark.parametrize("check", K8S)
def test_closed_directories_are_unknown(check: str) -> None:
    facts = DriverContainerFacts(DENIED, DENIED, DENIED, DENIED, DENIED)
    node = replace(examination_of(HGX), driver_container=facts)
    assert said(node, check).status is Status.UNKNOWN
    assert said(replace(node, driver_container=DENIED), check).status is Status.UNKNOWN
