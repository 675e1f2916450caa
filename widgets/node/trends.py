"""Graphs behind the lines of the topology's boxes, on a screen with room beside the figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from widgets.base.lines import Line, Run, fit, width_of
from widgets.node.boxes import Switch, narrowest_cells

# Returns the graphs of a GPU or NIC, of so many cells, one for each of its lines; () for none.
Trends = Callable[[str, int], Sequence[Line]]
LEGEND = "graphs: 2 min, █ = link rate"
_LEAST_CELLS, _MOST_CELLS = 8, 60


def graph_cells(numas: Mapping[int, Switch], lines: Mapping[str, list[Line]], inside: int) -> int:
    """Return the cells of a graph behind each line, if the boxes are `inside` cells wide; 0: no room."""
    narrowest = min((narrowest_cells(switch, lines, inside) for switch in numas.values()), default=0)
    cells = narrowest - _longest(lines) - 1
    return min(_MOST_CELLS, cells) if cells >= _LEAST_CELLS else 0


def with_graphs(lines: Mapping[str, list[Line]], trends: Trends, cells: int) -> dict[str, list[Line]]:
    """Return the lines of each endpoint with its graphs below each other."""
    longest = _longest(lines)
    drawn: dict[str, list[Line]] = {}
    for end, own in lines.items():
        graphs = trends(end, cells)
        drawn[end] = [
            (*fit(line, longest), Run(" ", id=end), *(run._replace(id=end) for run in graphs[number]))
            if number < len(graphs)
            else line
            for number, line in enumerate(own)
        ]
    return drawn


def _longest(lines: Mapping[str, list[Line]]) -> int:
    return max((width_of(line) for own in lines.values() for line in own), default=0)
