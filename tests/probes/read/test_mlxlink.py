"""What mlxlink's output means for a port."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.messages.message import Weight
from tests.support.read_texts import found_in, kinds_of, read, serious_in

GOOD = {
    "Operational Info": {
        "State": "Active",
        "Physical state": "LinkUp",
        "Speed": "IB-NDR",
        "Width": "4x",
        "FEC": "RS-FEC - (544,514) + PLR",
        "Loopback Mode": "No Loopback",
    },
    "Troubleshooting Info": {"Status Opcode": "0", "Recommendation": "No issue was observed"},
    "Tool Information": {"Firmware Version": "28.43.1014", "amBER Version": "3.6"},
    "Module Info": {
        "Temperature [C]": "54 [-5..75]",
        "Rx Power Current [dBm]": "1.8,1.9,2.2,1.9 [-10.41..6]",
        "Identifier": "OSFP",
    },
    "Physical Counters and BER Info": {
        "Time Since Last Clear [Min]": "600.5",
        "Effective Physical BER": "15E-255",
        "Raw Physical BER": "2E-9",
        "Link Down Counter": "0",
    },
}


def mlxlink(command: str = "", **values: str) -> str:
    """Return an output; values by their names, with _ for blanks."""
    lines = [f"u@n1:~$ {command}"] if command else []
    for title, rows in GOOD.items():
        lines += ["", title, "-" * len(title)]
        new = {
            name: values.get(name.partition(" [")[0].replace(" ", "_"), value) for name, value in rows.items()
        }
        lines += [f"{name:<35}: {value}" for name, value in new.items()]
    return "\n".join([*lines, ""])


def test_a_good_port_is_shown_and_nothing_is_found() -> None:
    reading = read(mlxlink("sudo mlxlink -d mlx5_3 -m -c"))
    assert reading.shown[0].startswith("mlx5_3: Active, LinkUp, IB-NDR, 4x")
    assert "firmware 28.43.1014" in reading.shown[0]
    assert "Not in the text" not in reading.shown[0]
    assert (reading.statements, reading.unread) == ((), 0)


def test_what_the_text_does_not_show_is_named() -> None:
    text = mlxlink().partition("Module Info")[0]
    assert "Not in the text: bit errors (mlxlink -c), the module (mlxlink -m)." in read(text).shown[0]


def test_a_port_that_is_down_quotes_the_recommendation() -> None:
    text = mlxlink(
        State="Down", Physical_state="Polling", Status_Opcode="1024", Recommendation="Cable is unplugged."
    )
    statement = found_in(text)["mlxlink-port-down"]
    assert "(Down, Polling)" in statement.title
    assert "“Cable is unplugged” (status 1024)" in statement.cause
    assert statement.fix == "Plug in the cable."
    assert "subnet manager" in found_in(mlxlink(State="Initialize"))["mlxlink-port-down"].fix


@pytest.mark.parametrize(
    ("values", "name", "weight"),
    [
        ({"Status_Opcode": "15", "Recommendation": "Bad signal integrity"}, "port-status", Weight.WARNING),
        ({"Loopback_Mode": "External Loopback"}, "loopback", Weight.WARNING),
        ({"Effective_Physical_BER": "2E-11"}, "bit-errors", Weight.WARNING),
        ({"Effective_Physical_BER": "6E-12"}, "bit-errors", Weight.NOTE),
        ({"Effective_Physical_BER": "2E-11", "Time_Since_Last_Clear": "3.0"}, "bit-errors", Weight.NOTE),
        ({"Raw_Physical_BER": "2E-5"}, "bit-errors", Weight.WARNING),
        ({"Raw_Physical_BER": "2E-6"}, "bit-errors", Weight.NOTE),
        ({"Link_Down_Counter": "3"}, "link-downs", Weight.WARNING),
        ({"Link_Down_Counter": "3", "Time_Since_Last_Clear": "9000"}, "link-downs", Weight.NOTE),
        ({"Temperature": "76 [-5..75]"}, "module-hot", Weight.WARNING),
        ({"Temperature": "71"}, "module-hot", Weight.NOTE),
        ({"Rx_Power_Current": "1.8,1.9,-2.2,1.9 [-10.41..6]"}, "weak-light", Weight.WARNING),
    ],
)
def test_a_fault_is_found(values: dict[str, str], name: str, weight: Weight) -> None:
    assert {found: row.weight for found, row in found_in(mlxlink(**values)).items()} == {
        f"mlxlink-{name}": weight
    }


@pytest.mark.parametrize(
    "values",
    [
        {"Temperature": "N/A", "Rx_Power_Current": "N/A"},  # a copper cable
        {"Temperature": "125 [-5..75]"},  # a failed reading
        {"Rx_Power_Current": "1.8,-40,-40,1.9 [-10.41..6]", "Width": "2x"},  # a cable that is split
        {"Raw_Physical_BER": "N/A", "Link_Down_Counter": "1E999"},
    ],
)
def test_what_is_no_fault_is_not_found(values: dict[str, str]) -> None:
    assert found_in(mlxlink(**values)) == {}


def test_json_and_several_ports_are_read() -> None:
    bad = {**GOOD, "Operational Info": {"State": "Down", "Physical state": "Disabled"}}
    text = json.dumps({"result": {"output": bad}, "status": {"code": 0}}, indent=3)
    assert kinds_of(text) == {"mlxlink"}
    assert serious_in(text) == {"mlxlink-port-down"}
    assert len(read(mlxlink() + mlxlink(State="Down")).statements) == 1


@given(st.text(alphabet='ABE0123456789 :."[]{},-%\n', max_size=300), st.sampled_from(sorted(GOOD)))
def test_any_lines_are_read_without_a_crash(text: str, title: str) -> None:
    for name in GOOD[title]:
        read(f"Operational Info\n{name} : {text}")


def module(celsius: float, third: float, alarm: str = "Off") -> str:
    """Return lines of ethtool -m, as in posts on mailing lists."""
    power = "".join(
        f"\tRcvr signal avg optical power(Channel {number})  : 0.4898 mW / {dbm:.2f} dBm\n"
        for number, dbm in enumerate((-3.1, -3.2, third, -3.1), 1)
    )
    return (
        "u@n1:~$ sudo ethtool -m ens1np0\n"
        "\tIdentifier                                : 0x11 (QSFP28)\n"
        "\tVendor name                               : NVIDIA\n"
        f"\tModule temperature                        : {celsius:.2f} degrees C / 100.40 degrees F\n{power}"
        f"\tLaser rx power low alarm (Channel 3)      : {alarm}\n"
        "\tLaser rx power high alarm threshold       : 1.0000 mW / 0.00 dBm\n"
        "\tLaser rx power low alarm threshold        : 0.0100 mW / -20.00 dBm\n"
        "\tModule temperature high alarm threshold   : 70.00 degrees C / 158.00 degrees F\n"
        "\tModule temperature low alarm threshold    : -5.00 degrees C / 23.00 degrees F\n"
    )


def test_a_module_in_ethtool_is_judged_as_in_mlxlink() -> None:
    assert found_in(module(50, -3.1)) == {}
    assert "Link state and bit errors are not in the text" in read(module(50, -3.1)).shown[0]
    assert found_in(module(72, -3.1))["mlxlink-module-hot"].weight is Weight.WARNING
    assert found_in(module(66, -3.1))["mlxlink-module-hot"].weight is Weight.NOTE
    assert "ens1np0" in found_in(module(50, -9.1))["mlxlink-weak-light"].title
    assert "low alarm (Channel 3)" in found_in(module(50, -3.1, "On"))["mlxlink-module-alarm"].cause
