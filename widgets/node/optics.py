"""The temperatures of NICs and their optical modules, and what modules report of themselves."""

from __future__ import annotations

from collections.abc import Sequence

from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.rdma.optics import Module, Sensor, Temperatures
from probes.queries.finding import Finding
from probes.queries.ports import Port, ports_of
from probes.snapshot.examination import Examination
from widgets.base.columns import Column, cells_of, draw_columns
from widgets.base.figures import UNKNOWN_MARK, short
from widgets.base.health import SEVERITY_MARKS, tone_of
from widgets.base.lines import Line, Run, Tone, line, wrapped

_NOT_ASKED = "only ConnectX and BlueField NICs answer, and no virtual functions"
_NO_MODULE = "no module with a sensor (copper cable, or plugged in later)"


def sensor_lines(temperatures: Maybe[Temperatures], bdf: Maybe[str], width: int) -> list[Line]:
    """Draw the part "Optics" of a NIC; nothing for one without sensors, such as a virtual function."""
    found = temperatures if isinstance(temperatures, Unknown) else temperatures.get(known(bdf, ""), ())
    if found == ():
        return []
    if isinstance(found, Unknown):
        return wrapped(f"temperatures unknown ({found.detail or found.reason.value})", width, Tone.DIM)
    lines: list[Line] = [line(Run("Optics and temperatures", Tone.TITLE))]
    for sensor in sorted(found, key=lambda sensor: not sensor.is_of_module):
        more = ((" highest", sensor.highest_celsius), (" limit", sensor.limit_celsius))
        ends = "".join(f" {name} {value:g}" for name, value in more if not isinstance(value, Unknown))
        lines.append(line(f" {sensor.label:<9} ", _celsius(sensor), Run(f" °C{ends}", Tone.DIM)))
    if not any(sensor.is_of_module for sensor in found):
        lines += wrapped(f" {_NO_MODULE}", width, Tone.DIM)
    return [*lines, line(Run(" light and own limits: sudo gdrtop topo --ports", Tone.DIM))]


def _celsius(sensor: Sensor | None) -> Run:
    if sensor is None:
        return Run("–", Tone.DIM)
    if isinstance(sensor.celsius, Unknown):
        return Run(UNKNOWN_MARK, Tone.DIM)
    return Run(f"{sensor.celsius:.0f}", tone_of(sensor.heat))


def port_lines(examination: Examination, findings: Sequence[Finding], width: int) -> list[Line]:
    """Draw a row for each port: the temperatures, and where modules were asked, their light."""
    ports = ports_of(examination)
    if isinstance(ports, Unknown) or not ports:
        return [line(f"Optics: {'this node has no RDMA port' if ports == () else f'unknown ({ports})'}")]
    modules = examination.modules

    def sensor(port: Port, is_of_module: bool) -> Sensor | None:
        sensors = known(examination.temperatures, {}).get(known(port.device.bdf, ""), ())
        return next((each for each in known(sensors, ()) if each.is_of_module is is_of_module), None)

    def own(port: Port) -> Maybe[Module]:
        absent = Unknown(Reason.NOT_THERE, "mlxlink", _NOT_ASKED)
        return modules if isinstance(modules, Unknown) else modules.get(known(port.device.bdf, ""), absent)

    def limit(port: Port, is_of_module: bool) -> Run:
        found = sensor(port, is_of_module)
        return Run("–" if found is None else short(found.limit_celsius), Tone.DIM)

    def text(port: Port, name: str) -> Run:
        module = own(port)
        lanes = () if isinstance(module, Unknown) else getattr(module, name).values
        lanes = tuple(lane / 1000 for lane in lanes) if name == "supply" else lanes
        return Run(
            " ".join(f"{lane:.3g}" for lane in lanes) or UNKNOWN_MARK, Tone.PLAIN if lanes else Tone.DIM
        )

    columns = [
        Column("NIC", cells_of(ports, lambda port: Run(port.name, Tone.NIC)), 1, least=6),
        Column("module °C", cells_of(ports, lambda port: _celsius(sensor(port, True))), 2, True),
        Column("limit", cells_of(ports, lambda port: limit(port, True)), 3, True),
        Column("NIC °C", cells_of(ports, lambda port: _celsius(sensor(port, False))), 4, True),
        Column("NIC limit", cells_of(ports, lambda port: limit(port, False)), 5, True),
        Column("receives dBm", cells_of(ports, lambda port: text(port, "received")), 6),
        Column("sends dBm", cells_of(ports, lambda port: text(port, "sent")), 7),
        Column("bias mA", cells_of(ports, lambda port: text(port, "bias")), 8),
        Column("supply V", cells_of(ports, lambda port: text(port, "supply")), 9),
    ]
    readings = [own(port) for port in ports]
    is_read = not all(isinstance(each, Unknown) for each in readings)
    if not is_read:
        columns = columns[:5]
    lines: list[Line] = [line(Run("Optics and temperatures", Tone.TITLE))]
    if is_read or any(sensor(port, is_of_module) for port in ports for is_of_module in (True, False)):
        lines += draw_columns(columns, [port.name for port in ports], width)
    else:
        lines.append(line("No NIC shows temperatures."))
    for why in dict.fromkeys(str(each) for each in readings if isinstance(each, Unknown)):
        lines += wrapped(f"Light, bias, supply and own limits of modules unknown: {why}", width, Tone.DIM)
    from probes.checks.nic.optics import AREA  # the detail of a NIC does not need it

    checks = {check.id for check in AREA.checks}
    for finding in findings:
        if finding.id in checks and finding.is_present:
            lines.append(line(SEVERITY_MARKS[finding.severity], f" {finding.title}"))
            lines += wrapped(finding.cause, width, indent="  ")
    return lines
