"""Temperatures and light of optical modules as text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.unknown import Reason, Unknown, known
from probes.checks.registry import findings
from probes.queries.ports import ports_of
from tests.support.doctor import examination_of
from widgets.base.lines import plain, width_of
from widgets.node.optics import port_lines, sensor_lines


def sensors(name: str, device: str, width: int = 60) -> list[str]:
    examination = examination_of(name)
    ports = ports_of(examination)
    assert not isinstance(ports, Unknown)
    bdf = next(port.device.bdf for port in ports if port.device.name == device)
    return [plain(row) for row in sensor_lines(examination.temperatures, bdf, width)]


def test_the_part_of_a_nic_has_module_and_nic() -> None:
    rows = sensors("hgx-h100+optic-hot", "mlx5_3")
    assert rows[0] == "Optics and temperatures"
    assert rows[1].split() == ["Module0", "78", "°C", "highest", "78", "limit", "75"]
    assert rows[2].startswith(" asic")


def test_a_copper_cable_is_named() -> None:
    assert any("no module with a sensor" in row for row in sensors("dgx-spark", "rocep1s0f0"))


def test_a_virtual_function_has_no_such_part() -> None:
    assert sensors("azure-nd-h100", "mlx5_0") == []


def test_an_old_driver_says_what_has_temperatures() -> None:
    assert "Linux 6.6" in " ".join(sensors("pcie-l40s", "mlx5_0"))


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_table_fits(width: int) -> None:
    examination = examination_of("hgx-h100+optic-hot")
    rows = port_lines(examination, findings(examination), width)
    assert all(width_of(row) <= width for row in rows)
    text = "\n".join(plain(row) for row in rows)
    assert "mlx5_3" in text
    assert "An optical module is hot" in text
    assert "Light, bias" in text


def test_unknown_ports_are_not_none() -> None:
    examination = examination_of("hgx-h100")
    hidden = Unknown(Reason.TIMED_OUT, "/sys/class/infiniband")
    node = replace(examination, node=replace(examination.node, rdma=hidden))
    assert "unknown" in plain(port_lines(node, (), 80)[0])
    assert known(examination.temperatures, {})
