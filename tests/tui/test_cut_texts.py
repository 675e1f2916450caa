"""What has no room is cut between words, and never before the word that decides."""

from __future__ import annotations

import re

import pytest

from probes.simulation.faults.catalogue import FAULTS
from probes.simulation.host import SimulatedHost
from tests.support.pilot import SteppedClock
from tests.support.tiers import usual
from tests.tui.test_statements import overview_of, watched
from tui.runtime.reading_thread import Sampled
from tui.screens import head as head_drawing
from tui.screens.head import HeadState
from tui.screens.overview.layout import RIGHT_CELLS, left_cells
from tui.screens.overview.state import OverviewState
from widgets.base.lines import Line, plain

WHOLE = 1000
LONG_WORD = 12  # cells: a path or an address may be cut
# The width of the terminal, and those of its panels.
SIZES = {80: (78, 78), 100: (98, 98), 120: (left_cells(120, False) - 2, RIGHT_CELLS - 2)}
USUAL = ("job-restarted-staged", "acs-on", "no-gdr-path", "job-hung", "nccl-net-socket", "rank-behind")


def words_of(text: str) -> set[str]:
    return set(re.split(r"[\s…]+", text))


def drawn(overview: OverviewState, width: int, left: int, right: int) -> dict[str, list[Line]]:
    """Everything but the tables of figures, which have columns."""
    panels = dict.fromkeys(("jobs", "gpudirect", "modules", "path"), right)
    lines = {name: [*overview.lines(name, cells, False)] for name, cells in panels.items()}
    lines["findings"] = [*overview.findings_lines(width - 2, WHOLE)]
    lines["strips"] = overview.strips(("modules", "gpudirect", "jobs"), width)
    return lines


def wrong_in(name: str, seconds: int) -> list[str]:
    clock = SteppedClock()
    host = SimulatedHost(name, clock=clock)
    monitor = watched(host, clock, seconds)
    overview = overview_of(monitor)
    head = HeadState(host.origin, **overview.head_fields())  # type: ignore[arg-type]
    whole = {panel: plain_of(lines) for panel, lines in drawn(overview, WHOLE, WHOLE, WHOLE).items()}
    sentence = plain(head.sentence)
    wrong = []
    for width, (left, right) in SIZES.items():
        for panel, lines in drawn(overview, width, left, right).items():
            wrong += [
                f"{width} {panel}: {text}"
                for text in map(plain, lines)
                if text.endswith("…") and not is_cut_well(text, words_of(whole[panel]))
            ]
        first = plain(head_drawing.draw(head, "Overview", width)[0]).strip()
        if first.endswith("…") and not is_cut_well(first, words_of(sentence)):
            wrong.append(f"{width} head: {first}")
        effect = sentence.partition(": ")[0]
        if len(effect) < width and effect not in first:
            wrong.append(f"{width} head without its effect: {first}")
    return wrong


def plain_of(lines: list[Line]) -> str:
    return "\n".join(map(plain, lines))


def is_cut_well(text: str, words: set[str]) -> bool:
    """Whether the last word before the cut is whole, or too long for a line."""
    last = text.rstrip("… ").rpartition(" ")[2]
    return last in words or len(last) >= LONG_WORD


@pytest.mark.parametrize("fault", usual(FAULTS, USUAL))
def test_no_text_of_a_fault_is_cut_within_a_word(fault: str) -> None:
    assert wrong_in(f"{FAULTS[fault].on}+{fault}", 45 if FAULTS[fault].is_live else 0) == []


def test_an_event_says_what_happened_at_80_columns() -> None:
    clock = SteppedClock()
    monitor = watched(SimulatedHost("hgx-h100+job-restarted-staged", clock=clock), clock, 1)
    overview = overview_of(monitor)
    for _ in range(45):
        monitor.read()
        if monitor.needs_check:
            monitor.check()
        clock.now += 1.0
        assert monitor.reading is not None
        assert monitor.judgment is not None
        assert monitor.sample is not None
        sample = monitor.sample
        overview.apply(Sampled(monitor.reading, monitor.judgment, sample.taken_at, sample))
    text = plain_of([*overview.findings_lines(78, 20)])
    assert re.search(r"▲ ranks 0-7 of train.py restarted and now copy through host memory", text), text
    assert "(alice, Slurm job 4711)" not in text
