"""Mooncake and NIXL: whether they can register GPU memory, and NCCL's search for a GID in a pod."""

from __future__ import annotations

import pytest

from probes.checks.registry import findings
from probes.queries.finding import Finding, Status
from probes.simulation.host import SimulatedHost
from probes.simulation.node.jobs.processes import add_rank, default_libraries
from probes.simulation.node.modules.loading import remove_modules
from probes.snapshot.examination import examine

_SITE = "/opt/venv/lib/python3.12/site-packages"
_ENGINE = f"{_SITE}/mooncake/engine.so"
_PLUGIN = f"{_SITE}/.nixl_cu12.mesonpy.libs/plugins/libplugin_UCX.so"
_UCX = f"{_SITE}/nixl_cu12.libs"
_UCP = f"{_UCX}/libucp-b39b3ed9.so.0.0.0"
_PID = 46000


def finding_of(
    check: str,
    *libraries: str,
    node: str = "pcie-l40s",
    package: str = "",
    without: tuple[str, ...] = (),
    **variables: str,
) -> Finding:
    """Return the finding about a job with these libraries; `package`: its metadata in site-packages."""
    host = SimulatedHost(node, clock=lambda: 1000.0)
    remove_modules(host.tree, *without)
    add_rank(host.tree, _PID, 0, variables, libraries)
    if package:
        host.tree.add(f"/proc/{_PID}/root{_SITE}/{package}.dist-info/METADATA", "")
    (finding,) = findings(examine(host), only={check})
    return finding


@pytest.mark.parametrize(
    ("version", "value", "status", "word"),
    [
        ("", "", Status.FOUND, "likely"),
        ("", "0", Status.PASSED, ""),
        ("0.3.5", "0", Status.FOUND, "needs nvidia_peermem"),  # the variable is not read yet
        ("0.3.10.post2", "0", Status.FOUND, "needs nvidia_peermem"),
        ("0.3.11", "", Status.PASSED, ""),  # DMA-BUF by default, only here
        ("0.3.11", "ON", Status.FOUND, "needs nvidia_peermem"),
        ("0.3.11.post1", "", Status.FOUND, "needs nvidia_peermem"),
        ("0.3.12.post1", "", Status.FOUND, "needs nvidia_peermem"),
        ("0.3.12.post1", "false", Status.PASSED, ""),
        ("0.3.13.post1", "", Status.FOUND, "likely"),  # newer than the source that was read
    ],
)
def test_mooncake_needs_peermem_unless_it_uses_dmabuf(
    version: str, value: str, status: Status, word: str
) -> None:
    """environ.cpp and common.cmake of kvcache-ai/Mooncake, tags v0.3.5 to v0.3.12.post1."""
    package = f"mooncake_transfer_engine-{version}" if version else ""
    variables = {"WITH_NVIDIA_PEERMEM": value} if value else {}
    finding = finding_of("mooncake-needs-peermem", _ENGINE, package=package, **variables)
    assert finding.status is status
    if status is Status.FOUND:
        assert word in finding.cause
        assert ("likely" in finding.cause) == (word == "likely")
        assert finding.fix is not None
        assert "WITH_NVIDIA_PEERMEM=0" in finding.fix.steps[0].why


def test_mooncake_is_silent_where_it_can_register() -> None:
    assert finding_of("mooncake-needs-peermem", _ENGINE, node="hgx-h100").status is Status.PASSED
    efa = finding_of("mooncake-needs-peermem", _ENGINE, "/opt/amazon/efa/lib64/libfabric.so.1.30.0")
    assert efa.status is Status.PASSED
    assert finding_of("mooncake-needs-peermem").status is Status.PASSED


@pytest.mark.parametrize(
    ("libraries", "variables", "status"),
    [
        ((_PLUGIN, _UCP, f"{_UCX}/ucx/libuct_ib.so.0.0.0"), {}, Status.FOUND),
        ((_PLUGIN, _UCP), {}, Status.FOUND),  # it has loaded no module, and is not new
        ((_PLUGIN, _UCP, f"{_UCX}/ucx/libuct_cuda.so.0.0.0"), {}, Status.PASSED),
        ((_PLUGIN, _UCP, f"{_UCX}/ucx/libuct_ib.so.0.0.0"), {"UCX_TLS": "tcp"}, Status.PASSED),
        ((_UCP, f"{_UCX}/ucx/libuct_ib.so.0.0.0"), {}, Status.PASSED),  # no NIXL
        ((_PLUGIN,), {}, Status.PASSED),
    ],
)
def test_nixl_needs_the_cuda_module_of_ucx(
    libraries: tuple[str, ...], variables: dict[str, str], status: Status
) -> None:
    """ai-dynamo/nixl issue 1628: modules in site-packages/nixl_cu12.libs/ucx, which UCX does not find.

    NIXL, ucx_utils.cpp, then logs “VRAM memory is detected as host by UCX.”
    """
    finding = finding_of("nixl-ucx-without-cuda", *libraries, node="hgx-h100", **variables)
    assert finding.status is status
    if status is Status.FOUND:
        assert finding.fix is not None
        assert f"UCX_MODULE_DIR={_UCX}/ucx" in finding.fix.steps[0].why


@pytest.mark.parametrize(
    ("nccl", "variables", "first", "status"),
    [
        ("2.25.1", {}, 2, Status.FOUND),
        ("2.26.1", {}, 2, Status.FOUND),
        ("2.26.2", {}, 2, Status.PASSED),
        ("2.20.5", {}, 2, Status.PASSED),
        ("2.25.1", {"NCCL_IB_GID_INDEX": "3"}, 2, Status.PASSED),
        ("2.25.1", {"NCCL_IB_GID_INDEX": "-1"}, 2, Status.FOUND),
        ("2.25.1", {}, 0, Status.PASSED),
    ],
)
def test_an_empty_first_gid_stops_some_versions(
    nccl: str, variables: dict[str, str], first: int, status: Status
) -> None:
    """NVIDIA/nccl issue 1573: “WARN NET/IB: read failed in ncclIbRoceGetVersionNum: Invalid argument”.

    In a pod of issue 1538, show_gids has no index below 4.
    """
    host = SimulatedHost("pcie-l40s", clock=lambda: 1000.0)
    for nic in host.tree.nics:
        for index in range(first):
            port = f"{nic.path}/infiniband/{nic.name}/ports/1"
            host.tree.add(f"{port}/gids/{index}", ("0000:" * 8)[:-1] + "\n")
    add_rank(host.tree, _PID, 0, variables, default_libraries(host.tree, nccl))
    (finding,) = findings(examine(host), only={"nccl-sparse-gid-table"})
    assert finding.status is status
    if status is Status.FOUND:
        assert "likely" in finding.cause


_EMERALD = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 207\nmodel name\t: x\nflags\t\t: lm\n\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ucx", "cpuinfo", "variables", "status"),
    [
        ("1.18.0", _EMERALD, {}, Status.FOUND),
        ("1.14.1", _EMERALD, {}, Status.FOUND),
        ("1.21.0", _EMERALD, {}, Status.PASSED),
        ("", _EMERALD, {}, Status.PASSED),  # its version is not known
        ("1.18.0", _EMERALD.replace("207", "143"), {}, Status.PASSED),  # Sapphire Rapids
        ("1.18.0", _EMERALD, {"UCX_IB_PCI_RELAXED_ORDERING": "n"}, Status.PASSED),
        ("1.18.0", "CPU implementer\t: 0x41\nCPU architecture: 8\n\n", {}, Status.PASSED),
    ],
)
def test_ucx_before_1_21_needs_a_setting_on_emerald_rapids(
    ucx: str, cpuinfo: str, variables: dict[str, str], status: Status
) -> None:
    """openucx/ucx, src/ucs/arch/cpu.h of v1.20.0 and v1.21.0, and pull request 10955.

    It says: “Without `IBV_ACCESS_RELAXED_ORDERING`, traffic can take different PCIe path with BW ~16GB/s
    instead of >40GB/s.”
    """
    host = SimulatedHost("hgx-h100", clock=lambda: 1000.0)
    directory = "/opt/hpcx/ucx/lib"
    add_rank(host.tree, _PID, 0, variables, (f"{directory}/libucp.so.0.0.0",))
    host.tree.add("/proc/cpuinfo", cpuinfo)
    if ucx:
        host.tree.add(f"/proc/{_PID}/root{directory}/pkgconfig/ucx.pc", f"Name: ucx\nVersion: {ucx}\n")
    (finding,) = findings(examine(host), only={"ucx-without-relaxed-ordering"})
    assert finding.status is status
    if status is Status.FOUND:
        assert "likely" in finding.cause
        assert finding.fix is not None
        value = "yes" if ucx == "1.14.1" else "try"  # up to 1.14, ib_md.c takes "try" for auto
        assert f"UCX_IB_PCI_RELAXED_ORDERING={value} in" in finding.fix.steps[0].why


@pytest.mark.parametrize(
    ("node", "nvshmem", "word"), [("aws-p5", "3.3.9", "IBGDA works"), ("aws-p5", "3.9.0", "likely works")]
)
def test_ibgda_works_with_mlx5_only(node: str, nvshmem: str, word: str) -> None:
    """DeepEP issue 759; NVSHMEM 3.4.5, ibgda.cpp: "device %s is not enumerated as an mlx5 device"."""
    libraries = (f"/usr/lib64/libnvshmem_host.so.{nvshmem}", "/usr/lib64/nvshmem_transport_ibgda.so.3.0.0")
    finding = finding_of("nvshmem-ibgda-without-mlx5", *libraries, node=node)
    assert finding.status is Status.FOUND
    assert word in finding.cause
    options = finding_of("nvshmem-ibgda-driver-options", *libraries, node=node)
    assert options.status is Status.PASSED, "no option and no reboot helps on such a node"
    assert finding_of("nvshmem-ibgda-without-mlx5", *libraries, node="hgx-h100").status is Status.PASSED


_HYBRID_EP = f"{_SITE}/hybrid_ep_cpp.cpython-312-x86_64-linux-gnu.so"


@pytest.mark.parametrize(
    ("libraries", "node", "ranks", "status"),
    [
        ((_HYBRID_EP,), "pcie-l40s", "32", Status.FOUND),
        ((_HYBRID_EP,), "pcie-l40s", "", Status.FOUND),
        ((_HYBRID_EP,), "pcie-l40s", "4", Status.PASSED),  # all of them are on this node
        ((f"{_SITE}/deep_ep/hybrid_ep_cpp.so",), "pcie-l40s", "", Status.FOUND),
        ((_HYBRID_EP,), "hgx-h100", "32", Status.PASSED),  # nvidia_peermem is usable
        ((_HYBRID_EP, f"{_SITE}/nixl_cu13.libs/libnixl.so"), "pcie-l40s", "", Status.PASSED),  # USE_NIXL=1
        ((f"{_SITE}/deep_ep_cpp.cpython-312-x86_64-linux-gnu.so",), "pcie-l40s", "", Status.PASSED),
    ],
)
def test_hybrid_ep_needs_peermem(libraries: tuple[str, ...], node: str, ranks: str, status: Status) -> None:
    """deepseek-ai/DeepEP, branch hybrid-ep of July 2026, internode_doca.cu; pull request 750."""
    variables = {"WORLD_SIZE": ranks} if ranks else {}
    found = finding_of("hybrid-ep-needs-peermem", *libraries, node=node, **variables)
    assert found.status is status
    assert status is Status.PASSED or "likely" in found.cause


_WITH_MAPPING = 'RegistryDwords: "PeerMappingOverride=1;"\n'


@pytest.mark.parametrize(
    ("kind", "node", "efa", "gdrdrv", "params", "words"),
    [
        ("5", "aws-p5", "2.17.2", "2.4", "", ("2.17.2; 3.3.0 needed", "2.4; 2.5 needed", "RegistryDwords")),
        ("5", "aws-p5", "3.3.0g", "2.5", "", ("RegistryDwords",)),
        ("5", "aws-p5", "3.3.0g", "2.5.2", _WITH_MAPPING, ()),
        ("5", "aws-p5", "4.0.0g", "3.0", _WITH_MAPPING, ()),  # newer than all that were read
        ("2", "aws-p5", "2.17.2", "2.4", "", ()),  # the CPU posts
        ("5", "hgx-h100", "", "2.4", "", ()),  # no EFA here
    ],
)
def test_what_gin_needs_on_efa(
    kind: str, node: str, efa: str, gdrdrv: str, params: str, words: tuple[str, ...]
) -> None:
    """aws/aws-ofi-nccl issue 1369 and pull request 1371: the versions, and the driver option."""
    host = SimulatedHost(node, clock=lambda: 1000.0)
    add_rank(host.tree, _PID, 0, {"NCCL_GIN_TYPE": kind}, default_libraries(host.tree, "2.31.2"))
    host.tree.add("/sys/module/efa/version", f"{efa}\n")
    host.tree.add("/sys/module/gdrdrv/version", f"{gdrdrv}\n")
    if params:
        host.tree.add("/proc/driver/nvidia/params", params)
    (finding,) = findings(examine(host), only={"gin-efa-requirements"})
    assert (finding.status is Status.FOUND) == bool(words)
    shown = " ".join(line.value for line in finding.evidence)
    assert all(word in shown for word in words)
    assert not words or len(finding.evidence) == 1 + len(words)


def test_gin_on_efa_with_a_version_that_is_unknown_is_unknown() -> None:
    host = SimulatedHost("aws-p5", clock=lambda: 1000.0)
    add_rank(host.tree, _PID, 0, {"NCCL_GIN_TYPE": "5"}, default_libraries(host.tree, "2.31.2"))
    host.tree.add("/sys/module/efa/version", "3.3.1g\n")
    host.tree.add("/proc/driver/nvidia/params", _WITH_MAPPING)
    (finding,) = findings(examine(host), only={"gin-efa-requirements"})
    assert finding.status is Status.UNKNOWN
    assert "gdrdrv" in finding.cause
