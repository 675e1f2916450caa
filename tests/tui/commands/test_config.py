"""`gdrtop config`, and what every command does with the configuration."""

import json
import re

import pytest
from jsonschema import Draft202012Validator

from tests.support.settings_machine import Machine
from tui.cli import main
from tui.commands.schema import schema_text

SILENCE = '[[silence]]\nid = "{id}"\nreason = "ticket 4711"\nuntil = 2099-12-31\n'


def shown(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> tuple[str, str]:
    assert main(arguments) == status
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_every_value_has_its_origin(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.site_file.write_text("read_only = true\n" + SILENCE.format(id="acs-redirect-enabled"))
    machine.user_file.write_text("interval = 2.5\n[keys]\nfix = 'f,f6'\n")
    text, _ = shown(capsys, "--sudo", "config")
    for row in (
        rf"interval +2\.5 +{machine.user_file}:1",
        rf"read_only +true +{machine.site_file}:1 \(no user can undo it\)",
        r"theme +\"ansi-dark\" +default",
        r"fleet\.sudo +true +command line",
        rf"keys\.fix +\"f,f6\" +{machine.user_file}:3",
        rf"  acs-redirect-enabled, until 2099-12-31: ticket 4711 \({machine.site_file}:2\)",
        rf"  {machine.user_file}  read",
    ):
        assert re.search(f"^{row}$", text, re.M), (row, text)


def test_the_paths_are_those_that_are_read(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    (machine.site / "config.d").mkdir()
    (machine.site / "config.d" / "a.toml").touch()
    text, _ = shown(capsys, "config", "--files")
    assert text.splitlines() == [
        str(machine.site_file),
        str(machine.site / "config.d" / "a.toml"),
        str(machine.user_file),
    ]


def test_the_json_is_what_the_schema_says(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.user_file.write_text("them = 1\n[keys]\nfix = ''\n" + SILENCE.format(id="nix"))
    text, _ = shown(capsys, "config", "--json", status=3)
    found = json.loads(text)
    Draft202012Validator(json.loads(schema_text("config"))).validate(found)
    assert len(found["errors"]) == 2
    assert found["silences"][0]["id"] == "nix"


def test_firmware_that_a_site_requires_is_shown(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.user_file.write_text('[[floor]]\nfirmware = ["28.43.8002", "28.46.3048"]\nreason = "Holes."\n')
    row = f"NVIDIA NICs, firmware from 28.43.8002 or 28.46.3048: Holes. ({machine.user_file}:1)"
    assert row in re.sub(r"\s+", " ", shown(capsys, "config")[0])
    found = json.loads(shown(capsys, "config", "--json")[0])
    Draft202012Validator(json.loads(schema_text("config"))).validate(found)
    assert found["floors"][0]["firmware"] == ["28.43.8002", "28.46.3048"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SILENCE.format(id="acs-redirect"), ":1: unknown check 'acs-redirect'; did you mean acs-"),
        ("[keys]\nfixx = 'f'", ":2: keys.fixx is not the name of a key; did you mean fix?"),
        ("[keys]\nfix = 'q'", ":2: keys.fix cannot be q, which is the key of quit"),
        ("[keys]\nquit = 'Q'", ":2: keys.quit cannot be changed"),
        ("[overview]\nhide = 'matrixx'", ":2: overview.hide has no panel 'matrixx'; did you mean matrix?"),
    ],
)
def test_it_finds_what_only_checks_and_screens_know(
    machine: Machine, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    machine.user_file.write_text(text)
    assert message in re.sub(r"\s+", " ", shown(capsys, "config", status=3)[0])


def test_with_an_error_nothing_runs(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.user_file.write_text("intervall = 2\n[fleet]\nsudo = 'yes'\n")
    out, error = shown(capsys, "check", "--demo", status=3)
    assert out == ""
    assert 'unknown key "intervall"; did you mean interval?' in error
    assert "fleet.sudo must be true or false" in error
    assert shown(capsys, "help", "config")[0]
    assert shown(capsys, "--version")[0]
    assert "Errors" in shown(capsys, "config", status=3)[0]


def test_a_note_is_printed_beside_the_output(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.site_file.write_text("read_only = true\n")
    machine.user_file.write_text("read_only = false\n")
    out, error = shown(capsys, "topo", "--demo", "--format", "dot")
    assert out.startswith("graph") or "graph" in out
    assert "cannot be undone" in error


def test_options_have_the_configured_defaults_and_say_so(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.user_file.write_text("interval = 7\n[fleet]\nfanout = 128\n")
    top, fleet = ("".join(shown(capsys, *words, "--help")[0].split()) for words in ((), ("fleet", "check")))
    assert f"(default:7.0,from{machine.user_file}:1)" in top
    assert f"(default:128,from{machine.user_file}:3)" in fleet
    assert "(default:60)" in fleet


def test_only_one_form_is_printed(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert "use only one of" in shown(capsys, "config", "--files", "--json", status=3)[1]
