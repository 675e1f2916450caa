"""The Live screen: which jobs use GPUDirect RDMA now, how fast, which rank is odd, and what changed."""

from __future__ import annotations

from collections.abc import Mapping

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Input

from tui.screens import save_and_copy
from tui.screens.head import HEAD_ROWS, HeadView
from tui.screens.key_footer import KeyFooter
from tui.screens.keys import bind, bind_pair, leave_keys
from tui.screens.list_screen import FILTER_KEY, ZOOM_KEY, PanesScreen, static_view
from tui.screens.live.state import PANES, LiveState
from tui.screens.live.tables import choose_columns, choose_order, set_order
from tui.screens.request import Request
from widgets.base.lines import rows_of
from widgets.base.lines_view import LinesView
from widgets.live.columns import COLUMNS, changed_order, order_text, sort_clicked
from widgets.live.job_traffic import LEAST_ROWS

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


_TITLES = {"ranks": "Ranks", "nics": "NICs", "gpus": "GPUs, Gb/s", "changes": "What changed"}


class LiveScreen(PanesScreen):
    """Jobs above; ranks, NICs, GPUs and events in panes; Enter opens the selected row."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        bind("open", "open"),
        *bind_pair("moment", "step"),
        *bind_pair("event", "event"),
        *bind_pair("moments", "step", 10, show=False),
        *bind_pair("ends", "end", show=False),
        bind("last", "last", "end", show=False),
        bind("write", "write"),
        bind("copy", "copy"),
        bind("nccl", "log", label="NCCL log"),
        bind("ras", "app.ras"),
        FILTER_KEY,
        bind("view", "sort", label="Sort"),
        bind("columns", "columns"),
        ZOOM_KEY,
        *bind_pair("pane", "pane"),
        *leave_keys("live"),
    ]

    def __init__(self, state: LiveState, is_replay: bool = False) -> None:
        super().__init__()
        self._state = state
        self._is_replay = is_replay
        self._pane = "ranks"
        self._wanted_event = 0  # the side of the event that the recording is read ahead for
        self._arranged: object = None

    def compose(self) -> ComposeResult:
        yield HeadView("Live")
        yield static_view("summary")
        with Vertical(id="live"):
            yield LinesView(_TITLES["ranks"], id="ranks")
            yield LinesView(_TITLES["nics"], id="nics")
            with Horizontal(id="below"):
                yield LinesView(_TITLES["changes"], id="changes")
                yield LinesView(_TITLES["gpus"], id="gpus")
            yield static_view(TRAFFIC)
            yield LinesView("", id="details")
        yield Input(placeholder="A word in a row of the focused pane. Esc: clear", id="word")
        yield KeyFooter()

    def on_mount(self) -> None:
        self._word.value = self._state.word
        self._word.display = bool(self._state.word)
        self._view("ranks").focus()
        self.draw()

    def on_resize(self) -> None:
        self.draw()

    def on_lines_view_resized(self) -> None:
        self.draw()

    def on_screen_resume(self) -> None:
        """Draw what has changed while another screen covered this one."""
        self.draw()

    # Drawing

    @property
    def _word(self) -> Input:
        return self.query_one("#word", Input)

    @property
    def _is_opened(self) -> bool:
        return self.has_class("opened")

    def draw(self) -> None:
        """Draw the panes that there are; a pane repaints only the cells that changed."""
        if not self.is_mounted or not self.is_current or not self.children:
            return
        width, height = self.size
        rows = 3 if height < TALL_ROWS else 6
        summary = self._state.summary(width, rows)
        self._view("summary").show(summary)
        self._arrange(width, height - HEAD_ROWS - len(summary) - 1)
        if self._is_opened:
            details = self._view("details")
            details.set_title(self._state.detail_title(self._pane))
            if details.room:
                details.show(self._state.detail_lines(self._pane, details.room))
            return
        self._state.focused = self._pane
        for pane in PANES:
            view = self._view(pane)
            if view.display and view.room:
                self._state.keep_selection(pane)
                if pane in COLUMNS:
                    view.set_title(f"{_TITLES[pane]}, {order_text(self._state.sorts[pane])}")
                view.show(self._state.lines(pane, view.room, view.visible_rows))
        traffic = self._view(TRAFFIC)
        if traffic.display and traffic.room:
            traffic.set_title(self._state.traffic_title)
            traffic.show(self._state.traffic_lines(traffic.room, traffic.content.height))

    def _arrange(self, width: int, height: int) -> None:
        """Give each pane its rows."""
        height -= 3 if self._word.display else 0
        needs = {pane: max(2, self._rows_of(pane)) + BORDER for pane in PANES}
        needs["ranks"] += len(self._state.notes)
        needs[TRAFFIC] = LEAST_ROWS + BORDER if self._state.has_traffic else 0
        opened = {"details": height} if self._is_opened else None
        alone = {self._pane: height} if self._is_zoomed else None
        arranged = opened or alone or arrange(width, height, needs, self._pane)
        if (arranged, width) == self._arranged:
            return
        self._arranged = arranged, width
        with self.app.batch_update():
            for pane in (*PANES, TRAFFIC, "details"):
                view = self._view(pane)
                view.display = pane in arranged
                view.styles.height = arranged.get(pane, 0)
            below = self.query_one("#below")
            below.display = "changes" in arranged or "gpus" in arranged
            below.styles.height = max(arranged.get("changes", 0), arranged.get("gpus", 0))
            both = "changes" in arranged and "gpus" in arranged
            cells = _WIDE_GPU_CELLS if width >= _WIDE else _GPU_CELLS
            self._view("gpus").styles.width = cells if both else "1fr"

    def _rows_of(self, pane: str) -> int:
        """Return the rows that a table needs, with its heading."""
        room = self._view(pane).room
        if pane == "changes" and room:
            return len(self._state.lines(pane, room))
        return len(self._state.order(pane)) + 1

    # Keys

    def why_not(self, action: str) -> str | None:
        is_table = not self._is_opened and self._pane in COLUMNS
        if action in ("columns", "sort") and not is_table:
            return "go to a table with columns first, with Tab."
        if action == "copy" and not (self._is_opened and self._state.stack_command(self._pane)):
            return "open a rank first, with Enter: this copies its py-spy command."
        return "" if action == "open" and self._is_opened else None

    def action_move(self, how: str) -> None:
        """Move the selection of the focused pane, or scroll the details."""
        if self._is_opened:
            super().action_move(how)
            return
        self._state.select(self._pane, self._view(self._pane).rows_moved(how))
        self.draw()
        self._show_selected()

    def _show_selected(self) -> None:
        view = self._view(self._pane)
        row = rows_of(view.lines).get(self._state.selected[self._pane])
        if row is not None:
            view.scroll_to_row(0 if row == 1 else row)

    def on_lines_view_picked(self, picked: LinesView.Picked) -> None:
        """Select the clicked row, or sort by the clicked head."""
        pane = picked.view.id or ""
        name = sort_clicked(pane, picked.id) if pane in COLUMNS else ""
        if name:
            self._focus(pane)
            set_order(self, self.draw, self._state, pane, changed_order(self._state.sorts[pane], name))
        elif pane in PANES:
            self._state.selected[pane] = picked.id
            self._focus(pane)

    def on_descendant_focus(self) -> None:
        focused = self.focused.id if isinstance(self.focused, LinesView) else None
        if focused in PANES and focused != self._pane:
            self._pane = focused
            self.draw()
            self.refresh_bindings()

    def _zoom(self, shown: Widget | None) -> None:
        super()._zoom(shown)
        self._arranged = None
        self.draw()

    def action_pane(self, step: int) -> None:
        """Focus the next pane; if one is shown alone, the next one is."""
        if self._is_opened:
            return
        self._focus(PANES[(PANES.index(self._pane) + step) % len(PANES)])

    def _focus(self, pane: str) -> None:
        self._pane = pane
        self.draw()
        self._view(pane).focus()
        self.refresh_bindings()
        self.call_after_refresh(self._show_selected)

    def action_open(self) -> None:
        if self._state.keep_selection(self._pane):
            self._set_opened(True)

    def _set_opened(self, is_opened: bool) -> None:
        self.set_class(is_opened, "opened")
        self.draw()
        view = self._view("details" if is_opened else self._pane)
        if is_opened:
            view.scroll_to(y=0, animate=False)
        view.focus()
        self.refresh_bindings()

    def action_leave(self) -> None:
        """Close the details, else clear the filter, else return to now, else leave the screen."""
        if self._is_opened:
            self._set_opened(False)
        elif self._word.has_focus or self._word.display:
            self._word.value = ""
            self._state.filter("")
            self._leave_filter()
        elif self._state.is_past:
            self.action_end(1)
        else:
            super().action_leave()

    def action_filter(self) -> None:
        self.remove_class("opened")
        self._state.filter(self._state.word if self._state.filtered == self._pane else "", self._pane)
        self._word.value = self._state.word
        self._word.display = True
        self.set_focus(self._word)
        self.draw()

    def on_input_changed(self, changed: Input.Changed) -> None:
        self._state.filter(changed.value)
        self.draw()

    def on_input_submitted(self) -> None:
        self._leave_filter()

    def _leave_filter(self) -> None:
        self._word.display = bool(self._word.value.strip())  # fast typists: not filtered yet
        self._focus(self._state.filtered)

    # Time

    def action_step(self, count: int) -> None:
        if self._is_replay:
            self.post_message(Request("move", count))
        else:
            self._state.step(count)
            self.draw()

    def action_end(self, side: int) -> None:
        """Go to the oldest moment (-1), or return to now (1)."""
        if self._is_replay:
            self.post_message(Request("move_to_end", side))
        else:
            self._state.go_to_end(side)
            self.draw()

    def action_last(self) -> None:
        """Return to now; if that is shown, go to the last row."""
        if self._state.is_past:
            self.action_end(1)
        else:
            self.action_move("last")

    def action_event(self, side: int) -> None:
        """Go to the next event (1) or the one before (-1), and select it."""
        if self._is_replay and not self._state.knows_event(side):
            self._wanted_event = side
            self.notify("Reading ahead…")
            self.post_message(Request("read_ahead"))
        else:
            self._go_to_event(side)

    def events_read(self) -> None:
        """Go to the event that was asked for, if the recording was read as far as that."""
        side = self._wanted_event
        if side and self._state.knows_event(side):
            self._wanted_event = 0
            self._go_to_event(side)
        else:
            self.draw()

    def _go_to_event(self, side: int) -> None:
        event = self._state.next_event(side, is_local=not self._is_replay)
        if event is None:
            self.notify("There is no later event." if side > 0 else "There is no earlier event.")
            return
        if self._is_replay:
            self.post_message(Request("move_to_time", event.at))
        self._pane = "changes" if not self._is_opened else self._pane
        self.draw()
        if not self._is_opened:
            self._view("changes").focus()
            self._show_selected()

    def action_log(self) -> None:
        """Show the NCCL log of the selected rank's job."""
        sample = self._state.sample
        key = self._state.keep_selection("ranks") if self._pane == "ranks" else ""
        process = sample.process(int(key)) if sample is not None and key.isdecimal() else None
        self.post_message(Request("log", process.job if process is not None else ""))

    def action_columns(self) -> None:
        choose_columns(self, self.draw, self._state, self._pane)

    def action_sort(self) -> None:
        choose_order(self, self.draw, self._state, self._pane)

    def action_copy(self) -> None:
        command = self._state.stack_command(self._pane)
        if command:
            save_and_copy.copy(self, command)

    def action_write(self) -> None:
        """Write all panes as text, and the events as JSON Lines, to new files in the current directory."""
        save_and_copy.save(self, "gdrtop-live", txt=self._state.text(), jsonl=self._state.json_lines())
