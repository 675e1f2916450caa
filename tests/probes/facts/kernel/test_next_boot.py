"""The command line and the age of the boot image: files of GRUB and boot loader entries, and any bytes."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.facts.kernel.boot import (
    NextLine,
    parse_entry,
    parse_grub,
    parse_grub_options,
    parse_times,
    read_grub_options,
    read_next_line,
    read_times,
    words_that_matter,
)
from probes.host.machine.local import LocalHost
from tests.support.trees import write

RELEASE = "6.8.0-45-generic"
GRUB = f"""\
set default="0"
menuentry 'Advanced' {{
        linux   /boot/vmlinuz-6.8.0-4-generic root=/dev/sda1 ro iommu=off
        linux   /boot/vmlinuz-{RELEASE} root=/dev/sda1 ro iommu=pt  quiet
        initrd  /boot/initrd.img-{RELEASE}
        linux   /boot/vmlinuz-{RELEASE} root=/dev/sda1 ro recovery
}}
"""
ENTRY = f"""\
title Red Hat Enterprise Linux
version {RELEASE}
linux /vmlinuz-{RELEASE}
options root=/dev/mapper/rhel-root ro intel_iommu=on
options $tuned_params
"""


def test_grub_cfg_has_the_line_of_each_kernel() -> None:
    assert parse_grub(GRUB, RELEASE) == "root=/dev/sda1 ro iommu=pt quiet"
    assert parse_grub(GRUB, "6.8.0-4-generic") == "root=/dev/sda1 ro iommu=off"
    assert parse_grub(GRUB, "6.8.0-5-generic") is None


def test_an_entry_has_the_options_of_its_kernel() -> None:
    assert parse_entry(ENTRY, RELEASE) == "root=/dev/mapper/rhel-root ro intel_iommu=on $tuned_params"
    assert parse_entry(ENTRY, "6.8.0-4-generic") is None


def test_grub_settings_are_joined_in_the_order_of_grub_cfg(tmp_path: Path) -> None:
    absent = read_grub_options(LocalHost(str(tmp_path)))
    assert isinstance(absent, Unknown)
    assert absent.reason is Reason.NOT_THERE
    write(tmp_path, "/etc/default/grub", 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX=iommu=pt\n')
    write(
        tmp_path,
        "/etc/default/grub.d/a.cfg",
        'GRUB_CMDLINE_LINUX="${GRUB_CMDLINE_LINUX} pci=disable_acs_redir=\\"a;b\\""\n'
        'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT splash"\n',
    )
    assert read_grub_options(LocalHost(str(tmp_path))) == (
        'iommu=pt pci=disable_acs_redir="a;b" quiet splash'
    )
    write(tmp_path, "/etc/default/grub.d/b.cfg", 'GRUB_CMDLINE_LINUX="$(cat /etc/kernel/cmdline)"\n')
    computed = read_grub_options(LocalHost(str(tmp_path)))
    assert isinstance(computed, Unknown)
    assert computed.reason is Reason.MALFORMED


def test_options_in_single_quotes_are_read_to_their_end() -> None:
    text = "GRUB_CMDLINE_LINUX='iommu=pt pci=realloc' # x\nGRUB_CMDLINE_LINUX_DEFAULT=quiet\n"
    assert dict(parse_grub_options(text, {})) == {
        "GRUB_CMDLINE_LINUX": "iommu=pt pci=realloc",
        "GRUB_CMDLINE_LINUX_DEFAULT": "quiet",
    }


@given(st.text())
def test_any_grub_settings_are_read(text: str) -> None:
    for _, value in parse_grub_options(f"GRUB_CMDLINE_LINUX={text}\n{text}", {}):
        assert len(value) <= 8192


def test_entries_come_before_grub_cfg(tmp_path: Path) -> None:
    host = LocalHost(str(tmp_path))
    absent = read_next_line(host, RELEASE)
    assert isinstance(absent, Unknown)
    assert absent.reason is Reason.NOT_THERE
    write(tmp_path, "/boot/grub/grub.cfg", GRUB)
    line = read_next_line(LocalHost(str(tmp_path)), RELEASE)
    assert line == NextLine("/boot/grub/grub.cfg", "root=/dev/sda1 ro iommu=pt quiet", False)
    write(tmp_path, "/boot/loader/entries/a.conf", ENTRY)
    entry = read_next_line(LocalHost(str(tmp_path)), RELEASE)
    assert isinstance(entry, NextLine)
    assert (entry.source, entry.has_variables) == ("/boot/loader/entries/a.conf", True)


def test_only_words_about_the_path_are_compared() -> None:
    line = 'BOOT_IMAGE=/x root="a b" iommu=pt pci=realloc quiet modprobe.blacklist=nouveau nvidia.NVreg_X=1'
    assert words_that_matter(line) == (
        "iommu=pt",
        "modprobe.blacklist=nouveau",
        "nvidia.NVreg_X=1",
        "pci=realloc",
    )


def test_stat_prints_a_time_and_a_path_per_line() -> None:
    assert parse_times("1700000000 /boot/a\n?\n12 /etc/modprobe.d/a b.conf\n") == {
        "/boot/a": 1700000000,
        "/etc/modprobe.d/a b.conf": 12,
    }


def test_stat_asks_only_for_paths(tmp_path: Path) -> None:
    assert read_times(LocalHost(str(tmp_path)), ["", "--help"]) == {}
    real = tmp_path / "file"
    real.write_text("")
    found = read_times(LocalHost(), [str(real), str(tmp_path / "missing")])
    assert found == {str(real): int(real.stat().st_mtime)}


@settings(max_examples=30)
@given(st.text(), st.text())
def test_any_text_is_read(text: str, release: str) -> None:
    for line in (parse_grub(text, release), parse_entry(text, release)):
        assert line is None or line.isprintable()
    assert all(path.startswith("/") for path in parse_times(text))
    words_that_matter(text)
