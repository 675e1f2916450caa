"""What clients of a cluster get: the admin's files, and as root only those that root alone can change."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes.base.site import ClusterPlaces, Site, set_site
from probes.base.unknown import Reason, Unknown
from probes.host import trusted_path
from probes.host.machine import command
from probes.host.machine.command import find_command, run_command
from probes.host.protocol import CommandOutput
from tui.actions.local_commands import LocalCommands
from tui.settings.current import use
from tui.settings.merge import merge


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config"
    path.write_text("apiVersion: v1\n")
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setenv("HOME", str(tmp_path))
    return path


def as_user(monkeypatch: pytest.MonkeyPatch, user: int) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)


def owned_by(monkeypatch: pytest.MonkeyPatch, users: dict[str, tuple[int, int]]) -> None:
    """Let files have other owners and modes than they have: path -> user and mode; others are root's."""
    real = os.lstat

    def stat(path: str) -> os.stat_result:
        found = list(real(path))
        user, mode = users.get(str(path), (0, 0o755))
        found[0] = (found[0] & ~0o7777) | mode
        found[4] = user
        return os.stat_result(found)

    monkeypatch.setattr(os, "lstat", stat)


def test_a_user_keeps_the_own_kubeconfig(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, 1000)
    home = str(kubeconfig.parent)
    assert command.cluster_login() == {"HOME": home, "KUBERC": "off", "KUBECONFIG": str(kubeconfig)}
    monkeypatch.delenv("KUBECONFIG")
    in_home = f"{home}/.kube/config"
    assert command.cluster_login() == {"HOME": home, "KUBERC": "off", "KUBECONFIG": in_home}


def test_root_uses_a_kubeconfig_of_root(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, 0)
    owned_by(monkeypatch, {})
    login = command.cluster_login()
    assert login == {"HOME": str(kubeconfig.parent), "KUBERC": "off", "KUBECONFIG": str(kubeconfig)}


@pytest.mark.parametrize(("user", "mode"), [(1000, 0o600), (0, 0o664), (0, 0o602)])
@pytest.mark.parametrize("what", ["file", "directory"])
def test_root_refuses_a_kubeconfig_that_others_can_change(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, user: int, mode: int, what: str
) -> None:
    """It can name a program that kubectl runs to log in."""
    as_user(monkeypatch, 0)
    changed = kubeconfig if what == "file" else kubeconfig.parent
    owned_by(monkeypatch, {os.path.realpath(changed): (user, mode)})
    login = command.cluster_login()
    assert isinstance(login, Unknown)
    assert login.reason is Reason.NEEDS_PERMISSION
    assert str(changed) in login.detail


def test_root_gets_what_a_link_leads_to_and_no_link_that_another_user_can_turn(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the check and kubectl, the owner of the directory of a link could turn it."""
    as_user(monkeypatch, 0)
    (kubeconfig.parent / "links").mkdir()
    link = kubeconfig.parent / "links" / "config"
    link.symlink_to(kubeconfig)
    monkeypatch.setenv("KUBECONFIG", str(link))
    owned_by(monkeypatch, {})
    login = command.cluster_login()
    assert not isinstance(login, Unknown)
    assert login["KUBECONFIG"] == str(kubeconfig)
    owned_by(monkeypatch, {str(link.parent): (1000, 0o755)})
    refused = command.cluster_login()
    assert isinstance(refused, Unknown)
    assert f"{link.parent} belongs to uid 1000" in refused.detail


def test_root_without_a_kubeconfig_gets_no_path_that_others_can_create(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_user(monkeypatch, 0)
    kubeconfig.unlink()
    owned_by(monkeypatch, {os.path.realpath(kubeconfig.parent): (1000, 0o755)})
    assert command.cluster_login() == {"KUBECONFIG": os.devnull}


def test_root_with_a_kubeconfig_that_is_gone_gets_no_other_one(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_user(monkeypatch, 0)
    kubeconfig.unlink()
    in_home = kubeconfig.parent / ".kube" / "config"
    in_home.parent.mkdir()
    in_home.write_text("apiVersion: v1\n")
    owned_by(monkeypatch, {os.path.realpath(in_home): (1000, 0o600)})
    assert command.cluster_login() == {
        "HOME": str(kubeconfig.parent),
        "KUBERC": "off",
        "KUBECONFIG": os.devnull,
    }


@pytest.fixture
def slurm_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "slurm.conf"
    path.write_text("ClusterName=test\n")
    monkeypatch.setenv("SLURM_CONF", str(path))
    return path


@pytest.fixture(autouse=True)
def places() -> Iterator[None]:
    yield
    set_site(Site(places=ClusterPlaces()))


def test_each_client_gets_its_own_variable_from_the_reader_and_the_runner(
    kubeconfig: Path, slurm_conf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_user(monkeypatch, 1000)
    monkeypatch.setattr(command, "TRUSTED_PATH", (str(tmp_path), "/usr/bin", "/bin"))
    wanted = {"kubectl": f"KUBECONFIG={kubeconfig}", "scontrol": f"SLURM_CONF={slurm_conf}", "tool": ""}
    for name, variable in wanted.items():
        (tmp_path / name).write_text("#!/bin/sh\nenv\n")
        (tmp_path / name).chmod(0o755)
        output = run_command([name], 10)
        assert isinstance(output, CommandOutput)
        lines: list[str] = []
        assert LocalCommands().run([name], False, "", lines.append).exit_status == 0
        for printed in (output.stdout.splitlines(), lines):
            assert [line for line in printed if "CONF" in line] == [variable][: bool(variable)]


@pytest.mark.parametrize(
    ("owner", "mode", "is_used"),
    [("root", 0o644, True), ("slurm", 0o644, True), ("alice", 0o644, False), ("root", 0o666, False)],
)
def test_root_uses_a_slurm_conf_of_root_and_of_slurm(
    slurm_conf: Path, monkeypatch: pytest.MonkeyPatch, owner: str, mode: int, is_used: bool
) -> None:
    """It can name plugins, which every command of Slurm loads."""
    as_user(monkeypatch, 0)
    user = {"root": 0, "slurm": 64030, "alice": 1000}[owner]
    owned_by(monkeypatch, {os.path.realpath(slurm_conf): (user, mode)})
    monkeypatch.setattr(trusted_path, "user_name", {64030: "slurm", 1000: "alice"}.get)
    found = command.client_environment("sinfo")
    if is_used:
        assert found == {"SLURM_CONF": str(slurm_conf)}
    else:
        assert isinstance(found, Unknown)
        assert found.reason is Reason.NEEDS_PERMISSION
        assert str(slurm_conf) in found.detail
        refused = LocalCommands()._environment("scontrol")
        assert isinstance(refused, Unknown)


def test_a_slurm_conf_that_is_gone_is_named(slurm_conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, 0)
    owned_by(monkeypatch, {})
    slurm_conf.unlink()
    found = command.client_environment("squeue")
    assert isinstance(found, Unknown)
    assert str(slurm_conf) in found.detail


@pytest.mark.parametrize(
    ("words", "variable", "wanted"),
    [
        (["-D"], "/cm/slurm.conf", "/cm/slurm.conf"),
        (["-D", "-f", "/site/slurm.conf"], "/cm/slurm.conf", "/site/slurm.conf"),
        (["-D"], "", ""),
    ],
)
def test_a_health_check_uses_the_file_of_its_slurmd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], variable: str, wanted: str
) -> None:
    """It gets no SLURM_CONF from slurmd, which may have one; a shell is between them."""
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setenv("SLURMD_NODENAME", "gpu01")
    slurmd = tmp_path / "slurmd"
    slurmd.symlink_to(sys.executable)
    code = "import subprocess; subprocess.run(['sh', '-c', 'echo $$; read line'])"
    environment = {**os.environ, **({"SLURM_CONF": variable} if variable else {})}
    with subprocess.Popen(
        [slurmd, "-c", code, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as started:
        assert started.stdout is not None
        shell = int(started.stdout.readline())
        assert command.slurmds_configuration(shell) == wanted
        monkeypatch.delenv("SLURMD_NODENAME")
        assert command.slurmds_configuration(shell) == ""
        started.communicate(b"\n")


def test_the_site_names_the_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    for name in ("sinfo", "tool"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    as_user(monkeypatch, 1000)
    monkeypatch.setattr(command, "TRUSTED_PATH", ("/nonexistent",))
    assert find_command("sinfo") is None
    variables = {"GDRTOP_CLUSTER_COMMANDS": str(tmp_path), "GDRTOP_CLUSTER_SLURM_CONF": "/site/slurm.conf"}
    use(merge((), variables))
    try:
        assert find_command("sinfo") == f"{tmp_path}/sinfo"
        assert find_command("tool") is None  # only clients of a cluster are looked for there
        assert command.client_environment("sinfo") == {"SLURM_CONF": "/site/slurm.conf"}
        as_user(monkeypatch, 0)
        owned_by(monkeypatch, {str(tmp_path): (1000, 0o755)})
        assert find_command("sinfo") is None
    finally:
        use(None)
    assert command.client_environment("sinfo") == {}
