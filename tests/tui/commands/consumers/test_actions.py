"""`gdrtop check --severity-map`: which findings ask automation to isolate, reset or watch a node."""

import argparse
from dataclasses import replace

import pytest

from probes.base.evidence import Severity
from probes.checks import new_jobs
from probes.checks.judgment import conclude
from probes.checks.new_jobs import Action, rows_against_jobs, rows_for, rows_of, strongest
from probes.checks.registry import CHECKS
from probes.snapshot.verdict import State
from tests.support.doctor import examination_of
from tests.tui.commands.consumers.checked_nodes import checked
from tui.commands.check import severity_map
from tui.commands.consumers.contracts import node_problem_detector, slurm


def asked(name: str, text: str = "") -> dict[str, Action]:
    return {row.id: row.action for row in rows_of(checked(name).judgment, severity_map(text))}


@pytest.mark.parametrize(
    ("name", "text", "id_", "action"),
    [
        ("hgx-h100+no-gdr-path", "", "peermem-not-loaded", Action.ISOLATE),
        ("hgx-h100+port-down", "", "ib-port-not-active", Action.WATCH),
        ("hgx-h100+xid-79-fell-off-bus", "", "xid-79-fell-off-bus", Action.RESET),
        ("hgx-h100+port-down", "warning=none", "ib-port-not-active", Action.NONE),
        (
            "hgx-h100+port-down",
            "warning=none,ib-port-not-active=isolate",
            "ib-port-not-active",
            Action.ISOLATE,
        ),
        ("hgx-h100+xid-79-fell-off-bus", "critical=isolate", "xid-79-fell-off-bus", Action.ISOLATE),
        ("cloud-vm", "", "verdict", Action.WATCH),
        ("cloud-vm", "unknown=isolate", "verdict", Action.ISOLATE),
        ("dgx-spark", "", "verdict", Action.NONE),
        ("dgx-spark", "not-applicable=watch", "verdict", Action.WATCH),
    ],
)
def test_the_map_says_what_a_finding_asks_for(name: str, text: str, id_: str, action: Action) -> None:
    assert asked(name, text)[id_] is action


def test_the_node_needs_the_most_drastic_action() -> None:
    rows = rows_of(checked("pcie-l40s+roce-gid-wrong").judgment, severity_map(""))
    assert strongest(rows) is rows[0].action is Action.ISOLATE
    assert Action.WATCH in {row.action for row in rows}
    assert strongest(rows_of(checked("hgx-h100").judgment, {})) is Action.NONE


def test_a_broken_node_without_a_finding_is_isolated() -> None:
    judgment = checked("hgx-h100+no-gdr-path").judgment
    verdict = conclude(examination_of("hgx-h100+no-gdr-path").usability, ())
    assert verdict.state is State.BROKEN
    (row,) = rows_of(replace(judgment, verdict=verdict, findings=()), {})
    assert (row.action, row.id) == (Action.ISOLATE, "verdict")


def test_a_check_in_the_map_keeps_jobs_on_the_node() -> None:
    kept = checked("hgx-h100+no-gdr-path", severity_map("peermem-not-loaded=watch"))
    assert slurm(kept).status == 0
    drained = checked("cloud-vm", severity_map("unknown=isolate"))
    assert slurm(drained).text.startswith("gdrtop: UNKNOWN: paths between GPUs and NICs are unknown")


def test_a_warning_that_takes_no_gpu_needs_no_reset() -> None:
    """The GSP answers again, so the fix, a reset, is not due."""
    judgment = checked("hgx-h100+xid-79-fell-off-bus").judgment
    (finding,) = (finding for finding in judgment.found if finding.id == "xid-79-fell-off-bus")
    passing = replace(finding, severity=Severity.WARNING, takes=())
    (row, *_) = rows_of(replace(judgment, findings=(passing,)), {})
    assert row.action is Action.WATCH


def test_what_keeps_jobs_away_is_a_problem_also_where_the_verdict_is_unknown() -> None:
    """Without root: NVML says that a GPU asks for a reset, and the paths are unknown."""
    node = checked("hgx-h100+gpu-recovery-action")
    verdict = replace(node.judgment.verdict, state=State.UNKNOWN, reason="needs root")
    unsure = replace(node, judgment=replace(node.judgment, verdict=verdict))
    assert slurm(unsure).status == node_problem_detector(unsure).status == 1


def test_a_verdict_that_no_finding_explains_concerns_every_job() -> None:
    topology = examination_of("hgx-h100").topology
    node = checked("hgx-h100+gpu-recovery-action").judgment  # GPU0
    broken = replace(node.verdict, state=State.BROKEN)
    rows = rows_against_jobs(replace(node, verdict=broken), {})
    assert [row.id for row in rows_for(rows, topology, [topology.gpus[1].id])] == ["verdict"]


def test_the_checks_that_need_a_reset_exist() -> None:
    assert set(new_jobs._RESET) <= {check.id for check in CHECKS}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("critical", "'critical' is not NAME=ACTION; the actions are isolate, reset, watch, none"),
        ("critical=drain", "'critical=drain' is not NAME=ACTION"),
        ("crit=watch", "no check or severity 'crit'; did you mean critical"),
        ("zzzz=watch", "besides checks there are critical, warning, note, unknown, not-applicable"),
        ("critical=watch,", "'' is not NAME=ACTION"),
    ],
)
def test_a_wrong_map_says_what_is_right(text: str, words: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as raised:
        severity_map(text)
    assert words in str(raised.value)
