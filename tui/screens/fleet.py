"""The fleet screen: many nodes in a table, the worst first, and the selected one below."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from probes.base.text import plural
from probes.fleet.compare import Difference, Kind, badness
from probes.fleet.fleet_watch import FleetWatch, WatchedNode
from probes.fleet.summary import NodeSummary
from probes.snapshot.verdict import State
from tui.runtime.fleet_reader import FleetReading
from tui.screens.keys import bind
from tui.screens.list_screen import FILTER_KEY, REFRESH_KEY, FilteredListScreen
from tui.screens.list_state import FilteredListState
from tui.screens.request import Request
from widgets.base.columns import ColumnWidths
from widgets.base.lines import Line, Run, Tone, joined, plain, wrapped
from widgets.fleet.answer import differences_of, draw_node, draw_table, headline, type_name, types_of

_ORDERS = ("worst first", "by name", "by type", "most differences first", "newest change first")
_FILTER_WIDTH = 400


class FleetState(FilteredListState):
    """Nodes, selection, order and filter; it outlives the screen while the dashboard of a node is open."""

    def __init__(self, clock: Callable[[], float] = time.time, names: Iterable[str] = ()) -> None:
        super().__init__()
        self._clock = clock
        self.watch = FleetWatch(names)
        self._differences: Mapping[str, Sequence[tuple[Difference, Kind]]] = {}
        self._failure = ""
        self._sorted_by = 0  # of _ORDERS
        self._shown: list[WatchedNode] = []
        self._widths = ColumnWidths()
        self.opening = ""  # the node to which gdrtop connects
        self.is_reading = False
        self.progress = (0, 0)

    # What was read

    def add(self, reading: FleetReading) -> None:
        """Take a reading; one that failed leaves the table as it is."""
        self._failure = reading.failure
        if reading.fleet is not None:
            self.watch.add(reading.fleet, reading.at)
            self._differences = differences_of(reading.fleet)
            self._sort()

    def add_found(self, summaries: Iterable[NodeSummary]) -> None:
        """Take the nodes that have answered in a reading that still runs."""
        for summary in summaries:
            self.watch.add_answer(summary, self._clock())
        self._sort()

    def change_order(self) -> None:
        """Sort by the next column."""
        self._sorted_by = (self._sorted_by + 1) % len(_ORDERS)
        self._sort()

    def filter(self, word: str) -> None:
        """List only nodes whose row contains the word."""
        self.word = word.strip().lower()
        self._sort()

    @property
    def order(self) -> str:
        """How the nodes are sorted, in words."""
        return _ORDERS[self._sorted_by]

    def _sort(self) -> None:
        self._widths = ColumnWidths()  # rows that have changed may need wider columns
        nodes = list(self.watch.nodes)
        if self.word:
            rows = draw_table(nodes, self._differences, self.watch.read_at, self._clock(), _FILTER_WIDTH)
            nodes = [node for number, node in enumerate(nodes, 1) if self.word in plain(rows[number]).lower()]
        key: dict[str, Callable[[WatchedNode], object]] = {
            "worst first": _badness,
            "by name": lambda node: node.name,
            "by type": lambda node: type_name(node.summary) if node.summary is not None else "",
            "most differences first": lambda node: -len(self._differences.get(node.name, ())),
            "newest change first": lambda node: -(node.change.at if node.change is not None else 0.0),
        }
        self._shown = sorted(nodes, key=_badness)
        self._shown.sort(key=key[self.order])  # type: ignore[arg-type]
        self._keep_selection()

    def _order(self) -> list[str]:
        return [node.name for node in self._shown]

    @property
    def selected_row(self) -> int:
        """The row of the selected node, below the heading; 0 if there is none."""
        return next((row for row, node in enumerate(self._shown, 1) if node.name == self.selected), 0)

    # Drawing

    def summary(self, width: int) -> list[Line]:
        """Draw the counts of verdicts and changes, how old they are, and what runs now."""
        done, total = self.progress
        so_far = f": {done} of {plural(total, 'node')}" if total else " …"
        if self.watch.fleet is None:
            head = wrapped(f"Reading the nodes{so_far}", width, Tone.DIM) if self.is_reading else []
            return [*head, *self._notes(width)]
        types = types_of(self.watch.nodes)
        kind: Line = (Run(types.pop(), Tone.DIM),) if len(types) == 1 else ()
        as_of: Line = (Run(f"reading{so_far}", Tone.DIM),) if self.is_reading else ()
        line = joined(filter(None, (kind, as_of)), " · ")
        return [*([line] if line else []), *self._notes(width)]

    @property
    def sentence(self) -> Line:
        """The counts of verdicts and changes; () before the first answers."""
        if self.watch.fleet is None:
            return ()
        changed = self.watch.changed
        marks: Line = (Run(f"◆ {changed} changed", Tone.TITLE),) if changed else ()
        return joined(filter(None, (headline(self.watch.fleet), marks)), " · ")

    def _notes(self, width: int) -> list[Line]:
        lines = (
            wrapped(f"✗ The last reading failed: {self._failure}", width, Tone.BAD) if self._failure else []
        )
        if self.opening:
            lines.extend(wrapped(f"Opening {self.opening} …", width, Tone.TITLE))
        return lines

    def list_lines(self, width: int) -> Sequence[Line]:
        """Draw a row per node."""
        if not self.watch.has_answers:
            return []
        if not self._shown:
            return wrapped(f"No node contains {self.word!r}." if self.word else "No node.", width, Tone.DIM)
        now, read_at = self._clock(), self.watch.read_at
        return draw_table(self._shown, self._differences, read_at, now, width, self.selected, self._widths)

    def detail_lines(self, width: int) -> list[Line]:
        """Draw the selected node."""
        node = self.watch.node(self.selected)
        if node is None:
            return []
        return draw_node(node, self._differences.get(node.name, ()), self._clock(), width)


def _badness(node: WatchedNode) -> tuple[int, ...]:
    """Return a key that sorts the worst first: broken nodes, then those that do not answer."""
    if node.summary is None:
        return (1, 1) if node.silent_since is not None else (1, 2)
    rank = badness(node.summary.verdict)
    if node.summary.verdict.state is State.BROKEN:
        return (0, int(node.silent_since is None), *rank)
    return (1, 0, *rank) if node.silent_since is not None else (2, *rank)


class FleetScreen(FilteredListScreen[FleetState]):
    """The table of the nodes, and the selected one below."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        bind("view", "sort", label="Sort"),
        FILTER_KEY,
        REFRESH_KEY,
        bind("back", "leave", show=False),
        bind("quit", "back_or_quit", label="Quit"),
    ]
    LIST = "nodes"
    DETAILS = "node"
    TITLES = ("Fleet", "Nodes", "Node")
    FILTER = "a word: nodes whose row contains it"

    def _draw_panes(self) -> None:
        self._list.set_title(f"Nodes, {self._state.order}")
        self._details.set_title(self._state.selected or "Node")
        super()._draw_panes()

    def draw_summary(self) -> None:
        """Draw only how far the reading is."""
        if self.is_mounted:
            self._view("summary").show(self._state.summary(self.size.width))

    def _show_selected(self) -> None:
        self._list.scroll_to_row(self._state.selected_row)

    def why_not(self, action: str) -> str | None:
        return "" if action == "open" and self._state.opening else super().why_not(action)

    def action_open(self) -> None:
        self.post_message(Request("open_node", self._state.selected))

    def action_sort(self) -> None:
        self._state.change_order()
        self.draw()

    def action_refresh(self) -> None:
        self.post_message(Request("read_nodes"))

    def action_close(self) -> None:
        """Go back to the table: the screen is the first one, and only q quits."""
        self._list.focus()

    async def action_back_or_quit(self) -> None:
        """Go one step back; if there is none, quit."""
        if self._word.display or self._is_zoomed:
            self.action_leave()
            await self.run_action("app.note_step_back")
        else:
            await self.run_action("app.leave_app")
