"""How a node boots, and which kernel is next."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.kernel.boot import BootFacts, InitramfsTool, parse_certificates, probe, version_key
from probes.facts.kernel.boot_loader import (
    BootLoader,
    entry_kernel,
    in_menu_order,
    parse_default,
    parse_efi_text,
    parse_grub_settings,
    parse_grubenv,
)
from probes.facts.system.packages import Distribution, Family
from probes.host.machine.local import LocalHost
from tests.support.trees import link, write

OLD, NEW = "6.8.0-52-generic", "6.8.0-60-generic"
EFIVARS = "/sys/firmware/efi/efivars"
LOADER = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
UBUNTU = Distribution("ubuntu", "24.04", "Ubuntu 24.04", Family.DEBIAN)


def boot(root: Path, system: Maybe[Distribution] = UBUNTU, running: str = NEW) -> BootFacts:
    return probe(LocalHost(str(root)), system, running)


def add_kernel(root: Path, release: str, image: str = "/boot/vmlinuz-{}") -> None:
    write(root, f"/lib/modules/{release}/modules.dep", "")
    write(root, image.format(release), "")


def ubuntu(root: Path, settings: str = "GRUB_DEFAULT=0\n") -> None:
    for release in (OLD, NEW):
        add_kernel(root, release)
    write(root, "/etc/default/grub", settings)


def efi_variable(root: Path, name: str, text: str) -> None:
    path = root / f"{EFIVARS}/{name}-{LOADER}".lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x07\0\0\0" + f"{text}\0".encode("utf-16-le"))


def reason(fact: object) -> Reason | None:
    return fact.reason if isinstance(fact, Unknown) else None


# Boot loaders


def test_grub_starts_the_newest_kernel(tmp_path: Path) -> None:
    ubuntu(tmp_path)
    facts = boot(tmp_path)
    assert (facts.loader, facts.next_kernel) == (BootLoader.GRUB, NEW)
    assert not isinstance(facts.kernels, Unknown)
    assert [kernel.release for kernel in facts.kernels] == [NEW, OLD]


def test_grub_with_boot_loader_entries(tmp_path: Path) -> None:
    add_kernel(tmp_path, "5.14.0-427.13.1.el9_4.x86_64")
    add_kernel(tmp_path, "5.14.0-362.8.1.el9_3.x86_64")
    write(tmp_path, "/etc/default/grub", "GRUB_DEFAULT=saved\nGRUB_ENABLE_BLSCFG=true\n")
    write(tmp_path, "/boot/loader/entries/0123-5.14.0-362.8.1.el9_3.x86_64.conf", "")
    write(
        tmp_path, "/boot/grub2/grubenv", "# GRUB\nsaved_entry=0123-5.14.0-362.8.1.el9_3.x86_64\n" + "#" * 99
    )
    facts = boot(tmp_path)
    assert (facts.loader, facts.next_kernel) == (BootLoader.GRUB_BLS, "5.14.0-362.8.1.el9_3.x86_64")


def test_systemd_boot(tmp_path: Path) -> None:
    for release in (OLD, NEW):
        add_kernel(tmp_path, release)
        write(tmp_path, f"/boot/loader/entries/0123-{release}.conf", "")
    efi_variable(tmp_path, "LoaderInfo", "systemd-boot 255.4")
    assert boot(tmp_path).loader is BootLoader.SYSTEMD_BOOT
    assert boot(tmp_path).next_kernel == NEW
    write(tmp_path, "/boot/loader/loader.conf", f"timeout 3\ndefault 0123-{OLD}*\n")
    assert boot(tmp_path).next_kernel == OLD
    efi_variable(tmp_path, "LoaderEntryDefault", f"0123-{NEW}.conf")
    assert boot(tmp_path).next_kernel == NEW


def test_a_unified_kernel_image(tmp_path: Path) -> None:
    add_kernel(tmp_path, NEW, "/lib/modules/{}/vmlinuz")
    efi_variable(tmp_path, "LoaderInfo", "systemd-boot 255.4")
    efi_variable(tmp_path, "StubInfo", "systemd-stub 255.4")
    facts = boot(tmp_path)
    assert (facts.loader, facts.next_kernel) == (BootLoader.UKI, NEW)


def test_an_ostree_system_with_a_staged_update(tmp_path: Path) -> None:
    add_kernel(tmp_path, NEW, "/lib/modules/{}/vmlinuz")
    write(tmp_path, "/run/ostree-booted", "")
    facts = boot(tmp_path)
    assert (facts.loader, facts.next_kernel) == (BootLoader.OSTREE, NEW)
    write(tmp_path, "/run/ostree/staged-deployment", "")
    assert isinstance(boot(tmp_path).next_kernel, Unknown)


def test_openshift_and_talos_are_known_by_their_system(tmp_path: Path) -> None:
    write(tmp_path, "/run/ostree-booted", "")
    coreos = Distribution("rhcos", "4.16", "", Family.COREOS)
    assert boot(tmp_path, coreos).loader is BootLoader.OSTREE
    write(tmp_path, "/etc/machine-config-daemon/currentconfig", "{}")
    assert boot(tmp_path, coreos).loader is BootLoader.MACHINE_CONFIG
    assert boot(tmp_path, Distribution("talos", "1.13", "", Family.TALOS)).loader is BootLoader.TALOS


def test_a_container_has_no_boot_loader(tmp_path: Path) -> None:
    facts = boot(tmp_path)
    assert reason(facts.loader) is Reason.NOT_THERE
    assert reason(facts.next_kernel) is Reason.NOT_THERE
    assert reason(facts.kernels) is Reason.NOT_THERE


# The next kernel


@pytest.mark.parametrize(
    ("settings", "environment", "expected"),
    [
        ("GRUB_DEFAULT=saved\n", "saved_entry=gnulinux-6.8.0-52-generic-advanced-1b2c\n", OLD),
        ("GRUB_DEFAULT=saved\n", "saved_entry=\n", NEW),
        ("GRUB_DEFAULT=saved\n", "", NEW),
        ('GRUB_DEFAULT="Advanced options for Ubuntu>Ubuntu, with Linux 6.8.0-52-generic"\n', "", OLD),
        ("GRUB_DEFAULT=0\n", "next_entry=gnulinux-6.8.0-52-generic-advanced\n", OLD),
        ("GRUB_DEFAULT=0\nGRUB_TOP_LEVEL=/boot/vmlinuz-6.8.0-52-generic\n", "", OLD),
        ("# GRUB_DEFAULT=saved\n", "saved_entry=gnulinux-6.8.0-52-generic\n", NEW),
    ],
)
def test_the_kernel_that_grub_starts(tmp_path: Path, settings: str, environment: str, expected: str) -> None:
    ubuntu(tmp_path, settings)
    write(tmp_path, "/boot/grub/grubenv", f"# GRUB Environment Block\n{environment}####")
    assert boot(tmp_path).next_kernel == expected


def test_a_file_of_grub_d_counts_more(tmp_path: Path) -> None:
    ubuntu(tmp_path)
    write(tmp_path, "/etc/default/grub.d/50-kernel.cfg", f"GRUB_DEFAULT='Ubuntu, with Linux {OLD}'\n")
    assert boot(tmp_path).next_kernel == OLD


def test_the_first_entry_of_grub_cfg_starts_unless_a_kernel_has_no_entry_yet(tmp_path: Path) -> None:
    ubuntu(tmp_path)
    first = f"menuentry 'Ubuntu' {{\n\tlinux\t/boot/vmlinuz-{OLD} ro quiet\n}}\n"
    write(tmp_path, "/boot/grub/grub.cfg", first)
    assert boot(tmp_path).next_kernel == NEW
    below = f"submenu 'Advanced' {{\n\tmenuentry 'x' {{\n\t\tlinux /boot/vmlinuz-{NEW} ro\n\t}}\n}}\n"
    write(tmp_path, "/boot/grub/grub.cfg", f"{first}{below}")
    assert boot(tmp_path).next_kernel == OLD
    write(tmp_path, "/boot/grub/grub.cfg", f"menuentry 'memtest' {{\n}}\n{first}{below}")
    assert boot(tmp_path).next_kernel == NEW


@pytest.mark.parametrize("entry", ["1>2", "3", "Windows Boot Manager", "gnulinux-6.5.0-1-generic"])
def test_an_entry_without_a_known_kernel_is_unknown(entry: str) -> None:
    assert isinstance(entry_kernel(entry, (NEW, OLD), "grubenv"), Unknown)


def test_the_longest_release_counts() -> None:
    assert entry_kernel("linux-6.8.0-45", ("6.8.0-45", "6.8.0-4"), "") == "6.8.0-45"


def test_ubuntus_order_of_flavours() -> None:
    releases = ("6.8.0-60-generic", "6.8.0-52-nvidia")
    order = in_menu_order(releases, {"GRUB_FLAVOUR_ORDER": "nvidia generic"})
    assert order == ("6.8.0-52-nvidia", "6.8.0-60-generic")


@pytest.mark.skipif("os.geteuid() == 0")
def test_a_grubenv_for_root_only_leaves_the_kernel_unknown(tmp_path: Path) -> None:
    ubuntu(tmp_path, "GRUB_DEFAULT=saved\n")
    write(tmp_path, "/boot/grub/grubenv", "saved_entry=0\n")
    (tmp_path / "boot/grub/grubenv").chmod(0)
    assert reason(boot(tmp_path).next_kernel) is Reason.NEEDS_ROOT


# Kernels, initramfs, keys


def test_a_kernel_with_initramfs_and_headers(tmp_path: Path) -> None:
    ubuntu(tmp_path)
    write(tmp_path, f"/boot/initrd.img-{NEW}", "")
    write(tmp_path, f"/usr/src/linux-headers-{NEW}/Makefile", "")
    link(tmp_path, f"/lib/modules/{NEW}/build", f"/usr/src/linux-headers-{NEW}")
    link(tmp_path, f"/lib/modules/{OLD}/build", f"/usr/src/linux-headers-{OLD}")
    facts = boot(tmp_path)
    assert not isinstance(facts.kernels, Unknown)
    new, old = facts.kernels
    assert (new.image, new.initramfs, new.has_headers) == (
        f"/boot/vmlinuz-{NEW}",
        f"/boot/initrd.img-{NEW}",
        True,
    )
    assert (reason(old.initramfs), old.has_headers) == (Reason.NOT_THERE, False)


def test_modules_of_a_removed_kernel_are_no_kernel(tmp_path: Path) -> None:
    ubuntu(tmp_path)
    write(tmp_path, "/lib/modules/6.8.0-99-generic/updates/dkms/nvidia.ko", "")
    write(tmp_path, "/lib/modules/backup/x", "")
    facts = boot(tmp_path)
    assert not isinstance(facts.kernels, Unknown)
    assert [kernel.release for kernel in facts.kernels] == [NEW, OLD]


@pytest.mark.parametrize(
    ("path", "tool"),
    [
        ("/usr/sbin/update-initramfs", InitramfsTool.UPDATE_INITRAMFS),
        ("/usr/bin/dracut", InitramfsTool.DRACUT),
        ("/usr/bin/mkinitcpio", InitramfsTool.MKINITCPIO),
    ],
)
def test_the_tool_for_the_initramfs(tmp_path: Path, path: str, tool: InitramfsTool) -> None:
    write(tmp_path, path, "")
    assert boot(tmp_path).initramfs is tool


@pytest.mark.parametrize("hook", ["", "/etc/kernel/postinst.d", "/usr/share/kernel/postinst.d"])
def test_where_both_tools_are_installed_the_hook_for_new_kernels_says_which_is_used(
    tmp_path: Path, hook: str
) -> None:
    """Ubuntu 26.04 has both, and builds its images with dracut."""
    write(tmp_path, "/usr/sbin/update-initramfs", "")
    write(tmp_path, "/usr/bin/dracut", "")
    if hook:
        write(tmp_path, f"{hook}/initramfs-tools", "")
    wanted = InitramfsTool.UPDATE_INITRAMFS if hook else InitramfsTool.DRACUT
    assert boot(tmp_path).initramfs is wanted


def test_keys_that_modules_are_signed_with(tmp_path: Path) -> None:
    assert boot(tmp_path).mok_keys == ()
    write(tmp_path, "/var/lib/dkms/mok.pub", "")
    write(tmp_path, "/usr/share/nvidia/nvidia-modsign-crt-1A2B3C4D.der", "")
    write(tmp_path, "/etc/dkms/framework.conf", 'mok_certificate="/root/keys/site.der"\n')
    write(tmp_path, "/root/keys/site.der", "")
    assert boot(tmp_path).mok_keys == (
        "/root/keys/site.der",
        "/var/lib/dkms/mok.pub",
        "/usr/share/nvidia/nvidia-modsign-crt-1A2B3C4D.der",
    )


def test_releases_sort_by_number() -> None:
    releases = ["6.8.0-9-generic", "6.8.0-1028-nvidia", "5.15.0-99", "6.8.0-60-generic"]
    assert sorted(releases, key=version_key)[-1] == "6.8.0-1028-nvidia"


# Any bytes


@given(st.text(), st.binary())
def test_any_text_and_bytes(text: str, content: bytes) -> None:
    parse_grub_settings(text)
    assert parse_grubenv(content).keys() <= {"saved_entry", "next_entry"}
    assert isinstance(parse_efi_text(content), str)
    assert " " not in parse_default(text)
    assert all(path.startswith("/") for path in parse_certificates(text))


@given(st.lists(st.text()))
def test_any_names_can_be_sorted(names: list[str]) -> None:
    assert len(sorted(names, key=version_key)) == len(names)
