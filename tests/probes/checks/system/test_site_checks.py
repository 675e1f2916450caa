"""Checks of a site are findings like any other: in the verdict, in recordings, in every output."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Unknown
from probes.checks.judgment import Judgment, exit_status, judge
from probes.facts.system import site_checks
from probes.facts.system.site_checks import DIRECTORY, Definition, Result, run_site_checks
from probes.host.machine.local import LocalHost
from probes.host.protocol import CommandOutput
from probes.live.job_examination import examine_with_jobs
from probes.queries.finding import Finding, Status
from probes.recording.recording_host import Moment
from probes.recording.redaction.identifiers import Identifiers
from probes.recording.replay_host import ReplayHost
from probes.setup.twin.build import make_twin
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine
from probes.snapshot.verdict import State
from tests.support.pilot import SteppedClock
from tests.support.recordings import archive_of, moments_of, read
from tui.manual import page

CRITICAL = 'title = "Rail 3 is miscabled"\nok = "Rails are right"\nseverity = "critical"\nfix = "Recable"'


def node(text: str = "", status: int = 2, output: str = "wrong leaf | x=1") -> SimulatedHost:
    """Return a node whose site has the check site-module, with these lines of TOML."""
    host = SimulatedHost("hgx-h100", clock=lambda: 1000.0)
    program = f"{DIRECTORY}/module"
    host.tree.add(program, "")
    host.tree.add(f"{program}.toml", text)
    host.tree.commands[program] = lambda argv, seconds: CommandOutput(argv, status, output, "")
    return host


def judged(host: SimulatedHost) -> tuple[Judgment, Finding]:
    judgment = judge(examine_with_jobs(host))
    return judgment, next(finding for finding in judgment.findings if finding.id == "site-module")


def test_it_says_what_the_file_of_the_site_says() -> None:
    judgment, finding = judged(node(CRITICAL + '\nimpact = "Jobs stop."'))
    assert (finding.status, finding.severity) == (Status.FOUND, Severity.CRITICAL)
    assert (finding.title, finding.impact) == ("Rail 3 is miscabled", "Jobs stop.")
    assert (finding.cause, [line.value for line in finding.evidence]) == ("wrong leaf", ["x=1"])
    assert finding.fix is not None
    assert [step.why for step in finding.fix.steps] == ["Recable"]
    assert finding.reference == f"{DIRECTORY}/module.toml"
    assert judgment.verdict.state is State.DEGRADED
    assert exit_status(judgment.verdict) == 2
    _, passed = judged(node(CRITICAL, 0, "fine"))
    assert (passed.status, passed.ok) == (Status.PASSED, "Rails are right")


@pytest.mark.parametrize(
    ("text", "status", "severity"),
    [
        ("", 1, Severity.WARNING),
        ("", 2, Severity.WARNING),
        ('severity = "critical"', 1, Severity.WARNING),
        ('severity = "critical"', 2, Severity.CRITICAL),
        ('severity = "note"', 2, Severity.NOTE),
    ],
)
def test_the_file_limits_how_severe_it_is(text: str, status: int, severity: Severity) -> None:
    judgment, finding = judged(node(text, status))
    assert finding.severity is severity
    assert judgment.verdict.state is (State.DEGRADED if severity is Severity.CRITICAL else State.ACTIVE)


def test_a_plugin_alone_makes_no_node_worse_than_a_warning() -> None:
    host = SimulatedHost("hgx-h100", clock=lambda: 1000.0)
    host.tree.add(f"{DIRECTORY}/module", "")
    host.tree.commands[f"{DIRECTORY}/module"] = lambda argv, seconds: CommandOutput(argv, 2, "full", "")
    judgment, finding = judged(host)
    assert (finding.severity, finding.title) == (
        Severity.WARNING,
        "Site check site-module has found a problem",
    )
    assert judgment.verdict.state is State.ACTIVE
    assert exit_status(judgment.verdict) == 1


def test_it_takes_the_devices_that_it_names() -> None:
    output = '{"cause": "x", "devices": ["GPU0", "mlx5_3", "0000:3d:00.0", "disk"]}'
    _, finding = judged(node("takes = true", 2, output))
    gpu, nic = finding.devices
    assert nic == "mlx5_3"
    assert finding.takes == (gpu, nic)
    judgment, _ = judged(node("takes = true\nseverity = 'critical'", 2, output))
    assert (judgment.verdict.gpus_served, judgment.verdict.state) == (7, State.DEGRADED)


def test_an_own_unknown_is_unknown_and_not_broken() -> None:
    judgment, finding = judged(node("", 3, "needs a license"))
    assert (finding.status, finding.cause) == (Status.UNKNOWN, "needs a license")
    broken = next(each for each in judgment.findings if each.id == "broken-site-check")
    assert broken.status is Status.PASSED
    assert exit_status(judgment.verdict) == 0


@pytest.mark.parametrize(("text", "status"), [("titles = 1", 0), ("", 77), ("", -11)])
def test_a_broken_one_is_unknown_and_named(text: str, status: int) -> None:
    judgment, finding = judged(node(text, status))
    assert finding.status is Status.UNKNOWN
    broken = next(each for each in judgment.findings if each.id == "broken-site-check")
    assert (broken.status, broken.severity) == (Status.FOUND, Severity.NOTE)
    assert "site-module" in broken.cause
    assert exit_status(judgment.verdict) == 0


def moments(host: SimulatedHost) -> list[Moment]:
    return moments_of(host, SteppedClock(), checks=True)


@pytest.mark.parametrize("is_redacted", [False, True])
def test_a_recording_has_its_answer(is_redacted: bool) -> None:
    recorded = moments(node(CRITICAL))
    if is_redacted:
        identifiers = Identifiers(redact=True)
        recorded = [identifiers.apply(moment) for moment in recorded]
    found = {each.id: each for each in judge(examine(ReplayHost(read(archive_of(recorded))))).findings}
    assert found["site-module"].status is Status.FOUND
    assert found["site-module"].severity is Severity.CRITICAL
    assert ("miscabled" in found["site-module"].title) is not is_redacted


def test_of_a_twin_a_rule_is_known_and_a_program_is_not() -> None:
    host = node(CRITICAL)
    host.tree.add(f"{DIRECTORY}/rule.toml", "file = '/proc/sys/kernel/ostype'\nequals = 'Linux'")
    host.tree.add("/proc/sys/kernel/ostype", "Linux\n")
    checks = run_site_checks(make_twin(host, examine(host)))
    assert not isinstance(checks, Unknown)
    found = {check.id: check.result for check in checks}
    assert isinstance(found["site-rule"], Result)
    assert str(found["site-module"]) == "not recorded: not queried in a rehearsal"


def blocks(mark: str) -> str:
    """Return the block of the manual that has this text, without its indent."""
    text = page("config").partition("## Checks of this site")[2].partition("\n## ")[0]
    found = re.findall(r"(?:^    .*\n)+", text, re.M)
    return "".join(line[4:] + "\n" for line in next(each for each in found if mark in each).splitlines())


def test_the_examples_of_the_manual_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_checks, "DIRECTORY", str(tmp_path))
    for name, mark in (("firmware.toml", "fw_ver"), ("scratch", "#!/bin/sh"), ("scratch.toml", "severity")):
        (tmp_path / name).write_text(blocks(mark))
    (tmp_path / "scratch").chmod(0o755)
    host = LocalHost()
    host._is_root = False
    found = run_site_checks(host)
    assert not isinstance(found, Unknown)
    firmware, scratch = found
    assert firmware.id == "site-firmware"
    assert firmware.definition.fix == "Open a ticket for the network team"
    assert isinstance(scratch.result, Result)
    assert scratch.result.cause in ("/scratch is not mounted", "/scratch is mounted")
    assert (scratch.definition.severity, scratch.definition.timeout) == (Severity.CRITICAL, 10)
    output = CommandOutput(("x",), 1, blocks('"status"'), "")
    result = site_checks.read_result(output, "x")
    assert isinstance(result, Result)
    assert result.devices == ("mlx5_3",)


def test_the_manual_has_every_key() -> None:
    missing = [field.name for field in fields(Definition) if f"`{field.name}`" not in page("config")]
    assert not missing, f"add to the table of keys in tui/manual/config.md: {missing}"
