"""The kubeconfig that kubectl gets: the admin's own, and as root only one that nobody else can change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from probes.base.unknown import Reason, Unknown
from probes.host.answers import CommandOutput
from probes.host.machine import command
from probes.host.machine.command import run_command


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
    assert command.cluster_login() == {"HOME": home, "KUBERC": "off", "KUBECONFIG": f"{home}/.kube/config"}


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


def test_only_kubectl_and_oc_get_the_login(
    kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "TRUSTED_PATH", (str(tmp_path), "/usr/bin", "/bin"))
    monkeypatch.setattr(command, "cluster_login", lambda: {"KUBECONFIG": str(kubeconfig)})
    for name in ("kubectl", "tool"):
        (tmp_path / name).write_text("#!/bin/sh\nenv\n")
        (tmp_path / name).chmod(0o755)
        output = run_command([name], 10)
        assert isinstance(output, CommandOutput)
        assert (f"KUBECONFIG={kubeconfig}" in output.stdout) == (name == "kubectl")
