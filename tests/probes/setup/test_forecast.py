"""What a reboot brings: judged from the files of simulated nodes, and of kernels that do not run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from probes.setup.forecast.forecast import forecast
from probes.setup.forecast.model import Forecast, KernelForecast, Outlook, exit_status

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.gpudirect import GdrPath
from probes.facts.kernel.boot import BootFacts, BootLoader, InitramfsTool, InstalledKernel
from probes.simulation.host import SimulatedHost
from probes.simulation.node.modules.files import modinfo_of, set_modinfo
from probes.snapshot.examination import examine
from tests.tiers import GDR_NODES, usual
from tests.tui.pilot import SteppedClock

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
# Without DMA-BUF the node needs nvidia_peermem, and every condition of it decides.
PEERMEM_ONLY = "dgx-a100"
A100_RUNNING = "5.15.0-1063-nvidia"


def node(name: str = "hgx-h100", *changes: Callable[[SimulatedHost], object]) -> SimulatedHost:
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
        is_efi=True,
        mok_keys=keys,
    )


def forecast_of(host: SimulatedHost, boot: Maybe[BootFacts] | None = None) -> Forecast:
    return forecast(host, examine(host), boot_of(RUNNING) if boot is None else boot)


def judged(host: SimulatedHost, boot: Maybe[BootFacts] | None = None, release: str = "") -> KernelForecast:
    kernel = forecast_of(host, boot).chosen(release)
    assert kernel is not None
    return kernel


def row(kernel: KernelForecast, name: str) -> tuple[Outlook, str]:
    return next((row.outlook, row.reason) for row in kernel.rows if row.id == name)


def add_kernel(host: SimulatedHost, *, without: str = "", depends: str = "", headers: bool = True) -> None:
    """Add a kernel that does not run, with the modules of the running one but `without`."""
    tree = host.tree
    text = tree.text(f"/lib/modules/{RUNNING}/modules.dep")
    lines = [line for line in text.splitlines(True) if not without or without not in line.partition(":")[0]]
    if depends:
        name, _, needs = depends.partition(":")
        lines = [line for line in lines if name not in line.partition(":")[0]]
        lines.append(f"updates/dkms/{name}.ko:{needs}\n")
    tree.add(f"/lib/modules/{NEXT}/modules.dep", "".join(lines))
    tree.add(f"/lib/modules/{NEXT}/modules.builtin", "")
    tree.add(f"/lib/modules/{NEXT}/modules.symbols", tree.text(f"/lib/modules/{RUNNING}/modules.symbols"))
    if headers:
        tree.directory(f"/lib/modules/{NEXT}/build")


def enforce_secure_boot(host: SimulatedHost) -> None:
    path = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    host.tree.add(path, b"\x06\0\0\0\x01")


def sign(host: SimulatedHost, signer: str = "DKMS module signing key") -> None:
    for name in modinfo_of(host.tree).files:
        set_modinfo(host.tree, name, "signer", signer)


def answer_mokutil(answer: str) -> Callable[[SimulatedHost], object]:
    def change(host: SimulatedHost) -> None:
        host.tree.commands["mokutil"] = lambda argv, seconds: f"{argv[-1]} {answer}\n"

    return change


def times(**seconds: int) -> Callable[[SimulatedHost], object]:
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


@pytest.mark.parametrize("name", usual(GDR_NODES, {"hgx-h100", PEERMEM_ONLY}))
def test_a_healthy_node_keeps_its_path(name: str) -> None:
    host = node(name)
    kernel = judged(host, boot_of(host.tree.description.kernel))
    assert kernel.outlook is Outlook.WILL
    others = {PEERMEM_ONLY: GdrPath.PEERMEM, "slingshot": GdrPath.CXI}
    assert kernel.path is others.get(name, GdrPath.DMABUF)
    assert kernel.is_running
    assert exit_status(kernel) == 0
    assert kernel.reason == ""


def test_a_kernel_without_a_driver_build_will_not_have_the_path() -> None:
    found = forecast_of(
        node("hgx-h100", lambda host: add_kernel(host, without="nvidia", headers=False)),
        boot_of(NEXT, RUNNING, next_kernel=NEXT),
    )
    kernel = found.chosen()
    assert kernel is not None
    assert (kernel.release, kernel.is_running, kernel.is_next) == (NEXT, False, True)
    assert kernel.outlook is Outlook.WILL_NOT
    assert "nvidia, nvidia_uvm are missing for this kernel; DKMS has not built nvidia" in kernel.reason
    assert kernel.reason.endswith("its headers are missing")
    assert exit_status(kernel) == 2
    running = found.chosen(RUNNING)
    assert running is not None
    assert running.outlook is Outlook.WILL


def test_with_headers_dkms_may_build_the_driver_during_the_boot() -> None:
    host = node("hgx-h100", lambda host: add_kernel(host, without="nvidia"))
    kernel = judged(host, boot_of(NEXT, RUNNING, next_kernel=NEXT))
    assert row(kernel, "gpu-driver")[0] is Outlook.RISK
    assert "dkms.service may build it" in row(kernel, "gpu-driver")[1]


def test_a_failed_build_is_named_with_its_log() -> None:
    def fail(host: SimulatedHost) -> None:
        add_kernel(host, without="nvidia")
        host.tree.add("/var/lib/dkms/nvidia/570.124.06/build/make.log", "error: …\n")

    kernel = judged(node("hgx-h100", fail), boot_of(NEXT, next_kernel=NEXT))
    assert row(kernel, "gpu-driver")[0] is Outlook.WILL_NOT
    assert "DKMS failed to build nvidia" in kernel.reason
    logs = [evidence.source for one in kernel.rows if one.id == "gpu-driver" for evidence in one.evidence]
    assert "/var/lib/dkms/nvidia/570.124.06/build/make.log" in logs


def test_peermem_built_without_symbols_matters_only_where_dmabuf_is_missing() -> None:
    bare = "nvidia-peermem: updates/dkms/nvidia.ko"
    kernel = judged(
        node("hgx-h100", lambda host: add_kernel(host, depends=bare)), boot_of(NEXT, next_kernel=NEXT)
    )
    assert row(kernel, "peermem-build")[0] is Outlook.WILL_NOT
    assert "built without peer-memory symbols" in row(kernel, "peermem-build")[1]
    # modinfo shows no file of this kernel, so the driver's flavor is unknown, and so is DMA-BUF.
    assert kernel.outlook is Outlook.UNKNOWN
    faulty = node("dgx-a100+peermem-built-without-symbols")
    kernel = judged(faulty, boot_of(A100_RUNNING))
    assert kernel.outlook is Outlook.WILL_NOT
    assert kernel.reason.startswith("DMA-BUF: the driver's modules are proprietary")
    assert "nvidia-peermem: built without peer-memory symbols" in kernel.reason


def test_peermem_older_than_ofed_is_at_risk() -> None:
    def unload(host: SimulatedHost) -> None:
        host.perform(("rmmod", "nvidia_peermem"))
        host.tree.references.pop(("nvidia_peermem", "job"), None)
        host.perform(("rmmod", "nvidia_peermem"))

    host = node(PEERMEM_ONLY, times(ib_core=900_000), unload)
    kernel = judged(host, boot_of(A100_RUNNING, next_kernel=A100_RUNNING))
    assert row(kernel, "peermem-build")[0] is Outlook.RISK
    assert "older than OFED's ib_core" in kernel.reason
    assert exit_status(kernel) == 1
    # While it is loaded beside this ib_core, it fits.
    loaded = node(PEERMEM_ONLY, times(ib_core=900_000))
    assert row(judged(loaded, boot_of(A100_RUNNING)), "peermem-build")[0] is Outlook.WILL


def test_files_of_another_kernel_will_not_load() -> None:
    host = node("hgx-h100", lambda host: set_modinfo(host.tree, "nvidia", "vermagic", "6.8.0-1-generic SMP"))
    kernel = judged(host)
    assert row(kernel, "module-versions") == (
        Outlook.WILL_NOT,
        "nvidia: built for 6.8.0-1-generic, so this kernel refuses to load it",
    )
    mixed = node("hgx-h100", lambda host: set_modinfo(host.tree, "nvidia_uvm", "version", "560.35.03"))
    assert "different versions: 560.35.03, 570.124.06" in row(judged(mixed), "module-versions")[1]


@pytest.mark.parametrize(
    ("answer", "outlook", "words"),
    [
        ("is already enrolled", Outlook.WILL, "the key is enrolled"),
        ("is not enrolled", Outlook.WILL_NOT, f"{KEY} is not enrolled: confirm it at the console"),
        ("?", Outlook.UNKNOWN, "whether the kernel trusts the key is unknown"),
    ],
)
def test_secure_boot_asks_for_an_enrolled_key(answer: str, outlook: Outlook, words: str) -> None:
    host = node("hgx-h100", enforce_secure_boot, sign, answer_mokutil(answer))
    # The running kernel proves nothing here: other modules were loaded before Secure Boot was turned on.
    host.tree.live_modules.clear()
    kernel = judged(host, boot_of(RUNNING, keys=(KEY,)))
    assert row(kernel, "signatures")[0] is outlook
    assert words in row(kernel, "signatures")[1]
    assert kernel.outlook is outlook


def test_unsigned_modules_will_not_load_with_secure_boot() -> None:
    kernel = judged(node("hgx-h100", enforce_secure_boot))
    assert row(kernel, "signatures")[0] is Outlook.WILL_NOT
    assert "unsigned, and the kernel enforces signatures (Secure Boot)" in kernel.reason


def test_a_signature_that_the_running_kernel_accepts_is_trusted() -> None:
    kernel = judged(node("hgx-h100", enforce_secure_boot, sign))
    assert row(kernel, "signatures")[0] is Outlook.WILL


def test_a_command_line_may_enforce_signatures_from_the_next_boot_on() -> None:
    text = GRUB.replace("iommu=pt", "iommu=pt module.sig_enforce=1")
    kernel = judged(node("hgx-h100", lambda host: host.tree.add("/boot/grub/grub.cfg", text)))
    assert row(kernel, "signatures")[0] is Outlook.WILL_NOT


def test_a_boot_image_older_than_its_settings_is_at_risk() -> None:
    setting = "/etc/modprobe.d/nvidia.conf"

    def write(host: SimulatedHost) -> None:
        host.tree.add(setting, "options nvidia NVreg_OpenRmEnableUnsupportedGpus=1\n")
        host.tree.add("/etc/modprobe.d/sound.conf", "options snd_hda_intel power_save=1\n")

    stale = judged(node("hgx-h100", write, times(modprobe=5000)))
    assert row(stale, "boot-image") == (
        Outlook.RISK,
        f"{IMAGE} is older than {setting}: rebuild it, or the boot uses old settings",
    )
    assert exit_status(stale) == 1
    fresh = judged(node("hgx-h100", write, times(initrd=5000)))
    assert row(fresh, "boot-image")[0] is Outlook.WILL


def test_an_unreadable_boot_image_or_command_line_does_not_decide() -> None:
    kernel = judged(node("hgx-h100", lambda host: host.tree.remove("/boot/grub/grub.cfg")))  # and no stat
    assert row(kernel, "boot-image")[0] is Outlook.UNKNOWN
    assert row(kernel, "command-line")[0] is Outlook.UNKNOWN
    assert kernel.outlook is Outlook.WILL


@pytest.mark.parametrize(
    ("text", "outlook", "words"),
    [
        (GRUB, Outlook.WILL, "as now: iommu=pt"),
        (GRUB.replace(" iommu=pt", ""), Outlook.RISK, "without iommu=pt: the IOMMU may translate"),
        (GRUB.replace("iommu=pt", "$extra"), Outlook.UNKNOWN, "boot loader variables"),
    ],
)
def test_the_next_command_line_is_compared_with_the_running_one(
    text: str, outlook: Outlook, words: str
) -> None:
    def write(host: SimulatedHost) -> None:
        host.tree.remove("/etc/default/grub")
        host.tree.add("/boot/grub/grub.cfg", text)

    kernel = judged(node("hgx-h100", write))
    assert row(kernel, "command-line")[0] is outlook
    assert words in row(kernel, "command-line")[1]


def test_an_option_that_was_set_but_not_written_to_grub_cfg_is_at_risk() -> None:
    line = 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX pci=disable_acs_redir=\\"0000:17:00.0\\""\n'
    kernel = judged(node("hgx-h100", lambda host: host.tree.add("/etc/default/grub.d/acs.cfg", line)))
    assert row(kernel, "command-line") == (
        Outlook.RISK,
        "pci=disable_acs_redir=0000:17:00.0 is set but not in /boot/grub/grub.cfg: "
        "write GRUB's configuration again",
    )


def test_a_module_that_the_next_command_line_forbids_is_lost() -> None:
    text = GRUB.replace("quiet", "module_blacklist=mlx5_ib")
    kernel = judged(node("hgx-h100", lambda host: host.tree.add("/boot/grub/grub.cfg", text)))
    assert row(kernel, "forbidden-modules") == (
        Outlook.WILL_NOT,
        "the kernel command line blocks mlx5_ib",
    )


def test_blacklisted_modules_by_who_else_loads_them() -> None:
    def blacklist(name: str) -> Callable[[SimulatedHost], object]:
        return lambda host: host.tree.add("/etc/modprobe.d/no.conf", f"blacklist {name}\n")

    inbox = "pcie-l40s"
    release = SimulatedHost(inbox).tree.description.kernel
    assert judged(node(inbox, blacklist("mlx5_core")), boot_of(release)).outlook is Outlook.WILL_NOT
    # openibd and nvidia-modprobe load by name, which a blacklist does not cover.
    assert row(judged(node("hgx-h100", blacklist("nvidia_uvm"))), "forbidden-modules")[0] is Outlook.RISK
    by_install = node(
        "hgx-h100", lambda h: h.tree.add("/etc/modprobe.d/no.conf", "install nvidia /bin/false\n")
    )
    assert row(judged(by_install), "forbidden-modules") == (Outlook.WILL_NOT, "modprobe never loads nvidia")


@pytest.mark.parametrize(
    ("change", "outlook", "words"),
    [
        (
            lambda host: host.tree.add("/etc/modules-load.d/nvidia.conf", "# none\n"),
            Outlook.WILL_NOT,
            "nothing loads nvidia_peermem at boot",
        ),
        (
            lambda host: host.tree.add("/etc/modprobe.d/no.conf", "blacklist nvidia-peermem\n"),
            Outlook.WILL_NOT,
            "it is blacklisted",
        ),
        (lambda host: None, Outlook.WILL, "a restart of openibd unloads it"),
    ],
)
def test_what_loads_peermem_at_boot(
    change: Callable[[SimulatedHost], object], outlook: Outlook, words: str
) -> None:
    kernel = judged(node(PEERMEM_ONLY, change), boot_of(A100_RUNNING))
    assert row(kernel, "peermem-loading")[0] is outlook
    assert words in row(kernel, "peermem-loading")[1]
    assert kernel.outlook is outlook


def test_nouveau_that_nothing_blacklists_is_a_risk() -> None:
    def add(host: SimulatedHost) -> None:
        path = f"/lib/modules/{RUNNING}/modules.dep"
        host.tree.add(path, host.tree.text(path) + "kernel/drivers/gpu/drm/nouveau/nouveau.ko:\n")

    assert row(judged(node("hgx-h100", add)), "nouveau")[0] is Outlook.RISK
    blacklisted = node("hgx-h100", add, lambda h: h.tree.add("/etc/modprobe.d/n.conf", "blacklist nouveau\n"))
    assert "nouveau" not in {one.id for one in judged(blacklisted).rows}


def test_without_the_boot_loaders_files_the_next_kernel_is_unknown() -> None:
    unread = Unknown(Reason.NEEDS_ROOT, "/boot")
    found = forecast_of(node(), unread)
    assert found.next_kernel == unread
    # Every kernel with modules counts; the older one of this node has no driver yet, but headers.
    assert [(kernel.release, kernel.outlook) for kernel in found.kernels] == [
        (RUNNING, Outlook.WILL),
        ("6.8.0-52-generic", Outlook.RISK),
    ]
    assert {kernel.is_next for kernel in found.kernels} == {unread}
    assert found.not_known


def test_hardware_that_cannot_do_it_has_no_forecast() -> None:
    found = forecast_of(node("pcie-l40s+geforce-no-gdr"))
    assert found.not_applicable == "GeForce GPUs do not support GPUDirect RDMA"
    assert exit_status(found.chosen()) == 3
