"""A setting chosen in the dashboard: the file keeps all that the user has written into it."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.settings_machine import Machine
from tui.files import NotWritten
from tui.settings import save as save_module
from tui.settings.load import load
from tui.settings.save import save, with_value
from tui.settings.table import template

ORIGINAL = """\
# mine
interval = 2   # slow
theme = 'nord'  # as in my editor
keys.fix = "f6"

[fleet]
fanout = 8
"""


@pytest.fixture(autouse=True)
def user(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who is not root, whoever runs the tests."""
    monkeypatch.setattr(save_module, "why_not_as_root", lambda _: "")
    monkeypatch.setattr(save_module, "is_root", lambda: False)


def test_only_the_value_changes() -> None:
    assert with_value(ORIGINAL, "theme", "dracula") == ORIGINAL.replace("'nord'", '"dracula"')


def test_a_new_value_stands_where_the_template_has_it() -> None:
    changed = with_value(template(), "theme", "nord").splitlines()
    assert changed[changed.index('theme = "nord"') - 1] == '# theme = "ansi-dark"'
    assert sorted(changed) == sorted([*template().splitlines(), 'theme = "nord"'])


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("", "theme", 'theme = "x"\n'),
        ("[fleet]\nfanout = 8\n", "theme", 'theme = "x"\n[fleet]\nfanout = 8\n'),
        ("[fleet]\nfanout = 8\n", "fleet.over", '[fleet]\nover = "x"\nfanout = 8\n'),
        ("[fleet]\nover = 'y'\n", "fleet.over", '[fleet]\nover = "x"\n'),
        ("fleet.fanout = 8\n", "fleet.over", 'fleet.over = "x"\nfleet.fanout = 8\n'),
        ("interval = 2", "fleet.over", 'interval = 2\n\n[fleet]\nover = "x"\n'),
        (
            "# [fleet]\n# over = ''\ninterval = 2\n",
            "fleet.over",
            "# [fleet]\n# over = ''\ninterval = 2\n\n[fleet]\nover = \"x\"\n",
        ),
        ("# [fleet]\n# how\n# over = ''\n", "fleet.over", "[fleet]\n# how\n# over = ''\nover = \"x\"\n"),
        ("[keys]\nfix = 'f'\n# theme = ''\n", "theme", "theme = \"x\"\n[keys]\nfix = 'f'\n# theme = ''\n"),
    ],
)
def test_the_value_is_put_where_it_is_valid(text: str, name: str, expected: str) -> None:
    assert with_value(text, name, "x") == expected


@pytest.mark.parametrize(
    ("text", "name", "why"),
    [
        ("theme = ", "theme", "Invalid value"),
        ("theme = '''\nnord'''\n", "theme", "cannot change theme in the form that it has there"),
        ("fleet = {fanout = 8}\n", "fleet.over", "cannot change fleet.over in the form"),
        ("fleet = 8\n", "fleet.over", "fleet is not a table"),
    ],
)
def test_what_cannot_be_changed_is_said(text: str, name: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        with_value(text, name, "x")


@pytest.mark.slow
@given(st.text(), st.sampled_from(["theme", "fleet.over"]), st.text(st.characters(min_codepoint=32)))
def test_any_text_is_changed_or_refused(text: str, name: str, value: str) -> None:
    try:
        changed = with_value(text, name, value)
    except (ValueError, RecursionError):
        return
    assert with_value(changed, name, value) == changed


def test_a_saved_setting_is_in_force_at_the_next_start(machine: Machine) -> None:
    assert save("theme", "nord") == str(machine.user_file)
    assert stat.S_IMODE(machine.user_file.stat().st_mode) == 0o600
    found = load({})
    assert not found.errors
    assert found.configured("theme").value == "nord"


def test_mode_and_link_stay(machine: Machine, tmp_path: Path) -> None:
    target = tmp_path / "gdrtop.toml"
    target.write_text(ORIGINAL)
    target.chmod(0o640)
    machine.user_file.symlink_to(target)
    save("theme", "dracula")
    assert machine.user_file.is_symlink()
    assert 'theme = "dracula"' in target.read_text()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_file_that_is_not_valid_stays_as_it_is(machine: Machine) -> None:
    for content in (b"theme = ", b"theme = 'nord\xff'"):
        machine.user_file.write_bytes(content)
        with pytest.raises(
            NotWritten, match=r"config\.toml stays as it is: .*; edit it, and check it with gdrtop config"
        ):
            save("theme", "nord")
        assert machine.user_file.read_bytes() == content
        assert os.listdir(machine.user_file.parent) == ["config.toml"]


def test_root_does_not_write_into_the_home_of_a_user(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_module, "why_not_as_root", lambda path: f"{path} belongs to uid 1000")
    with pytest.raises(NotWritten, match="belongs to uid 1000"):
        save("theme", "nord")
    assert not machine.user_file.exists()


def test_root_saves_nothing_that_it_would_not_read(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save_module, "is_root", lambda: True)
    machine.home.chmod(0o777)
    with pytest.raises(NotWritten, match=r"would not be read: .*(other users can write|belongs to)"):
        save("theme", "nord")
    assert not machine.user_file.exists()


def test_a_directory_that_cannot_be_made_is_said(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine.home / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(machine.home / "file"))
    with pytest.raises(NotWritten, match=r"cannot be (created|edited)"):
        save("theme", "nord")
