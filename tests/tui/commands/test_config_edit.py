"""`gdrtop config --edit`: a copy is edited, checked, and only then replaces the file."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.settings_machine import Machine
from tui.cli import main
from tui.commands import config as edit_module

Editor = Callable[[str], None]


@pytest.fixture
def editor(machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Editor:
    """Let the editor of a user, who is not root, run this shell script on "$1"."""
    monkeypatch.setattr(edit_module, "is_root", lambda: False)
    monkeypatch.delenv("VISUAL", raising=False)

    def use(script: str) -> None:
        file = tmp_path / "an editor"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        monkeypatch.setenv("EDITOR", f"'{file}' --wait")

    return use


def copies(machine: Machine) -> list[str]:
    return [name for name in os.listdir(machine.user_file.parent) if name != "config.toml"]


def test_a_new_file_begins_with_all_settings(
    machine: Machine, editor: Editor, capsys: pytest.CaptureFixture[str]
) -> None:
    editor('echo "interval = 3" > "$2.new"; cat "$2" >> "$2.new"; mv "$2.new" "$2"')
    assert main(["config", "--edit"]) == 0
    assert capsys.readouterr().out == f"saved {machine.user_file}\n"
    text = machine.user_file.read_text()
    assert text.startswith("interval = 3\n")
    assert "# fanout = 64\n" in text
    assert stat.S_IMODE(machine.user_file.stat().st_mode) == 0o600
    assert not copies(machine)


def test_the_file_keeps_its_mode(machine: Machine, editor: Editor) -> None:
    machine.user_file.write_text("interval = 2\n")
    machine.user_file.chmod(0o640)
    editor('echo "interval = 3" > "$2"')
    assert main(["config", "--edit"]) == 0
    assert machine.user_file.read_text() == "interval = 3\n"
    assert stat.S_IMODE(machine.user_file.stat().st_mode) == 0o640


def test_a_link_stays_a_link(machine: Machine, editor: Editor, tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    target = tmp_path / "dotfiles" / "gdrtop.toml"
    target.write_text("interval = 2\n")
    machine.user_file.symlink_to(target)
    editor('echo "interval = 3" > "$2"')
    assert main(["config", "--edit"]) == 0
    assert machine.user_file.is_symlink()
    assert target.read_text() == "interval = 3\n"


def test_what_is_wrong_is_not_saved(
    machine: Machine, editor: Editor, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.user_file.write_text("interval = 2\n")
    editor('echo "intervall = 3" > "$2"')
    assert main(["config", "--edit"]) == 3
    error = capsys.readouterr().err
    assert f"{machine.user_file}:1: unknown key" in error
    (copy,) = copies(machine)
    assert f"your copy is {machine.user_file.parent / copy}" in error
    assert machine.user_file.read_text() == "interval = 2\n"


def test_what_another_program_wrote_meanwhile_is_not_lost(
    machine: Machine, editor: Editor, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.user_file.write_text("interval = 2\n")
    editor(f'echo "interval = 3" > "$2"; echo "interval = 4" > "{machine.user_file}"')
    assert main(["config", "--edit"]) == 3
    assert "changed meanwhile; your copy is" in capsys.readouterr().err
    assert machine.user_file.read_text() == "interval = 4\n"


def test_nothing_is_saved_without_a_change(
    machine: Machine, editor: Editor, capsys: pytest.CaptureFixture[str]
) -> None:
    editor("true")
    assert main(["config", "--edit"]) == 0
    assert "is unchanged" in capsys.readouterr().out
    assert not machine.user_file.exists()
    assert not copies(machine)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/no/such/editor", "cannot be started: No such file"),
        ("'", "cannot be started"),
        ("false", "exit status 1"),
    ],
)
def test_an_editor_that_fails_changes_nothing(
    machine: Machine,
    editor: Editor,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    message: str,
) -> None:
    monkeypatch.setenv("EDITOR", name)
    assert main(["config", "--edit"]) == 3
    assert message in capsys.readouterr().err
    assert not machine.user_file.exists()
