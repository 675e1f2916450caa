"""Where the RDMA modules of a node are from."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.kernel.module_files import DkmsFacts, DkmsModule, ModuleFile, parse_modinfo
from probes.facts.kernel.modules import ModuleFacts
from probes.facts.kernel.modules import probe as probe_modules
from probes.facts.rdma.nic_driver import NicDriver, NicStack, NicTraces, is_inbox, probe, stack_of
from probes.facts.system.kubernetes import DriverContainerFacts
from probes.host.machine.local import LocalHost
from tests.support.trees import write

RELEASE = "6.8.0-60-generic"
ABSENT = Unknown(Reason.NOT_THERE)
DOCA, MLNX = "OFED-internal-25.07-0.9.7", "MLNX_OFED_LINUX-24.10-1.1.4.0"


def files(path: str, version: str = "") -> dict[str, ModuleFile]:
    field = f"version: {version}\n" if version else ""
    return parse_modinfo(f"filename: /lib/modules/{RELEASE}/{path}\n{field}name: mlx5_core\n")


def traces(
    found: Maybe[dict[str, ModuleFile]],
    ofed: Maybe[str] = ABSENT,
    dkms: Maybe[DkmsFacts] = ABSENT,
    modules: Maybe[ModuleFacts] = ABSENT,
    mofed_ready: bool = False,
) -> NicTraces:
    container = DriverContainerFacts(False, ABSENT, mofed_ready, mofed_ready, ())
    return NicTraces(RELEASE, ofed, found, modules, dkms, container)


def nic(root: Path, known: NicTraces) -> NicDriver:
    found = probe(LocalHost(str(root)), known)
    assert isinstance(found, NicDriver)
    return found


def package(name: str) -> DkmsFacts:
    return DkmsFacts((DkmsModule(name, "25.07", (RELEASE,), (RELEASE,), None),))


@pytest.mark.parametrize("name", ["mlnx-ofed-kernel", "mlnx-ofa_kernel"])
def test_doca_ofed_built_by_dkms(tmp_path: Path, name: str) -> None:
    found = nic(tmp_path, traces(files("updates/dkms/mlx5_core.ko"), DOCA, package(name)))
    assert (found.stack, found.version, found.by_dkms) == (NicStack.DOCA_OFED, DOCA, True)


def test_ofed_without_kernel_modules_is_the_kernels_driver(tmp_path: Path) -> None:
    """Installed with --user-space-only: ofed_info prints a release, but the modules are the kernel's."""
    found = nic(tmp_path, traces(files("kernel/drivers/net/ethernet/mellanox/mlx5/core/mlx5_core.ko"), MLNX))
    assert found.stack is NicStack.INBOX
    assert isinstance(found.version, Unknown)
    assert found.version.reason is Reason.NOT_THERE


@pytest.mark.parametrize(
    ("version", "stack"),
    [("25.07-0.9.7", NicStack.DOCA_OFED), ("5.8-3.0.7", NicStack.MLNX_OFED), ("", NicStack.OTHER)],
)
def test_modules_of_ofed_without_its_tools(tmp_path: Path, version: str, stack: NicStack) -> None:
    found = nic(tmp_path, traces(files("extra/mlnx-ofa_kernel/mlx5_core.ko", version)))
    assert found.stack is stack


def test_the_network_operators_container(tmp_path: Path) -> None:
    write(tmp_path, "/sys/module/mlx5_core/version", "26.07-0.7.0\n")
    found = nic(tmp_path, traces({}, mofed_ready=True))
    assert (found.stack, found.version) == (NicStack.CONTAINER, "26.07-0.7.0")


def test_the_efa_installer(tmp_path: Path) -> None:
    write(tmp_path, "/opt/amazon/efa_installed_packages", "# EFA installer version: 1.43.2\n")
    write(tmp_path, "/sys/module/efa/version", "2.17.2g\n")
    found = nic(tmp_path, traces({}, dkms=package("efa")))
    assert (found.stack, found.version, found.by_dkms) == (NicStack.EFA, "2.17.2g", True)


def test_no_rdma_driver(tmp_path: Path) -> None:
    found = probe(LocalHost(str(tmp_path)), traces({}))
    assert isinstance(found, Unknown)
    assert found.reason is Reason.NOT_THERE


def test_which_module_exports_the_peer_memory_symbols(tmp_path: Path) -> None:
    base = f"/lib/modules/{RELEASE}"
    write(tmp_path, "/proc/sys/kernel/osrelease", f"{RELEASE}\n")
    write(tmp_path, f"{base}/modules.dep", "updates/dkms/ib_core.ko:\n")
    for symbol, expected in (("ib_register_peer_memory_client", True), ("ib_register_client", False)):
        write(tmp_path, f"{base}/modules.symbols", f"alias symbol:{symbol} ib_core\n")
        modules = probe_modules(LocalHost(str(tmp_path)))
        found = nic(tmp_path, traces(files("updates/dkms/ib_core.ko"), modules=modules))
        assert found.exports_peer_memory is expected


@pytest.mark.parametrize(
    ("release", "stack"),
    [
        (DOCA, NicStack.DOCA_OFED),
        (MLNX, NicStack.MLNX_OFED),
        ("MLNX_EN_LINUX-5.8-2.0.3.0", NicStack.MLNX_OFED),
        ("OFED-internal-5.8-0.9.1", NicStack.MLNX_OFED),
        ("something-1.0", None),
    ],
)
def test_releases(release: str, stack: NicStack | None) -> None:
    assert stack_of(release) is stack


@pytest.mark.parametrize(
    ("path", "inbox"),
    [
        ("/lib/modules/6.8.0/kernel/drivers/infiniband/core/ib_core.ko.zst", True),
        ("(builtin)", True),
        ("/lib/modules/6.8.0/updates/dkms/ib_core.ko", False),
        ("/lib/modules/5.14.0/weak-updates/mlnx-ofa_kernel/ib_core.ko", False),
    ],
)
def test_inbox_files(path: str, inbox: bool) -> None:
    assert is_inbox(path) is inbox


@given(st.text())
def test_any_release(text: str) -> None:
    assert stack_of(text) in (None, *NicStack)
