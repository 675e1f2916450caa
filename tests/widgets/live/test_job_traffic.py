"""The traffic of jobs: a graph for each direction, as high as there is room."""

from dataclasses import replace

import pytest

from probes.base.history import History
from probes.base.unknown import Reason, Unknown
from tests.support.live_samples import BEGAN, a_job, a_sample
from widgets.base.lines import plain, width_of
from widgets.live.job_lines import rates_text
from widgets.live.job_traffic import draw, span

TWO_MINUTES = 120.0


def traffic(seconds: int, sent: float, received: float) -> tuple[History, History]:
    both = History(), History()
    for at in range(seconds):
        both[0].add(float(at), sent)
        both[1].add(float(at), received)
    return both


def test_both_directions_are_beside_each_other_and_scaled_to_the_line_rate() -> None:
    drawn = draw(a_sample(), {"job": traffic(60, 3200.0, 1600.0)}, 102, 10, TWO_MINUTES, BEGAN)
    texts = [plain(line) for line in drawn]
    assert len(texts) == 10
    assert [text.strip() for text in texts[0].split("train.py")[1:]] == [
        "↑ 2.96 Tb/s 92% peak 3.20 Tb/s",
        "↓ 2.96 Tb/s 92% peak 1.60 Tb/s",
    ]
    assert {text.count("█") for text in texts[1:5]} == {25}  # half of the time, in one direction
    assert {text.count("█") for text in texts[5:9]} == {50}


@pytest.mark.parametrize(("width", "rows"), [(102, 6), (102, 7), (200, 40), (99, 8), (60, 6), (25, 6)])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_graphs_fill_their_room_exactly(width: int, rows: int, count: int) -> None:
    jobs = tuple(replace(a_job(), id=f"job{number}") for number in range(count))
    drawn = draw(a_sample(jobs=jobs), {"job0": traffic(200, 3.0, 4.0)}, width, rows, TWO_MINUTES, BEGAN)
    assert len(drawn) == rows
    assert {width_of(line) for line in drawn} <= {width, 2 * ((width - 2) // 2) + 2}


def test_jobs_without_room_are_counted_and_the_shown_moment_is_marked() -> None:
    jobs = tuple(replace(a_job(), id=f"job{number}") for number in range(4))
    drawn = draw(a_sample(jobs=jobs), {}, 120, 9, TWO_MINUTES, BEGAN, BEGAN - 60.0)
    assert plain(drawn[-1]).endswith("and 2 more jobs")
    assert plain(drawn[-1]).index("▲") == 30


def test_without_a_job_on_a_nic_there_is_nothing_to_draw() -> None:
    unknown = Unknown(Reason.TIMED_OUT)
    assert draw(a_sample(ranks=0), {}, 120, 9, TWO_MINUTES, BEGAN) == []
    job = replace(a_job(), sent_gbps=unknown, received_gbps=unknown)
    drawn = draw(a_sample(jobs=(job,)), {}, 120, 9, TWO_MINUTES, BEGAN)
    assert plain(drawn[0]).startswith("train.py ↑ ? Gb/s")


def test_the_graphs_grow_with_what_was_seen_up_to_an_hour() -> None:
    assert [span(seconds) / 60 for seconds in (0, 120, 121, 900, 3000, 9000)] == [2, 2, 5, 20, 60, 60]


def test_rates_that_are_upper_limits_are_marked_as_in_the_line_of_the_job() -> None:
    sample = a_sample(kernel_clients={"mlx5_0": ("Lustre",)})
    drawn = draw(sample, {}, 120, 9, TWO_MINUTES, BEGAN)
    assert plain(drawn[0]).startswith("train.py ≤ ↑ 2.96 Tb/s")
    assert rates_text(sample.jobs[0], sample).startswith("≤ ")
