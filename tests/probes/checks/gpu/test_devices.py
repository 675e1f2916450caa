"""Checks of GPUs: driver, bus, modes, NVLink, Xids."""

from dataclasses import replace

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Reason, Unknown
from probes.checks.registry import findings
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.jobs.processes import ProcessFacts
from probes.facts.pci.config_space import ConfigSpaceFacts
from probes.facts.system.platform import Environment, PlatformFacts
from probes.facts.system.services import ServiceFacts, ServiceState
from probes.facts.system.tools import InstalledLibrary, LibraryFacts
from probes.host.nvml import LOST
from probes.queries.finding import Status
from probes.simulation.faults.catalogue import FAULTS
from tests.support.changed_facts import said, status, with_gpus, with_log, with_nvml
from tests.support.doctor import examination_of, findings_on

HGX = examination_of("hgx-h100")
GB200 = examination_of("gb200")
OF_GPUS = (
    "gpu-without-driver",
    "gpu-without-driver-nouveau",
    "gpu-without-driver-passed-through",
    "driver-library-mismatch",
    "xid-79-fell-off-bus",
    "gpu-missing-from-nvml",
    "persistence-off",
    "persistence-off-daemon-runs",
    "mig-with-gdr",
    "vgpu-without-gdr",
    "geforce-no-gdr",
    "gpu-too-old-for-gdr",
    "gdr-read-off-on-old-gpus",
    "confidential-computing-on",
    "c2c-grace-specifics",
    "c2c-grace-specifics-gb10",
    "fabric-manager-down-version",
    "imex-down",
    "nvlink-down",
)
OF_THE_LOG = (
    "gpu-driver-start-failed",
    "xid-119-gsp-timeout",
    "xid-memory-error",
    "xid-nvlink-error",
    "xid-of-a-program",
    "xid-other",
    "sxid",
)


@pytest.mark.parametrize("name", OF_GPUS)
def test_without_the_gpus_the_checks_are_unknown(name: str) -> None:
    hidden = replace(HGX, node=replace(HGX.node, gpus=Unknown(Reason.TIMED_OUT, "GPUs")))
    finding = said(name, hidden)
    assert finding.status is Status.UNKNOWN
    assert finding.cause.startswith("needs")


@pytest.mark.parametrize(
    "name",
    [
        "persistence-off",
        "persistence-off-daemon-runs",
        "mig-with-gdr",
        "vgpu-without-gdr",
        "gpu-too-old-for-gdr",
        "gdr-read-off-on-old-gpus",
        "c2c-grace-specifics",
        "imex-down",
        "nvlink-down",
        "confidential-computing-on",
        "gpu-missing-from-nvml",
    ],
)
def test_a_fact_that_nvml_does_not_report_is_unknown_and_not_off(name: str) -> None:
    silent = Unknown(Reason.NOT_THERE, "NVML", "libnvidia-ml.so.1 is not installed")
    without = with_gpus(
        HGX,
        lambda gpu: replace(
            gpu, nvml=silent, compute_capability=silent, c2c_links=silent, nvlinks=silent, nvlink_peers=silent
        ),
    )
    facts = without.node.gpus
    assert isinstance(facts, GpuFacts)
    driver = replace(facts.driver, nvml=silent.detail, confidential_computing=silent)
    without = replace(without, node=replace(without.node, gpus=replace(facts, driver=driver)))
    assert status(name, without) is Status.UNKNOWN


@pytest.mark.parametrize("name", ["persistence-off", "mig-with-gdr", "vgpu-without-gdr"])
def test_a_refused_field_is_unknown_and_not_off(name: str) -> None:
    refused = Unknown(Reason.NEEDS_ROOT, "NVML")
    denied = with_nvml(HGX, lambda nvml: replace(nvml, persistence=refused, mig=refused, is_vgpu=refused))
    assert status(name, denied) is Status.UNKNOWN


def with_service(examination, name: str, **changes):  # type: ignore[no-untyped-def]
    services = examination.services
    assert isinstance(services, ServiceFacts)
    changed = {**services.services, name: replace(services.services[name], **changes)}
    return replace(examination, services=ServiceFacts(changed))


def test_persistence_mode_without_the_daemon_is_enough() -> None:
    stopped = with_service(HGX, "nvidia-persistenced", state=ServiceState.INACTIVE)
    assert status("persistence-off", stopped) is Status.PASSED


def test_the_daemon_without_persistence_mode_has_its_own_check() -> None:
    waiting = with_nvml(HGX, lambda nvml: replace(nvml, persistence=False))
    assert status("persistence-off", waiting) is Status.PASSED
    assert status("persistence-off-daemon-runs", waiting) is Status.FOUND
    blind = with_service(waiting, "nvidia-persistenced", state=Unknown(Reason.NOT_RECORDED))
    assert status("persistence-off", blind) is Status.UNKNOWN


def test_a_gpu_name_with_its_memory_size_is_not_a_vgpu_profile() -> None:
    assert status("vgpu-without-gdr", examination_of("dgx-a100")) is Status.PASSED
    for name in ("NVIDIA A30-8C", "GRID A100D-40C", "NVIDIA A100-1-5CME"):
        guest = with_gpus(HGX, lambda gpu, name=name: replace(gpu, name=name))  # type: ignore[misc]
        direct = guest.node.gpudirect
        assert not isinstance(direct, Unknown)
        guest = replace(guest, node=replace(guest.node, gpudirect=replace(direct, gpu_support={})))
        assert status("vgpu-without-gdr", guest) is Status.FOUND


def with_libraries(*versions: str):  # type: ignore[no-untyped-def]
    files = tuple(InstalledLibrary(f"/usr/lib64/libnvidia-ml.so.{version}", version) for version in versions)
    return replace(HGX, libraries=LibraryFacts({"libnvidia-ml.so.1": files}))


def test_one_right_library_among_several_is_enough() -> None:
    assert status("driver-library-mismatch", with_libraries("570.211.01")) is Status.PASSED
    assert status("driver-library-mismatch", with_libraries("535.1", "570.211.01")) is Status.PASSED
    assert status("driver-library-mismatch", with_libraries("535.1")) is Status.FOUND


def test_a_gpu_that_responds_again_after_xid_79() -> None:
    bdf = HGX.topology.gpus[0].id
    logged = with_log(HGX, f"NVRM: Xid (PCI:{bdf[:-2]}): 79, pid=1, GPU has fallen off the bus.")
    finding = said("xid-79-fell-off-bus", logged)
    assert (finding.status, finding.severity) == (Status.FOUND, Severity.WARNING)


def test_a_gpu_that_nvml_calls_lost_needs_no_log() -> None:
    lost = Unknown(Reason.DRIVER_ERROR, "0000:1b:00.0", LOST)
    quiet = with_gpus(HGX, lambda gpu: replace(gpu, nvml=lost), 3)
    finding = said("xid-79-fell-off-bus", quiet)
    assert (finding.status, finding.severity) == (Status.FOUND, Severity.CRITICAL)
    found = {finding.id: finding for finding in findings(quiet)}
    assert found["gpu-missing-from-nvml"].part_of == "xid-79-fell-off-bus"


def test_gpus_that_sysfs_hides_are_not_ok() -> None:
    facts = HGX.node.gpus
    assert isinstance(facts, GpuFacts)
    hidden = replace(facts, gpus=(), unplaced=tuple(gpu.bdf for gpu in facts.gpus))
    finding = said("gpu-missing-from-nvml", replace(HGX, node=replace(HGX.node, gpus=hidden)))
    assert finding.status is Status.UNKNOWN
    assert "8 GPUs" in finding.cause


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["vgpu-without-gdr", "geforce-no-gdr", "confidential-computing-on", "c2c-grace-specifics-gb10"]
)
def test_hardware_without_gpudirect_by_design_is_a_note(name: str) -> None:
    finding = findings_on(f"{FAULTS[name].on}+{name}")[name]
    assert (finding.status, finding.severity) == (Status.FOUND, Severity.NOTE)


def test_mig_has_no_fix_that_gdrtop_runs() -> None:
    fix = findings_on("hgx-h100+mig-with-gdr")["mig-with-gdr"].fix
    assert fix is not None
    assert all(step.is_instruction for step in fix.steps)


def test_all_ones_on_the_bus_need_no_log() -> None:
    bdf = HGX.topology.gpus[0].id
    gone = Unknown(Reason.DRIVER_ERROR, "config", "all ones: the function does not respond (off the bus?)")
    lost = replace(HGX, config_space=ConfigSpaceFacts({bdf: gone}), kernel_log=Unknown(Reason.NEEDS_ROOT))
    finding = said("xid-79-fell-off-bus", lost)
    assert (finding.severity, finding.devices) == (Severity.CRITICAL, (bdf,))


def test_gpus_that_respond_have_not_fallen_off_the_bus() -> None:
    restricted = replace(HGX, kernel_log=Unknown(Reason.NEEDS_ROOT))
    assert status("xid-79-fell-off-bus", restricted) is Status.PASSED


def test_a_container_may_have_only_some_gpus() -> None:
    missing = examination_of("hgx-h100+gpu-missing-from-nvml")
    platform = missing.node.platform
    assert isinstance(platform, PlatformFacts)
    inside = replace(platform, environment=Environment.CONTAINER)
    contained = replace(missing, node=replace(missing.node, platform=inside))
    assert status("gpu-missing-from-nvml", contained) is Status.PASSED


@pytest.mark.parametrize("name", OF_THE_LOG)
def test_a_log_that_needs_root_is_unknown(name: str) -> None:
    restricted = replace(HGX, kernel_log=Unknown(Reason.NEEDS_ROOT, "dmesg"))
    assert said(name, restricted).cause == "needs root: the kernel log"


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (119, "xid-119-gsp-timeout"),
        (120, "xid-119-gsp-timeout"),
        (48, "xid-memory-error"),
        (94, "xid-memory-error"),
        (74, "xid-nvlink-error"),
        (13, "xid-of-a-program"),
        (62, "xid-other"),
    ],
)
def test_one_check_reports_each_xid(number: int, name: str) -> None:
    logged = with_log(HGX, f"NVRM: Xid (PCI:0000:17:00): {number}, pid=1, name=x, text")
    assert {check for check in OF_THE_LOG if status(check, logged) is Status.FOUND} == {name}


def test_machines_without_nvswitch_need_no_fabric_manager() -> None:
    for name in ("fabric-manager-down", "fabric-manager-down-absent", "fabric-manager-down-version"):
        assert status(name, examination_of("pcie-l40s")) is Status.PASSED


def test_an_absent_fabric_manager_is_reported_once() -> None:
    absent = examination_of("hgx-h100+fabric-manager-down-absent")
    assert status("fabric-manager-down", absent) is Status.PASSED
    assert status("fabric-manager-down-version", absent) is Status.PASSED


def test_a_container_does_not_see_the_nodes_services() -> None:
    absent = examination_of("hgx-h100+fabric-manager-down-absent")
    platform = absent.node.platform
    assert isinstance(platform, PlatformFacts)
    inside = replace(platform, environment=Environment.KUBERNETES_POD)
    assert (
        status("fabric-manager-down-absent", replace(absent, node=replace(absent.node, platform=inside)))
        is Status.UNKNOWN
    )
    blind = with_service(HGX, "nvidia-fabricmanager", state=Unknown(Reason.NOT_RECORDED))
    assert status("fabric-manager-down", blind) is Status.UNKNOWN


WITHOUT_NCCL = replace(
    GB200,
    libraries=LibraryFacts({}),
    processes=ProcessFacts((), 0, 0, Unknown(Reason.NOT_THERE, "/etc/nccl.conf")),
)


def with_nccl(version: str):  # type: ignore[no-untyped-def]
    library = InstalledLibrary(f"/usr/lib/libnccl.so.{version}", version)
    return replace(WITHOUT_NCCL, libraries=LibraryFacts({"libnccl.so.2": (library,)}))


def test_nccl_2_27_uses_c2c_by_default() -> None:
    assert status("c2c-grace-specifics", with_nccl("2.27.3")) is Status.PASSED
    assert status("c2c-grace-specifics", with_nccl("2.26.2")) is Status.FOUND
    assert status("c2c-grace-specifics", WITHOUT_NCCL) is Status.UNKNOWN
    assert status("c2c-grace-specifics", HGX) is Status.PASSED


@pytest.mark.parametrize(
    ("version", "setting", "other"),
    [
        ("2.26.2", "NCCL_NET_GDR_C2C=1", "NCCL_NET_GDR_LEVEL"),
        ("2.25.1", "NCCL_NET_GDR_LEVEL=PHB", "NCCL_NET_GDR_C2C"),  # which has no such variable
    ],
)
def test_what_to_set_until_nccl_is_newer_depends_on_its_version(
    version: str, setting: str, other: str
) -> None:
    fix = said("c2c-grace-specifics", with_nccl(version)).fix
    assert fix is not None
    steps = " ".join(step.why for step in fix.steps)
    assert setting in steps
    assert other not in steps


def without_imex(**changes):  # type: ignore[no-untyped-def]
    return with_service(GB200, "nvidia-imex", state=ServiceState.INACTIVE, **changes)


def test_imex_that_is_not_running_breaks_multi_node_jobs() -> None:
    finding = said("imex-down", without_imex())
    assert (finding.status, finding.severity) == (Status.FOUND, Severity.WARNING)
    assert "ncclSystemError" in finding.impact
    assert finding.fix is not None
    assert any("NCCL_MNNVL_ENABLE=0" in step.why for step in finding.fix.steps)


def test_imex_is_not_needed_if_something_else_starts_it() -> None:
    assert status("imex-down", without_imex(masked=True)) is Status.PASSED
    node = without_imex()
    pods = replace(node, driver_container=replace(node.driver_container, kubelet=True))
    services = {"kubelet.service": Unknown(Reason.NOT_THERE)}
    kubelet = replace(node, memlock=replace(node.memlock, services=services))
    for kubernetes in (pods, kubelet):
        assert status("imex-down", kubernetes) is Status.PASSED


def test_a_path_that_a_virtual_machine_hides_is_unknown() -> None:
    assert status("gpu-without-near-nic", examination_of("cloud-vm")) is Status.UNKNOWN


def test_gpus_that_are_equally_far_from_nics_are_not_found() -> None:
    assert status("gpu-without-near-nic", GB200) is Status.PASSED


def test_a_flood_of_one_xid_does_not_hide_another() -> None:
    flood = ["NVRM: Xid (PCI:0000:17:00): 31, pid=1, name=x, MMU Fault"] * 60
    lost = "NVRM: Xid (PCI:0000:17:00): 119, pid=1, name=x, Timeout"
    assert status("xid-119-gsp-timeout", with_log(HGX, lost, *flood)) is Status.FOUND
    assert status("xid-memory-error", with_log(HGX, *flood)) is Status.PASSED


def test_an_sxid_that_is_not_fatal_is_a_note() -> None:
    told = "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error"
    assert said("sxid", with_log(HGX, told)).severity is Severity.NOTE


def test_a_gpu_that_responds_again_after_a_gsp_timeout() -> None:
    assert (
        said("xid-119-gsp-timeout", examination_of("hgx-h100+xid-119-gsp-timeout")).severity
        is Severity.WARNING
    )
    elsewhere = with_log(HGX, "NVRM: Xid (PCI:0000:03:00): 119, pid=1, name=x, Timeout")
    assert said("xid-119-gsp-timeout", elsewhere).severity is Severity.CRITICAL


@pytest.mark.parametrize("name", OF_THE_LOG)
def test_a_node_without_gpus_needs_no_log_of_them(name: str) -> None:
    pci = HGX.node.pci
    assert not isinstance(pci, Unknown)
    empty = replace(HGX, node=replace(HGX.node, pci=replace(pci, functions={})))
    assert status(name, replace(empty, kernel_log=Unknown(Reason.NEEDS_ROOT))) is Status.PASSED


def test_a_new_fabric_manager_on_disk_is_a_warning_while_the_old_one_runs() -> None:
    running = examination_of("hgx-h100+fabric-manager-down-version")
    assert said("fabric-manager-down-version", running).severity is Severity.WARNING
    stopped = examination_of("hgx-h100+fabric-manager-down-version,fabric-manager-down")
    assert said("fabric-manager-down-version", stopped).severity is Severity.CRITICAL
