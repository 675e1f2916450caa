"""Of what chooses the next kernel, a redacted recording keeps the kernel and no other word of a site."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.facts.kernel.boot import parse_grub
from probes.facts.kernel.boot_loader import parse_efi_text
from probes.recording.redaction.answers import cluster_objects
from probes.recording.redaction.config_files import boot_variable, grub_menu, grub_settings
from probes.recording.redaction.tokens import Tokens


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("GRUB_DEFAULT=0", "GRUB_DEFAULT=0\n"),
        ("GRUB_DEFAULT=saved", "GRUB_DEFAULT=saved\n"),
        (
            'GRUB_DEFAULT="gnulinux-advanced-3b2c>gnulinux-6.8.0-45-generic-advanced-3b2c"',
            "GRUB_DEFAULT=6.8.0-45-generic\n",
        ),
        ("saved_entry=0123abcd-5.14.0-427.13.1.el9_4.x86_64", "saved_entry=5.14.0-427.13.1.el9_4.x86_64\n"),
        ("GRUB_CMDLINE_LINUX=root=nfs:storage-9.acme", ""),
        ("GRUB_ENABLE_BLSCFG=true", "GRUB_ENABLE_BLSCFG=true\n"),
    ],
)
def test_lines_of_grub(line: str, kept: str) -> None:
    assert grub_settings(Tokens(), line) == kept


def test_a_title_without_a_kernel_is_replaced() -> None:
    assert "quokka" not in grub_settings(Tokens(), "GRUB_DEFAULT='Quokka Linux'")


def test_the_menu_keeps_its_kernels_and_their_parameters_and_no_title() -> None:
    menu = """\
menuentry 'Quokka Linux' --class gnu-linux {
\tlinux\t/boot/vmlinuz-6.1.0-40-amd64 root=UUID=3b2c ro iommu=pt
}
submenu 'Advanced options for Quokka Linux' {
"""
    kept = grub_menu(Tokens(), menu)
    assert [line.split()[0] for line in kept.splitlines()] == ["menuentry", "linux", "submenu"]
    assert "quokka" not in kept.lower()
    assert "3b2c" not in kept
    line = parse_grub(kept, "6.1.0-40-amd64")
    assert line is not None
    assert "iommu=pt" in line.split()


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("systemd-boot 255.4-1ubuntu8", "systemd-boot 255.4"),
        ("3b2c1d0eaaaabbbb-6.8.0-60-generic.conf", "6.8.0-60-generic"),
    ],
)
def test_variables_of_the_boot_loader(text: str, kept: str) -> None:
    content = b"\x07\0\0\0" + f"{text}\0".encode("utf-16-le")
    assert parse_efi_text(boot_variable(Tokens(), content)) == kept


def test_a_log_keeps_only_what_is_known() -> None:
    text = "proxy http://alice:hunter2@proxy\nfailed to load nvidia-peermem module on quokka\n"
    assert cluster_objects(Tokens(), text) == "failed to load nvidia-peermem module\n"


@given(st.text(), st.binary())
def test_any_text_and_bytes(text: str, content: bytes) -> None:
    grub_settings(Tokens(), text)
    grub_menu(Tokens(), text)
    boot_variable(Tokens(), content)
    cluster_objects(Tokens(), text)
