"""What changed: one row for one cause, as long as it is."""

from __future__ import annotations

from probes.base.evidence import Severity
from probes.live.model.sample import EventKind, LiveEvent
from tests.support.live_samples import BEGAN
from widgets.base.lines import plain, width_of
from widgets.live import changes, detail


def went_down(number: int, at: float = BEGAN, text: str = "went down") -> LiveEvent:
    name = f"mlx5_{number}"
    return LiveEvent(at, EventKind.PORT_STATE, Severity.WARNING, name, f"{name} {text}", "The link is lost.")


def shown(events: list[LiveEvent], width: int = 80) -> list[str]:
    """The rows without their times."""
    return [plain(line)[9:] for line in changes.draw(changes.changes_of(events), width)]


def test_ports_that_go_down_together_are_one_row() -> None:
    events = [went_down(number, BEGAN + (number > 5)) for number in range(8)]
    assert shown(events, 60) == ["▲ mlx5_0 went down; also mlx5_1-7"]
    assert shown(list(reversed(events)), 60) == ["▲ mlx5_0 went down; also mlx5_1-7"]


def test_a_port_that_flaps_keeps_a_row_for_each_time() -> None:
    events = [went_down(0), went_down(0, BEGAN + 1), went_down(1, BEGAN + 1)]
    assert shown(events, 50) == ["▲ mlx5_0 went down", "▲ mlx5_0 went down; also mlx5_1"]


def test_other_moments_and_other_texts_are_other_rows() -> None:
    assert len(shown([went_down(0), went_down(1, BEGAN + 60)])) == 2
    assert len(shown([went_down(0), went_down(1, text="is ACTIVE again")])) == 2


def test_ranks_are_folded_although_their_pids_differ() -> None:
    events = [
        LiveEvent(
            BEGAN,
            EventKind.PATH_CHANGED,
            Severity.WARNING,
            f"pid {pid}",
            f"pid {pid} (train.py, rank {pid - 4711}) was restarted and now uses TCP",
        )
        for pid in range(4711, 4715)
    ]
    (row,) = shown(events, 200)
    assert row == "▲ pid 4711 (train.py, rank 0) was restarted and now uses TCP; also pid 4712-4714"


def test_a_long_row_is_wrapped_and_not_cut() -> None:
    text = "copies through host memory (staged), previously GDR (DMA-BUF), " * 3
    lines = changes.draw(changes.changes_of([went_down(0, text=text.strip())]), 60)
    assert len(lines) > 2
    assert all(width_of(line) <= 60 for line in lines)
    assert " ".join(plain(line)[9:].strip() for line in lines) == f"▲ mlx5_0 {text.strip()}"
    assert {line[0].id for line in lines} == {changes.key_of(went_down(0))}  # a click anywhere selects it


def test_enter_shows_the_events_that_were_folded() -> None:
    first, *others = (went_down(number) for number in range(3))
    text = "\n".join(plain(line) for line in detail.of_event(first, None, None, 80, others))
    assert "Also        mlx5_1 went down\n            mlx5_2 went down" in text
