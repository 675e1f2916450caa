"""How a use of `gdrtop bench` ended: its exit status, and the reason in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from probes.bandwidth.model.planned_test import LeftOut
from probes.bandwidth.model.result import Ending, Result
from probes.bandwidth.results.against_earlier import headline_text
from probes.bandwidth.results.memory_path import is_as_requested, memory_used
from probes.bandwidth.tools.samples import BY_DMABUF, BY_PEERMEM

EXIT_BELOW = 1  # a test is below the threshold
EXIT_NOT_MEASURED = 2  # refused, failed, left out of a sweep, or running jobs would be affected without --yes
EXIT_NOT_WRITTEN = 3
EXIT_WRONG_USAGE = 3
EXIT_STOPPED = 130
_PATHS = (BY_DMABUF, BY_PEERMEM)


def ended(
    results: Sequence[Result],
    planned: int,
    bar: float | None,
    interrupted: str,
    left_out: Sequence[LeftOut] = (),
) -> tuple[int, str]:
    """Of so many planned tests these were begun; `bar` is in Gb/s, `interrupted` says by what.

    `left_out` are tests that were asked for and could not be planned; of paths to a GPU's memory that are
    compared, one that lacks is a finding where another one was measured.
    """
    done = [one for one in results if one.ending is Ending.DONE]
    if interrupted:
        what = ": both ends were stopped" if results else ""
        return EXIT_STOPPED, f"{interrupted}{what}; {len(done)} of {planned} tests were completed"
    as_asked = [one for one in done if is_as_requested(one)]
    failed = [one for one in results if one.ending is not Ending.DONE]
    unforgiven = [one for one in failed if not _is_made_up_for(one, as_asked)]
    if unforgiven or not done:
        which = f": {unforgiven[0].title}" if unforgiven else ""
        return EXIT_NOT_MEASURED, f"{len(failed)} of {planned} tests failed{which}"
    left_out = [one for one in left_out if not _was_measured_otherwise(one, as_asked)]
    if left_out:
        first, more = left_out[0], f"; and {len(left_out) - 1} more" if len(left_out) > 1 else ""
        count = f"{len(left_out)} of {planned + len(left_out)} tests were left out"
        return EXIT_NOT_MEASURED, f"{count}: {first.title}: {first.reason}{more}"
    other = [one for one in done if not is_as_requested(one) and not _is_made_up_for(one, as_asked)]
    if other:
        which = f"{other[0].title}: {memory_used(other[0])} was measured"
        return (
            EXIT_NOT_MEASURED,
            f"{len(other)} of {planned} tests had another memory than asked for: {which}",
        )
    measured = f"{len(done)} of {planned} tests measured"
    if bar is None:
        return 0, measured
    low = below_threshold(done, bar)
    if low:
        figure = headline_text(low[0]) or "no figure"
        more = f" and {len(low) - 1} more" if len(low) > 1 else ""
        return EXIT_BELOW, f"below the threshold of {bar:g} Gb/s: {low[0].title}, {figure}{more}"
    return 0, f"{measured}, all reach {bar:g} Gb/s"


def _was_measured_otherwise(left_out: LeftOut, done: Sequence[Result]) -> bool:
    """By another path to the same GPU's memory over the same NIC; host memory proves nothing of a GPU."""
    of_gpu = [one for one in done if one.memory in _PATHS]
    return any(left_out.path in (one.path, one.pair.nic) for one in of_gpu)


def below_threshold(results: Sequence[Result], bar: float | None) -> list[Result]:
    """What was measured and does not reach the bar, in Gb/s."""
    done = [one for one in results if one.ending is Ending.DONE]
    return [] if bar is None else [one for one in done if (one.gbps or 0.0) < bar]


def _is_made_up_for(failed: Result, done: Sequence[Result]) -> bool:
    """Of paths to a GPU's memory that are compared, one that lacks is a finding where another one works."""
    return failed.memory in _PATHS and any(one.memory in _PATHS and one.pair == failed.pair for one in done)
