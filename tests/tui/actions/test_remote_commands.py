"""Commands of actions on another node: what its sudoers must allow, and what the commands get."""

import sys
from pathlib import Path

import pytest

from probes.host.machine.command import TRUSTED_PATH
from probes.host.remote import transport
from probes.host.remote.remote_host import RemoteHost
from tests.support.local_node import local_target, write_program
from tui.actions.local_commands import CommandResult, RemoteCommands

# sudo that allows one program, as a line of sudoers does, and is root by its own account.
SUDO = """
[ "$1" = -n ] || exit 9
shift
[ "$1" = -- ] && shift
[ "$1" = {allowed} ] || {{ echo "sudo: a password is required" >&2; exit 1; }}
echo "root runs $1"
exec "$@"
"""


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The path of a node's shell."""
    for command, target in (("sh", "/bin/sh"), ("env", "/usr/bin/env"), ("python3", sys.executable)):
        (tmp_path / command).symlink_to(target)
    return tmp_path


def run(node: Path, is_sudo: bool, *argv: str) -> tuple[CommandResult, list[str]]:
    """Run a command that needs root on a node that is read by a user."""
    lines: list[str] = []
    host = RemoteHost(local_target(node))
    try:
        commands = RemoteCommands(host)
        commands._is_root = False
        object.__setattr__(host.target, "is_sudo", is_sudo)
        return commands.run(argv, True, "", lines.append), lines
    finally:
        host.close()


@pytest.mark.slow
def test_sudoers_that_allow_only_python_are_enough_with_sudo(node: Path) -> None:
    write_program(node / "sudo", SUDO.format(allowed="python3"))
    result, lines = run(node, True, "printf", "%s.", "a b", "$HOME;'")
    assert (result.exit_status, lines) == (0, ["root runs python3", "a b.$HOME;'."])
    result, lines = run(node, True, "env")
    assert sorted(lines[1:]) == ["LC_ALL=C.UTF-8", f"PATH={':'.join(TRUSTED_PATH)}"]
    result, lines = run(node, True, "no-such-program")
    assert (result.exit_status, lines[1:]) == (1, ["no-such-program is not installed"])


def test_sudoers_that_allow_only_the_command_are_enough_without(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "CLEAN", ("env", f"PATH={node}"))
    write_program(node / "sudo", SUDO.format(allowed="uname"))
    (node / "uname").symlink_to("/usr/bin/uname")
    result, lines = run(node, False, "uname", "-s")
    assert (result.exit_status, lines) == (0, ["root runs uname", "Linux"])
    result, lines = run(node, False, "modprobe", "nvidia")
    assert (result.exit_status, result.wants_password) == (1, True)
