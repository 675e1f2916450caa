"""Temperatures of NICs and optical modules, and what mlxlink prints of a module."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.evidence import Severity
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.rdma import devices
from probes.facts.rdma.devices import RdmaFacts
from probes.facts.rdma.optics import (
    Lanes,
    Module,
    Sensor,
    ask_modules,
    heat_of,
    module_celsius,
    modules_of,
    parse_module,
    parse_module_json,
    probe,
    read_modules,
)
from probes.host.protocol import CommandOutput
from probes.simulation.host import SimulatedHost


class Node(SimulatedHost):
    """A node whose files and commands are answered as scripted, and which notes what was asked."""

    def __init__(self, files: Mapping[str, Maybe[str]] | None = None, name: str = "hgx-h100") -> None:
        self.scripted = dict(files or {})
        self.read_files: list[str] = []
        self.ran: list[tuple[str, ...]] = []
        self.answer: Maybe[str] = Unknown(Reason.NOT_THERE, "mlxlink", "not installed")
        self.exit_status = 0
        self.root = True
        super().__init__(name, clock=lambda: 1000.0)

    def read_bytes(self, path: str, limit: int = 1 << 20) -> Maybe[bytes]:
        end = path.partition("/hwmon/")[2].partition("/")[2]
        if end and not end.endswith("_label"):
            self.read_files.append(path)
        if end in self.scripted:
            content = self.scripted[end]
            return content if isinstance(content, Unknown) else content.encode()
        return super().read_bytes(path, limit)

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        self.ran.append(tuple(argv))
        if isinstance(self.answer, Unknown):
            return self.answer
        return CommandOutput(tuple(argv), self.exit_status, self.answer, "")

    def is_root(self) -> bool:
        return self.root


def rdma_of(host: Node) -> RdmaFacts:
    found = devices.probe(host)
    assert isinstance(found, RdmaFacts)
    return found


def sensors_of(host: Node) -> tuple[Sensor, ...]:
    found = next(iter(probe(host, rdma_of(host)).values()))
    assert not isinstance(found, Unknown)
    return found


def test_the_sensors_have_temperature_highest_and_limit() -> None:
    chip, module = sensors_of(
        Node({"temp2_input": "62125\n", "temp2_highest": "70000", "temp2_crit": "75000"})
    )
    assert (chip.label, chip.is_of_module) == ("asic", False)
    assert (module.label, module.is_of_module) == ("Module0", True)
    assert (module.celsius, module.highest_celsius, module.limit_celsius) == (62.125, 70.0, 75.0)


@pytest.mark.parametrize("label", ["Module0", "module 1", "sensor64", "sensor71"])
def test_a_module_has_the_sensors_from_64_on(label: str) -> None:
    sensors = sensors_of(Node({"temp2_label": label}))
    assert [sensor.label for sensor in modules_of(sensors)] == [label]


def test_a_copper_cable_has_no_sensor() -> None:
    host = Node(name="dgx-spark")
    assert all(modules_of(sensors) == () for sensors in probe(host, rdma_of(host)).values())
    bdf = next(iter(probe(host, rdma_of(host))))
    absent = module_celsius(probe(host, rdma_of(host)), bdf)
    assert isinstance(absent, Unknown)
    assert absent.reason is Reason.NOT_THERE


@pytest.mark.parametrize(
    ("text", "reason"), [("0", Reason.NOT_THERE), ("127875", Reason.MALFORMED), ("-40000", Reason.MALFORMED)]
)
def test_a_reading_that_cannot_be_is_unknown(text: str, reason: Reason) -> None:
    celsius = sensors_of(Node({"temp2_input": text}))[1].celsius
    assert isinstance(celsius, Unknown)
    assert celsius.reason is reason


def test_a_limit_of_0_is_none() -> None:
    limit = sensors_of(Node({"temp2_crit": "0"}))[1].limit_celsius
    assert isinstance(limit, Unknown)


def test_the_lower_one_of_two_high_readings_counts() -> None:
    """Readings of a module jump for a moment when its bus has errors (oxidecomputer/hubris 2663)."""

    class Jumping(Node):
        def read_bytes(self, path: str, limit: int = 1 << 20) -> Maybe[bytes]:
            found = super().read_bytes(path, limit)
            if path.endswith("temp2_input"):
                return b"95000" if self.read_files.count(path) == 1 else b"58000"
            return found

    assert sensors_of(Jumping())[1].celsius == 58.0


def test_after_a_refusal_nothing_else_of_the_nic_is_asked() -> None:
    """Restricted functions write a line to the kernel log for each."""
    refused = Unknown(Reason.IO_ERROR, "temp1_input", "Invalid argument")
    host = Node({"temp1_input": refused})
    found = probe(host, rdma_of(host))
    assert len(host.read_files) == len(found)
    assert all(
        isinstance(sensor.celsius, Unknown)
        for sensors in found.values()
        for sensor in sensors  # type: ignore[union-attr]
    )
    host.read_files.clear()
    read_modules(host, found)
    assert host.read_files == []


def test_live_asks_modules_alone() -> None:
    host = Node()
    found = probe(host, rdma_of(host))
    host.read_files.clear()
    again = read_modules(host, found)
    assert {path.rpartition("/")[2] for path in host.read_files} == {"temp2_input"}
    assert all(module_celsius(again, bdf) == module_celsius(found, bdf) for bdf in found)


def test_virtual_functions_are_not_asked() -> None:
    host = Node(name="azure-nd-h100")
    assert probe(host, rdma_of(host)) == {}


def test_an_older_driver_has_no_sensors() -> None:
    host = Node(name="pcie-l40s")
    found = next(iter(probe(host, rdma_of(host)).values()))
    assert isinstance(found, Unknown)
    assert "Linux 6.6" in found.detail


@pytest.mark.parametrize(
    ("celsius", "limit", "alarm", "severity"),
    [
        (69.9, None, None, None),
        (70.0, None, None, Severity.NOTE),
        (75.0, None, None, Severity.WARNING),
        (80.0, None, None, Severity.CRITICAL),
        (78.0, 75.0, None, Severity.WARNING),
        (90.0, 75.0, None, Severity.WARNING),
        (71.0, 75.0, None, Severity.NOTE),
        (69.0, 75.0, None, None),
        (72.0, 70.0, 75.0, Severity.WARNING),
        (75.0, 70.0, 75.0, Severity.CRITICAL),
        (80.0, None, 85.0, Severity.NOTE),
    ],
)
def test_a_module_is_judged_by_its_own_limits_first(
    celsius: float, limit: float | None, alarm: float | None, severity: Severity | None
) -> None:
    assert heat_of(celsius, limit, alarm) is severity


# mlxlink -m of real modules, as scitix/sichek and facebookresearch/gcm quote them
OPTICAL = {
    "Width": "4x",
    "Temperature [C]": "54 [-5..75]",
    "Voltage [mV]": "3261.2 [2970..3630]",
    "Bias Current [mA]": "8.380,8.380,8.380,8.380 [2..15]",
    "Rx Power Current [dBm]": "1.886,1.989,2.281,1.976 [-10.41..6]",
    "Tx Power Current [dBm]": "1.562,1.427,1.559,1.761 [-8.508..5]",
    "Vendor Name": "CLT",
    "Vendor Part Number": "T-F4GS-BV0",
    "Vendor Serial Number": "CLT2312A0017",
    "Module State": "Ready state",
    "Module FW Fault": "0",
    "Tx Fault [per lane]": "0,0,0,0",
    "Rx LOS [per lane]": "0,0,0,0",
}
# A passive cable of a public support case, and one without diagnostics
COPPER = {
    "Width": "4x",
    "Temperature [C]": "0 [0..0]",
    "Bias Current [mA]": "0,0,0,0 [0..0]",
    "Rx Power Current [dBm]": "0,0,0,0 [0..0]",
    "Tx Power Current [dBm]": "0,0,0,0 [0..0]",
}
WITHOUT_DIAGNOSTICS = {"Width": "4x", "Temperature [C]": "N/A", "Rx Power Current [dBm]": "N/A"}


def output(values: Mapping[str, str], message: str = "success") -> str:
    sections = {"Module Info": dict(values)} if values else {}
    return json.dumps({"result": {"output": sections}, "status": {"code": 0, "message": message}})


def test_a_module_is_parsed() -> None:
    module = parse_module_json(output(OPTICAL))
    assert isinstance(module, Module)
    assert (module.name, module.state, module.celsius, module.lanes_in_use) == (
        "CLT T-F4GS-BV0",
        "Ready state",
        54.0,
        4,
    )
    assert module.serial == "CLT2312A0017"
    assert module.supply == Lanes((3261.2,), 2970.0, 3630.0)
    assert module.received == Lanes((1.886, 1.989, 2.281, 1.976), -10.41, 6.0)
    assert (module.weak_light, module.beyond_limits, module.faults) == ("", "", ())


@pytest.mark.parametrize("values", [COPPER, WITHOUT_DIAGNOSTICS, {"Identifier": "OSFP"}])
def test_a_copper_cable_has_no_problem(values: dict[str, str]) -> None:
    module = parse_module(values)
    assert (module.celsius, module.weak_light, module.beyond_limits, module.faults) == (None, "", "", ())


@pytest.mark.parametrize(
    ("light", "width", "is_weak"),
    [
        ("1.9,1.8,-0.3,2.0 [-10.4..6]", "4x", True),
        ("1.9,1.8,0.1,2.0 [-10.4..6]", "4x", False),
        ("-11.6,-11.5,-11.5,-11.6 [-10.4..6]", "4x", True),
        ("-11.3,-11.3,-11.3,-11.3 [-10.4..6]", "4x", False),  # within the margin of 1 dB
        ("1.9,1.8,-40,-40 [-10.4..6]", "2x", False),  # a cable that is split uses two lanes
        ("1.9,1.8,-inf,2.0 [-10.4..6]", "4x", False),
    ],
)
def test_light_is_compared_among_the_lanes_in_use(light: str, width: str, is_weak: bool) -> None:
    module = parse_module(OPTICAL | {"Rx Power Current [dBm]": light, "Width": width})
    assert bool(module.weak_light) is is_weak


def test_values_beyond_the_modules_own_limits_are_named() -> None:
    module = parse_module(OPTICAL | {"Bias Current [mA]": "8.3,8.3,1.2,8.3 [2..15]"})
    assert "have a bias of 8.3, 8.3, 1.2, 8.3 mA" in module.beyond_limits


def test_faults_name_the_lane() -> None:
    module = parse_module(OPTICAL | {"Module FW Fault": "1", "Rx LOS [per lane]": "0,0,1,0"})
    assert module.faults == ("Module FW Fault", "Rx LOS in lane 3")


def test_per_lane_values_may_be_a_list() -> None:
    """MlxlinkCmdPrint makes one of some values."""
    text = json.loads(output(OPTICAL))
    text["result"]["output"]["Module Info"]["Tx Fault [per lane]"] = {"values": ["0", "1", "0", "0"]}
    module = parse_module_json(json.dumps(text))
    assert isinstance(module, Module)
    assert module.faults == ("Tx Fault in lane 2",)


def test_without_values_the_message_is_the_reason() -> None:
    module = parse_module_json(output({}, "No plugged cable detected"))
    assert isinstance(module, Unknown)
    assert module.detail == "No plugged cable detected"


@given(st.text() | st.dictionaries(st.text(), st.text() | st.lists(st.integers())).map(json.dumps))
def test_no_text_breaks_the_parser(text: str) -> None:
    parse_module_json(text)


@given(st.dictionaries(st.sampled_from([*OPTICAL]), st.text()))
def test_no_value_breaks_the_parser(values: dict[str, str]) -> None:
    module = parse_module_json(output(values or OPTICAL))
    assert isinstance(module, Module)
    assert isinstance(module.weak_light + module.beyond_limits, str)


def test_each_nic_is_asked_once_and_alone() -> None:
    host = Node()
    host.answer = output(OPTICAL)
    found = ask_modules(host, rdma_of(host))
    asked = [argv for argv in host.ran if argv[0] == "mlxlink"]
    assert asked == [("mlxlink", "-d", bdf, "-m", "--json") for bdf in found]
    assert all(isinstance(module, Module) for module in found.values())


def test_mstlink_is_asked_where_mlxlink_is_missing() -> None:
    host = Node()
    found = ask_modules(host, rdma_of(host))
    assert {argv[0] for argv in host.ran if "--json" in argv} >= {"mlxlink", "mstlink"}
    assert all("mstflint" in str(module) for module in found.values())


@pytest.mark.parametrize(
    ("answer", "exit_status", "root", "reason"),
    [
        ("-E- Failed to open device: 0000:18:00.0. Permission denied", 1, False, Reason.NEEDS_ROOT),
        (Unknown(Reason.TIMED_OUT, "mlxlink"), 0, True, Reason.TIMED_OUT),
    ],
)
def test_after_a_refusal_or_silence_no_other_nic_is_asked(
    answer: Maybe[str], exit_status: int, root: bool, reason: Reason
) -> None:
    host = Node()
    host.answer, host.exit_status, host.root = answer, exit_status, root
    rdma = rdma_of(host)
    host.ran.clear()
    found = ask_modules(host, rdma)
    assert len(host.ran) == 1
    assert {module.reason for module in found.values() if isinstance(module, Unknown)} == {reason}
