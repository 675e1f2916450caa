"""Checks of a site: what their files and programs may say, and that a wrong one spoils only itself."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.evidence import Severity
from probes.base.unknown import Reason, Unknown
from probes.facts.system import site_checks
from probes.facts.system.site_checks import (
    DIRECTORY,
    Result,
    SiteCheck,
    parse_definition,
    read_result,
    run_site_checks,
)
from probes.host import trusted_path
from probes.host.machine.local import LocalHost
from probes.host.protocol import CommandOutput
from probes.host.remote.remote_host import RemoteHost
from probes.simulation.host import SimulatedHost
from tests.support.local_node import local_target, write_program


def answered(status: int, stdout: str = "", stderr: str = "") -> Result | Unknown:
    return read_result(CommandOutput(("x",), status, stdout, stderr), "x")


def site(**files: str) -> dict[str, SiteCheck]:
    """Return the checks of a simulated node with these files; what ends in _toml is one of TOML."""
    host = SimulatedHost("hgx-h100")
    for name, content in files.items():
        host.tree.add(f"{DIRECTORY}/{name.replace('_toml', '.toml')}", content)
    found = run_site_checks(host)
    assert not isinstance(found, Unknown)
    return {check.id: check for check in found}


def why(check: SiteCheck) -> str:
    assert isinstance(check.result, Unknown)
    return str(check.result)


# Programs


def test_a_plugin_says_the_cause_in_its_first_line_and_figures_after_it() -> None:
    found = answered(2, "DISK CRITICAL - 2 % free | /=98%;80;90\n/dev/sda1\n\n")
    assert found == Result("critical", "DISK CRITICAL - 2 % free", ("/=98%;80;90", "/dev/sda1"))
    assert answered(0) == Result("ok")
    assert answered(3, "no license") == Result("unknown", "no license")


def test_json_names_devices_and_may_say_the_status() -> None:
    text = '{"status": "warning", "cause": "hot", "evidence": ["91 C"], "devices": ["mlx5_0"], "more": 1}'
    expected = Result("warning", "hot", ("91 C",), ("mlx5_0",))
    assert answered(0, text) == expected
    assert answered(1, text) == expected
    assert answered(2, '{"cause": "hot"}') == Result("critical", "hot")


@pytest.mark.parametrize(
    ("status", "stdout", "stderr", "expected"),
    [
        (127, "", "sh: x: not found", "it exits with 127, and prints sh: x: not found"),
        (-9, "", "", "it exits with -9, and prints nothing"),
        (4, "OK", "", "it exits with 4, and prints OK"),
        # As a Python script that crashes: nothing was found.
        (1, "", "Traceback:\nKeyError: 'x'", "it exits with 1, and prints KeyError: 'x'"),
        (1, '{"cause": "hot', "", 'it exits with 1, and prints {"cause": "hot'),
        (0, '{"status": "fine"}', "", 'it exits with 0, and prints {"status": "fine"}'),
        (2, '{"status": "ok"}', "", 'it exits with 2, and prints {"status": "ok"}'),
        (0, '{"devices": "mlx5_0"}', "", "devices: expected a list, got 'mlx5_0'"),
        (126, "", "not started: no user x", "not started: no user x"),
    ],
)
def test_anything_else_is_unknown(status: int, stdout: str, stderr: str, expected: str) -> None:
    found = answered(status, stdout, stderr)
    assert isinstance(found, Unknown)
    assert (found.reason, found.detail) == (Reason.MALFORMED, expected)


@given(st.integers(-64, 255), st.text(max_size=80), st.text(max_size=80))
def test_no_output_is_more_than_a_line_or_raises(status: int, stdout: str, stderr: str) -> None:
    for text in (stdout, "{" + stdout, f'{{"cause": "{stdout}"}}'):
        found = answered(status, text, stderr)
        if isinstance(found, Result):
            assert found.status in site_checks.STATUSES
            assert all(each.isprintable() for each in (found.cause, *found.evidence, *found.devices))
        else:
            assert found.detail.isprintable()


# What a file may say


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("titles = 'x'", "unknown key 'titles'; did you mean title?"),
        ("severity = 'bad'", "severity: expected a known severity, got 'bad'"),
        ("timeout = 600", "timeout: 600 is out of range"),
        ("data_path = 1", "data_path: 1 is out of range"),
        ("command = 'x'", "command: expected a list, got 'x'"),
        ("command = ['check_load']", "command: 'check_load' is not an absolute path"),
        ("file = '/sys/x'", "a rule needs a file and equals, matches, at_least or at_most"),
        ("equals = '1'", "a rule needs a file and equals, matches, at_least or at_most"),
        ("file = '/etc/shadow'\nequals = ''", "file: it must be below /sys/, /proc/sys/, /proc/driver/"),
        ("file = '/sys/../etc/shadow'\nequals = ''", "file: it must be below"),
        ("file = '/sys/x'\nequals = '1'\ncommand = ['/x']", "it has both a command and a file"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)) as caught:
        parse_definition(text)
    assert str(caught.value).startswith(expected)


@given(st.binary(max_size=200))
def test_no_file_raises_anything_else(content: bytes) -> None:
    host = SIMULATED
    host.tree.add(f"{DIRECTORY}/any.toml", content)
    found = run_site_checks(host)
    assert not isinstance(found, Unknown)
    assert [check.id for check in found] == ["site-any"]


SIMULATED = SimulatedHost("hgx-h100")


def test_a_program_has_defaults_and_its_file_says_more() -> None:
    found = site(disk="", load_toml="severity = 'critical'\ncommand = ['/usr/lib/check_load', '-w', '3']")
    assert found["site-disk"].definition.command == (f"{DIRECTORY}/disk",)
    assert found["site-disk"].definition.severity is Severity.WARNING
    assert found["site-load"].definition.command == ("/usr/lib/check_load", "-w", "3")
    (both,) = site(disk="", disk_toml="title = 'Full'").values()
    assert (both.source, both.definition.title) == (f"{DIRECTORY}/disk.toml", "Full")
    assert both.definition.command == (f"{DIRECTORY}/disk",)
    assert "it needs a file, a command, or a program" in why(site(disk_toml="title = 'Full'")["site-disk"])


def test_other_names_are_no_checks_and_there_are_not_too_many() -> None:
    host = SimulatedHost("hgx-h100")
    assert run_site_checks(host) == Unknown(Reason.NOT_THERE, DIRECTORY)
    for name in ("README.md", ".hidden", "disk.toml~", "disk.toml.rpmsave", "-x", "a b"):
        host.tree.add(f"{DIRECTORY}/{name}", "")
    assert run_site_checks(host) == ()
    for number in range(51):
        host.tree.add(f"{DIRECTORY}/check{number}", "")
    assert run_site_checks(host) == Unknown(Reason.MALFORMED, DIRECTORY, "more than 50 checks")


# Rules


@pytest.mark.parametrize(
    ("rule", "is_right"),
    [
        ("equals = '400 Gb/sec (4X NDR)'", True),
        ("equals = '400'", False),
        ("matches = '400 Gb/sec*'", True),
        ("matches = '[12]00*'", False),
        ("at_least = 400", True),
        ("at_least = 401", False),
        ("at_most = 400", True),
        ("at_most = 399.5", False),
        ("at_least = 100\nat_most = 200", False),
    ],
)
def test_a_rule_compares_a_file(rule: str, is_right: bool) -> None:
    (check,) = site(rate_toml=f"file = '/sys/class/infiniband/mlx5_0/ports/1/rate'\n{rule}").values()
    assert isinstance(check.result, Result)
    assert check.result.status == ("ok" if is_right else "critical")
    assert check.result.evidence == ("/sys/class/infiniband/mlx5_0/ports/1/rate is 400 Gb/sec (4X NDR)",)


def test_a_pattern_names_the_files_that_are_wrong() -> None:
    (check,) = site(rate_toml="file = '/sys/class/infiniband/mlx5_*/ports/1/rate'\nat_least = 200").values()
    assert isinstance(check.result, Result)
    assert check.result.cause == "/sys/class/infiniband/mlx5_*/ports/1/rate should be at least 200."
    assert {"mlx5_4", "mlx5_9"} == {name for name in check.result.devices if name.startswith("mlx5")}
    (none,) = site(rate_toml="file = '/sys/class/infiniband/irdma*/ports/1/rate'\nat_least = 200").values()
    assert none.result == Result(
        "ok",
        "/sys/class/infiniband/irdma*/ports/1/rate should be at least 200.",
        ("there is no /sys/class/infiniband/irdma*/ports/1/rate",),
    )


def test_a_rule_whose_file_says_nothing_is_unknown() -> None:
    missing = site(x_toml="file = '/proc/sys/kernel/nothing'\nequals = '1'")["site-x"]
    assert isinstance(missing.result, Unknown)
    assert missing.result.reason is Reason.NOT_THERE
    word = site(x_toml="file = '/sys/class/infiniband/mlx5_0/hca_type'\nat_least = 1")["site-x"]
    assert why(word) == "malformed: 'MT4129' is not a number"


# Programs of this machine


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(site_checks, "DIRECTORY", str(tmp_path))
    return tmp_path


def own_checks() -> dict[str, Result | Unknown]:
    """Return what the programs say to a user who is not root."""
    host = LocalHost()
    host._is_root = False
    found = run_site_checks(host)
    assert not isinstance(found, Unknown)
    return {check.id: check.result for check in found}


def test_programs_run_with_a_clean_environment_and_no_longer_than_they_may(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "x")
    write_program(folder / "env", 'echo "${SECRET-none} $# $(pwd)"; cat; exit 1')
    write_program(folder / "hang", "sleep 60")
    write_program(folder / "busy", "while :; do :; done")
    (folder / "none").write_text("no program")
    (folder / "env.toml").write_text("timeout = 20")
    for name in ("hang", "busy"):
        (folder / f"{name}.toml").write_text("timeout = 1")
    (folder / "load.toml").write_text(f"command = ['{folder}/args', '-w', 'a b; id']\ntimeout = 20")
    write_program(folder / "args", 'echo "$2"; exit 1')
    found = own_checks()
    assert found["site-env"] == Result("warning", "none 0 /")
    assert found["site-load"] == Result("warning", "a b; id")
    for name in ("site-hang", "site-busy"):
        slow = found[name]
        assert isinstance(slow, Unknown)
        assert (slow.reason, slow.detail) == (Reason.TIMED_OUT, "still running after 1 s")
    assert str(found["site-none"]) == "I/O error: Permission denied"


def test_no_further_one_starts_after_the_time_of_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_checks, "_ALL_SECONDS", -1.0)
    write_program(folder / "late", "exit 0")
    assert "not run: the others have taken" in str(own_checks()["site-late"])


def test_one_that_runs_as_another_user_needs_root(folder: Path) -> None:
    (folder / "dmi.toml").write_text("command = ['/usr/sbin/dmidecode']\nuser = 'root'")
    assert own_checks()["site-dmi"] == Unknown(Reason.NEEDS_ROOT, f"{folder}/dmi.toml", "it runs as root")


def test_root_trusts_only_what_root_alone_can_change(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trusted_path, "is_root", lambda: True)
    file = folder / "x.toml"
    file.write_text("file = '/proc/sys/kernel/ostype'\nequals = 'Linux'")
    os.chmod(folder, 0o777)
    host = LocalHost()
    host._is_root = True
    content = host.trusted_bytes(str(file))
    assert isinstance(content, Unknown)
    assert content.reason is Reason.NEEDS_PERMISSION
    assert "other users can write to" in content.detail
    for user in ("", "nobody"):
        with pytest.raises(SystemExit) as ended:
            trusted_path.main([user, str(file)])
        assert ended.value.code == 126
        assert capsys.readouterr().err.startswith("not started: other users can write to")


def test_a_node_over_a_connection_answers_as_this_one(folder: Path) -> None:
    """As root, too: this directory is one that others can write to."""
    write_program(folder / "args", 'echo "$2"; exit 1')
    (folder / "x.toml").write_text("file = '/proc/sys/kernel/ostype'\nequals = 'Linux'")
    remote, own = RemoteHost(local_target()), LocalHost()
    try:
        argv = (f"{folder}/args", "-w", "a b; id")
        assert remote.run_trusted(argv, 20.0, "nobody") == own.run_trusted(argv, 20.0, "nobody")
        there, here = (host.trusted_bytes(f"{folder}/x.toml") for host in (remote, own))
        assert isinstance(there, Unknown) is isinstance(here, Unknown)
        assert isinstance(here, Unknown) or there == here
    finally:
        remote.close()
