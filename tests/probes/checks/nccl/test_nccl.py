"""Checks of the settings of jobs: passed, found, unknown, and common mistakes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Reason, Unknown
from probes.checks.registry import findings
from probes.facts.jobs.nccl_conf import NcclConf
from probes.facts.jobs.process_files import MappedLibrary
from probes.facts.jobs.processes import Process, ProcessFacts
from probes.queries.finding import Finding, Status
from probes.simulation.faults.catalogue import FAULTS
from probes.simulation.host import SimulatedHost
from probes.simulation.node.jobs.processes import add_rank
from probes.snapshot.examination import Examination, examine
from tests.support.doctor import examination_of, findings_on
from tests.support.tiers import usual

DENIED = Unknown(Reason.NEEDS_ROOT, "/proc/41000/fd")
ABSENT = Unknown(Reason.NOT_THERE, "absent")


def with_job(name: str = "hgx-h100", gpu: int = 0, **variables: str) -> Examination:
    """Return a node with one more job that has these variables."""
    host = SimulatedHost(name, clock=lambda: 1000.0)
    add_rank(host.tree, 46000, gpu, variables)
    return examine(host)


def said(examination: Examination, check: str) -> Finding:
    (finding,) = findings(examination, only={check})
    return finding


def processes_of(examination: Examination) -> ProcessFacts:
    assert isinstance(examination.processes, ProcessFacts)
    return examination.processes


def with_processes(examination: Examination, **facts: Any) -> Examination:
    """Return the node with every process changed in the same way."""
    seen = processes_of(examination)
    changed = tuple(replace(process, **facts) for process in seen.processes)
    return replace(examination, processes=replace(seen, processes=changed))


def idle(examination: Examination, hidden: int = 0) -> Examination:
    """Return the node without processes, also in NVML."""
    gpus = examination.reading.gpus
    assert not isinstance(gpus, Unknown)
    quiet = {bdf: replace(live, processes=()) for bdf, live in gpus.items()}
    return replace(
        examination,
        reading=replace(examination.reading, gpus=quiet),
        processes=replace(processes_of(examination), processes=(), hidden=hidden),
    )


# Values that NCCL ignores or misreads.


@pytest.mark.parametrize("value", ["node", "NODE", "phb", " PHB"])
def test_unknown_words_of_the_level_are_found(value: str) -> None:
    finding = said(with_job(NCCL_NET_GDR_LEVEL=value), "nccl-gdr-level-ignored")
    assert finding.status is Status.FOUND
    assert finding.evidence[0].source == "/proc/46000/environ"
    assert value in finding.evidence[0].value


@pytest.mark.parametrize("value", ["PIX", "PXB", "PHB", "SYS", "3", "5"])
def test_known_levels_are_not_a_fault(value: str) -> None:
    node = with_job(NCCL_NET_GDR_LEVEL=value)
    assert said(node, "nccl-gdr-level-ignored").status is Status.PASSED
    assert said(node, "nccl-gdr-level-off").status is Status.PASSED


@pytest.mark.parametrize("value", ["0", "LOC", "NVL", "C2C"])
def test_loc_and_0_disable_gdr(value: str) -> None:
    """Level 0 disables GPUDirect RDMA and has no effect on ACS."""
    finding = said(with_job(NCCL_NET_GDR_LEVEL=value), "nccl-gdr-level-off")
    assert (finding.status, finding.severity) == (Status.FOUND, Severity.CRITICAL)


@pytest.mark.parametrize(("value", "word"), [("3", "PHB"), ("4", "SYS"), ("5", "SYS"), ("1", "PIX")])
def test_numbers_are_shown_with_their_words(value: str, word: str) -> None:
    finding = said(with_job(NCCL_NET_GDR_LEVEL=value), "nccl-gdr-level-number")
    assert finding.severity is Severity.NOTE
    assert f"means {word}" in finding.evidence[0].value


@pytest.mark.parametrize(
    ("node", "value", "status"),
    [
        ("hgx-b200", "PIX", Status.FOUND),  # its NICs are PXB, which the default allows
        ("hgx-b200", "PXB", Status.PASSED),
        ("pcie-l40s", "PXB", Status.PASSED),  # SYS is beyond the default, so the setting costs nothing
        ("pcie-l40s", "SYS", Status.PASSED),
    ],
)
def test_a_level_is_too_low_if_the_default_allows_more(node: str, value: str, status: Status) -> None:
    job = with_job(node, gpu=2, NCCL_NET_GDR_LEVEL=value)
    assert said(job, "nccl-gdr-level-too-low").status is status


@pytest.mark.parametrize(
    ("version", "variables", "status"),
    [
        ("2.26.2", {}, Status.FOUND),
        ("2.26.2", {"NCCL_NET_GDR_C2C": "1"}, Status.PASSED),
        ("2.27.3", {}, Status.PASSED),
        ("2.28.9", {}, Status.PASSED),
        ("2.28.9", {"NCCL_NET_GDR_C2C": "0"}, Status.FOUND),
        ("2.29.2", {}, Status.FOUND),
        ("2.29.2", {"NCCL_NET_GDR_C2C": "1"}, Status.FOUND),
    ],
)
def test_the_version_decides_whether_a_level_disables_c2c(
    version: str, variables: dict[str, str], status: Status
) -> None:
    library = MappedLibrary("libnccl", f"/usr/lib/libnccl.so.{version}", version)
    node = with_processes(with_job("gb200", NCCL_NET_GDR_LEVEL="PXB", **variables), libraries=(library,))
    finding = said(node, "nccl-gdr-level-too-low")
    assert finding.status is status
    if version == "2.29.2":
        assert "disables GPUDirect RDMA that works without it" in finding.cause


def test_dmabuf_is_on_by_default() -> None:
    for node in (with_job(), with_job(NCCL_DMABUF_ENABLE="1")):
        assert said(node, "nccl-dmabuf-disabled").status is Status.PASSED


def test_disabled_dmabuf_is_a_note_if_peermem_works() -> None:
    with_peermem = said(with_job(NCCL_DMABUF_ENABLE="0"), "nccl-dmabuf-disabled")
    without = said(with_job("pcie-l40s", NCCL_DMABUF_ENABLE="0"), "nccl-dmabuf-disabled")
    assert (with_peermem.severity, without.severity) == (Severity.NOTE, Severity.CRITICAL)


@pytest.mark.slow
@pytest.mark.parametrize(
    "variables",
    [
        {"CUDA_VISIBLE_DEVICES": "3"},
        {"NCCL_DEBUG": "INFO"},
        {"NCCL_IB_DISABLE": "0"},
        {"NCCL_NET": "IB"},
        {"NCCL_NET_GDR_READ": "1"},
        {"NCCL_NET_PLUGIN": "none"},
        {"NCCL_IB_GID_INDEX": "-1"},
        {"NCCL_IB_PCI_RELAXED_ORDERING": "1"},
        {"UCX_TLS": "all"},
        {"UCX_TLS": "rc,cuda_copy,gdr_copy"},
        {"UCX_TLS": "^tcp"},
        {"UCX_NET_DEVICES": "mlx5_0:1,eth0"},
        {"NCCL_IB_HCA": "^=mlx5_4,mlx5_9"},
    ],
)
def test_settings_that_are_not_a_fault(variables: dict[str, str]) -> None:
    found = {finding.id for finding in findings(with_job(**variables)) if finding.status is Status.FOUND}
    assert not found


def test_the_c2c_variable_has_no_effect_without_c2c() -> None:
    assert said(with_job(NCCL_NET_GDR_C2C="0"), "nccl-gdr-c2c-off").status is Status.PASSED


def test_an_unset_variable_is_not_found() -> None:
    """Neither NCCL_DEBUG nor NCCL_IB_HCA has to be set."""
    node = with_processes(replace(examination_of("hgx-h100"), job_logs=()), environment={})
    assert not {finding.id for finding in findings(node) if finding.status is Status.FOUND}


OF_JOBS = ("nccl-", "ucx-", "nvshmem-")
NAMED = [
    name
    for name, fault in FAULTS.items()
    if name.startswith(OF_JOBS) and name in fault.finds and "conf" not in name
]
USUAL_NAMED = {NAMED[0], "nccl-ib-hca-prefix", *(name for name in NAMED if name.startswith("nvshmem-"))}


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(NAMED, USUAL_NAMED))
def test_a_finding_names_the_process_by_command_user_and_job(name: str) -> None:
    finding = findings_on(f"{FAULTS[name].on}+{name}")[name]
    jobs = ("evaluate.py (carol, Slurm job 4713, pid", "train.py (alice, Slurm job 4711, pid")
    assert finding.cause.startswith(jobs)
    assert "pid 43" in finding.cause or "pids" in finding.cause


def test_a_plugin_is_not_found_if_the_nics_need_one() -> None:
    node = examination_of("hgx-h100+nccl-net-plugin-trouble")
    assert said(node, "nccl-net-plugin-trouble").status is Status.FOUND
    assert not isinstance(node.node.pci, Unknown)
    bdf = next(iter(node.node.pci.functions))
    functions = {**node.node.pci.functions, bdf: replace(node.node.pci.functions[bdf], driver="efa")}
    on_efa = replace(node, node=replace(node.node, pci=replace(node.node.pci, functions=functions)))
    assert said(on_efa, "nccl-net-plugin-trouble").status is Status.PASSED


# Where a variable is set.


def test_the_configuration_file_applies_to_jobs_that_start_next() -> None:
    node = idle(examination_of("hgx-h100"))
    conf = NcclConf({"NCCL_IB_DISABLE": "1"}, ())
    node = replace(node, processes=replace(processes_of(node), nccl_conf=conf))
    finding = said(node, "nccl-ib-disabled")
    assert finding.status is Status.FOUND
    assert finding.evidence[0].source == "/etc/nccl.conf"


def test_the_environment_overrides_the_configuration_file() -> None:
    node = with_job(NCCL_IB_DISABLE="0")
    conf = NcclConf({"NCCL_IB_DISABLE": "1"}, ())
    seen = processes_of(node)
    inside = tuple(replace(process, nccl_conf=conf) for process in seen.processes if process.pid == 46000)
    node = replace(node, processes=replace(seen, processes=inside))
    assert said(node, "nccl-ib-disabled").status is not Status.FOUND


def test_a_containers_own_file_is_named_with_its_path() -> None:
    node = with_processes(examination_of("hgx-h100"), nccl_conf=NcclConf({"NCCL_NET": "socket"}, ()))
    assert said(node, "nccl-net-socket").evidence[0].source == "/proc/41000/root/etc/nccl.conf"


# Processes and facts that are not visible.

VARIABLE_CHECKS = ("nccl-gdr-level-off", "nccl-ib-disabled", "nccl-ib-hca-mismatch", "ucx-tls-without-cuda")


@pytest.mark.parametrize("check", VARIABLE_CHECKS)
def test_without_a_job_a_check_passes_and_says_so(check: str) -> None:
    finding = said(idle(examination_of("hgx-h100")), check)
    assert finding.status is Status.PASSED
    assert finding.evidence[0].value == "no process is using a GPU and RDMA now"


@pytest.mark.parametrize("check", VARIABLE_CHECKS)
def test_processes_that_nvml_does_not_list_have_no_gpu(check: str) -> None:
    """Other users cannot read root's daemons, which are not jobs."""
    assert said(idle(examination_of("hgx-h100"), hidden=300), check).status is Status.PASSED


@pytest.mark.parametrize("check", VARIABLE_CHECKS)
def test_jobs_of_other_users_need_root(check: str) -> None:
    closed = with_processes(
        examination_of("hgx-h100"), gpu_files=DENIED, uverbs_files=DENIED, environment=DENIED
    )
    finding = said(closed, check)
    assert finding.status is Status.UNKNOWN
    assert finding.cause.startswith("needs root")


def test_without_nvml_unreadable_processes_may_be_jobs() -> None:
    node = idle(examination_of("hgx-h100"), hidden=3)
    node = replace(node, reading=replace(node.reading, gpus=ABSENT))
    assert said(node, "nccl-ib-disabled").status is Status.UNKNOWN


def test_a_program_that_even_root_cannot_read_is_a_job_only_if_nvml_lists_it() -> None:
    """On a virtual machine, /proc/1/fd/0 of a hardened init cannot be read: "Permission denied"."""
    node = idle(examination_of("hgx-h100"))
    init = Unknown(Reason.IO_ERROR, "/proc/1/fd/0", "Permission denied, even for root")
    node = replace(node, processes=replace(processes_of(node), unread=init))
    assert said(node, "nccl-ib-disabled").status is Status.PASSED
    node = replace(node, reading=replace(node.reading, gpus=ABSENT))
    finding = said(node, "nccl-ib-disabled")
    assert (finding.status, "even for root" in finding.cause) == (Status.UNKNOWN, True)


def test_processes_that_could_not_be_listed_are_unknown() -> None:
    node = replace(examination_of("hgx-h100"), processes=Unknown(Reason.TIMED_OUT, "/proc"))
    for check in (*VARIABLE_CHECKS, "nccl-versions-differ", "nccl-conf-ignored-lines"):
        assert said(node, check).status is Status.UNKNOWN


def test_a_daemon_with_gpus_open_is_not_a_job() -> None:
    node = with_processes(
        examination_of("hgx-h100"), comm="nv-hostengine", environment={"NCCL_IB_DISABLE": "1"}
    )
    assert said(node, "nccl-ib-disabled").status is Status.PASSED


# Libraries.


def versions(process: Process, version: str) -> Process:
    assert not isinstance(process.libraries, Unknown)
    return replace(
        process,
        libraries=tuple(
            replace(library, version=version) if library.name == "libnccl" else library
            for library in process.libraries
        ),
    )


def with_nccl(name: str, version: str) -> Examination:
    node = examination_of(name)
    seen = processes_of(node)
    changed = tuple(versions(process, version) for process in seen.processes)
    return replace(node, processes=replace(seen, processes=changed))


@pytest.mark.parametrize(
    ("jobs", "severity"), [(("a", "a"), Severity.WARNING), (("", ""), Severity.NOTE), (("a", "b"), None)]
)
def test_versions_that_differ_are_a_fault_within_a_job(
    jobs: tuple[str, str], severity: Severity | None
) -> None:
    node = examination_of("hgx-h100")
    seen = processes_of(node)
    pairs = zip(seen.processes, zip(jobs, ("2.27.3", "2.21.5"), strict=True), strict=False)
    two = tuple(replace(versions(process, version), job=job) for process, (job, version) in pairs)
    finding = said(replace(node, processes=replace(seen, processes=two)), "nccl-versions-differ")
    assert (finding.severity if finding.status is Status.FOUND else None) is severity


def test_a_version_that_the_name_does_not_show_is_unknown() -> None:
    node = examination_of("pcie-l40s")
    seen = processes_of(node)
    for check in ("nccl-versions-differ", "nccl-too-old-for-dmabuf"):
        unnamed = tuple(
            replace(
                process, libraries=tuple(replace(library, version=ABSENT) for library in process.libraries)
            )
            for process in seen.processes
            if not isinstance(process.libraries, Unknown)
        )
        assert said(replace(node, processes=replace(seen, processes=unnamed)), check).status is Status.UNKNOWN


def test_nvshmem_is_not_found_if_peermem_is_loaded() -> None:
    host = SimulatedHost("hgx-h100", clock=lambda: 1000.0)
    add_rank(
        host.tree,
        46000,
        libraries=["/usr/lib/libnvshmem_host.so.3.1.7", "/usr/lib/nvshmem_bootstrap_uid.so.3"],
    )
    assert said(examine(host), "nvshmem-needs-peermem").status is Status.PASSED


def test_linking_nvshmem_is_not_using_it() -> None:
    """PyTorch 2.11 links libtorch_nvshmem; a job on an H200 mapped no other file of NVSHMEM than these."""
    host = SimulatedHost("pcie-l40s", clock=lambda: 1000.0)
    torch = "/opt/torch/.venv/lib/python3.12/site-packages"
    libraries = [f"{torch}/nvidia/nvshmem/lib/libnvshmem_host.so.3", f"{torch}/torch/lib/libtorch_nvshmem.so"]
    add_rank(host.tree, 46000, libraries=libraries)
    assert said(examine(host), "nvshmem-needs-peermem").status is Status.PASSED


def test_relaxed_ordering_weighs_more_on_virtual_machines() -> None:
    off = {"NCCL_IB_PCI_RELAXED_ORDERING": "0"}
    assert said(with_job("hgx-h100", **off), "nccl-relaxed-ordering-off").severity is Severity.NOTE
    assert said(with_job("cloud-vm", **off), "nccl-relaxed-ordering-off").severity is Severity.WARNING


# How a job spreads its traffic over paths.


@pytest.mark.parametrize(
    ("node", "variables", "is_found"),
    [
        ("hgx-h100", {"NCCL_IB_ADAPTIVE_ROUTING": "0", "WORLD_SIZE": "64"}, True),
        ("hgx-h100", {"NCCL_IB_ADAPTIVE_ROUTING": "0"}, True),  # of how many nodes is unknown
        ("hgx-h100", {"NCCL_IB_ADAPTIVE_ROUTING": "0", "WORLD_SIZE": "1"}, False),  # no network
        ("hgx-h100", {"NCCL_IB_ADAPTIVE_ROUTING": "1", "WORLD_SIZE": "64"}, False),
        ("hgx-h100", {"NCCL_IB_ADAPTIVE_ROUTING": "-2", "WORLD_SIZE": "64"}, False),  # the default
        ("hgx-h100", {"NCCL_IB_ADAPTIVE_ROUTING": "0", "NCCL_NET": "Socket"}, False),
        ("bare-roce", {"NCCL_IB_ADAPTIVE_ROUTING": "0", "WORLD_SIZE": "64"}, False),  # the default of RoCE
        ("aws-p5", {"NCCL_IB_ADAPTIVE_ROUTING": "0", "WORLD_SIZE": "64"}, False),
    ],
)
def test_adaptive_routing_that_is_off_by_hand(node: str, variables: dict[str, str], is_found: bool) -> None:
    status = said(with_job(node, **variables), "nccl-adaptive-routing-off").status
    assert (status is Status.FOUND) == is_found


@pytest.mark.parametrize(
    ("variables", "is_found"),
    [
        ({"WORLD_SIZE": "520"}, True),  # 65 nodes of 8
        ({"WORLD_SIZE": "512"}, False),
        ({"WORLD_SIZE": "520", "NCCL_IB_QPS_PER_CONNECTION": "2"}, False),
        ({"WORLD_SIZE": "520", "NCCL_IB_ADAPTIVE_ROUTING": "1"}, False),
        ({"WORLD_SIZE": "520", "NCCL_NET": "gIB"}, False),
        ({}, False),
    ],
)
def test_a_large_job_with_one_path_per_connection(variables: dict[str, str], is_found: bool) -> None:
    node = with_processes(examination_of("oci-h100"))
    facts = processes_of(node)
    changed = (replace(each, environment=variables) if each.environment else each for each in facts.processes)
    node = replace(node, processes=replace(facts, processes=tuple(changed)))
    finding = said(node, "nccl-one-path")
    assert (finding.status is Status.FOUND) == is_found
    if is_found:
        assert "on 65 nodes" in finding.evidence[0].value
        assert "mlx5_0" in finding.devices


def test_the_paths_of_a_job_are_unknown_without_its_environment() -> None:
    denied = with_processes(examination_of("oci-h100+nccl-one-path"), environment=DENIED)
    assert said(denied, "nccl-one-path").status is Status.UNKNOWN
    assert said(denied, "nccl-adaptive-routing-off").status is Status.UNKNOWN
