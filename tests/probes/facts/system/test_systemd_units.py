"""systemd units, read from their files."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.facts.system.services import (
    UnitSetting,
    manager_setting,
    modprobe_lines,
    parse_unit,
    read_units,
    unit_setting,
    wanted_units,
)
from probes.host.machine.local import LocalHost
from tests.support.trees import link, write

UNIT = "nvidia-fabricmanager.service"
VENDOR = f"/usr/lib/systemd/system/{UNIT}"
SERVICE = "[Unit]\nDescription=FM\n[Service]\nLimitMEMLOCK=64M\n# LimitMEMLOCK=1\n"


def test_an_installed_unit_that_is_enabled(tmp_path: Path) -> None:
    write(tmp_path, VENDOR, SERVICE)
    link(tmp_path, f"/etc/systemd/system/multi-user.target.wants/{UNIT}", VENDOR)
    unit = read_units(LocalHost(str(tmp_path)), (UNIT,))[0]
    assert (unit.path, unit.masked, unit.enabled) == (VENDOR, False, True)


def test_an_installed_unit_that_is_not_enabled(tmp_path: Path) -> None:
    write(tmp_path, VENDOR, SERVICE)
    assert read_units(LocalHost(str(tmp_path)), (UNIT,))[0].enabled is False


def test_a_masked_unit_is_not_enabled(tmp_path: Path) -> None:
    write(tmp_path, VENDOR, SERVICE)
    link(tmp_path, f"/etc/systemd/system/{UNIT}", "/dev/null")
    unit = read_units(LocalHost(str(tmp_path)), (UNIT,))[0]
    assert unit.masked
    assert unit.enabled is False


def test_a_unit_that_is_not_installed(tmp_path: Path) -> None:
    unit = read_units(LocalHost(str(tmp_path)), (UNIT,))[0]
    assert isinstance(unit.path, Unknown)
    assert isinstance(unit.enabled, Unknown)
    assert unit.path.reason is Reason.NOT_THERE
    assert isinstance(wanted_units(LocalHost(str(tmp_path))).wants(UNIT), Unknown)


def test_a_drop_in_overrides_the_unit(tmp_path: Path) -> None:
    write(tmp_path, VENDOR, SERVICE)
    drop_in = f"/etc/systemd/system/{UNIT}.d/20-memlock.conf"
    write(tmp_path, drop_in, "[Service]\nLimitMEMLOCK=infinity\n")
    write(tmp_path, f"/usr/lib/systemd/system/{UNIT}.d/10.conf", "[Service]\nLimitMEMLOCK=1M\n")
    host = LocalHost(str(tmp_path))
    assert unit_setting(host, UNIT, "Service", "LimitMEMLOCK") == UnitSetting("infinity", drop_in)


def test_a_drop_in_of_the_same_name_hides_the_vendors(tmp_path: Path) -> None:
    write(tmp_path, VENDOR, SERVICE)
    write(tmp_path, f"/usr/lib/systemd/system/{UNIT}.d/10.conf", "[Service]\nLimitMEMLOCK=1M\n")
    write(tmp_path, f"/etc/systemd/system/{UNIT}.d/10.conf", "[Service]\nNice=1\n")
    host = LocalHost(str(tmp_path))
    assert unit_setting(host, UNIT, "Service", "LimitMEMLOCK") == UnitSetting("64M", VENDOR)


def test_an_empty_value_takes_the_setting_back(tmp_path: Path) -> None:
    write(tmp_path, VENDOR, SERVICE + "LimitMEMLOCK=\n")
    answer = unit_setting(LocalHost(str(tmp_path)), UNIT, "Service", "LimitMEMLOCK")
    assert isinstance(answer, Unknown)
    assert answer.reason is Reason.NOT_THERE


def test_the_managers_default(tmp_path: Path) -> None:
    write(tmp_path, "/etc/systemd/system.conf", "[Manager]\n#DefaultLimitMEMLOCK=8M\n")
    host = LocalHost(str(tmp_path))
    assert isinstance(manager_setting(host, "DefaultLimitMEMLOCK"), Unknown)
    write(tmp_path, "/etc/systemd/system.conf.d/rdma.conf", "[Manager]\nDefaultLimitMEMLOCK=infinity\n")
    found = manager_setting(LocalHost(str(tmp_path)), "DefaultLimitMEMLOCK")
    assert found == UnitSetting("infinity", "/etc/systemd/system.conf.d/rdma.conf")


def test_a_value_in_another_section_does_not_count() -> None:
    assert parse_unit(
        "[Unit]\nLimitMEMLOCK=1\n[Service]\n LimitMEMLOCK = 2 \n", "Service", "LimitMEMLOCK"
    ) == ("2",)


@given(st.text())
def test_no_text_stops_the_parser(text: str) -> None:
    parse_unit(text, "Service", "LimitMEMLOCK")


# Services that load modules


PEERMEM_UNIT = "/etc/systemd/system/load-peermem.service"


def enable(root: Path, name: str) -> None:
    link(root, f"/etc/systemd/system/multi-user.target.wants/{name}", f"/etc/systemd/system/{name}")


def test_an_enabled_unit_that_runs_modprobe_loads_its_modules(tmp_path: Path) -> None:
    text = "[Service]\nType=oneshot\nExecStart=-/sbin/modprobe -a -q nvidia-peermem gdrdrv\n"
    write(tmp_path, PEERMEM_UNIT, text)
    assert modprobe_lines(LocalHost(str(tmp_path))) == ({}, ())  # nothing starts it
    enable(tmp_path, "load-peermem.service")
    found, unread = modprobe_lines(LocalHost(str(tmp_path)))
    assert set(found) == {"nvidia_peermem", "gdrdrv"}
    assert found["nvidia_peermem"].startswith(f"{PEERMEM_UNIT}: ExecStart=")
    assert unread == ()


def test_a_drop_in_of_openibd_loads_peermem(tmp_path: Path) -> None:
    """As in the images of Azure."""
    write(
        tmp_path,
        "/usr/lib/systemd/system/openibd.service",
        "[Service]\nExecStart=/etc/init.d/openibd start\n",
    )
    drop_in = "/etc/systemd/system/openibd.service.d/10-nvidia-peermem.conf"
    command = "/bin/sh -c 'modinfo nvidia-peermem && modprobe nvidia-peermem; true'"
    write(tmp_path, drop_in, f"[Service]\nExecStartPost=-{command}\n")
    enable(tmp_path, "openibd.service")
    found, _ = modprobe_lines(LocalHost(str(tmp_path)))
    assert set(found) == {"nvidia_peermem"}
    assert found["nvidia_peermem"].startswith(drop_in)


def test_a_unit_that_unloads_a_module_loads_none(tmp_path: Path) -> None:
    write(tmp_path, PEERMEM_UNIT, "[Service]\nExecStart=/sbin/modprobe -r nvidia-peermem\n")
    enable(tmp_path, "load-peermem.service")
    assert modprobe_lines(LocalHost(str(tmp_path)))[0] == {}


def test_a_unit_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / PEERMEM_UNIT.lstrip("/")).parent.mkdir(parents=True)
    write(tmp_path, PEERMEM_UNIT, "x" * (1 << 17))  # longer than a unit may be
    enable(tmp_path, "load-peermem.service")
    assert modprobe_lines(LocalHost(str(tmp_path)))[1] == (PEERMEM_UNIT,)
