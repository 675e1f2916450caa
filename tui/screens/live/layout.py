"""How high the panes of Live are: most rows go to the pane with the focus on a short terminal."""

from __future__ import annotations

from collections.abc import Mapping

TRAFFIC = "job-traffic"  # the pane with the graphs of jobs
TALL_ROWS = 36
BORDER = 2
_FOLDED_ROWS = 4  # of a pane without the focus on a short terminal
_LEAST_ROWS = 5
_TWO_COLUMNS = 110
_GPU_CELLS = 54
_WIDE = 160
_WIDE_GPU_CELLS = 92


def arrange(width: int, height: int, needs: Mapping[str, int], focused: str) -> dict[str, int]:
    """Return the rows of each pane that is shown.

    `needs`: the rows that each can fill, with its border; of the traffic, the fewest that show something, 0
    for none.
    """
    is_tall = height >= TALL_ROWS - 8
    return _tall(width, height, needs, focused) if is_tall else _short(height, needs, focused)


def gpu_cells(width: int) -> int:
    """Return the width of the GPUs beside the events."""
    return _WIDE_GPU_CELLS if width >= _WIDE else _GPU_CELLS


def _short(height: int, needs: Mapping[str, int], focused: str) -> dict[str, int]:
    """Give the pane with the focus the rows that it needs, and what is left to the others."""
    last = "gpus" if focused == "gpus" else "changes"
    shown = dict.fromkeys(("ranks", "nics", last), _FOLDED_ROWS)
    left = height - sum(shown.values())
    for pane in (focused, "ranks", "nics", last):
        more = max(0, min(left, needs[pane] - shown[pane]))
        shown[pane] += more
        left -= more
    shown[last] += max(0, left)
    return shown


def _tall(width: int, height: int, needs: Mapping[str, int], focused: str) -> dict[str, int]:
    """Share the rows: what ranks and NICs need, and the rest to the events, beside the GPUs.

    What these leave empty shows the last hour of the jobs, if it is enough for that.
    """
    ranks, nics = needs["ranks"], needs["nics"]
    left = height - ranks - nics
    if left < 2 * _LEAST_ROWS:
        over = 2 * _LEAST_ROWS - left
        cut = min(over, max(0, ranks - 2 * _LEAST_ROWS))
        ranks, nics = ranks - cut, max(_LEAST_ROWS, nics - (over - cut))
        left = max(_LEAST_ROWS, height - ranks - nics)
    below = ("changes", "gpus") if width >= _TWO_COLUMNS else ("gpus" if focused == "gpus" else "changes",)
    spare = left - max(_LEAST_ROWS, *(needs[pane] for pane in below))
    traffic = {TRAFFIC: spare} if needs[TRAFFIC] and spare >= needs[TRAFFIC] else {}
    shown = {"ranks": ranks, "nics": nics, **dict.fromkeys(below, left - sum(traffic.values()))}
    return shown | traffic
