"""Which panels the overview shows, and their heights, for a size of the terminal. Does not know Textual.

GPUs and NICs come first: a larger terminal never shows fewer of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field

from probes.base.frozen import frozen
from tui.screens.own_settings import PLACES

TWO_COLUMNS = 120  # from this width on there is a second column beside the topology
WIDE = 160
RIGHT_CELLS, WIDE_RIGHT_CELLS = 46, 62
FINDING_ROWS = 3
_BORDER = 2
_LEAST_ROWS = 1 + _BORDER
_FIX_ROWS = 4  # below the findings, before the matrix gets its rows
_LEAST_MATRIX_ROWS = 6
_MOST_BESIDE = 3  # panels in the other column, of a terminal that is not wide
# What has a line of its own in one column, where its panel has no room.
_STRIPS = ("modules", "gpudirect", "jobs")
# The panels of the views 2 to 4; view 1 shows all that have room.
VIEWS: Mapping[int, tuple[str, ...]] = {
    2: ("matrix", "path"),
    3: ("rates", "traffic"),
    4: ("jobs", "gpudirect", "modules"),
}
START_VIEW = "overview.view"  # the setting


@frozen
class Arrangement:
    """The rows of each visible panel, borders included, and the panels that are one line instead."""

    rows: Mapping[str, int] = field(default_factory=dict)
    is_one_column: bool = False
    right_cells: int = 0
    strips: tuple[str, ...] = ()

    def inside(self, panel: str) -> int:
        """Return the rows inside the border of a panel."""
        return max(1, self.rows.get(panel, 0) - _BORDER)


def most_topology_rows(height: int, one_column: bool) -> int:
    """Return the most rows that the topology can get."""
    return max(1, height - 1 - _LEAST_ROWS - _BORDER - (len(_STRIPS) if one_column else 0))


def left_cells(width: int, one_column: bool) -> int:
    """Return the width of the column with the topology."""
    return width if one_column else width - (WIDE_RIGHT_CELLS if width >= WIDE else RIGHT_CELLS)


def right_cells(width: int, one_column: bool) -> int:
    """Return the width of the other column, or of the only one."""
    return width if one_column else width - left_cells(width, one_column)


def zoomed(panel: str, width: int, height: int) -> Arrangement:
    """Return the arrangement of one panel alone."""
    return Arrangement({panel: max(3, height - 1)}, True, width)


def view(names: Collection[str], width: int, height: int, needs: Mapping[str, int]) -> Arrangement:
    """Return the arrangement of some panels: findings above, the others in one or two columns.

    `needs`: as in `arrange`.
    """
    room = max(0, height - 1)
    top, left, right = ([name for name in place if name in names] for place in PLACES.values())
    is_wide = width >= TWO_COLUMNS and bool(left and right)
    columns = [left, right] if is_wide else [[*left, *right]]
    least = _LEAST_ROWS * max(map(len, columns))
    above = 0
    if top:
        above = max(_LEAST_ROWS, min(needs["findings"] + _BORDER, room - least) if least else room)
    rows = dict.fromkeys(top, above)
    for column in columns:
        rows |= _stacked(column, room - above, needs)
    return Arrangement(rows, not is_wide, width // 2 if is_wide else width)


def _stacked(names: Sequence[str], room: int, needs: Mapping[str, int]) -> dict[str, int]:
    """Return the rows of panels below each other: what they need, and the last one the rest."""
    rows: dict[str, int] = {}
    for number, name in enumerate(names):
        left = room - sum(rows.values()) - _LEAST_ROWS * (len(names) - number - 1)
        is_last = number == len(names) - 1
        rows[name] = max(_LEAST_ROWS, left if is_last else min(needs[name] + _BORDER, left))
    return rows


def arrange(
    width: int,
    height: int,
    one_column: bool,
    needs: Mapping[str, int],
    topology_rows: Callable[[int], int],
    wishes: Mapping[str, int],
) -> Arrangement:
    """Distribute the rows below the head over the panels.

    `needs`: the rows that each panel's content needs, the topology as a list, 0 of one that is hidden or has
    nothing to show; `topology_rows`: the height of the richest topology within so many rows; `wishes`: the
    rows of what findings, jobs, traffic and rates show besides where nothing else needs the room.
    """
    room = max(0, height - 1)
    if one_column:
        return _one_column(width, room, needs, wishes)
    rows = _topology_column(room, needs, topology_rows, wishes)
    if wishes["rates"] and "rates" in rows:
        spare = room - sum(rows.values())
        if rows["rates"] + spare >= wishes["rates"] + _BORDER:
            rows["rates"] = wishes["rates"] + _BORDER
    rows["topology"] += max(0, room - sum(rows.values()))
    body = room - rows.get("findings", 0)
    beside = _other_column(body, needs, wishes, width >= WIDE)
    return Arrangement({**rows, **beside}, False, right_cells(width, one_column))


def _least_findings(room: int, needs: Mapping[str, int]) -> int:
    """Return the fewest rows of the findings, if there are any."""
    left = room - needs["topology"] - _BORDER
    return max(_LEAST_ROWS, min(needs["findings"], FINDING_ROWS, left - _BORDER) + _BORDER)


def _topology_column(
    room: int, needs: Mapping[str, int], topology_rows: Callable[[int], int], wishes: Mapping[str, int]
) -> dict[str, int]:
    """Return the rows of the findings above both columns, and of the panels below them on the left.

    The findings get what the others leave, and rows of the matrix only for what is listed in them.
    """
    findings = _least_findings(room, needs) if needs["findings"] else 0
    below = _below_findings(room - findings, needs, topology_rows)
    more = min(room - findings - sum(below.values()), wishes["findings"] + _BORDER - findings)
    if findings and more > 0:
        findings += more
        below = _below_findings(room - findings, needs, topology_rows)
    return {"findings": findings, **below} if findings else below


def _below_findings(
    body: int, needs: Mapping[str, int], topology_rows: Callable[[int], int]
) -> dict[str, int]:
    matrix, least = 0, needs["topology"] + _BORDER
    if needs["matrix"]:
        needed, left = needs["matrix"] + _BORDER, body - least
        matrix = min(needed, left) if left >= min(needed, _LEAST_MATRIX_ROWS) else 0
    rows = {"topology": max(3, min(topology_rows(body - matrix - _BORDER) + _BORDER, body - matrix))}
    if matrix:
        rows["matrix"] = matrix
    left = body - sum(rows.values())
    if needs["rates"] and left >= needs["rates"] + _BORDER:
        rows["rates"] = needs["rates"] + _BORDER
    return rows


def _other_column(
    body: int, needs: Mapping[str, int], wishes: Mapping[str, int], is_wide: bool
) -> dict[str, int]:
    """Return the rows of the other column: a path only while it is selected, the traffic last."""
    rows: dict[str, int] = {}
    left = body
    for name in PLACES["right"]:
        is_last = name == "traffic" and len(rows) >= _MOST_BESIDE and not is_wide
        whole = min(needs[name] + _BORDER, left)
        if needs[name] and whole > _BORDER and not is_last:
            rows[name] = whole
            left -= whole
    for name in ("jobs", "traffic"):
        if name in rows and (more := min(left, wishes[name] - needs[name])) > 0:
            rows[name] += more
            left -= more
    if left and rows:
        rows["path" if "path" in rows else "jobs" if "jobs" in rows else next(iter(rows))] += left
    return rows


def _one_column(width: int, room: int, needs: Mapping[str, int], wishes: Mapping[str, int]) -> Arrangement:
    """Place all panels below each other: those that fit whole, the others as a line each if they have one."""
    strips = list(_STRIPS)
    rows: dict[str, int] = {}
    if needs["findings"]:
        rows["findings"] = _least_findings(room - len(strips), needs)
    least = needs["topology"] + _BORDER
    left = room - len(strips) - sum(rows.values()) - least

    def place(name: str) -> None:
        nonlocal left
        shown = (name, "modules") if name == "gpudirect" and not needs["modules"] else (name,)
        kept = [strip for strip in strips if strip not in shown]
        more = needs[name] + _BORDER - (len(strips) - len(kept))
        if needs[name] and more <= left:
            rows[name] = needs[name] + _BORDER
            left -= more
            strips[:] = kept

    def extend(name: str, most: int) -> None:
        nonlocal left
        if name in rows and (more := min(left, most + _BORDER - rows[name])) > 0:
            rows[name] += more
            left -= more

    place("path")
    extend("findings", min(wishes["findings"], needs["findings"] + _FIX_ROWS))
    place("matrix")
    extend("findings", wishes["findings"])
    for name in ("jobs", "gpudirect", "modules", "traffic", "rates"):
        place(name)
    if needs["matrix"] > room and left >= _LEAST_MATRIX_ROWS:  # no terminal shows all of it
        rows["matrix"], left = left, 0
    rows["topology"] = least + left
    return Arrangement(rows, True, width, tuple(strips))
