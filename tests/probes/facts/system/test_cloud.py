"""The cloud that DMI names."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.facts.system.platform import Cloud, Provider, cloud_of, probe_cloud
from probes.host.machine.local import LocalHost
from tests.support.trees import write

DMI = "/sys/class/dmi/id"
AZURE = "7783-7084-3265-9085-8269-3286-77"


@pytest.mark.parametrize(
    ("vendor", "product", "tag", "expected"),
    [
        ("Microsoft Corporation", "Virtual Machine", AZURE, Cloud(Provider.AZURE, "")),
        ("Amazon EC2", "p5.48xlarge", "Amazon EC2", Cloud(Provider.AWS, "p5.48xlarge")),
        ("Google", "Google Compute Engine", "", Cloud(Provider.GOOGLE, "")),
        ("Oracle Corporation", "ORACLE SERVER", "OracleCloud.com", Cloud(Provider.ORACLE, "")),
        ("Supermicro", "SYS-821GE-TNHR", "Default string", None),
    ],
)
def test_clouds(vendor: str, product: str, tag: str, expected: Cloud | None) -> None:
    assert cloud_of(vendor, product, tag) == expected


def test_hyper_v_on_own_servers_is_not_azure(tmp_path: Path) -> None:
    write(tmp_path, f"{DMI}/sys_vendor", "Microsoft Corporation\n")
    write(tmp_path, f"{DMI}/product_name", "Virtual Machine\n")
    write(tmp_path, f"{DMI}/chassis_asset_tag", "0000-0015-4212-8732-7575-6386-85\n")
    found = probe_cloud(LocalHost(str(tmp_path)))
    assert isinstance(found, Unknown)
    assert found.reason is Reason.NOT_THERE


def test_the_tag_alone_is_enough(tmp_path: Path) -> None:
    write(tmp_path, f"{DMI}/chassis_asset_tag", f"{AZURE}\n")
    assert probe_cloud(LocalHost(str(tmp_path))) == Cloud(Provider.AZURE, "")


def test_attributes_that_cannot_be_read_are_not_a_missing_cloud(tmp_path: Path) -> None:
    (tmp_path / "sys/class/dmi/id/sys_vendor").mkdir(parents=True)
    found = probe_cloud(LocalHost(str(tmp_path)))
    assert isinstance(found, Unknown)
    assert found.reason is not Reason.NOT_THERE


@given(st.text(), st.text(), st.text())
def test_any_text(vendor: str, product: str, tag: str) -> None:
    found = cloud_of(vendor, product, tag)
    assert found is None or found.machine.isprintable()
