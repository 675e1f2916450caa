"""Versions that do not work together: the table, what finds each row, and near misses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from probes.base.evidence import Severity
from probes.base.site import Site, set_site
from probes.base.unknown import Reason, Unknown
from probes.checks.registry import CHECKS, findings
from probes.checks.system.combinations import COMBINATIONS
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.jobs.processes import ProcessFacts
from probes.facts.pci.functions import PciFacts
from probes.facts.rdma.devices import RdmaFacts
from probes.queries.finding import Finding, Status
from probes.simulation.host import SimulatedHost
from probes.simulation.node.devices.ports import port_of
from probes.simulation.node.jobs.processes import add_rank
from probes.snapshot.examination import Examination, examine
from tests.support.doctor import examination_of
from tui.manual import page
from tui.settings.merge import merge

_SITE = "/opt/venv/lib/python3.12/site-packages"
_NIXL = f"{_SITE}/.nixl_cu13.mesonpy.libs/plugins/libplugin_UCX.so"
_ENGINE = f"{_SITE}/mooncake/engine.so"


def finding_on(examination: Examination) -> Finding:
    (finding,) = findings(examination, only={"known-bad-combination"})
    return finding


def node_with_job(
    *libraries: str, node: str = "hgx-h100", package: str = "", **variables: str
) -> SimulatedHost:
    host = SimulatedHost(node, clock=lambda: 1000.0)
    add_rank(host.tree, 46000, 0, variables, libraries)
    if package:
        host.tree.add(f"/proc/46000/root{_SITE}/{package}.dist-info/METADATA", "")
    return host


def with_job(*libraries: str, node: str = "hgx-h100", package: str = "", **variables: str) -> Finding:
    return finding_on(examine(node_with_job(*libraries, node=node, package=package, **variables)))


def test_each_row_is_complete_and_in_the_manual() -> None:
    assert len({row.name for row in COMBINATIONS}) == len(COMBINATIONS)
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


def test_title_and_impact_are_those_of_the_versions_that_were_found() -> None:
    finding = finding_on(examination_of("hgx-h100+rank-behind"))
    assert finding.title == "This NCCL version has a known hang with several nodes"
    assert (finding.severity, finding.impact) == (Severity.NOTE, "Some jobs hang.")


NCCL = "/opt/nccl/libnccl.so.{}"


@pytest.mark.slow
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
    """NVIDIA cuEST, known issues: “hangs with NCCL 2.29.7 and above … is fixed in NCCL 2.30.7”."""
    finding = with_job(NCCL.format(version), node=node, **variables)
    assert (finding.status is Status.FOUND) == is_found
    if is_found:
        assert finding.severity is Severity.NOTE
        assert finding.fix is not None
        assert "NCCL_PXN_DISABLE=1" in finding.fix.steps[0].why


@pytest.mark.slow
@pytest.mark.parametrize(
    ("libraries", "package", "variables", "node", "word"),
    [
        # Megatron Bridge 0.6.2, known issues: “In the affected NCCL 2.30.5/SPCX stack … can misclassify
        # grouped variable-split BF16 all-to-all sends, losing or corrupting payloads.”
        (
            (NCCL.format("2.30.5"), "/opt/hpcx/nccl_spectrum-x_plugin/lib/libnccl-net-spcx.so"),
            "",
            {},
            "hgx-h100",
            "corrupted",
        ),
        ((NCCL.format("2.30.5"), "/opt/hpcx/lib/libnccl-net-sharp.so"), "", {}, "hgx-h100", ""),
        # ai-dynamo/nixl issue 1668: “UCX 1.20.0 (bundled in nixl-cu13==0.10.1) hangs in
        # uct_md_query_tl_resources with concurrent NIXL agents”
        ((_NIXL,), "nixl_cu13-0.10.1", {}, "hgx-h100", "hang"),
        ((_NIXL,), "nixl_cu13-0.10.2", {}, "hgx-h100", ""),
        # vllm-project/vllm issue 35799: “PD disagg via NixlConnector fails with NIXL 0.10.0 on B200”
        ((_NIXL,), "nixl_cu13-0.10.0", {}, "hgx-b200", "NixlConnector"),
        ((_NIXL,), "nixl_cu13-0.10.0", {}, "hgx-h100", ""),
        # kvcache-ai/Mooncake issue 2511: “When enable expandable_segments, mooncake register memory failed”
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
    assert word in f"{finding.cause} {finding.impact}"


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
        ("610.57.04", {"EnableMSI": "1"}, False, True),
        ("620.10.01", {"EnableMSI": "1"}, False, True),
        ("620.10.01", {"GrdmaPciTopoCheckOverride": "1"}, False, False),
    ],
)
def test_r595_on_grace_with_efa(
    version: str, parameters: dict[str, str], has_group: bool, is_found: bool
) -> None:
    """NVIDIA/aicr issue 2459: /proc/driver/nvidia/params of 595.91.07 has 44 parameters and no override."""
    finding = finding_on(on_grace_with_efa(version, parameters, has_group))
    assert (finding.status is Status.FOUND) == is_found


def test_a_driver_that_is_newer_than_all_that_are_known_is_unknown_on_grace_with_efa() -> None:
    finding = finding_on(on_grace_with_efa("625.10.01", {"EnableMSI": "1"}, False))
    assert finding.status is Status.UNKNOWN
    assert "the newest branch that gdrtop knows is R620" in finding.cause


@pytest.mark.parametrize(
    ("version", "variables", "node", "is_found"),
    [
        ("2.30.4", {"WORLD_SIZE": "8"}, "dgx-spark", True),
        ("2.30.3", {"WORLD_SIZE": "8"}, "dgx-spark", False),
        ("2.30.7", {"WORLD_SIZE": "8"}, "dgx-spark", False),
        ("2.30.4", {"WORLD_SIZE": "1"}, "dgx-spark", False),
        ("2.30.4", {"WORLD_SIZE": "8", "NCCL_NVLS_ENABLE": "0"}, "dgx-spark", False),
        ("2.30.4", {"WORLD_SIZE": "32"}, "bare-roce", False),
    ],
)
def test_nccl_that_may_hang_on_spark(
    version: str, variables: dict[str, str], node: str, is_found: bool
) -> None:
    """NVIDIA/nccl issue 2167: 2.30.3 works on 8 DGX Spark, 2.30.4 hangs unless NCCL_NVLS_ENABLE=0."""
    finding = with_job(NCCL.format(version), node=node, **variables)
    assert (finding.status is Status.FOUND) == is_found
    assert not is_found or finding.severity is Severity.NOTE


@pytest.mark.parametrize(
    ("version", "state", "variables", "is_found"),
    [
        ("1.20.1", "1: DOWN", {}, True),
        ("1.21.0", "1: DOWN", {}, True),
        (
            "1.22.0",
            "1: DOWN",
            {},
            False,
        ),  # “Fixed Direct NIC sibling matching when HCAs have no active ports”
        ("1.19.1", "1: DOWN", {}, False),  # no Data Direct yet
        ("1.21.0", "4: ACTIVE", {}, False),
        ("1.21.0", "1: DOWN", {"UCX_IB_DIRECT_NIC": "n"}, False),
        ("1.21.0", "1: DOWN", {"UCX_IB_DIRECT_NIC": "y"}, True),
    ],
)
def test_ucx_while_a_nic_with_data_direct_is_down(
    version: str, state: str, variables: dict[str, str], is_found: bool
) -> None:
    """openucx/ucx pull requests 11571, 11584 and 11611; NEWS of 1.22.0."""
    host = node_with_job("/opt/ucx/lib/libucp.so.0.0.0", node="gb300", **variables)
    host.tree.add("/proc/46000/root/opt/ucx/lib/pkgconfig/ucx.pc", f"Version: {version}\n")
    nic = next(nic for nic in host.tree.nics if nic.name in host.tree.dma_functions)
    host.tree.add_values(port_of(nic), {"state": state})
    assert (finding_on(examine(host)).status is Status.FOUND) == is_found


def test_ucx_on_a_node_without_data_direct_may_have_ports_that_are_down() -> None:
    host = node_with_job("/opt/ucx/lib/libucp.so.0.0.0", node="gb200")
    host.tree.add("/proc/46000/root/opt/ucx/lib/pkgconfig/ucx.pc", "Version: 1.21.0\n")
    host.tree.add_values(port_of(host.tree.nics[0]), {"state": "1: DOWN"})
    assert finding_on(examine(host)).status is Status.PASSED


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "kind", "mtu", "rdma_mtu"),
    [
        ("2.28.7", "3", "1500", 1024),
        ("2.30.7", "3", "4000", 2048),
        ("2.30.7", "3", "9000", 0),
        ("2.30.7", "2", "1500", 0),
        ("2.31.2", "3", "1500", 0),
        ("2.28.3", "3", "1500", 0),
    ],
)
def test_gin_with_small_packets(version: str, kind: str, mtu: str, rdma_mtu: int) -> None:
    """NVIDIA/nccl issue 1957, “GIN gdaki mode hardcode 4K MTU in doca modify qp”, and issue 2255."""
    host = node_with_job(NCCL.format(version), node="bare-roce", NCCL_GIN_TYPE=kind)
    for path in [path for path in host.tree.files if "/net/" in path and path.endswith("/mtu")]:
        host.tree.add(path, f"{mtu}\n")
    finding = finding_on(examine(host))
    assert (finding.status is Status.FOUND) == bool(rdma_mtu)
    shown = [line.value for line in finding.evidence if line.source.endswith("/mtu")]
    assert not rdma_mtu or shown == [f"RDMA MTU {rdma_mtu}, /proc/46000/environ"]


@pytest.mark.parametrize(
    ("version", "limit", "ranks", "node", "is_found"),
    [
        ("2.27.5", "unlimited", "44", "gb200", True),
        ("2.27.5", "unlimited", "40", "gb200", False),
        ("2.27.5", "8388608", "44", "gb200", False),
        ("2.28.3", "unlimited", "44", "gb200", False),
        ("2.27.5", "unlimited", "44", "hgx-h100", False),
    ],
)
def test_stack_of_a_large_job_in_a_rack(
    version: str, limit: str, ranks: str, node: str, is_found: bool
) -> None:
    """NVIDIA/nccl issue 2186: seen with 44 ranks on GB200, `ulimit -s unlimited` and NCCL 2.27.5."""
    host = node_with_job(NCCL.format(version), node=node, WORLD_SIZE=ranks)
    host.tree.add(
        "/proc/46000/limits", f"Max stack size            {limit:<20} {'unlimited':<20} bytes     \n"
    )
    assert (finding_on(examine(host)).status is Status.FOUND) == is_found


@pytest.mark.parametrize(
    ("node", "efa", "is_found"),
    [
        ("aws-p6-b300", "2.17.2g", True),
        ("aws-p6-b300", "2.17.3g", False),
        ("aws-p6-b300", "3.1.0g", False),
        ("aws-p6-b300", "", False),  # the kernel's own driver has no version, and only DMA-BUF
        ("aws-p5", "2.15.3g", False),  # R570
    ],
)
def test_efa_with_a_newer_nvidia_driver(node: str, efa: str, is_found: bool) -> None:
    """Release notes of efa r2.17.3: “Support P2P with NVIDIA 580 drivers”."""
    host = SimulatedHost(node, clock=lambda: 1000.0)
    host.tree.remove("/sys/module/efa/version")
    if efa:
        host.tree.add("/sys/module/efa/version", f"{efa}\n")
    finding = finding_on(examine(host))
    assert (finding.status is Status.FOUND) == is_found
    assert not is_found or finding.severity is Severity.NOTE


@pytest.mark.parametrize(
    ("driver", "firmware", "is_found"),
    [
        ("bnxt_en", "231.2.100.0", True),
        ("bnxt_en", "235.2.86.1", False),
        ("bnxt_en", "237.1.137.0", False),
        ("mlx5_core", "231.2.100.0", False),
        ("ionic", "1.117.1-a-63", True),
        ("ionic", "1.117.5-a-45", False),
    ],
)
def test_firmware_that_is_too_old_for_ibgda(driver: str, firmware: str, is_found: bool) -> None:
    """ROCm/mori pull request 471: “231.x is too old”, “The 1.117.1 major does not support IBGDA.”"""
    for fault in ("", "+nvshmem-ibgda-driver-options"):
        examination = examination_of(f"hgx-h100{fault}")
        rdma = examination.node.rdma
        assert isinstance(rdma, RdmaFacts)
        devices = tuple(replace(device, driver=driver, firmware=firmware) for device in rdma.devices)
        node = replace(examination.node, rdma=replace(rdma, devices=devices))
        finding = finding_on(replace(examination, node=node))
        assert (finding.status is Status.FOUND) == (is_found and bool(fault))


@pytest.fixture
def rows_of_site() -> Iterator[Callable[[str], None]]:
    """Put the rows of a configuration in force."""

    def use(text: str) -> None:
        found = merge([("/etc/gdrtop/config.toml", True, text.encode())], {})
        assert not found.errors
        set_site(Site(combinations=tuple(found.combinations)))

    yield use
    set_site(Site())


def _row(conditions: str) -> str:
    return (
        f'[[combination]]\n{conditions}\nsymptom = "Reads time out."\ncure = "Ask Anna"\nsource = "RMA 17"\n'
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("conditions", "is_found"),
    [
        ('board = "{board}"\nfirmware = "before 99"', True),
        ('board = "{board}"', True),
        ('firmware = "{firmware}"', True),
        ('firmware = "{firmware} or newer"\nkernel = "1 to 99"', True),
        ('board = "{board}"\nfirmware = "1 to 2"', False),
        ('board = "MT_0000000000"\nfirmware = "before 99"', False),
        ('board = "{board}"\ndriver = "1.2.3"', False),
        ('nccl = "2.27"', True),
        ('nccl = "2.26.1 to 2.26.9"', False),
    ],
)
def test_rows_of_a_site(conditions: str, is_found: bool, rows_of_site: Callable[[str], None]) -> None:
    examination = examine(node_with_job(NCCL.format("2.27.5")))
    assert isinstance(examination.node.rdma, RdmaFacts)
    device = examination.node.rdma.devices[0]
    rows_of_site(_row(conditions.format(board=device.board_id, firmware=device.firmware)))
    finding = finding_on(examination)
    assert (finding.status is Status.FOUND) == is_found
    if is_found:
        assert "Reads time out." in finding.impact
        assert any(line.source == "RMA 17" for line in finding.evidence)
        assert finding.fix is not None
        assert finding.fix.steps[0].why == "Ask Anna"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("conditions", "is_unknown"),
    [
        ('firmware = "1 to 2"', True),
        ('board = "{board}"\nfirmware = "1 to 2"', True),
        ('board = "MT_0000000000"\nfirmware = "1 to 2"', False),
        ('firmware = "1 to 2"\nkernel = "1.2"', False),
        ('driver = "1.2.3"', True),
        ('kernel = "1 or newer"\ndriver = "1.2.3"', True),
        ('nccl = "2.26.1"', True),
    ],
)
def test_a_row_whose_facts_are_unknown_ends_unknown(
    conditions: str, is_unknown: bool, rows_of_site: Callable[[str], None]
) -> None:
    examination = examine(node_with_job(NCCL.format("2.27.5")))
    node, late = examination.node, Unknown(Reason.TIMED_OUT, "/sys/late")
    assert isinstance(node.rdma, RdmaFacts)
    assert isinstance(node.gpus, GpuFacts)
    assert isinstance(examination.processes, ProcessFacts)
    board = node.rdma.devices[0].board_id
    devices = tuple(replace(device, firmware=late) for device in node.rdma.devices)
    gpus = replace(node.gpus, driver=replace(node.gpus.driver, version=late))
    processes = tuple(replace(process, libraries=late) for process in examination.processes.processes)
    examination = replace(
        examination,
        node=replace(node, rdma=replace(node.rdma, devices=devices), gpus=gpus),
        processes=replace(examination.processes, processes=processes),
    )
    rows_of_site(_row(conditions.format(board=board)))
    finding = finding_on(examination)
    assert finding.status is (Status.UNKNOWN if is_unknown else Status.PASSED)
    assert ("timed out" in finding.cause) == is_unknown


def test_each_version_of_a_row_is_in_the_evidence(rows_of_site: Callable[[str], None]) -> None:
    """A node has many NICs of a firmware, and one kernel."""
    examination = examine(node_with_job(NCCL.format("2.27.5")))
    assert isinstance(examination.node.rdma, RdmaFacts)
    firmware = examination.node.rdma.devices[0].firmware
    rows_of_site(_row(f'firmware = "{firmware}"\nkernel = "1 or newer"\nnccl = "2.27"'))
    finding = finding_on(examination)
    sources = [line.source for line in finding.evidence]
    assert len([source for source in sources if source.endswith("/fw_ver")]) == 2
    assert "/proc/sys/kernel/osrelease" in sources
    assert any(source.endswith("/maps") for source in sources)
    same = {device.name for device in examination.node.rdma.devices if device.firmware == firmware}
    assert set(finding.devices) == same


def test_gin_with_an_unknown_mtu() -> None:
    host = node_with_job(NCCL.format("2.30.4"), node="bare-roce", NCCL_GIN_TYPE="3")
    for path in [path for path in host.tree.files if "/net/" in path and path.endswith("/mtu")]:
        host.tree.remove(path)
    assert finding_on(examine(host)).status is Status.UNKNOWN
