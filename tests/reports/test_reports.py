"""No public report is answered wrongly: a wrong answer is worse than none."""

import pytest

from tests.reports.report import WRONG, Report, judge, read, reports

TUNED = [report for report in reports() if not report.aside]


@pytest.mark.parametrize("report", TUNED, ids=lambda report: report.name)
def test_no_report_is_answered_wrongly(report: Report) -> None:
    word, why = judge(report, read(report))
    assert word != WRONG, f"{report.source}: {why}"
