"""Images judged without hardware: a copy of the assumed node, started with the files of the image."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from probes.checks.judgment import exit_status
from probes.facts.gpudirect import GdrPath
from probes.host.machine.local import LocalHost
from probes.queries.finding import Status
from probes.recording.recording_host import Moment, RecordingHost
from probes.recording.replay_host import ReplayHost
from probes.setup.forecast import ImageCheck, ImageKind, check_image
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine
from probes.snapshot.verdict import State
from tests.support.module_elf import module_file
from tests.support.pilot import SteppedClock
from tests.support.recordings import archive_of, read
from tests.support.trees import link, write

RELEASE = "6.8.0-60-generic"
VERSION = "570.211.01"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
OPEN = "Dual MIT/GPL"
CONFIG = (
    "CONFIG_X86_64=y\nCONFIG_DMA_SHARED_BUFFER=y\nCONFIG_INFINIBAND_USER_MEM=y\n"
    "CONFIG_INFINIBAND_ON_DEMAND_PAGING=y\nCONFIG_INTEL_IOMMU_DEFAULT_ON=y\n"
)
GRUB = "/boot/grub/grub.cfg"
Change = Callable[[Path], object]


def verbs(root: Path) -> None:
    for name in ("libibverbs.so.1", "libmlx5.so.1"):
        write(root, f"{LIBRARIES}/{name}.14.50.0", "")
        link(root, f"{LIBRARIES}/{name}", f"{name}.14.50.0")
    write(root, f"{LIBRARIES}/libibverbs/libmlx5-rdmav34.so", "")


def driver_libraries(root: Path, version: str = VERSION) -> None:
    for name in ("libcuda.so", "libnvidia-ml.so"):
        write(root, f"{LIBRARIES}/{name}.{version}", "")
        link(root, f"{LIBRARIES}/{name}.1", f"{name}.{version}")


def modules(root: Path, license_text: str = OPEN, magic: str = f"{RELEASE} SMP", **more: str) -> None:
    """Write the kernel's modules and the index of depmod; `more`: fields of nvidia.ko."""
    base = f"/lib/modules/{RELEASE}"
    drivers = {
        "kernel/ib_core": "",
        "kernel/ib_uverbs": "kernel/ib_core.ko",
        "kernel/mlxfw": "",
        "kernel/mlx5_core": "kernel/mlxfw.ko",
        "kernel/mlx5_ib": "kernel/ib_uverbs.ko kernel/mlx5_core.ko kernel/mlxfw.ko kernel/ib_core.ko",
        "updates/dkms/nvidia": "",
        "updates/dkms/nvidia-uvm": "updates/dkms/nvidia.ko",
        "updates/dkms/nvidia-peermem": "updates/dkms/nvidia.ko kernel/ib_core.ko",
    }
    write(root, f"{base}/modules.dep", "".join(f"{name}.ko: {needs}\n" for name, needs in drivers.items()))
    write(root, f"{base}/modules.builtin", "")
    write(root, f"{base}/modules.symbols", "alias symbol:ib_register_peer_memory_client ib_core\n")
    for name in drivers:
        short = name.rpartition("/")[2]
        text = license_text if short.startswith("nvidia") else "Dual BSD/GPL"
        path = root / f"{base}/{name}.ko".lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        fields = {"name": short.replace("-", "_"), "license": text, "vermagic": magic}
        version = {"version": VERSION} if short.startswith("nvidia") else {}
        path.write_bytes(module_file(**{**fields, **version, **(more if short == "nvidia" else {})}))


def manager(root: Path) -> None:
    unit = "/usr/lib/systemd/system/nvidia-fabricmanager.service"
    write(root, unit, "[Service]\nExecStart=/usr/bin/nv-fabricmanager\n")
    link(root, "/etc/systemd/system/multi-user.target.wants/nvidia-fabricmanager.service", unit)
    write(root, "/usr/bin/nv-fabricmanager", "")


def grub(root: Path, options: str = "iommu=pt") -> None:
    text = f"menuentry 'x' {{\n linux /boot/vmlinuz-{RELEASE} root=/dev/x ro {options}\n}}\n"
    write(root, GRUB, text)


def system(root: Path) -> None:
    """Write an operating-system image with both drivers, libraries, limits and Fabric Manager."""
    modules(root)
    write(root, "/etc/os-release", 'PRETTY_NAME="Ubuntu 24.04 LTS"\nID=ubuntu\n')
    write(root, "/etc/security/limits.d/rdma.conf", "* soft memlock unlimited\n* hard memlock unlimited\n")
    write(root, f"/boot/vmlinuz-{RELEASE}", "")
    write(root, f"/boot/config-{RELEASE}", CONFIG)
    grub(root)
    manager(root)
    verbs(root)
    driver_libraries(root)


def check(root: Path, name: str = "hgx-h100") -> ImageCheck:
    return check_image(LocalHost(str(root)), SimulatedHost(name, clock=SteppedClock()))


def found(result: ImageCheck) -> set[str]:
    return {finding.id for finding in result.findings if finding.status is Status.FOUND}


@pytest.mark.slow
def test_a_healthy_image_is_fine(tmp_path: Path) -> None:
    system(tmp_path)
    result = check(tmp_path)
    kernel = result.forecast.chosen()
    assert kernel is not None
    assert kernel.release == RELEASE
    assert (result.verdict.state, result.verdict.path) == (State.READY, GdrPath.DMABUF)
    assert (result.verdict.gpus_served, result.verdict.gpus) == (8, 8)
    assert result.kind is ImageKind.SYSTEM
    assert exit_status(result.verdict) == 0
    assert result.hardware == "hgx-h100"
    assert "8 GPUs (NVIDIA" in result.product


def cut(root: Path) -> None:
    path = root / f"lib/modules/{RELEASE}/updates/dkms/nvidia.ko"
    path.write_bytes(path.read_bytes()[:80])


def remove(path: str) -> Change:
    return lambda root: (root / path.lstrip("/")).unlink()


BROKEN: dict[str, tuple[Change, State, str]] = {
    "the NIC driver is blacklisted": (
        lambda root: write(root, "/etc/modprobe.d/no.conf", "blacklist mlx5_core\n"),
        State.BROKEN,
        "mlx5-core-not-loaded",
    ),
    "an option denies GPU memory to NICs": (
        lambda root: (
            write(root, "/etc/modprobe.d/x.conf", "options nvidia NVreg_DmaRemapPeerMmio=0\n"),
            grub(root, "intel_iommu=on"),
        ),
        State.DEGRADED,
        "peer-mmio-not-remapped",
    ),
    "the command line lets the IOMMU translate": (
        lambda root: grub(root, "quiet"),
        State.DEGRADED,
        "iommu-translated",
    ),
    "nccl.conf disables RDMA": (
        lambda root: write(root, "/etc/nccl.conf", "NCCL_IB_DISABLE=1\n"),
        State.DEGRADED,
        "nccl-ib-disabled",
    ),
    "nccl.conf disables GPUDirect RDMA": (
        lambda root: write(root, "/etc/nccl.conf", "NCCL_NET_GDR_LEVEL=LOC\n"),
        State.DEGRADED,
        "nccl-gdr-level-off",
    ),
    "Fabric Manager is not installed": (
        remove("/usr/lib/systemd/system/nvidia-fabricmanager.service"),
        State.BROKEN,
        "fabric-manager-down-absent",
    ),
    "the driver's file is damaged": (cut, State.BROKEN, "module-file-unusable"),
    "the driver's file is gone": (
        remove(f"/lib/modules/{RELEASE}/kernel/mlx5_ib.ko"),
        State.BROKEN,
        "mlx5-ib-not-loaded",
    ),
    "the file of a module that the NIC driver needs is gone": (
        remove(f"/lib/modules/{RELEASE}/kernel/mlxfw.ko"),
        State.BROKEN,
        "mlx5-core-not-loaded",
    ),
    "there is no index of the modules": (
        remove(f"/lib/modules/{RELEASE}/modules.dep"),
        State.BROKEN,
        "modules-index-missing",
    ),
    "the firmware is missing": (
        lambda root: modules(root, firmware=f"nvidia/{VERSION}/gsp_ga10x.bin"),
        State.BROKEN,
        "gsp-firmware-missing",
    ),
    "libcuda is missing": (remove(f"{LIBRARIES}/libcuda.so.1"), State.BROKEN, "driver-library-missing"),
    "the driver's libraries have another version": (
        lambda root: (
            remove(f"{LIBRARIES}/libnvidia-ml.so.1")(root),
            remove(f"{LIBRARIES}/libcuda.so.1")(root),
            driver_libraries(root, "535.261.03"),
        ),
        State.BROKEN,
        "driver-library-mismatch",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_in_an_image_is_found_and_is_in_the_headline(tmp_path: Path, name: str) -> None:
    system(tmp_path)
    change, state, finding = BROKEN[name]
    change(tmp_path)
    result = check(tmp_path)
    assert finding in found(result)
    assert result.verdict.state is state
    is_warning = finding == "iommu-translated"  # before Linux 6.12 it costs bandwidth only
    assert exit_status(result.verdict) == (1 if is_warning else 2)


@pytest.mark.slow
def test_a_missing_provider_of_the_nics_is_a_note_on_a_node_and_critical_in_a_container(
    tmp_path: Path,
) -> None:
    system(tmp_path)
    remove(f"{LIBRARIES}/libibverbs/libmlx5-rdmav34.so")(tmp_path)
    result = check(tmp_path)
    assert "libibverbs-missing" in found(result)
    assert exit_status(result.verdict) == 0
    container = tmp_path / "container"
    container.mkdir()
    verbs(container)
    assert exit_status(check(container).verdict) == 0
    remove(f"{LIBRARIES}/libibverbs/libmlx5-rdmav34.so")(container)
    assert exit_status(check(container).verdict) == 2


@pytest.mark.slow
def test_a_proprietary_driver_has_no_dmabuf(tmp_path: Path) -> None:
    system(tmp_path)
    modules(tmp_path, "NVIDIA")
    result = check(tmp_path)
    assert result.verdict.path is not GdrPath.DMABUF
    assert "dmabuf-needs-open-module" in found(result)


def test_a_driver_that_is_older_than_the_gpus_does_not_start(tmp_path: Path) -> None:
    system(tmp_path)
    modules(tmp_path, version="535.261.03")
    result = check(tmp_path, "hgx-b200")
    assert result.verdict.state is State.BROKEN
    assert "gpu-driver-start-failed" in found(result)
    (failed,) = [finding for finding in result.findings if finding.id == "gpu-driver-start-failed"]
    assert failed.fix is not None
    assert "Blackwell GPUs are supported from R570 on" in failed.fix.steps[0].why
    (loaded,) = [finding for finding in result.findings if finding.id == "nvidia-not-loaded"]
    assert loaded.part_of == "gpu-driver-start-failed"
    modules(tmp_path)
    assert "gpu-driver-start-failed" not in found(check(tmp_path, "hgx-b200"))


@pytest.mark.parametrize("name", ["gb200", "slingshot"])
def test_an_image_of_another_architecture_cannot_start(tmp_path: Path, name: str) -> None:
    system(tmp_path)
    result = check(tmp_path, name)
    assert result.verdict.state is State.BROKEN
    assert "module-wrong-architecture" in found(result)


def test_hardware_that_cannot_do_it_by_design_is_named(tmp_path: Path) -> None:
    system(tmp_path)
    modules(tmp_path, magic=f"{RELEASE} SMP aarch64", version="580.95.05")
    write(tmp_path, f"/boot/config-{RELEASE}", CONFIG.replace("X86_64", "ARM64"))
    result = check(tmp_path, "dgx-spark")
    assert result.verdict.state is State.NOT_APPLICABLE
    assert "GB10" in result.verdict.reason
    assert exit_status(result.verdict) == 3


@pytest.mark.parametrize(
    ("name", "driver", "finding"),
    [("aws-p5", "efa", "efa-not-loaded"), ("slingshot", "cxi_ss1", "cxi-ss1-not-loaded")],
)
def test_nics_of_other_vendors_need_their_drivers(
    tmp_path: Path, name: str, driver: str, finding: str
) -> None:
    system(tmp_path)
    result = check(tmp_path, name)
    assert driver in result.product
    assert finding in found(result)
    assert result.verdict.state is State.BROKEN


@pytest.mark.slow
def test_findings_depend_on_the_hardware_that_the_image_meets(tmp_path: Path) -> None:
    system(tmp_path)
    remove("/usr/lib/systemd/system/nvidia-fabricmanager.service")(tmp_path)
    assert "fabric-manager-down-absent" in found(check(tmp_path))
    assert "fabric-manager-down-absent" not in found(check(tmp_path, "pcie-l40s"))


@pytest.mark.slow
def test_a_container_image_has_no_kernel_and_an_image_without_an_index_is_none(tmp_path: Path) -> None:
    verbs(tmp_path)
    result = check(tmp_path)
    assert (result.kind, result.forecast.kernels) == (ImageKind.CONTAINER, ())
    assert (result.verdict.state, exit_status(result.verdict)) == (State.READY, 0)
    write(tmp_path, f"/boot/vmlinuz-{RELEASE}", "")
    assert check(tmp_path).kind is ImageKind.SYSTEM


@pytest.mark.slow
def test_a_container_image_without_verbs_cannot_use_rdma(tmp_path: Path) -> None:
    result = check(tmp_path)
    assert "libibverbs-missing" in found(result)
    assert result.verdict.state is State.BROKEN
    assert exit_status(result.verdict) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("node", "state"), [("hgx-h100", State.READY), ("gb200", State.BROKEN)])
def test_a_container_image_for_other_cpus_starts_no_program(tmp_path: Path, node: str, state: State) -> None:
    verbs(tmp_path)
    program = b"\x7fELF\x02\x01\x01" + bytes(9) + (3).to_bytes(2, "little") + (0x3E).to_bytes(2, "little")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sh").write_bytes(program + bytes(44))
    result = check(tmp_path, node)
    assert result.verdict.state is state
    assert ("image-wrong-architecture" in found(result)) is (state is State.BROKEN)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("node", "plugin"), [("aws-p5", "libefa-rdmav34.so"), ("hgx-h100", "libmlx5-rdmav34.so")]
)
def test_a_container_image_needs_the_verbs_of_the_nics_that_it_meets(
    tmp_path: Path, node: str, plugin: str
) -> None:
    verbs(tmp_path)
    write(tmp_path, f"{LIBRARIES}/libibverbs/{plugin}", "")
    assert "libibverbs-missing" not in found(check(tmp_path, node))
    remove(f"{LIBRARIES}/libibverbs/{plugin}")(tmp_path)
    assert "libibverbs-missing" in found(check(tmp_path, node))


def test_a_container_image_on_slingshot_needs_no_verbs(tmp_path: Path) -> None:
    assert "libibverbs-missing" not in found(check(tmp_path, "slingshot"))


@pytest.mark.slow
def test_settings_in_a_container_image_are_found(tmp_path: Path) -> None:
    verbs(tmp_path)
    write(tmp_path, "/etc/nccl.conf", "NCCL_NET=Socket\n")
    assert "nccl-net-socket" in found(check(tmp_path))


@pytest.mark.slow
def test_the_jobs_of_the_assumed_node_are_not_the_images(tmp_path: Path) -> None:
    verbs(tmp_path)
    assert not {name for name in found(check(tmp_path, "hgx-h100+nccl-ib-disabled")) if "nccl" in name}


def debian(root: Path) -> None:
    """Give the driver the file names and install lines of Debian's nvidia-open-kernel-dkms."""
    system(root)
    base = f"lib/modules/{RELEASE}"
    for name in ("nvidia", "nvidia-uvm", "nvidia-peermem"):
        directory = root / f"{base}/updates/dkms"
        file = f"nvidia-current-open{name.removeprefix('nvidia')}.ko"
        (directory / f"{name}.ko").rename(directory / file)
    index = root / f"{base}/modules.dep"
    index.write_text(index.read_text().replace("dkms/nvidia", "dkms/nvidia-current-open"))
    lines = "install nvidia modprobe -i nvidia-current-open $CMDLINE_OPTS\n" + "".join(
        f"install nvidia-{name} modprobe nvidia ; modprobe -i nvidia-current-open-{name} $CMDLINE_OPTS\n"
        for name in ("uvm", "peermem")
    )
    write(root, "/etc/nvidia/current-open/nvidia-modprobe.conf", lines)
    link(root, "/etc/modprobe.d/nvidia.conf", "/etc/alternatives/glx--nvidia-modprobe.conf")
    alternative = "/etc/nvidia/current-open/nvidia-modprobe.conf"
    link(root, "/etc/alternatives/glx--nvidia-modprobe.conf", alternative)


def test_an_image_of_debian_loads_the_driver_by_its_install_lines(tmp_path: Path) -> None:
    debian(tmp_path)
    result = check(tmp_path)
    assert (result.verdict.state, result.verdict.path) == (State.READY, GdrPath.DMABUF)
    assert found(result) == {"perftest-missing"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nvidia", "nvidia-current-open"])
def test_options_of_debians_driver_are_in_the_forecast_by_either_name(tmp_path: Path, name: str) -> None:
    debian(tmp_path)
    write(tmp_path, "/etc/modprobe.d/x.conf", f"options {name} NVreg_DmaRemapPeerMmio=0\n")
    grub(tmp_path, "intel_iommu=on")
    assert "peer-mmio-not-remapped" in found(check(tmp_path))


@pytest.mark.parametrize(("options", "state"), [("iommu=pt", State.READY), ("quiet", State.DEGRADED)])
def test_an_image_without_grub_cfg_starts_with_the_settings_of_grub(
    tmp_path: Path, options: str, state: State
) -> None:
    system(tmp_path)
    (tmp_path / GRUB.lstrip("/")).unlink()
    write(tmp_path, "/etc/default/grub", f'GRUB_CMDLINE_LINUX="{options}"\n')
    assert check(tmp_path).verdict.state is state


@pytest.mark.parametrize(("has_source", "state"), [(False, State.BROKEN), (True, State.UNKNOWN)])
def test_the_dkms_of_the_image_builds_its_driver_and_not_that_of_the_hardware(
    tmp_path: Path, has_source: bool, state: State
) -> None:
    system(tmp_path)
    base = tmp_path / f"lib/modules/{RELEASE}"
    (base / "modules.dep").write_text((base / "modules.dep").read_text().partition("updates")[0])
    (base / "build").mkdir()
    if has_source:
        link(tmp_path, f"/var/lib/dkms/nvidia/{VERSION}/source", f"/usr/src/nvidia-{VERSION}")
    assert check(tmp_path).verdict.state is state


@pytest.mark.slow
def test_a_masked_setting_is_empty(tmp_path: Path) -> None:
    system(tmp_path)
    link(tmp_path, "/etc/modprobe.d/zz.conf", "/dev/null")
    result = check(tmp_path)
    assert result.verdict.state is State.READY
    assert not any("needs root" in finding.cause for finding in result.findings if "blacklist" in finding.id)


@pytest.mark.slow
def test_a_recording_of_a_node_can_be_the_hardware(tmp_path: Path) -> None:
    system(tmp_path)
    clock = SteppedClock()
    moments: list[Moment] = []
    recorder = RecordingHost(SimulatedHost("hgx-h100", clock=clock), moments.append)
    examine(recorder)
    recorder.end_moment()
    hardware = ReplayHost(read(archive_of(moments)))
    result = check_image(LocalHost(str(tmp_path)), hardware)
    assert result.kind is ImageKind.SYSTEM
    assert result.verdict.gpus == 8
