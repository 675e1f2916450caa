"""Images judged without hardware: what they lack for the node that they will meet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from probes.setup.forecast.model import Outlook
from probes.setup.image_host import ImageHost
from probes.setup.image_lint import ImageKind, ImageLint, exit_status, lint_image

from probes.base.unknown import Reason, Unknown
from probes.checks.registry import findings
from probes.facts.gpudirect import GdrPath
from probes.host.local import LocalHost
from probes.queries.finding import Status
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine
from tests.probes.setup.module_elf import module_file
from tests.trees import link, write
from tests.tui.pilot import SteppedClock

RELEASE = "6.8.0-60-generic"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
_OPEN = "Dual MIT/GPL"


def assumed(name: str = "hgx-h100") -> SimulatedHost:
    return SimulatedHost(name, clock=SteppedClock())


def verbs(root: Path) -> None:
    write(root, f"{LIBRARIES}/libibverbs.so.1.14.50.0", "")
    link(root, f"{LIBRARIES}/libibverbs.so.1", "libibverbs.so.1.14.50.0")
    write(root, f"{LIBRARIES}/libibverbs/libmlx5-rdmav34.so", "")


def modules(root: Path, license_text: str = _OPEN, peermem_needs: str = "ib_core") -> None:
    """Write the kernel's modules and the index of depmod."""
    base = f"/lib/modules/{RELEASE}"
    drivers = {
        "kernel/ib_core": "",
        "kernel/ib_uverbs": "kernel/ib_core.ko",
        "kernel/mlx5_core": "",
        "kernel/mlx5_ib": "kernel/ib_uverbs.ko kernel/mlx5_core.ko kernel/ib_core.ko",
        "updates/dkms/nvidia": "",
        "updates/dkms/nvidia-uvm": "updates/dkms/nvidia.ko",
        "updates/dkms/nvidia-peermem": "updates/dkms/nvidia.ko"
        + (" kernel/ib_core.ko" if peermem_needs else ""),
    }
    write(root, f"{base}/modules.dep", "".join(f"{name}.ko: {needs}\n" for name, needs in drivers.items()))
    write(root, f"{base}/modules.builtin", "")
    write(root, f"{base}/modules.symbols", "alias symbol:ib_register_peer_memory_client ib_core\n")
    for name in drivers:
        short = name.rpartition("/")[2]
        text = license_text if short.startswith("nvidia") else "Dual BSD/GPL"
        path = root / f"{base}/{name}.ko".lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        fields = {"name": short.replace("-", "_"), "license": text, "vermagic": f"{RELEASE} SMP"}
        version = {"version": "570.124.06"} if short.startswith("nvidia") else {}
        path.write_bytes(module_file(**fields, **version))


def system(root: Path) -> None:
    """Write an operating-system image with both drivers, libraries, limits and Fabric Manager."""
    modules(root)
    write(root, "/etc/os-release", 'PRETTY_NAME="Ubuntu 24.04 LTS"\nID=ubuntu\n')
    write(root, "/etc/security/limits.d/rdma.conf", "* soft memlock unlimited\n* hard memlock unlimited\n")
    unit = "/usr/lib/systemd/system/nvidia-fabricmanager.service"
    write(root, unit, "[Service]\nExecStart=/usr/bin/nv-fabricmanager\n")
    link(root, "/etc/systemd/system/multi-user.target.wants/nvidia-fabricmanager.service", unit)
    verbs(root)


def lint(root: Path, name: str = "hgx-h100") -> ImageLint:
    return lint_image(LocalHost(str(root)), assumed(name))


def row(found: ImageLint, name: str) -> tuple[Outlook, str]:
    kernel = found.forecast.chosen()
    rows = (*found.rows, *(kernel.rows if kernel is not None else ()))
    return next((row.outlook, row.reason) for row in rows if row.id == name)


def test_a_healthy_image_is_fine(tmp_path: Path) -> None:
    system(tmp_path)
    found = lint(tmp_path)
    kernel = found.forecast.chosen()
    assert kernel is not None
    assert (kernel.release, kernel.outlook, kernel.path) == (RELEASE, Outlook.WILL, GdrPath.DMABUF)
    assert found.kind is ImageKind.SYSTEM
    assert {finding.id for finding in found.findings} <= {"perftest-missing", "libcuda-link-missing"}
    assert exit_status(found) == 0
    assert found.hardware == "hgx-h100"
    assert "8 GPUs (NVIDIA" in found.product
    assert found.unanswered > 100


@pytest.mark.parametrize(
    ("change", "name", "outlook", "words"),
    [
        (
            lambda root: write(root, "/etc/modprobe.d/no.conf", "blacklist mlx5_core\n"),
            "forbidden-modules",
            Outlook.WILL_NOT,
            "mlx5_core is blacklisted, so udev does not load it",
        ),
        (
            lambda root: modules(root, "NVIDIA", ""),
            "dmabuf",
            Outlook.WILL_NOT,
            "the driver's modules are proprietary",
        ),
        (
            lambda root: write(root, "/etc/nccl.conf", "NCCL_IB_DISABLE=1\n"),
            "nccl-conf",
            Outlook.WILL_NOT,
            "NCCL will not use RDMA: NCCL_IB_DISABLE=1",
        ),
        (
            lambda root: (root / f"{LIBRARIES}/libibverbs/libmlx5-rdmav34.so".lstrip("/")).unlink(),
            "verbs-provider-mlx5",
            Outlook.RISK,
            "libibverbs finds no NIC without its mlx5 plugin",
        ),
    ],
)
def test_what_is_wrong_in_an_image_is_found(
    tmp_path: Path, change: Callable[[Path], object], name: str, outlook: Outlook, words: str
) -> None:
    system(tmp_path)
    change(tmp_path)
    found = lint(tmp_path)
    assert row(found, name)[0] is outlook
    assert words in row(found, name)[1]
    assert exit_status(found) == {Outlook.WILL_NOT: 2, Outlook.RISK: 1}[outlook]


def test_findings_depend_on_the_hardware_that_the_image_meets(tmp_path: Path) -> None:
    system(tmp_path)
    (tmp_path / "usr/lib/systemd/system/nvidia-fabricmanager.service").unlink()
    (tmp_path / "etc/systemd/system/multi-user.target.wants/nvidia-fabricmanager.service").unlink()
    missing = "fabric-manager-down-absent"
    assert missing in {finding.id for finding in lint(tmp_path).findings}
    assert missing not in {finding.id for finding in lint(tmp_path, "pcie-l40s").findings}


@pytest.mark.parametrize(
    ("files", "outlook", "words"),
    [
        (
            "NCCL_NET_GDR_LEVEL=LOC\n",
            Outlook.WILL_NOT,
            "NCCL never uses GPUDirect RDMA: NCCL_NET_GDR_LEVEL=LOC",
        ),
        ("NCCL_NET=Socket\n", Outlook.WILL_NOT, "NCCL will not use RDMA: NCCL_NET=Socket"),
        ("NCCL_DMABUF_ENABLE=0\n", Outlook.RISK, "jobs need nvidia_peermem"),
        (" NCCL_DEBUG=INFO\n", Outlook.RISK, "NCCL ignores 1 line"),
        ("NCCL_IB_HCA==mlx5_0,mlx5_1\n", Outlook.WILL, "no setting keeps NCCL from GPUDirect RDMA"),
    ],
)
def test_a_container_image_is_judged_by_its_nccl_conf(
    tmp_path: Path, files: str, outlook: Outlook, words: str
) -> None:
    verbs(tmp_path)
    write(tmp_path, "/etc/nccl.conf", files)
    found = lint(tmp_path)
    assert found.kind is ImageKind.CONTAINER
    assert found.forecast.kernels == ()
    assert row(found, "nccl-conf")[0] is outlook
    assert words in row(found, "nccl-conf")[1]


def test_a_container_image_without_verbs_cannot_use_rdma(tmp_path: Path) -> None:
    found = lint(tmp_path)
    assert row(found, "verbs-library") == (
        Outlook.WILL_NOT,
        "libibverbs.so.1 is missing: NCCL in this image uses TCP",
    )
    assert exit_status(found) == 2
    verbs(tmp_path)
    assert exit_status(lint(tmp_path)) == 0


def test_a_driver_library_in_a_container_image_is_a_risk(tmp_path: Path) -> None:
    verbs(tmp_path)
    write(tmp_path, f"{LIBRARIES}/libcuda.so.550.54.15", "")
    link(tmp_path, f"{LIBRARIES}/libcuda.so.1", "libcuda.so.550.54.15")
    assert row(lint(tmp_path), "driver-library")[0] is Outlook.RISK


def test_what_only_a_running_node_shows_is_unknown(tmp_path: Path) -> None:
    system(tmp_path)
    host = ImageHost(LocalHost(str(tmp_path)), assumed())
    for answer in (
        host.read("/proc/modules"),
        host.names("/sys/class/infiniband"),
        host.nvml(),
        host.cuda_gpus(),
        host.run(("nvidia-smi",)),
        host.read("/sys/bus/pci/devices/0000:1a:00.0/config"),
    ):
        assert isinstance(answer, Unknown)
        assert answer.reason is Reason.NOT_RECORDED
    assert host.read("/proc/sys/kernel/osrelease") == RELEASE
    # The files of the assumed node are not the image's.
    assert isinstance(host.read("/etc/modules-load.d/nvidia.conf"), Unknown)
    event = host.read("/sys/bus/pci/devices/0000:1a:00.0/uevent")
    assert isinstance(event, str)
    assert "PCI_ID=" in event
    assert "DRIVER=" not in event


def test_no_check_blames_an_image_for_not_running(tmp_path: Path) -> None:
    system(tmp_path)
    host = ImageHost(LocalHost(str(tmp_path)), assumed())
    found = {one.id for one in findings(examine(host)) if one.status is Status.FOUND}
    assert not {name for name in found if "not-loaded" in name or "port" in name}
