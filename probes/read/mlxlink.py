"""Pasted outputs of mlxlink (mstlink), as text or JSON, and of ethtool -m: link, bit errors and module.

Sources: mstflint mlxlink_commander.cpp; ethtool qsfp.c; status opcodes of the PDDR register (MLNX-OS manual);
limits: probes/facts/rdma/bit_errors.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from probes.bandwidth.model.samples import parse_number
from probes.base.evidence import Severity
from probes.base.text import join_limited, plural, printable
from probes.facts.rdma.bit_errors import EFFECTIVE, RAW, SETTLED_MINUTES, SYMBOL
from probes.facts.rdma.optics import USUAL_WARNING, heat_of, parse_module
from probes.messages.message import Weight
from probes.nccl.log.facts import Place
from probes.read.reading import Parsed, Section, Statement

SIGN = (
    r"\s*(?:Operational Info|Troubleshooting Info|Physical Counters and BER Info)\s*$"
    r'|\s*"(?:(?:Operational|Troubleshooting|Module) Info|Physical Counters and BER Info)"\s*:\s*\{?\s*$'
)
_MOST_PORTS = 256
_TITLE = re.compile(r'\s*"?[A-Z][\w ]{2,40} Info(?:rmation)?"?(?:\s*:\s*\{)?\s*$')
_DEVICE = re.compile(r"\s(?:-d|--device)[ =](\S{1,60})")
_SHOWN = {
    **dict.fromkeys(("State", "Physical state", "Speed", "Width", "FEC", "Cable Type"), "{}"),
    **{"Temperature [C]": "module at {} °C", "Firmware Version": "firmware {}"},
}
_GOOD = ("", "0", "No Loopback", "No issue was observed")
_DAY_MINUTES = 1440.0
_RAW = "Raw Physical BER"  # before FEC
_BIT_ERRORS = {"Symbol BER": SYMBOL, "Effective Physical BER": EFFECTIVE, _RAW: RAW}
_CLEAN = "Clean and reseat both ends of the cable, then swap it. Compare mlxlink -m -c of the other end."
_SETTINGS = "Set the same speed, FEC and autonegotiation on both ends."
_CABLE = "Reseat the cable or module, then replace it with one that NVIDIA lists for this NIC."
_POWER = "Check the power that slot and server give the NIC, and the power class of the module."
_FIXES = {  # by status opcode; otherwise _CLEAN
    **dict.fromkeys((*range(2, 14), 38, 39), _SETTINGS),
    14: "Look at the other end: it reports the fault.",
    **dict.fromkeys((16, *range(24, 33), 1025, 1026, 1027, 1029, 1031), _CABLE),
    57: "Check that the cable is plugged in at the other end, and that the other port is up.",
    1024: "Plug in the cable.",
    1030: "Check fans and airflow. The module has switched off because it was too hot.",
    **dict.fromkeys((1032, 1035, 1040), _POWER),
    **dict.fromkeys((1033, 1034), "Enable the port: ip link set NETDEV up, or mlxlink -d BDF -a UP."),
}


class _Port(dict[str, str]):
    """The values of one port, without those that are not available."""

    place: Place

    def number(self, name: str) -> float | None:
        return _number(self.get(name, "").split(" ")[0])


def _number(text: str) -> float | None:
    number = parse_number(text.removeprefix("-"))
    return -number if number is not None and text[0] == "-" else number


def read_mlxlink(section: Section) -> Parsed:
    """Read the ports in a text; a name that comes again begins the next one."""
    device = _DEVICE.search(section.command)
    name = printable(device[1], 60) if device else "The port"
    ports: list[_Port] = []
    seen: set[str] = set()
    read = 0
    for number, line in enumerate(section.lines):
        key, _, value = (part.strip().strip('",') for part in line.partition(":"))
        read += bool(value) or _TITLE.match(line) is not None
        if not value or value[0] in "{[" or not key[:1].isupper() or len(key) > 60:
            continue
        if (not ports or key in seen) and len(ports) < _MOST_PORTS:
            ports.append(_Port())
            ports[-1].place = Place(section.place.file, section.place.line + number)
            seen.clear()
        seen.add(key)
        if value != "N/A":
            ports[-1].setdefault(key, printable(value, 200))
    statements = tuple(
        said
        for port in ports
        for said in _said(port, name, *_of_link(port), *_of_errors(port), *_of_module(port))
    )
    return Parsed(read, statements, shows=" ".join(f"{name}: {_shows(port)}" for port in ports[:8]))


def _said(port: _Port, name: str, *found: _Finding) -> Iterator[Statement]:
    for kind, weight, title, cause, fix in found:
        yield Statement(f"mlxlink-{kind}", "mlxlink", weight, f"{name} {title}", cause, fix, place=port.place)


MODULE_SIGN = r"\s*Identifier {2,}: 0x[0-9a-f]{2} \((?:SFP|QSFP|OSFP|DSFP)"
_INTERFACE = re.compile(r"\s(?:-m|--module-info)\s+([\w.@-]{1,20})")
_READING = re.compile(r"(-?[\d.]{1,9}) degrees C|/ (-?[\d.]{1,9}|-inf) dBm")


def read_module(section: Section) -> Parsed:
    """Read ethtool -m."""
    port = _Port()
    port.place = section.place
    device = _INTERFACE.search(section.command)
    name = printable(device[1], 20) if device else "The port"
    lanes: list[str] = []
    ends: dict[str, str] = {}
    alarms: list[str] = []
    for line in section.lines:
        key, _, value = (part.strip() for part in line.partition(":"))
        reading = _READING.search(value)
        if value == "On" and ("alarm" in key or "warning" in key):
            alarms.append(printable(" ".join(key.split()), 60))
        elif reading is None:
            port.setdefault(key, printable(value, 100))
        elif "threshold" in key:
            ends[key] = reading[1] or reading[2]
        elif key == "Module temperature":
            port["Temperature [C]"] = reading[1]
        elif reading[2] and key.startswith(("Rcvr signal avg", "Receiver signal average")):
            lanes.append(reading[2])
    for value, what, low, high in (
        ("Temperature [C]", "Module temperature", "low alarm", "high alarm"),
        ("Rx Power Current [dBm]", "Laser rx power", "low alarm", "high alarm"),
    ):
        limits = [ends.get(f"{what} {end} threshold", "") for end in (low, high)]
        if value.startswith("Rx") and lanes:
            port[value], port["Width"] = ",".join(lanes), f"{len(lanes)}x"
        if value in port and all(limits):
            port[value] = f"{port[value]} [{limits[0]}..{limits[1]}]"
    found = list(_of_module(port))
    if alarms:
        cause = f"The module itself reports: {join_limited(alarms)}."
        found.append(("module-alarm", Weight.NOTE, "has a module with alarms", cause, _CLEAN))
    vendor = " ".join(filter(None, (port.get("Vendor name"), port.get("Vendor PN"))))
    celsius = f" at {port['Temperature [C]'].split()[0]} °C" if "Temperature [C]" in port else ""
    shows = f"{name}: module {vendor}{celsius}. Link state and bit errors are not in the text (mlxlink -c)."
    return Parsed(section.filled, tuple(_said(port, name, *found)), shows=shows)


def _shows(port: _Port) -> str:
    parts = {"the state": ("State",), "bit errors (mlxlink -c)": _BIT_ERRORS}
    parts["the module (mlxlink -m)"] = ("Identifier", "Cable Type")
    missing = [what for what, names in parts.items() if not any(name in port for name in names)]
    unknown = f" Not in the text: {join_limited(missing)}." if missing else ""
    return f"{', '.join(text.format(port[name]) for name, text in _SHOWN.items() if name in port)}.{unknown}"


_Finding = tuple[str, Weight, str, str, str]  # kind, weight, title, cause, fix
_Found = Iterator[_Finding]


def _of_link(port: _Port) -> _Found:
    state, physical, opcode = (port.get(name, "") for name in ("State", "Physical state", "Status Opcode"))
    advice = port.get("Recommendation", "").rstrip(". ")
    said = f"mlxlink says “{advice}” (status {opcode or 'unknown'})."
    said = "mlxlink gives no reason." if advice in _GOOD else said
    fix = _FIXES.get(int(parse_number(opcode) or 0), _CLEAN)
    if state not in ("", "Active"):
        fix = "Start or repair the subnet manager. It makes the port active." if physical == "LinkUp" else fix
        yield "port-down", Weight.WARNING, f"is not active ({state}, {physical or 'unknown'})", said, fix
    elif opcode not in _GOOD:
        yield "port-status", Weight.WARNING, f"reports status {opcode}", said, fix
    if (mode := port.get("Loopback Mode", "")) not in _GOOD:
        cause = "The port receives what it sends, and reaches no peer."
        yield "loopback", Weight.WARNING, f"is in {mode}", cause, "Disable it: mlxlink -d BDF -l NO."


def _of_errors(port: _Port) -> _Found:
    minutes = port.number("Time Since Last Clear [Min]")
    is_settled = minutes is not None and minutes >= SETTLED_MINUTES
    for name, limits in _BIT_ERRORS.items():
        rate, limit = port.number(name), limits.error
        if rate is None or rate <= limits.warning:
            continue
        cause = f"FEC leaves these errors, so packets are lost. NVIDIA's limit for NDR is {limit:.0E}."
        if name == _RAW:
            cause = f"FEC still repairs these errors, with little margin. gdrtop's limit is {limit:.0E}."
        if not is_settled:
            cause += f" Rates are reliable {SETTLED_MINUTES:.0f} minutes after the counters were cleared."
        weight = Weight.WARNING if rate > limit and is_settled else Weight.NOTE
        yield "bit-errors", weight, f"has bit errors ({name} {port[name]})", cause, _CLEAN
    if downs := port.number("Link Down Counter"):
        is_often = downs >= 2 and minutes is not None and minutes <= _DAY_MINUTES
        since = "" if minutes is None else f" in {plural(round(minutes), 'minute')}"
        cause = f"The link went down {plural(int(downs), 'time')}{since}. Reboots of either end count, too."
        yield "link-downs", Weight.WARNING if is_often else Weight.NOTE, "lost its link", cause, _CLEAN


def _of_module(port: _Port) -> _Found:
    module = parse_module(port)
    celsius, own = module.celsius, module.temperature.high
    alarm = USUAL_WARNING if own is None else own
    heat = None if celsius is None else heat_of(celsius, alarm=own)
    if heat is not None:
        kind = "usual" if own is None else "own"
        cause = f"Its {kind} limit is {alarm:g} °C. Modules that are too hot switch off."
        fix = "Read it again, since single readings can be wrong. Check fans and airflow."
        # One reading alone can be wrong, so it is never critical.
        weight = Weight.NOTE if heat is Severity.NOTE else Weight.WARNING
        yield "module-hot", weight, f"has a module at {celsius:g} °C", cause, fix
    if module.weak_light:
        yield "weak-light", Weight.WARNING, "has a lane with weak light", module.weak_light, _CLEAN
