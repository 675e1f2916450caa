"""Checks of the NVLink fabric, and the verdict where its services are down."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Reason, Unknown
from probes.checks.judgment import judge
from probes.facts.gpu.gpus import FabricServiceFacts, Gpu, GpuFacts
from probes.plans.services import restart_fabric_manager
from probes.queries.finding import Status
from probes.queries.nvlink_fabric import NvSwitches, nvswitches_of
from probes.simulation.host import SimulatedHost
from probes.simulation.node.jobs.processes import add_fabric_manager
from probes.snapshot.examination import Examination, examine
from probes.snapshot.verdict import State
from tests.support.changed_facts import said, status
from tests.support.doctor import examination_of

B200 = examination_of("hgx-b200")
SERVICES = ("nvlsm-down", "nvlsm-missing", "ib-umad-missing")
MANAGER = ("fabric-manager-down", "fabric-manager-down-absent", "fabric-manager-down-version")


def with_gpus(examination: Examination, **changes: object) -> Examination:
    facts = examination.node.gpus
    assert isinstance(facts, GpuFacts)
    gpus: list[Gpu] = [replace(gpu, **changes) for gpu in facts.gpus]  # type: ignore[arg-type]
    return replace(examination, node=replace(examination.node, gpus=replace(facts, gpus=tuple(gpus))))


def with_services(examination: Examination, **changes: object) -> Examination:
    facts = examination.fabric_services
    assert isinstance(facts, FabricServiceFacts)
    return replace(examination, fabric_services=replace(facts, **changes))  # type: ignore[arg-type]


def without_bridge(examination: Examination) -> Examination:
    """The node with its bridge not visible, as where mlx5_core has not bound it or the bus hides it."""
    pci = examination.node.pci
    assert not isinstance(pci, Unknown)
    functions = {bdf: function for bdf, function in pci.functions.items() if bdf not in pci.management}
    return replace(
        examination, node=replace(examination.node, pci=replace(pci, functions=functions, management={}))
    )


@pytest.mark.parametrize("fault", ["nvlsm-down", "ib-umad-missing", "fabric-manager-down"])
def test_a_board_whose_fabric_is_not_set_up_is_not_ready(fault: str) -> None:
    examination = examination_of(f"hgx-b200+{fault}")
    verdict = judge(examination).verdict
    assert (verdict.state, verdict.gpus_served) == (State.BROKEN, 0)
    registered = said("gpu-fabric-not-registered", examination)
    assert (registered.status, registered.severity) == (Status.FOUND, Severity.CRITICAL)
    assert "0000:05:00.0" in said(fault, examination).devices


def test_one_cause_is_counted_once() -> None:
    examination = examination_of("hgx-b200+ib-umad-missing")
    for name in ("nvlsm-down", "fabric-manager-down", "gpu-fabric-not-registered"):
        assert said(name, examination).status is Status.FOUND
    assert said("ib-umad-missing", examination).part_of == ""


def test_a_part_that_is_missing_later_is_a_warning() -> None:
    late = with_services(B200, umad_loaded=False, nvlsm_runs=False)
    for name in ("ib-umad-missing", "nvlsm-down"):
        finding = said(name, late)
        assert (finding.status, finding.severity) == (Status.FOUND, Severity.WARNING)
        assert "Nothing fails yet" in finding.impact


def test_umad_files_that_are_missing_are_found() -> None:
    nodes = B200.device_nodes
    assert not isinstance(nodes, Unknown)
    assert not isinstance(nodes.rdma, Unknown)
    left = tuple(file for file in nodes.rdma if "umad" not in file.path)
    finding = said("ib-umad-missing", replace(B200, device_nodes=replace(nodes, rdma=left)))
    assert finding.status is Status.FOUND
    assert "umad" in finding.cause


def test_hidden_processes_leave_nvlsm_unknown() -> None:
    hidden = with_services(B200, nvlsm_runs=Unknown(Reason.NOT_THERE, "/proc/1/comm", "hidden"))
    assert status("nvlsm-down", hidden) is Status.UNKNOWN
    assert status("nvlsm-missing", hidden) is Status.PASSED


def test_a_board_is_known_by_its_gpus_where_the_bridge_is_hidden() -> None:
    hidden = without_bridge(B200)
    switches = nvswitches_of(hidden)
    assert isinstance(switches, NvSwitches)
    assert switches.needs_nvlsm
    assert "NVIDIA B200" in switches.text
    rack = with_gpus(hidden, name="NVIDIA GB200")
    assert nvswitches_of(rack) is None
    single = with_gpus(hidden, nvlinks=0)
    assert nvswitches_of(single) is None


@pytest.mark.parametrize("node", ["gb200", "pcie-l40s", "cloud-vm"])
def test_elsewhere_nothing_of_this_node_manages_nvswitches(node: str) -> None:
    examination = examination_of(node)
    for name in (*SERVICES, *MANAGER):
        assert status(name, examination) is Status.PASSED
    assert isinstance(restart_fabric_manager(examination), str)


def test_an_older_board_needs_no_nvlsm() -> None:
    examination = examination_of("hgx-h100")
    for name in SERVICES:
        assert status(name, examination) is Status.PASSED


def test_fabric_manager_can_be_restarted_on_such_a_board() -> None:
    plan = restart_fabric_manager(B200)
    assert not isinstance(plan, str)
    assert plan.steps[0].argv == ("systemctl", "restart", "nvidia-fabricmanager")


def test_a_rack_says_where_the_fault_is() -> None:
    gb200 = examination_of("gb200")
    facts = gb200.node.gpus
    assert isinstance(facts, GpuFacts)
    fabric = replace(facts.gpus[0].fabric, state="in progress")
    finding = said("gpu-fabric-not-registered", with_gpus(gb200, fabric=fabric))
    assert "switch trays" in finding.cause


def test_unknown_states_leave_the_checks_unknown() -> None:
    facts = B200.node.gpus
    assert isinstance(facts, GpuFacts)
    missing = Unknown(Reason.DRIVER_ERROR, "NVML")
    fabric = replace(facts.gpus[0].fabric, state=missing, clique=missing, cluster=missing, problems=missing)
    for name in ("gpu-fabric-not-registered", "gpu-fabric-unhealthy", "gpu-fabric-differs"):
        assert status(name, with_gpus(B200, fabric=fabric)) is Status.UNKNOWN


def test_no_imex_channel() -> None:
    gb200 = examination_of("gb200")
    missing = with_services(gb200, imex_channels=0)
    assert said("imex-channels-missing", missing).severity is Severity.WARNING
    memlock = gb200.memlock
    assert not isinstance(memlock, Unknown)
    unit = next(iter(memlock.services.values()), None)
    with_slurm = replace(memlock, services={**memlock.services, "slurmd.service": unit})  # type: ignore[dict-item]
    assert said("imex-channels-missing", replace(missing, memlock=with_slurm)).severity is Severity.NOTE
    kubernetes = replace(memlock, services={**memlock.services, "kubelet.service": unit})  # type: ignore[dict-item]
    assert status("imex-channels-missing", replace(missing, memlock=kubernetes)) is Status.PASSED
    denied = with_services(gb200, imex_channels=Unknown(Reason.NEEDS_ROOT, "/dev"))
    assert status("imex-channels-missing", denied) is Status.UNKNOWN
    assert status("imex-channels-missing", B200) is Status.PASSED


@pytest.mark.parametrize(("since", "expected"), [(1800.0, Status.FOUND), (0.0, Status.PASSED)])
def test_a_fabric_manager_that_is_newer_than_a_job(since: float, expected: Status) -> None:
    """NVIDIA/nccl issue 976: "manually restarted while processes were still holding resources"."""
    host = SimulatedHost("hgx-h100", clock=lambda: 1000.0)
    add_fabric_manager(host.tree, 1390, since)
    finding = said("fabric-manager-restarted-under-jobs", examine(host))
    assert finding.status is expected
    if expected is Status.FOUND:
        assert "/proc/41000/stat" in {line.source for line in finding.evidence}
