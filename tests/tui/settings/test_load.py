"""Where settings are read, in which order they count, and what is left out or refused."""

import os

import pytest

from probes.host import trusted_path
from tests.support.settings_machine import Machine
from tui.settings import merge
from tui.settings.load import load


def test_without_a_configuration_all_is_default(machine: Machine) -> None:
    found = load({})
    assert found.configured("interval").value == 1.0
    assert found.configured("interval").origin == "default"
    assert [file.state for file in found.files] == ["not there", "not there"]
    assert not found.errors
    assert not found.notes


def test_the_last_place_counts_value_by_value(machine: Machine) -> None:
    machine.site_file.write_text(
        "interval = 2\ntheme = 'a'\n[fleet]\nfanout = 10\ntimeout = 11\ntolerate = 1\n"
    )
    (machine.site / "config.d").mkdir()
    (machine.site / "config.d" / "20.toml").write_text("fleet.fanout = 20\ntheme = 'c'\n")
    (machine.site / "config.d" / "10.toml").write_text("theme = 'b'\nfleet.timeout = 22\n")
    (machine.site / "config.d" / ".hidden.toml").write_text("interval = 60\n")
    (machine.site / "config.d" / "10.toml.rpmsave").write_text("interval = 60\n")
    machine.user_file.write_text("[fleet]\n\n# mine\ntimeout = 33\n")
    found = load({"GDRTOP_FLEET_TOLERATE": "4", "HOME": "/"})
    assert {name: value.value for name, value in found.values.items()} == {
        "interval": 2.0,
        "theme": "c",
        "fleet.fanout": 20,
        "fleet.timeout": 33,
        "fleet.tolerate": 4,
    }
    assert found.configured("interval").origin == f"{machine.site_file}:1"
    assert found.configured("fleet.fanout").origin == f"{machine.site}/config.d/20.toml:1"
    assert found.configured("fleet.timeout").origin == f"{machine.user_file}:4"
    assert found.configured("fleet.tolerate").origin == "GDRTOP_FLEET_TOLERATE"
    assert found.configured("fleet.sudo").origin == "default"


def test_no_user_undoes_read_only_of_the_site(machine: Machine) -> None:
    machine.site_file.write_text("read_only = true\n")
    machine.user_file.write_text("read_only = false\n")
    found = load({"GDRTOP_READ_ONLY": "no"})
    assert found.configured("read_only").value is True
    assert found.configured("read_only").is_locked
    assert len(found.notes) == 2
    assert f"read_only = true in {machine.site_file}:1 cannot be undone" in found.notes[0]


def test_a_user_who_calls_the_sites_directory_their_own_undoes_nothing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(machine.site.parent))
    machine.site_file.write_text("read_only = true\n")
    assert load({"GDRTOP_READ_ONLY": "0"}).configured("read_only").value is True


def test_read_only_of_a_user_can_be_undone(machine: Machine) -> None:
    machine.user_file.write_text("read_only = true\n")
    assert load({}).configured("read_only").value is True
    assert load({"GDRTOP_READ_ONLY": "false"}).configured("read_only").value is False


def test_the_file_of_a_user_under_sudo_is_left_out_with_a_note(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.user_file.write_text("interval = 5\n")
    monkeypatch.setattr(trusted_path, "is_root", lambda: True)
    os.chmod(machine.home, 0o777)
    found = load({})
    assert not found.errors
    assert f"{machine.user_file} is not read: other users can write to {machine.home}" in found.notes[0]
    assert found.configured("interval").value == 1.0


def test_a_file_of_the_site_that_others_can_write_is_an_error(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left out, it could not forbid anything."""
    machine.site_file.write_text("read_only = true\n")
    monkeypatch.setattr(trusted_path, "is_root", lambda: True)
    os.chmod(machine.site_file, 0o666)
    found = load({})
    assert "other users can write to it (mode 0666), and gdrtop runs as root" in found.errors[0]


def test_as_root_a_command_is_read_from_the_site_only(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "[fleet]\nover = 'srun -w {host}'\n"
    machine.user_file.write_text(command)
    assert load({}).configured("fleet.over").value == "srun -w {host}" or os.geteuid() == 0
    monkeypatch.setattr(trusted_path, "is_root", lambda: True)
    found = load({})
    assert found.errors == (
        f"{machine.user_file}:2: fleet.over decides what runs; "
        "as root, gdrtop reads it only from /etc/gdrtop",
    )
    machine.user_file.unlink()
    variable = load({"GDRTOP_FLEET_OVER": "sh -c 'touch /tmp/x' {host}"})
    assert variable.errors == (
        "GDRTOP_FLEET_OVER decides what runs; as root, gdrtop reads it only from /etc/gdrtop",
    )
    assert variable.configured("fleet.over").value == ""
    machine.site_file.write_text(command)
    assert load({}).configured("fleet.over").value == "srun -w {host}"


def test_a_user_without_root_may_name_a_command(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trusted_path, "is_root", lambda: False)
    machine.user_file.write_text("[fleet]\nover = 'srun -w {host}'\n")
    assert load({}).configured("fleet.over").value == "srun -w {host}"


@pytest.mark.parametrize("form", ["{key} = 1", "[{key}]", "theme = {{{key} = 1}}", '"a".{key} = 1'])
def test_a_key_of_many_parts_is_an_error_before_it_is_parsed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """The parser's time grows with the square of the parts: 60,000 take most of a minute."""
    parsed: list[str] = []
    monkeypatch.setattr(merge, "parse_toml", lambda text: parsed.append(text) or {})
    machine.user_file.write_text("# comment\n" + form.format(key=".".join(["key"] * 60_000)))
    os.chmod(machine.user_file, 0o600)
    (error,) = load({}).errors
    assert error == f"{machine.user_file} is not valid TOML: a key has more than 64 parts (at line 2)"
    assert not parsed


def test_dots_in_texts_and_comments_are_no_parts_of_a_key(machine: Machine) -> None:
    dots = "a." * 100
    machine.user_file.write_text(f'theme = \'x\' # {dots}\nfleet.over = "\\"{dots}{{host}}"\n')
    assert not load({}).errors or os.geteuid() == 0
    machine.site_file.write_text(f"fleet.over = '{dots}{{host}}' # {dots}\n")
    assert load({}).configured("fleet.over").value == dots + "{host}"


def test_a_directory_in_place_of_a_file_is_an_error(machine: Machine) -> None:
    machine.site_file.mkdir()
    assert "it is a directory, not a configuration" in load({}).errors[0]


def test_variables_of_other_programs_are_ignored_and_typing_errors_are_not(machine: Machine) -> None:
    found = load({"GDRTOP_LONG": "1", "GDRTOP_FLEET_FANOUTS": "3"})
    assert found.notes == ("GDRTOP_FLEET_FANOUTS is not a setting; did you mean GDRTOP_FLEET_FANOUT?",)
    assert not found.errors
    assert load({"GDRTOP_INTERVAL": "fast"}).errors == (
        'GDRTOP_INTERVAL must be a number from 0.1 to 60, not "fast"',
    )
