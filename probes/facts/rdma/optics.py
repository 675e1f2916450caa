"""Temperatures of NICs and their optical modules, and what a module reports of itself.

Temperatures: the hwmon directory of mlx5 (core/hwmon.c; since Linux 6.6, and in OFED before), which any user
may read, for InfiniBand, too. A value is a question to the firmware. A module without a sensor when the
driver was loaded (copper, or plugged in later) has no channel there. Power, bias and the module's own limits:
`mlxlink -m --json` of MFT, or mstlink of mstflint, as root.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from probes.base.evidence import Severity
from probes.base.frozen import frozen
from probes.base.text import parse_json, printable
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.pci.functions import DEVICES, asleep
from probes.facts.rdma.devices import RdmaFacts, has_own_firmware
from probes.host.protocol import Host
from probes.host.values import read_integer

# °C. NVIDIA's modules usually warn at 70 and alarm at 80 (InfiniBand Cluster Bring-up, UFM Telemetry).
USUAL_NOTE, USUAL_WARNING, USUAL_ALARM = 70.0, 75.0, 80.0
NEAR_CELSIUS = 5.0
ODD_CELSIUS = 10.0  # above the median of equal modules: gdrtop's own limit
HIGHEST, LOWEST = 110.0, -20.0  # beyond these, reading the module has failed (oxidecomputer/hubris 2663)
# Lanes: NVIDIA's Cable Validation Tool asks for 2 dB. The margin beyond the limits is that of scitix/sichek.
UNEVEN_DB, MARGIN_DB = 2.0, 1.0

_MOST_SENSORS = 16
_INPUT = re.compile(r"temp(\d{1,2})_input", re.ASCII)
# Module 0 has the sensor 64 (core/hwmon.c, to_mtmp_module_sensor_idx); the firmware names it "Module0".
_OF_MODULE = re.compile(r"(?i)module ?\d{0,3}|sensor(?:6[4-9]|[7-9]\d|\d{3})", re.ASCII)
_NO_SENSORS = "the driver reports no temperatures; Linux 6.6 and newer do"


def heat_of(celsius: float, limit: float | None = None, alarm: float | None = None) -> Severity | None:
    """Return how bad a module's temperature is; None: fine.

    `limit`: of the firmware's warning; `alarm`: where the module switches off, by itself.
    """
    if limit is None and alarm is None:
        bounds = {Severity.CRITICAL: USUAL_ALARM, Severity.WARNING: USUAL_WARNING, Severity.NOTE: USUAL_NOTE}
    else:
        lower = min(bound for bound in (limit, alarm) if bound is not None)
        bounds = {} if alarm is None else {Severity.CRITICAL: alarm}
        bounds |= {Severity.WARNING: lower, Severity.NOTE: lower - NEAR_CELSIUS}
    return next((severity for severity, bound in bounds.items() if celsius >= bound), None)


# The sensors of hwmon


@frozen
class Sensor:
    """A sensor of a NIC, in °C."""

    label: str  # by the firmware: "asic", "Module0"; "sensor64" without a name
    path: str  # without "_input"
    celsius: Maybe[float]
    highest_celsius: Maybe[float]  # since the driver was loaded
    limit_celsius: Maybe[float]  # where the firmware warns; ConnectX-5 switches off 10 °C above

    @property
    def is_of_module(self) -> bool:
        """Whether it is in the optical module, and not in the NIC."""
        return is_of_module(self.label)

    @property
    def heat(self) -> Severity | None:
        """How bad its temperature is by the firmware's limit; None: fine, or unknown."""
        celsius, limit = known(self.celsius, LOWEST), known(self.limit_celsius, None)
        if self.is_of_module:
            return heat_of(celsius, limit)
        return Severity.WARNING if limit is not None and celsius >= limit else None


def is_of_module(label: str) -> bool:
    """Return whether the sensor with this label is in an optical module."""
    return _OF_MODULE.fullmatch(label) is not None


Temperatures = Mapping[str, Maybe[tuple[Sensor, ...]]]
"""The sensors of each PCI function, by BDF."""


def probe(host: Host, rdma: RdmaFacts) -> Temperatures:
    """Read all sensors of the functions of ConnectX and BlueField NICs; virtual functions have none."""
    return {bdf: _read_function(host, bdf) for bdf in _functions(rdma)}


def read_modules(host: Host, before: Temperatures) -> Temperatures:
    """Read the temperatures of modules alone again, with one question to the firmware each."""

    def read(sensor: Sensor) -> Sensor:
        was = sensor.celsius
        if isinstance(was, Unknown) and was.reason is Reason.IO_ERROR:
            return sensor
        return replace(sensor, celsius=_celsius(lambda path: _degrees(host, path), sensor.path))

    return {
        bdf: map_known(sensors, lambda found: tuple(map(read, modules_of(found))))
        for bdf, sensors in before.items()
    }


def modules_of(sensors: Maybe[tuple[Sensor, ...]]) -> tuple[Sensor, ...]:
    """Return the sensors in optical modules."""
    return tuple(sensor for sensor in known(sensors, ()) if sensor.is_of_module)


def module_sensor(temperatures: Maybe[Temperatures], bdf: Maybe[str]) -> Maybe[Sensor]:
    """Return the sensor in the module of a PCI function; NOT_THERE: it has none."""
    sensors = map_known(temperatures, lambda found: found.get(known(bdf, ""), ()))
    if isinstance(sensors, Unknown):
        return sensors
    absent = Unknown(Reason.NOT_THERE, known(bdf, ""), "no optical module with a sensor")
    return next(iter(modules_of(sensors)), absent)


def module_celsius(temperatures: Maybe[Temperatures], bdf: Maybe[str]) -> Maybe[float]:
    """Return the temperature of the module of a PCI function; NOT_THERE: it has no sensor."""
    return map_known(module_sensor(temperatures, bdf), lambda sensor: sensor.celsius)


def _functions(rdma: RdmaFacts) -> tuple[str, ...]:
    found = (known(device.bdf, "") for device in rdma.devices if has_own_firmware(device))
    return tuple(dict.fromkeys(filter(None, found)))  # subfunctions have the BDF of another


def _read_function(host: Host, bdf: str) -> Maybe[tuple[Sensor, ...]]:
    if (sleeps := asleep(host, bdf)) is not None:
        return sleeps
    directory = f"{DEVICES}/{bdf}/hwmon"
    names = host.names(directory)
    if isinstance(names, Unknown):
        absent = Unknown(Reason.NOT_THERE, directory, _NO_SENSORS)
        return absent if names.reason is Reason.NOT_THERE else names
    refused: Unknown | None = None

    def ask(path: str) -> Maybe[float]:
        """Read °C; each refusal is a line in the kernel log, so after one nothing else is asked."""
        nonlocal refused
        answer = _degrees(host, path) if refused is None else refused
        if isinstance(answer, Unknown) and answer.reason is Reason.IO_ERROR:
            refused = answer
        return answer

    found: list[Sensor] = []
    for path in _channels(host, directory, names):
        label = printable(known(host.read(f"{path}_label", 64), ""), 32) or path.rpartition("/")[2]
        celsius = _celsius(ask, path, is_of_module(label))
        highest, limit = _plausible(ask(f"{path}_highest")), _limit(ask(f"{path}_crit"))
        found.append(Sensor(label, path, celsius, highest, limit))
    return tuple(found)


def _channels(host: Host, directory: str, names: tuple[str, ...]) -> Iterator[str]:
    """Yield the path of each channel, ".../hwmon3/temp1"."""
    for name in [name for name in sorted(names) if name.startswith("hwmon")][:2]:
        files = known(host.names(f"{directory}/{name}"), ())
        numbers = sorted(int(match[1]) for file in files if (match := _INPUT.fullmatch(file)))
        yield from (f"{directory}/{name}/temp{number}" for number in numbers[:_MOST_SENSORS])


def _celsius(ask: Callable[[str], Maybe[float]], path: str, of_module: bool = True) -> Maybe[float]:
    """Ask for a temperature; a high one of a module twice, since single readings can be wrong."""
    first = _plausible(ask(f"{path}_input"))
    if isinstance(first, Unknown) or first < USUAL_NOTE or not of_module:
        return first
    second = _plausible(ask(f"{path}_input"))
    return second if isinstance(second, Unknown) else min(first, second)


def _degrees(host: Host, path: str) -> Maybe[float]:
    return map_known(read_integer(host, path, signed=True), lambda millidegrees: millidegrees / 1000)


def _plausible(celsius: Maybe[float]) -> Maybe[float]:
    """Return a temperature that can be; 0 °C is a sensor that is not there."""
    if isinstance(celsius, Unknown):
        return celsius
    if celsius == 0:
        return Unknown(Reason.NOT_THERE, "hwmon", "no reading (0 °C)")
    if not LOWEST <= celsius <= HIGHEST:
        return Unknown(Reason.MALFORMED, "hwmon", f"the reading failed ({celsius:g} °C)")
    return celsius


def _limit(celsius: Maybe[float]) -> Maybe[float]:
    """Return a limit; 0 is none."""
    none = Unknown(Reason.NOT_THERE, "hwmon", "the firmware gives no limit")
    return map_known(celsius, lambda limit: limit if 0 < limit <= 150 else none)


# What mlxlink, mstlink and ethtool print of a module

COMMAND = ("mlxlink", "-d", "BDF", "-m", "--json")
_TOOLS = ("mlxlink", "mstlink")
_SECONDS, _MOST_SECONDS = 8.0, 60.0  # of a NIC, and after which no other NIC is asked
_MOST_NICS = 64
_READING = re.compile(r"(\S{1,200}?)(?: \[(\S{1,12})\.\.(\S{1,12})\])?", re.ASCII)
_NUMBER = re.compile(r"-?\d{1,9}(?:\.\d{1,9})?", re.ASCII)
_NO_VALUES = ("", "N/A", "0", "0.0")
_FAULTS = ("Module FW Fault", "DataPath FW Fault", "Tx Fault [per lane]", "Rx LOS [per lane]")


@frozen
class Lanes:
    """A value for each lane, and the module's own alarm limits."""

    values: tuple[float, ...] = ()
    low: float | None = None
    high: float | None = None


@frozen
class Module:
    """A module by its own readings; without values it has no sensors, or the text does not have them."""

    name: str  # maker and part number
    state: str  # "Ready state"; "": not in the text
    temperature: Lanes  # °C
    supply: Lanes  # mV
    received: Lanes  # dBm
    sent: Lanes  # dBm
    bias: Lanes  # mA
    lanes_in_use: int | None
    faults: tuple[str, ...]  # "Module FW Fault", "Rx LOS in lane 3"
    serial: str = ""  # of the maker; "": not in the text

    @property
    def celsius(self) -> float | None:
        """Its temperature, if it has a sensor."""
        value = self.temperature.values[0] if self.temperature.values else 0.0
        return value if value and LOWEST <= value <= HIGHEST else None

    @property
    def weak_light(self) -> str:
        """What is wrong with the light that it receives; "": nothing, or unknown."""
        lanes, low = self.received.values, self.received.low
        # Of a cable that is split, only some lanes are in use.
        if not lanes or len(lanes) != self.lanes_in_use:
            return ""
        if max(lanes) - min(lanes) <= UNEVEN_DB and (low is None or min(lanes) >= low - MARGIN_DB):
            return ""
        return f"The lanes receive {_list(lanes)} dBm. They should be within {UNEVEN_DB:g} dB."

    @property
    def beyond_limits(self) -> str:
        """Which other values are beyond the module's own alarm limits; "": none, or unknown."""
        beyond = []
        for what, unit, lanes, margin in (
            ("send", "dBm", self.sent, MARGIN_DB),
            ("have a bias of", "mA", self.bias, 0.0),
        ):
            if lanes.low is None or lanes.high is None or len(lanes.values) != self.lanes_in_use:
                continue
            if min(lanes.values) < lanes.low - margin or max(lanes.values) > lanes.high + margin:
                limits = f"the module's limits are {lanes.low:g} and {lanes.high:g} {unit}"
                beyond.append(f"The lanes {what} {_list(lanes.values)} {unit}; {limits}.")
        return " ".join(beyond)


def _list(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def parse_module(values: Mapping[str, str]) -> Module:
    """Parse the values of a port by the names that mlxlink gives them."""
    width = _NUMBER.match(values.get("Width", ""))
    maker = (values.get(f"Vendor {what}", "") for what in ("Name", "Part Number"))
    faults = (
        name.removesuffix(" [per lane]") + (f" in lane {lane}" if "lane" in name else "")
        for name in _FAULTS
        for lane, value in enumerate(values.get(name, "").split(","), 1)
        if value.strip() not in _NO_VALUES
    )
    return Module(
        " ".join(word for word in maker if word not in _NO_VALUES),
        values.get("Module State", "").replace("N/A", ""),
        _lanes(values.get("Temperature [C]", "")),
        _lanes(values.get("Voltage [mV]", "")),
        _lanes(values.get("Rx Power Current [dBm]", "")),
        _lanes(values.get("Tx Power Current [dBm]", "")),
        _lanes(values.get("Bias Current [mA]", "")),
        int(width[0]) if width and width[0].isdecimal() else None,
        tuple(faults)[:8],
        values.get("Vendor Serial Number", "").replace("N/A", "").strip(),
    )


def _lanes(text: str) -> Lanes:
    """Parse "1.9,2.1 [-10.4..6]"; no lanes if one of them is not a number; equal limits are none."""
    match = _READING.fullmatch(text.strip())
    lanes = match[1].split(",")[:16] if match else []
    if match is None or not all(map(_NUMBER.fullmatch, lanes)):
        return Lanes()
    low, high = (float(end) if end and _NUMBER.fullmatch(end) else None for end in match.groups()[1:])
    return Lanes(tuple(map(float, lanes)), *((None, None) if low == high else (low, high)))


Modules = Mapping[str, Maybe[Module]]
"""The module of each PCI function, by BDF."""


def ask_modules(host: Host, rdma: RdmaFacts) -> Modules:
    """Ask mlxlink for the module of each NIC, one after the other: forty at once block each other (sichek).

    After a NIC that does not answer, or a refusal, no other is asked.
    """
    found: dict[str, Maybe[Module]] = {}
    silent: Unknown | None = None
    until = host.monotonic() + _MOST_SECONDS
    for number, bdf in enumerate(_functions(rdma)):
        if silent is None and (number >= _MOST_NICS or host.monotonic() > until):
            silent = Unknown(
                Reason.TIMED_OUT, COMMAND[0], f"not asked: too many NICs, or too slow ({number})"
            )
        found[bdf] = answer = _ask(host, bdf) if silent is None else silent
        if isinstance(answer, Unknown) and answer.reason is Reason.TIMED_OUT:
            silent = Unknown(Reason.TIMED_OUT, answer.source, "not asked: the NIC before did not answer")
        elif isinstance(answer, Unknown) and answer.reason is Reason.NEEDS_ROOT:
            silent = answer
    return found


def _ask(host: Host, bdf: str) -> Maybe[Module]:
    if (sleeps := asleep(host, bdf)) is not None:
        return sleeps
    answer: Maybe[Module] = Unknown(Reason.NOT_THERE, COMMAND[0])
    for tool in _TOOLS:
        output = host.run((tool, "-d", bdf, *COMMAND[3:]), _SECONDS)
        if not isinstance(output, Unknown):
            module = parse_module_json(output.stdout or output.stderr)
            if isinstance(module, Unknown) and output.exit_status and not host.is_root():
                return Unknown(Reason.NEEDS_ROOT, " ".join(COMMAND))
            return module
        if output.reason is not Reason.NOT_THERE:
            return output
        answer = replace(output, detail="mlxlink (MFT) and mstlink (mstflint) are not installed")
    return answer


def parse_module_json(text: str) -> Maybe[Module]:
    """Parse `mlxlink -m --json`; MALFORMED: the message that it has instead of the values."""
    document = parse_json(text)
    if document is None:
        return Unknown(Reason.MALFORMED, COMMAND[0], printable(" ".join(text.split()), 120) or "no output")
    values: dict[str, str] = {}
    output = _part(_part(document, "result"), "output")
    for section in output.values():
        for name, value in _part(section).items():
            per_lane = value.get("values") if isinstance(value, dict) else value
            listed = per_lane if isinstance(per_lane, list) else [per_lane]
            values.setdefault(name[:60], printable(",".join(map(str, listed[:16])), 200))
    if not _part(output, "Module Info"):
        message = printable(str(_part(document, "status").get("message", "no module")), 120)
        return Unknown(Reason.MALFORMED, COMMAND[0], message)
    return parse_module(values)


def _part(document: object, name: str | None = None) -> dict[str, object]:
    """Return an object of the document, or its part of this name; nothing if it is none."""
    part = document.get(name) if isinstance(document, dict) and name is not None else document
    return part if isinstance(part, dict) else {}
