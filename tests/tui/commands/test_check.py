"""`gdrtop check`: text for a ticket, JSON for a program, a status for monitoring."""

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from probes.base.evidence import Severity
from probes.checks.judgment import conclude, exit_status
from probes.checks.new_jobs import Action
from probes.checks.registry import CHECKS
from probes.queries.finding import Status
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.names import SIMULATED_NAMES
from probes.snapshot.verdict import State
from tests.support.doctor import examination_of, findings_on
from tui.cli import main
from tui.command_line.arguments import UsageError
from tui.commands.check import CheckOptions, write_check

BROKEN = "hgx-h100+no-gdr-path"


def check(name: str, **options: object) -> tuple[int, str]:
    out = io.StringIO()
    status = write_check(SimulatedHost(name), out, CheckOptions(**options))  # type: ignore[arg-type]
    return status, out.getvalue()


class Terminal(io.StringIO):
    """A terminal, whose width the variable COLUMNS says."""

    def isatty(self) -> bool:
        return True


def test_a_value_for_the_kernel_command_line_can_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    write_check(SimulatedHost("hgx-h100+acs-on"), terminal, CheckOptions())
    (option,) = (line for line in terminal.getvalue().splitlines() if "0000:17:00.0;" in line)
    assert r"pci=disable_acs_redir=\"0000:17:00.0;" in option
    assert option.endswith(r'0000:b9:01.0\""')


def test_a_sentence_is_one_line_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    status, text = check("hgx-h100+acs-on")
    assert status == 1
    for label in ("Impact", "Cause"):
        (place,) = (number for number, line in enumerate(text.splitlines()) if line.startswith(label))
        assert text.splitlines()[place].endswith(".")
        assert not text.splitlines()[place + 1].startswith("   " * 4)


def test_the_verdict_alone_is_one_line() -> None:
    """The Slurm prolog and scripts read it."""
    status, text = check("hgx-h100+acs-on", one_line=True, ascii=True)
    assert (status, text.count("\n")) == (1, 1)
    assert text == "SIMULATED ! DEGRADED (1 warning): ACS redirect is enabled between GPU and NIC\n"


def test_a_ticket_says_what_is_wrong_where_it_was_seen_and_what_to_do() -> None:
    status, text = check(BROKEN)
    assert status == 2
    for part in (
        "BROKEN",
        "SIMULATED",
        "no-gdr-path",
        "critical",
        "Evidence",
        "modprobe nvidia_peermem",
        "More",
    ):
        assert part in text
    assert "nvidia-not-loaded" not in text


def test_it_begins_with_one_line_a_finding() -> None:
    status, text = check("pcie-l40s+roce-gid-wrong")
    lines = text.splitlines()
    counts = next(number for number, line in enumerate(lines) if line.startswith("1 critical, "))
    assert counts < 5
    summary = lines[counts + 2 : lines.index("", counts + 2)]
    marks = "".join(line[0] for line in summary)
    assert marks == "xx!!!!-???"  # a pipe without UTF-8
    assert summary[0].split()[1] == "nccl-gid-index-missing"
    assert "roce-gid-wrong" in summary[1]  # the same cause
    assert "GPU2, GPU3" in summary[2]
    assert "job-log-staged" in summary[4]  # the same cause, by the job's log
    assert summary[7] == "? 12 checks need up to 90 s of watching"
    assert status == 2


def test_one_check_with_all_details() -> None:
    status, text = check("pcie-l40s+roce-gid-wrong", ids=("roce-gid-wrong",))
    assert status == 2  # of the node, whatever is shown
    assert "roce-gid-wrong - critical" in text
    assert "NCCL_IB_GID_INDEX=11" in text
    assert "gpu-nic-cross-socket - " not in text
    _, text = check("hgx-h100", ids=("nvidia-not-loaded",))
    assert "nvidia-not-loaded - ok or not applicable" in text
    _, text = check("pcie-l40s", ids=("nccl-gdr-level-off",), json=True)
    only = json.loads(text)["checks"]
    assert [check["id"] for check in only] == ["nccl-gdr-level-off"]
    assert "evidence" in only[0]


def test_a_wrong_id_names_those_alike(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "nvidia-not-loadd", "--demo"]) == 3
    assert "did you mean nvidia-not-loaded" in capsys.readouterr().err


def test_many_equal_pieces_of_evidence_are_folded() -> None:
    _, text = check("hgx-h100+acs-on", ids=("acs-redirect-enabled",))
    evidence = text.partition("Evidence")[2].partition("Fix")[0]
    assert evidence.count("setpci") < 4
    assert "more like it" in evidence


def test_what_passed_is_listed_where_that_is_wished() -> None:
    text = check(BROKEN, all=True)[1]
    assert all(finding.id in text for finding in CHECKS)


def test_optical_modules_that_were_not_asked_are_named_where_something_is_wrong() -> None:
    asked = "sudo gdrtop topo --ports"
    assert asked not in check("hgx-h100")[1]
    assert asked in check("hgx-h100+acs-on")[1]
    assert asked in check("hgx-h100", all=True)[1]
    assert asked in check("hgx-h100", ids=["optic-power"])[1]


def test_json_has_only_findings_as_findings() -> None:
    """The first query that people write is `.findings[] | select(.severity == "critical")`."""
    _, text = check("slingshot", json=True)
    told = json.loads(text)
    assert told["verdict"]["state"] == "READY"
    assert [finding["id"] for finding in told["findings"] if finding["severity"] == "critical"] == []
    assert {finding["status"] for finding in told["findings"]} <= {"found"}


def test_json_has_a_short_row_for_every_check_and_all_of_it_on_request() -> None:
    _, text = check("hgx-h100+acs-on", json=True)
    told = json.loads(text)
    assert {check["id"] for check in told["checks"]} == {finding.id for finding in CHECKS}
    assert {tuple(check) for check in told["checks"]} == {("id", "status", "severity", "title", "cause")}
    rows = {check["id"]: check for check in told["checks"]}
    assert rows["acs-redirect-enabled"]["title"] == "ACS redirect is enabled between GPU and NIC"
    assert rows["nvidia-not-loaded"]["status"] == "passed"
    assert rows["nvidia-not-loaded"]["title"] == "nvidia driver is loaded"
    assert told["skipped"] == []
    _, whole = check("hgx-h100+acs-on", json=True, all=True)
    assert all("evidence" in load and "fix" in load for load in json.loads(whole)["checks"])
    assert len(text) < len(whole) / 3


def test_json_has_all_of_a_finding() -> None:
    status, text = check(BROKEN, json=True)
    told = json.loads(text)
    assert status == 2
    assert told["verdict"]["state"] == "BROKEN"
    broken = told["findings"][0]
    assert broken["id"] == "peermem-not-loaded"
    assert broken["severity"] == "critical"
    assert broken["evidence"][0].keys() == {"source", "value"}
    step = broken["fix"][0]
    assert step["argv"] == ["modprobe", "nvidia_peermem"]
    assert step["needs_root"] is True
    assert step["needs_reboot"] is False


def test_only_and_skip() -> None:
    _, text = check(BROKEN, json=True, only=("no-gdr-path",))
    told = json.loads(text)
    assert [check["id"] for check in told["checks"]] == ["no-gdr-path"]
    assert len(told["skipped"]) == len(CHECKS) - 1
    _, text = check(BROKEN, json=True, skip=("no-gdr-path",))
    told = json.loads(text)
    assert "no-gdr-path" not in {row["id"] for row in [*told["checks"], *told["findings"]]}
    assert told["skipped"] == ["no-gdr-path"]


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ({"skip": ("acs-redirect-enabled",)}, "1 check skipped (acs-redirect-enabled)"),
        ({"only": ("nvidia-not-loaded",)}, f"{len(CHECKS) - 1} checks skipped (--only)"),
    ],
)
def test_a_verdict_without_some_checks_says_so_on_the_next_line(
    options: dict[str, tuple[str, ...]], note: str
) -> None:
    status, text = check("hgx-h100+acs-on", **options)
    lines = text.splitlines()
    assert status == 0
    assert "ACTIVE" in lines[1]
    assert lines[2].strip() == note


def test_a_check_that_is_none_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--demo", "--only", "no-such-check"]) == 3
    assert "no-such-check" in capsys.readouterr().err


def test_a_fault_that_is_none_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--demo", "hgx-h100+no-such-fault"]) == 3
    assert "no-such-fault" in capsys.readouterr().err


def test_a_fault_that_does_not_fit_the_node_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--demo", "pcie-l40s+sxid"]) == 3
    assert "fault 'sxid' cannot be simulated on pcie-l40s" in capsys.readouterr().err


def test_the_status_says_what_the_findings_cost() -> None:
    usability = examination_of("hgx-h100").usability
    found = replace(findings_on(BROKEN)["no-gdr-path"], part_of="")
    for severity, status in ((Severity.CRITICAL, 2), (Severity.WARNING, 1), (Severity.NOTE, 0)):
        assert exit_status(conclude(usability, [replace(found, severity=severity)])) == status
    assert exit_status(conclude(usability, [replace(found, status=Status.UNKNOWN)])) == 0
    unknown = replace(usability, state=State.UNKNOWN)
    assert exit_status(conclude(unknown, [])) == 3
    assert exit_status(conclude(unknown, [found])) == 2
    assert exit_status(conclude(replace(usability, state=State.BROKEN), [])) == 2
    costly = replace(found, severity=Severity.WARNING, data_path=True)
    assert exit_status(conclude(usability, [costly])) == 1


def test_a_node_that_cannot_by_design_is_never_critical() -> None:
    usability = replace(examination_of("hgx-h100").usability, state=State.NOT_APPLICABLE)
    assert exit_status(conclude(usability, [findings_on(BROKEN)["no-gdr-path"]])) == 3


def test_the_verdict_counts_the_findings_and_gives_way_to_what_costs() -> None:
    usability = examination_of("hgx-h100").usability
    found = replace(findings_on(BROKEN)["no-gdr-path"], part_of="")
    warning = replace(found, id="mtu", severity=Severity.WARNING)
    warned = conclude(usability, [warning])
    assert (warned.state, warned.critical, warned.warnings) == (usability.state, 0, 1)
    costly = conclude(usability, [replace(warning, data_path=True)])
    assert (costly.state, costly.warnings) == (State.DEGRADED, 1)
    critical = conclude(usability, [found, warning])
    assert (critical.state, critical.critical, critical.warnings) == (State.DEGRADED, 1, 1)
    assert found.title in critical.reason


def test_findings_with_one_cause_count_once() -> None:
    usability = examination_of("hgx-h100").usability
    found = replace(findings_on(BROKEN)["no-gdr-path"], part_of="")
    part = replace(found, id="peermem-not-loaded", part_of="no-gdr-path")
    assert conclude(usability, [found, part]).critical == 1


@pytest.mark.parametrize("name", SIMULATED_NAMES)
def test_text_is_for_any_terminal(name: str) -> None:
    _, text = check(name, ascii=True)
    assert text.isascii()


@pytest.mark.slow
def test_check_needs_no_textual() -> None:
    code = (
        "import sys; from tui.cli import main; main(['check', '--demo']); sys.exit('textual' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False)
    assert done.returncode == 0


KUBECTL = """#!/bin/sh
# Run a program in a pod, as `kubectl exec` does.
if [ "$*" = "${*#exec -i -n team trainer-0 -c main -- sh -c }" ]; then
    echo "Error from server (NotFound): pods \\"$5\\" not found" >&2
    exit 1
fi
shift 7
exec PYTHON -m tests.support.stand_in 'trainer-0=pcie-l40s+dev-infiniband-refused' trainer-0 "$@"
"""


def test_a_pod_is_checked_through_kubectl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "kubectl"
    program.write_text(KUBECTL.replace("PYTHON", sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    over = "kubectl exec -i -n team {host} -c main --"
    assert main(["check", "--host", "trainer-0", "--over", over]) == 2
    assert "✗ dev-infiniband-refused" in capfd.readouterr().out
    assert main(["check", "--host=-trainer-0", "--over", over]) == 3
    assert "not the name of a node" in capfd.readouterr().err
    assert main(["check", "--host", "trainer-1", "--over", over]) == 3
    errors = capfd.readouterr().err
    assert 'cannot read trainer-1: Error from server (NotFound): pods "trainer-1" not found' in errors


def test_a_check_of_the_site_is_named_like_any_other() -> None:
    name = "hgx-h100+broken-site-check"
    _, text = check(name, ids=("site-firmware",))
    assert "NICs do not have the firmware of this site" in text
    status, text = check(name, only=("site-firmware",), severity_map={"site-firmware": Action.ISOLATE})
    assert (status, text.splitlines()[1].split()[:2]) == (1, ["isolate", "site-firmware"])
    assert check(name, skip=("site-firmware",))[0] == 0
    arguments = ("--skip", "site-a", "--severity-map", "site-a=watch")
    assert main(["check", "--demo", "hgx-h100", *arguments]) == 0  # as for a fleet
    with pytest.raises(UsageError, match=r"no check site-firmwar in .* did you mean site-firmware"):
        check(name, only=("site-firmwar",))
