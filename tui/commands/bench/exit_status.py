"""The exit status of `gdrtop bench`, and its reason as a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from probes.bandwidth.model.planned_series import LeftOut
from probes.bandwidth.model.result import Ending, Result, is_as_requested, memory_used
from probes.bandwidth.model.samples import GPU_PATHS, STAGED
from probes.bandwidth.results.against_earlier import headline_text
from probes.base.text import plural
from tui.launch import EXIT_INTERRUPTED

EXIT_BELOW = 1  # a test is below the threshold, or below what its machine type should reach
EXIT_NOT_MEASURED = 2  # refused, failed, left out of a sweep, or running jobs would be affected without --yes
EXIT_NOT_WRITTEN = 3


def exit_status(
    results: Sequence[Result],
    planned: int,
    min_gbps: float | None,
    interrupted: str,
    left_out: Sequence[LeftOut] = (),
) -> tuple[int, str]:
    """Return the status and its reason for `planned` tests, of which the first ones were started.

    `interrupted` says by what, or is "". `left_out` are requested tests that could not be planned. In a
    comparison of paths to GPU memory, a path that does not work is a finding, as long as another one works.
    """
    tests = plural(planned, "test")
    done = [result for result in results if result.ending is Ending.DONE]
    if interrupted:
        stopped = ": both ends stopped" if results else ""
        return EXIT_INTERRUPTED, f"{interrupted}{stopped}, {len(done)} of {tests} completed"
    as_requested = [result for result in done if is_as_requested(result)]
    failed = [result for result in results if result.ending is not Ending.DONE]
    unexcused = [result for result in failed if not _has_alternative(result, as_requested)]
    if unexcused or not done:
        which = f": {unexcused[0].title}" if unexcused else ""
        return EXIT_NOT_MEASURED, f"{len(failed)} of {tests} failed{which}"
    # Another path to the memory of the same GPU was measured over the same NIC.
    excused = {
        end for result in as_requested if result.memory in GPU_PATHS for end in (result.path, result.pair.nic)
    }
    missed = [test for test in left_out if test.path not in excused]
    if missed:
        first, more = missed[0], f", and {len(missed) - 1} more" if len(missed) > 1 else ""
        count = f"{len(missed)} of {planned + len(missed)} tests skipped"
        return EXIT_NOT_MEASURED, f"{count}: {first.title} ({first.reason}){more}"
    other = [
        result
        for result in done
        if not is_as_requested(result) and not _has_alternative(result, as_requested)
    ]
    if other:
        count = f"{len(other)} of {tests} did not use the requested memory"
        return EXIT_NOT_MEASURED, f"{count}: {other[0].title} measured {memory_used(other[0])}"
    measured = f"{len(done)} of {tests} measured"
    if min_gbps is None:
        under = below_expected(done)
        if under:
            worst, others = under[0], len(under) - 1
            expected = f"at least {worst.expected_gbps:.0f} Gb/s is expected for {worst.expected_machine}"
            figure = f"{worst.title}, {headline_text(worst)}; {expected}"
            return EXIT_BELOW, f"lower than expected: {figure}{f'; and {others} more' if others else ''}"
        judged = (result for result in done if result.memory in GPU_PATHS or result.expected_machine)
        names = {result.expected_machine for result in judged}
        is_expected = len(names) == 1 and names != {""}
        return 0, f"{measured}{f', as expected for {names.pop()}' if is_expected else ''}"
    low = below_threshold(done, min_gbps)
    if low:
        figure = headline_text(low[0]) or "no result"
        more = f" and {len(low) - 1} more" if len(low) > 1 else ""
        return EXIT_BELOW, f"below the threshold of {min_gbps:g} Gb/s: {low[0].title}, {figure}{more}"
    return 0, f"{measured}, all reach {min_gbps:g} Gb/s"


def below_threshold(results: Sequence[Result], min_gbps: float | None) -> list[Result]:
    """Return the measured results below a threshold in Gb/s.

    In a comparison, a staged path is slow by nature and does not count.
    """
    done = [result for result in results if result.ending is Ending.DONE]
    done = [result for result in done if result.memory != STAGED] or done
    return [] if min_gbps is None else [result for result in done if (result.gbps or 0.0) < min_gbps]


def below_expected(results: Sequence[Result]) -> list[Result]:
    """Return the measured results below what their machine type should reach."""
    return [
        result
        for result in results
        if result.expected_gbps is not None and (result.gbps or 0.0) < result.expected_gbps
    ]


def _has_alternative(failed: Result, done: Sequence[Result]) -> bool:
    """Return whether another path to GPU memory works on the same pair."""
    return failed.memory in GPU_PATHS and any(
        result.memory in GPU_PATHS and result.pair == failed.pair for result in done
    )
