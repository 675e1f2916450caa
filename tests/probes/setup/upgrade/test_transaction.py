"""What apt-get, dnf and zypper say that an upgrade would change: real output, and any bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Unknown
from probes.host.protocol import CommandOutput
from probes.setup.upgrade.upgrade import ChangeKind, PackageChange, changes_of, parse

SAMPLES = Path(__file__).parent / "samples"
NEW, CHANGED, REMOVED = ChangeKind.NEW, ChangeKind.CHANGED, ChangeKind.REMOVED
OFED_OLD, OFED_NEW = "24.10-OFED.24.10.0.7.0.1.rhel9u5", "25.07-OFED.25.07.0.9.7.1.rhel9u6"
DRIVER_OLD, DRIVER_NEW = "3:570.124.06-1.el9", "3:580.95.05-1.el9"
DNF_4_TERMINAL = """\
Dependencies resolved.
================================================================================
 Package     Arch   Version                                          Repo  Size
================================================================================
Installing:
 \x1b[1m\x1b[32mkernel-devel\x1b(B\x1b[m
             x86_64 5.14.0-570.12.1.el9_6                            base 5.5 k
 \x1b[1m\x1b[32mnvidia-kernel-module-with-a-name-that-is-long\x1b(B\x1b[m
             noarch 3:580.95.05-1.el9.some.long.release.of.a.rebuild base 5.6 k

Transaction Summary
================================================================================
Install  2 Packages
"""
DNF_5 = """\
Package                   Arch    Version           Repository      Size
Upgrading:
 nvidia-driver-cuda-libs  x86_64  3:580.95.05-1     cuda       100.0 MiB
   replacing nvidia-driver-cuda-libs x86_64 3:570.124.06-1 @System 99.0 MiB
Installing dependencies:
 kernel-core              x86_64  6.12.0-100.el10   baseos      20.0 MiB

Transaction Summary:
 Installing:         1 package
 Upgrading:          1 package
 Replacing:          1 package
"""


def sample(name: str) -> dict[str, PackageChange]:
    return {change.name: change for change in parse((SAMPLES / name).read_text())}


def output(stdout: str, stderr: str = "") -> CommandOutput:
    return CommandOutput(("dnf", "upgrade"), 1, stdout, stderr)


def test_apt_names_each_package_with_its_versions() -> None:
    found = sample("apt-2.6-install.txt")
    assert found["linux-image-6.1.0-56-amd64"] == PackageChange(
        "linux-image-6.1.0-56-amd64", NEW, "", "6.1.192-2", "amd64"
    )
    assert found["linux-perf"] == PackageChange("linux-perf", CHANGED, "6.1.187-1", "6.1.192-2", "amd64")
    assert found["linux-base"].new == "4.12.1~deb12u1"  # from two archives
    assert sample("apt-2.6-remove.txt") == {"git": PackageChange("git", REMOVED, "1:2.39.5-0+deb12u3")}


def test_dnf_4_has_a_table_with_a_heading_for_each_kind() -> None:
    found = sample("dnf-4.14-distro-sync.txt")
    assert found == {
        "kernel-core": PackageChange("kernel-core", NEW, "", "5.14.0-570.12.1.el9_6", "x86_64"),
        "kernel-default": PackageChange("kernel-default", NEW, "", "6.4.0-150600.23.38.1", "x86_64"),
        "kmod-mlnx-ofa_kernel": PackageChange("kmod-mlnx-ofa_kernel", CHANGED, "", OFED_NEW, "x86_64"),
        "old-thing": PackageChange("old-thing", REMOVED, "1.0-1", "", "x86_64"),
        "kmod-nvidia-open-dkms": PackageChange("kmod-nvidia-open-dkms", CHANGED, "", DRIVER_NEW, "noarch"),
        "nvidia-driver-cuda-libs": PackageChange(
            "nvidia-driver-cuda-libs", CHANGED, "", DRIVER_NEW, "x86_64"
        ),
        "libibverbs": PackageChange("libibverbs", CHANGED, "", "51.0-1.el9", "x86_64"),
    }


@pytest.mark.parametrize("place", ["in a file", "on a terminal"])
def test_a_long_row_of_dnf_makes_the_table_wide_or_goes_on_in_the_next_line(place: str) -> None:
    text = (SAMPLES / "dnf-4.14-install.txt").read_text() if place == "in a file" else DNF_4_TERMINAL
    found = {change.name: change for change in parse(text)}
    name = "nvidia-kernel-module-with-a-name-that-is-long"
    assert found[name].new == "3:580.95.05-1.el9.some.long.release.of.a.rebuild"
    assert found["kernel-devel"].new == "5.14.0-570.12.1.el9_6"
    assert len(found) == 2


def test_dnf_5_shows_the_old_version_in_a_line_of_its_own() -> None:
    found = {change.name: change for change in parse(DNF_5)}
    libraries = found["nvidia-driver-cuda-libs"]
    assert (libraries.old, libraries.new) == ("3:570.124.06-1", "3:580.95.05-1")
    assert found["kernel-core"].kind is NEW
    assert len(found) == 2


def test_zypper_is_read_as_xml() -> None:
    found = sample("zypper-1.14-dup.xml")
    ofed = PackageChange("kmod-mlnx-ofa_kernel", CHANGED, OFED_OLD, OFED_NEW, "x86_64")
    assert found["kmod-mlnx-ofa_kernel"] == ofed
    assert found["kmod-nvidia-open-dkms"].old == DRIVER_OLD
    assert found["libibverbs"].kind is CHANGED
    assert found["old-thing"] == PackageChange("old-thing", REMOVED, "1.0-1", "", "x86_64")
    assert len(found) == 7


@pytest.mark.parametrize(
    "text",
    [
        "0 upgraded, 0 newly installed, 0 to remove and 0 not upgraded.\n",
        "Dependencies resolved.\nNothing to do.\nComplete!\n",
        "<stream>\n<message type='info'>Nothing to do.</message>\n</stream>\n",
    ],
)
def test_an_upgrade_that_changes_nothing_is_no_error(text: str) -> None:
    assert changes_of(output(text)) == ()


@pytest.mark.parametrize(
    ("stdout", "stderr", "words"),
    [
        ("Reading package lists...\n", "E: Unable to locate package nosuch\n", "Unable to locate package"),
        ("", "Error: Unable to find a match: nosuch\n", "Unable to find a match"),
        (
            "<stream>\n<message type='error'>No provider of &apos;nosuch&apos; found.</message>\n</stream>\n",
            "",
            "No provider of 'nosuch' found.",
        ),
    ],
)
def test_what_the_package_manager_refuses_is_unknown_with_its_words(
    stdout: str, stderr: str, words: str
) -> None:
    answer = changes_of(output(stdout, stderr))
    assert isinstance(answer, Unknown)
    assert words in answer.detail


names = st.from_regex(r"[a-z][a-z0-9+.-]{1,30}", fullmatch=True)
versions = st.from_regex(r"([0-9]:)?[0-9][0-9a-z.+~]{0,20}-[0-9]{1,3}", fullmatch=True)


@pytest.mark.slow
@given(st.dictionaries(names, st.tuples(versions, versions), min_size=1, max_size=8))
def test_what_apt_prints_is_read_back(packages: dict[str, tuple[str, str]]) -> None:
    text = "".join(
        f"Inst {name} [{old}] ({new} Debian:12.15/oldstable [amd64]) []\nConf {name} ({new} Debian [amd64])\n"
        for name, (old, new) in packages.items()
    )
    found = {change.name: (change.old, change.new) for change in parse(text)}
    assert found == packages


@given(st.text(), st.sampled_from(sorted(path.name for path in SAMPLES.iterdir())), st.integers(0, 2000))
def test_any_text_is_read_and_is_clean(text: str, name: str, place: int) -> None:
    whole = (SAMPLES / name).read_text()
    for change in parse(whole[:place] + text + whole[place:]):
        assert change.name.isprintable()
        assert change.architecture.isprintable()
        assert len(change.name) <= 128
        assert (change.old + change.new).isprintable()
        assert len(change.old + change.new) <= 256
