"""Commands that upgrade packages, in a form that changes nothing."""

from __future__ import annotations

import pytest

from probes.setup.upgrade.upgrade import NoUpgradeCommand, simulated


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("apt-get dist-upgrade", "apt-get --simulate"),
        ("sudo apt full-upgrade -y", "dist-upgrade"),
        ("apt upgrade", "--with-new-pkgs upgrade"),
        ("apt-get install nvidia-open=580.95.05-0ubuntu1", "install nvidia-open=580.95.05-0ubuntu1"),
        (
            "dnf -y upgrade --enablerepo=cuda-rhel9",
            "dnf --cacheonly --assumeno --enablerepo=cuda-rhel9 upgrade",
        ),
        ("yum update kernel", "yum --cacheonly --assumeno update kernel"),
        ("zypper dup", "zypper --xmlout --non-interactive --no-refresh dup --dry-run"),
        ("zypper -n in kernel-default", "in --dry-run kernel-default"),
    ],
)
def test_only_the_simulation_is_run(command: str, words: str) -> None:
    assert words in " ".join(simulated(command))
    assert not {"-y", "--assumeyes"}.intersection(simulated(command))


@pytest.mark.parametrize(
    "command",
    [
        "dnf upgrade --destdir=/tmp",
        "",
        "'",
        "rm -rf /",
        "apt-get",
        "apt-get update",
        "apt-get -o DPkg::Pre-Invoke::=/bin/sh dist-upgrade",
        "apt-get dist-upgrade && reboot",
        "apt-get dist-upgrade; reboot",
        "dnf install https://example.org/x.rpm",
        "dnf config-manager --add-repo x",
        "zypper --root /mnt dup",
        "/usr/bin/apt-get dist-upgrade",
        "apt-get install " + "x " * 100,
    ],
)
def test_every_other_command_is_refused(command: str) -> None:
    with pytest.raises(NoUpgradeCommand):
        simulated(command)
