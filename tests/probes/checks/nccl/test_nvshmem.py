"""NVSHMEM's needs of modules and driver options, and memory that nvidia_peermem cannot register."""

from __future__ import annotations

import pytest

from probes.base.evidence import Severity
from probes.checks.registry import findings
from probes.queries.finding import Finding, Status
from probes.simulation.host import SimulatedHost
from probes.simulation.node.jobs.processes import add_rank
from probes.simulation.node.modules.loading import remove_modules
from probes.snapshot.examination import examine

_HOST = "/usr/lib64/libnvshmem_host.so.3.3.9"
_BOOTSTRAP = "/usr/lib64/nvshmem_bootstrap_uid.so.3"
_IBGDA = "/usr/lib64/nvshmem_transport_ibgda.so.3.0.0"
_PARAMS = "/proc/driver/nvidia/params"


def finding_of(
    check: str,
    *libraries: str,
    node: str = "hgx-h100",
    params: str = "",
    gdrdrv: bool = True,
    **variables: str,
) -> Finding:
    host = SimulatedHost(node, clock=lambda: 1000.0)
    if params:
        host.tree.add(_PARAMS, params)
    if not gdrdrv:
        remove_modules(host.tree, "gdrdrv")
    add_rank(host.tree, 46000, 0, variables, libraries)
    (finding,) = findings(examine(host), only={check})
    return finding


@pytest.mark.parametrize(
    ("version", "node", "status"),
    [
        ("3.2.5", "hgx-h100", Status.FOUND),
        ("3.3.9", "hgx-h100", Status.PASSED),
        ("3.2.5", "dgx-a100", Status.PASSED),  # its kernel has memory_peers
        ("3.2.5", "pcie-l40s", Status.PASSED),  # nvidia_peermem is not loaded
    ],
)
def test_an_old_nvshmem_looks_for_memory_peers(version: str, node: str, status: Status) -> None:
    host = f"/usr/lib64/libnvshmem_host.so.{version}"
    assert finding_of("nvshmem-memory-peers-missing", host, _BOOTSTRAP, node=node).status is status


def test_ibgda_without_options_and_without_gdrcopy_is_a_warning() -> None:
    finding = finding_of("nvshmem-ibgda-driver-options", _HOST, _IBGDA, gdrdrv=False)
    assert (finding.status, finding.severity) == (Status.FOUND, Severity.WARNING)
    assert "/proc/46000/maps" in {evidence.source for evidence in finding.evidence}
    assert finding.fix is not None
    assert any("PeerMappingOverride=1" in step.why for step in finding.fix.steps)
    assert any("gdrdrv" in step.why for step in finding.fix.steps)


def test_with_gdrcopy_the_cpu_rings_the_doorbell() -> None:
    finding = finding_of("nvshmem-ibgda-driver-options", _HOST, _IBGDA)
    assert (finding.status, finding.severity) == (Status.FOUND, Severity.NOTE)


@pytest.mark.parametrize(
    ("params", "status"),
    [
        ('EnableStreamMemOPs: 1\nRegistryDwords: "PeerMappingOverride=1;"\n', Status.PASSED),
        ('EnableStreamMemOPs: 1\nRegistryDwords: "RmMsg=1; PeerMappingOverride=1"\n', Status.PASSED),
        ('EnableStreamMemOPs: 0\nRegistryDwords: "PeerMappingOverride=1;"\n', Status.FOUND),
        ('EnableStreamMemOPs: 1\nRegistryDwords: "PeerMappingOverride=10;"\n', Status.FOUND),
    ],
)
def test_both_driver_options_must_be_set(params: str, status: Status) -> None:
    assert finding_of("nvshmem-ibgda-driver-options", _HOST, _IBGDA, params=params).status is status


def test_the_cpu_as_nic_handler_needs_no_option() -> None:
    handler = {"NVSHMEM_IB_ENABLE_IBGDA": "1", "NVSHMEM_IBGDA_NIC_HANDLER": "cpu"}
    finding = finding_of("nvshmem-ibgda-driver-options", _HOST, _IBGDA, **handler)
    assert finding.status is Status.PASSED


def test_the_variable_alone_proves_no_use_of_nvshmem() -> None:
    finding = finding_of("nvshmem-ibgda-driver-options", NVSHMEM_IB_ENABLE_IBGDA="1")
    assert finding.status is Status.PASSED


def test_where_dmabuf_works_an_old_nvshmem_is_updated_first() -> None:
    fix = finding_of("nvshmem-needs-peermem", _HOST, _BOOTSTRAP, node="pcie-l40s").fix
    assert fix is not None
    assert "DMA-BUF" in fix.steps[0].why
    assert fix.steps[0].is_instruction


@pytest.mark.parametrize(
    ("node", "value", "status"),
    [
        ("dgx-a100", "expandable_segments:True", Status.FOUND),
        ("dgx-a100", "max_split_size_mb:128,expandable_segments: true", Status.FOUND),
        ("dgx-a100", "expandable_segments:False", Status.PASSED),
        ("hgx-h100", "expandable_segments:True", Status.PASSED),  # DMA-BUF registers such memory
    ],
)
def test_expandable_segments_matter_with_peermem_only(node: str, value: str, status: Status) -> None:
    finding = finding_of("vmm-memory-with-peermem", node=node, PYTORCH_CUDA_ALLOC_CONF=value)
    assert finding.status is status


@pytest.mark.parametrize(
    "library", ["/opt/hpcx/ucx/lib/libucp.so.0.0.0", "/usr/lib/python3.12/site-packages/mooncake/engine.so"]
)
def test_expandable_segments_are_a_note_for_nccl_alone(library: str) -> None:
    name, value = "vmm-memory-with-peermem", "expandable_segments:True"
    alone = finding_of(name, node="dgx-a100", PYTORCH_ALLOC_CONF=value)
    registers = finding_of(name, library, node="dgx-a100", PYTORCH_ALLOC_CONF=value)
    assert (alone.severity, registers.severity) == (Severity.NOTE, Severity.WARNING)


@pytest.mark.parametrize(("node", "value", "status"), [
    ("dgx-a100", "1", Status.FOUND),
    ("dgx-a100", "2", Status.PASSED),
    ("hgx-h100", "1", Status.PASSED),
])  # fmt: skip
def test_nvlink_sharp_is_forced_only_by_1_and_before_hopper(node: str, value: str, status: Status) -> None:
    assert finding_of("nccl-nvls-forced", node=node, NCCL_NVLS_ENABLE=value).status is status


def test_sharp_with_its_plugin_is_fine() -> None:
    nccl, plugin = "/usr/lib/libnccl.so.2.26.2", "/opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so.0.0.0"
    name, variables = "nccl-collnet-without-plugin", {"NCCL_COLLNET_ENABLE": "1"}
    assert finding_of(name, nccl, **variables).status is Status.FOUND
    assert finding_of(name, nccl, plugin, **variables).status is Status.PASSED
