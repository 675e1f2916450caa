"""Completion in bash, zsh and fish: what Tab offers, by scripts that are made from the command line."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tui.cli import command_parser, main
from tui.command_line.arguments import words
from tui.commands.completion import SHELLS, script

TAB = """\
. "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_shtab_gdrtop 2>/dev/null
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("completion") / "gdrtop.bash"
    file.write_text(script("bash", command_parser()), encoding="utf-8")
    return file


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_a_shell_is_printed(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    assert "acs-redirect-enabled" in printed
    file = tmp_path / "script"
    file.write_text(printed, encoding="utf-8")
    if shutil.which(shell):
        assert subprocess.run([shell, "-n", file]).returncode == 0


def offered(completion: Path, *typed: str, path: Path | None = None) -> list[str]:
    """What bash offers at Tab behind these words, by this script; `path`: where programs are found first."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    environment = {"PATH": f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"]}
    argv = [bash, "--norc", "-c", TAB, "bash", str(completion), "gdrtop", *typed]
    done = subprocess.run(argv, capture_output=True, text=True, env=environment)
    return done.stdout.split()


def test_tab_offers_commands_options_and_their_values(tmp_path: Path, bash_script: Path) -> None:
    assert offered(bash_script, "che") == ["check"]
    assert "--after-reboot" not in offered(bash_script, "check", "--af")
    assert "--image" in offered(bash_script, "forecast", "--im")
    assert offered(bash_script, "check", "acs-redirect-en") == ["acs-redirect-enabled"]
    assert offered(bash_script, "fleet", "wa") == ["watch"]
    assert offered(bash_script, "manifest", "boot") == ["boot-check"]
    assert offered(bash_script, "do", "load-p") == ["load-peermem"]
    program = tmp_path / "gdrtop"
    program.write_text('#!/bin/sh\n[ "$1 $2" = "__complete demos" ] && echo "$3pcie"\n')
    program.chmod(0o755)
    assert offered(bash_script, "--demo", "hgx-h100+", path=tmp_path) == ["hgx-h100+pcie"]


def test_tab_behind_a_plus_offers_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert "hgx-h100" in words("demos")
    assert words("demos", "gb") == ("gb200", "gb300")
    assert "hgx-h100+acs-on" in words("demos", "hgx-h100+ac")
    assert main(["__complete", "demos", "hgx-h100+port-down,no-gdr"]) == 0
    assert "hgx-h100+port-down,no-gdr-path" in capsys.readouterr().out.split()
    assert words("nothing") == ()


def test_tab_offers_the_nodes_that_ssh_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert words("hosts") == ()
    (tmp_path / ".ssh").mkdir()
    config = tmp_path / ".ssh" / "config"
    config.write_bytes(
        b"Host gpu01 gpu02 *.cluster !old\n  HostName 10.0.0.1\nhost=login\nHost \x1b[2J \xff\xfe\n"
    )
    (tmp_path / ".ssh" / "known_hosts").write_text("gpu03,10.0.0.3 ssh-ed25519 AAAA\n|1|hash= ssh-rsa A\n")
    assert words("hosts") == ("10.0.0.3", "gpu01", "gpu02", "gpu03", "login")
    assert words("hosts", "gpu03") == ("gpu03",)
    config.unlink()
    os.mkfifo(config)
    assert "gpu03" in words("hosts")
    config.unlink()
    config.mkdir()
    assert "gpu03" in words("hosts")


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "csh"]) == 3
    assert "SHELL" in capsys.readouterr().err
