"""Checks of the temperatures of NICs and optical modules, and of what modules report of themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from probes.base.evidence import Evidence, Severity, first_n
from probes.base.frozen import frozen
from probes.base.grouping import grouped
from probes.base.origin import Source
from probes.base.plan import Plan, Step, make_plan
from probes.base.text import join_limited
from probes.base.unknown import Reason, Unknown, first_unread, known
from probes.facts.rdma.optics import COMMAND, ODD_CELSIUS, USUAL_ALARM, Module, Sensor, heat_of
from probes.host.protocol import TREE_ONLY
from probes.queries.finding import Area, Outcome, end_with, found, need, passed, unknown, unknown_without
from probes.queries.ports import need_devices, need_ports
from probes.snapshot.examination import Examination

AREA = Area("nic", __package__)
_NO_SENSORS = Evidence("/sys/bus/pci/devices", "no NIC here has sensors of its own")
_LEAST_ALIKE = 4  # modules on boards of one kind
NOT_ASKED = "needs the modules' own readings: sudo gdrtop topo --ports"
"""The cause of checks that no other command can make: said only where something is wrong."""


@frozen
class _Reading:
    """The temperature of one sensor, and the limit that is nearest."""

    nics: tuple[str, ...]  # functions of one card that show the same sensor
    board: str
    sensor: Sensor
    celsius: float
    severity: Severity | None
    limit: str  # "the firmware warns from 75 °C"

    @property
    def name(self) -> str:
        return " and ".join(self.nics)

    @property
    def evidence(self) -> Evidence:
        highest = self.sensor.highest_celsius
        ever = "" if isinstance(highest, Unknown) else f", highest {highest:g} °C since the driver was loaded"
        return Evidence(f"{self.sensor.path}_input", f"{self.sensor.label} {self.celsius:g} °C{ever}")


_Verdict = tuple[Severity | None, str]  # and the limit


def _readings(
    examination: Examination, wanted: Callable[[Sensor], bool], judge: Callable[[Sensor, str], _Verdict]
) -> list[_Reading]:
    """Return the temperatures that are known; end the check where there are none."""
    temperatures = need(examination.temperatures, "the temperatures of NICs", absent=_NO_SENSORS)
    if not temperatures:
        end_with(passed(_NO_SENSORS))
    sensors = [
        (bdf, sensor) for bdf, found in temperatures.items() for sensor in known(found, ()) if wanted(sensor)
    ]
    devices = {known(device.bdf, ""): device for device in reversed(need_devices(examination))}
    readings: dict[tuple[str, str], _Reading] = {}
    for bdf, sensor in sensors:
        if isinstance(sensor.celsius, Unknown) or (device := devices.get(bdf)) is None:
            continue
        key = bdf.rpartition(".")[0], sensor.label
        nics = (*readings[key].nics, device.name) if key in readings else (device.name,)
        verdict = judge(sensor, bdf)
        new = _Reading(nics, known(device.board_id, ""), sensor, sensor.celsius, *verdict)
        readings[key] = new if key not in readings else replace(readings[key], nics=nics)
    unread = first_unread((*temperatures.values(), *(sensor.celsius for _, sensor in sensors)))
    if unread is None and all(isinstance(found, Unknown) for found in temperatures.values()):
        unread = next(found for found in temperatures.values() if isinstance(found, Unknown))
    if unread is not None and not any(reading.severity for reading in readings.values()):
        need(unread, "the temperatures of NICs")
    return [*readings.values()]


def _judge_module(examination: Examination, sensor: Sensor, bdf: str) -> _Verdict:
    """Judge by the firmware's limit and the module's own, where it was asked; else by the usual ones."""
    celsius, limit = known(sensor.celsius, 0.0), known(sensor.limit_celsius, None)
    module = known(known(examination.modules, {}).get(bdf, Unknown(Reason.NOT_THERE)), None)
    alarm = None if module is None else module.temperature.high
    own = None if module is None else module.celsius
    severity = heat_of(celsius, limit, alarm)
    if severity is Severity.CRITICAL and alarm is not None and (own is None or own < alarm):
        severity = Severity.WARNING  # one reading alone can be wrong
    if alarm is not None:
        return severity, f"its own alarm is at {alarm:g} °C"
    usual = f"it reports no limit, and the usual alarm is {USUAL_ALARM:g} °C"
    return severity, usual if limit is None else f"the firmware warns from {limit:g} °C"


@AREA.warning("optic-hot")
def optic_hot(examination: Examination) -> Outcome:
    """Compare modules with their limits, and with other modules on boards of the same kind."""
    readings = _readings(
        examination, lambda sensor: sensor.is_of_module, lambda *at: _judge_module(examination, *at)
    )
    if not readings:
        return passed(Evidence("hwmon", "no module with a sensor: copper cables have none"))
    hot = [reading for reading in readings if reading.severity]
    causes = [f"{each.name}: the module is at {each.celsius:g} °C; {each.limit}" for each in hot]
    for alike in grouped((each.board, each) for each in readings).values():
        middle = sorted(each.celsius for each in alike)[(len(alike) - 1) // 2]
        odd = [each for each in alike if not each.severity and each.celsius >= middle + ODD_CELSIUS]
        if len(alike) >= _LEAST_ALIKE:
            causes += [
                f"{each.name}: the module is at {each.celsius:g} °C, the median is {middle:g} °C"
                for each in odd
            ]
            hot += odd
    if not hot:
        return passed(*first_n(each.evidence for each in readings))
    severities = [each.severity or Severity.NOTE for each in hot]
    return found(
        f"{'. '.join(causes[:3])}{_and_more(causes)}.",
        *first_n(each.evidence for each in hot),
        fix=_cooling(hot, is_everywhere=len(hot) == len(readings) > 1),
        severity=min(severities, key=list(Severity).index),
        devices=tuple(dict.fromkeys(name for each in hot for name in each.nics)),
    )


def _and_more(causes: list[str]) -> str:
    return f". {len(causes) - 3} more are hot" if len(causes) > 3 else ""


def _cooling(hot: Iterable[_Reading], is_everywhere: bool) -> Plan:
    """Return how to cool modules: the node's airflow if all are hot, else this module."""
    advice = "Check the airflow at this cage. Swap the module with another one to see which is at fault"
    if is_everywhere:
        advice = "Check fans, blanking panels and the air inlet: all modules of this node are hot"
    bdf = next(iter(hot)).sensor.path.split("/hwmon/")[0].rpartition("/")[2]
    return make_plan(
        "Cool the modules",
        Step("Show the module's own limits, power and faults", ("mlxlink", "-d", bdf, "-m")),
        advice,
        note="A passive copper cable (DAC) has no such limit where it is long enough.",
    )


@AREA.warning("nic-hot")
def nic_hot(examination: Examination) -> Outcome:
    """Compare the NICs' own sensors with the firmware's limit."""

    def judge(sensor: Sensor, _: str) -> _Verdict:
        limit = known(sensor.limit_celsius, None)
        return sensor.heat, f"its firmware warns from {limit:g} °C" if limit else ""

    readings = _readings(examination, lambda sensor: not sensor.is_of_module, judge)
    hot = [reading for reading in readings if reading.severity]
    if readings and not any(reading.limit for reading in readings):
        return unknown("needs the limits of the NICs' temperatures (the firmware gives none)")
    if not hot:
        return passed(*(first_n(each.evidence for each in readings) or (_NO_SENSORS,)))
    causes = [f"{each.name}: {each.sensor.label} is at {each.celsius:g} °C; {each.limit}" for each in hot]
    return found(
        f"{'. '.join(causes[:3])}{_and_more(causes)}.",
        *first_n(each.evidence for each in hot),
        devices=tuple(dict.fromkeys(name for each in hot for name in each.nics)),
    )


# What modules report of themselves.


def _report(
    examination: Examination,
    problem: Callable[[Module], str],
    fix: str,
    missing: Callable[[Module], bool] = lambda module: False,
) -> Outcome:
    """Report the modules of active ports with a problem; unknown until they were asked.

    `missing`: whether a module cannot be judged, because the number of its lanes in use was not read.
    """
    ports = need_ports(examination)
    if not need(examination.temperatures, "the NICs that have modules", absent=_NO_SENSORS):
        return passed(_NO_SENSORS)
    if isinstance(examination.modules, Unknown):
        if examination.node.origin.source is Source.TREE:
            return unknown_without("the modules' own readings", Unknown(Reason.NOT_RECORDED, "", TREE_ONLY))
        return unknown(NOT_ASKED)
    modules = examination.modules
    asked = {port.device.name: modules.get(known(port.device.bdf, "")) for port in ports if port.is_active}
    read = {name: module for name, module in asked.items() if isinstance(module, Module)}
    problems = {name: text for name, module in read.items() if (text := problem(module))}
    if not problems:
        if without := [name for name, module in read.items() if missing(module)]:
            return unknown(f"mlxlink printed no width of the link for {join_limited(without)}")
        unread = first_unread(asked.values())
        if unread is None and not read:  # mlxlink is not installed, or no port is active
            unread = next((why for why in asked.values() if isinstance(why, Unknown)), None)
        if unread is not None:
            need(unread, "the modules' own readings")
        return passed(Evidence(" ".join(COMMAND), join_limited(read) or "no port is active"))
    return found(
        " ".join(f"{name}: {text}" for name, text in list(problems.items())[:3]),
        *first_n(Evidence("mlxlink -m", f"{name} ({read[name].name or 'module'})") for name in problems),
        fix=make_plan("Clean or replace cable and optics", fix, disturbs="jobs that use this port"),
        devices=tuple(problems),
    )


@AREA.warning("optic-power")
def optic_power(examination: Examination) -> Outcome:
    """Compare the lanes of a module with each other and with the module's limits."""
    fix = "Clean both ends, reseat them, then swap the cable. Compare mlxlink -d BDF -m -c of both ends"
    return _report(
        examination,
        lambda module: " ".join(filter(None, (module.weak_light, module.beyond_limits))),
        fix,
        missing=lambda module: bool(module.received.values) and module.lanes_in_use is None,
    )


@AREA.warning("optic-fault")
def optic_fault(examination: Examination) -> Outcome:
    """Find modules in the state Fault, or with a fault of a lane or of their firmware."""

    def problem(module: Module) -> str:
        in_fault = ["module state “Fault”"] if "fault" in module.state.lower() else []
        faults = [*in_fault, *module.faults]
        return f"the module reports {join_limited(faults)}." if faults else ""

    return _report(examination, problem, "Reseat the module, then replace it")
