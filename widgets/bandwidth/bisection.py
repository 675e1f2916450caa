"""A bisection of a job's NCCL variables: what differs, its runs, and the variables that matter."""

from __future__ import annotations

from collections.abc import Sequence

from probes.bandwidth.planning.bisection import LEAST_DIFFERENCE, Cause, Outcome, Trial
from probes.base.text import join_limited, plural
from probes.setup.env.differences import Difference, Differences
from widgets.base.figures import gbps, minutes
from widgets.base.lines import Line, Tone, paragraphs, section, wrapped

_UNSET = "unset"
_MOST_NAMED = 3


def draw_differences(found: Differences, width: int) -> list[Line]:
    """Return the variables that differ, and those that are not compared."""
    lines: list[Line] = [*wrapped("job → recommended", width, Tone.TITLE)]
    for each in found.differing:
        text = f"{each.name}: {_value(each.job)} → {_value(each.recommended)}"
        lines += wrapped(text, width, indent="  ", hanging="  ")
    reasons = (f"{variable.name}: {variable.reason}" for variable in found.not_compared)
    return [*lines, *section("Not compared", paragraphs(reasons, width, Tone.DIM, "  "))]


def draw_runs(counts: tuple[int, int, int], seconds: float, width: int) -> list[Line]:
    """Return how many runs are expected; `counts`: as in `run_counts`, `seconds`: of one run."""
    none, least, most = counts
    runs = f"{most}" if least == most else f"{least} to {most}"
    if none == most:
        text = f"{plural(none, 'run')}, about {minutes(none * seconds)}"
        return wrapped(text, width)
    text = (
        f"{plural(none, 'run')} show whether the job's variables matter, about {minutes(none * seconds)}."
        f" If one of them does, {runs} runs find it, about {minutes(most * seconds)}. More take longer."
    )
    return wrapped(text, width)


def trial_words(trial: Trial, differing: Sequence[Difference]) -> str:
    """Return what a trial measures: "job's NCCL_IB_HCA, NCCL_ALGO and 3 more"."""
    names = [each.name for each in differing if each.name in trial.of_job]
    again = ", again" if trial.repeat else ""
    if not names:
        return f"recommended values{again}"
    if len(names) == len(differing):
        return f"job's values{again}"
    return f"job's {join_limited(names, _MOST_NAMED)}"


def draw_outcome(outcome: Outcome, differing: Sequence[Difference], width: int) -> list[Line]:
    """Return what a search has found."""
    lines: list[Line] = [*wrapped(verdict(outcome, differing), width, Tone.TITLE)]
    reasons = {each.name: each for each in differing}
    slower = outcome.job_is_slower
    for cause in outcome.causes:
        tone = Tone.WARNING if slower else Tone.PLAIN
        lines += wrapped(f"▲ {cause_words(cause, outcome, differing)}", width, tone, "  ")
        for each in (reasons[name] for name in cause.names):
            advice = f"{'Recommended' if slower else 'Keep'}: {_setting(each, not slower)}"
            why = f" ({each.reason})" if slower and each.reason else ""
            lines += wrapped(f"{advice}{why}", width, indent="    ")
    if outcome.causes and outcome.rest and not outcome.trouble:
        count = plural(len(outcome.rest), "other variable")
        fast = max(outcome.recommended_gbps or 0.0, outcome.job_gbps or 0.0)
        is_noise = (outcome.rest_gbps or 0.0) < fast * (1 - LEAST_DIFFERENCE)
        cost = "no more than runs differ by" if is_noise else "nothing"
        text = f"The {count.removeprefix('1 ')} cost{'s' * (len(outcome.rest) == 1)} {cost}"
        whose = "job's" if slower else "recommended"
        rest = f"{gbps_or_failed(outcome.rest_gbps)} with the {whose} values of these"
        lines += wrapped(f"{text}: {rest}.", width)
    return lines


def verdict(outcome: Outcome, differing: Sequence[Difference]) -> str:
    """Return the result as one sentence."""
    ends = (
        f"{gbps_or_failed(outcome.job_gbps)} with the job's values,"
        f" {gbps_or_failed(outcome.recommended_gbps)} with the recommended ones"
    )
    if outcome.trouble:
        return f"Not found: {outcome.trouble} ({ends})."
    if not outcome.differs:
        return f"The job's variables make no difference: {ends}."
    slower = outcome.job_is_slower
    fails = (outcome.job_gbps if slower else outcome.recommended_gbps) is None
    causes = [cause for cause in outcome.causes if fails and cause.gbps is None] or outcome.causes
    names = [name for cause in causes for name in cause.names]
    most = f"{', '.join(names[:_MOST_NAMED])}{' and others' if len(names) > _MOST_NAMED else ''}"
    verb = "makes" if len(names) == 1 else "make"
    if not fails:
        return f"{most} {verb} the job {'slower' if slower else 'faster'}: {ends}."
    if slower:
        with_others = f"{gbps_or_failed(outcome.recommended_gbps)} with the recommended values"
        return f"{most} {verb} the test fail: {with_others}."
    values = f"The recommended value{'s' * (len(names) > 1)} of {most}"
    return f"{values} {verb} the test fail: {gbps_or_failed(outcome.job_gbps)} with the job's values."


def cause_words(cause: Cause, outcome: Outcome, differing: Sequence[Difference]) -> str:
    """Return what a cause costs: "NCCL_IB_HCA=mlx5_0 costs 69 %: 121 instead of 389 Gb/s"."""
    fast = max(outcome.recommended_gbps or 0.0, outcome.job_gbps or 0.0)
    named = [_setting(each, outcome.job_is_slower) for each in differing if each.name in cause.names]
    words = " with ".join(named)
    if cause.gbps is None:
        return f"{words}: the test fails"
    percent = f"{100 * (1 - cause.gbps / fast):.0f} %"
    return f"{words} costs {percent}: {cause.gbps:.0f} instead of {gbps(fast)}"


def gbps_or_failed(figure: float | None) -> str:
    """Return "389 Gb/s", or that the run failed."""
    return "no result (the test fails)" if figure is None else gbps(figure)


def _setting(difference: Difference, of_job: bool) -> str:
    """Return "NCCL_IB_HCA=mlx5_0" or "NCCL_IB_HCA unset"."""
    value = difference.job if of_job else difference.recommended
    return f"{difference.name} {_UNSET}" if value is None else f"{difference.name}={value}"


def _value(value: str | None) -> str:
    return _UNSET if value is None else value
