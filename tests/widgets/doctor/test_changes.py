"""What an action has changed is told without guessing."""

from dataclasses import replace

import pytest

from probes.checks.judgment import Judgment, conclude
from probes.checks.registry import findings
from probes.queries.finding import Finding, Status
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination, examine
from widgets.base.lines import plain
from widgets.doctor.changes import draw_change

_WORDS = ("fixed", "new", "unknown")


def judged(examination: Examination, *changed: Finding) -> Judgment:
    by_id = {finding.id: finding for finding in (*findings(examination), *changed)}
    return Judgment(conclude(examination.usability, by_id.values()), tuple(by_id.values()))


def rows(before: Judgment, after: Judgment) -> dict[str, str]:
    """The first word of each row, by the finding's id."""
    told = [plain(line).split() for line in draw_change(before, after, 200)]
    return {words[2]: words[0] for words in told if len(words) > 2 and words[0] in _WORDS}


@pytest.mark.slow
def test_findings_that_disappear_are_fixed_and_others_are_new() -> None:
    broken = judged(examine(SimulatedHost("hgx-h100+peermem-not-loaded")))
    whole = judged(examine(SimulatedHost("hgx-h100")))
    assert rows(broken, whole)["peermem-not-loaded"] == "fixed"
    assert rows(whole, broken)["peermem-not-loaded"] == "new"
    drawn = "\n".join(map(plain, draw_change(broken, whole, 200)))
    assert "✓ peermem-not-loaded nvidia_peermem is loaded" in drawn
    assert "nvidia_peermem is not loaded" not in drawn.partition("fixed")[2]


def test_a_check_that_could_not_run_again_is_not_fixed() -> None:
    examination = examine(SimulatedHost("hgx-h100+peermem-not-loaded"))
    before = judged(examination)
    found = next(finding for finding in before.findings if finding.id == "peermem-not-loaded")
    unsure = replace(found, status=Status.UNKNOWN, cause="the modules could not be read: timed out")
    after = judged(examination, unsure)
    assert rows(before, after) == {"peermem-not-loaded": "unknown"}
    assert "timed out" in "\n".join(map(plain, draw_change(before, after, 200)))


def test_an_unchanged_node_says_so() -> None:
    same = judged(examine(SimulatedHost("hgx-h100")))
    assert "The findings are the same as before." in "\n".join(map(plain, draw_change(same, same, 200)))
