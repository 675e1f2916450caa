"""What a reboot brings: a copy of the node, started with the files of each installed kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Maybe, Reason, Unknown
from probes.checks.registry import findings
from probes.facts.gpudirect import GdrPath
from probes.facts.kernel.boot import BootFacts, InitramfsTool, InstalledKernel
from probes.facts.kernel.boot_loader import BootLoader
from probes.queries.finding import Finding, Status
from probes.setup.forecast import MAX_JUDGED, Forecast, KernelForecast, exit_status, forecast
from probes.simulation.host import SimulatedHost
from probes.simulation.node.modules.loading import remove_modules
from probes.simulation.node.modules.modules import modinfo_of, set_modinfo
from probes.snapshot.examination import examine
from probes.snapshot.verdict import State
from tests.support.pilot import SteppedClock

RUNNING, NEXT = "6.8.0-60-generic", "6.8.0-71-generic"
IMAGE = f"/boot/initrd.img-{RUNNING}"
KEY = "/var/lib/dkms/mok.pub"
GRUB = """\
menuentry 'Ubuntu' {
    linux /vmlinuz-6.8.0-60-generic root=/dev/md0 ro iommu=pt quiet
}
menuentry 'recovery' {
    linux /vmlinuz-6.8.0-60-generic root=/dev/md0 ro recovery nomodeset
}
"""
CONFIG = (
    "CONFIG_DMA_SHARED_BUFFER=y\nCONFIG_INFINIBAND_USER_MEM=y\nCONFIG_INFINIBAND_ON_DEMAND_PAGING=y\n"
    "CONFIG_INTEL_IOMMU_DEFAULT_ON=y\n"
)
# Without DMA-BUF the node needs nvidia_peermem.
PEERMEM_ONLY = "dgx-a100"
GREEN = (State.READY, State.ACTIVE)
Change = Callable[[SimulatedHost], object]


def node(name: str = "hgx-h100", *changes: Change) -> SimulatedHost:
    host = SimulatedHost(name, clock=SteppedClock())
    for change in changes:
        change(host)
    return host


def boot_of(*releases: str, next_kernel: str = RUNNING, keys: tuple[str, ...] = ()) -> BootFacts:
    return BootFacts(
        loader=BootLoader.GRUB,
        initramfs=InitramfsTool.UPDATE_INITRAMFS,
        kernels=tuple(
            InstalledKernel(release, f"/boot/vmlinuz-{release}", f"/boot/initrd.img-{release}", True)
            for release in releases
        ),
        next_kernel=next_kernel,
        mok_keys=keys,
    )


def forecast_of(host: SimulatedHost, boot: Maybe[BootFacts] | None = None) -> Forecast:
    return forecast(host, examine(host), boot_of(RUNNING) if boot is None else boot)


def judged(host: SimulatedHost, boot: Maybe[BootFacts] | None = None, release: str = "") -> KernelForecast:
    if boot is None:
        boot = boot_of(host.tree.description.kernel, next_kernel=host.tree.description.kernel)
    kernel = forecast_of(host, boot).chosen(release)
    assert kernel is not None
    return kernel


def found(kernel: KernelForecast) -> set[str]:
    return {finding.id for finding in kernel.findings if finding.status is Status.FOUND}


def write(path: str, text: str) -> Change:
    return lambda host: host.tree.add(path, text)


def add_kernel(host: SimulatedHost, *, without: str = "", headers: bool = True) -> None:
    """Add a kernel that does not run, with copies of the running one's modules but `without`."""
    tree = host.tree
    text = tree.text(f"/lib/modules/{RUNNING}/modules.dep")
    lines = [line for line in text.splitlines(True) if not without or without not in line.partition(":")[0]]
    tree.add(f"/lib/modules/{NEXT}/modules.dep", "".join(lines))
    tree.add(f"/lib/modules/{NEXT}/modules.builtin", "")
    tree.add(f"/lib/modules/{NEXT}/modules.symbols", tree.text(f"/lib/modules/{RUNNING}/modules.symbols"))
    tree.add(f"/boot/config-{NEXT}", CONFIG)
    if headers:
        tree.directory(f"/lib/modules/{NEXT}/build")
    now = modinfo_of(tree)
    later = {
        name: {key: value.replace(RUNNING, NEXT) for key, value in fields.items()}
        for name, fields in now.files.items()
        if not without or without not in name
    }

    def modinfo(argv: tuple[str, ...], seconds: float) -> object:
        of_next = argv[1:3] == ("-k", NEXT)
        return type(now)(later)(argv, seconds) if of_next else now(argv, seconds)

    tree.commands["modinfo"] = modinfo  # type: ignore[assignment]


def enforce_secure_boot(host: SimulatedHost) -> None:
    path = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    host.tree.add(path, b"\x06\0\0\0\x01")


def sign(host: SimulatedHost) -> None:
    for name in modinfo_of(host.tree).files:
        set_modinfo(host.tree, name, "signer", "DKMS module signing key")


def answer_mokutil(answer: str) -> Change:
    def change(host: SimulatedHost) -> None:
        host.tree.commands["mokutil"] = lambda argv, seconds: f"{argv[-1]} {answer}\n"

    return change


def times(**seconds: int) -> Change:
    """Answer stat with these times by a part of the path; other files are of second 1000."""

    def change(host: SimulatedHost) -> None:
        def stat(argv: tuple[str, ...], now: float) -> str:
            assert argv[:4] == ("stat", "-L", "--format=%Y %n", "--")
            rows = (
                (next((at for part, at in seconds.items() if part in path), 1000), path) for path in argv[4:]
            )
            return "".join(f"{value} {path}\n" for value, path in rows)

        host.tree.commands["stat"] = stat

    return change


def test_the_running_kernel_keeps_its_path_and_the_node_stays_as_it_is() -> None:
    host = node()
    before = host.read("/proc/modules"), sorted(host.tree.files)
    kernel = judged(host)
    assert (kernel.verdict.state, kernel.verdict.path) == (State.READY, GdrPath.DMABUF)
    assert (kernel.outlook, exit_status(kernel), kernel.is_running) == ("will", 0, True)
    assert (host.read("/proc/modules"), sorted(host.tree.files)) == before


@pytest.mark.slow
def test_a_module_built_for_another_driver_is_found_now_in_the_forecast_and_after_the_boot() -> None:
    name = "efa-peermem-symbol-mismatch"
    host = node(f"aws-p5+{name}")
    kernel = judged(host)
    assert name in found(kernel)
    assert kernel.verdict.warnings == 1
    host.reboot()
    (after,) = [finding for finding in findings(examine(host)) if finding.status is Status.FOUND]
    assert (after.id, after.severity) == (name, Severity.WARNING)
    rebuilt = node(f"aws-p5+{name}", write("/sys/module/efa_nv_peermem/srcversion", "A" * 24 + "\n"))
    assert name not in found(judged(rebuilt))


@pytest.mark.slow
def test_another_kernel_with_the_same_driver_keeps_the_path() -> None:
    kernel = judged(node("hgx-h100", add_kernel), boot_of(NEXT, RUNNING, next_kernel=NEXT))
    assert (kernel.release, kernel.is_running, kernel.is_next) == (NEXT, False, True)
    assert (kernel.verdict.state, kernel.verdict.path) == (State.READY, GdrPath.DMABUF)


@pytest.mark.slow
def test_a_kernel_without_a_driver_build_has_no_path() -> None:
    change: Change = lambda host: add_kernel(host, without="nvidia", headers=False)  # noqa: E731
    all_kernels = forecast_of(node("hgx-h100", change), boot_of(NEXT, RUNNING, next_kernel=NEXT))
    kernel, running = all_kernels.chosen(), all_kernels.chosen(RUNNING)
    assert kernel is not None
    assert running is not None
    assert kernel.verdict.state is State.BROKEN
    assert {"nvidia-not-loaded", "dkms-not-built-for-kernel"} <= found(kernel)
    assert exit_status(kernel) == 2
    assert running.verdict.state in GREEN


@pytest.mark.slow
def test_with_headers_dkms_may_build_the_driver_during_the_boot() -> None:
    host = node("hgx-h100", lambda host: add_kernel(host, without="nvidia"))
    kernel = judged(host, boot_of(NEXT, RUNNING, next_kernel=NEXT))
    assert kernel.verdict.state is State.UNKNOWN
    assert "DKMS may build nvidia 570.211.01 during the boot" in kernel.verdict.reason
    assert "nvidia-not-loaded" not in found(kernel)


def test_a_failed_build_will_not_succeed_at_the_boot() -> None:
    def fail(host: SimulatedHost) -> None:
        add_kernel(host, without="nvidia")
        host.tree.add("/var/lib/dkms/nvidia/570.211.01/build/make.log", "error: …\n")

    kernel = judged(node("hgx-h100", fail), boot_of(NEXT, next_kernel=NEXT))
    assert kernel.verdict.state is State.BROKEN


def test_a_driver_that_a_container_installs_is_unknown_until_then() -> None:
    kernel = judged(node("pcie-l40s+k8s-rdma-not-enabled"))
    if "nvidia" not in kernel.verdict.reason:
        assert kernel.verdict.state is not State.BROKEN


def test_an_updated_driver_whose_libraries_are_old_starts_no_program() -> None:
    kernel = judged(node("hgx-h100+driver-half-updated"))
    assert kernel.verdict.state is State.BROKEN
    assert "driver-library-mismatch" in found(kernel)


def test_proprietary_modules_for_the_next_kernel_end_dmabuf() -> None:
    def close(host: SimulatedHost) -> None:
        for name in ("nvidia", "nvidia_uvm", "nvidia_peermem"):
            set_modinfo(host.tree, name, "license", "NVIDIA")
            set_modinfo(host.tree, name, "srcversion", "0" * 24)

    kernel = judged(node("hgx-h100", close))
    assert kernel.verdict.path is GdrPath.PEERMEM
    assert "dmabuf-needs-open-module" in found(kernel)


def test_the_kernels_own_nic_driver_stays_as_it_is_without_srcversion_and_config() -> None:
    """As on Debian, whose kernel's modules have no srcversion."""

    def forget(host: SimulatedHost) -> None:
        for name in ("mlx5_core", "mlx5_ib"):
            set_modinfo(host.tree, name, "srcversion", "")
            host.tree.remove(f"/sys/module/{name}/srcversion")
        host.tree.remove(f"/boot/config-{host.tree.description.kernel}")

    assert judged(node("pcie-l40s", forget)).verdict.path is GdrPath.DMABUF


def test_files_of_another_kernel_do_not_load() -> None:
    host = node("hgx-h100", lambda host: set_modinfo(host.tree, "nvidia", "vermagic", "6.8.0-1-generic SMP"))
    kernel = judged(host)
    assert kernel.verdict.state is State.BROKEN
    assert {"nvidia-not-loaded", "module-wrong-vermagic"} <= found(kernel)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "state"),
    [("is already enrolled", State.READY), ("is not enrolled", State.BROKEN), ("?", State.UNKNOWN)],
)
def test_secure_boot_asks_for_an_enrolled_key(answer: str, state: State) -> None:
    host = node("hgx-h100", enforce_secure_boot, sign, answer_mokutil(answer))
    # The running kernel proves nothing here: another key signed the modules that it has loaded.
    for name in ("nvidia", "nvidia_uvm", "nvidia_peermem"):
        set_modinfo(host.tree, name, "signer", "a new key")
    for name in [name for name in host.tree.live_modules if name.startswith(("mlx5", "ib_", "rdma"))]:
        set_modinfo(host.tree, name, "signer", "Build time autogenerated kernel key")
    remove_modules(host.tree, "gdrdrv", "nvidia_peermem", "nvidia_uvm", "nvidia")
    kernel = judged(host, boot_of(RUNNING, keys=(KEY,)))
    if state is State.READY:  # NVML does not answer now, so little is known of the GPUs
        assert "secure-boot-key-rejected" not in found(kernel)
        assert kernel.verdict.state in (*GREEN, State.UNKNOWN)
        return
    assert kernel.verdict.state is state
    assert state is State.UNKNOWN or "secure-boot-key-rejected" in found(kernel)


@pytest.mark.slow
def test_unsigned_modules_do_not_load_with_secure_boot() -> None:
    kernel = judged(node("hgx-h100", enforce_secure_boot))
    assert kernel.verdict.state is State.BROKEN
    assert "secure-boot-unsigned" in found(kernel)
    assert judged(node("hgx-h100", enforce_secure_boot, sign)).verdict.state in GREEN


def test_a_command_line_may_enforce_signatures_from_the_next_boot_on() -> None:
    text = GRUB.replace("iommu=pt", "iommu=pt module.sig_enforce=1")
    assert "secure-boot-unsigned" in found(judged(node("hgx-h100", write("/boot/grub/grub.cfg", text))))


@pytest.mark.slow
def test_a_boot_image_older_than_its_settings_is_found() -> None:
    settings = write("/etc/modprobe.d/nvidia.conf", "options nvidia NVreg_OpenRmEnableUnsupportedGpus=1\n")
    sound = write("/etc/modprobe.d/sound.conf", "options snd_hda_intel power_save=1\n")
    stale = judged(node("hgx-h100", settings, sound, times(modprobe=5000)))
    finding = next(finding for finding in stale.findings if finding.id == "boot-image-older-than-settings")
    assert finding.status is Status.FOUND
    assert [line.source for line in finding.evidence] == ["stat /etc/modprobe.d/nvidia.conf"]
    assert exit_status(stale) == 1
    fresh = judged(node("hgx-h100", settings, times(initrd=5000)))
    assert "boot-image-older-than-settings" not in found(fresh)


def test_without_a_boot_entry_the_command_line_is_taken_as_it_is_and_that_is_said() -> None:
    kernel = judged(node("hgx-h100", lambda host: host.tree.remove("/boot/grub/grub.cfg")))
    assert kernel.verdict.state in GREEN
    assert "the next kernel command line" in kernel.missing


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "is_translated"), [("iommu=pt", False), ("", True), ("intel_iommu=off", False)]
)
def test_the_next_command_line_decides_about_the_iommu(option: str, is_translated: bool) -> None:
    config = write(f"/boot/config-{RUNNING}", CONFIG)
    text = write("/boot/grub/grub.cfg", GRUB.replace("iommu=pt", option))
    kernel = judged(node("hgx-h100", config, text))
    assert ("iommu-translated" in found(kernel)) is is_translated


@pytest.mark.slow
def test_an_option_that_was_set_but_not_written_to_grub_cfg_is_found() -> None:
    line = 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX pci=disable_acs_redir=\\"0000:17:00.0\\""\n'
    kernel = judged(node("hgx-h100", write("/etc/default/grub.d/acs.cfg", line)))
    assert "boot-settings-not-written" in found(kernel)
    assert "boot-settings-not-written" not in found(judged(node()))


def test_a_module_that_the_next_command_line_forbids_is_lost() -> None:
    text = GRUB.replace("quiet", "module_blacklist=mlx5_ib")
    kernel = judged(node("hgx-h100", write("/boot/grub/grub.cfg", text)))
    assert kernel.verdict.state is State.BROKEN
    assert "mlx5-ib-not-loaded" in found(kernel)


@pytest.mark.slow
def test_blacklists_and_install_lines_decide_what_udev_loads() -> None:
    blacklist = write("/etc/modprobe.d/no.conf", "blacklist mlx5_core\n")
    assert judged(node("pcie-l40s", blacklist)).verdict.state is State.BROKEN
    # openibd loads by name, which a blacklist does not cover.
    assert judged(node("hgx-h100", blacklist)).verdict.state in GREEN
    never = write("/etc/modprobe.d/no.conf", "install nvidia /bin/false\n")
    assert judged(node("hgx-h100", never)).verdict.state is State.BROKEN


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "state"),
    [
        (write("/etc/modules-load.d/nvidia.conf", "# none\n"), State.BROKEN),
        (write("/etc/modprobe.d/no.conf", "blacklist nvidia-peermem\n"), State.BROKEN),
        (write("/etc/modprobe.d/dep.conf", "softdep nvidia post: nvidia-peermem\n"), State.READY),
    ],
)
def test_what_loads_peermem_at_boot(change: Change, state: State) -> None:
    assert judged(node(PEERMEM_ONLY, change)).verdict.state is state


def test_a_softdep_alone_loads_peermem() -> None:
    none = write("/etc/modules-load.d/nvidia.conf", "# none\n")
    softdep = write("/etc/modprobe.d/dep.conf", "softdep nvidia post: nvidia-peermem\n")
    assert judged(node(PEERMEM_ONLY, none, softdep)).verdict.state is State.READY


def test_options_of_modprobe_d_and_command_line_are_in_the_forecast() -> None:
    option = write("/etc/modprobe.d/own.conf", "options nvidia NVreg_GrdmaPciTopoCheckOverride=2\n")
    newer = "pcie-l40s+p2p-topology-refused"  # driver 580, the first that reads the option
    assert judged(node(newer, option)).verdict.path is not GdrPath.DMABUF
    assert "p2p-topology-refused-override" in found(judged(node(newer, option)))
    assert "p2p-topology-refused-override" not in found(judged(node(newer)))


@pytest.mark.parametrize("name", ["hgx-h100", "bare-roce", "hgx-b300"])
def test_a_configuration_is_as_severe_after_the_boot_as_now(name: str) -> None:
    """Jobs use nvidia_peermem now, and NCCL prefers DMA-BUF after the boot: the IOMMU is the same."""
    host = node(f"{name}+iommu-translated")

    def severity(judged: Iterable[Finding]) -> Severity:
        return next(finding.severity for finding in judged if finding.id == "iommu-translated")

    assert severity(judged(host).findings) is severity(findings(examine(host)))


def test_a_topology_that_the_driver_refuses_now_is_refused_after_the_boot() -> None:
    """Only the kernel log shows it, and a boot empties that."""
    name = "pcie-l40s+p2p-topology-refused"
    allowed = write("/etc/modprobe.d/own.conf", "options nvidia NVreg_GrdmaPciTopoCheckOverride=1\n")
    assert "p2p-topology-refused" in found(judged(node(name)))
    assert "p2p-topology-refused" not in found(judged(node(name, allowed)))


@pytest.mark.slow
def test_a_service_that_is_disabled_does_not_start() -> None:
    host = node("hgx-h100")
    host.perform(("systemctl", "disable", "nvidia-fabricmanager"))
    kernel = judged(host)
    assert kernel.verdict.state is State.BROKEN
    assert "fabric-manager-down" in found(kernel)


def test_a_mask_of_modules_load_d_is_no_file_that_needs_root() -> None:
    host = node(PEERMEM_ONLY, lambda host: host.tree.link("/etc/modprobe.d/zz.conf", "/dev/null"))
    assert judged(host).verdict.state in GREEN


@pytest.mark.slow
def test_without_the_boot_loaders_files_the_next_kernel_is_unknown() -> None:
    unread = Unknown(Reason.NEEDS_ROOT, "/boot")
    all_kernels = forecast_of(node(), unread)
    assert all_kernels.next_kernel == unread
    assert [kernel.release for kernel in all_kernels.kernels] == [RUNNING, "6.8.0-52-generic"]
    assert {kernel.is_next for kernel in all_kernels.kernels} == {unread}
    assert all_kernels.not_known


@pytest.mark.slow
def test_of_many_kernels_those_that_matter_are_judged() -> None:
    releases = tuple(f"6.8.0-{number}-generic" for number in range(90, 80, -1))
    all_kernels = forecast_of(node(), boot_of(*releases, RUNNING, next_kernel=RUNNING))
    assert len(all_kernels.kernels) == MAX_JUDGED
    assert RUNNING in {kernel.release for kernel in all_kernels.kernels}
    assert all_kernels.installed == (*releases, RUNNING)


def test_hardware_that_cannot_do_it_is_named() -> None:
    kernel = judged(node("pcie-l40s+geforce-no-gdr"))
    assert kernel.verdict.state is State.NOT_APPLICABLE
    assert "GeForce GPUs do not support GPUDirect RDMA" in kernel.verdict.reason
    assert exit_status(kernel) == 3
