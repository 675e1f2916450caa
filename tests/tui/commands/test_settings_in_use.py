"""Each setting does what it says, in the commands and the dashboard that use it."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

from probes.base.origin import Origin, Source
from tests.support.settings_machine import Machine
from tui import dashboard
from tui.bandwidth.session import expected_rows
from tui.cli import main
from tui.commands.fleet import fleet
from tui.settings.current import use
from tui.settings.load import load


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The options that gdrtop fleet is called with."""
    found: list[Any] = []
    monkeypatch.setattr(fleet, "run", lambda options, _: found.append(options) or 0)
    return found


@pytest.mark.slow
def test_actions_are_refused_with_the_line_that_forbids_them(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.site_file.write_text("# by order\nread_only = true\n")
    machine.user_file.write_text("read_only = false\n")
    assert main(["do", "--demo", "hgx-h100+acs-on", "fix:acs-redirect-enabled", "--yes"]) == 2
    captured = capsys.readouterr()
    said = re.sub(r"\s+", " ", captured.out + captured.err)
    assert f"gdrtop is read-only here ({machine.site_file}:2)" in said
    assert main(["bench", "--demo"]) == 2
    assert f"gdrtop is read-only here ({machine.site_file}:2)" in capsys.readouterr().err


def test_read_only_of_the_command_line_is_named_as_before(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--read-only", "bench", "--demo"]) == 2
    assert "gdrtop was started with --read-only" in capsys.readouterr().err


def test_a_fleet_is_read_as_configured_and_options_count_more(machine: Machine, asked: list[Any]) -> None:
    machine.site_file.write_text(
        "[fleet]\nfanout = 128\ntimeout = 9\nover = 'srun -w {host}'\nsudo = true\ntolerate = 2\n"
    )
    assert main(["fleet", "check", "-w", "gpu[1-2]", "--timeout", "10"]) == 0
    (options,) = asked
    assert (options.fan_out, options.timeout, options.tolerate) == (128, 10, 2)
    assert (options.over, options.sudo) == ("srun -w {host}", True)


def test_the_timeout_of_a_fleet_is_not_that_of_other_commands(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.user_file.write_text("[fleet]\ntimeout = 9\n")
    for command in ("ras", "bench", "record"):
        main([command, "--help"])
        assert str(machine.user_file.name) not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("theme = 'nrd'", r":1: there is no theme 'nrd'; did you mean nord\? The themes are ansi-dark, "),
        ("[keys]\nfix = 'q'", r":2: keys\.fix cannot be q, which is the key of quit"),
    ],
)
def test_the_dashboard_does_not_start_with_wrong_keys_or_theme(
    machine: Machine, text: str, message: str
) -> None:
    machine.user_file.write_text(text)
    use(load({}))
    assert re.search(message, dashboard.refusal())


def test_a_configured_table_of_expected_figures_is_used_and_has_to_exist(machine: Machine) -> None:
    table = machine.home / "expected.toml"
    machine.user_file.write_text(f"[bandwidth]\nexpected = '{table}'\n")
    use(load({}))
    host: Any = SimpleNamespace(origin=Origin(Source.LIVE))
    _, trouble = expected_rows(host)
    assert f"{table} cannot be read: No such file" in trouble
    table.write_text('[[pair]]\nname = "ours"\nport_gbps = 400\n')
    rows, trouble = expected_rows(host)
    assert trouble == ""
    assert rows[0].name == "ours"
