"""What the screens with a list share: the selected entry below the list, and the filter.

An heir composes its panes and says their ids; a list that can be filtered has a `#summary` above it and an
Input `#word` below.
"""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar

from textual.binding import Binding
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Input

from tui.list_state import ExaminedListState, ListState
from widgets.lines import Run, Tone, rows_of
from widgets.lines_view import LinesView

L = TypeVar("L", bound=ListState)
E = TypeVar("E", bound=ExaminedListState)

PAGE_KEYS = (
    Binding("pagedown", "page(1)", "Page", show=False, id="page_down"),
    Binding("pageup", "page(-1)", "Page", show=False, id="page_up"),
)
FILTER_KEY = Binding(
    "slash", "filter", "Filter", key_display="/", tooltip="Only what contains a word", id="filter"
)
AGAIN_KEY = Binding("r,f5", "again", "Again", tooltip="Examine the node again", id="again")


def select_keys(tooltip: str) -> tuple[Binding, ...]:
    """The keys that select the entry above or below."""
    return (
        # Before the focused pane's own keys for scrolling.
        Binding("down", "select(1)", "Select", key_display="↑↓", tooltip=tooltip, priority=True, id="next"),
        Binding("up", "select(-1)", "Select", show=False, priority=True, id="previous"),
        Binding("j", "select(1)", "Select", show=False, id="next_j"),
        Binding("k", "select(-1)", "Select", show=False, id="previous_k"),
    )


class ListScreen(Screen[None], Generic[L]):
    """A list, and below it the selected entry."""

    LIST: ClassVar[str]  # the panes' ids
    DETAILS: ClassVar[str]

    def __init__(self, state: L) -> None:
        super().__init__()
        self._state = state

    def on_mount(self) -> None:
        """Draws what is known already; Textual has called the heir's own `on_mount` before."""
        self._list.focus()
        self.draw()

    def on_lines_view_resized(self) -> None:
        """Draws anew for the pane's width."""
        self.draw()

    @property
    def _list(self) -> LinesView:
        return self.query_one(f"#{self.LIST}", LinesView)

    @property
    def _details(self) -> LinesView:
        return self.query_one(f"#{self.DETAILS}", LinesView)

    def draw(self) -> None:
        """Draws what is known, once there are panes for it."""
        if self.is_mounted:
            self._draw_panes()

    def _draw_panes(self) -> None:
        listed, details = self._list, self._details
        if listed.room:
            listed.show(self._state.list_lines(listed.room))
            row = rows_of(listed.lines).get(self._state.selected)
            if row is not None:
                self._scroll_list(row)
        if details.room:
            details.show(self._state.detail_lines(details.room) or [(Run("", Tone.DIM),)])

    def _scroll_list(self, row: int) -> None:
        self._list.scroll_to_row(row)

    def _draw_from_top(self) -> None:
        """Draws, and shows the beginning of what is new in the lower pane."""
        self._details.scroll_to(y=0, animate=False)
        self.draw()

    # Keys

    def action_select(self, step: int) -> None:
        """Selects the entry below or above."""
        self._state.select(step)
        self._draw_from_top()

    def action_page(self, step: int) -> None:
        """Scrolls the selected entry by a page."""
        (self._details.action_page_down if step > 0 else self._details.action_page_up)()

    def action_leave(self) -> None:
        """Leaves."""
        self.dismiss()


class ExaminedListScreen(ListScreen[E]):
    """A list made of an examination, with its summary above; a word narrows it."""

    class Wanted(Message):
        """The node is to be examined."""

    def on_mount(self) -> None:
        """Shows the word that the list is filtered by, also when one comes back to it."""
        self._word.value = self._state.word
        self._word.display = bool(self._state.word)

    @property
    def _word(self) -> Input:
        return self.query_one("#word", Input)

    def _draw_panes(self) -> None:
        self.query_one("#summary", LinesView).show(self._state.summary(self.size.width))
        super()._draw_panes()

    # Keys

    def action_filter(self) -> None:
        """Asks for a word."""
        self._word.display = True
        self._word.focus()

    def on_input_changed(self, changed: Input.Changed) -> None:
        """Lists only what contains the word."""
        self._state.filter(changed.value)
        self.draw()

    def on_input_submitted(self) -> None:
        """Back to the list; the word stays."""
        self._leave_filter()

    def _leave_filter(self) -> None:
        self._word.display = bool(self._state.word)
        self._list.focus()

    def action_again(self) -> None:
        """Examines the node again."""
        self._state.begin()
        self.draw()
        self.post_message(self.Wanted())

    def action_leave(self) -> None:
        """Gives the word up, then leaves."""
        if self._word.display:
            self._word.value = ""
            self._state.filter("")
            self._leave_filter()
            self.draw()
        else:
            super().action_leave()
