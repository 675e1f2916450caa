"""Which panels the overview shows, and their heights, for a size of the terminal. Does not know Textual.

GPUs and NICs come first: a larger terminal never shows fewer of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field

from probes.base.frozen import frozen

TWO_COLUMNS = 120  # from this width on there is a second column beside the topology
WIDE = 160
RIGHT_CELLS, WIDE_RIGHT_CELLS = 46, 62
STRIP_ROWS = 3  # modules, GPUDirect, jobs
FINDING_ROWS = 3
_LEAST_FINDING_ROWS = 1
_LEAST_MATRIX_ROWS = 6
_JOB_ROWS = 2  # that the matrix gives for what is wrong with a job; its last rows are a legend
FOLDED_ROWS = 1  # of the modules if all are ok: one line without a border
_BORDER = 2
_TOPOLOGY_COLUMN = ("topology", "matrix", "rates")
_OTHER_COLUMN = {"gpudirect": 3, "path": 4, "modules": 3, "traffic": 4}  # least rows that are useful
HIDE_PANELS = "overview.hide"  # the setting
HIDEABLE = ("matrix", "rates", *_OTHER_COLUMN)  # findings, jobs and topology are always shown
_LEAST_ROWS = 1 + _BORDER
_PLACES = (("findings", "jobs"), _TOPOLOGY_COLUMN, ("modules", "gpudirect", "traffic", "path"))
PANEL_NAMES = tuple(name for names in _PLACES for name in names)
# The panels of the views 2 to 4, unless the user has saved others; view 1 shows all that have room.
VIEWS: Mapping[int, tuple[str, ...]] = {
    2: ("matrix", "path"),
    3: ("rates", "traffic"),
    4: ("jobs", "modules", "gpudirect"),
}
VIEW_PANELS = "overview.view_"  # begins the settings of the panels of views 2 to 4
START_VIEW = "overview.view"  # the setting


@frozen
class Arrangement:
    """The rows of each visible panel, borders included."""

    rows: Mapping[str, int] = field(default_factory=dict)
    is_one_column: bool = False
    right_cells: int = 0
    strip_rows: int = 0

    def inside(self, panel: str) -> int:
        """Return the rows inside the border of a panel."""
        return max(1, self.rows.get(panel, 0) - _BORDER)


def most_topology_rows(height: int, head_rows: int, one_column: bool) -> int:
    """Return the most rows that the topology can get."""
    others = _LEAST_FINDING_ROWS + 2 * _BORDER + (STRIP_ROWS if one_column else 0)
    return max(1, height - head_rows - 1 - others)


def left_cells(width: int, one_column: bool) -> int:
    """Return the width of the column with the topology."""
    return width if one_column else width - (WIDE_RIGHT_CELLS if width >= WIDE else RIGHT_CELLS)


def right_cells(width: int, one_column: bool) -> int:
    """Return the width of the other column, or of the only one."""
    return width if one_column else width - left_cells(width, one_column)


def are_all_right_hidden(hidden: Collection[str]) -> bool:
    """Return whether nothing is left for the other column."""
    return all(name in hidden for name in _OTHER_COLUMN)


def zoomed(panel: str, width: int, height: int, head_rows: int) -> Arrangement:
    """Return the arrangement of one panel alone."""
    return Arrangement({panel: max(3, height - head_rows - 1)}, True, width)


def view(
    names: Collection[str], width: int, height: int, head_rows: int, needs: Mapping[str, int]
) -> Arrangement:
    """Return the arrangement of some panels: findings and jobs above, the others in one or two columns.

    `needs`: as in `arrange`.
    """
    room = max(0, height - head_rows - 1)
    top, left, right = ([name for name in place if name in names] for place in _PLACES)
    is_wide = width >= TWO_COLUMNS and bool(left and right)
    columns = [left, right] if is_wide else [[*left, *right]]
    least = _LEAST_ROWS * max(map(len, columns))
    above = 0
    if top:
        most = max(needs[name] for name in top) + _BORDER
        above = max(_LEAST_ROWS, min(most, room - least) if least else room)
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
    head_rows: int,
    one_column: bool,
    needs: Mapping[str, int],
    topology_rows: Callable[[int], int],
    wishes: Mapping[str, int],
) -> Arrangement:
    """Distribute the rows over the panels.

    `needs`: the rows that each panel's content needs, the topology as a list, 0 of a hidden one;
    `topology_rows`: the height of the richest topology within so many rows; `head_rows`: of the verdict;
    `wishes`: the rows of what findings, jobs and rates show besides where nothing else needs the room.
    """
    strip_rows = STRIP_ROWS if one_column else 0
    room = max(0, height - head_rows - 1 - strip_rows)
    least = needs["topology"] + _BORDER
    findings = max(_LEAST_FINDING_ROWS, min(FINDING_ROWS, room - least - _BORDER))
    # The matrix gets the rows that findings and jobs leave empty.
    filled = max(_LEAST_FINDING_ROWS, needs["findings"], 0 if one_column else needs["jobs"])
    if _matrix_rows(room, filled, needs) > _matrix_rows(room, findings, needs):
        findings = filled
    arranged = _share(one_column, room, findings, needs, topology_rows)
    # Findings and jobs get what the topology's column does not need.
    spare = room - _used(one_column, arranged)
    names = ("findings",) if one_column else ("findings", "jobs")
    more = min(spare, max(wishes[name] for name in names) - findings)
    if not one_column:
        wanted = sum(_whole(name, needs) for name in _OTHER_COLUMN)
        more = min(more, room - findings - _BORDER - wanted)
    if more > 0:
        findings += more
        arranged = _share(one_column, room, findings, needs, topology_rows)
        spare = room - _used(one_column, arranged)
    missing = min(_JOB_ROWS, needs["jobs"] - findings)
    if not one_column and missing > 0 and arranged.get("matrix", 0) >= needs["matrix"] + _BORDER:
        findings += missing
        arranged = _share(
            *(one_column, room, findings, {**needs, "matrix": needs["matrix"] - missing}, topology_rows)
        )
        spare = room - _used(one_column, arranged)
    if spare > 0 and "rates" in arranged and arranged["rates"] + spare >= wishes["rates"] + _BORDER:
        spare -= wishes["rates"] + _BORDER - arranged["rates"]
        arranged["rates"] = wishes["rates"] + _BORDER
    arranged["topology"] += max(0, spare)
    return Arrangement(arranged, one_column, right_cells(width, one_column), strip_rows)


def _used(one_column: bool, rows: Mapping[str, int]) -> int:
    """Return the rows of the findings and of everything below them in the topology's column."""
    names = rows if one_column else ("findings", *_TOPOLOGY_COLUMN)
    return sum(rows[name] for name in names if name in rows)


def _share(
    one_column: bool, room: int, findings: int, needs: Mapping[str, int], topology_rows: Callable[[int], int]
) -> dict[str, int]:
    """Return the rows of every panel, if the findings have so many inside their border."""
    body = max(3, room - findings - _BORDER)
    matrix = _matrix_rows(room, findings, needs)
    if one_column:
        below = _one_column(body, matrix, needs)
        most = body - sum(below.values()) - _BORDER
        topology = min(topology_rows(most), most) + _BORDER
        return {"findings": findings + _BORDER, "topology": topology, **below}
    top = {"findings": findings + _BORDER, "jobs": findings + _BORDER}
    return {**top, **_left_column(body, matrix, needs, topology_rows), **_right_column(body, needs)}


def _matrix_rows(room: int, findings: int, needs: Mapping[str, int]) -> int:
    """Return the rows of the matrix: all, or fewer if at least some fit, else 0."""
    if not needs["matrix"]:
        return 0
    needed, left = needs["matrix"] + _BORDER, room - findings - needs["topology"] - 2 * _BORDER
    return min(needed, left) if left >= min(needed, _LEAST_MATRIX_ROWS) else 0


def _left_column(
    body: int, matrix: int, needs: Mapping[str, int], topology_rows: Callable[[int], int]
) -> dict[str, int]:
    topology = topology_rows(body - matrix - _BORDER) + _BORDER
    rows = {"topology": min(topology, body - matrix)}
    if matrix:
        rows["matrix"] = matrix
    left = body - sum(rows.values())
    if needs["rates"] and left >= needs["rates"] + _BORDER:
        rows["rates"] = needs["rates"] + _BORDER
    return rows


def _whole(name: str, needs: Mapping[str, int]) -> int:
    is_borderless = not needs[name] or (name == "modules" and needs[name] == FOLDED_ROWS)
    return needs[name] + (0 if is_borderless else _BORDER)


def _right_column(body: int, needs: Mapping[str, int]) -> dict[str, int]:
    """Return the rows of the other column: GPUDirect state, path and modules first; traffic gets the rest."""
    rows: dict[str, int] = {}
    left = body
    for name, least in _OTHER_COLUMN.items():
        whole = _whole(name, needs)
        wanted = min(whole, left)
        if whole and wanted >= min(least, whole):
            rows[name] = wanted
            left -= wanted
    if left and rows:
        last = "path" if "path" in rows else next(iter(rows))
        rows[last] += left
    return rows


def _one_column(body: int, matrix: int, needs: Mapping[str, int]) -> dict[str, int]:
    """Return the rows below the topology: the matrix, then each panel that fits whole."""
    rows = {"matrix": matrix} if matrix else {}
    left = body - matrix - needs["topology"] - _BORDER
    for name in ("path", "traffic", "gpudirect", "rates"):
        if needs[name] and needs[name] + _BORDER <= left:
            rows[name] = needs[name] + _BORDER
            left -= rows[name]
    return rows
