"""NCCL and CUDA of jobs against the generation of the GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Maybe, Reason, Unknown
from probes.checks.registry import findings
from probes.facts.gpu.generations import GENERATIONS, is_model
from probes.facts.gpu.gpus import GpuFacts
from probes.queries.finding import Finding, Status
from probes.simulation.host import SimulatedHost
from probes.simulation.node.jobs.processes import add_rank
from probes.snapshot.examination import Examination, examine

PID = 46000
SITE = "/opt/venv/lib/python3.12/site-packages"


def with_job(node: str, *libraries: str) -> Examination:
    """Return a node with one more job, which maps these libraries."""
    host = SimulatedHost(node, clock=lambda: 1000.0)
    add_rank(host.tree, PID, 0, {}, libraries)
    return examine(host)


def judged(examination: Examination, check: str = "nccl-older-than-gpu") -> Finding:
    (finding,) = findings(examination, only={check})
    return finding


def with_capabilities(examination: Examination, *capabilities: Maybe[tuple[int, int]]) -> Examination:
    """Return the node with the compute capabilities of its first GPUs changed."""
    gpus = examination.node.gpus
    assert isinstance(gpus, GpuFacts)
    changed = tuple(
        replace(gpu, compute_capability=capability)
        for gpu, capability in zip(gpus.gpus, capabilities * len(gpus.gpus), strict=False)
    )
    return replace(examination, node=replace(examination.node, gpus=replace(gpus, gpus=changed)))


@pytest.mark.parametrize(
    ("node", "version", "first"),
    [
        ("dgx-a100", "2.6.4", "2.7.3"),
        ("dgx-a100", "2.7.3", ""),
        ("hgx-h100", "2.14.3", "2.15.1"),
        ("hgx-h100", "2.15.1", ""),
        ("hgx-b200", "2.24.3", "2.25.1"),
        ("hgx-b200", "2.25.1", ""),
        ("hgx-b300", "2.24.3", "2.25.1"),
        ("vera-rubin", "2.31.2", "2.32.3"),
        ("vera-rubin", "2.32.3", ""),
        ("vera-rubin", "2.40.1", ""),
    ],
)
def test_nccl_is_compared_with_the_first_one_that_supports_the_gpu(
    node: str, version: str, first: str
) -> None:
    """makefiles/common.mk of NVIDIA/nccl by tag; release notes of 2.32.3: “support for sm107”."""
    finding = judged(with_job(node, f"/opt/nccl/libnccl.so.{version}"))
    assert (finding.status is Status.FOUND) == bool(first)
    if first:
        assert finding.severity is Severity.WARNING
        assert f"from {first} on" in finding.cause
        assert finding.fix is not None
        assert f"NCCL {first} or later" in finding.fix.steps[0].why


def test_a_gpu_of_another_major_capability_than_all_rows_is_unknown() -> None:
    """Thor is 11.0, between two rows; 13.0 is newer than every row. Neither is taken for its neighbor."""
    node = with_job("hgx-b200", "/opt/nccl/libnccl.so.2.24.3")
    for capability in ((11, 0), (13, 0)):
        finding = judged(with_capabilities(node, capability))
        assert finding.status is Status.UNKNOWN
        assert f"{capability[0]}.0" in finding.cause


def test_gpus_that_nvml_does_not_show_are_left_out() -> None:
    lost = Unknown(Reason.DRIVER_ERROR, "NVML", "GPU is lost")
    node = with_job("hgx-b200", "/opt/nccl/libnccl.so.2.24.3")
    assert judged(with_capabilities(node, lost, (10, 0))).status is Status.FOUND
    assert judged(with_capabilities(node, lost)).status is Status.UNKNOWN


def test_with_mixed_gpus_the_oldest_one_decides() -> None:
    """Which GPU a job uses matters, and its NCCL may fit that one."""
    node = with_job("hgx-b200", "/opt/nccl/libnccl.so.2.24.3")
    assert judged(with_capabilities(node, (9, 0), (10, 0))).status is Status.PASSED


def test_older_gpus_than_ampere_ask_for_nothing() -> None:
    node = with_job("hgx-h100", "/opt/nccl/libnccl.so.2.4.8")
    assert judged(with_capabilities(node, (7, 0))).status is Status.PASSED


@pytest.mark.parametrize(
    ("library", "package", "is_found"),
    [
        ("/usr/local/cuda-12.6/lib64/libcudart.so.12.6.77", "", True),
        ("/usr/local/cuda-12.8/lib64/libcudart.so.12.8.57", "", False),
        (f"{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12", "nvidia_cuda_runtime_cu12-12.4.127", True),
        (f"{SITE}/nvidia/cu13/lib/libcudart.so.13", "nvidia_cuda_runtime-13.0.48", False),
        ("/opt/app/lib/libcudart-8774224f.so.12", "", False),  # its version is not known
    ],
)
def test_cuda_is_compared_with_the_first_one_for_the_gpu(library: str, package: str, is_found: bool) -> None:
    """NVIDIA's CUDA Toolkit, Driver, and Architecture Matrix: Blackwell since CUDA 12.8."""
    host = SimulatedHost("hgx-b300", clock=lambda: 1000.0)
    add_rank(host.tree, PID, 0, {}, (library,))
    if package:
        host.tree.add(f"/proc/{PID}/root{SITE}/{package}.dist-info/METADATA", "")
    finding = judged(examine(host), "cuda-older-than-gpu")
    assert (finding.status is Status.FOUND) == is_found
    if is_found:
        assert finding.severity is Severity.NOTE
        assert "CUDA supports Blackwell Ultra GPUs from 12.8 on" in finding.cause


def test_a_model_is_a_whole_word_of_the_name() -> None:
    assert is_model("NVIDIA B200", "H200", "B200")
    assert not is_model("NVIDIA GB200", "B200")
    assert is_model("NVIDIA A100-SXM4-80GB", "A100")
    assert not is_model("NVIDIA A1000", "A100")
    assert is_model("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000")


def test_generations_ask_for_more_from_row_to_row() -> None:
    by_major: dict[int, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {}
    for row in GENERATIONS:
        by_major.setdefault(row.capability[0], []).append((row.first_nccl, row.first_cuda))
    assert all(rows == sorted(rows) for rows in by_major.values())
