"""Checks that differ only by a variable of jobs, and by its wrong values."""

from __future__ import annotations

from collections.abc import Callable

from probes.queries.finding import Area, Outcome, Severity
from probes.queries.jobs import conclude, jobs_of, values_of, without_variable
from probes.snapshot.examination import Examination


def add_variable_check(
    area: Area,
    name: str,
    severity: Severity,
    title: str,
    reference: str,
    *,
    ok: str,
    impact: str,
    variable: str,
    wrong: Callable[[str], str | None],
    cause: str,
    instead: str | Callable[[Examination], str] = "",
    applies: Callable[[Examination], bool] = lambda _: True,
    data_path: bool = False,
    part_of: tuple[str, ...] = (),
) -> None:
    """Add a check to an area that finds jobs with a wrong value of a variable.

    `wrong` returns a remark on a wrong value, None otherwise. `instead` completes the fix, which is to
    remove the variable. `applies`: whether NCCL reads the variable on this node.
    """

    @area.check(name, severity, title, reference, ok=ok, impact=impact, data_path=data_path)
    def judge(examination: Examination) -> Outcome:
        is_read = applies(examination)
        return conclude(
            jobs_of(examination),
            values_of(examination, variable, lambda _, value: wrong(value) if is_read else None),
            cause,
            fix=without_variable(variable, instead if isinstance(instead, str) else instead(examination)),
            part_of=part_of,
        )
