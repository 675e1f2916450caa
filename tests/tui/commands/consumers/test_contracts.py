"""What other programs read of `gdrtop check --for`: text and exit status, by their own parsers and rules."""

import re
import subprocess
from dataclasses import replace
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.base.origin import Origin, Source
from probes.base.site import Silence
from probes.checks.judgment import Judgment, conclude, exit_status
from probes.queries.finding import Status
from probes.snapshot.verdict import State
from tests.support.doctor import examination_of
from tests.support.tiers import USUAL_NODES
from tests.tui.commands.consumers.checked_nodes import checked, with_texts
from tui.commands.check import CONSUMERS
from tui.commands.consumers.checked_node import CheckedNode, safe
from tui.commands.consumers.contracts import CONTRACTS, nagios, nhc, node_problem_detector, slurm

# Monitoring Plugins Development Guidelines, "Performance data": value, range, range, minimum, maximum.
VALUE, RANGE = r"-?\d+(?:\.\d+)?", r"@?(?:~|-?[\d.]+)?:?(?:-?[\d.]+)?"
PERFORMANCE = re.compile(rf"([^' =]+)=({VALUE})(?:;({RANGE})(?:;({RANGE})(?:;({VALUE})(?:;({VALUE}))?)?)?)?")
NODES = (
    *USUAL_NODES,
    *("dgx-spark", "hgx-h100+port-down", "hgx-h100+acs-on", "hgx-h100+no-gdr-path"),
    *("hgx-h100+xid-79-fell-off-bus", "pcie-l40s+roce-gid-wrong"),
)


def figures(line: str) -> dict[str, tuple[str | None, ...]]:
    """The performance data of a plugin's first line: label → value, warning, critical, minimum, maximum."""
    parsed = {}
    for word in line.partition("|")[2].split():
        match = PERFORMANCE.fullmatch(word)
        assert match, word
        parsed[match[1]] = match.groups()[1:]
    return parsed


def silenced(name: str) -> CheckedNode:
    """A node whose findings an admin has silenced."""
    node = checked(name)
    silence = Silence("port-down", "cable is ordered", date(2030, 1, 1))
    findings = tuple(
        replace(finding, status=Status.SILENCED, silence=silence) if finding.is_present else finding
        for finding in node.judgment.findings
    )
    verdict = conclude(examination_of(name).usability, findings)
    return replace(node, judgment=Judgment(verdict, findings))


def test_help_names_every_contract() -> None:
    assert tuple(CONSUMERS) == tuple(CONTRACTS)


@pytest.mark.parametrize("name", NODES)
def test_every_consumer_agrees_with_the_verdict(name: str) -> None:
    node = checked(name)
    own = exit_status(node.judgment.verdict)
    assert nagios(node).status == own
    is_degraded = node.judgment.verdict.state is State.DEGRADED
    assert node_problem_detector(node).status == {0: 0, 1: int(is_degraded), 2: 1, 3: 3}[own]
    for contract in (nhc, slurm):
        answer = contract(node)
        assert answer.status == (1 if own == 2 else 0), answer
        assert bool(answer.text) is bool(answer.status)


# Nagios


@pytest.mark.parametrize("name", NODES)
def test_the_figures_of_nagios_are_those_of_the_verdict(name: str) -> None:
    node = checked(name)
    verdict = node.judgment.verdict
    line = nagios(node).text.partition("\n")[0]
    assert line.startswith(f"GDRTOP {('OK', 'WARNING', 'CRITICAL', 'UNKNOWN')[nagios(node).status]} - ")
    data = figures(line)
    assert data["critical"] == (str(verdict.critical), "", "0", "0", None)
    assert data["warnings"] == (str(verdict.warnings), "0", "", "0", None)
    unread = sum(finding.status is Status.UNKNOWN for finding in node.judgment.findings)
    assert data["checks_unknown"] == (str(unread), "", "", "0", None)
    if verdict.state in (State.UNKNOWN, State.NOT_APPLICABLE):
        assert "gpus_direct" not in data, "an unknown count is not 0"
    else:
        assert data["gpus_direct"] == (str(verdict.gpus_served), "", "", "0", str(verdict.gpus))


def test_nagios_alerts_one_line_and_lists_the_findings_below() -> None:
    first, *below = nagios(checked("pcie-l40s+roce-gid-wrong")).text.splitlines()
    assert first.startswith("GDRTOP CRITICAL - BROKEN") or first.startswith("GDRTOP CRITICAL - DEGRADED")
    assert any(row.startswith("critical nccl-gid-index-missing") for row in below)
    assert [row.split()[0] for row in below] == sorted(row.split()[0] for row in below)


def test_many_findings_fit_into_what_nagios_reads() -> None:
    node = checked("pcie-l40s+roce-gid-wrong")
    (finding, *_) = node.judgment.listed
    many = tuple(replace(finding, id=f"check-{number}") for number in range(200))
    text = nagios(replace(node, judgment=replace(node.judgment, findings=many))).text
    assert len(text) < 4096
    listed = text.count("\ncritical ")
    assert text.endswith(f"{200 - listed} more; gdrtop check lists them")


# Node Problem Detector


def test_the_node_problem_detector_gets_the_problem_in_80_bytes() -> None:
    assert node_problem_detector(checked("hgx-h100")).text == "ACTIVE via peermem, 8 of 8 GPUs, 8 NICs"
    answer = node_problem_detector(checked("hgx-h100+port-down"))
    assert (answer.text, answer.status) == ("DEGRADED (1 warning): An RDMA port has no link", 1)


def test_a_message_without_news_stays_the_same() -> None:
    """The reason of an ACTIVE node counts memory regions: with it, each check would be an event."""
    node = checked("hgx-h100")
    moved = replace(node, judgment=replace(node.judgment, verdict=replace(node.judgment.verdict, reason="9")))
    assert node_problem_detector(node) == node_problem_detector(moved)


# Node Health Check and Slurm


def test_a_warning_never_drains_a_node_and_a_critical_finding_does() -> None:
    assert slurm(checked("hgx-h100+acs-on")).status == 0
    answer = slurm(checked("hgx-h100+xid-79-fell-off-bus"))
    assert (answer.text, answer.status) == ("gdrtop: xid-79-fell-off-bus 0000:9b:00.0", 1)
    assert nhc(checked("hgx-h100+xid-79-fell-off-bus")).text == "xid-79-fell-off-bus 0000:9b:00.0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see “gdrtop --demo”, or 'gdrtop check'", "see gdrtop --demo, or gdrtop check"),
        ("A GPU's system processor (GSP) timed out", "A GPU system processor (GSP) timed out"),
        ("GPU ≥ 2 → NIC [mlx5_0] & é | $HOME", "GPU at least 2 - NIC (mlx5_0) and e / HOME"),
        ("日本", "--"),
    ],
)
def test_signs_that_a_shell_interprets_are_replaced_by_what_they_say(text: str, expected: str) -> None:
    assert safe(text, 80) == expected


def test_a_text_beside_the_counts_has_no_second_count() -> None:
    node = checked("hgx-h100+acs-on,port-down")
    assert " more" in node.judgment.verdict.reason
    for contract in (nagios, node_problem_detector):
        first = contract(node).text.partition("\n")[0]
        assert "warnings" in first
        assert " more" not in first


def test_a_name_from_the_node_cannot_leave_the_quotes_of_nhc() -> None:
    """NHC's die() passes the text to `eval $OFFLINE_NODE "'$HOSTNAME'" "'$*'"`."""
    node = with_texts(checked("hgx-h100+xid-79-fell-off-bus"), "it's", ("x'; echo owned; '", "$(echo owned)"))
    text = nhc(node).text
    done = subprocess.run(
        ["sh", "-c", "eval printf '%s' \"'$1'\"", "sh", text], capture_output=True, text=True, check=True
    )
    assert done.stdout == text
    assert "'" not in text


# Hostile texts


SPECIAL = st.sampled_from("|'\"\\$`;\n\r\0\x1b\x85\u2028\ufffe\ud800<&>]🙂é=%")
HOSTILE = st.lists(SPECIAL | st.characters(), max_size=60).map("".join)


@pytest.mark.slow
@settings(max_examples=25)
@given(
    HOSTILE, st.lists(HOSTILE, max_size=4).map(tuple), st.sampled_from(["hgx-h100+no-gdr-path", "cloud-vm"])
)
def test_no_text_breaks_a_contract(text: str, devices: tuple[str, ...], name: str) -> None:
    node = with_texts(checked(name), text, devices)
    own = exit_status(node.judgment.verdict)
    first, *below = nagios(node).text.split("\n")
    assert figures(first)
    assert first.count("|") == 1
    assert not any("|" in row for row in below)
    for contract in (nagios, node_problem_detector, nhc, slurm):
        for row in contract(node).text.split("\n"):
            assert row.isascii()
            assert row.isprintable()
            assert not set(row) & set("'\"\\$`<>&")
    assert len(node_problem_detector(node).text.encode()) <= 80
    assert "\n" not in node_problem_detector(node).text + nhc(node).text + slurm(node).text
    assert slurm(node).status == 0 or slurm(node).text.startswith("gdrtop: ")
    assert nagios(node).status == own


def test_simulated_and_recorded_nodes_say_so() -> None:
    for source, word in ((Source.SIMULATED, "SIMULATED"), (Source.RECORDED, "RECORDED")):
        node = checked("hgx-h100+no-gdr-path", origin=Origin(source, "lab"))
        assert node_problem_detector(node).text.startswith(f"{word} BROKEN")  # the label may have 80 bytes
        for contract in (nagios, nhc, slurm):
            assert f"{word} lab: " in contract(node).text
