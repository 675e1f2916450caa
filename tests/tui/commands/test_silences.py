"""What an admin sees of silenced findings: in check, its JSON and exit status, and in the doctor."""

import json
import re
from datetime import date

import pytest
from jsonschema import Draft202012Validator

from probes.checks.judgment import judge
from probes.live.job_examination import examine_with_jobs
from probes.simulation.host import SimulatedHost
from tests.support.settings_machine import Machine
from tui.cli import main
from tui.commands.schema import schema_text
from tui.screens.doctor.state import DoctorState
from tui.settings.current import use
from tui.settings.load import load
from widgets.base.lines import plain

NODE = "hgx-h100+acs-on"
TEXT = '[[silence]]\nid = "acs-redirect-enabled"\nreason = "BIOS update, ticket 4711"\nuntil = {until}\n'


def checked(capsys: pytest.CaptureFixture[str], *arguments: str, status: int) -> str:
    assert main(["check", "--demo", NODE, *arguments]) == status
    return capsys.readouterr().out


@pytest.mark.slow
def test_check_lists_and_counts_it_with_reason_and_date(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.user_file.write_text(TEXT.format(until="2099-12-31"))
    text = checked(capsys, status=0)
    assert "8 of 10 NICs · 1 silenced\n" in text
    assert "\n1 silenced; " in text
    assert (
        "– ACS redirect is enabled between GPU and NIC"
        "  silenced until 2099-12-31: BIOS update, ticket 4711" in text
    )
    assert "\nImpact" not in text
    details = checked(capsys, "acs-redirect-enabled", status=0)
    assert f"silenced until 2099-12-31: BIOS update, ticket 4711 ({machine.user_file}:1)" in details
    assert "\nFix" in details


def test_an_expired_silence_counts_again_and_says_so(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.user_file.write_text(TEXT.format(until="2020-01-31"))
    text = checked(capsys, status=1)
    assert "silenced;" not in text
    assert "silence expired after 2020-01-31: BIOS update, ticket 4711" in text


@pytest.mark.slow
@pytest.mark.parametrize(("until", "status"), [("2099-12-31", 0), ("2020-01-31", 1)])
def test_the_json_has_the_silence(
    machine: Machine, capsys: pytest.CaptureFixture[str], until: str, status: int
) -> None:
    machine.user_file.write_text(TEXT.format(until=until))
    found = json.loads(checked(capsys, "--json", "--all", status=status))
    Draft202012Validator(json.loads(schema_text("check"))).validate(found)
    (listed,) = found["findings"] if status else found["silenced"]
    assert listed["silence"] == {
        "device": None,
        "reason": "BIOS update, ticket 4711",
        "until": until,
        "origin": f"{machine.user_file}:1",
        "expired": bool(status),
    }
    assert found["verdict"]["silenced"] == 1 - status


def test_the_doctor_lists_it_and_still_offers_its_fix(machine: Machine) -> None:
    machine.user_file.write_text(TEXT.format(until=date.max.isoformat()))
    use(load({}))
    state = DoctorState()
    examination = examine_with_jobs(SimulatedHost(NODE))
    state.set_examination(examination, judge(examination))
    assert "silenced until 9999-12-31" in "\n".join(map(plain, state.list_lines(120)))
    state.select(1)
    state.selected = "acs-redirect-enabled"
    assert state.has_fix
    assert "BIOS update, ticket 4711" in "\n".join(map(plain, state.detail_lines(120)))


@pytest.mark.parametrize(
    "arguments", [["fleet", "--demo", f"hgx-h100,{NODE}"], ["diff", "demo:hgx-h100", f"demo:{NODE}"]]
)
def test_a_fleet_counts_it_and_keeps_the_node_apart(
    machine: Machine, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    machine.user_file.write_text(TEXT.format(until="2099-12-31"))
    main(arguments)
    text = capsys.readouterr().out
    assert "2 nodes: 2 ACTIVE · 1 with silenced findings\n" in text
    assert re.search(r"8 of 10 NICs · 1 silenced  \S+\n", text)
    assert re.search(r"8 of 10 NICs  \S+\n", text)


@pytest.mark.parametrize(
    ("option", "said"), [(["--one-line"], ", 1 silenced\n"), (["--for", "nagios"], ", 1 silenced | ")]
)
def test_a_line_for_others_counts_it(
    machine: Machine, capsys: pytest.CaptureFixture[str], option: list[str], said: str
) -> None:
    machine.user_file.write_text(TEXT.format(until="2099-12-31"))
    assert said in checked(capsys, *option, status=0)


@pytest.mark.parametrize(("nodes", "word"), [("hgx-h[100-101]", "ACTIVE"), ("gpu[17-18]", "DEGRADED")])
def test_it_holds_for_a_set_of_nodes(
    machine: Machine, capsys: pytest.CaptureFixture[str], nodes: str, word: str
) -> None:
    machine.user_file.write_text(f'{TEXT.format(until="2099-12-31")}nodes = "{nodes}"\n')
    main(["check", "--one-line", "--demo", NODE])
    assert word in capsys.readouterr().out


def test_what_is_no_set_of_nodes_is_an_error(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    for nodes, said in (("gpu[1-", "is not a set of nodes"), ("", "no node is named")):
        machine.user_file.write_text(f'{TEXT.format(until="2099-12-31")}nodes = "{nodes}"\n')
        assert main(["check", "--demo", NODE]) == 3
        assert said in capsys.readouterr().err
