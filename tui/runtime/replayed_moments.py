"""Read a recording moment by moment, and check it when the node itself would be checked.

What lasts is judged by what was before, such as the rates of the first minute. So a moment is always read
after all moments before it; a recording has an hour of them at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from probes.live.model.sample import LiveSample
from tui.runtime.live_reader import LiveReader

if TYPE_CHECKING:  # imported when a recording is opened
    from probes.recording.replay_host import ReplayHost


def read_judged(reader: LiveReader, probe: bool = False, check: bool = False) -> LiveSample:
    """Return a sample, with what a check has found if something has happened or with `check`."""
    sample = reader.read(probe)
    if not (check or reader.needs_check):
        return sample
    judgement = reader.check()
    return replace(sample, verdict=judgement.verdict, findings=judgement.listed)


def read_up_to(reader: LiveReader, node: ReplayHost, last: int) -> Iterator[LiveSample]:
    """Yield the samples of a recording from the first moment; the last one is always checked."""
    last = min(last, len(node.recording.moments) - 1)
    for moment in range(last + 1):
        node.seek(moment)
        yield read_judged(reader, node.recording.moments[moment].probed, moment == last)
