"""Versions that do not work together: the table, what finds each row, and near misses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.unknown import Reason, Unknown
from probes.checks.registry import CHECKS, findings
from probes.checks.system.combinations import COMBINATIONS
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.pci.functions import PciFacts
from probes.queries.finding import Finding, Severity, Status
from probes.simulation.host import SimulatedHost
from probes.simulation.node.jobs.processes import add_rank
from probes.snapshot.examination import Examination, examine
from tests.probes.checks.doctor import examination_of
from tui.manual import page

_SITE = "/opt/venv/lib/python3.12/site-packages"
_NIXL = f"{_SITE}/.nixl_cu13.mesonpy.libs/plugins/libplugin_UCX.so"
_ENGINE = f"{_SITE}/mooncake/engine.so"


def finding_on(examination: Examination) -> Finding:
    (finding,) = findings(examination, only={"known-bad-combination"})
    return finding


def with_job(*libraries: str, node: str = "hgx-h100", package: str = "", **variables: str) -> Finding:
    host = SimulatedHost(node, clock=lambda: 1000.0)
    add_rank(host.tree, 46000, 0, variables, libraries)
    if package:
        host.tree.add(f"/proc/46000/root{_SITE}/{package}.dist-info/METADATA", "")
    return finding_on(examine(host))


def test_each_row_is_complete_and_in_the_manual() -> None:
    assert len({row.name for row in COMBINATIONS}) == len(COMBINATIONS) == 17
    checks = {check.id for check in CHECKS}
    manual = page("versions")
    for row in COMBINATIONS:
        assert row.source.startswith("https://")
        assert row.symptom.endswith(".")
        assert not row.cure.endswith(".")
        assert not row.check or row.check in checks
        assert not (row.check and row.seen)
        check = row.check or ("known-bad-combination" if row.seen else "")
        found_by = f"Found by `{check}`." if check else "Not seen."
        line = f"| {row.components} | {row.symptom} {row.cure}. {found_by} <{row.source}> |"
        assert line in manual, f"add to tui/manual/versions.md: {line}"


NCCL = "/opt/nccl/libnccl.so.{}"


@pytest.mark.parametrize(
    ("version", "variables", "node", "is_found"),
    [
        ("2.29.7", {"WORLD_SIZE": "16"}, "hgx-h100", True),
        ("2.30.6", {"SLURM_NTASKS": "16"}, "hgx-h100", True),
        ("2.30.7", {"WORLD_SIZE": "16"}, "hgx-h100", False),
        ("2.29.3", {"WORLD_SIZE": "16"}, "hgx-h100", False),
        ("2.30.4", {"WORLD_SIZE": "8"}, "hgx-h100", False),
        ("2.30.4", {}, "hgx-h100", False),
        ("2.30.4", {"WORLD_SIZE": "16", "NCCL_PXN_DISABLE": "1"}, "hgx-h100", False),
        ("2.30.4", {"WORLD_SIZE": "16"}, "bare-roce", False),
    ],
)
def test_nccl_that_may_hang_between_nodes(
    version: str, variables: dict[str, str], node: str, is_found: bool
) -> None:
    finding = with_job(NCCL.format(version), node=node, **variables)
    assert (finding.status is Status.FOUND) == is_found
    if is_found:
        assert finding.severity is Severity.NOTE
        assert finding.fix is not None
        assert "NCCL_PXN_DISABLE=1" in finding.fix.steps[0].why


@pytest.mark.parametrize(
    ("libraries", "package", "variables", "node", "word"),
    [
        (
            (NCCL.format("2.30.5"), "/opt/hpcx/nccl_spectrum-x_plugin/lib/libnccl-net-spcx.so"),
            "",
            {},
            "hgx-h100",
            "corrupted",
        ),
        ((NCCL.format("2.30.5"), "/opt/hpcx/lib/libnccl-net-sharp.so"), "", {}, "hgx-h100", ""),
        ((_NIXL,), "nixl_cu13-0.10.1", {}, "hgx-h100", "hang"),
        ((_NIXL,), "nixl_cu13-0.10.2", {}, "hgx-h100", ""),
        ((_NIXL,), "nixl_cu13-0.10.0", {}, "hgx-b200", "NixlConnector"),
        ((_NIXL,), "nixl_cu13-0.10.0", {}, "hgx-h100", ""),
        (
            (_ENGINE,),
            "mooncake_transfer_engine_cuda13-0.3.12.post1",
            {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
            "hgx-h100",
            "errno 22",
        ),
        ((_ENGINE,), "mooncake_transfer_engine_cuda13-0.3.12.post1", {}, "hgx-h100", ""),
        (
            (_ENGINE,),
            "mooncake_transfer_engine-0.3.11",
            {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
            "hgx-h100",
            "",
        ),
    ],
)
def test_engines_and_plugins(
    libraries: tuple[str, ...], package: str, variables: dict[str, str], node: str, word: str
) -> None:
    finding = with_job(*libraries, node=node, package=package, **variables)
    assert (finding.status is Status.FOUND) == bool(word)
    assert word in finding.cause


def on_grace_with_efa(version: str, parameters: dict[str, str], has_group: bool) -> Examination:
    """A GB200 whose NICs are EFA devices."""
    examination = examination_of("gb200")
    gpus, pci = examination.node.gpus, examination.node.pci
    assert isinstance(gpus, GpuFacts)
    assert isinstance(pci, PciFacts)
    driver = replace(gpus.driver, version=version, parameters=parameters)
    group = 7 if has_group else Unknown(Reason.NOT_THERE, "iommu_group")
    functions = {
        bdf: replace(function, vendor_id=0x1D0F, driver="efa", iommu_group=group)
        if function.driver == "mlx5_core"
        else function
        for bdf, function in pci.functions.items()
    }
    node = replace(examination.node, gpus=replace(gpus, driver=driver), pci=replace(pci, functions=functions))
    return replace(examination, node=node)


@pytest.mark.parametrize(
    ("version", "parameters", "has_group", "is_found"),
    [
        ("595.91.07", {"CoherentGPUMemoryMode": '"driver"'}, False, True),
        ("595.91.07", {"CoherentGPUMemoryMode": '"driver"'}, True, False),
        ("580.95.05", {"GrdmaPciTopoCheckOverride": "1"}, False, False),
        ("595.45.04", {"GrdmaPciTopoCheckOverride": "0"}, False, False),
    ],
)
def test_r595_on_grace_with_efa(
    version: str, parameters: dict[str, str], has_group: bool, is_found: bool
) -> None:
    """NVIDIA/aicr issue 2459: /proc/driver/nvidia/params of 595.91.07 has 44 parameters and no override."""
    finding = finding_on(on_grace_with_efa(version, parameters, has_group))
    assert (finding.status is Status.FOUND) == is_found
