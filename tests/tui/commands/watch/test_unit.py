"""`gdrtop watch --unit`: a unit that systemd accepts."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tui.cli import main


def unit(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["watch", "--unit", *options]) == 0
    return capsys.readouterr().out


def test_the_unit_runs_watch_with_the_options_given(capsys: pytest.CaptureFixture[str]) -> None:
    text = unit(capsys, "--keep", "12h", "--max-size", "1G", "--freeze", "critical", "--json")
    (command,) = re.findall(r"^ExecStart=(.*)$", text, re.M)
    assert command.endswith(
        "watch --dir %S/gdrtop/watch --keep 12h --max-size 1G --freeze critical --before 2m --after 1m --json"
    )
    assert command.startswith("/")
    other = unit(capsys, "--dir", "/srv/100% of $it/ring")
    assert '--dir "/srv/100%% of $$it/ring"' in other
    # systemd has no variables there.
    assert 'ReadWritePaths="/srv/100%% of $it/ring"\n' in other


def test_the_unit_says_how_to_create_its_directory(capsys: pytest.CaptureFixture[str]) -> None:
    assert "#   install -d -m 0700 '/srv/a b/ring'\n" in unit(capsys, "--dir", "/srv/a b/ring")
    assert "install -d" not in unit(capsys)


def test_the_unit_takes_nothing_away_that_the_probes_need(capsys: pytest.CaptureFixture[str]) -> None:
    settings = dict(
        line.split("=", 1) for line in unit(capsys).splitlines() if "=" in line and not line.startswith("#")
    )
    needed = {"CAP_SYSLOG", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"}
    assert set(settings["CapabilityBoundingSet"].split()) == needed
    for name in (
        "PrivateDevices",
        "ProtectClock",
        "ProtectKernelLogs",
        "ProtectKernelModules",
        "PrivateNetwork",
    ):
        assert settings[name] == "no"
    assert "AF_NETLINK" in settings["RestrictAddressFamilies"]
    assert (settings["ProtectSystem"], settings["NoNewPrivileges"]) == ("strict", "yes")
    assert "MemoryMax" in settings
    assert "CPUQuota" in settings


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("directory", ["", "/srv/a b%/ring"])
def test_systemd_accepts_the_unit(directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = unit(capsys, *(["--dir", directory] if directory else []))
    text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.M)
    text = re.sub(r"^Documentation=.*\n", "", text, flags=re.M)
    (tmp_path / "gdrtop-watch.service").write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "gdrtop-watch.service")],
        capture_output=True,
        text=True,
    )
    assert "gdrtop-watch.service" not in done.stderr
