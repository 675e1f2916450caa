"""The distribution and the family that it belongs to."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.facts.system.packages import Distribution, Family, parse_distribution, probe
from probes.host.machine.local import LocalHost
from tests.support.trees import write

# os-release of the distributions' own images.
UBUNTU = 'PRETTY_NAME="Ubuntu 24.04.1 LTS"\nNAME="Ubuntu"\nVERSION_ID="24.04"\nID=ubuntu\nID_LIKE=debian\n'
RHCOS = 'NAME="Red Hat Enterprise Linux CoreOS"\nID="rhcos"\nID_LIKE="rhel fedora"\nVERSION_ID="4.16"\n'
RHCOS_419 = 'NAME="Red Hat Enterprise Linux"\nID="rhel"\nVERSION_ID="9.6"\nVARIANT_ID=coreos\n'


def test_the_fields_of_ubuntu(tmp_path: Path) -> None:
    write(tmp_path, "/etc/os-release", UBUNTU)
    found = probe(LocalHost(str(tmp_path)))
    assert found == Distribution("ubuntu", "24.04", "Ubuntu 24.04.1 LTS", Family.DEBIAN)


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("ID=debian\n", Family.DEBIAN),
        ("ID=linuxmint\nID_LIKE='ubuntu debian'\n", Family.DEBIAN),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', Family.RED_HAT),
        ('ID="ol"\nID_LIKE="fedora"\n', Family.RED_HAT),
        ('ID="amzn"\nID_LIKE="fedora"\n', Family.RED_HAT),
        ('ID="opensuse-leap"\nID_LIKE="suse opensuse"\n', Family.SUSE),
        ('ID="sles"\n', Family.SUSE),
        (RHCOS, Family.COREOS),
        (RHCOS_419, Family.COREOS),
        ("ID=fedora\nVARIANT_ID=coreos\n", Family.COREOS),
        ("ID=talos\n", Family.TALOS),
        ("ID=cos\n", Family.CONTAINER_OS),
        ("ID=flatcar\nID_LIKE=coreos\n", Family.CONTAINER_OS),
        ('ID=azurelinux\nVERSION_ID="3.0"\n', Family.AZURE_LINUX),
        ("ID=arch\n", Family.OTHER),
        ("", Family.OTHER),
    ],
)
def test_families(text: str, family: Family) -> None:
    assert parse_distribution(text).family is family


def test_a_missing_file_is_unknown_and_not_another_system(tmp_path: Path) -> None:
    found = probe(LocalHost(str(tmp_path)))
    assert isinstance(found, Unknown)
    assert found.reason is Reason.NOT_THERE


@given(st.text())
def test_any_text_is_some_system(text: str) -> None:
    found = parse_distribution(text)
    assert all(part.isprintable() and len(part) <= 128 for part in (found.id, found.version, found.name))
