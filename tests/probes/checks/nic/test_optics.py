"""Checks of temperatures, and of what optical modules report of themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from probes.base.evidence import Severity
from probes.base.grouping import grouped
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.checks.judgment import judge
from probes.facts.rdma.optics import Module, Sensor, parse_module
from probes.queries.finding import Finding, Status
from probes.queries.ports import ports_of
from probes.snapshot.examination import Examination
from tests.support.changed_facts import said, status, with_log
from tests.support.doctor import examination_of, findings_on

HGX = examination_of("hgx-h100")
MODULE = {
    "Width": "4x",
    "Temperature [C]": "54 [-5..75]",
    "Rx Power Current [dBm]": "1.9,1.9,1.9,1.9 [-10..6]",
}
OF_READINGS = ("optic-power", "optic-fault")


def bdf_of(name: str, examination: Examination = HGX) -> str:
    ports = ports_of(examination)
    assert not isinstance(ports, Unknown)
    return next(known(port.device.bdf, "") for port in ports if port.device.name == name)


def with_module(
    celsius: Mapping[str, float], limit: float | None = 75.0, examination: Examination = HGX
) -> Examination:
    """Change the temperatures of modules, by NIC, and the limit of all."""

    def changed(bdf: str, sensor: Sensor) -> Sensor:
        if not sensor.is_of_module:
            return sensor
        none = Unknown(Reason.NOT_THERE, "hwmon", "no limit")
        new = {bdf_of(name, examination): value for name, value in celsius.items()}.get(bdf, sensor.celsius)
        return replace(sensor, celsius=new, limit_celsius=none if limit is None else limit)

    temperatures = known(examination.temperatures, {})
    found = {bdf: tuple(changed(bdf, each) for each in known(all_, ())) for bdf, all_ in temperatures.items()}
    return replace(examination, temperatures=found)


def asked(examination: Examination = HGX, **values: Mapping[str, str]) -> Examination:
    """Return the examination with the answers of mlxlink; `values` differ, by NIC."""
    modules: dict[str, Maybe[Module]] = dict.fromkeys(
        known(examination.temperatures, {}), parse_module(MODULE)
    )
    modules |= {bdf_of(name): parse_module({**MODULE, **changed}) for name, changed in values.items()}
    return replace(examination, modules=modules)


@pytest.mark.parametrize(
    ("celsius", "limit", "severity"),
    [
        (78.0, 75.0, Severity.WARNING),
        (72.0, 75.0, Severity.NOTE),
        (71.0, None, Severity.NOTE),
        (76.0, None, Severity.WARNING),
        (81.0, None, Severity.CRITICAL),
    ],
)
def test_a_hot_module_is_found(celsius: float, limit: float | None, severity: Severity) -> None:
    found = said("optic-hot", with_module({"mlx5_3": celsius}, limit))
    assert (found.status, found.severity, found.devices) == (Status.FOUND, severity, ("mlx5_3",))
    assert f"mlx5_3: the module is at {celsius:g} °C" in found.cause


def test_the_modules_own_alarm_is_critical_by_two_readings() -> None:
    hot = {"Temperature [C]": "76 [-5..75]"}
    found = said("optic-hot", with_module({"mlx5_3": 76.0}, 70.0, asked(mlx5_3=hot)))
    assert found.severity is Severity.CRITICAL
    assert "its own alarm is at 75 °C" in found.cause
    alone = said("optic-hot", with_module({"mlx5_3": 76.0}, 70.0, asked()))
    assert alone.severity is Severity.WARNING


def test_a_module_hotter_than_others_of_its_kind_is_a_note() -> None:
    found = said("optic-hot", with_module({"mlx5_3": 66.0}))
    assert (found.severity, found.devices) == (Severity.NOTE, ("mlx5_3",))
    assert "the median is" in found.cause


def test_modules_of_other_boards_are_not_compared() -> None:
    """Storage NICs have modules of another kind, which are cooler."""
    assert status("optic-hot", with_module({"mlx5_0": 60.0})) is Status.PASSED


def test_where_all_modules_are_hot_the_airflow_of_the_node_is_named() -> None:
    names = [port.device.name for port in ports_of(HGX) if not isinstance(port, Unknown)]  # type: ignore[union-attr]
    found = said("optic-hot", with_module(dict.fromkeys(names, 77.0)))
    assert found.fix is not None
    assert any("all modules of this node are hot" in step.why for step in found.fix.steps)
    assert "more are hot" in found.cause


@pytest.mark.parametrize("name", ["dgx-spark", "cloud-vm", "slingshot", "aws-p5"])
def test_copper_cables_and_nics_without_sensors_pass(name: str) -> None:
    found = findings_on(name)
    assert {found[check].status for check in ("optic-hot", "nic-hot")} == {Status.PASSED}


def test_an_old_driver_makes_temperatures_unknown() -> None:
    found = findings_on("pcie-l40s")["optic-hot"]
    assert found.status is Status.UNKNOWN
    assert "Linux 6.6" in found.cause


def test_a_refused_sensor_is_unknown_and_hides_no_hot_module() -> None:
    refused = Unknown(Reason.IO_ERROR, "temp2_input", "Invalid argument")
    temperatures: dict[str, Maybe[tuple[Sensor, ...]]] = dict(known(HGX.temperatures, {}))
    temperatures[bdf_of("mlx5_0")] = refused
    assert status("optic-hot", replace(HGX, temperatures=temperatures)) is Status.UNKNOWN
    hot = examination_of("hgx-h100+optic-hot")
    also_hot = {**known(hot.temperatures, {}), bdf_of("mlx5_0"): refused}
    assert status("optic-hot", replace(hot, temperatures=also_hot)) is Status.FOUND


def test_two_functions_of_a_card_that_show_one_module_count_once() -> None:
    """A cage of two ports has one module."""
    dual = examination_of("oci-h100")
    temperatures = {
        bdf: tuple(replace(each, label="Module0") if each.is_of_module else each for each in known(found, ()))
        for bdf, found in known(dual.temperatures, {}).items()
    }
    dual = replace(dual, temperatures=temperatures)
    pairs = grouped((bdf.rpartition(".")[0], bdf) for bdf in temperatures)
    both = next(bdfs for bdfs in pairs.values() if len(bdfs) == 2)
    ports = ports_of(dual)
    assert not isinstance(ports, Unknown)
    names = [port.device.name for bdf in both for port in ports if known(port.device.bdf, "") == bdf]
    found = said("optic-hot", with_module(dict.fromkeys(names, 78.0), 75.0, dual))
    assert found.cause == f"{' and '.join(names)}: the module is at 78 °C; the firmware warns from 75 °C."
    assert set(found.devices) == set(names)


def test_a_nic_without_a_limit_is_not_judged() -> None:
    none = Unknown(Reason.NOT_THERE, "hwmon", "no limit")
    temperatures = {
        bdf: tuple(replace(sensor, limit_celsius=none) for sensor in known(sensors, ()))
        for bdf, sensors in known(HGX.temperatures, {}).items()
    }
    assert status("nic-hot", replace(HGX, temperatures=temperatures)) is Status.UNKNOWN


def test_a_nic_at_its_limit_is_found() -> None:
    found = findings_on("hgx-h100+nic-hot")["nic-hot"]
    assert found.cause == "mlx5_4: asic is at 106 °C; its firmware warns from 105 °C."


@pytest.mark.parametrize("name", OF_READINGS)
def test_modules_that_were_not_asked_are_unknown_and_say_how(name: str) -> None:
    found = findings_on("hgx-h100")[name]
    assert found.status is Status.UNKNOWN
    assert "sudo gdrtop topo --ports" in found.cause


def test_a_user_needs_root_for_the_readings_of_modules() -> None:
    denied: dict[str, Maybe[Module]] = dict.fromkeys(
        known(HGX.temperatures, {}), Unknown(Reason.NEEDS_ROOT, "mlxlink -d BDF -m --json")
    )
    assert said("optic-power", replace(HGX, modules=denied)).cause.startswith("needs root")


def test_light_is_not_judged_without_the_number_of_lanes() -> None:
    """Of a cable that is split, only some lanes are in use."""
    modules: dict[str, Maybe[Module]] = {
        bdf: replace(module, lanes_in_use=None) if isinstance(module, Module) else module
        for bdf, module in known(asked().modules, {}).items()
    }
    found = said("optic-power", replace(HGX, modules=modules))
    assert (found.status, "no width" in found.cause) == (Status.UNKNOWN, True)


def test_without_mlxlink_the_readings_of_modules_are_unknown() -> None:
    absent: dict[str, Maybe[Module]] = dict.fromkeys(
        known(HGX.temperatures, {}), Unknown(Reason.NOT_THERE, "mlxlink", "mlxlink is not installed")
    )
    found = said("optic-fault", replace(HGX, modules=absent))
    assert (found.status, "not installed" in found.cause) == (Status.UNKNOWN, True)


def test_a_dim_lane_is_found() -> None:
    dim = {"Rx Power Current [dBm]": "1.9,-1.2,1.9,1.9 [-10..6]"}
    found = said("optic-power", asked(mlx5_2=dim))
    assert (found.status, found.devices) == (Status.FOUND, ("mlx5_2",))
    assert "1.9, -1.2, 1.9, 1.9 dBm" in found.cause
    assert status("optic-power", asked()) is Status.PASSED


def test_a_module_in_fault_is_found() -> None:
    found = said("optic-fault", asked(mlx5_2={"Module State": "Fault state", "Rx LOS [per lane]": "0,1,0,0"}))
    assert "“Fault”, Rx LOS in lane 2" in found.cause
    assert status("optic-fault", asked()) is Status.PASSED


def test_the_light_of_a_port_that_is_down_is_not_judged() -> None:
    """An admin may have set it down; then the module sends nothing."""
    down = examination_of("hgx-h100+port-down")  # mlx5_1
    dim = {"Rx Power Current [dBm]": "-40,-40,1.9,-40 [-10..6]", "Rx LOS [per lane]": "1,1,0,1"}
    node = asked(down, mlx5_1=dim)
    assert {status(name, node) for name in OF_READINGS} == {Status.PASSED}


# A field report of 2026: active cables in nodes of the class of DGX Spark, 68 to 72 °C idle, with a warning
# from 70 and an alarm at 75 °C. Under load, the modules switched off. Passive cables cured it.
HEAT = "Port module event[error]: module 0, Cable error, High Temperature"


def test_a_story_of_hot_active_cables() -> None:
    idle = with_module({"mlx5_0": 68.0, "mlx5_1": 72.0}, 70.0)
    found = said("optic-hot", idle)
    assert found.severity is Severity.WARNING
    assert set(found.devices) >= {"mlx5_0", "mlx5_1"}

    off = examination_of("hgx-h100+optic-shutdown")
    on_node: dict[str, Finding] = {finding.id: finding for finding in judge(off).findings}
    heat, down = on_node["nic-power-or-heat"], on_node["ib-port-not-active"]
    assert HEAT in heat.evidence[0].value
    assert "The module shut down" in heat.cause
    assert (down.part_of, heat.part_of) == ("nic-power-or-heat", "")
    assert any("mlx5_3" in device for device in (*heat.devices, *down.devices))

    cured = examination_of("dgx-spark")
    assert {said(name, cured).status for name in ("optic-hot", "nic-power-or-heat")} == {Status.PASSED}


def test_an_old_alarm_of_a_port_that_was_unplugged_later_is_not_why_it_is_down() -> None:
    bdf = bdf_of("mlx5_1")
    down = examination_of("hgx-h100+port-down")
    hot = f"mlx5_core {bdf}: port_module:259:(pid 0): {HEAT}"
    unplugged = f"mlx5_core {bdf}: Port module event: module 0, Cable unplugged"
    for lines, root in (((hot,), "nic-power-or-heat"), ((hot, unplugged), "")):
        findings = {finding.id: finding for finding in judge(with_log(down, *lines)).findings}
        assert findings["ib-port-not-active"].part_of == root
