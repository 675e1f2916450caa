"""A node is drained with gdrtop's reason only where no other program or admin has set one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.evidence import Severity
from probes.base.plan import Plan
from probes.base.unknown import Reason, Unknown
from probes.checks.judgment import with_severity
from probes.simulation.host import SimulatedHost
from probes.slurm.slurm_node import (
    SlurmNode,
    drain_plan,
    parse_scontrol,
    parse_sinfo,
    read_node,
    reason_for,
    resume_plan,
)
from tests.support.doctor import findings_on

WHY = "gdrtop: xid-79-fell-off-bus 0000:9b:00.0"


def test_sinfo_is_read() -> None:
    # A node of two partitions is listed twice.
    assert parse_sinfo("gpu01", "idle|none\nidle|none\n") == SlurmNode("gpu01", "idle", "")
    assert parse_sinfo("gpu01", "drained*|a | b\n") == SlurmNode("gpu01", "drained*", "a | b")
    answer = parse_sinfo("gpu09", "")
    assert isinstance(answer, Unknown)
    assert answer.reason is Reason.NOT_THERE


@pytest.mark.parametrize(
    ("state", "reason", "wanted"),
    [
        ("IDLE", "", SlurmNode("gpu01", "idle", "")),
        ("IDLE+DRAIN", "gdrtop: a b", SlurmNode("gpu01", "drained", "gdrtop: a b")),
        ("MIXED+DRAIN", "disk [sda] fails", SlurmNode("gpu01", "draining", "disk [sda] fails")),
        ("DOWN*+DRAIN", "Not responding", SlurmNode("gpu01", "drained", "Not responding")),
        ("DOWN", "x", SlurmNode("gpu01", "down", "x")),
    ],
)
def test_a_node_of_no_partition_is_asked_of_scontrol(state: str, reason: str, wanted: SlurmNode) -> None:
    """The line is that of Slurm 22.05."""
    more = f" Reason={reason} [root@2026-11-29T05:00:00]" if reason else ""
    line = (
        f"NodeName=gpu01 Arch=x86_64 CPUTot=2 State={state} ThreadsPerCore=1 Weight=1 MCS_label=N/A{more}\n"
    )
    host = SimulatedHost("dgx-a100")
    host.tree.commands["sinfo"] = lambda argv, seconds: ""
    host.tree.commands["scontrol"] = lambda argv, seconds: line if argv[-1] == "gpu01" else ""
    assert read_node(host, "gpu01") == wanted
    assert parse_scontrol("gpu01", line) == wanted
    absent = read_node(host, "gpu02")
    assert isinstance(absent, Unknown)
    assert absent.detail == "Slurm has no node gpu02"


@given(st.text())
def test_any_answer_is_read(text: str) -> None:
    for parse in (parse_sinfo, parse_scontrol):
        node = parse("gpu01", text)
        assert isinstance(node, Unknown) or node.reason.isprintable()


@pytest.mark.parametrize(
    ("state", "reason", "drains", "resumes"),
    [
        ("idle", "", True, False),
        ("mixed", "", True, False),
        ("idle", "kernel update tonight", False, False),
        ("drained", "kernel update tonight", False, False),
        ("draining", "", False, False),
        ("drained", WHY, False, True),
        ("draining", "gdrtop: no-gdr-path", True, True),
        ("idle", "gdrtop: no-gdr-path", True, False),
        ("down", "Not responding", False, False),
    ],
)
def test_reasons_that_others_have_set_stay(state: str, reason: str, drains: bool, resumes: bool) -> None:
    node = SlurmNode("gpu01", state, reason)
    for plan, wanted in ((drain_plan(node, WHY), drains), (resume_plan(node), resumes)):
        assert isinstance(plan, Plan) == wanted, plan
        if not isinstance(plan, Plan):
            assert "gpu01" in plan


def test_the_plans_are_scontrol_commands() -> None:
    plan = drain_plan(SlurmNode("gpu01", "idle", ""), WHY)
    assert isinstance(plan, Plan)
    (step,) = plan.steps
    assert step.argv == ("scontrol", "update", "NodeName=gpu01", "State=DRAIN", f"Reason={WHY}")
    assert step.undo == ("scontrol", "update", "NodeName=gpu01", "State=UNDRAIN")


def test_the_reason_names_the_finding_and_its_device() -> None:
    critical = with_severity(findings_on("hgx-h100+xid-79-fell-off-bus").values(), Severity.CRITICAL)
    assert reason_for(critical) == WHY
    assert reason_for((*critical, *critical)) == f"{WHY} +1"
